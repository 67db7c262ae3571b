//! A real redis with the preload library, in a directory of its own, and its protocol.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use spillway_batch::Id;

use super::driver::Driver;
use super::process::Server;

/// A redis server and its directory. When dropped, the server is killed and the directory removed.
pub struct Redis {
    pub server: Server,
    pub directory: PathBuf,
}

impl Redis {
    pub fn start(arguments: &[&str]) -> Redis {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("spillway-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let server = Server::start(|address| {
            let mut command = Command::new("/usr/bin/redis-server");
            command.args(["--port", &address.port().to_string()]).args(arguments);
            command.current_dir(&directory).stdout(Stdio::null());
            command
        });
        Redis { server, directory }
    }

    pub fn link(&self) -> Driver {
        Driver::loopback(self.server.link)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Connects a client on the same host: with its default settings, redis serves only such clients.
pub fn connect_local(link: &mut Driver) -> Id {
    let port = 20_000 + link.connections.len() as u16;
    link.connect_from(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

pub fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The bytes of a command whose arguments are separated by spaces.
pub fn command_of(text: &str) -> Vec<u8> {
    command(&text.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// A bulk string in redis' protocol.
pub fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

/// Sends a command and checks that the reply equals `reply`.
pub fn expect(link: &mut Driver, id: Id, command: &[u8], reply: &[u8]) {
    link.send(id, command);
    link.run(|link| {
        let connection = &link.connections[&id];
        connection.received.len() >= reply.len() || connection.closed.is_some()
    });
    let received = link.take(id);
    assert!(received == reply, "{:?}", String::from_utf8_lossy(&received[..received.len().min(500)]));
}

/// Sends a command and receives one complete bulk reply.
pub fn ask_text(link: &mut Driver, id: Id, text: &str) -> String {
    link.send(id, &command_of(text));
    link.run(|link| {
        let received = &link.connections[&id].received;
        let end = received.windows(2).position(|pair| pair == b"\r\n");
        end.is_some_and(|end| {
            let length: usize = std::str::from_utf8(&received[1..end]).unwrap().parse().unwrap();
            received.len() >= end + 2 + length + 2
        })
    });
    String::from_utf8(link.take(id)).unwrap()
}

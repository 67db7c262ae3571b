//! Blocking descriptors and duplicates: a server with a thread for each connection.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use spillway_batch::Id;
use support::driver::{Driver, PATIENCE};
use support::server::library;

/// Killed when dropped.
struct Echo(Child, SocketAddr);

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn start() -> Echo {
    let program = std::env::current_exe().unwrap();
    for _ in 0..10 {
        let (plain, link) = (free_address(), free_address());
        let child = Command::new(&program)
            .args(["--exact", "echo_server", "--ignored", "--nocapture"])
            .env("ECHO_ADDRESS", plain.to_string())
            .env("LD_PRELOAD", library())
            .env("SPILLWAY_LINK", link.to_string())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Echo(child, link);
        let deadline = Instant::now() + PATIENCE;
        while server.0.try_wait().unwrap().is_none() {
            if TcpStream::connect(link).is_ok() {
                return server;
            }
            assert!(Instant::now() < deadline, "the echo server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    panic!("the echo server did not start ten times in a row");
}

/// A server of the old kind: it polls its listener and gives each connection a thread of its own, which reads and
/// writes a blocking descriptor and its duplicate.
#[test]
#[ignore = "the server of the test below, which starts it as a process with the shim"]
fn echo_server() {
    let Ok(address) = std::env::var("ECHO_ADDRESS") else { return };
    let listener = TcpListener::bind(address).unwrap();
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: plain calls of libc, so that they come by the shim; the event outlives them.
    let set = unsafe {
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, listener.as_raw_fd(), &raw mut event), 0);
        set
    };
    loop {
        // SAFETY: there is room for one event.
        if unsafe { libc::epoll_wait(set, &raw mut event, 1, -1) } == 1 {
            let (stream, _) = listener.accept().unwrap();
            std::thread::spawn(move || echo(stream));
        }
    }
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut copy = stream.try_clone()?;
    let mut buffer = vec![0; 100_000];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return copy.write_all(b"bye");
        }
        copy.write_all(&buffer[..length])?;
    }
}

#[test]
fn a_thread_for_each_connection_is_served() {
    let server = start();
    let mut link = Driver::loopback(server.1);
    let ids: Vec<Id> = (0..20).map(|_| link.connect()).collect();
    for round in 0..20 {
        for id in &ids {
            link.send(*id, format!("round {round} of {id}\n").as_bytes());
        }
        let expected = |id: &Id| format!("round {round} of {id}\n").into_bytes();
        link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= expected(id).len()));
        for id in &ids {
            assert_eq!(link.take(*id), expected(id));
        }
    }
    // More than all windows together, both ways at once.
    let large: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    link.send(ids[0], &large);
    link.run(|link| link.connections[&ids[0]].received.len() >= large.len());
    assert!(link.take(ids[0]) == large);
    // The end is heard, answered, and closes.
    for id in &ids {
        link.link.finish(*id);
    }
    link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
    for id in &ids {
        assert_eq!(link.take(*id), b"bye");
    }
}

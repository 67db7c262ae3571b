//! Servers in Python and JavaScript, whose event loops are epoll.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use spillway_batch::Id;
use support::driver::{Driver, WAIT_MAX};
use support::process::Server;

const PYTHON: &str = r#"
import asyncio, sys

async def serve(reader, writer):
    line = (writer.get_extra_info("peername")[0] + "\n").encode()
    writer.write(line)
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.write(b"bye")
    writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=4_000_000)
    await server.serve_forever()

asyncio.run(main())
"#;

const NODE: &str = r#"
require("net").createServer({ allowHalfOpen: true }, (socket) => {
    socket.write(socket.remoteAddress + "\n");
    socket.setNoDelay(true);
    socket.pipe(socket, { end: false });
    socket.on("end", () => socket.end("bye"));
    socket.on("error", () => {});
}).listen(Number(process.argv[1]), "127.0.0.1");
"#;

fn check_echoes(program: &str, flag: &str, script: &str) {
    let version = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let version = version.unwrap_or_else(|error| panic!("{program}: {error}; run tools/setup to install it"));
    println!("{program} {}", String::from_utf8_lossy(&version.stdout));
    let server = Server::start(|address: SocketAddr| {
        let mut command = Command::new(program);
        command.args([flag, script, &address.port().to_string()]);
        command
    });
    let mut link = Driver::loopback(server.link);
    let ids: Vec<Id> =
        (0..100).map(|port| link.connect_from(SocketAddr::from(([127, 3, 2, 1], 4000 + port)))).collect();
    // The server sees the clients' addresses.
    for id in &ids {
        link.run(|link| link.connections[id].received.ends_with(b"\n"));
        assert_eq!(link.take(*id), b"127.3.2.1\n");
    }
    for round in 0..10 {
        let text = |id: &Id| format!("round {round} of {id}\n").into_bytes();
        ids.iter().for_each(|id| link.send(*id, &text(id)));
        link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= text(id).len()));
        for id in &ids {
            assert_eq!(link.take(*id), text(id));
        }
    }
    // More than the credit in both directions, while a direct client is served.
    let large = [vec![b'x'; 2_000_000], b"\n".to_vec()].concat();
    link.send(ids[0], &large);
    link.flush();
    let mut plain = TcpStream::connect(server.plain).unwrap();
    plain.set_read_timeout(Some(WAIT_MAX)).unwrap();
    plain.write_all(b"hello\n").unwrap();
    let mut echo = [0; 16];
    plain.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"127.0.0.1\nhello\n");
    link.run(|link| link.connections[&ids[0]].received.len() >= large.len());
    assert!(link.take(ids[0]) == large);
    for id in &ids {
        link.link.finish(*id);
    }
    link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
    for id in &ids {
        assert_eq!(link.take(*id), b"bye");
    }
}

#[test]
fn python_asyncio_server_is_served() {
    check_echoes("python3", "-c", PYTHON);
}

#[test]
fn node_server_is_served() {
    check_echoes("node", "-e", NODE);
}

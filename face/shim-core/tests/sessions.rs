//! Sessions at unmodified servers: they move from link to link, and the server keeps one descriptor.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_batch::RefuseReason;
use spillway_client::session::{BlockingSession, CarrierLoss, Gone, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget, Session};
use support::driver::PATIENCE;
use support::memcached::memcached;
use support::process::Server;

/// A session with two routes to the server, each by a link of its own.
fn open(server: &Server) -> BlockingSession {
    let way = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    BlockingSession::open(vec![way.clone(), way], SessionSettings::default()).unwrap()
}

/// Moves the session to the other link.
fn hop(session: &mut BlockingSession, turn: usize) {
    session.session().move_to(Instant::now(), turn % 2).unwrap();
}

/// The number of moves since the last call.
fn moves(session: &mut BlockingSession) -> usize {
    std::iter::from_fn(|| session.poll_event())
        .filter(|event| matches!(event, SessionEvent::Moved(_)))
        .count()
}

fn value(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at * 7 + number) % 26) as u8).collect()
}

/// Bytes sent at a time.
const PIECE_BYTES: usize = 20_000;

/// Sends `request` in pieces, and checks `reply`. The session moves to the other link while the number of the next
/// piece to be sent is in `hops`.
fn exchange(session: &mut BlockingSession, request: &[u8], reply: &[u8], hops: &[usize]) {
    let mut sent = 0;
    let mut got = vec![0; reply.len()];
    let mut received = 0;
    while received < reply.len() || sent < request.len() {
        let now = Instant::now();
        if sent < request.len() {
            let end = request.len().min(sent + PIECE_BYTES);
            match session.session().send(now, &request[sent..end]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
        for (turn, _) in hops.iter().enumerate().filter(|(_, at)| **at == sent / PIECE_BYTES) {
            hop(session, turn + 1);
        }
        if sent < request.len() && received >= reply.len() {
            continue;
        }
        received += match session.session().receive(now, &mut got[received..]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && sent < request.len() => 0,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                session.read(&mut got[received..]).unwrap()
            }
            outcome => outcome.unwrap(),
        };
    }
    assert!(got == reply, "every byte is right");
}

fn stat(server: &Server, name: &str) -> u64 {
    let mut stream = TcpStream::connect(server.plain).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"stats\r\n").unwrap();
    let wanted = format!("STAT {name} ");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let found = lines.filter_map(|line| Some(line.strip_prefix(&wanted)?.trim().parse().unwrap())).next();
    found.expect("memcached has this figure")
}

fn sessions_move_under_traffic(threads: &str) {
    let server = memcached(&["-t", threads], &[]);
    let before = stat(&server, "total_connections");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut session = open(server);
                for round in 0..60 {
                    let length = 1 + (round * 3_001 + number * 97) % 150_000;
                    let text = value(round + number, length);
                    let mut set = format!("set key{number} 0 0 {length}\r\n").into_bytes();
                    set.extend_from_slice(&text);
                    set.extend_from_slice(format!("\r\nget key{number}\r\n").as_bytes());
                    let mut reply = format!("STORED\r\nVALUE key{number} 0 {length}\r\n").into_bytes();
                    reply.extend_from_slice(&text);
                    reply.extend_from_slice(b"\r\nEND\r\n");
                    exchange(&mut session, &set, &reply, &[round % 3, (round + 1) % 4]);
                }
                assert!(moves(&mut session) > 5);
                session.close().unwrap();
            });
        }
    });
    // One for each session, however often it moves. The queries of `stats` count, too, and memcached's threads count late.
    assert!(stat(&server, "total_connections") - before <= 8 + 4);
}

#[test]
fn sessions_move_under_traffic_at_memcached_with_one_thread() {
    sessions_move_under_traffic("1");
}

#[test]
fn sessions_move_under_traffic_at_memcached_with_four_threads() {
    sessions_move_under_traffic("4");
}

#[test]
fn a_pipeline_of_redis_moves_with_its_session() {
    let server = Server::start(|address| {
        let mut command = Command::new("/usr/bin/redis-server");
        command.args(["--port", &address.port().to_string(), "--save", "", "--appendonly", "no"]);
        command.stdout(Stdio::null());
        command
    });
    let mut session = open(&server);
    for round in 0..20 {
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        for number in 0..2_000 {
            let text = value(number, 30 + round);
            requests.extend_from_slice(b"*2\r\n$4\r\nECHO\r\n");
            for bytes in [&mut requests, &mut replies] {
                bytes.extend_from_slice(format!("${}\r\n", text.len()).as_bytes());
                bytes.extend_from_slice(&text);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        exchange(&mut session, &requests, &replies, &[0, 2, 4]);
    }
    session.close().unwrap();
}

#[test]
fn a_server_that_closes_says_so_after_the_last_byte() {
    let server = memcached(&["-t", "2"], &[]);
    let mut session = open(&server);
    let text = value(3, 100_000);
    session.write_all(format!("set key 0 0 {}\r\n", text.len()).as_bytes()).unwrap();
    session.write_all(&text).unwrap();
    session.write_all(b"\r\nget key\r\nquit\r\n").unwrap();
    hop(&mut session, 1);
    let mut all = Vec::new();
    session.read_to_end(&mut all).unwrap();
    assert!(all.starts_with(b"STORED\r\nVALUE key 0 100000\r\n") && all.ends_with(b"\r\nEND\r\n"));
    session.close().unwrap();
    // The session's place is free again, and so is the server's descriptor.
    let descriptors = server.descriptors();
    for _ in 0..50 {
        let mut session = open(&server);
        session.write_all(b"version\r\n").unwrap();
        assert_ne!(session.read(&mut [0; 64]).unwrap(), 0);
        session.close().unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while server.descriptors() > descriptors + 5 {
        assert!(Instant::now() < deadline, "{} descriptors, {descriptors} before", server.descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Python serves each client in a blocking thread.
const PYTHON: &str = r#"
import socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True

Server(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"#;

#[test]
fn sessions_move_at_a_server_of_blocking_threads() {
    let server = Server::start(|address| {
        let mut command = Command::new("python3");
        command.args(["-c", PYTHON, &address.port().to_string()]);
        command
    });
    let mut sessions: Vec<BlockingSession> = (0..4).map(|_| open(&server)).collect();
    for round in 0..20 {
        for session in &mut sessions {
            let mut line = value(round, 1 + round * 4_000);
            line.push(b'\n');
            exchange(session, &line.clone(), &line, &[round % 4]);
        }
    }
    for session in sessions {
        session.close().unwrap();
    }
}

#[test]
fn a_restarted_server_is_told_as_gone() {
    let server = memcached(&[], &[]);
    let (plain, link) = (server.plain, server.link);
    let mut session = open(&server);
    session.write_all(b"set key 0 0 5\r\nvalue\r\n").unwrap();
    let mut reply = [0; 8];
    session.read_exact(&mut reply).unwrap();
    drop(server);
    let command = |plain: SocketAddr| {
        let mut command = Command::new("/usr/bin/memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-p", &plain.port().to_string()]);
        command
    };
    let _server = Server::start_at(plain, link, &command, &|_| true).expect("its ports are free again");
    let error = session.read(&mut reply).unwrap_err();
    let gone =
        error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()).expect("it says that it is gone");
    assert!(gone.acknowledged <= gone.written && gone.written == 22);
}

#[test]
fn a_full_table_refuses_more_and_serves_the_others() {
    let server = memcached(&[], &[("SPILLWAY_SESSIONS_MAX", "1")]);
    let mut first = open(&server);
    exchange(&mut first, b"get key\r\n", b"END\r\n", &[0]);
    let way = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    let settings =
        SessionSettings { give_up_after: Duration::from_millis(300), ..SessionSettings::default() };
    let error = BlockingSession::open(vec![way], settings).unwrap_err();
    println!("the second: {error}");
    exchange(&mut first, b"get key\r\n", b"END\r\n", &[0]);
    first.close().unwrap();
    // The session's place is free.
    open(&server).close().unwrap();
}

#[test]
fn a_client_that_never_returns_is_forgotten_and_others_are_served() {
    let server = memcached(&["-t", "4"], &[]);
    let mut lost = open(&server);
    lost.write_all(b"set key 0 0 5\r\nvalue\r\n").unwrap();
    let mut reply = [0; 8];
    lost.read_exact(&mut reply).unwrap();
    drop(lost); // without closing
    server.wait_for_log("1 sessions go on without it");
    let mut session = open(&server);
    exchange(&mut session, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n", &[0]);
    session.close().unwrap();
}

/// Echoes lines, stops listening on `rest`, and begins again on `listen`.
const RESTING: &str = r#"
import asyncio, sys

listener = None

async def listen():
    global listener
    listener = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))

async def serve(reader, writer):
    async for line in reader:
        if line == b"rest\n":
            listener.close()
        elif line == b"listen\n":
            await listen()
        writer.write(line)
        await writer.drain()
    writer.close()

async def main():
    await listen()
    await asyncio.Event().wait()

asyncio.run(main())
"#;

/// Drives a session until a condition holds.
fn until(session: &mut Session, what: &str, mut done: impl FnMut(&mut Session) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(session) {
        assert!(Instant::now() < deadline, "no sign of {what}");
        std::thread::sleep(Duration::from_millis(1));
        let now = Instant::now();
        session.handle_ready(now);
        session.handle_timeout(now);
    }
}

/// Its first message came while the server did not listen. Repeated, it must not be taken for one of an ended session.
#[test]
fn who_comes_while_the_server_does_not_listen_is_served_later() {
    let server = Server::start(|address| {
        let mut command = Command::new("python3");
        command.args(["-c", RESTING, &address.port().to_string()]);
        command
    });
    let mut first = open(&server);
    exchange(&mut first, b"rest\n", b"rest\n", &[]);
    let way = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    let mut session = Session::open(Instant::now(), vec![way], SessionSettings::default()).unwrap();
    session.send(Instant::now(), b"patience\n").unwrap();
    until(&mut session, "a refusal", |session| {
        std::iter::from_fn(|| session.poll_event()).any(|event| {
            let SessionEvent::CarrierLost { why, .. } = event else { return false };
            matches!(why, CarrierLoss::Refused(RefuseReason::Unavailable))
        })
    });
    exchange(&mut first, b"listen\n", b"listen\n", &[]);
    let mut reply = Vec::new();
    until(&mut session, "its reply", |session| {
        let mut buffer = [0; 64];
        match session.receive(Instant::now(), &mut buffer) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            Ok(count) => reply.extend_from_slice(&buffer[..count]),
        }
        reply == b"patience\n"
    });
    first.close().unwrap();
}

/// Each may have 256 KiB kept for it: without a bound in bytes, many of them would use up the server's memory.
#[test]
fn sessions_that_are_never_read_end_and_others_are_served() {
    let server = memcached(&["-m", "64", "-c", "2048"], &[("SPILLWAY_SESSIONS_MEMORY", "16777216")]);
    let mut honest = open(&server);
    let text = value(1, 900_000);
    let mut set = b"set big 0 0 900000\r\n".to_vec();
    set.extend_from_slice(&text);
    set.extend_from_slice(b"\r\n");
    exchange(&mut honest, &set, b"STORED\r\n", &[]);
    let before = server.resident_bytes();
    let mut deaf = Vec::new();
    for _ in 0..300 {
        let mut session = open(&server);
        session.write_all(b"get big\r\n").unwrap();
        deaf.push(session);
        exchange(&mut honest, b"get key\r\n", b"END\r\n", &[]);
    }
    server.wait_for_log("session ended, it held most of 1 MiB");
    exchange(&mut honest, b"get key\r\n", b"END\r\n", &[]);
    let grown = server.resident_bytes().saturating_sub(before);
    println!("{} MiB more", grown >> 20);
    // Without the bound, 75 MiB would be kept for them; each link has buffers, too.
    assert!(grown < 64 << 20, "{grown}");
    let mut newcomer = open(&server);
    exchange(&mut newcomer, b"get key\r\n", b"END\r\n", &[]);
}

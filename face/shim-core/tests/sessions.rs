//! Sessions at unmodified servers: a session moves from link to link, and keeps its descriptor in the server.

mod support;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_batch::RefuseReason;
use spillway_client::session::{BlockingSession, CarrierLoss, Gone, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget, Session};
use support::driver::WAIT_MAX;
use support::memcached::memcached;
use support::process::Server;

/// Opens a session with two routes to the server, each with a link of its own.
fn open(server: &Server) -> BlockingSession {
    let target = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    BlockingSession::open(vec![target.clone(), target], SessionSettings::default()).unwrap()
}

/// Moves the session to the route with index `number % 2`.
fn move_session(session: &mut BlockingSession, number: usize) {
    session.session().move_to(Instant::now(), number % 2).unwrap();
}

/// The number of moves since the last call.
fn count_moves(session: &mut BlockingSession) -> usize {
    std::iter::from_fn(|| session.poll_event())
        .filter(|event| matches!(event, SessionEvent::Moved(_)))
        .count()
}

fn value(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at * 7 + number) % 26) as u8).collect()
}

/// Number of bytes sent at a time.
const PIECE_BYTES: usize = 20_000;

/// Sends `request` in pieces, and checks `reply`. The session moves before each piece whose number is in `moves_at`.
fn exchange(session: &mut BlockingSession, request: &[u8], reply: &[u8], moves_at: &[usize]) {
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
        for (number, _) in moves_at.iter().enumerate().filter(|(_, piece)| **piece == sent / PIECE_BYTES) {
            move_session(session, number + 1);
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
    assert!(got == reply, "the reply should equal the expected one");
}

fn stat(server: &Server, name: &str) -> u64 {
    let mut stream = TcpStream::connect(server.plain).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(b"stats\r\n").unwrap();
    let prefix = format!("STAT {name} ");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let found = lines.filter_map(|line| Some(line.strip_prefix(&prefix)?.trim().parse().unwrap())).next();
    found.expect("memcached's stats should contain the name")
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
                assert!(count_moves(&mut session) > 5);
                session.close().unwrap();
            });
        }
    });
    // One connection for each of 8 sessions; up to 4 more for the `stats` queries, which memcached may count late.
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
fn session_moves_during_a_redis_pipeline() {
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
fn client_receives_the_servers_close_after_the_last_byte() {
    let server = memcached(&["-t", "2"], &[]);
    let mut session = open(&server);
    let text = value(3, 100_000);
    session.write_all(format!("set key 0 0 {}\r\n", text.len()).as_bytes()).unwrap();
    session.write_all(&text).unwrap();
    session.write_all(b"\r\nget key\r\nquit\r\n").unwrap();
    move_session(&mut session, 1);
    let mut all = Vec::new();
    session.read_to_end(&mut all).unwrap();
    assert!(all.starts_with(b"STORED\r\nVALUE key 0 100000\r\n") && all.ends_with(b"\r\nEND\r\n"));
    session.close().unwrap();
    // Closed sessions free their slots and the server's descriptors.
    let descriptors = server.descriptors();
    for _ in 0..50 {
        let mut session = open(&server);
        session.write_all(b"version\r\n").unwrap();
        assert_ne!(session.read(&mut [0; 64]).unwrap(), 0);
        session.close().unwrap();
    }
    let deadline = Instant::now() + WAIT_MAX;
    while server.descriptors() > descriptors + 5 {
        assert!(
            Instant::now() < deadline,
            "at most {} descriptors should be open, not {}",
            descriptors + 5,
            server.descriptors()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A Python server with a blocking thread for each client.
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
fn sessions_move_at_a_server_with_blocking_threads() {
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
fn session_of_a_restarted_server_ends_with_gone() {
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
    let _server =
        Server::start_at(plain, link, &command, &|_| true).expect("restart the server on the same ports");
    let error = session.read(&mut reply).unwrap_err();
    let gone =
        error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()).expect("the error should be Gone");
    assert!(gone.acknowledged <= gone.written && gone.written == 22);
}

#[test]
fn full_session_table_refuses_another_session_and_serves_the_first() {
    let server = memcached(&[], &[("SPILLWAY_SESSIONS_MAX", "1")]);
    let mut first = open(&server);
    exchange(&mut first, b"get key\r\n", b"END\r\n", &[0]);
    let target = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    let settings =
        SessionSettings { give_up_after: Duration::from_millis(300), ..SessionSettings::default() };
    let error = BlockingSession::open(vec![target], settings).unwrap_err();
    println!("the second session: {error}");
    exchange(&mut first, b"get key\r\n", b"END\r\n", &[0]);
    first.close().unwrap();
    // The closed session frees its slot.
    open(&server).close().unwrap();
}

#[test]
fn other_sessions_are_served_after_a_client_ends_without_a_close() {
    let server = memcached(&["-t", "4"], &[]);
    let mut lost = open(&server);
    lost.write_all(b"set key 0 0 5\r\nvalue\r\n").unwrap();
    let mut reply = [0; 8];
    lost.read_exact(&mut reply).unwrap();
    drop(lost); // closes the sockets without closing the session
    server.wait_for_log("1 sessions wait for another link");
    let mut session = open(&server);
    exchange(&mut session, b"get key\r\n", b"VALUE key 0 5\r\nvalue\r\nEND\r\n", &[0]);
    session.close().unwrap();
}

/// A Python server that echoes lines, stops listening at `rest`, and listens again at `listen`.
const PAUSING: &str = r#"
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
fn drive_until(session: &mut Session, what: &str, mut done: impl FnMut(&mut Session) -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !done(session) {
        assert!(Instant::now() < deadline, "{what} should arrive within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(1));
        let now = Instant::now();
        session.handle_ready(now);
        session.handle_timeout(now);
    }
}

/// The session's first message arrives while the server does not listen, and is refused. When the client repeats it,
/// the server must not take it for a message of an ended session.
#[test]
fn session_refused_while_the_server_does_not_listen_is_served_later() {
    let server = Server::start(|address| {
        let mut command = Command::new("python3");
        command.args(["-c", PAUSING, &address.port().to_string()]);
        command
    });
    let mut first = open(&server);
    exchange(&mut first, b"rest\n", b"rest\n", &[]);
    let target = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    let mut session = Session::open(Instant::now(), vec![target], SessionSettings::default()).unwrap();
    session.send(Instant::now(), b"patience\n").unwrap();
    drive_until(&mut session, "a refusal", |session| {
        std::iter::from_fn(|| session.poll_event()).any(|event| {
            let SessionEvent::CarrierLost { why, .. } = event else { return false };
            matches!(why, CarrierLoss::Refused(RefuseReason::Unavailable))
        })
    });
    exchange(&mut first, b"listen\n", b"listen\n", &[]);
    let mut reply = Vec::new();
    drive_until(&mut session, "its reply", |session| {
        let mut buffer = [0; 64];
        match session.receive(Instant::now(), &mut buffer) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            Ok(count) => reply.extend_from_slice(&buffer[..count]),
        }
        reply == b"patience\n"
    });
    first.close().unwrap();
}

/// The server keeps up to 256 KiB for each session: without a bound in bytes, many sessions could use up its memory.
#[test]
fn sessions_that_are_never_read_end_and_others_are_served() {
    let server = memcached(&["-m", "64", "-c", "2048"], &[("SPILLWAY_SESSIONS_MEMORY", "16777216")]);
    let mut reading = open(&server);
    let text = value(1, 900_000);
    let mut set = b"set big 0 0 900000\r\n".to_vec();
    set.extend_from_slice(&text);
    set.extend_from_slice(b"\r\n");
    exchange(&mut reading, &set, b"STORED\r\n", &[]);
    let before = server.resident_bytes();
    let mut unread = Vec::new();
    for _ in 0..300 {
        let mut session = open(&server);
        session.write_all(b"get big\r\n").unwrap();
        unread.push(session);
        exchange(&mut reading, b"get key\r\n", b"END\r\n", &[]);
    }
    server.wait_for_log("session ended, because it held most of 1 MiB");
    exchange(&mut reading, b"get key\r\n", b"END\r\n", &[]);
    let grown = server.resident_bytes().saturating_sub(before);
    println!("memory grew by {} MiB", grown >> 20);
    // 300 sessions of 256 KiB would hold 75 MiB. The limit is above the 16 MiB bound, because links have buffers.
    assert!(grown < 64 << 20, "memory should grow by less than 64 MiB: {grown} bytes");
    let mut newcomer = open(&server);
    exchange(&mut newcomer, b"get key\r\n", b"END\r\n", &[]);
}

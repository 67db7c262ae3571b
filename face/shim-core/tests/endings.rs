//! Servers that end, or close event loops, in unusual ways: helped clients see the end at once.

mod support;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spillway_batch::CloseReason;
use spillway_client::session::{BlockingSession, SessionSettings};
use spillway_client::{Key, LinkTarget};
use support::driver::Driver;
use support::process::{Server, library};

/// The compiled program of `programs/ending.c`. Removed when dropped.
struct Program(PathBuf);

impl Program {
    fn compile(name: &str) -> Program {
        let path = std::env::temp_dir().join(format!("spillway-{name}-{}", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/ending.c");
        let status = Command::new("cc").args(["-O1", "-fno-builtin", "-o"]).arg(&path).arg(source).status();
        assert!(status.expect("run the C compiler").success());
        Program(path)
    }

    fn start(&self) -> Server {
        Server::start(|address| {
            let mut command = Command::new(&self.0);
            command.arg(address.port().to_string());
            command
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn open(server: &Server) -> BlockingSession {
    let target = LinkTarget {
        address: server.link,
        key: Key::loopback_only(),
        server: None,
        encryption: Default::default(),
    };
    BlockingSession::open(vec![target], SessionSettings::default()).unwrap()
}

fn echo(session: &mut BlockingSession, text: &[u8]) {
    session.write_all(text).unwrap();
    let mut got = vec![0; text.len()];
    session.read_exact(&mut got).unwrap();
    assert_eq!(got, text);
}

/// Checks that the session has ended.
fn expect_end(session: &mut BlockingSession) {
    assert_eq!(session.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn clients_see_the_end_of_a_server_that_exits_inside_malloc_or_free() {
    let program = Program::compile("exit");
    for command in [b"quit", b"free"] {
        let mut server = program.start();
        let mut session = open(&server);
        echo(&mut session, b"hello");
        let mut link = Driver::loopback(server.link);
        let (first, other) = (link.connect(), link.connect());
        for id in [first, other] {
            assert_eq!(link.ask(id, b"hello", b"hello"), b"hello");
        }
        link.send(first, command);
        link.run(|link| [first, other].iter().all(|id| link.connections[id].closed.is_some()));
        for id in [first, other] {
            assert_eq!(link.of(id).closed, Some(CloseReason::Normal));
        }
        assert_eq!(link.take(first), command, "the client should receive the server's last bytes");
        expect_end(&mut session);
        assert_eq!(server.wait(), Some(3), "{}", server.log());
    }
}

/// The warning about a program that never waited for clients is written without the application's heap.
#[test]
fn program_that_exits_inside_malloc_before_it_listens_ends_with_a_warning() {
    let program = Program::compile("early");
    // As with `spillway run`: the shell executes the program, so SPILLWAY_STARTED is the program's process id.
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "SPILLWAY_LAUNCH=00000000000000000000000000000000 SPILLWAY_STARTED=$$ exec \"$0\" early",
        ])
        .arg(&program.0);
    command.env("LD_PRELOAD", library()).env("SPILLWAY_LINK", spillway_ports::free_address().to_string());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("without waiting for clients"), "{output:?}");
}

/// The program looks for the end right after it has closed the loop, and then exits.
#[test]
fn closing_the_link_ports_event_loop_ends_connections_of_other_loops_at_once() {
    let program = Program::compile("loop");
    let mut server = program.start();
    let mut session = open(&server);
    echo(&mut session, b"hello");
    echo(&mut session, b"loop");
    expect_end(&mut session);
    assert_eq!(
        server.wait(),
        Some(4),
        "the end of the session should be reported to the server: {}",
        server.log()
    );
    server.wait_for_log("(1 sessions closed): the server closed its event loop");
    let mut server = program.start();
    let mut link = Driver::loopback(server.link);
    let id = link.connect();
    link.send(id, b"loop");
    link.run(|link| link.connections[&id].closed.is_some());
    assert_eq!(
        server.wait(),
        Some(4),
        "the end of the virtual connection should be reported to the server: {}",
        server.log()
    );
}

//! The examples' leader, which forwards undecoded requests from helpers to a replica.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use spillway_client::LinkTarget;
use spillway_client::session::{BlockingSession, SessionSettings};
use support::helper::Relief;
use support::{Keys, round_trip};

/// A process that is killed when dropped, and the listening address that it printed.
struct Program(Child, SocketAddr);

impl Program {
    fn start(name: &str, arguments: &[&str]) -> Program {
        let tests = std::env::current_exe().unwrap();
        let program = tests.ancestors().nth(2).unwrap().join("examples").join(name);
        let mut child = Command::new(&program)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error}; `cargo test` builds it"));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().and_then(|address| address.parse().ok());
        Program(child, address.unwrap_or_else(|| panic!("{name} says {line:?}")))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    keys: Keys,
    leader: Program,
    _replica: Program,
}

impl World {
    fn start() -> World {
        let keys = Keys::new();
        let replica = Program::start("replica", &["--listen", "127.0.0.1:0"]);
        let (helper, client) = (keys.helper_file(), keys.client_file());
        let files = [helper.to_str().unwrap(), client.to_str().unwrap()];
        let at = replica.1.to_string();
        let arguments =
            ["--link", "127.0.0.1:0", "--replica", &at, "--key", files[0], "--client-key", files[1]];
        World { leader: Program::start("leader", &arguments), keys, _replica: replica }
    }

    fn target(&self) -> LinkTarget {
        LinkTarget {
            address: self.leader.1,
            key: self.keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }
}

fn byte(number: usize, at: usize) -> u8 {
    ((at * 31 + number * 17) % 251) as u8
}

#[test]
fn many_clients_of_two_helpers_get_their_own_replies() {
    let world = World::start();
    let helpers = [Relief::start(&world.keys, world.leader.1), Relief::start(&world.keys, world.leader.1)];
    std::thread::scope(|scope| {
        for number in 0..24 {
            let plain = helpers[number % 2].plain;
            scope.spawn(move || {
                // Later connections reuse ids.
                for turn in 0..4 {
                    let mut client = TcpStream::connect(plain).unwrap();
                    for round in 0..40 {
                        round_trip(&mut client, 1 + (round * 37 + number * 11) % 700, round + number + turn);
                    }
                    client.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0, "the end follows");
                }
            });
        }
    });
}

#[test]
fn messages_of_many_frames_pass_in_order() {
    let world = World::start();
    let helper = Relief::start(&world.keys, world.leader.1);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let client = TcpStream::connect(helper.plain).unwrap();
            scope.spawn(move || {
                // More than all windows hold: the stream stalls if forwarded bytes do not count as consumed.
                let total = 2_000_000;
                let (mut writer, mut reader) = (&client, &client);
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let bytes: Vec<u8> = (0..total).map(|at| byte(number, at)).collect();
                        writer.write_all(&bytes).unwrap();
                    });
                    let mut got = vec![0; total];
                    reader.read_exact(&mut got).unwrap();
                    assert!((0..total).all(|at| got[at] == byte(number, at)), "client {number}");
                });
            });
        }
    });
}

#[test]
fn sessions_move_while_others_are_forwarded() {
    let world = World::start();
    let helpers = [Relief::start(&world.keys, world.leader.1), Relief::start(&world.keys, world.leader.1)];
    let routes = [helpers[0].target(&world.keys), helpers[1].target(&world.keys), world.target()];
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (routes, plain) = (routes.to_vec(), helpers[number % 2].plain);
            scope.spawn(move || {
                let mut client = TcpStream::connect(plain).unwrap();
                let mut session = BlockingSession::open(routes, SessionSettings::default()).unwrap();
                for round in 0..60 {
                    let length = 1 + (round * 997 + number) % 5_000;
                    let request: Vec<u8> = (0..length).map(|at| byte(round, at)).collect();
                    session.write_all(&request).unwrap();
                    if round % 10 == number {
                        session.session().move_to(Instant::now(), round / 10 % 3).unwrap();
                    }
                    let mut reply = vec![0; length];
                    session.read_exact(&mut reply).unwrap();
                    assert_eq!(reply, request, "round {round}");
                    round_trip(&mut client, 1 + round * 13, round);
                }
                session.finish();
                assert_eq!(session.read(&mut [0; 9]).unwrap(), 0);
                session.close().unwrap();
            });
        }
    });
}

#[test]
fn a_client_that_never_reads_is_closed_and_others_go_on() {
    let world = World::start();
    let helper = Relief::start(&world.keys, world.leader.1);
    let mut other = TcpStream::connect(helper.plain).unwrap();
    round_trip(&mut other, 10, 0);
    let mut lazy = TcpStream::connect(helper.plain).unwrap();
    lazy.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let (bytes, mut sent) = (vec![b'x'; 1 << 16], 0);
    let error = loop {
        assert!(sent < 200_000_000, "it takes everything");
        match lazy.write(&bytes) {
            Ok(written) => sent += written,
            Err(error) => break error,
        }
    };
    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "it is closed, not only stopped");
    for round in 0..100 {
        round_trip(&mut other, 1 + round * 50, round);
    }
}

//! The examples' leader, which forwards undecoded requests from helpers to a replica.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use spillway_client::LinkTarget;
use spillway_client::session::{BlockingSession, SessionSettings};
use support::helper::TestHelper;
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
        Program(
            child,
            address.unwrap_or_else(|| panic!("{name}: the first line should end with an address: {line:?}")),
        )
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Leader {
    keys: Keys,
    program: Program,
    _replica: Program,
}

impl Leader {
    fn start() -> Leader {
        let keys = Keys::new();
        let replica = Program::start("replica", &["--listen", "127.0.0.1:0"]);
        let (helper, client) = (keys.helper_file(), keys.client_file());
        let files = [helper.to_str().unwrap(), client.to_str().unwrap()];
        let replica_address = replica.1.to_string();
        let arguments = [
            "--link",
            "127.0.0.1:0",
            "--replica",
            &replica_address,
            "--key",
            files[0],
            "--client-key",
            files[1],
        ];
        Leader { program: Program::start("leader", &arguments), keys, _replica: replica }
    }

    fn target(&self) -> LinkTarget {
        LinkTarget {
            address: self.program.1,
            key: self.keys.client.clone(),
            server: None,
            encryption: Default::default(),
        }
    }
}

fn byte(number: usize, offset: usize) -> u8 {
    ((offset * 31 + number * 17) % 251) as u8
}

#[test]
fn many_clients_of_two_helpers_get_their_own_replies() {
    let leader = Leader::start();
    let helpers = [
        TestHelper::start(&leader.keys, leader.program.1),
        TestHelper::start(&leader.keys, leader.program.1),
    ];
    std::thread::scope(|scope| {
        for number in 0..24 {
            let plain = helpers[number % 2].plain_port;
            scope.spawn(move || {
                // Later connections reuse ids.
                for turn in 0..4 {
                    let mut client = TcpStream::connect(plain).unwrap();
                    for round in 0..40 {
                        round_trip(&mut client, 1 + (round * 37 + number * 11) % 700, round + number + turn);
                    }
                    client.shutdown(Shutdown::Write).unwrap();
                    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0, "the server should end the stream");
                }
            });
        }
    });
}

#[test]
fn messages_of_many_frames_arrive_in_order() {
    const CHUNK_BYTES: usize = 100_000;
    let leader = Leader::start();
    let helper = TestHelper::start(&leader.keys, leader.program.1);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let client = TcpStream::connect(helper.plain_port).unwrap();
            scope.spawn(move || {
                // More than all windows hold: the stream stalls if forwarded bytes do not count as consumed.
                let total = 2_000_000;
                // At most six chunks of each client are under way: the leader closes a client when 4 MiB of replies wait.
                let (started, finished) = sync_channel(5);
                let (mut writer, mut reader) = (&client, &client);
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        let bytes: Vec<u8> = (0..total).map(|offset| byte(number, offset)).collect();
                        for chunk in bytes.chunks(CHUNK_BYTES) {
                            started.send(()).unwrap();
                            writer.write_all(chunk).unwrap();
                        }
                    });
                    let mut reply = vec![0; total];
                    for chunk in reply.chunks_mut(CHUNK_BYTES) {
                        reader.read_exact(chunk).unwrap();
                        finished.recv().unwrap();
                    }
                    assert!(
                        (0..total).all(|offset| reply[offset] == byte(number, offset)),
                        "client {number} should receive its own bytes in order"
                    );
                });
            });
        }
    });
}

#[test]
fn sessions_move_while_others_are_forwarded() {
    let leader = Leader::start();
    let helpers = [
        TestHelper::start(&leader.keys, leader.program.1),
        TestHelper::start(&leader.keys, leader.program.1),
    ];
    let routes = [helpers[0].target(&leader.keys), helpers[1].target(&leader.keys), leader.target()];
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (routes, plain) = (routes.to_vec(), helpers[number % 2].plain_port);
            scope.spawn(move || {
                let mut client = TcpStream::connect(plain).unwrap();
                let mut session = BlockingSession::open(routes, SessionSettings::default()).unwrap();
                for round in 0..60 {
                    let length = 1 + (round * 997 + number) % 5_000;
                    let request: Vec<u8> = (0..length).map(|offset| byte(round, offset)).collect();
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
fn client_that_never_reads_is_closed_and_others_are_served() {
    let leader = Leader::start();
    let helper = TestHelper::start(&leader.keys, leader.program.1);
    let mut other = TcpStream::connect(helper.plain_port).unwrap();
    round_trip(&mut other, 10, 0);
    let mut unread = TcpStream::connect(helper.plain_port).unwrap();
    unread.set_write_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let (bytes, mut sent) = (vec![b'x'; 1 << 16], 0);
    let error = loop {
        assert!(sent < 200_000_000, "the connection should be closed before 200 MB are sent");
        match unread.write(&bytes) {
            Ok(written) => sent += written,
            Err(error) => break error,
        }
    };
    assert_ne!(
        error.kind(),
        std::io::ErrorKind::WouldBlock,
        "the connection should be closed, not only stopped"
    );
    for round in 0..100 {
        round_trip(&mut other, 1 + round * 50, round);
    }
}

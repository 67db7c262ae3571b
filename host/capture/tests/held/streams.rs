//! Moves at any moment of streams in both directions: packets arrive during each step of a move, also while held ones are injected.

use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};

use spillway_lab::{Host, LabError};

use crate::fork::{Family, Fork, INTERFACE};
use crate::stream::Pattern;
use crate::{Target, assert_unnoticed, end, moves, skipped};

/// Bytes that the client sends, and the server, for each move.
const BYTES_PER_MOVE: u64 = 60_000;

#[test]
fn streams_lose_nothing_over_ipv4() {
    streams("held-streams-4", Family::V4, &[]);
}

#[test]
fn streams_lose_nothing_over_ipv6() {
    streams("held-streams-6", Family::V6, &[]);
}

#[test]
fn streams_lose_nothing_without_sack() {
    streams("held-streams-s", Family::V4, &[("net/ipv4/tcp_sack", "0")]);
}

fn streams(name: &str, family: Family, sysctls: &[(&str, &str)]) {
    if skipped() {
        return;
    }
    let fork = Fork::new(name, family, sysctls);
    let (client, server) = fork.connection();
    let total = BYTES_PER_MOVE * moves() as u64;
    let mut targets = [0, 1].map(|index| Target::new(&fork.servers[index], INTERFACE));
    let halves = start_client(&fork.client, &client, total);
    let (server, moved) = serve(&fork, &mut targets, server, total);
    halves.into_iter().for_each(|half| half.join().unwrap().unwrap());
    assert!(moved >= moves() / 2, "{moved} moves while the streams flow");
    assert_unnoticed(&fork.client, &client, &targets);
    end([client, server]);
}

type Half = std::thread::JoinHandle<Result<(), LabError>>;

/// A thread that writes all requests, and one that reads all replies.
fn start_client(host: &Host, client: &TcpStream, total: u64) -> [Half; 2] {
    let (writer, reader) = (client.try_clone().unwrap(), client.try_clone().unwrap());
    let write = move || {
        let mut requests = Pattern::new(1);
        while requests.position() < total {
            let length = 1_000 + requests.position() % 7_000;
            requests.write(&writer, length.min(total - requests.position()) as usize);
        }
        writer.shutdown(Shutdown::Write).unwrap();
    };
    let read = move || {
        let mut replies = Pattern::new(2);
        while replies.position() < total {
            replies.read(&reader, 5_000.min(total - replies.position()) as usize);
        }
    };
    [host.thread(write).unwrap(), host.thread(read).unwrap()]
}

/// Reads and writes without waiting, and moves whenever a number of bytes has passed. Returns the server's end and the number of
/// moves.
fn serve(
    fork: &Fork,
    targets: &mut [Target<'_>; 2],
    mut server: TcpStream,
    total: u64,
) -> (TcpStream, usize) {
    server.set_nonblocking(true).unwrap();
    let (mut requests, mut replies) = (Pattern::new(1), Pattern::new(2));
    let (mut bytes, mut moved, mut next_move, mut is_finished) = (vec![0; 10_000], 0, 0, false);
    while !is_finished || replies.position() < total {
        match (&server).read(&mut bytes) {
            Ok(0) => is_finished = true,
            Ok(length) => requests.check(&bytes[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("cannot read: {error}"),
        }
        replies.write_some(&server, (total - replies.position()).min(9_000) as usize);
        let passed = requests.position() + replies.position();
        if passed >= next_move {
            let target_index = (moved + 1) % 2;
            let target = &mut targets[target_index];
            let hold = target.hold(&server);
            fork.send_to(target_index);
            server = target.take(&fork.servers[moved % 2], server, hold);
            moved += 1;
            // An odd number, so that moves meet all parts of a segment.
            next_move = passed + 2 * BYTES_PER_MOVE - 4_321;
        }
    }
    assert_eq!((requests.position(), replies.position()), (total, total));
    (server, moved)
}

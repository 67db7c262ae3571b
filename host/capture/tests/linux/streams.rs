//! Moves at any moment of streams in both directions.

use std::io::Read;
use std::net::{Shutdown, TcpStream};

use spillway_lab::Host;

use crate::cable::{Cable, Family, skipped};
use crate::moving::{Moving, assert_unseen, moves};
use crate::stream::Pattern;

/// Bytes that the client sends, and the server, for each move.
pub const BYTES_PER_MOVE: u64 = 60_000;

#[test]
fn streams_survive_moves_at_any_moment() {
    streams("cap-streams-4", Family::V4);
}

#[test]
fn streams_survive_moves_at_any_moment_over_ipv6() {
    streams("cap-streams-6", Family::V6);
}

fn streams(name: &str, family: Family) {
    if skipped() {
        return;
    }
    let cable = Cable::new(name, family, &[]);
    let (client, server) = cable.connection(|_| {});
    let total = BYTES_PER_MOVE * moves() as u64;
    let halves = start_client(&cable.client, client, total);
    let moved = cable.server.run_inside(|| serve(&cable, server, total)).unwrap();
    halves.into_iter().for_each(|half| half.join().unwrap().unwrap());
    assert!(moved >= moves() / 2, "{moved} moves while the streams flow");
    assert_unseen(&cable);
}

pub type Half = std::thread::JoinHandle<Result<(), spillway_lab::LabError>>;

/// A thread that writes all requests and finishes, and one that reads all replies.
pub fn start_client(host: &Host, client: TcpStream, total: u64) -> [Half; 2] {
    let writer = client.try_clone().unwrap();
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
            let length = 5_000.min(total - replies.position());
            replies.read(&client, length as usize);
        }
    };
    [host.thread(write).unwrap(), host.thread(read).unwrap()]
}

/// Reads and writes without waiting, and moves whenever a number of bytes has passed. Returns the number of moves.
fn serve(cable: &Cable, server: TcpStream, total: u64) -> usize {
    server.set_nonblocking(true).unwrap();
    let mut moving = Moving::new(cable, server);
    let (mut requests, mut replies) = (Pattern::new(1), Pattern::new(2));
    let (mut bytes, mut moved, mut next_move, mut is_finished) = (vec![0; 10_000], 0, 0, false);
    while !is_finished || replies.position() < total {
        match (&moving.stream).read(&mut bytes) {
            Ok(0) => is_finished = true,
            Ok(length) => requests.check(&bytes[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("cannot read: {error}"),
        }
        let length = (total - replies.position()).min(9_000);
        replies.write_some(&moving.stream, length as usize);
        let passed = requests.position() + replies.position();
        if passed >= next_move {
            (moving, _) = moving.step();
            moved += 1;
            // An odd number, so that moves meet all parts of a segment.
            next_move = passed + 2 * BYTES_PER_MOVE - 4_321;
        }
    }
    assert_eq!((requests.position(), replies.position()), (total, total));
    moved
}

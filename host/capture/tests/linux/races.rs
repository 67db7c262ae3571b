//! Connections move between two hosts while the client's segments still reach the old one: nothing holds them before the capture.
//! The segments pass the filter, or are copied, on one CPU while the connection is exported on another one.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::sockopt;
use spillway_capture::{Capturer, CopyLimits, Injector, Leaving, Step, import};

use crate::cable::{Cable, Family, skipped, wait_until};
use crate::moving::moves;
use crate::programs::{Filter, Stamps};
use crate::stream::Pattern;
use crate::streams::{BYTES_PER_MOVE, start_client};

#[test]
fn streams_survive_moves_that_begin_without_a_hold() {
    races("cap-races-4", Family::V4);
}

#[test]
fn streams_survive_moves_that_begin_without_a_hold_over_ipv6() {
    races("cap-races-6", Family::V6);
}

fn races(name: &str, family: Family) {
    if skipped() {
        return;
    }
    let cable = Cable::with_two_servers(name, family, &[]);
    cable.make_timeouts_long();
    // Far fewer segments than the kernel queues for a CPU that is busy: the network of this test loses none.
    let (client, server) = cable.connection(fix_send_buffer);
    fix_send_buffer(&server);
    let total = BYTES_PER_MOVE * moves() as u64;
    let before = cable.client_timeouts();
    let halves = start_client(&cable.client, client, total);
    let mut owner = Owner::new(&cable, server);
    owner.serve(total);
    halves.into_iter().for_each(|half| half.join().unwrap().unwrap());
    let (copies, late) = owner.forwarded();
    eprintln!("{} moves: {copies} copies and {late} packets of late bytes were forwarded", owner.moved);
    assert!(owner.moved >= moves() / 2, "{} moves while the streams flow", owner.moved);
    assert!(copies > 0, "segments reach captured sockets");
    assert_eq!(cable.client_timeouts(), before);
    assert_eq!(cable.seen().resets, 0);
}

fn fix_send_buffer<F: AsFd>(socket: &F) {
    sockopt::set_socket_send_buffer_size(socket, 64 << 10).unwrap();
}

/// The server's end of the connection, and what each of the two hosts needs to move it.
struct Owner<'a> {
    cable: &'a Cable,
    stream: TcpStream,
    /// Index of the host that has the connection.
    at: usize,
    hosts: [(Capturer, Injector); 2],
    /// The socket of the last move's source, until it has ended.
    leaving: Option<Leaving>,
    moved: usize,
    /// Packets that were forwarded.
    forwarded: u64,
}

impl<'a> Owner<'a> {
    fn new(cable: &'a Cable, stream: TcpStream) -> Owner<'a> {
        stream.set_nonblocking(true).unwrap();
        let open = || {
            let capturer = Capturer::open().unwrap();
            let capturer =
                capturer.copying(Filter::load(), CopyLimits::default()).reading_stamps(Stamps::load());
            (capturer, Injector::open().unwrap())
        };
        let hosts = [0, 1].map(|index| cable.server_at(index).run_inside(open).unwrap());
        Owner { cable, stream, at: 0, hosts, leaving: None, moved: 0, forwarded: 0 }
    }

    /// Reads and writes without waiting, and moves whenever a number of bytes has passed.
    fn serve(&mut self, total: u64) {
        let (mut requests, mut replies) = (Pattern::new(1), Pattern::new(2));
        let (mut bytes, mut next_move, mut is_finished) = (vec![0; 10_000], 0, false);
        while !is_finished || replies.position() < total {
            match (&self.stream).read(&mut bytes) {
                Ok(0) => is_finished = true,
                Ok(length) => requests.check(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("cannot read: {error}"),
            }
            let length = (total - replies.position()).min(9_000);
            replies.write_some(&self.stream, length as usize);
            let passed = requests.position() + replies.position();
            if passed >= next_move {
                self.step();
                // The next move begins while segments arrive, not after this pause.
                self.await_end();
                // An odd number, so that moves meet all parts of a segment.
                next_move = passed + 2 * BYTES_PER_MOVE - 4_321;
            }
        }
        assert_eq!((requests.position(), replies.position()), (total, total));
    }

    /// Waits until the last move's old socket has ended: its host may get the connection next.
    fn await_end(&mut self) {
        wait_until("the old socket ends", || {
            self.poll_leaving();
            self.leaving.is_none()
        });
    }

    /// Moves the connection to the other host.
    fn step(&mut self) {
        let target = 1 - self.at;
        let stream = self.stream.try_clone().unwrap();
        let capturer = &mut self.hosts[self.at].0;
        let captured = self.cable.server_at(self.at).run_inside(|| capturer.export(stream).unwrap()).unwrap();
        self.cable.hold();
        let state = captured.state().clone();
        let injector = &self.hosts[target].1;
        let import = || import(&state).unwrap().go_live(injector).unwrap();
        let live = self.cable.server_at(target).run_inside(import).unwrap();
        assert!(live.fault.is_none(), "{:?}", live.fault);
        assert!(live.unwritten.is_empty() && !live.must_finish, "the kernel accepts all unsent bytes");
        (self.stream, self.at, self.moved) = (live.socket.into(), target, self.moved + 1);
        self.leaving = Some(captured.accepted());
        self.poll_leaving();
        self.cable.release_to(target);
    }

    /// Gives the owner what the old socket has of the client.
    fn poll_leaving(&mut self) {
        while let Some(leaving) = &mut self.leaving {
            match leaving.poll(Instant::now()).unwrap() {
                Step::Forward(packet) => {
                    let injector = &self.hosts[self.at].1;
                    injector.for_socket(&self.stream).unwrap().inject_forwarded(&packet).unwrap();
                    self.forwarded += 1;
                }
                Step::Wait(_) => break,
                Step::Ended => self.leaving = None,
            }
        }
    }

    /// Number of copies, and of packets of late bytes.
    fn forwarded(&self) -> (u64, u64) {
        let copies = self.hosts.iter().map(|(capturer, _)| capturer.copy_counters().kept).sum();
        (copies, self.forwarded - copies)
    }
}

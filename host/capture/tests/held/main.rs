//! A connection of the kernel moves to the kernel of another host while the client sends: packets that arrive there early are held
//! at the interface, and given to the socket after the import. The tests check every byte in both directions, and that no
//! packet was lost: the client retransmits nothing, and sees no reset and no challenge acknowledgement.
//!
//! CAPTURE_MOVES is the number of moves of each test; 100 by default.

mod fork;
#[path = "../linux/kernel.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod kernel;
mod moved;
mod offload;
#[path = "../linux/stream.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod stream;
mod streams;
mod too_late;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use spillway_bpf::{Budget, HeldFlows, HeldOutcome, Hold, Release};
use spillway_capture::{Injector, export, import};
use spillway_lab::{Host, unavailable};
use spillway_wire::state::ConnectionState;

/// Timeout of every wait in a test.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a client may send in a window.
const BUDGET: Budget = Budget { frames_max: 8_192, bytes_max: 8 << 20 };

/// Whether this machine cannot run these tests. Prints the reason.
fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

/// Number of moves of a test.
fn moves() -> usize {
    std::env::var("CAPTURE_MOVES").map_or(100, |text| text.parse().expect("CAPTURE_MOVES is a number"))
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// A host that takes connections.
struct Target<'a> {
    host: &'a Host,
    held: HeldFlows,
    injector: Injector,
}

impl<'a> Target<'a> {
    /// Packets are held at the interface of this name.
    fn new(host: &'a Host, interface: &str) -> Target<'a> {
        let load = || {
            let mut held = HeldFlows::load(16, 16 << 20).unwrap();
            held.attach(interface).unwrap();
            (held, Injector::open().unwrap())
        };
        let (held, injector) = host.run_inside(load).unwrap();
        Target { host, held, injector }
    }

    /// Holds the packets of the client's connection to a server.
    fn hold(&mut self, server: &TcpStream) -> Hold {
        let (local, peer) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        self.held.hold(local, peer, BUDGET).unwrap()
    }

    fn waits_for_packets(&self, hold: Hold, frames: u64) {
        wait_until("packets are held", || self.held.waiting(hold).unwrap().frames >= frames);
    }

    /// Continues the connection of a socket of `source` here, and gives it the held packets.
    fn take(&mut self, source: &Host, server: TcpStream, hold: Hold) -> TcpStream {
        let state = captured(source, server);
        let injector = &self.injector;
        let live = self.host.run_inside(|| import(&state).unwrap().go_live(injector).unwrap()).unwrap();
        assert!(live.fault.is_none(), "{:?}", live.fault);
        assert!(live.unwritten.is_empty() && !live.must_finish, "the kernel accepts all unsent bytes");
        let socket = self.injector.for_socket(&live.socket).unwrap();
        release(&mut self.held, hold, |packet| socket.inject(packet).unwrap());
        live.socket.into()
    }

    /// The value of a counter of the host, such as `Tcp:OutRsts`.
    fn counter(&self, name: &str) -> u64 {
        counter(self.host, name)
    }
}

fn release(held: &mut HeldFlows, hold: Hold, mut inject: impl FnMut(&[u8])) {
    let start = Instant::now();
    while held.release(hold, &mut inject).unwrap() == Release::Draining {
        assert!(start.elapsed() < PATIENCE, "the release ends");
    }
}

/// Takes a connection out of a socket of a host, which then has no socket for it.
fn captured(source: &Host, server: TcpStream) -> ConnectionState {
    let capture = || {
        let captured = export(server).unwrap();
        let state = captured.state().clone();
        assert_eq!(captured.close_without_grace().unwrap(), [], "all packets go to the target");
        state
    };
    source.run_inside(capture).unwrap()
}

fn counter(host: &Host, name: &str) -> u64 {
    host.tcp_counters().unwrap()[name]
}

/// Checks that no packet was lost because of a move, and none was answered by anything but an acknowledgement.
fn assert_unnoticed(client: &Host, socket: &TcpStream, targets: &[Target<'_>]) {
    let info = kernel::info(socket);
    assert_eq!((info.tcpi_total_retrans, info.tcpi_lost), (0, 0), "the client retransmits nothing");
    for name in ["TcpExt:TCPTimeouts", "Tcp:RetransSegs", "TcpExt:TCPLossProbes", "Tcp:EstabResets"] {
        assert_eq!(counter(client, name), 0, "{name} of the client");
    }
    for target in targets {
        for name in ["TcpExt:TCPChallengeACK", "Tcp:OutRsts", "Tcp:InErrs", "Tcp:InCsumErrors"] {
            assert_eq!(target.counter(name), 0, "{name} of a server");
        }
        let counters = target.held.counters().unwrap();
        let drops = HeldOutcome::ALL.into_iter().filter(|outcome| outcome.name().starts_with("drop"));
        drops.for_each(|outcome| assert_eq!(counters.of(outcome), 0, "{outcome:?}"));
    }
}

/// Ends a connection without a further word. Otherwise the sockets outlive the cable, and with IPv6 its interfaces wait for them:
/// docs/capture.md has the reason.
fn end(ends: [TcpStream; 2]) {
    for end in ends {
        set_socket_linger(&end, Some(Duration::ZERO)).unwrap();
    }
}

/// A connection of the client to a listening socket of the server: both ends.
fn connection(client: &Host, server: &Host, address: SocketAddr) -> (TcpStream, TcpStream) {
    let listener = server.run_inside(|| std::net::TcpListener::bind(address).unwrap()).unwrap();
    let ends =
        client.run_inside(|| (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0)).unwrap();
    for stream in [&ends.0, &ends.1] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    ends
}

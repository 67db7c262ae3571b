//! Hosts with a cable whose frames pass through the test: it holds the client's segments while a connection moves, passes them
//! to the connection's owner, as the switch does, and checks what the client sees.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, write};
use spillway_lab::{Host, HostOptions, Lab, Launch, unavailable};
use spillway_wire::packet::checksum::{pseudo_v4, pseudo_v6};
use spillway_wire::packet::tcp::{Flags, Header};
use spillway_wire::packet::{ipv4, ipv6};
use spillway_xdp::Tap;

/// Timeout of every wait in a test.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The server's port.
pub const PORT: u16 = 7000;

const INTERFACE: &str = "cable0";
const CLIENT_MAC: &str = "02:00:00:00:00:01";
const SERVER_MAC: &str = "02:00:00:00:00:02";
const ETHERNET_BYTES: usize = 14;
const FRAME_BYTES_MAX: usize = 2048;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Whether this machine cannot run these tests. Prints the reason.
pub fn skipped() -> bool {
    let reason = unavailable();
    if let Some(reason) = &reason {
        eprintln!("skipped: {reason}");
    }
    reason.is_some()
}

/// What the client has seen of the server that it must not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Resets by the server.
    pub resets: u64,
    /// Acknowledgements of the server before an earlier one.
    pub acknowledgements_back: u64,
    /// Timestamps of the server before an earlier one.
    pub clocks_back: u64,
}

#[derive(Debug, Default)]
struct State {
    seen: Seen,
    is_held: bool,
    held: Vec<Vec<u8>>,
    /// Index of the server that gets the client's frames: 0, or 1 for the other one.
    owner: usize,
    /// The client's latest segment, as a frame.
    latest: Vec<u8>,
    /// The latest timestamp of the client.
    client_clock: Option<u32>,
    /// Segments of the client.
    client_segments: u64,
    /// Segments of the client since the server's last one.
    client_segments_since: u64,
    /// Bytes of data in the server's longest segment.
    longest: usize,
    /// By port of the client.
    connections: HashMap<u16, Connection>,
}

/// What the server has sent on a connection.
#[derive(Debug, Default)]
struct Connection {
    segments: u64,
    /// The latest acknowledgement.
    acknowledgement: Option<u32>,
    /// The latest timestamp.
    clock: Option<u32>,
}

pub struct Cable {
    _lab: Lab,
    pub client: Host,
    pub server: Host,
    /// A second server with the address of the first one.
    other: Option<Host>,
    family: Family,
    server_ends: Vec<OwnedFd>,
    /// `None` after [`Cable::stop_listening`].
    listener: Option<TcpListener>,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cable {
    /// A cable between two new hosts; `sysctls` are the client's.
    pub fn new(name: &str, family: Family, sysctls: &[(&str, &str)]) -> Cable {
        Cable::with_servers(name, family, sysctls, &["server"])
    }

    /// A cable between a client and two servers with the same address.
    pub fn with_two_servers(name: &str, family: Family, sysctls: &[(&str, &str)]) -> Cable {
        Cable::with_servers(name, family, sysctls, &["server", "other"])
    }

    fn with_servers(name: &str, family: Family, sysctls: &[(&str, &str)], servers: &[&str]) -> Cable {
        let lab = Lab::new(name).unwrap();
        let sysctls = sysctls.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let client = lab.host("client", HostOptions { sysctls, ..HostOptions::default() }).unwrap();
        let mut servers = servers.iter().map(|name| lab.host(name, HostOptions::default()).unwrap());
        let (server, other) = (servers.next().unwrap(), servers.next());
        let hosts: Vec<&Host> = [&client, &server].into_iter().chain(&other).collect();
        let ends: Vec<OwnedFd> = hosts.iter().map(|host| open_end(host, family)).collect();
        set_up(&client, (family.client(), CLIENT_MAC), (family.server(), SERVER_MAC));
        for server in &hosts[1..] {
            set_up(server, (family.server(), SERVER_MAC), (family.client(), CLIENT_MAC));
        }
        let address = SocketAddr::new(family.server(), PORT);
        let listener = Some(server.run_inside(|| TcpListener::bind(address).unwrap()).unwrap());
        let state = Arc::<Mutex<State>>::default();
        let stop = Arc::<AtomicBool>::default();
        let server_ends = ends[1..].iter().map(|end| end.try_clone().unwrap()).collect();
        let thread = {
            let (state, stop) = (Arc::clone(&state), Arc::clone(&stop));
            Some(std::thread::spawn(move || forward(&ends, &state, &stop)))
        };
        Cable { _lab: lab, client, server, other, family, server_ends, listener, state, stop, thread }
    }

    /// A connection of the client to a listening socket of the server: both ends. `prepare` sees the client's socket
    /// before it is connected.
    pub fn connection(&self, prepare: impl FnOnce(&OwnedFd) + Send) -> (TcpStream, TcpStream) {
        let address = SocketAddr::new(self.family.server(), PORT);
        let listener = self.listener.as_ref().expect("the server listens");
        let (client, server) = self
            .client
            .run_inside(|| {
                let family = match self.family {
                    Family::V4 => rustix::net::AddressFamily::INET,
                    Family::V6 => rustix::net::AddressFamily::INET6,
                };
                let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).unwrap();
                prepare(&socket);
                rustix::net::connect(&socket, &address).unwrap();
                (TcpStream::from(socket), listener.accept().unwrap().0)
            })
            .unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
            stream.set_nodelay(true).unwrap();
        }
        (client, server)
    }

    pub fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// Holds the client's segments from now on.
    pub fn hold(&self) {
        self.state.lock().unwrap().is_held = true;
    }

    /// Passes on what was held, in order. Returns the number of segments.
    pub fn release(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.is_held = false;
        let held = std::mem::take(&mut state.held);
        held.iter().for_each(|frame| pass_on(&self.server_ends[state.owner], frame));
        held.len()
    }

    /// The server with this index.
    pub fn server_at(&self, index: usize) -> &Host {
        if index == 0 { &self.server } else { self.other.as_ref().expect("a cable with two servers") }
    }

    /// Gives what was held, and all later frames of the client, to the server with this index.
    pub fn release_to(&self, owner: usize) {
        self.state.lock().unwrap().owner = owner;
        self.release();
    }

    /// Makes the client's retransmission timeouts far longer than a move: then a counted timeout stands for a lost segment, also on
    /// a machine that has stalled. To be called before a connection is opened.
    pub fn make_timeouts_long(&self) {
        // The metric is that of the route that came with the address, which is replaced.
        let (protocol, route) = match self.family {
            Family::V4 => ("-4", "10.81.0.0/24 metric 0"),
            Family::V6 => ("-6", "fd81::/64 metric 256"),
        };
        let via = format!("dev {INTERFACE} proto kernel rto_min 20s");
        run(&self.client, &format!("ip {protocol} route replace {route} {via}"));
        // Probes after a tail loss would hide it.
        run(&self.client, "sysctl -qw net.ipv4.tcp_early_retrans=0");
    }

    /// Number of retransmission timeouts of the client so far.
    pub fn client_timeouts(&self) -> u64 {
        self.client.run_inside(|| crate::kernel::network_counter("TCPTimeouts")).unwrap()
    }

    /// Gives the client's latest segment to a server once more, as if it had been on its way for long.
    pub fn repeat_latest(&self, server: usize) {
        pass_on(&self.server_ends[server], &self.state.lock().unwrap().latest);
    }

    /// Gives the client's latest segment to a server, with a bit of its last byte inverted.
    pub fn send_latest_damaged(&self, server: usize) {
        let mut frame = self.state.lock().unwrap().latest.clone();
        *frame.last_mut().expect("the client has sent a segment") ^= 1;
        pass_on(&self.server_ends[server], &frame);
    }

    /// The latest timestamp of the client.
    pub fn client_clock(&self) -> Option<u32> {
        self.state.lock().unwrap().client_clock
    }

    /// Number of segments that the server has sent to a client.
    pub fn server_segments(&self, client: SocketAddr) -> u64 {
        loop {
            let mut polled: Vec<_> =
                self.server_ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
            let waiting = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            // The forwarding thread holds the lock from the reading of a frame to its forwarding.
            let state = self.state.lock().unwrap();
            if waiting == 0 {
                return state.connections.get(&client.port()).map_or(0, |one| one.segments);
            }
        }
    }

    /// Number of segments that the client has sent.
    pub fn client_segments(&self) -> u64 {
        self.state.lock().unwrap().client_segments
    }

    /// Whether a segment of the client has passed since the server's last one.
    pub fn client_segments_are_through(&self) -> bool {
        self.state.lock().unwrap().client_segments_since > 0
    }

    /// Bytes of the longest segment that the server has sent since the last call, without headers.
    pub fn longest_segment(&self) -> usize {
        std::mem::take(&mut self.state.lock().unwrap().longest)
    }

    pub fn seen(&self) -> Seen {
        self.state.lock().unwrap().seen
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the cable's thread has panicked");
        }
    }
}

impl Family {
    pub fn client(self) -> IpAddr {
        self.address(1)
    }

    pub fn server(self) -> IpAddr {
        self.address(2)
    }

    fn address(self, host: u8) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(10, 81, 0, host).into(),
            Family::V6 => Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, host.into()).into(),
        }
    }
}

pub fn run(host: &Host, command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let mut process = host.spawn(&Launch::new(words[0]).args(&words[1..])).unwrap();
    assert!(process.wait(PATIENCE).unwrap().success(), "{command}: {}", process.stderr().unwrap());
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn open_end(host: &Host, family: Family) -> OwnedFd {
    if family == Family::V6 {
        run(host, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0");
    }
    let tap = host.run_inside(|| Tap::open(INTERFACE)).unwrap().unwrap();
    tap.as_fd().try_clone_to_owned().unwrap()
}

fn set_up(host: &Host, (address, mac): (IpAddr, &str), (peer, peer_mac): (IpAddr, &str)) {
    run(host, &format!("ip link set {INTERFACE} address {mac}"));
    let (prefix, nodad) = if address.is_ipv4() { ("24", "") } else { ("64", " nodad") };
    run(host, "ip link set lo up");
    run(host, &format!("ip addr add dev {INTERFACE} {address}/{prefix}{nodad}"));
    run(host, &format!("ip link set {INTERFACE} up"));
    run(host, &format!("ip neigh replace {peer} lladdr {peer_mac} dev {INTERFACE} nud permanent"));
}

fn forward(ends: &[OwnedFd], state: &Mutex<State>, stop: &AtomicBool) {
    let mut frame = [0; FRAME_BYTES_MAX];
    let pause = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut polled: Vec<_> = ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
        poll(&mut polled, Some(&pause)).unwrap();
        for from in 0..ends.len() {
            // EIO: the interface is down.
            let mut state = state.lock().unwrap();
            let length = match read(&ends[from], &mut frame) {
                Ok(length) => length,
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => continue,
                Err(errno) => panic!("cannot read a frame: {errno}"),
            };
            let frame = &frame[..length];
            let is_segment = state.inspect(frame, from != 0);
            if state.is_held && is_segment && from == 0 {
                state.held.push(frame.to_vec());
            } else {
                pass_on(if from == 0 { &ends[1 + state.owner] } else { &ends[0] }, frame);
            }
        }
    }
}

fn pass_on(end: &OwnedFd, frame: &[u8]) {
    // While the interface comes up or goes away, frames are lost.
    let _ = write(end, frame);
}

impl State {
    /// Returns whether the frame contains a TCP segment.
    fn inspect(&mut self, frame: &[u8], is_of_server: bool) -> bool {
        let Some((header, payload_bytes)) = segment(frame) else { return false };
        self.client_segments_since = if is_of_server { 0 } else { self.client_segments_since + 1 };
        if !is_of_server {
            self.client_segments += 1;
            self.latest = frame.to_vec();
            self.client_clock = header.options.timestamps.map(|stamps| stamps.value);
            return true;
        }
        if header.flags.contains(Flags::RST) {
            self.seen.resets += 1;
            return true;
        }
        self.longest = self.longest.max(payload_bytes);
        let connection = self.connections.entry(header.target).or_default();
        if header.flags.contains(Flags::SYN) {
            *connection = Connection::default();
        }
        connection.segments += 1;
        let stamp = header.options.timestamps.map(|timestamps| timestamps.value);
        self.seen.acknowledgements_back +=
            u64::from(goes_back(&mut connection.acknowledgement, Some(header.ack)));
        self.seen.clocks_back += u64::from(goes_back(&mut connection.clock, stamp));
        true
    }
}

fn goes_back(latest: &mut Option<u32>, now: Option<u32>) -> bool {
    let Some(now) = now else { return false };
    let is_back = latest.is_some_and(|latest| now.wrapping_sub(latest).cast_signed() < 0);
    if !is_back {
        *latest = Some(now);
    }
    is_back
}

/// The header of a frame's segment, and the bytes of its data.
fn segment(frame: &[u8]) -> Option<(Header, usize)> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let (header, _, data) = match frame[12..14] {
        [0x08, 0x00] => {
            let (head, _, payload) = ipv4::Header::parse(packet).ok()?;
            (head.protocol == ipv4::PROTOCOL_TCP).then_some(())?;
            let pseudo = pseudo_v4(head.source, head.target, head.protocol, head.payload_bytes.into());
            Header::parse(payload, pseudo)
        }
        [0x86, 0xdd] => {
            let (head, _, payload) = ipv6::Header::parse(packet).ok()?;
            (head.protocol == ipv4::PROTOCOL_TCP).then_some(())?;
            let pseudo = pseudo_v6(head.source, head.target, head.protocol, head.payload_bytes.into());
            Header::parse(payload, pseudo)
        }
        _ => return None,
    }
    .expect("kernels send correct segments");
    Some((header, data.len()))
}

//! Simulated throughput and latency of two hosts over a path that loses frames and limits the rate. Because
//! time is virtual, the figures do not depend on the machine.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use spillway_tcp::isn::Key;
use spillway_tcp::recovery::Algorithm;
use spillway_tcp::{Listener, Resolver, Settings, Stack, drive};
use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::packet::ethernet;

use super::frames::{address_of, mac_of};
use super::path::{Conditions, Path};
use crate::agenda::Agenda;
use crate::rng::Rng;

/// The conditions of one row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Round-trip time without queueing.
    pub rtt: Duration,
    /// Lost frames, of a million, in each direction.
    pub loss_ppm: u64,
    /// Rate in each direction, bits per second.
    pub bits_per_s: u64,
    /// Bound of the queue in each direction, bytes.
    pub queue_bytes: u64,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Interval of the receiver's turns; zero: a turn for each frame.
    pub turn: Duration,
    /// Whether both hosts have IPv6 addresses.
    pub is_ipv6: bool,
}

impl Line {
    fn address_of(&self, host: usize) -> IpAddr {
        let ip = address_of(host);
        if self.is_ipv6 { Ipv6Addr::from(0xfd00 << 112 | u128::from(ip.to_bits())).into() } else { ip.into() }
    }
}

/// The figures of one row of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Goodput of one bulk stream, payload bytes per second.
    pub goodput: u64,
    /// Retransmitted segments per thousand sent: all except those that the payload needs, in IPv4 packets.
    pub retransmitted_per_mille: u64,
    /// Retransmission timeouts of the bulk stream.
    pub timeouts: u64,
    /// Median round trip of messages of 64 bytes, sent one at a time, microseconds.
    pub ping_p50_us: u64,
    /// The 99th percentile of these round trips, microseconds.
    pub ping_p99_us: u64,
}

const PORT: u16 = 80;
const MESSAGE_BYTES: usize = 64;
/// Exceeds the bandwidth-delay product of every measured line.
const WINDOW_BYTES: u32 = 64 << 20;
/// The bulk stream is measured from `WARM_UP` to `BULK_END`.
const WARM_UP: Duration = Duration::from_secs(5);
const BULK_END: Duration = Duration::from_secs(65);
/// Number of round trips to measure.
const PINGS: usize = 2_000;

/// Measures the bulk stream and the round trips of a row.
pub fn measure(line: Line, seed: u64) -> Figures {
    let bulk = measure_bulk(line, seed, WARM_UP, BULK_END);
    let ping = Task::Ping { received: 0, sent_at: Time::ZERO, round_trips: Vec::new() };
    let mut pings = Pair::new(line, seed, [ping, Task::Echo]);
    pings.run(|pair, _| pair.pings().len() >= PINGS);
    let mut round_trips: Vec<u64> = pings.pings().iter().map(|time| time.as_micros() as u64).collect(); // fits: seconds
    round_trips.sort_unstable();
    Figures {
        ping_p50_us: round_trips[round_trips.len() / 2],
        ping_p99_us: round_trips[round_trips.len() * 99 / 100],
        ..bulk
    }
}

/// Measures only the bulk stream of a row, from `warm_up` until `end`.
pub fn measure_bulk(line: Line, seed: u64, warm_up: Duration, end: Duration) -> Figures {
    let mut bulk = Pair::new(line, seed, [Task::Bulk { received: 0 }, Task::Bulk { received: 0 }]);
    bulk.run(|_, now| now >= Time::ZERO + warm_up);
    let (before, sent_before) = (bulk.received(), bulk.sent);
    let timeouts_before = bulk.ends[0].stack.counters().timeouts;
    bulk.run(|_, now| now >= Time::ZERO + end);
    let (bytes, took_ms) = (bulk.received() - before, (end - warm_up).as_millis() as u64); // fits: a minute
    let segments = bulk.sent - sent_before;
    let needed = bytes / u64::from(MTU - 52); // 52 bytes of IPv4 and TCP headers, with timestamps
    Figures {
        goodput: bytes * 1000 / took_ms,
        retransmitted_per_mille: segments.saturating_sub(needed) * 1000 / segments.max(1),
        timeouts: bulk.ends[0].stack.counters().timeouts - timeouts_before,
        ..Figures::default()
    }
}

const MTU: u16 = 1500;

enum Task {
    Bulk { received: u64 },
    Ping { received: usize, sent_at: Time, round_trips: Vec<Duration> },
    Echo,
}

impl Task {
    fn begin<T: Transport>(&mut self, now: Time, conn: Conn, listener: Option<u16>, out: &mut T) {
        out.grant(conn, WINDOW_BYTES);
        match self {
            Task::Bulk { .. } if listener.is_none() => fill(conn, out),
            Task::Ping { sent_at, .. } => {
                *sent_at = now;
                out.send(conn, &[1; MESSAGE_BYTES]);
            }
            _ => {}
        }
    }
}

fn fill<T: Transport>(conn: Conn, out: &mut T) {
    let bytes = [0; 16 * 1024];
    while out.send(conn, &bytes) == bytes.len() {}
}

impl Application for Task {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match (event, self) {
            (Event::Opened { listener, .. }, task) => task.begin(now, conn, listener, out),
            (Event::Room, Task::Bulk { .. }) => fill(conn, out),
            (Event::Data { bytes, .. }, task) => {
                out.grant(conn, bytes.len() as u32); // fits: at most a window
                match task {
                    Task::Bulk { received } => *received += bytes.len() as u64,
                    Task::Echo => _ = out.send(conn, bytes),
                    Task::Ping { received, sent_at, round_trips } => {
                        *received += bytes.len();
                        if *received == MESSAGE_BYTES {
                            round_trips.push(now - *sent_at);
                            (*received, *sent_at) = (0, now);
                            out.send(conn, &[1; MESSAGE_BYTES]);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

struct End {
    stack: Stack,
    task: Task,
    armed: Option<Time>,
    /// Interval of turns; `waiting` has the frames for the next turn.
    turn: Duration,
    waiting: Vec<Vec<u8>>,
}

enum WorldEvent {
    FrameArrives(usize, Vec<u8>),
    Wake(usize, Time),
    /// An end with turns at intervals runs its turn.
    Turn(usize),
}

/// Two hosts; the first one sends.
struct Pair {
    now: Time,
    agenda: Agenda<WorldEvent>,
    ends: [End; 2],
    paths: [Path; 2],
    /// Frames that the first host sent.
    sent: u64,
    slot: Vec<u8>,
}

impl Pair {
    fn new(line: Line, seed: u64, tasks: [Task; 2]) -> Pair {
        let mut rng = Rng::new(seed);
        let conditions = Conditions {
            loss_ppm: line.loss_ppm,
            bits_per_s: line.bits_per_s,
            queue_bytes_max: line.queue_bytes,
            ..Conditions::clear(line.rtt / 2)
        };
        let paths = [0, 1].map(|_| Path::new(conditions, rng.fork()));
        let mut index = 0;
        let ends = tasks.map(|task| {
            let turn = if index == 1 { line.turn } else { Duration::ZERO };
            let end = End::new(line, index, task, turn);
            index += 1;
            end
        });
        let (agenda, slot) = (Agenda::default(), vec![0; ethernet::HEADER_BYTES + usize::from(MTU)]);
        let mut pair = Pair { now: Time(1), agenda, ends, paths, sent: 0, slot };
        let target = SocketAddr::from((line.address_of(1), PORT));
        // Cannot fail: the connection table is empty.
        let _ = pair.ends[0].stack.connect(Time(1), target);
        pair.turn(0, Vec::new());
        pair
    }

    fn received(&self) -> u64 {
        if let Task::Bulk { received } = self.ends[1].task { received } else { 0 }
    }

    fn pings(&self) -> &[Duration] {
        if let Task::Ping { round_trips, .. } = &self.ends[0].task { round_trips } else { &[] }
    }

    fn run(&mut self, is_over: impl Fn(&Pair, Time) -> bool) {
        while !is_over(self, self.now) {
            let Some((at, event)) = self.agenda.take() else { return };
            self.now = self.now.max(at);
            match event {
                WorldEvent::FrameArrives(to, frame) if self.ends[to].turn.is_zero() => {
                    self.turn(to, vec![frame])
                }
                WorldEvent::FrameArrives(to, frame) => {
                    let End { turn, waiting, .. } = &mut self.ends[to];
                    waiting.push(frame);
                    if waiting.len() == 1 {
                        let turn_ns = turn.as_nanos() as u64; // fits: microseconds
                        self.agenda.add(Time(at.0.next_multiple_of(turn_ns)), WorldEvent::Turn(to));
                    }
                }
                WorldEvent::Turn(end) => {
                    let frames = std::mem::take(&mut self.ends[end].waiting);
                    self.turn(end, frames);
                }
                WorldEvent::Wake(end, at) if self.ends[end].armed == Some(at) => {
                    self.ends[end].armed = None;
                    self.turn(end, Vec::new());
                }
                WorldEvent::Wake(..) => {}
            }
        }
    }

    fn turn(&mut self, index: usize, frames: Vec<Vec<u8>>) {
        let End { stack, task, armed, .. } = &mut self.ends[index];
        drive::begin_turn(stack, task, self.now);
        for frame in frames {
            drive::deliver(stack, task, self.now, &frame);
        }
        drive::end_turn(stack, task, self.now);
        loop {
            while let Some(length) = stack.poll_transmit(self.now, &mut self.slot) {
                self.sent += u64::from(index == 0);
                let agenda = &mut self.agenda;
                self.paths[index].send(self.now, &self.slot[..length], |arrival| {
                    agenda.add(arrival.at, WorldEvent::FrameArrives(1 - index, arrival.frame));
                });
            }
            // Only over IPv6: over IPv4 the stacks resolve neighbours by ARP.
            let Some(target) = stack.poll_next_hop_request() else { break };
            stack.set_next_hop(self.now, target, Some(mac_of(address_of(1 - index))));
        }
        let at = drive::poll_timeout(stack, task).map(|at| at.max(self.now));
        if let Some(at) = at.filter(|at| armed.is_none_or(|armed| *at < armed)) {
            *armed = Some(at);
            self.agenda.add(at, WorldEvent::Wake(index, at));
        }
    }
}

impl End {
    fn new(line: Line, host: usize, task: Task, turn: Duration) -> End {
        let ip = line.address_of(host);
        let mut settings = Settings::new(mac_of(address_of(host)), ip, 24, Key([5; 16]));
        if line.is_ipv6 {
            settings.resolver = Resolver::Driver;
        }
        settings.listeners = vec![Listener { address: SocketAddr::from((ip, PORT)), is_gated: false }];
        settings.mtu = MTU;
        settings.send_buffer_bytes = WINDOW_BYTES as usize;
        settings.receive_window_max = WINDOW_BYTES;
        settings.reassembly_bytes_max = WINDOW_BYTES as usize;
        settings.recovery.algorithm = line.algorithm;
        let settings_error = "the settings of the benchmark are valid";
        let mut stack = Stack::new(Time(1), settings).expect(settings_error);
        stack.set_listening(0, true);
        End { stack, task, armed: None, turn, waiting: Vec::new() }
    }
}

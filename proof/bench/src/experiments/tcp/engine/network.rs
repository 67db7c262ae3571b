//! The network at the other end of the cable: scripted clients, and the server behind the relay. Its loop
//! polls without sleeping, so that the engine never waits for this end to wake up.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use spillway_transport::Time;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{Device, Driver, Endpoint, Hosted};

use super::paths::{Path, exchange_ends};
use super::turns::{Phase, Signals};
use crate::experiments::common::script::{Client, port_of, target_of};
use crate::experiments::tcp::stack::{EchoServer, SERVER_MAC, server_stack};

/// Timeout for a SYN-ACK. The client then opens its connection again, as after another answer.
const OPEN_TIMEOUT: Duration = Duration::from_millis(200);
/// Timeout for opening all connections, the link included.
const ALL_OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Requests are lost after this time without any answer: far above a retransmission timeout or a stall.
const LOST_AFTER: Duration = Duration::from_secs(3);

/// When clients send requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// All clients at once; again when all have their answers.
    Bursts,
    /// Requests a second, at equal intervals, independent of the answers.
    Rate(f64),
}

/// Results of the clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub answers: u64,
    pub wrong: u64,
    /// Description of the first wrong answer.
    pub first_wrong: Option<String>,
    pub lost: u64,
    /// Retransmitted answers, because the machine stalled for longer than a retransmission timer.
    pub repeated: u64,
    /// Times from the intended sending of requests to their answers in the measured time, sorted.
    pub latencies_ns: Vec<u64>,
}

impl Seen {
    /// A quantile of the latencies in µs; `None` without answers.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let last = self.latencies_ns.len().checked_sub(1)?;
        Some(self.latencies_ns[(share * last as f64).round() as usize] as f64 / 1000.0)
    }
}

/// Runs the network until the engine's measurement has ended and all answers have arrived, or some are lost. Then stops the
/// engine.
///
/// # Errors
/// The device has failed, or connections could not be opened.
pub(super) fn run<D: Device>(device: D, mut network: Network, signals: &Signals) -> io::Result<(D, Seen)> {
    let start = Instant::now();
    let mut driver = Driver::new(device);
    let outcome = loop {
        let now = Time::ZERO + start.elapsed();
        if let Err(error) = driver.turn(now, &mut network) {
            break Err(error);
        }
        if network.is_open && !signals.has_reached(Phase::Loaded) {
            signals.set(Phase::Loaded);
        }
        network.is_measuring = signals.has_reached(Phase::Measuring);
        network.is_ending = signals.has_reached(Phase::Measured);
        if !network.is_open && now.since(Time::ZERO) > ALL_OPEN_TIMEOUT {
            break Err(io::Error::other(network.why_not_open()));
        }
        if network.is_over(now) || signals.stop.is_set() {
            break Ok(());
        }
    };
    signals.stop.set();
    outcome?;
    Ok((driver.into_device(), network.into_seen()))
}

struct Caller {
    client: Client,
    /// Number from which ports and sequence numbers follow.
    number: usize,
    state: State,
    /// The last request as it comes back from [`Path::Driver`].
    reflection: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not connected; the time of the last SYN, if one is under way.
    Opening(Option<Time>),
    Ready,
    /// A request is under way; the time at which it was due.
    Waiting(Time),
}

/// A frame to write when the device has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outgoing {
    Syn(usize),
    Acknowledgement(usize),
    Request(usize),
}

/// The clients and the server, as an endpoint of the far device.
pub(super) struct Network {
    path: Path,
    pace: Pace,
    callers: Vec<Caller>,
    first_port: u16,
    server: Hosted<EchoServer>,
    outgoing: VecDeque<Outgoing>,
    waiting: usize,
    /// The due time of the next request at a fixed rate, and the index of its client.
    next: (Time, usize),
    last_answer: Time,
    is_open: bool,
    is_measuring: bool,
    is_ending: bool,
    seen: Seen,
}

impl Network {
    /// A network before its first turn. On paths without TCP, its clients count as connected.
    ///
    /// # Errors
    /// The server's stack refuses its settings.
    pub fn new(path: Path, clients: usize, pace: Pace) -> Result<Network, String> {
        let is_connected = matches!(path, Path::Driver | Path::Crossing);
        let state = if is_connected { State::Ready } else { State::Opening(None) };
        let caller = |number| Caller { client: Client::new(number), number, state, reflection: Vec::new() };
        Ok(Network {
            path,
            pace,
            callers: (0..clients).map(caller).collect(),
            first_port: Client::new(0).port(),
            server: Hosted { stack: server_stack()?, application: EchoServer::default() },
            outgoing: VecDeque::new(),
            waiting: 0,
            next: (Time::ZERO, 0),
            last_answer: Time::ZERO,
            is_open: is_connected,
            is_measuring: false,
            is_ending: false,
            seen: Seen::default(),
        })
    }

    fn is_over(&self, now: Time) -> bool {
        let is_late = now.since(self.last_answer) > LOST_AFTER;
        self.is_open && if self.waiting > 0 { is_late } else { self.is_ending }
    }

    fn why_not_open(&self) -> String {
        let opening = self.callers.iter().filter(|caller| matches!(caller.state, State::Opening(_))).count();
        let link = match self.path {
            Path::Relay if !self.server.application.is_linked() => "; the relay's link is not established",
            _ => "",
        };
        format!(
            "{opening} of {} clients are not connected after {ALL_OPEN_TIMEOUT:?}{link}",
            self.callers.len()
        )
    }

    fn into_seen(self) -> Seen {
        let mut seen = self.seen;
        seen.lost = self.waiting as u64;
        seen.latencies_ns.sort_unstable();
        seen
    }

    fn receive(&mut self, now: Time, frame: &[u8]) {
        let index = usize::from(port_of(frame).unwrap_or(0).wrapping_sub(self.first_port));
        let Some(caller) = self.callers.get_mut(index) else {
            return self.seen.add_wrong(|| format!("a frame for the unknown client {index}"));
        };
        match caller.state {
            State::Opening(None) => {} // an answer to an earlier attempt
            State::Opening(Some(_)) => match caller.client.accept_syn_ack(frame) {
                Ok(()) => {
                    caller.state = State::Ready;
                    self.outgoing.push_back(Outgoing::Acknowledgement(index));
                }
                // The relay refuses clients until its own end of the link is established.
                Err(_) => caller.start_again(),
            },
            State::Ready | State::Waiting(_) => {
                let answer = match self.path {
                    Path::Driver | Path::Crossing if frame == caller.reflection => Ok(true),
                    Path::Driver | Path::Crossing => Err("another frame came back".to_owned()),
                    Path::Stack | Path::Relay => caller.client.check(frame),
                };
                match (answer, caller.state) {
                    (Ok(true), State::Waiting(since)) => {
                        caller.state = State::Ready;
                        self.waiting -= 1;
                        self.last_answer = now;
                        self.seen.answers += 1;
                        if self.is_measuring && !self.is_ending {
                            let latency = now.since(since).as_nanos();
                            self.seen.latencies_ns.push(u64::try_from(latency).unwrap_or(u64::MAX));
                        }
                    }
                    (Ok(true), _) => self.seen.add_wrong(|| "an answer without a request".into()),
                    (Ok(false), _) => {} // a bare acknowledgement
                    (Err(_), _) if caller.client.is_repeated(frame) => self.seen.repeated += 1,
                    (Err(why), _) => self.seen.add_wrong(|| why),
                }
            }
        }
    }

    /// Opens the first client that is not connected. The others follow one by one.
    fn open(&mut self, now: Time) {
        if self.path == Path::Relay && !self.server.application.is_linked() {
            return;
        }
        let opening = self.callers.iter().position(|caller| matches!(caller.state, State::Opening(_)));
        let Some(index) = opening else {
            self.is_open = true;
            (self.next, self.last_answer) = ((now, 0), now);
            return;
        };
        let caller = &mut self.callers[index];
        match caller.state {
            State::Opening(Some(since)) if now.since(since) > OPEN_TIMEOUT => caller.start_again(),
            State::Opening(None) => {
                caller.state = State::Opening(Some(now));
                self.outgoing.push_back(Outgoing::Syn(index));
            }
            _ => {}
        }
    }

    /// Queues the requests that are due.
    fn request(&mut self, now: Time) {
        match self.pace {
            Pace::Bursts => {
                if self.waiting == 0 && self.outgoing.is_empty() {
                    (0..self.callers.len()).for_each(|index| self.order(index, now));
                }
            }
            Pace::Rate(per_s) => {
                let interval = Duration::from_secs_f64(1.0 / per_s);
                // A client that still waits delays later requests; their latency counts from their due time.
                while self.next.0 <= now && self.callers[self.next.1].state == State::Ready {
                    let (due, index) = self.next;
                    self.order(index, due);
                    self.next = (due + interval, (index + 1) % self.callers.len());
                }
            }
        }
    }

    fn order(&mut self, index: usize, due: Time) {
        if self.waiting == 0 {
            self.last_answer = due; // the time without answers begins
        }
        self.callers[index].state = State::Waiting(due);
        self.waiting += 1;
        self.outgoing.push_back(Outgoing::Request(index));
    }

    fn write(&mut self, outgoing: Outgoing, slot: &mut [u8]) -> usize {
        match outgoing {
            Outgoing::Syn(index) => self.callers[index].client.syn(slot),
            Outgoing::Acknowledgement(index) => self.callers[index].client.acknowledgement(slot),
            Outgoing::Request(index) => {
                let caller = &mut self.callers[index];
                let length = caller.client.message(slot);
                if matches!(self.path, Path::Driver | Path::Crossing) {
                    caller.reflection.clear();
                    caller.reflection.extend_from_slice(&slot[..length]);
                    exchange_ends(&mut caller.reflection);
                }
                length
            }
        }
    }
}

impl Caller {
    fn start_again(&mut self) {
        (self.client, self.state) = (Client::new(self.number), State::Opening(None));
    }
}

impl Seen {
    fn add_wrong(&mut self, why: impl FnOnce() -> String) {
        self.wrong += 1;
        self.first_wrong.get_or_insert_with(why);
    }
}

impl Endpoint for Network {
    fn begin_turn(&mut self, now: Time) {
        self.server.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        match target_of(frame) {
            Some(SERVER_MAC | Mac::BROADCAST) => self.server.deliver(now, frame),
            _ => self.receive(now, frame),
        }
    }

    fn end_turn(&mut self, now: Time) {
        self.server.end_turn(now);
        if !self.is_open {
            self.open(now);
        } else if !self.is_ending {
            self.request(now);
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        match self.outgoing.pop_front() {
            Some(outgoing) => Some(self.write(outgoing, slot)),
            None => self.server.poll_transmit(now, slot),
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        None // its loop never waits
    }
}

#[cfg(test)]
mod tests {
    use spillway_transport::Transport;
    use spillway_xdp::{Ring, Turn};

    use super::*;
    use crate::experiments::tcp::engine::paths::Reflect;
    use crate::experiments::tcp::stack::{EchoApplication, relay, stack};

    /// Runs the network and an engine in one thread, over a cable in memory, in virtual time.
    fn exchange(mut network: Network, mut engine: impl Endpoint, turns: u64) -> (Network, Time) {
        let (near, far) = Ring::pair(256);
        let (mut near, mut far) = (Driver::new(near), Driver::new(far));
        let mut now = Time(1_000_000);
        for _ in 0..turns {
            now = now + Duration::from_micros(10);
            while far.turn(now, &mut network).unwrap() == Turn::Busy {}
            while near.turn(now, &mut engine).unwrap() == Turn::Busy {}
        }
        (network, now)
    }

    fn hosted_echo() -> Hosted<EchoApplication> {
        let mut stack = stack(false).unwrap();
        stack.set_listening(0, true);
        Hosted { stack, application: EchoApplication }
    }

    fn seen_after(path: Path, pace: Pace, engine: impl Endpoint) -> Seen {
        let mut network = Network::new(path, 5, pace).unwrap();
        network.is_measuring = true;
        let (network, now) = exchange(network, engine, 2_000);
        assert!(network.is_open, "{path:?}: {}", network.why_not_open());
        assert!(!network.is_over(now), "{path:?} goes on");
        network.into_seen()
    }

    #[test]
    fn every_path_answers_every_request() {
        let relayed = Hosted { stack: stack(false).unwrap(), application: relay().unwrap() };
        for pace in [Pace::Bursts, Pace::Rate(20_000.0)] {
            let driver = seen_after(Path::Driver, pace, Reflect::default());
            let echo = seen_after(Path::Stack, pace, hosted_echo());
            for seen in [&driver, &echo] {
                assert!(seen.answers > 200, "{pace:?}: {seen:?}");
                assert_eq!((seen.wrong, seen.repeated), (0, 0), "{pace:?}: {seen:?}");
                assert!(seen.quantile_us(0.5).is_some_and(|us| us <= 20.0), "{pace:?}");
            }
        }
        let relay = seen_after(Path::Relay, Pace::Bursts, relayed);
        assert!(relay.answers > 200 && relay.wrong == 0, "{relay:?}");
    }

    #[test]
    fn unanswered_requests_are_lost() {
        struct Silent;

        impl Endpoint for Silent {
            fn begin_turn(&mut self, _now: Time) {}
            fn deliver(&mut self, _now: Time, _frame: &[u8]) {}
            fn end_turn(&mut self, _now: Time) {}
            fn poll_transmit(&mut self, _now: Time, _slot: &mut [u8]) -> Option<usize> {
                None
            }
            fn poll_timeout(&self) -> Option<Time> {
                None
            }
        }

        let network = Network::new(Path::Driver, 4, Pace::Bursts).unwrap();
        let (network, now) = exchange(network, Silent, 10);
        assert!(!network.is_over(now) && network.is_over(now + 2 * LOST_AFTER));
        assert_eq!(network.into_seen().lost, 4);
    }

    #[test]
    fn another_frame_than_the_reflection_is_wrong() {
        let mut network = Network::new(Path::Driver, 1, Pace::Bursts).unwrap();
        network.request(Time(1));
        let mut slot = [0; 256];
        let length = network.poll_transmit(Time(1), &mut slot).unwrap();
        let mut frame = slot[..length].to_vec();
        exchange_ends(&mut frame);
        frame[length - 1] ^= 1;
        network.receive(Time(2), &frame);
        assert_eq!((network.seen.wrong, network.waiting), (1, 1));
        frame[length - 1] ^= 1;
        network.receive(Time(3), &frame);
        assert_eq!((network.seen.answers, network.waiting), (1, 0));
    }
}

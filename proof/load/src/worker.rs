//! One worker thread, which drives its share of the connections.
//!
//! All times are nanoseconds since time zero of the run.

mod connection;
mod group;
mod messages;
mod mover;
mod moving;
mod moving_client;
mod opening;
mod relief;
mod session;
mod session_state;
mod traffic;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use spillway_client::LinkTarget;
use spillway_moving_client::{Slot, join_token, split_token};

use self::connection::Connection;
use self::group::Group;
pub(crate) use self::messages::{FromWorker, ToWorker, WorkerSetup, wake, wake_fd};
use self::mover::Mover;
use crate::arrivals::Arrivals;
use crate::clock::Clock;
use crate::config::{Assignment, RequestLoop};
use crate::control::{Command, ScheduledCommand};
use crate::engine::{Engine, Readiness};
use crate::error::Error;
use crate::keys::Keys;
use crate::protocol::Protocol;
use crate::queue::Pool;
use crate::random::Random;
use crate::report::Target;
use crate::samples::{Sample, SampleKind, Samples};

/// Maximum of arrivals and scheduled commands in one turn, so that a thread that is behind schedule still reads
/// replies.
const TURN_MAX: usize = 128;
const SAMPLES_INTERVAL_NS: u64 = 100_000_000;
/// A message with this many samples is sent before its interval ends.
const SAMPLES_MAX: usize = 1 << 16;
/// Longest wait for a message before the run. Limited, because the steering thread may end without sending one.
const MESSAGE_WAIT: Duration = Duration::from_millis(100);
/// Token that reports messages; streams of connections have other tokens (see `split_token`).
pub(crate) const WAKE_TOKEN: u64 = u64::MAX;
/// Maximum of problems that a worker reports as text. The samples count all problems.
const PROBLEMS_DESCRIBED_MAX: u32 = 8;

/// Token of a plain connection's stream, in the format of moving clients' tokens.
fn token(index: usize) -> u64 {
    join_token(index as u64, Slot::Direct)
}

pub(crate) struct Worker<P, E: Engine> {
    /// The run's clock, once `Start` has arrived.
    start_clock: Option<Clock>,
    setup: WorkerSetup,
    protocol: P,
    clock: Clock,
    engine: E,
    ready: Vec<Readiness>,
    server: SocketAddr,
    /// Helpers' link ports; empty if connections are plain.
    targets: Vec<LinkTarget>,
    /// Moving clients that were used in this turn, so that their events must be polled.
    clients_to_poll: Vec<u32>,
    connections: Vec<Connection<E::Network>>,
    /// Groups of sessions with a policy; empty without `--relief`.
    groups: Vec<Group>,
    /// Groups whose decisions must be polled in this turn.
    groups_to_poll: Vec<u32>,
    /// (time in ns, group): timeouts of the groups' relief.
    group_timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections to open when fewer than `OPENING_MAX` are being opened.
    to_open: VecDeque<u32>,
    opening_connections: usize,
    /// The reason for which a connection failed to open before the run.
    last_failure: Option<String>,
    /// (time in ns, connection): the end of a pause before the connection is reopened, or a timeout.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    arrivals: Option<Arrivals>,
    assignment_random: Random,
    round_robin_index: u32,
    /// Draws connections with different rates; `None` unless the assignment is skewed.
    skewed_connections: Option<Keys>,
    pool: Pool,
    waiting_requests: usize,
    pending_requests: usize,
    scheduled: VecDeque<(ScheduledCommand, u32)>,
    mover: Option<Mover>,
    helped_now: u32,
    samples: Samples,
    samples_sent_ns: u64,
    problems_described: u32,
    bin_ns: u64,
    sla_ns: u64,
    end_ns: u64,
    is_running: bool,
    encode_buffer: Vec<u8>,
    receive_buffer: Vec<u8>,
}

impl<P: Protocol, E: Engine> Worker<P, E> {
    pub(crate) fn new(setup: WorkerSetup, protocol: P, engine: E) -> Worker<P, E> {
        let config = &setup.config;
        let threads = config.threads;
        let share = config.connections / threads + u32::from(setup.index < config.connections % threads);
        // Generators that share a key space have the same seed, but must draw different arrivals.
        let number = u64::from(config.share.0) * u64::from(threads) + u64::from(setup.index);
        let random = |purpose: u64| Random::new(config.seed, purpose << 32 | number);
        let arrivals = match config.request_loop {
            RequestLoop::Open { rate_per_s, spacing } => {
                Some(Arrivals::new(spacing, rate_per_s / f64::from(threads), random(1)))
            }
            RequestLoop::Closed => None,
        };
        let nanoseconds =
            |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Worker {
            start_clock: None,
            clock: Clock::new(crate::clock::monotonic_ns()),
            engine,
            ready: Vec::new(),
            server: config.server,
            targets: config.helpers.targets(),
            clients_to_poll: Vec::new(),
            connections: (0..share).map(|_| Connection::default()).collect(),
            groups: Vec::new(),
            groups_to_poll: Vec::new(),
            group_timers: BinaryHeap::new(),
            to_open: (0..share).collect(),
            opening_connections: 0,
            last_failure: None,
            timers: BinaryHeap::new(),
            arrivals,
            assignment_random: random(2),
            round_robin_index: 0,
            skewed_connections: match config.assignment {
                Assignment::Skewed { exponent } => Some(Keys::zipf(share, exponent)),
                Assignment::RoundRobin | Assignment::Random => None,
            },
            pool: Pool::new((config.queue / threads) as usize),
            waiting_requests: 0,
            pending_requests: 0,
            scheduled: VecDeque::new(),
            mover: None,
            helped_now: 0,
            samples: Samples::default(),
            samples_sent_ns: 0,
            problems_described: 0,
            bin_ns: nanoseconds(config.bin),
            sla_ns: nanoseconds(config.sla),
            end_ns: config.duration.map_or(u64::MAX, nanoseconds),
            is_running: false,
            encode_buffer: Vec::new(),
            receive_buffer: vec![0; 1 << 16],
            setup,
            protocol,
        }
    }

    /// Runs to the end. All results and errors go to the steering thread.
    pub(crate) fn run(mut self) {
        // The default timer slack of 50 µs would add to the measured lag. If the kernel refuses, the run continues.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        match self.prepare().and_then(|started| if started { self.drive() } else { Ok(()) }) {
            Ok(()) => {
                self.close_sessions();
                self.notify(FromWorker::Done { arrivals_end_ns: self.end_ns });
            }
            Err(error) => self.notify(FromWorker::Failed(error)),
        }
        self.connections.clear();
        self.engine.close();
    }

    /// Opens all connections, then waits for `Start`. False if the channel closes first.
    fn prepare(&mut self) -> Result<bool, Error> {
        self.create_groups()?;
        self.open_all()?;
        self.notify(FromWorker::Ready);
        loop {
            // `stop` may start the run while connections are being opened.
            if let Some(clock) = self.start_clock {
                self.clock = clock;
                // Existing timers count from another time zero.
                (0..self.connections.len()).for_each(|index| self.renew_session_timer(index));
                self.renew_group_timers();
                return Ok(true);
            }
            if !self.take_messages() {
                self.end_ns = 0;
                return Ok(false);
            }
            if self.start_clock.is_none() {
                let waited = self.engine.wait_for_message(MESSAGE_WAIT);
                waited.map_err(|e| Error::system("cannot wait for the start of the run", e))?;
            }
        }
    }

    fn drive(&mut self) -> Result<(), Error> {
        self.is_running = true;
        if self.arrivals.is_none() {
            (0..self.connections.len()).for_each(|index| self.advance(index));
        }
        loop {
            let now_ns = self.clock.now_ns();
            self.run_commands_and_arrivals(now_ns);
            self.start_moves(now_ns);
            self.open_due(now_ns);
            if now_ns >= self.samples_sent_ns + SAMPLES_INTERVAL_NS || self.samples.list.len() >= SAMPLES_MAX
            {
                self.send_samples(now_ns);
            }
            if now_ns >= self.end_ns && self.finish(now_ns) {
                self.send_samples(now_ns);
                return Ok(());
            }
            self.wait(now_ns)?;
        }
    }

    fn wait(&mut self, now_ns: u64) -> Result<(), Error> {
        self.poll_groups();
        self.poll_moving_clients();
        let timeout_ns = self.next_ns().saturating_sub(now_ns);
        let timeout = Duration::from_nanos(timeout_ns);
        let mut reports = std::mem::take(&mut self.ready);
        let waited = self.engine.wait(timeout, &mut reports);
        waited.map_err(|e| Error::system("cannot wait for the connections", e))?;
        for &Readiness { token, ready } in &reports {
            match split_token(token) {
                Some((index, slot)) => self.handle_ready(index as usize, slot, ready),
                None if self.handle_group_ready(token) => {}
                None => {
                    self.take_messages();
                }
            }
        }
        self.ready = reports;
        self.poll_moving_clients();
        Ok(())
    }

    /// The next deadline: of an arrival, command, timer, move, group or samples, or the end of the run.
    fn next_ns(&self) -> u64 {
        let arrival = self.arrivals.as_ref().and_then(Arrivals::peek).filter(|&at| at < self.end_ns);
        let command = self.scheduled.front().map(|(scheduled, _)| scheduled.at_ns);
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let end_deadlines = [self.end_ns, self.waiting_end_ns(), self.drain_end_ns()];
        let now_ns = self.clock.now_ns();
        [
            arrival,
            command,
            timer,
            self.next_move_ns(),
            self.next_group_ns(),
            Some(self.samples_sent_ns + SAMPLES_INTERVAL_NS),
        ]
        .into_iter()
        .flatten()
        .chain(end_deadlines.into_iter().filter(|&at| at > now_ns))
        .min()
        .unwrap_or(now_ns)
    }

    /// Executes scheduled commands and dispatches arrivals in the order of their times: a new rate applies from its own
    /// time on even if this thread is late.
    fn run_commands_and_arrivals(&mut self, now_ns: u64) {
        for _ in 0..TURN_MAX {
            let command_ns = self.scheduled.front().map_or(u64::MAX, |(scheduled, _)| scheduled.at_ns);
            let limit_ns = command_ns.min(now_ns + 1).min(self.end_ns);
            match self.arrivals.as_mut().and_then(|arrivals| arrivals.take_before(limit_ns)) {
                Some(intended_ns) => self.dispatch_arrival(intended_ns),
                None if command_ns <= now_ns => {
                    if let Some((scheduled, move_id)) = self.scheduled.pop_front() {
                        self.execute(scheduled, move_id);
                    }
                }
                None => break,
            }
        }
    }

    fn dispatch_arrival(&mut self, intended_ns: u64) {
        self.samples.offered.add(intended_ns / self.bin_ns);
        let request = self.protocol.draw();
        let count = self.connections.len() as u32;
        let index = match self.setup.config.assignment {
            Assignment::RoundRobin => {
                self.round_robin_index = (self.round_robin_index + 1) % count;
                self.round_robin_index
            }
            Assignment::Random => self.assignment_random.below(count),
            Assignment::Skewed { .. } => match &self.skewed_connections {
                Some(connections) => connections.draw(&mut self.assignment_random),
                None => 0,
            },
        };
        self.dispatch(index as usize, intended_ns, request);
    }

    fn execute(&mut self, scheduled: ScheduledCommand, move_id: u32) {
        match &scheduled.command {
            Command::Rate(rate) => {
                let share = rate / f64::from(self.setup.config.threads);
                if let Some(arrivals) = &mut self.arrivals {
                    arrivals.set_rate(scheduled.at_ns, share);
                }
            }
            Command::Move { target, pace, count } => {
                let pace = pace.unwrap_or(self.setup.config.move_pace);
                self.begin_move(move_id, *target, scheduled.at_ns, pace, *count);
            }
            Command::Relief(relief) => self.override_relief(*relief),
            Command::Stop => self.end_ns = self.end_ns.min(scheduled.at_ns),
            Command::Mark(_) | Command::Start(_) => {}
        }
        if self.setup.index == 0 {
            self.notify(FromWorker::Executed(scheduled));
        }
    }

    /// Takes all messages. Returns whether more may come.
    fn take_messages(&mut self) -> bool {
        let mut counter = [0u8; 8];
        // Resets the eventfd; fails if it has already been reset.
        let _ = rustix::io::read(&self.setup.wake, &mut counter);
        loop {
            match self.setup.messages.try_recv() {
                Ok(ToWorker::Execute { scheduled, move_id }) => self.enqueue(scheduled, move_id),
                Ok(ToWorker::Start(clock)) => self.start_clock = Some(clock),
                Err(error) => return error != TryRecvError::Disconnected,
            }
        }
    }

    fn enqueue(&mut self, scheduled: ScheduledCommand, move_id: u32) {
        let index = self.scheduled.partition_point(|(other, _)| other.at_ns <= scheduled.at_ns);
        self.scheduled.insert(index, (scheduled, move_id));
    }

    /// The time after which waiting requests are given up, because all of them exceed the SLA.
    fn waiting_end_ns(&self) -> u64 {
        self.end_ns.saturating_add(self.sla_ns)
    }

    fn drain_end_ns(&self) -> u64 {
        let drain = u64::try_from(self.setup.config.drain.as_nanos()).unwrap_or(u64::MAX);
        self.waiting_end_ns().saturating_add(drain)
    }

    /// After the end: gives up waiting requests at the SLA, pending ones after the drain. Returns whether all are done.
    fn finish(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.waiting_end_ns() && self.waiting_requests > 0 {
            (0..self.connections.len()).for_each(|index| self.give_up_waiting(index));
        }
        let out_of_time = now_ns >= self.drain_end_ns();
        if out_of_time {
            (0..self.connections.len()).for_each(|index| self.give_up_pending(index));
        }
        let finished = out_of_time || (self.pending_requests == 0 && self.waiting_requests == 0);
        if finished {
            self.end_move();
        }
        finished
    }

    fn send_samples(&mut self, now_ns: u64) {
        self.samples_sent_ns = now_ns;
        let list = Vec::with_capacity(self.samples.list.len());
        let samples = std::mem::replace(&mut self.samples, Samples { list, ..Samples::default() });
        let (index, helped_now) = (self.setup.index, self.helped_now);
        self.notify(FromWorker::Samples { index, samples, helped_now });
    }

    fn notify(&self, message: FromWorker) {
        self.setup.notify(message);
    }

    fn report_trouble(&mut self, what: impl FnOnce() -> String) {
        if self.problems_described < PROBLEMS_DESCRIBED_MAX {
            self.problems_described += 1;
            let at_ns = self.clock.now_ns();
            self.notify(FromWorker::Trouble { at_ns, what: what() });
        }
    }

    fn report_decision(&mut self, what: String) {
        self.notify(FromWorker::Decided { at_ns: self.clock.now_ns(), what });
    }

    fn sample(&mut self, at_ns: u64, carrier: Target, kind: SampleKind, value_ns: u64) {
        let value_us = crate::histogram::quantize(value_ns.div_ceil(1000));
        self.samples.list.push(Sample::new(at_ns / self.bin_ns, carrier, kind, value_us));
    }
}

//! One worker thread, which drives its share of the connections from one epoll set.
//!
//! All times are nanoseconds since time zero of the run.

mod connection;
mod group;
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
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use spillway_client::LinkTarget;
use spillway_moving_client::{Slot, split_token};
use spillway_net::{Epoll, EpollEvent};

use self::connection::Connection;
use self::group::Group;
use self::mover::Mover;
use crate::arrivals::Arrivals;
use crate::clock::Clock;
use crate::config::{Assignment, Config, RequestLoop};
use crate::control::{Command, ScheduledCommand};
use crate::error::Error;
use crate::protocol::Protocol;
use crate::queue::Pool;
use crate::random::Random;
use crate::report::{Move, Target};
use crate::samples::{Outcome, Sample, Samples};

/// Maximum of arrivals and scheduled commands in one turn, so that a thread that is behind schedule still reads
/// replies.
const TURN_MAX: usize = 128;
const SAMPLES_INTERVAL_NS: u64 = 100_000_000;
/// A message with this many samples is sent before its interval ends.
const SAMPLES_MAX: usize = 1 << 16;
const EVENTS_PER_WAIT_MAX: usize = 256;
/// Token of the eventfd in the epoll set; sockets of connections have other tokens (see `split_token`).
const WAKE_TOKEN: u64 = u64::MAX;
/// Maximum of problems that a worker reports as text. The samples count all problems.
const PROBLEMS_DESCRIBED_MAX: u32 = 8;

#[derive(Debug)]
pub enum ToWorker {
    Start(Clock),
    /// Execute the command at its time, or at once if the time has passed.
    Execute {
        scheduled: ScheduledCommand,
        move_id: u32,
    },
}

#[derive(Debug)]
pub enum FromWorker {
    /// All connections of the worker are open.
    Ready,
    /// Measurements since the last such message.
    Samples {
        index: u32,
        samples: Samples,
        /// Connections of this worker that use a helper.
        helped_now: u32,
    },
    /// A command took effect. Only worker 0 sends this message.
    Executed(ScheduledCommand),
    Moved(Move),
    /// The client library's policy decided.
    Decided {
        at_ns: u64,
        what: String,
    },
    Trouble {
        at_ns: u64,
        what: String,
    },
    /// The last message of a worker that has finished.
    Done {
        arrivals_end_ns: u64,
    },
    /// The last message of a worker that has failed.
    Failed(Error),
}

/// Parameters of [`Worker::new`], without the protocol.
#[derive(Debug)]
pub struct WorkerSetup {
    /// Options of the run. The threads share connections, rate, pace and queue equally.
    pub config: Arc<Config>,
    pub index: u32,
    pub messages: Receiver<ToWorker>,
    /// Eventfd that the steering thread writes after each message.
    pub wake: Arc<OwnedFd>,
    pub to_steering: SyncSender<FromWorker>,
    /// Eventfd that the worker writes after each message.
    pub steering_wake: Arc<OwnedFd>,
}

/// Creates a non-blocking eventfd, which wakes a thread from epoll or poll.
pub fn wake_fd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::system("cannot make an eventfd", e))
}

pub fn wake(fd: &OwnedFd) {
    // Fails only if the counter is full, which means that a wake-up is pending.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Token of a plain connection's socket in the epoll set, in the format of moving clients' tokens.
fn token(index: usize) -> EventData {
    EventData::new_u64((index as u64) << 2 | Slot::Direct as u64)
}

pub(crate) struct Worker<P> {
    /// The run's clock, once `Start` has arrived.
    start_clock: Option<Clock>,
    setup: WorkerSetup,
    protocol: P,
    clock: Clock,
    epoll: Epoll,
    events: Vec<EpollEvent>,
    server: SocketAddr,
    /// Helpers' link ports; empty if connections are plain.
    targets: Vec<LinkTarget>,
    /// Moving clients that were used in this turn, so that their events must be polled.
    clients_to_poll: Vec<u32>,
    connections: Vec<Connection>,
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

impl<P: Protocol> Worker<P> {
    pub(crate) fn new(setup: WorkerSetup, protocol: P) -> Result<Worker<P>, Error> {
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
        let epoll = Epoll::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
        epoll::add(&epoll, setup.wake.as_fd(), EventData::new_u64(WAKE_TOKEN), EventFlags::IN)
            .map_err(|e| Error::system("cannot watch an eventfd", e))?;
        let nanoseconds =
            |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Ok(Worker {
            start_clock: None,
            clock: Clock::new(crate::clock::monotonic_ns()),
            epoll,
            events: Vec::with_capacity(EVENTS_PER_WAIT_MAX),
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
        })
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
            match self.setup.messages.recv() {
                Ok(ToWorker::Start(clock)) => self.start_clock = Some(clock),
                Ok(ToWorker::Execute { scheduled, move_id }) => self.enqueue(scheduled, move_id),
                Err(_) => {
                    self.end_ns = 0;
                    return Ok(false);
                }
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
        let mut events = std::mem::take(&mut self.events);
        let waited = self.epoll.wait(&mut events, Some(timeout));
        waited.map_err(|e| Error::system("cannot wait for the connections", e))?;
        for event in &events {
            let (token, flags) = (event.u64, EventFlags::from_bits_retain(event.events));
            match split_token(token) {
                Some((index, slot)) => self.handle_ready(index as usize, slot, flags),
                None if self.handle_group_ready(token) => {}
                None => self.take_messages(),
            }
        }
        self.events = events;
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

    fn take_messages(&mut self) {
        let mut counter = [0u8; 8];
        // Resets the eventfd; fails if it has already been reset.
        let _ = rustix::io::read(&self.setup.wake, &mut counter);
        while let Ok(message) = self.setup.messages.try_recv() {
            match message {
                ToWorker::Execute { scheduled, move_id } => self.enqueue(scheduled, move_id),
                ToWorker::Start(clock) => self.start_clock = Some(clock),
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
        // Fails only if the steering thread has ended, and with it the run.
        if self.setup.to_steering.send(message).is_ok() {
            wake(&self.setup.steering_wake);
        }
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

    fn sample(&mut self, at_ns: u64, carrier: Target, outcome: Outcome, value_ns: u64) {
        let value_us = crate::histogram::quantize(value_ns.div_ceil(1000));
        self.samples.list.push(Sample::new(at_ns / self.bin_ns, carrier, outcome, value_us));
    }
}

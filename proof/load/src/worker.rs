//! One worker thread, which drives its share of the connections from one epoll set.
//!
//! All times are nanoseconds since time zero of the run.

mod connection;
mod group;
mod library;
mod mover;
mod moving;
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
use crate::config::{Assignment, Config, Loop};
use crate::control::{Command, Order};
use crate::error::Error;
use crate::protocol::Protocol;
use crate::queue::Pool;
use crate::random::Random;
use crate::report::{Move, Target};
use crate::samples::{Outcome, Sample, Samples};

/// Limit of arrivals and orders per turn, so that a thread behind schedule still reads replies.
const TURN_MAX: usize = 128;
const SAMPLES_INTERVAL_NS: u64 = 100_000_000;
/// A message with samples is sent early at this number of samples.
const SAMPLES_MAX: usize = 1 << 16;
const EVENTS_PER_WAIT_MAX: usize = 256;
/// Token of the eventfd in the epoll set. No socket of a connection has it (see `split_token`).
const WAKE_TOKEN: u64 = u64::MAX;
/// A worker reports this many problems as text. The samples count all of them.
const TROUBLES_DESCRIBED_MAX: u32 = 8;

#[derive(Debug)]
pub enum ToWorker {
    Start(Clock),
    /// Execute the order at its time, or at once if that is past.
    Order {
        order: Order,
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
    /// An order took effect. Only worker 0 sends this message.
    Executed(Order),
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
    /// The last message of a worker that finished.
    Done {
        arrivals_end_ns: u64,
    },
    /// The last message of a worker that failed.
    Failed(Error),
}

/// What [`Worker::new`] needs besides the protocol.
#[derive(Debug)]
pub struct WorkerSetup {
    /// Options of the run, whose connections, rate, pace and queue the threads share equally.
    pub config: Arc<Config>,
    pub index: u32,
    pub orders: Receiver<ToWorker>,
    /// Eventfd that the steering thread writes after each message.
    pub wake: Arc<OwnedFd>,
    pub to_steering: SyncSender<FromWorker>,
    /// Eventfd that the worker writes after each message.
    pub steering_wake: Arc<OwnedFd>,
}

/// Makes a non-blocking eventfd, which wakes a thread in epoll or poll.
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
    /// The time zero that the run was started with.
    started: Option<Clock>,
    setup: WorkerSetup,
    protocol: P,
    clock: Clock,
    epoll: Epoll,
    events: Vec<EpollEvent>,
    server: SocketAddr,
    /// Helpers' link ports; empty if connections are plain.
    targets: Vec<LinkTarget>,
    /// Moving clients used in this turn, whose events must be polled.
    touched: Vec<u32>,
    connections: Vec<Connection>,
    /// Groups of sessions with a policy; empty without `--relief`.
    groups: Vec<Group>,
    /// Groups whose decisions must be polled.
    touched_groups: Vec<u32>,
    /// (time in ns, group) at which a group's relief handles a timeout.
    group_timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections to open when fewer than `OPENING_MAX` are being opened.
    to_open: VecDeque<u32>,
    opening: usize,
    /// Why a connection failed to open before the run.
    last_failure: Option<String>,
    /// (time in ns, connection): the end of a pause before it is reopened, or a timeout.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    arrivals: Option<Arrivals>,
    assignment_random: Random,
    turn: u32,
    pool: Pool,
    waiting: usize,
    outstanding: usize,
    orders: VecDeque<(Order, u32)>,
    mover: Option<Mover>,
    helped_now: u32,
    samples: Samples,
    samples_sent_ns: u64,
    troubles: u32,
    bin_ns: u64,
    sla_ns: u64,
    end_ns: u64,
    running: bool,
    encoded: Vec<u8>,
    received: Vec<u8>,
}

impl<P: Protocol> Worker<P> {
    pub(crate) fn new(setup: WorkerSetup, protocol: P) -> Result<Worker<P>, Error> {
        let config = &setup.config;
        let of = config.threads;
        let share = config.connections / of + u32::from(setup.index < config.connections % of);
        // Generators of one key space have the same seed, but must not draw the same arrivals.
        let number = u64::from(config.share.0) * u64::from(of) + u64::from(setup.index);
        let seed = |purpose: u64| Random::new(config.seed, purpose << 32 | number);
        let arrivals = match config.pacing {
            Loop::Open { rate_per_s, spacing } => {
                Some(Arrivals::new(spacing, rate_per_s / f64::from(of), seed(1)))
            }
            Loop::Closed => None,
        };
        let epoll = Epoll::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
        epoll::add(&epoll, setup.wake.as_fd(), EventData::new_u64(WAKE_TOKEN), EventFlags::IN)
            .map_err(|e| Error::system("cannot watch an eventfd", e))?;
        let nanoseconds = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Ok(Worker {
            started: None,
            clock: Clock::new(crate::clock::monotonic_ns()),
            epoll,
            events: Vec::with_capacity(EVENTS_PER_WAIT_MAX),
            server: config.server,
            targets: config.helpers.targets(),
            touched: Vec::new(),
            connections: (0..share).map(|_| Connection::default()).collect(),
            groups: Vec::new(),
            touched_groups: Vec::new(),
            group_timers: BinaryHeap::new(),
            to_open: (0..share).collect(),
            opening: 0,
            last_failure: None,
            timers: BinaryHeap::new(),
            arrivals,
            assignment_random: seed(2),
            turn: 0,
            pool: Pool::new((config.queue / of) as usize),
            waiting: 0,
            outstanding: 0,
            orders: VecDeque::new(),
            mover: None,
            helped_now: 0,
            samples: Samples::default(),
            samples_sent_ns: 0,
            troubles: 0,
            bin_ns: nanoseconds(config.bin),
            sla_ns: nanoseconds(config.sla),
            end_ns: config.duration.map_or(u64::MAX, nanoseconds),
            running: false,
            encoded: Vec::new(),
            received: vec![0; 1 << 16],
            setup,
            protocol,
        })
    }

    /// Runs to the end. All results and errors go to the steering thread.
    pub(crate) fn run(mut self) {
        // The default timer slack of 50 µs would add to the measured lag. A refusal is not an error.
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
        self.make_groups()?;
        self.open_all()?;
        self.notify(FromWorker::Ready);
        loop {
            // `stop` may start the run while connections are being opened.
            if let Some(clock) = self.started {
                self.clock = clock;
                // Timers were set before the clock was, and count from another time zero.
                (0..self.connections.len()).for_each(|index| self.renew_session_timer(index));
                self.renew_group_timers();
                return Ok(true);
            }
            match self.setup.orders.recv() {
                Ok(ToWorker::Start(clock)) => self.started = Some(clock),
                Ok(ToWorker::Order { order, move_id }) => self.enqueue(order, move_id),
                Err(_) => {
                    self.end_ns = 0;
                    return Ok(false);
                }
            }
        }
    }

    fn drive(&mut self) -> Result<(), Error> {
        self.running = true;
        if self.arrivals.is_none() {
            (0..self.connections.len()).for_each(|index| self.advance(index));
        }
        loop {
            let now_ns = self.clock.now_ns();
            self.run_orders_and_arrivals(now_ns);
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
        self.poll_touched();
        let timeout_ns = self.next_ns().saturating_sub(now_ns);
        let timeout = Duration::from_nanos(timeout_ns);
        let mut events = std::mem::take(&mut self.events);
        let waited = self.epoll.wait(&mut events, Some(timeout));
        waited.map_err(|e| Error::system("cannot wait for the connections", e))?;
        for event in &events {
            let (token, flags) = (event.u64, EventFlags::from_bits_retain(event.events));
            match split_token(token) {
                Some((index, slot)) => self.ready(index as usize, slot, flags),
                None if self.group_ready(token) => {}
                None => self.take_orders(),
            }
        }
        self.events = events;
        self.poll_touched();
        Ok(())
    }

    /// The next deadline: of arrivals, orders, timers, moves, groups, samples, or the end.
    fn next_ns(&self) -> u64 {
        let arrival = self.arrivals.as_ref().and_then(Arrivals::peek).filter(|&at| at < self.end_ns);
        let order = self.orders.front().map(|(order, _)| order.at_ns);
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let ends = [self.end_ns, self.give_up_ns(), self.drained_ns()];
        let now_ns = self.clock.now_ns();
        [
            arrival,
            order,
            timer,
            self.next_move_ns(),
            self.next_group_ns(),
            Some(self.samples_sent_ns + SAMPLES_INTERVAL_NS),
        ]
        .into_iter()
        .flatten()
        .chain(ends.into_iter().filter(|&at| at > now_ns))
        .min()
        .unwrap_or(now_ns)
    }

    /// Executes orders and dispatches arrivals in the order of their times: a new rate applies from its time on even
    /// if this thread is late.
    fn run_orders_and_arrivals(&mut self, now_ns: u64) {
        for _ in 0..TURN_MAX {
            let order_ns = self.orders.front().map_or(u64::MAX, |(order, _)| order.at_ns);
            let limit_ns = order_ns.min(now_ns + 1).min(self.end_ns);
            match self.arrivals.as_mut().and_then(|arrivals| arrivals.take_before(limit_ns)) {
                Some(intended_ns) => self.arrive(intended_ns),
                None if order_ns <= now_ns => {
                    if let Some((order, move_id)) = self.orders.pop_front() {
                        self.execute(order, move_id);
                    }
                }
                None => break,
            }
        }
    }

    fn arrive(&mut self, intended_ns: u64) {
        self.samples.offered.add(intended_ns / self.bin_ns);
        let request = self.protocol.draw();
        let count = self.connections.len() as u32;
        let index = match self.setup.config.assignment {
            Assignment::RoundRobin => {
                self.turn = (self.turn + 1) % count;
                self.turn
            }
            Assignment::Random => self.assignment_random.below(count),
        };
        self.dispatch(index as usize, intended_ns, request);
    }

    fn execute(&mut self, order: Order, move_id: u32) {
        match &order.command {
            Command::Rate(rate) => {
                let share = rate / f64::from(self.setup.config.threads);
                if let Some(arrivals) = &mut self.arrivals {
                    arrivals.set_rate(order.at_ns, share);
                }
            }
            Command::Move { target, pace, count } => {
                let pace = pace.unwrap_or(self.setup.config.pace);
                self.begin_move(move_id, *target, order.at_ns, pace, *count);
            }
            Command::Relief(relief) => self.override_relief(*relief),
            Command::Stop => self.end_ns = self.end_ns.min(order.at_ns),
            Command::Mark(_) | Command::Start(_) => {}
        }
        if self.setup.index == 0 {
            self.notify(FromWorker::Executed(order));
        }
    }

    fn take_orders(&mut self) {
        let mut counter = [0u8; 8];
        // Resets the eventfd; fails if it is reset already.
        let _ = rustix::io::read(&self.setup.wake, &mut counter);
        while let Ok(message) = self.setup.orders.try_recv() {
            match message {
                ToWorker::Order { order, move_id } => self.enqueue(order, move_id),
                ToWorker::Start(clock) => self.started = Some(clock),
            }
        }
    }

    fn enqueue(&mut self, order: Order, move_id: u32) {
        let at = self.orders.partition_point(|(other, _)| other.at_ns <= order.at_ns);
        self.orders.insert(at, (order, move_id));
    }

    /// The time after which every waiting request exceeds the SLA.
    fn give_up_ns(&self) -> u64 {
        self.end_ns.saturating_add(self.sla_ns)
    }

    fn drained_ns(&self) -> u64 {
        let drain = u64::try_from(self.setup.config.drain.as_nanos()).unwrap_or(u64::MAX);
        self.give_up_ns().saturating_add(drain)
    }

    /// After the end: gives up waiting requests at the SLA, pending ones at the end of the drain. True when done.
    fn finish(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.give_up_ns() && self.waiting > 0 {
            (0..self.connections.len()).for_each(|index| self.give_up_waiting(index));
        }
        let out_of_time = now_ns >= self.drained_ns();
        if out_of_time {
            (0..self.connections.len()).for_each(|index| self.give_up_pending(index));
        }
        let finished = out_of_time || (self.outstanding == 0 && self.waiting == 0);
        if finished {
            self.end_move();
        }
        finished
    }

    fn send_samples(&mut self, now_ns: u64) {
        self.samples_sent_ns = now_ns;
        let room = Vec::with_capacity(self.samples.list.len());
        let samples = std::mem::replace(&mut self.samples, Samples { list: room, ..Samples::default() });
        let (index, helped_now) = (self.setup.index, self.helped_now);
        self.notify(FromWorker::Samples { index, samples, helped_now });
    }

    fn notify(&self, message: FromWorker) {
        // Fails only if the steering thread has ended, and with it the run.
        if self.setup.to_steering.send(message).is_ok() {
            wake(&self.setup.steering_wake);
        }
    }

    fn trouble(&mut self, what: impl FnOnce() -> String) {
        if self.troubles < TROUBLES_DESCRIBED_MAX {
            self.troubles += 1;
            let at_ns = self.clock.now_ns();
            self.notify(FromWorker::Trouble { at_ns, what: what() });
        }
    }

    fn decided(&mut self, what: String) {
        self.notify(FromWorker::Decided { at_ns: self.clock.now_ns(), what });
    }

    fn sample(&mut self, at_ns: u64, carrier: Target, outcome: Outcome, value_ns: u64) {
        let value_us = crate::histogram::quantize(value_ns.div_ceil(1000));
        self.samples.list.push(Sample::new(at_ns / self.bin_ns, carrier, outcome, value_us));
    }
}

//! One thread that drives its share of the connections from one epoll set.
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
mod session_link;
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

/// Arrivals and connection starts per turn, so that replies are read in time even far behind schedule.
const TURN_MAX: usize = 128;
/// How often the thread tells what it saw.
const TELL_NS: u64 = 100_000_000;
/// It also tells when so many words have gathered.
const WORDS_MAX: usize = 1 << 16;
/// Taken from the kernel at once.
const EVENTS: usize = 256;
/// Marks the eventfd in the epoll set, as no connection's socket is marked (see `split_token`).
const WAKE: u64 = u64::MAX;
/// Things that went wrong are told in words so many times; all are counted.
const TROUBLES_TOLD_MAX: u32 = 8;

/// What a worker is told.
#[derive(Debug)]
pub enum ToWorker {
    /// Time zero is here; begin.
    Start(Clock),
    /// Obey at the order's time, or now if that is past. Moves are counted by `id`.
    Order {
        /// The order.
        order: Order,
        /// Counts moves.
        id: u32,
    },
}

/// What a worker tells.
#[derive(Debug)]
pub enum FromWorker {
    /// All its connections are open.
    Ready,
    /// What it saw since it last told.
    Samples {
        /// Which worker.
        index: u32,
        /// What it saw.
        samples: Samples,
        /// Its connections that are on a helper now.
        helped_now: u32,
    },
    /// An order took effect. Only the first worker says so.
    Obeyed(Order),
    /// A move is over.
    Moved(Move),
    /// Connections that go to helpers by themselves have decided something.
    Decided {
        /// When.
        at_ns: u64,
        /// What.
        what: String,
    },
    /// Something went wrong.
    Trouble {
        /// When.
        at_ns: u64,
        /// What.
        what: String,
    },
    /// It is finished; nothing follows.
    Done {
        /// When arrivals ended.
        end_ns: u64,
    },
    /// It cannot go on; nothing follows.
    Failed(Error),
}

/// What a worker needs besides its protocol.
#[derive(Debug)]
pub struct Setting {
    /// The run; `threads` divides its connections, rate, pace and queue.
    pub config: Arc<Config>,
    /// Which worker this is, from 0.
    pub index: u32,
    /// Orders.
    pub orders: Receiver<ToWorker>,
    /// Written by whoever sends an order.
    pub wake: Arc<OwnedFd>,
    /// Where to tell.
    pub tell: SyncSender<FromWorker>,
    /// Written after telling.
    pub told: Arc<OwnedFd>,
}

/// A non-blocking counter to wake an epoll or poll.
pub fn wake_fd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|e| Error::system("cannot make an eventfd", e))
}

/// Wakes whoever waits for `fd`.
pub fn wake(fd: &OwnedFd) {
    // Fails only when the counter is full: then the other side has been woken already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Marks a plain connection's socket in the epoll set, in the way moving clients mark their own.
fn token(index: usize) -> EventData {
    EventData::new_u64((index as u64) << 2 | Slot::Direct as u64)
}

pub(crate) struct Worker<P> {
    setting: Setting,
    protocol: P,
    clock: Clock,
    epoll: Epoll,
    /// What came at once. Kept for its allocation.
    events: Vec<EpollEvent>,
    server: SocketAddr,
    /// Helpers' link ports; empty when connections are plain.
    targets: Vec<LinkTarget>,
    /// Moving clients that were used this turn and must be asked what they want.
    touched: Vec<u32>,
    connections: Vec<Connection>,
    /// Of connections that go to helpers by themselves; empty where none do.
    groups: Vec<Group>,
    /// Groups that may have decided something.
    touched_groups: Vec<u32>,
    /// (when, group): one decides something.
    group_timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// To be opened as soon as fewer are being opened.
    to_open: VecDeque<u32>,
    opening: usize,
    /// Why a connection could not be opened before the run.
    last_failure: Option<String>,
    /// (when, connection): a pause before it is opened again, or a limit on its opening.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    arrivals: Option<Arrivals>,
    assign: Random,
    turn: u32,
    pool: Pool,
    waiting: usize,
    outstanding: usize,
    orders: VecDeque<(Order, u32)>,
    mover: Option<Mover>,
    helped_now: u32,
    samples: Samples,
    told_ns: u64,
    troubles: u32,
    bin_ns: u64,
    sla_ns: u64,
    end_ns: u64,
    running: bool,
    encoded: Vec<u8>,
    received: Vec<u8>,
}

impl<P: Protocol> Worker<P> {
    pub(crate) fn new(setting: Setting, protocol: P) -> Result<Worker<P>, Error> {
        let config = &setting.config;
        let of = config.threads;
        let share = config.connections / of + u32::from(setting.index < config.connections % of);
        // Generators that share a seed, because they share a key space, must not send in step.
        let number = u64::from(config.share.0) * u64::from(of) + u64::from(setting.index);
        let seed = |purpose: u64| Random::new(config.seed, purpose << 32 | number);
        let arrivals = match config.pacing {
            Loop::Open { rate_per_s, spacing } => {
                Some(Arrivals::new(spacing, rate_per_s / f64::from(of), seed(1)))
            }
            Loop::Closed => None,
        };
        // Arrivals are due to the microsecond.
        let epoll = Epoll::new().map_err(|e| Error::system("cannot make an epoll set", e))?;
        epoll::add(&epoll, setting.wake.as_fd(), EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(|e| Error::system("cannot watch an eventfd", e))?;
        let nanoseconds = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Ok(Worker {
            clock: Clock::new(crate::clock::monotonic_ns()),
            epoll,
            events: Vec::with_capacity(EVENTS),
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
            assign: seed(2),
            turn: 0,
            pool: Pool::new((config.queue / of) as usize),
            waiting: 0,
            outstanding: 0,
            orders: VecDeque::new(),
            mover: None,
            helped_now: 0,
            samples: Samples::default(),
            told_ns: 0,
            troubles: 0,
            bin_ns: nanoseconds(config.bin),
            sla_ns: nanoseconds(config.sla),
            end_ns: config.duration.map_or(u64::MAX, nanoseconds),
            running: false,
            encoded: Vec::new(),
            received: vec![0; 1 << 16],
            setting,
            protocol,
        })
    }

    /// Runs to the end; all results and errors go through `setting.tell`.
    pub(crate) fn run(mut self) {
        // The default slack of 50 µs would be lag of our own. Not being allowed is no reason to stop.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        match self.prepare().and_then(|begun| if begun { self.drive() } else { Ok(()) }) {
            Ok(()) => {
                self.close_sessions();
                let end_ns = self.end_ns;
                self.tell(FromWorker::Done { end_ns });
            }
            Err(error) => self.tell(FromWorker::Failed(error)),
        }
    }

    /// Opens all connections, then waits for the word to begin; false when it will not come.
    fn prepare(&mut self) -> Result<bool, Error> {
        self.make_groups()?;
        self.open_all()?;
        self.tell(FromWorker::Ready);
        loop {
            match self.setting.orders.recv() {
                Ok(ToWorker::Start(clock)) => {
                    self.clock = clock;
                    // Their timers were set on another clock.
                    (0..self.connections.len()).for_each(|index| self.renew_session_timer(index));
                    self.renew_group_timers();
                    return Ok(true);
                }
                Ok(ToWorker::Order { order, id }) => self.enqueue(order, id),
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
            (0..self.connections.len()).for_each(|index| self.go_on(index));
        }
        loop {
            let now_ns = self.clock.now_ns();
            self.obey_and_arrive(now_ns);
            self.start_moves(now_ns);
            self.open_due(now_ns);
            if now_ns >= self.told_ns + TELL_NS || self.samples.words.len() >= WORDS_MAX {
                self.tell_samples(now_ns);
            }
            if now_ns >= self.end_ns && self.finish(now_ns) {
                self.tell_samples(now_ns);
                return Ok(());
            }
            self.wait(now_ns)?;
        }
    }

    /// Waits for the next thing to happen and handles what did.
    fn wait(&mut self, now_ns: u64) -> Result<(), Error> {
        self.tend_groups();
        self.tend_touched();
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
        self.tend_touched();
        Ok(())
    }

    /// When something must be done though no connection is ready.
    fn next_ns(&self) -> u64 {
        let arrival = self.arrivals.as_ref().and_then(Arrivals::peek).filter(|&at| at < self.end_ns);
        let order = self.orders.front().map(|(order, _)| order.at_ns);
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let ends = [self.end_ns, self.give_up_ns(), self.drained_ns()];
        let now_ns = self.clock.now_ns();
        [arrival, order, timer, self.next_move_ns(), self.next_group_ns(), Some(self.told_ns + TELL_NS)]
            .into_iter()
            .flatten()
            .chain(ends.into_iter().filter(|&at| at > now_ns))
            .min()
            .unwrap_or(now_ns)
    }

    /// Obeys orders and sends what has arrived, in the order of their times: a new rate holds from its time on,
    /// however late this thread is.
    fn obey_and_arrive(&mut self, now_ns: u64) {
        for _ in 0..TURN_MAX {
            let order_ns = self.orders.front().map_or(u64::MAX, |(order, _)| order.at_ns);
            let limit_ns = order_ns.min(now_ns + 1).min(self.end_ns);
            match self.arrivals.as_mut().and_then(|arrivals| arrivals.take_before(limit_ns)) {
                Some(intended_ns) => self.arrive(intended_ns),
                None if order_ns <= now_ns => {
                    if let Some((order, id)) = self.orders.pop_front() {
                        self.obey(order, id);
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
        let index = match self.setting.config.assignment {
            Assignment::RoundRobin => {
                self.turn = (self.turn + 1) % count;
                self.turn
            }
            Assignment::Random => self.assign.below(count),
        };
        self.dispatch(index as usize, intended_ns, request);
    }

    fn obey(&mut self, order: Order, id: u32) {
        match &order.command {
            Command::Rate(rate) => {
                let share = rate / f64::from(self.setting.config.threads);
                if let Some(arrivals) = &mut self.arrivals {
                    arrivals.set_rate(order.at_ns, share);
                }
            }
            Command::Move { target, pace, count } => {
                let pace = pace.unwrap_or(self.setting.config.pace);
                self.begin_move(id, *target, order.at_ns, pace, *count);
            }
            Command::Relief(word) => self.relief_say(*word),
            Command::Stop => self.end_ns = self.end_ns.min(order.at_ns),
            Command::Mark(_) | Command::Start(_) => {}
        }
        if self.setting.index == 0 {
            self.tell(FromWorker::Obeyed(order));
        }
    }

    fn take_orders(&mut self) {
        let mut counter = [0u8; 8];
        // Nothing to read means that somebody else's wake-up came first.
        let _ = rustix::io::read(&self.setting.wake, &mut counter);
        while let Ok(word) = self.setting.orders.try_recv() {
            if let ToWorker::Order { order, id } = word {
                self.enqueue(order, id);
            }
        }
    }

    fn enqueue(&mut self, order: Order, id: u32) {
        let at = self.orders.partition_point(|(other, _)| other.at_ns <= order.at_ns);
        self.orders.insert(at, (order, id));
    }

    /// From here on, what still waits in the client is over the SLA whatever happens.
    fn give_up_ns(&self) -> u64 {
        self.end_ns.saturating_add(self.sla_ns)
    }

    fn drained_ns(&self) -> u64 {
        let drain = u64::try_from(self.setting.config.drain.as_nanos()).unwrap_or(u64::MAX);
        self.give_up_ns().saturating_add(drain)
    }

    /// After the end: gives up what cannot be in time any more; true when nothing is left to wait for.
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

    fn tell_samples(&mut self, now_ns: u64) {
        self.told_ns = now_ns;
        let room = Vec::with_capacity(self.samples.words.len());
        let samples = std::mem::replace(&mut self.samples, Samples { words: room, ..Samples::default() });
        let (index, helped_now) = (self.setting.index, self.helped_now);
        self.tell(FromWorker::Samples { index, samples, helped_now });
    }

    fn tell(&self, news: FromWorker) {
        // Fails only when nobody listens any more: then nobody wants to know.
        if self.setting.tell.send(news).is_ok() {
            wake(&self.setting.told);
        }
    }

    fn trouble(&mut self, what: impl FnOnce() -> String) {
        if self.troubles < TROUBLES_TOLD_MAX {
            self.troubles += 1;
            let at_ns = self.clock.now_ns();
            self.tell(FromWorker::Trouble { at_ns, what: what() });
        }
    }

    fn decided(&mut self, what: String) {
        self.tell(FromWorker::Decided { at_ns: self.clock.now_ns(), what });
    }

    fn sample(&mut self, at_ns: u64, carrier: Target, outcome: Outcome, value_ns: u64) {
        let value_us = crate::histogram::quantize(value_ns.div_ceil(1000));
        self.samples.words.push(Sample::new(at_ns / self.bin_ns, carrier, outcome, value_us));
    }
}

//! A network thread: an event loop around an epoll set.

mod arrivals;
mod drain;
mod pressure;

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use spillway_client::relief::Move;
use spillway_discovery::Watcher;
use spillway_transport::Time;
use tracing::{debug, info, warn};

use crate::counters::Ending;
use crate::losses::{Losses, NO_HELPER};
use crate::mailbox::{Mailbox, Message};
use crate::memory::{Memory, Supply};
use crate::pair::TurnContext;
use crate::relief::{Member, Relief};
use crate::settings::Settings;
use crate::table::{AwaitingHeader, Closing, Entry, Opening, Side, Table};
use crate::thread_state::ThreadState;
use crate::timers::Timers;

/// Maximum number of bytes that one read or write moves.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Maximum number of events handled in one turn.
const EVENTS_MAX: usize = 256;
/// Interval of the thread's periodic work: log lines, CPU time, long-unread connections.
const TICK: Duration = Duration::from_secs(1);
/// How long a closed connection's session may take to send its end to the server.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Tokens of other descriptors. No slot of the table has these tokens: that would need two billion
/// connections.
const WAKE: u64 = u64::MAX;
const WATCHER: u64 = u64::MAX - 1;
const RELIEF: u64 = u64::MAX - 2;
const LISTENERS: u64 = u64::MAX - 0xffff;

pub(crate) struct WorkerSetup {
    pub settings: Arc<Settings>,
    pub listeners: Vec<Arc<OwnedFd>>,
    pub thread: Arc<ThreadState>,
    pub mailbox: Arc<Mailbox>,
    /// The mailboxes of all threads; the thread with the watcher sends them the list of helpers.
    pub all_mailboxes: Vec<Arc<Mailbox>>,
    pub watcher: Option<Watcher>,
}

pub(crate) struct Worker {
    settings: Arc<Settings>,
    mailbox: Arc<Mailbox>,
    all_mailboxes: Vec<Arc<Mailbox>>,
    watcher: Option<Watcher>,
    epoll: OwnedFd,
    /// Empty once the thread drains.
    listeners: Vec<Arc<OwnedFd>>,
    /// Earliest time at which a rejected load balancer is logged again.
    warn_at: Instant,
    /// When to accept again after the host had no descriptors left; `None` while the thread accepts.
    accept_at: Option<Instant>,
    table: Table,
    timers: Timers,
    /// The table index of each member of the relief group.
    members: HashMap<Member, u32>,
    resources: Resources,
    memory: Memory,
    pressure: pressure::Pressure,
    tick_at: Instant,
    draining: Option<drain::Draining>,
}

impl Worker {
    /// # Errors
    /// The host has no descriptors left.
    pub fn new(start: WorkerSetup) -> io::Result<Worker> {
        let WorkerSetup { settings, listeners, thread, mailbox, all_mailboxes, watcher } = start;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.descriptor(), EventData::new_u64(WAKE), EventFlags::IN)?;
        if let Some(watcher) = &watcher {
            epoll::add(&epoll, watcher, EventData::new_u64(WATCHER), EventFlags::IN)?;
        }
        let epoch = Instant::now();
        let relief = Relief::new(epoch, &settings)?;
        epoll::add(&epoll, &relief, EventData::new_u64(RELIEF), EventFlags::IN)?;
        let share = settings.max_memory / settings.threads as u64;
        let memory = Memory::new(usize::try_from(share).unwrap_or(usize::MAX));
        let mut worker = Worker {
            resources: Resources {
                relief,
                losses: Losses::default(),
                scratch: vec![0; SCRATCH_BYTES],
                epoch,
                server: settings.server,
                thread,
                supply: Supply::Enough,
            },
            settings,
            mailbox,
            all_mailboxes,
            watcher,
            epoll,
            listeners,
            warn_at: epoch,
            accept_at: None,
            table: Table::default(),
            timers: Timers::default(),
            members: HashMap::new(),
            memory,
            pressure: pressure::Pressure::default(),
            tick_at: epoch,
            draining: None,
        };
        // A list of helpers that is known already must be set before the first connection.
        worker.handle_watcher(epoch);
        worker.watch_listeners()?;
        Ok(worker)
    }

    /// Runs until [`Message::End`], or until draining is complete.
    ///
    /// # Errors
    /// `epoll_wait` failed.
    pub fn run(mut self) -> io::Result<()> {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        loop {
            let timeout = self.timeout(Instant::now());
            let (events, _) = match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.resources.thread.counters.turns.add(1);
            for event in events.iter() {
                // The clock is read for each event, because latency is measured with this time.
                let now = Instant::now();
                match event.data.u64() {
                    WAKE => {
                        if self.handle_messages(now) {
                            return Ok(());
                        }
                    }
                    WATCHER => self.handle_watcher(now),
                    RELIEF => self.resources.relief.handle_ready(now),
                    token if token >= LISTENERS => self.accept(now, token - LISTENERS),
                    token => self.handle_ready(now, token, event.flags),
                }
            }
            if self.handle_timeouts(Instant::now()) {
                return Ok(());
            }
            self.apply_relief(Instant::now());
        }
    }

    fn timeout(&self, now: Instant) -> Timespec {
        let drain = self.draining.as_ref().map(|draining| draining.check_at);
        let due_times = [self.timers.next(), self.accept_at, drain, self.resources.relief.poll_timeout()]
            .into_iter()
            .flatten();
        let until = due_times.fold(self.tick_at, Instant::min);
        let left = until.saturating_duration_since(now);
        Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
    }

    /// Handles due timers and the periodic work. Returns whether draining is complete.
    fn handle_timeouts(&mut self, now: Instant) -> bool {
        while let Some((at, token)) = self.timers.pop(now) {
            if let Some((index, _)) = self.table.find(token)
                && *self.table.timer_at(index) == Some(at)
            {
                *self.table.timer_at(index) = None;
                self.handle_timeout(now, index);
            }
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            if let Err(error) = self.watch_listeners() {
                warn!(%error, "cannot accept connections again; trying again in 1 s");
                self.accept_at = Some(now + TICK);
            }
        }
        if self.tick_at <= now {
            self.tick_at = now + TICK;
            self.resources.losses.log(self.resources.relief.helpers());
            self.resources.relief.publish(now, &self.resources.thread);
            self.close_long_unread(now);
            let cpu = spillway_metrics::process::thread_cpu();
            self.resources.thread.counters.cpu_ns.set(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
        }
        self.continue_drain(now)
    }

    /// Handles messages of other threads. Returns whether the thread must end at once.
    fn handle_messages(&mut self, now: Instant) -> bool {
        while let Some(message) = self.mailbox.take() {
            match message {
                Message::Helpers(helpers) => self.resources.relief.set_helpers(now, &helpers),
                Message::Override(new, lasts) => self.resources.relief.set_override(now, new, lasts),
                Message::Wake => {}
                Message::Drain(within) => self.begin_drain(now, within),
                Message::End => {
                    self.close_all(now);
                    return true;
                }
                #[cfg(test)]
                Message::Panic => panic!("injected"),
            }
        }
        false
    }

    /// Logs the watcher's notices, and sends a changed list of helpers to all threads.
    fn handle_watcher(&mut self, now: Instant) {
        let Some(watcher) = &mut self.watcher else { return };
        while let Some(notice) = watcher.poll_notice() {
            match notice.is_problem() {
                true => warn!("{notice}"),
                false => info!("{notice}"),
            }
        }
        if let Some(list) = watcher.poll_list() {
            let helpers: Vec<SocketAddr> = list.iter().map(|entry| entry.link).collect();
            match helpers.is_empty() {
                true => info!("{NO_HELPER}"),
                false => info!(helpers = helpers.len(), "new list of helpers"),
            }
            for mailbox in self.all_mailboxes.iter().filter(|mailbox| !Arc::ptr_eq(mailbox, &self.mailbox)) {
                mailbox.put(Message::Helpers(helpers.clone()));
            }
            self.resources.relief.set_helpers(now, &helpers);
        }
    }

    fn apply_relief(&mut self, now: Instant) {
        self.resources.relief.handle_timeout(now);
        while let Some(order) = self.resources.relief.poll_move() {
            self.apply_move(now, order);
        }
        self.resources.relief.log_decisions(now, &self.resources.thread);
    }

    fn apply_move(&mut self, now: Instant, order: Move) {
        let Some(&index) = self.members.get(&order.member) else { return };
        match self.table.get(index) {
            Entry::Opening(_) => {
                let session = order.open(now);
                self.handle_opened(now, index, session);
            }
            Entry::Open(pair) => {
                // Does not fail: the order has routes. An attempt that fails later is an event of the session.
                if let Err(error) = order.apply(now, &mut pair.session) {
                    warn!(%error, client = %pair.client_text(), "cannot move a connection");
                }
                self.forward(now, index, false);
            }
            _ => {}
        }
    }

    fn handle_ready(&mut self, now: Instant, token: u64, flags: EventFlags) {
        let Some((index, side)) = self.table.find(token) else { return };
        match self.table.get(index) {
            Entry::Free => {}
            Entry::AwaitingHeader(_) => self.receive_header(now, index),
            // Requests and the client's end are read once the session is open.
            Entry::Opening(_) => {}
            Entry::Closing(closing) => {
                closing.session.handle_ready(now);
                self.free_if_closed(now, index);
            }
            Entry::Open(pair) if side == Side::Session => {
                pair.session.handle_ready(now);
                self.forward(now, index, false);
            }
            Entry::Open(_) => {
                let has_hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                self.forward(now, index, has_hung_up || flags.contains(EventFlags::IN));
                if has_hung_up {
                    self.stop_watching(index);
                }
            }
        }
    }

    /// Deregisters a local socket whose client has closed both directions while requests are unread: the epoll set
    /// would report it in every turn.
    fn stop_watching(&mut self, index: u32) {
        if let Entry::Open(pair) = self.table.get(index)
            && pair.watched.take().is_some()
        {
            // Cannot fail, because `watched` is set only while the socket is registered.
            let _ = epoll::delete(&self.epoll, &pair.socket);
        }
    }

    fn handle_timeout(&mut self, now: Instant, index: u32) {
        match self.table.get(index) {
            Entry::Free => {}
            Entry::AwaitingHeader(awaiting) if awaiting.deadline <= now => self.reject_awaiting(index, None),
            Entry::Opening(opening) if opening.deadline <= now => self.abandon_opening(now, index),
            Entry::AwaitingHeader(AwaitingHeader { deadline, .. })
            | Entry::Opening(Opening { deadline, .. }) => {
                let timeout = Some(*deadline);
                self.set_timer(index, timeout);
            }
            Entry::Closing(closing) => {
                closing.session.handle_timeout(now);
                self.free_if_closed(now, index);
            }
            Entry::Open(pair) => {
                pair.session.handle_timeout(now);
                if pair.deadline.is_some_and(|deadline| deadline <= now) {
                    return self.close(now, index, Ending::NoCarrier, false);
                }
                self.forward(now, index, false);
            }
        }
    }

    fn set_timer(&mut self, index: u32, timeout: Option<Instant>) {
        let token = self.table.token(index, Side::Local);
        let armed = *self.table.timer_at(index);
        *self.table.timer_at(index) = self.timers.set(token, armed, timeout);
    }

    /// Forwards one connection's bytes, then updates its registered events, its timer and the counted memory.
    fn forward(&mut self, now: Instant, index: u32, is_readable: bool) {
        let Entry::Open(pair) = self.table.get(index) else { return };
        if let Err(ending) = pair.forward(is_readable, &mut self.resources.context(now)) {
            let is_orderly = matches!(ending, Ending::InOrder | Ending::Client);
            return self.close(now, index, ending, is_orderly);
        }
        let bytes = pair.memory();
        let counted = std::mem::replace(&mut pair.counted_bytes, bytes);
        let (timeout, interest) = (pair.poll_timeout(), pair.interest(self.resources.supply));
        self.memory.record_change(counted, bytes);
        self.update_interest(now, index, interest);
        self.set_timer(index, timeout);
        self.keep_within_memory(now);
    }

    /// Updates the registered events of a local socket, if they have changed.
    fn update_interest(&mut self, now: Instant, index: u32, interest: EventFlags) {
        let data = EventData::new_u64(self.table.token(index, Side::Local));
        let Entry::Open(pair) = self.table.get(index) else { return };
        if pair.watched.is_some_and(|watched| watched != interest) {
            pair.watched = Some(interest);
            if epoll::modify(&self.epoll, &pair.socket, data, interest).is_err() {
                self.close(now, index, Ending::NoCarrier, false);
            }
        }
    }

    /// Closes a local connection: with a FIN if `is_orderly`, otherwise with a reset.
    fn close(&mut self, now: Instant, index: u32, ending: Ending, is_orderly: bool) {
        if !matches!(self.table.get(index), Entry::Open(_)) {
            return;
        }
        let Entry::Open(pair) = std::mem::replace(self.table.get(index), Entry::Free) else { return };
        if let Some(member) = pair.member {
            self.members.remove(&member);
        }
        self.memory.record_change(pair.counted_bytes, 0);
        self.resources.thread.add_connections(-1);
        if !matches!(ending, Ending::InOrder | Ending::Client) {
            debug!(client = %pair.client_text(), ?ending, "local connection closed");
        }
        if ending == Ending::NoCarrier {
            self.note_no_carrier(now);
        }
        match pair.close(ending, is_orderly, &mut self.resources.context(now)) {
            Some(session) => {
                let deadline = now + CLOSING_MAX;
                let closing = Closing { session: Box::new(session), deadline, counted_bytes: 0 };
                *self.table.get(index) = Entry::Closing(closing);
                self.free_if_closed(now, index);
            }
            None => drop(self.table.remove(index)),
        }
        self.update_supply(now);
    }

    fn note_no_carrier(&self, now: Instant) {
        self.resources.thread.carrier_history.note_no_carrier(now, self.settings.server);
    }

    /// Frees the slot of a closing session that has sent its end, or whose deadline has passed.
    fn free_if_closed(&mut self, now: Instant, index: u32) {
        let Entry::Closing(Closing { session, deadline, counted_bytes }) = self.table.get(index) else {
            return;
        };
        let is_closed = session.is_over() || *deadline <= now;
        let timeout = session.poll_timeout().into_iter().chain([*deadline]).min();
        let bytes = if is_closed { 0 } else { session.held_bytes() };
        let counted = std::mem::replace(counted_bytes, bytes);
        self.memory.record_change(counted, bytes);
        if is_closed {
            self.table.remove(index);
        } else {
            self.set_timer(index, timeout);
        }
        self.update_supply(now);
    }
}

struct Resources {
    thread: Arc<ThreadState>,
    relief: Relief,
    losses: Losses,
    scratch: Vec<u8>,
    epoch: Instant,
    server: SocketAddr,
    supply: Supply,
}

impl Resources {
    /// The time from `epoch` to `now`.
    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }

    fn context(&mut self, now: Instant) -> TurnContext<'_> {
        TurnContext {
            now,
            time: self.time(now),
            scratch: &mut self.scratch,
            counters: &self.thread.counters,
            latencies: &self.thread.latencies,
            carrier_history: &self.thread.carrier_history,
            losses: &mut self.losses,
            relief: &mut self.relief,
            epoch: self.epoch,
            server: self.server,
            supply: self.supply,
        }
    }
}

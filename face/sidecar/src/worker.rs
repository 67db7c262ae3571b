//! One network thread: a loop around an epoll set.

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
use crate::pair::Around;
use crate::part::Part;
use crate::relief::{Member, Relief};
use crate::settings::Settings;
use crate::table::{Arriving, Closing, Opening, Place, Table, Which};
use crate::timers::Timers;

/// Bytes moved at a time.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Events of one turn.
const EVENTS: usize = 256;
/// How often counters of the thread itself are brought up to date.
const TICK: Duration = Duration::from_secs(1);
/// How long a server may take to hear that a session is closed.
const CLOSING_MAX: Duration = Duration::from_secs(10);

/// Tokens that are no connection's: no place has this turn and this index together.
const WAKE: u64 = u64::MAX;
const WATCHER: u64 = u64::MAX - 1;
const RELIEF: u64 = u64::MAX - 2;
const LISTENERS: u64 = u64::MAX - 0xffff;

/// What a thread is started with.
pub(crate) struct Start {
    pub settings: Arc<Settings>,
    pub listeners: Vec<Arc<OwnedFd>>,
    pub part: Arc<Part>,
    pub mailbox: Arc<Mailbox>,
    /// Of all threads, for the one that watches the list of helpers.
    pub everybody: Vec<Arc<Mailbox>>,
    pub watcher: Option<Watcher>,
}

pub(crate) struct Worker {
    settings: Arc<Settings>,
    mailbox: Arc<Mailbox>,
    everybody: Vec<Arc<Mailbox>>,
    watcher: Option<Watcher>,
    epoll: OwnedFd,
    /// None any more once it drains.
    listeners: Vec<Arc<OwnedFd>>,
    /// When a client that was refused is told of again.
    warn_at: Instant,
    /// The host has no descriptors: nobody is accepted until then.
    accept_at: Option<Instant>,
    table: Table,
    timers: Timers,
    /// Where members of the group are.
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
    pub fn new(start: Start) -> io::Result<Worker> {
        let Start { settings, listeners, part, mailbox, everybody, watcher } = start;
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
                part,
                supply: Supply::Enough,
            },
            settings,
            mailbox,
            everybody,
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
        // A list that is known from the start counts for the first connection.
        worker.hear_watcher(epoch);
        worker.watch_listeners()?;
        Ok(worker)
    }

    /// Serves until it is told to end, or is drained.
    ///
    /// # Errors
    /// The epoll set fails, which it does not.
    pub fn run(mut self) -> io::Result<()> {
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        loop {
            let timeout = self.timeout(Instant::now());
            let (events, _) = match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
                Ok(events) => events,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.resources.part.counters.turns.add(1);
            for event in events.iter() {
                // Each on its own time: latency is measured.
                let now = Instant::now();
                match event.data.u64() {
                    WAKE => {
                        if self.hear_mailbox(now) {
                            return Ok(());
                        }
                    }
                    WATCHER => self.hear_watcher(now),
                    RELIEF => self.resources.relief.handle_ready(now),
                    token if token >= LISTENERS => self.accept(now, token - LISTENERS),
                    token => self.ready(now, token, event.flags),
                }
            }
            if self.look_after(Instant::now()) {
                return Ok(());
            }
            self.follow_relief(Instant::now());
        }
    }

    fn timeout(&self, now: Instant) -> Timespec {
        let drain = self.draining.as_ref().map(|draining| draining.look_at);
        let wanted = [self.timers.next(), self.accept_at, drain, self.resources.relief.poll_timeout()]
            .into_iter()
            .flatten();
        let until = wanted.fold(self.tick_at, Instant::min);
        let left = until.saturating_duration_since(now);
        Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
    }

    /// What time brings. True when all is over.
    fn look_after(&mut self, now: Instant) -> bool {
        while let Some((at, token)) = self.timers.pop(now) {
            if let Some((index, _)) = self.table.find(token)
                && *self.table.armed(index) == Some(at)
            {
                *self.table.armed(index) = None;
                self.due(now, index);
            }
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            if let Err(error) = self.watch_listeners() {
                warn!(%error, "cannot listen again");
                self.accept_at = Some(now + TICK);
            }
        }
        if self.tick_at <= now {
            self.tick_at = now + TICK;
            self.resources.losses.tell(self.resources.relief.helpers());
            self.resources.relief.show(now, &self.resources.part);
            self.close_long_unread(now);
            let cpu = spillway_metrics::process::thread_cpu();
            self.resources.part.counters.cpu_ns.set(u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX));
        }
        self.is_drained(now)
    }

    /// True when it is to end at once.
    fn hear_mailbox(&mut self, now: Instant) -> bool {
        while let Some(message) = self.mailbox.take() {
            match message {
                Message::Helpers(helpers) => self.resources.relief.set_helpers(now, &helpers),
                Message::Say(word, lasts) => self.resources.relief.say(now, word, lasts),
                Message::Wake => {}
                Message::Drain(within) => self.begin_drain(now, within),
                Message::End => {
                    self.end_all(now);
                    return true;
                }
                #[cfg(test)]
                Message::Panic => panic!("injected"),
            }
        }
        false
    }

    /// The list of helpers has changed, or something about it is to be told.
    fn hear_watcher(&mut self, now: Instant) {
        let Some(watcher) = &mut self.watcher else { return };
        while let Some(notice) = watcher.poll_notice() {
            match notice.is_trouble() {
                true => warn!("{notice}"),
                false => info!("{notice}"),
            }
        }
        if let Some(list) = watcher.poll_list() {
            let helpers: Vec<SocketAddr> = list.iter().map(|entry| entry.link).collect();
            match helpers.is_empty() {
                true => info!("{NO_HELPER}"),
                false => info!(helpers = helpers.len(), "the list of helpers is known"),
            }
            for mailbox in self.everybody.iter().filter(|mailbox| !Arc::ptr_eq(mailbox, &self.mailbox)) {
                mailbox.put(Message::Helpers(helpers.clone()));
            }
            self.resources.relief.set_helpers(now, &helpers);
        }
    }

    /// Does what relief has decided.
    fn follow_relief(&mut self, now: Instant) {
        self.resources.relief.handle_timeout(now);
        while let Some(order) = self.resources.relief.poll_move() {
            self.send(now, order);
        }
        self.resources.relief.tell(now, &self.resources.part);
    }

    /// A connection's session is to be opened somewhere, or to go elsewhere.
    fn send(&mut self, now: Instant, order: Move) {
        let Some(&index) = self.members.get(&order.member) else { return };
        match self.table.get(index) {
            Place::Opening(_) => {
                let session = order.open(now);
                self.opened(now, index, session);
            }
            Place::Taken(pair) => {
                // It has routes, and goes there as soon as it can.
                if let Err(error) = order.apply(now, &mut pair.session) {
                    warn!(%error, client = %pair.client_text(), "a connection cannot be moved");
                }
                self.pump(now, index, false);
            }
            _ => {}
        }
    }

    /// Something is to be done at a descriptor.
    fn ready(&mut self, now: Instant, token: u64, flags: EventFlags) {
        let Some((index, which)) = self.table.find(token) else { return };
        match self.table.get(index) {
            Place::Free => {}
            Place::Arriving(_) => self.arrive(now, index),
            // Nothing is read yet; an end is heard of once something is.
            Place::Opening(_) => {}
            Place::Closing(closing) => {
                closing.session.handle_ready(now);
                self.is_closed(now, index);
            }
            Place::Taken(pair) if which == Which::Session => {
                pair.session.handle_ready(now);
                self.pump(now, index, false);
            }
            Place::Taken(_) => {
                let is_gone = flags.intersects(EventFlags::HUP | EventFlags::ERR);
                self.pump(now, index, is_gone || flags.contains(EventFlags::IN));
                if is_gone {
                    self.stop_watching(index);
                }
            }
        }
    }

    /// The other end of a local connection is gone, and not all its requests could be read: the epoll set would say so
    /// again and again.
    fn stop_watching(&mut self, index: u32) {
        if let Place::Taken(pair) = self.table.get(index)
            && pair.watched.take().is_some()
        {
            // It was there.
            let _ = epoll::delete(&self.epoll, &pair.socket);
        }
    }

    /// A timer is due.
    fn due(&mut self, now: Instant, index: u32) {
        match self.table.get(index) {
            Place::Free => {}
            Place::Arriving(arriving) if arriving.deadline <= now => self.turn_away_arriving(index, None),
            Place::Opening(opening) if opening.deadline <= now => self.give_up(now, index),
            Place::Arriving(Arriving { deadline, .. }) | Place::Opening(Opening { deadline, .. }) => {
                let wanted = Some(*deadline);
                self.set_timer(index, wanted);
            }
            Place::Closing(closing) => {
                closing.session.handle_timeout(now);
                self.is_closed(now, index);
            }
            Place::Taken(pair) => {
                pair.session.handle_timeout(now);
                if pair.deadline.is_some_and(|deadline| deadline <= now) {
                    return self.end(now, index, Ending::NoCarrier, false);
                }
                self.pump(now, index, false);
            }
        }
    }

    fn set_timer(&mut self, index: u32, wanted: Option<Instant>) {
        let token = self.table.token(index, Which::Local);
        let armed = *self.table.armed(index);
        *self.table.armed(index) = self.timers.set(token, armed, wanted);
    }

    /// Moves what one connection has, and watches it for what it needs next.
    fn pump(&mut self, now: Instant, index: u32, is_readable: bool) {
        let Place::Taken(pair) = self.table.get(index) else { return };
        if let Err(ending) = pair.pump(is_readable, &mut self.resources.around(now)) {
            let is_orderly = matches!(ending, Ending::InOrder | Ending::Client);
            return self.end(now, index, ending, is_orderly);
        }
        let bytes = pair.memory();
        let counted = std::mem::replace(&mut pair.counted_bytes, bytes);
        let (wanted, interest) = (pair.poll_timeout(), pair.interest(self.resources.supply));
        self.memory.changed(counted, bytes);
        self.watch(now, index, interest);
        self.set_timer(index, wanted);
        self.keep_within_memory(now);
    }

    /// Has the epoll set wait for the right thing.
    fn watch(&mut self, now: Instant, index: u32, interest: EventFlags) {
        let data = EventData::new_u64(self.table.token(index, Which::Local));
        let Place::Taken(pair) = self.table.get(index) else { return };
        if pair.watched.is_some_and(|watched| watched != interest) {
            pair.watched = Some(interest);
            if epoll::modify(&self.epoll, &pair.socket, data, interest).is_err() {
                self.end(now, index, Ending::NoCarrier, false);
            }
        }
    }

    /// Ends a connection: in order, or by a reset.
    fn end(&mut self, now: Instant, index: u32, ending: Ending, is_orderly: bool) {
        if !matches!(self.table.get(index), Place::Taken(_)) {
            return;
        }
        let Place::Taken(pair) = std::mem::replace(self.table.get(index), Place::Free) else { return };
        if let Some(member) = pair.member {
            self.members.remove(&member);
        }
        self.memory.changed(pair.counted_bytes, 0);
        self.resources.part.count_connection(-1);
        if !matches!(ending, Ending::InOrder | Ending::Client) {
            debug!(client = %pair.client_text(), ?ending, "a local connection was ended");
        }
        if ending == Ending::NoCarrier {
            self.note_no_carrier(now);
        }
        match pair.end(ending, is_orderly, &mut self.resources.around(now)) {
            Some(session) => {
                let deadline = now + CLOSING_MAX;
                let closing = Closing { session: Box::new(session), deadline, counted_bytes: 0 };
                *self.table.get(index) = Place::Closing(closing);
                self.is_closed(now, index);
            }
            None => drop(self.table.remove(index)),
        }
        self.judge_memory(now);
    }

    /// A client was ended because nothing carried it.
    fn note_no_carrier(&self, now: Instant) {
        self.resources.part.seen.note_no_carrier(now, self.settings.server);
    }

    /// Frees the place of a session that has said all, or has had its time.
    fn is_closed(&mut self, now: Instant, index: u32) {
        let Place::Closing(Closing { session, deadline, counted_bytes }) = self.table.get(index) else {
            return;
        };
        let is_closed = session.is_over() || *deadline <= now;
        let wanted = session.poll_timeout().into_iter().chain([*deadline]).min();
        let bytes = if is_closed { 0 } else { session.held_bytes() };
        let counted = std::mem::replace(counted_bytes, bytes);
        self.memory.changed(counted, bytes);
        if is_closed {
            self.table.remove(index);
        } else {
            self.set_timer(index, wanted);
        }
        self.judge_memory(now);
    }
}

/// What the thread has for each of its connections.
struct Resources {
    part: Arc<Part>,
    relief: Relief,
    losses: Losses,
    scratch: Vec<u8>,
    epoch: Instant,
    server: SocketAddr,
    supply: Supply,
}

impl Resources {
    /// The same instant, for what measures.
    fn time(&self, now: Instant) -> Time {
        Time::ZERO + now.saturating_duration_since(self.epoch)
    }

    fn around(&mut self, now: Instant) -> Around<'_> {
        Around {
            now,
            time: self.time(now),
            scratch: &mut self.scratch,
            counters: &self.part.counters,
            latencies: &self.part.latencies,
            seen: &self.part.seen,
            losses: &mut self.losses,
            relief: &mut self.relief,
            epoch: self.epoch,
            server: self.server,
            supply: self.supply,
        }
    }
}

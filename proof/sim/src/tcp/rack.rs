//! A host's stacks: one, or several behind one address. Connections move between the stacks. For the program
//! they are one transport, in which a connection keeps its name when it moves.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_tcp::{Counters, Dropping, Settings, Stack, StackEvent};
use spillway_transport::{Application, Chunk, Conn, Event, Full, Time, Transport};
use spillway_wire::packet::ethernet::Mac;

use super::moves::Moves;
use super::switch::{Ends, Switch, ends_of, set_target_mac};
use crate::rng::Rng;

const DROPS_MAX: usize = 64;

/// A stack with its own clock.
#[derive(Debug)]
pub(super) struct ClockedStack {
    pub(super) stack: Stack,
    /// Lead of the stack's clock over the host's.
    ahead: Duration,
}

impl ClockedStack {
    pub(super) fn time(&self, now: Time) -> Time {
        now + self.ahead
    }
}

#[derive(Debug)]
pub(crate) struct Rack {
    pub(super) stacks: Vec<ClockedStack>,
    /// Stack of each connection and handle there, by the name that the program uses; `names` is the inverse.
    pub(super) places: BTreeMap<Conn, (usize, Conn)>,
    pub(super) names: BTreeMap<(usize, Conn), Conn>,
    pub(super) switch: Switch,
    pub(super) moves: Moves,
    next_name: u32,
    pub(crate) violations: Vec<String>,
}

impl Rack {
    /// The first stack has the host's address. Others that have it, too, also accept new connections.
    pub(crate) fn new(now: Time, settings: Vec<Settings>, moves: Moves, mut rng: Rng) -> Rack {
        let settings_error = "the settings of the plan are valid";
        let is_spread = settings.iter().all(|one| one.addresses == settings[0].addresses);
        let entry = |(index, settings): (usize, Settings)| {
            let ahead =
                Duration::from_nanos(if index == 0 { 0 } else { rng.log_uniform(1, 1_000_000_000_000) });
            let mut stack = Stack::new(now + ahead, settings).expect(settings_error);
            stack.watch_drops(DROPS_MAX);
            ClockedStack { stack, ahead }
        };
        let stacks: Vec<ClockedStack> = settings.into_iter().enumerate().map(entry).collect();
        let switch = Switch::new(stacks.len(), is_spread, rng.fork());
        let (places, names) = (BTreeMap::new(), BTreeMap::new());
        Rack { stacks, places, names, switch, moves, next_name: 0, violations: Vec::new() }
    }

    pub(crate) fn connections(&self) -> usize {
        self.stacks.iter().map(|entry| entry.stack.connections()).sum()
    }

    /// Maximum number of half-open connections of all stacks together.
    pub(crate) fn half_open_max(&self) -> usize {
        self.stacks.iter().map(|entry| entry.stack.settings().half_open_max as usize).sum()
    }

    pub(crate) fn sum(&self, of: fn(&Counters) -> u64) -> u64 {
        self.stacks.iter().map(|entry| of(entry.stack.counters())).sum()
    }

    /// Drops since the last call, by stack.
    pub(crate) fn dropped(&mut self) -> impl Iterator<Item = (usize, Dropping)> {
        let poll = |stack: &mut Stack| stack.poll_dropped();
        let stacks = self.stacks.iter_mut().enumerate();
        stacks.flat_map(move |(index, entry)| {
            std::iter::from_fn(move || poll(&mut entry.stack)).map(move |dropping| (index, dropping))
        })
    }

    pub(crate) fn has(&self, mac: Mac) -> bool {
        self.stacks.iter().any(|entry| entry.stack.settings().mac == mac)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let at = |entry: &ClockedStack| {
            entry.stack.poll_timeout().map(|at| Time(at.0.saturating_sub(entry.ahead.as_nanos() as u64))) // fits: hours
        };
        self.stacks.iter().filter_map(at).min()
    }

    /// As [`spillway_tcp::drive::begin_turn`].
    pub(crate) fn begin_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        if application.poll_timeout().is_some_and(|at| at <= now) {
            application.handle_timeout(now, self);
        }
        self.drain(application, now);
    }

    /// As [`spillway_tcp::drive::deliver`]. Afterwards the frame's connection may move.
    pub(crate) fn deliver<A: Application>(&mut self, application: &mut A, now: Time, frame: &mut [u8]) {
        for index in self.switch.targets(now, frame) {
            let entry = &mut self.stacks[index];
            set_target_mac(frame, entry.stack.settings().mac);
            if let Some(delivery) = entry.stack.handle_frame(entry.time(now), frame) {
                let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
                match self.names.get(&(index, delivery.conn)).copied() {
                    Some(name) => application.handle(now, name, event, self),
                    None => self
                        .violations
                        .push(format!("{:?} received bytes, but was never opened", delivery.conn)),
                }
            }
            self.drain(application, now);
        }
        let ends = ends_of(frame).map(|(source, target)| (target, source));
        self.move_some(application, now, ends);
    }

    /// As [`spillway_tcp::drive::end_turn`].
    pub(crate) fn end_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        for entry in &mut self.stacks {
            let stack_now = entry.time(now);
            if entry.stack.poll_timeout().is_some_and(|at| at <= stack_now) {
                entry.stack.handle_timeout(stack_now);
            }
        }
        self.drain(application, now);
        application.end_of_turn(now, self);
        while self.drain(application, now) {
            application.end_of_turn(now, self);
        }
    }

    /// Sends all frames, one of each stack in turn. After each frame its connection may move.
    pub(crate) fn transmit<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        slot: &mut Vec<u8>,
        mut send: impl FnMut(&mut A, &mut [u8]),
    ) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for index in 0..self.stacks.len() {
                let entry = &mut self.stacks[index];
                slot.resize(entry.stack.frame_bytes_max(), 0);
                let Some(length) = entry.stack.poll_transmit(entry.time(now), slot) else { continue };
                is_quiet = false;
                send(application, &mut slot[..length]);
                self.move_some(application, now, ends_of(&slot[..length]));
            }
        }
    }

    fn move_some<A: Application>(&mut self, application: &mut A, now: Time, ends: Option<Ends>) {
        if self.moves.have_ended() {
            return;
        }
        self.move_after(now, ends);
        self.drain(application, now);
    }

    /// Passes all events of the stacks to the application. Returns whether there was at least one.
    fn drain<A: Application>(&mut self, application: &mut A, now: Time) -> bool {
        let (mut index, mut stacks_without_event, mut has_events) = (0, 0, false);
        while stacks_without_event < self.stacks.len() {
            if let Some((conn, event)) = self.stacks[index].stack.poll_event() {
                (stacks_without_event, has_events) = (0, true);
                self.pass_event(application, now, (index, conn), &event);
            } else {
                (stacks_without_event, index) = (stacks_without_event + 1, (index + 1) % self.stacks.len());
            }
        }
        has_events
    }

    fn pass_event<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        place: (usize, Conn),
        event: &StackEvent,
    ) {
        if let StackEvent::Opened { peer, listener: Some(_) } = event {
            let local = self.stacks[place.0].stack.local_address(place.1);
            self.add_connection(place, local.map(|local| (local, *peer)));
        }
        let Some(name) = self.names.get(&place).copied() else {
            return self.violations.push(format!("{event:?} of {:?}, which was never opened", place.1));
        };
        let event = match event {
            StackEvent::Opened { peer, listener } => Event::Opened { peer: *peer, listener: *listener },
            StackEvent::Data { end, bytes } => Event::Data { end: *end, bytes },
            StackEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            StackEvent::Room => Event::Room,
            StackEvent::Finished => Event::Finished,
            StackEvent::Lost(reason) => {
                self.forget(name);
                Event::Lost(*reason)
            }
        };
        application.handle(now, name, event, self);
    }

    /// Gives a new connection a name and a place.
    fn add_connection(&mut self, place: (usize, Conn), ends: Option<Ends>) -> Conn {
        let name = Conn { slot: self.next_name, generation: 0 };
        self.next_name += 1;
        self.places.insert(name, place);
        self.names.insert(place, name);
        match ends {
            Some(ends) => self.switch.add(ends, place.0, name),
            None => self.violations.push(format!("{name:?} has no address")),
        }
        name
    }

    fn forget(&mut self, name: Conn) {
        if let Some(place) = self.places.remove(&name) {
            self.names.remove(&place);
            self.switch.forget(name);
        }
    }

    fn stack_of(&mut self, name: Conn) -> Option<(&mut Stack, Conn)> {
        let (index, conn) = *self.places.get(&name)?;
        Some((&mut self.stacks[index].stack, conn))
    }
}

impl Transport for Rack {
    /// Only the first stack opens connections, because stacks that share an address would need separate ports.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        let entry = &mut self.stacks[0];
        let conn = entry.stack.connect(entry.time(now), target)?;
        let local = entry.stack.local_address(conn);
        Ok(self.add_connection((0, conn), local.map(|local| (local, target))))
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        for entry in &mut self.stacks {
            entry.stack.set_listening(listener, open);
        }
    }

    fn room(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.stacks[*index].stack.room(*conn))
    }

    fn send(&mut self, name: Conn, bytes: &[u8]) -> usize {
        self.stack_of(name).map_or(0, |(stack, conn)| stack.send(conn, bytes))
    }

    fn want_room(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.want_room(conn);
        }
    }

    fn send_chunk(&mut self, name: Conn, chunk: Chunk) -> Result<(), Chunk> {
        match self.stack_of(name) {
            Some((stack, conn)) => stack.send_chunk(conn, chunk),
            None => Err(chunk),
        }
    }

    fn take_recycled_chunk(&mut self) -> Option<Chunk> {
        self.stacks.iter_mut().find_map(|entry| entry.stack.take_recycled_chunk())
    }

    fn queued(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.stacks[*index].stack.queued(*conn))
    }

    fn held(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.stacks[*index].stack.held(*conn))
    }

    fn held_by_all(&self) -> usize {
        self.stacks.iter().map(|entry| entry.stack.held_by_all()).sum()
    }

    fn grant(&mut self, name: Conn, bytes: u32) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.grant(conn, bytes);
        }
    }

    fn release(&mut self, name: Conn, through: u64) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.release(conn, through);
        }
    }

    fn watch_acknowledged(&mut self, name: Conn, on: bool) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.watch_acknowledged(conn, on);
        }
    }

    fn finish(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.finish(conn);
        }
    }

    fn abort(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.stack_of(name) {
            stack.abort(conn);
        }
        self.forget(name);
    }
}

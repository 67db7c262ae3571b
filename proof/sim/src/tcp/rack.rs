//! A host's stacks: one, or several behind one address, between which connections move. To the program all of them are
//! one transport, in which a connection keeps its name wherever it is.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_tcp::{Counters, Dropping, Settings, Stack, StackEvent};
use spillway_transport::{Application, Chunk, Conn, Event, Full, Time, Transport};
use spillway_wire::packet::ethernet::Mac;

use super::moves::Moves;
use super::switch::{Ends, Switch, aim, ends_of};
use crate::rng::Rng;

/// What one stack drops in one turn is told of, at most.
const DROPS_MAX: usize = 64;

/// A machine with a stack of its own, and a clock.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) stack: Stack,
    /// Of the host's clock: it was started so much earlier.
    ahead: Duration,
}

impl Seat {
    pub(super) fn time(&self, now: Time) -> Time {
        now + self.ahead
    }
}

/// A host's stacks, and the switch before them.
#[derive(Debug)]
pub(crate) struct Rack {
    pub(super) seats: Vec<Seat>,
    /// By the name that the program knows.
    pub(super) places: BTreeMap<Conn, (usize, Conn)>,
    pub(super) names: BTreeMap<(usize, Conn), Conn>,
    pub(super) switch: Switch,
    pub(super) moves: Moves,
    next_name: u32,
    /// What was wrong with it.
    pub(crate) faults: Vec<String>,
}

impl Rack {
    /// The first of the stacks has the address; others that have it as well take new connections, too.
    pub(crate) fn new(now: Time, settings: Vec<Settings>, moves: Moves, mut rng: Rng) -> Rack {
        let settings_error = "the plan keeps to the limits of settings";
        let is_spread = settings.iter().all(|one| one.address == settings[0].address);
        let seat = |(index, settings): (usize, Settings)| {
            let ahead = Duration::from_nanos(if index == 0 { 0 } else { rng.scale(1, 1_000_000_000_000) });
            let mut stack = Stack::new(now + ahead, settings).expect(settings_error);
            stack.watch_drops(DROPS_MAX);
            Seat { stack, ahead }
        };
        let seats: Vec<Seat> = settings.into_iter().enumerate().map(seat).collect();
        let switch = Switch::new(seats.len(), is_spread, rng.fork());
        let (places, names) = (BTreeMap::new(), BTreeMap::new());
        Rack { seats, places, names, switch, moves, next_name: 0, faults: Vec::new() }
    }

    /// All of them.
    pub(crate) fn connections(&self) -> usize {
        self.seats.iter().map(|seat| seat.stack.connections()).sum()
    }

    /// As many may be half-open.
    pub(crate) fn half_open_max(&self) -> usize {
        self.seats.iter().map(|seat| seat.stack.settings().half_open_max as usize).sum()
    }

    /// Of all of them.
    pub(crate) fn sum(&self, of: fn(&Counters) -> u64) -> u64 {
        self.seats.iter().map(|seat| of(seat.stack.counters())).sum()
    }

    /// What the stacks have dropped since the last time, by stack.
    pub(crate) fn dropped(&mut self) -> impl Iterator<Item = (usize, Dropping)> {
        let poll = |stack: &mut Stack| stack.poll_dropped();
        let seats = self.seats.iter_mut().enumerate();
        seats.flat_map(move |(index, seat)| {
            std::iter::from_fn(move || poll(&mut seat.stack)).map(move |dropping| (index, dropping))
        })
    }

    /// Whether frames for this card come here.
    pub(crate) fn has(&self, mac: Mac) -> bool {
        self.seats.iter().any(|seat| seat.stack.settings().mac == mac)
    }

    /// When a stack wants a turn.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let at = |seat: &Seat| {
            seat.stack.poll_timeout().map(|at| Time(at.0.saturating_sub(seat.ahead.as_nanos() as u64))) // hours
        };
        self.seats.iter().filter_map(at).min()
    }

    /// As [`spillway_tcp::drive::begin_turn`].
    pub(crate) fn begin_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        if application.poll_timeout().is_some_and(|at| at <= now) {
            application.handle_timeout(now, self);
        }
        self.drain(application, now);
    }

    /// As [`spillway_tcp::drive::deliver`]. What the frame was of may move then.
    pub(crate) fn deliver<A: Application>(&mut self, application: &mut A, now: Time, frame: &mut [u8]) {
        for index in self.switch.targets(now, frame) {
            let seat = &mut self.seats[index];
            aim(frame, seat.stack.settings().mac);
            if let Some(delivery) = seat.stack.handle_frame(seat.time(now), frame) {
                let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
                match self.names.get(&(index, delivery.conn)).copied() {
                    Some(name) => application.handle(now, name, event, self),
                    None => self.faults.push(format!("{:?} has bytes and was never opened", delivery.conn)),
                }
            }
            self.drain(application, now);
        }
        let ends = ends_of(frame).map(|(source, target)| (target, source));
        self.move_some(application, now, ends);
    }

    /// As [`spillway_tcp::drive::end_turn`].
    pub(crate) fn end_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        for seat in &mut self.seats {
            let here = seat.time(now);
            if seat.stack.poll_timeout().is_some_and(|at| at <= here) {
                seat.stack.handle_timeout(here);
            }
        }
        self.drain(application, now);
        application.end_of_turn(now, self);
        while self.drain(application, now) {
            application.end_of_turn(now, self);
        }
    }

    /// Frames go out, one of each stack in turn. What a frame was of may move then.
    pub(crate) fn transmit<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        slot: &mut Vec<u8>,
        mut sends: impl FnMut(&mut A, &mut [u8]),
    ) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for index in 0..self.seats.len() {
                let seat = &mut self.seats[index];
                slot.resize(seat.stack.frame_bytes_max(), 0);
                let Some(length) = seat.stack.poll_transmit(seat.time(now), slot) else { continue };
                is_quiet = false;
                sends(application, &mut slot[..length]);
                self.move_some(application, now, ends_of(&slot[..length]));
            }
        }
    }

    fn move_some<A: Application>(&mut self, application: &mut A, now: Time, ends: Option<Ends>) {
        if self.moves.are_none() {
            return;
        }
        self.move_after(now, ends);
        self.drain(application, now);
    }

    /// Tells what the stacks have to tell. Whether there was anything.
    fn drain<A: Application>(&mut self, application: &mut A, now: Time) -> bool {
        let (mut index, mut quiet, mut is_any) = (0, 0, false);
        while quiet < self.seats.len() {
            if let Some((conn, event)) = self.seats[index].stack.poll_event() {
                (quiet, is_any) = (0, true);
                self.tell(application, now, (index, conn), &event);
            } else {
                (quiet, index) = (quiet + 1, (index + 1) % self.seats.len());
            }
        }
        is_any
    }

    fn tell<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        place: (usize, Conn),
        event: &StackEvent,
    ) {
        if let StackEvent::Opened { peer, listener: Some(_) } = event {
            let local = self.seats[place.0].stack.local_address(place.1);
            self.settle(place, local.map(|local| (local, *peer)));
        }
        let Some(name) = self.names.get(&place).copied() else {
            return self.faults.push(format!("{event:?} of {:?}, which was never opened", place.1));
        };
        let told = match event {
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
        application.handle(now, name, told, self);
    }

    /// A connection begins: it has a name and a place from now on.
    fn settle(&mut self, place: (usize, Conn), ends: Option<Ends>) -> Conn {
        let name = Conn { slot: self.next_name, generation: 0 };
        self.next_name += 1;
        self.places.insert(name, place);
        self.names.insert(place, name);
        match ends {
            Some(ends) => self.switch.add(ends, place.0, name),
            None => self.faults.push(format!("{name:?} has no address")),
        }
        name
    }

    fn forget(&mut self, name: Conn) {
        if let Some(place) = self.places.remove(&name) {
            self.names.remove(&place);
            self.switch.forget(name);
        }
    }

    fn at(&mut self, name: Conn) -> Option<(&mut Stack, Conn)> {
        let (index, conn) = *self.places.get(&name)?;
        Some((&mut self.seats[index].stack, conn))
    }
}

impl Transport for Rack {
    /// Only the first begins connections: two that share an address would have to agree on ports.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full> {
        let seat = &mut self.seats[0];
        let conn = seat.stack.connect(seat.time(now), target)?;
        let local = seat.stack.local_address(conn);
        Ok(self.settle((0, conn), local.map(|local| (local, target))))
    }

    fn set_listening(&mut self, listener: u16, open: bool) {
        for seat in &mut self.seats {
            seat.stack.set_listening(listener, open);
        }
    }

    fn room(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.seats[*index].stack.room(*conn))
    }

    fn send(&mut self, name: Conn, bytes: &[u8]) -> usize {
        self.at(name).map_or(0, |(stack, conn)| stack.send(conn, bytes))
    }

    fn want_room(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.at(name) {
            stack.want_room(conn);
        }
    }

    fn send_chunk(&mut self, name: Conn, chunk: Chunk) -> Result<(), Chunk> {
        match self.at(name) {
            Some((stack, conn)) => stack.send_chunk(conn, chunk),
            None => Err(chunk),
        }
    }

    fn spent_chunk(&mut self) -> Option<Chunk> {
        self.seats.iter_mut().find_map(|seat| seat.stack.spent_chunk())
    }

    fn queued(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.seats[*index].stack.queued(*conn))
    }

    fn held(&self, name: Conn) -> usize {
        self.places.get(&name).map_or(0, |(index, conn)| self.seats[*index].stack.held(*conn))
    }

    fn held_by_all(&self) -> usize {
        self.seats.iter().map(|seat| seat.stack.held_by_all()).sum()
    }

    fn grant(&mut self, name: Conn, bytes: u32) {
        if let Some((stack, conn)) = self.at(name) {
            stack.grant(conn, bytes);
        }
    }

    fn release(&mut self, name: Conn, through: u64) {
        if let Some((stack, conn)) = self.at(name) {
            stack.release(conn, through);
        }
    }

    fn watch_acknowledged(&mut self, name: Conn, on: bool) {
        if let Some((stack, conn)) = self.at(name) {
            stack.watch_acknowledged(conn, on);
        }
    }

    fn finish(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.at(name) {
            stack.finish(conn);
        }
    }

    fn abort(&mut self, name: Conn) {
        if let Some((stack, conn)) = self.at(name) {
            stack.abort(conn);
        }
        self.forget(name);
    }
}

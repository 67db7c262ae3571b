//! What both ends of a link have in common: the table of virtual connections, what comes in, what goes out.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::{Chunk, Time};
use spillway_wire::session::Acknowledge;
use spillway_wire::{CloseReason, Control, HEADER_BYTES, Header, Id, Kind};

use crate::batching::Batching;
use crate::connection::Connection;
use crate::error::ConsumedTooMuch;
use crate::id_table::IdTable;
use crate::limits::LinkCounters;
use crate::receiving::Receiving;
use crate::run::{Front, Taken, front};

/// What to do with something that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// The application hears of it.
    Deliver,
    /// The session hears of it that the connection carries.
    Carry,
    /// Nobody is interested any more.
    PassOver,
    /// The peer broke a rule: the application hears that the connection is closed.
    Broken(CloseReason),
}

#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) batching: Batching,
    pub(crate) receiving: Receiving,
    connections: IdTable<Connection>,
    /// Connections that were told of no room because too much waits for transmission.
    blocked: Vec<Id>,
    /// Connections that have room again and have not been told.
    room: VecDeque<Id>,
    /// Connections whose helpers are to be told what was taken, each once.
    owed: Vec<Id>,
    messages_received: u64,
    bytes_received: u64,
    strays: u64,
    stalls: u64,
}

impl Ends {
    pub(crate) fn new(batching: Batching) -> Ends {
        Ends {
            batching,
            receiving: Receiving::default(),
            connections: IdTable::new(),
            blocked: Vec::new(),
            room: VecDeque::new(),
            owed: Vec::new(),
            messages_received: 0,
            bytes_received: 0,
            strays: 0,
            stalls: 0,
        }
    }

    /// Bytes of memory that buffers take: what waits to be taken, and what has come of an incomplete record.
    pub(crate) fn held(&self) -> usize {
        self.batching.held() + self.receiving.held()
    }

    /// What the link has done.
    pub(crate) fn counters(&self) -> LinkCounters {
        self.batching.count_in(LinkCounters {
            messages_received: self.messages_received,
            bytes_received: self.bytes_received,
            strays: self.strays,
            stalls: self.stalls,
            ..LinkCounters::default()
        })
    }

    /// How many connections have not ended.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Connection> {
        self.connections.get(id)
    }

    pub(crate) fn is_carrier(&self, id: Id) -> bool {
        self.get(id).is_some_and(Connection::is_carrier)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Connection> {
        self.connections.get_mut(id)
    }

    /// The caller has checked that `id` is in range and free.
    pub(crate) fn insert(&mut self, id: Id, connection: Connection) {
        let before = self.connections.insert(id, connection);
        self.batching.opened(id);
        debug_assert!(before.is_none(), "{id} is free");
    }

    pub(crate) fn remove(&mut self, id: Id) {
        self.connections.remove(id);
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.connections.iter().map(|(id, _)| id)
    }

    // What goes out.

    pub(crate) fn compose(&mut self, id: Id, bytes: &[u8]) -> usize {
        let free = self.batching.free();
        let Some(connection) = self.connections.get_mut(id) else {
            return 0;
        };
        if !connection.may_send() {
            return 0;
        }
        let credit = connection.outgoing.credit();
        let taken = bytes.len().min(credit).min(free);
        if taken < bytes.len() {
            self.stalls += 1;
            connection.outgoing.want_room();
            if taken < credit && connection.outgoing.block() {
                self.blocked.push(id);
            }
        }
        if taken > 0 {
            connection.outgoing.sent(&bytes[..taken]);
            self.batching.data(id, &bytes[..taken]);
        }
        taken
    }

    pub(crate) fn room(&self, id: Id) -> usize {
        let free = self.batching.free();
        match self.get(id) {
            Some(connection) if connection.may_send() => connection.outgoing.credit().min(free),
            _ => 0,
        }
    }

    #[must_use]
    pub(crate) fn poll_room(&mut self) -> Option<Id> {
        while let Some(id) = self.room.pop_front() {
            let room = self.room(id);
            let Some(connection) = self.get_mut(id) else { continue };
            if !connection.outgoing.wants_room() {
                continue;
            }
            if room > 0 {
                connection.outgoing.told_of_room();
                return Some(id);
            }
            // Credit came while too much waits for transmission: the next batch taken is the moment.
            if connection.outgoing.credit() > 0 && connection.outgoing.block() {
                self.blocked.push(id);
            }
        }
        None
    }

    /// Somebody is still to be named by `poll_room`, unless there is no room any more.
    pub(crate) fn has_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// `poll_room` is to name the connection when its credit rises.
    pub(crate) fn want_room(&mut self, id: Id) {
        if let Some(connection) = self.get_mut(id) {
            connection.outgoing.want_room();
        }
    }

    pub(crate) fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        let Some(connection) = self.get_mut(id) else { return Ok(()) };
        if let Some(limit) = connection.incoming.consume(bytes)?
            && connection.is_open()
        {
            self.batching.control(id, Control::Credit(limit));
        }
        Ok(())
    }

    /// The same of bytes that may be another connection's, which had the id before: no more than were received.
    pub(crate) fn consumed_at_most(&mut self, id: Id, bytes: usize) {
        if let Some(connection) = self.get(id) {
            let most = usize::try_from(connection.incoming.unconsumed()).unwrap_or(usize::MAX);
            let outcome = self.consumed(id, bytes.min(most));
            debug_assert_eq!(outcome, Ok(()), "at most what was received");
        }
    }

    pub(crate) fn finish(&mut self, id: Id) {
        let Some(connection) = self.get_mut(id) else { return };
        if !connection.may_send() {
            return;
        }
        let offset = connection.outgoing.finish();
        self.batching.control(id, Control::Finish(offset));
    }

    /// Whether the connection is over, and its id free, with this.
    pub(crate) fn close(&mut self, id: Id, reason: CloseReason) -> bool {
        let Some(connection) = self.get_mut(id) else { return false };
        let Some(closed) = connection.close(reason) else { return false };
        self.batching.control(id, Control::Close(closed.reason));
        if closed.is_over {
            self.remove(id);
        }
        closed.is_over
    }

    /// A batch, if one is due by the policy.
    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        let batch = self.batching.poll_transmit(now, self.receiving.records())?;
        self.unblock();
        Some(batch)
    }

    /// A batch of whatever there is.
    pub(crate) fn flush(&mut self, now: Time) -> Option<Chunk> {
        let batch = self.batching.flush(now, self.receiving.records())?;
        self.unblock();
        Some(batch)
    }

    fn unblock(&mut self) {
        for id in core::mem::take(&mut self.blocked) {
            if let Some(connection) = self.get_mut(id) {
                connection.outgoing.unblock();
                self.room.push_back(id);
            }
        }
    }

    // What comes in.

    /// Counts data of a connection that this end only passes on.
    pub(crate) fn relayed(&mut self, bytes: usize, last: bool) {
        self.messages_received += u64::from(last);
        self.bytes_received += bytes as u64;
    }

    /// Counts a frame that belongs to nobody.
    pub(crate) fn stray(&mut self) {
        self.strays += 1;
    }

    pub(crate) fn incoming_data(&mut self, id: Id, bytes: usize, last: bool) -> Incoming {
        let Some(connection) = self.connections.get_mut(id) else {
            self.strays += 1;
            return Incoming::PassOver;
        };
        if !connection.is_open() {
            return Incoming::PassOver;
        }
        if let Err(reason) = connection.incoming.receive(bytes) {
            return break_rule(connection, reason);
        }
        let is_carrier = connection.is_carrier();
        self.relayed(bytes, last);
        if is_carrier { Incoming::Carry } else { Incoming::Deliver }
    }

    pub(crate) fn incoming_credit(&mut self, id: Id, limit: u64) {
        let Some(connection) = self.get_mut(id) else {
            self.strays += 1;
            return;
        };
        if connection.outgoing.raise_limit(limit) {
            self.room.push_back(id);
        }
    }

    /// The client's TCP has acknowledged replies to its helper. The first word of that begins their keeping.
    pub(crate) fn incoming_acknowledge(&mut self, id: Id, through: u64, bytes_max: usize) -> Incoming {
        let Some(connection) = self.connections.get_mut(id) else {
            self.strays += 1;
            return Incoming::PassOver;
        };
        if bytes_max == 0 || !connection.hears_acknowledgements() {
            return Incoming::PassOver;
        }
        connection.outgoing.keep(bytes_max);
        if connection.outgoing.acknowledged(through).is_err() {
            return break_rule(connection, CloseReason::Protocol);
        }
        if connection.outgoing.wants_room() {
            self.room.push_back(id);
        }
        Incoming::PassOver
    }

    pub(crate) fn incoming_finish(&mut self, id: Id, offset: u64) -> Incoming {
        let Some(connection) = self.get_mut(id) else {
            self.strays += 1;
            return Incoming::PassOver;
        };
        if !connection.is_open() || connection.incoming.is_finished() {
            return Incoming::PassOver;
        }
        match connection.incoming.finish(offset) {
            Ok(()) => Incoming::Deliver,
            Err(reason) => break_rule(connection, reason),
        }
    }

    /// Something came that has no place on a connection of this sort.
    pub(crate) fn incoming_nonsense(&mut self, id: Id) -> Incoming {
        match self.get_mut(id) {
            None => {
                self.strays += 1;
                Incoming::PassOver
            }
            Some(connection) if connection.is_open() => break_rule(connection, CloseReason::Protocol),
            Some(_) => Incoming::PassOver,
        }
    }

    /// The peer closed. `Deliver`: the application must hear of it and close too.
    pub(crate) fn incoming_close(&mut self, id: Id) -> Incoming {
        let Some(connection) = self.get_mut(id) else {
            self.strays += 1;
            return Incoming::PassOver;
        };
        let closed = connection.closed_there();
        if closed.is_over {
            self.remove(id);
        }
        if closed.was_open { Incoming::Deliver } else { Incoming::PassOver }
    }

    /// Takes the data frames at the front of `input` that the application may have as they are. Between frames only.
    pub(crate) fn incoming_run<'a>(&mut self, input: &mut &'a [u8]) -> Taken<'a> {
        let mut length = 0;
        let found = loop {
            match front(&input[length..]) {
                Front::Frame { header, payload } => {
                    let is_idle = length == 0 && payload.is_empty() && header.id != Id::LINK;
                    if self.take_frame(&header) {
                        length += HEADER_BYTES + payload.len();
                    } else if is_idle {
                        // It carries nothing, to nobody.
                        *input = &input[HEADER_BYTES..];
                    } else {
                        break Taken::Apart;
                    }
                }
                Front::Other => break Taken::Apart,
                Front::Cut => break Taken::Cut,
            }
        };
        let (run, rest) = input.split_at(length);
        *input = rest;
        if run.is_empty() { found } else { Taken::Run(run) }
    }

    /// Counts this frame as received, if the application may have it as it is.
    fn take_frame(&mut self, header: &Header) -> bool {
        let bytes = usize::from(header.length);
        let Some(connection) = self.get_mut(header.id) else { return false };
        let may = header.kind == Kind::Request
            && connection.is_open()
            && !connection.is_carrier()
            && connection.incoming.receive(bytes).is_ok();
        if may && bytes > 0 {
            self.relayed(bytes, !header.more);
            self.owe(header.id);
        }
        may
    }

    // What a server has taken.

    /// Something of this connection was taken.
    pub(crate) fn owe(&mut self, id: Id) {
        if self.get_mut(id).is_some_and(|connection| connection.incoming.owe()) {
            self.owed.push(id);
        }
    }

    /// Tells all that is owed.
    pub(crate) fn tell_owed(&mut self) {
        while let Some(id) = self.owed.pop() {
            let Some(connection) = self.get_mut(id) else { continue };
            let is_open = connection.is_open();
            if let Some(told) = connection.incoming.pay()
                && is_open
            {
                self.batching.control(id, Control::Acknowledge(told));
            }
        }
    }

    /// What a server says that it has taken. `None`: it cannot have.
    pub(crate) fn incoming_taken(&self, id: Id, told: Acknowledge) -> Option<u64> {
        self.get(id)?.outgoing.can_be_taken(told).then_some(told.received)
    }
}

fn break_rule(connection: &mut Connection, reason: CloseReason) -> Incoming {
    connection.break_off(reason);
    Incoming::Broken(reason)
}

//! What both ends of a link have in common: the table of virtual connections, what comes in, what goes out.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::{Chunk, Time};
use spillway_wire::preamble::Role;
use spillway_wire::{CloseReason, Control, Disassembler, Id, Kind};

use crate::assembler::Assembler;
use crate::connection::{Connection, Outgoing};
use crate::error::ConsumedTooMuch;
use crate::histogram::Batches;
use crate::id_table::IdTable;
use crate::kept::Kept;
use crate::policy::{Gathered, Policy, Sent};
use crate::records::Records;
use crate::round_trips::RoundTrips;
use crate::taken::Owed;

/// Bytes of control messages that may wait for transmission before a link is to be read no more: a peer that causes
/// answers and does not read them waits, and nobody else.
pub const CONTROL_BYTES_MAX: usize = 64 * 1024;

/// Virtual connections on the link of a client.
pub const CLIENT_CONNECTIONS_MAX: u32 = 16;

/// Bounds of one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of each connection that may be received and not yet consumed.
    pub window_bytes: u32,
    /// Bytes that may wait for transmission before `compose` takes no more. Control messages come on top: see
    /// [`CONTROL_BYTES_MAX`].
    pub pending_bytes_max: usize,
    /// Virtual connections on one link of a helper. A client's link has [`CLIENT_CONNECTIONS_MAX`] at most.
    pub connections_max: u32,
    /// At a server's end: replies of each plain connection that may wait for the client's own TCP to acknowledge them,
    /// where the helper tells of that. 0: they are not kept.
    pub kept_bytes_max: usize,
    /// How long the peer may take to authenticate.
    pub handshake_timeout: Duration,
}

impl Limits {
    /// Virtual connections on a link of a peer of this role.
    pub(crate) fn connections_max_of(&self, role: Role) -> u32 {
        connections_max_of(role, self.connections_max)
    }
}

/// A client opens one virtual connection after the other: a helper has many clients, a client is one.
pub(crate) fn connections_max_of(role: Role, helpers_max: u32) -> u32 {
    match role {
        Role::Helper => helpers_max,
        Role::Client => helpers_max.min(CLIENT_CONNECTIONS_MAX),
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window_bytes: 256 * 1024,
            pending_bytes_max: 4 * 1024 * 1024,
            connections_max: 65_536,
            kept_bytes_max: 256 * 1024,
            handshake_timeout: Duration::from_secs(5),
        }
    }
}

/// What one end of a link has done since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Batches sent.
    pub batches_sent: u64,
    /// Data messages sent.
    pub messages_sent: u64,
    /// Bytes sent, headers and control included.
    pub bytes_sent: u64,
    /// Data messages received.
    pub messages_received: u64,
    /// Bytes of data received.
    pub bytes_received: u64,
    /// Frames of connections that we do not know (any more), passed over.
    pub strays: u64,
    /// How often `compose` took less than it was given.
    pub stalls: u64,
}

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
    kind_out: Kind,
    pub(crate) connections: IdTable<Connection>,
    pub(crate) assembler: Assembler,
    /// Where the link is encrypted.
    pub(crate) records: Option<Box<Records>>,
    pub(crate) disassembler: Disassembler,
    policy: Box<dyn Policy>,
    /// Set by the first batch.
    last_batch: Option<Time>,
    pending_bytes_max: usize,
    /// Connections that were told of no room because too much waits for transmission.
    blocked: Vec<Id>,
    /// Connections that have room again and have not been told.
    room: VecDeque<Id>,
    /// Connections whose helpers are to be told what was taken.
    pub(crate) owed: Owed,
    pub(crate) counters: LinkCounters,
    /// Only where somebody reads them: a server has as many ends as library clients.
    pub(crate) batches: Option<Box<Batches>>,
    /// When what is gathered was first seen waiting.
    waiting_since: Option<Time>,
    /// At a link's opening end.
    round_trips: RoundTrips,
}

impl Ends {
    pub(crate) fn new(kind_out: Kind, policy: Box<dyn Policy>, pending_bytes_max: usize) -> Ends {
        Ends {
            kind_out,
            connections: IdTable::new(),
            assembler: Assembler::new(),
            records: None,
            disassembler: Disassembler::new(),
            policy,
            last_batch: None,
            pending_bytes_max,
            blocked: Vec::new(),
            room: VecDeque::new(),
            owed: Owed::default(),
            counters: LinkCounters::default(),
            batches: None,
            waiting_since: None,
            round_trips: RoundTrips::default(),
        }
    }

    /// Bytes of memory that buffers take: what waits to be taken, and what has come of an incomplete record.
    pub(crate) fn held(&self) -> usize {
        self.assembler.held() + self.records.as_ref().map_or(0, |records| records.held())
    }

    /// Another policy from now on; what the one before has learned is forgotten.
    pub(crate) fn set_policy(&mut self, policy: Box<dyn Policy>) {
        self.policy = policy;
    }

    pub(crate) fn get(&self, id: Id) -> Option<&Connection> {
        self.connections.get(id)
    }

    pub(crate) fn is_carrier(&self, id: Id) -> bool {
        self.get(id).is_some_and(|connection| connection.is_carrier)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut Connection> {
        self.connections.get_mut(id)
    }

    /// The caller has checked that `id` is in range and free.
    pub(crate) fn insert(&mut self, id: Id, connection: Connection) {
        let before = self.connections.insert(id, connection);
        self.round_trips.opened(id);
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
        let pending = self.assembler.len();
        let Some(connection) = self.connections.get_mut(id) else {
            return 0;
        };
        if !connection.is_open() || connection.outgoing.finished {
            return 0;
        }
        let credit = connection.outgoing.credit();
        let taken = bytes.len().min(credit).min(self.pending_bytes_max.saturating_sub(pending));
        if taken < bytes.len() {
            self.counters.stalls += 1;
            connection.outgoing.wants_room = true;
            if taken < credit && !connection.outgoing.blocked {
                connection.outgoing.blocked = true;
                self.blocked.push(id);
            }
        }
        if taken > 0 {
            connection.outgoing.sent(&bytes[..taken]);
            let before = self.assembler.messages();
            self.assembler.data(self.kind_out, id, &bytes[..taken]);
            self.asked(id, before);
        }
        taken
    }

    /// A frame of a connection whose frames somebody else makes.
    pub(crate) fn relay(&mut self, id: Id, bytes: &[u8], last: bool) {
        let before = self.assembler.messages();
        self.assembler.frame(self.kind_out, id, bytes, !last);
        self.asked(id, before);
    }

    /// There may be one message more than before.
    fn asked(&mut self, id: Id, messages_before: u64) {
        if self.kind_out != Kind::Request {
            return;
        }
        self.round_trips.asked(id, self.assembler.messages() - messages_before);
    }

    pub(crate) fn room(&self, id: Id) -> usize {
        let free = self.pending_bytes_max.saturating_sub(self.assembler.len());
        match self.get(id) {
            Some(connection) if connection.is_open() && !connection.outgoing.finished => {
                connection.outgoing.credit().min(free)
            }
            _ => 0,
        }
    }

    /// As much waits for transmission as may.
    pub(crate) fn is_full(&self) -> bool {
        self.assembler.len() >= self.pending_bytes_max
    }

    #[must_use]
    pub(crate) fn poll_room(&mut self) -> Option<Id> {
        while let Some(id) = self.room.pop_front() {
            let room = self.room(id);
            let Some(connection) = self.get_mut(id) else { continue };
            if !connection.outgoing.wants_room {
                continue;
            }
            if room > 0 {
                connection.outgoing.wants_room = false;
                return Some(id);
            }
            // Credit came while too much waits for transmission: the next batch taken is the moment.
            if connection.outgoing.credit() > 0 && !connection.outgoing.blocked {
                connection.outgoing.blocked = true;
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
            connection.outgoing.wants_room = true;
        }
    }

    pub(crate) fn consumed(&mut self, id: Id, bytes: usize) -> Result<(), ConsumedTooMuch> {
        let Some(connection) = self.get_mut(id) else { return Ok(()) };
        if let Some(limit) = connection.incoming.consume(bytes)?
            && connection.is_open()
        {
            self.assembler.control(id, Control::Credit(limit));
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
        if connection.outgoing.finished || !connection.is_open() {
            return;
        }
        connection.outgoing.finished = true;
        let offset = connection.outgoing.sent;
        self.assembler.control(id, Control::Finish(offset));
    }

    /// Whether the connection is over, and its id free, with this.
    pub(crate) fn close(&mut self, id: Id, reason: CloseReason) -> bool {
        let Some(connection) = self.get_mut(id) else { return false };
        if connection.closed_here {
            return false;
        }
        connection.closed_here = true;
        let (over, reason) = (connection.is_over(), connection.broken.unwrap_or(reason));
        self.assembler.control(id, Control::Close(reason));
        if over {
            self.remove(id);
        }
        over
    }

    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        if self.assembler.is_empty() {
            return None;
        }
        self.waits(now);
        let messages = self.assembler.messages() - self.counters.messages_sent;
        let (fresh, unanswered) = (self.round_trips.fresh(), self.round_trips.unanswered());
        self.policy.gathered(now, Gathered { messages, fresh, unanswered });
        if self.due_at().is_some_and(|due| due > now) {
            return None;
        }
        self.flush(now)
    }

    /// What is gathered stays for now.
    pub(crate) fn waits(&mut self, now: Time) {
        if !self.assembler.is_empty() {
            self.waiting_since.get_or_insert(now);
        }
    }

    /// When what is gathered wants to go: `None` at once (or never, when nothing is gathered).
    fn due_at(&self) -> Option<Time> {
        if self.assembler.len() >= self.policy.size_bytes() {
            return None;
        }
        self.policy.due(self.last_batch, self.waiting_since)
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.assembler.is_empty()).then(|| self.due_at().unwrap_or(Time::ZERO))
    }

    pub(crate) fn flush(&mut self, now: Time) -> Option<Chunk> {
        if self.assembler.is_empty() {
            return None;
        }
        let batch = self.assembler.take_for(self.records.as_deref_mut());
        let elapsed = self.last_batch.replace(now).map(|last| now.since(last));
        self.policy.sent(Sent { at: now, bytes: batch.len(), elapsed });
        self.round_trips.sent(now);
        let waited = self.waiting_since.take().map_or(Duration::ZERO, |since| now.since(since));
        if let Some(batches) = &mut self.batches {
            batches.messages.record(self.assembler.messages() - self.counters.messages_sent);
            batches.bytes.record(batch.len() as u64);
            batches.delay_ns.record(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        }
        self.counters.batches_sent += 1;
        self.counters.bytes_sent += batch.len() as u64;
        self.counters.messages_sent = self.assembler.messages();
        self.unblock();
        Some(batch)
    }

    fn unblock(&mut self) {
        for id in core::mem::take(&mut self.blocked) {
            if let Some(connection) = self.get_mut(id) {
                connection.outgoing.blocked = false;
                self.room.push_back(id);
            }
        }
    }

    // What comes in.

    /// A reply has come. The peer may name any id.
    pub(crate) fn answered(&mut self, now: Time, id: Id) {
        if let Some(after) = self.round_trips.answered(now, id) {
            self.policy.answered(after);
        }
    }

    pub(crate) fn incoming_data(&mut self, id: Id, bytes: usize, last: bool) -> Incoming {
        let Some(connection) = self.connections.get_mut(id) else {
            self.counters.strays += 1;
            return Incoming::PassOver;
        };
        if !connection.is_open() {
            return Incoming::PassOver;
        }
        if connection.incoming.finished {
            return break_rule(connection, CloseReason::Protocol);
        }
        if !connection.incoming.receive(bytes) {
            return break_rule(connection, CloseReason::OverCredit);
        }
        self.counters.messages_received += u64::from(last);
        self.counters.bytes_received += bytes as u64;
        if connection.is_carrier { Incoming::Carry } else { Incoming::Deliver }
    }

    pub(crate) fn incoming_credit(&mut self, id: Id, limit: u64) {
        let Some(connection) = self.get_mut(id) else {
            self.counters.strays += 1;
            return;
        };
        // A limit that is repeated, or an older one, changes nothing.
        if connection.outgoing.raise_limit(limit) && connection.outgoing.wants_room {
            self.room.push_back(id);
        }
    }

    /// The client's TCP has acknowledged replies to its helper. The first word of that begins their keeping.
    pub(crate) fn incoming_acknowledge(&mut self, id: Id, through: u64, bytes_max: usize) -> Incoming {
        let Some(connection) = self.connections.get_mut(id) else {
            self.counters.strays += 1;
            return Incoming::PassOver;
        };
        // After our own close the rest is kept until the helper closes too.
        let is_kept =
            connection.is_open() || (connection.outgoing.kept.is_some() && connection.broken.is_none());
        if bytes_max == 0 || !is_kept {
            return Incoming::PassOver;
        }
        let Outgoing { sent, wants_room, kept, .. } = &mut connection.outgoing;
        let kept = kept.get_or_insert_with(|| Box::new(Kept::new(*sent, bytes_max)));
        if kept.acknowledge(through).is_err() {
            return break_rule(connection, CloseReason::Protocol);
        }
        if *wants_room {
            self.room.push_back(id);
        }
        Incoming::PassOver
    }

    pub(crate) fn incoming_finish(&mut self, id: Id, offset: u64) -> Incoming {
        let Some(connection) = self.get_mut(id) else {
            self.counters.strays += 1;
            return Incoming::PassOver;
        };
        if !connection.is_open() || connection.incoming.finished {
            return Incoming::PassOver;
        }
        if connection.incoming.received != offset {
            return break_rule(connection, CloseReason::Protocol);
        }
        connection.incoming.finished = true;
        Incoming::Deliver
    }

    /// Something came that has no place on a connection of this sort.
    pub(crate) fn incoming_nonsense(&mut self, id: Id) -> Incoming {
        match self.get_mut(id) {
            None => {
                self.counters.strays += 1;
                Incoming::PassOver
            }
            Some(connection) if connection.is_open() => break_rule(connection, CloseReason::Protocol),
            Some(_) => Incoming::PassOver,
        }
    }

    /// The peer closed. `Deliver`: the application must hear of it and close too.
    pub(crate) fn incoming_close(&mut self, id: Id) -> Incoming {
        let Some(connection) = self.get_mut(id) else {
            self.counters.strays += 1;
            return Incoming::PassOver;
        };
        let tell = connection.is_open();
        connection.closed_there = true;
        if connection.is_over() {
            self.remove(id);
        }
        if tell { Incoming::Deliver } else { Incoming::PassOver }
    }
}

fn break_rule(connection: &mut Connection, reason: CloseReason) -> Incoming {
    connection.broken = Some(reason);
    Incoming::Broken(reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;

    #[test]
    fn a_batch_has_waited_since_its_first_message_was_left() {
        let policy = PolicyKind::Fixed { delay: Duration::from_micros(200), bytes: 1 << 20 };
        let mut ends = Ends::new(Kind::Request, policy.build(), 1 << 20);
        ends.batches = Some(Box::default());
        ends.insert(Id(1), Connection::new(1000, 1000));
        ends.compose(Id(1), b"first");
        assert!(ends.poll_transmit(Time(5_000)).is_some(), "there was none before: due at once");
        for at in [65_000, 125_000] {
            ends.assembler.control(Id(1), Control::Credit(at));
            ends.compose(Id(1), b"get x");
            assert!(ends.poll_transmit(Time(at)).is_none());
        }
        assert_eq!(ends.poll_timeout(), Some(Time(205_000)));
        assert!(ends.poll_transmit(Time(205_000)).is_some());
        let batches = ends.batches.unwrap();
        assert_eq!((batches.delay_ns.count(), batches.delay_ns.sum()), (2, 140_000));
        assert_eq!((batches.messages.sum(), batches.bytes.sum()), (3, ends.counters.bytes_sent));
    }
}

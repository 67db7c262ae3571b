//! The common part of both ends of a link: the table of virtual connections, the receiving and the sending half.

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
use crate::run::{FirstFrame, RunOutcome, first_frame};

/// The caller's treatment of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Return an event for the application.
    Deliver,
    /// Return an event for the session that the connection carries.
    Carry,
    /// Ignore the frame: its connection has ended, or the frame needs no event.
    Ignore,
    /// The peer violated the protocol: return a close event.
    Broken(CloseReason),
}

#[derive(Debug)]
pub(crate) struct LinkEnd {
    pub(crate) batching: Batching,
    pub(crate) receiving: Receiving,
    connections: IdTable<Connection>,
    /// Connections that could not send because the link has too many pending bytes.
    blocked: Vec<Id>,
    /// Connections that may have room again and are not reported by `poll_room` yet.
    room: VecDeque<Id>,
    /// Connections whose requests are to be acknowledged to the helper, each once.
    acknowledges_due: Vec<Id>,
    messages_received: u64,
    bytes_received: u64,
    unknown_frames: u64,
    stalls: u64,
}

impl LinkEnd {
    pub(crate) fn new(batching: Batching) -> LinkEnd {
        LinkEnd {
            batching,
            receiving: Receiving::default(),
            connections: IdTable::new(),
            blocked: Vec::new(),
            room: VecDeque::new(),
            acknowledges_due: Vec::new(),
            messages_received: 0,
            bytes_received: 0,
            unknown_frames: 0,
            stalls: 0,
        }
    }

    pub(crate) fn held(&self) -> usize {
        self.batching.held() + self.receiving.held_bytes()
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        self.batching.with_sent_counters(LinkCounters {
            messages_received: self.messages_received,
            bytes_received: self.bytes_received,
            unknown_frames: self.unknown_frames,
            stalls: self.stalls,
            ..LinkCounters::default()
        })
    }

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

    /// `id` must be free and in range.
    pub(crate) fn insert(&mut self, id: Id, connection: Connection) {
        let before = self.connections.insert(id, connection);
        self.batching.reset_client(id);
        debug_assert!(before.is_none(), "{id} should be free");
    }

    pub(crate) fn remove(&mut self, id: Id) {
        self.connections.remove(id);
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> + '_ {
        self.connections.iter().map(|(id, _)| id)
    }

    pub(crate) fn compose(&mut self, id: Id, bytes: &[u8]) -> usize {
        let free_bytes = self.batching.free_bytes();
        let Some(connection) = self.connections.get_mut(id) else {
            return 0;
        };
        if !connection.may_send() {
            return 0;
        }
        let credit = connection.outgoing.credit();
        let taken = bytes.len().min(credit).min(free_bytes);
        if taken < bytes.len() {
            self.stalls += 1;
            connection.outgoing.want_room();
            if taken < credit && connection.outgoing.block() {
                self.blocked.push(id);
            }
        }
        if taken > 0 {
            connection.outgoing.record_sent(&bytes[..taken]);
            self.batching.data(id, &bytes[..taken]);
        }
        taken
    }

    pub(crate) fn room(&self, id: Id) -> usize {
        let free_bytes = self.batching.free_bytes();
        match self.get(id) {
            Some(connection) if connection.may_send() => connection.outgoing.credit().min(free_bytes),
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
                connection.outgoing.room_reported();
                return Some(id);
            }
            // The link has too many pending bytes: report the connection after the next batch.
            if connection.outgoing.credit() > 0 && connection.outgoing.block() {
                self.blocked.push(id);
            }
        }
        None
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// The next credit of the peer is reported by [`poll_room`](Self::poll_room).
    pub(crate) fn want_credit(&mut self, id: Id) {
        if let Some(connection) = self.get_mut(id) {
            connection.outgoing.want_room();
        }
    }

    /// As [`want_credit`](Self::want_credit); if the link has too many pending bytes, also after the next batch.
    pub(crate) fn want_room(&mut self, id: Id) {
        let is_full = self.batching.free_bytes() == 0;
        let Some(connection) = self.get_mut(id) else { return };
        connection.outgoing.want_room();
        if is_full && connection.outgoing.block() {
            self.blocked.push(id);
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

    /// As `consumed`, but limited to the received bytes: `bytes` may belong to an earlier connection with this id.
    pub(crate) fn consumed_at_most(&mut self, id: Id, bytes: usize) {
        if let Some(connection) = self.get(id) {
            let unconsumed = usize::try_from(connection.incoming.unconsumed()).unwrap_or(usize::MAX);
            let outcome = self.consumed(id, bytes.min(unconsumed));
            debug_assert_eq!(outcome, Ok(()), "at most the received bytes should be consumed");
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

    /// Returns whether both ends have closed now, so that the id is free.
    pub(crate) fn close(&mut self, id: Id, reason: CloseReason) -> bool {
        let Some(connection) = self.get_mut(id) else { return false };
        let Some(closed) = connection.close(reason) else { return false };
        self.batching.control(id, Control::Close(closed.reason));
        if closed.is_over {
            self.remove(id);
        }
        closed.is_over
    }

    #[must_use]
    pub(crate) fn poll_transmit(&mut self, now: Time) -> Option<Chunk> {
        let batch = self.batching.poll_transmit(now, self.receiving.records())?;
        self.unblock();
        Some(batch)
    }

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

    pub(crate) fn count_received(&mut self, bytes: usize, last: bool) {
        self.messages_received += u64::from(last);
        self.bytes_received += bytes as u64;
    }

    pub(crate) fn count_unknown_frame(&mut self) {
        self.unknown_frames += 1;
    }

    pub(crate) fn handle_data(&mut self, id: Id, bytes: usize, last: bool) -> Disposition {
        let Some(connection) = self.connections.get_mut(id) else {
            self.unknown_frames += 1;
            return Disposition::Ignore;
        };
        if !connection.is_open() {
            return Disposition::Ignore;
        }
        if let Err(reason) = connection.incoming.receive(bytes) {
            return violation(connection, reason);
        }
        let is_carrier = connection.is_carrier();
        self.count_received(bytes, last);
        if is_carrier { Disposition::Carry } else { Disposition::Deliver }
    }

    pub(crate) fn handle_credit(&mut self, id: Id, limit: u64) {
        let Some(connection) = self.get_mut(id) else {
            self.unknown_frames += 1;
            return;
        };
        if connection.outgoing.raise_limit(limit) {
            self.room.push_back(id);
        }
    }

    /// Handles a helper's report that the client's TCP has acknowledged replies. Replies are kept from the
    /// first report on.
    pub(crate) fn handle_acknowledge(&mut self, id: Id, through: u64, bytes_max: usize) -> Disposition {
        let Some(connection) = self.connections.get_mut(id) else {
            self.unknown_frames += 1;
            return Disposition::Ignore;
        };
        if bytes_max == 0 || !connection.accepts_acknowledgements() {
            return Disposition::Ignore;
        }
        connection.outgoing.keep(bytes_max);
        if connection.outgoing.acknowledged(through).is_err() {
            return violation(connection, CloseReason::Protocol);
        }
        if connection.outgoing.wants_room() {
            self.room.push_back(id);
        }
        Disposition::Ignore
    }

    pub(crate) fn handle_finish(&mut self, id: Id, offset: u64) -> Disposition {
        let Some(connection) = self.get_mut(id) else {
            self.unknown_frames += 1;
            return Disposition::Ignore;
        };
        if !connection.is_open() || connection.incoming.is_finished() {
            return Disposition::Ignore;
        }
        match connection.incoming.finish(offset) {
            Ok(()) => Disposition::Deliver,
            Err(reason) => violation(connection, reason),
        }
    }

    /// Handles a control message that is not allowed on this kind of connection.
    pub(crate) fn handle_disallowed(&mut self, id: Id) -> Disposition {
        match self.get_mut(id) {
            None => {
                self.unknown_frames += 1;
                Disposition::Ignore
            }
            Some(connection) if connection.is_open() => violation(connection, CloseReason::Protocol),
            Some(_) => Disposition::Ignore,
        }
    }

    /// The peer has closed. `Deliver`: the application must close too.
    pub(crate) fn handle_close(&mut self, id: Id) -> Disposition {
        let Some(connection) = self.get_mut(id) else {
            self.unknown_frames += 1;
            return Disposition::Ignore;
        };
        let closed = connection.handle_peer_close();
        if closed.is_over {
            self.remove(id);
        }
        if closed.was_open { Disposition::Deliver } else { Disposition::Ignore }
    }

    /// Takes the data frames at the front of `input` that may be forwarded unchanged. Call only between two frames.
    pub(crate) fn take_run<'a>(&mut self, input: &mut &'a [u8]) -> RunOutcome<'a> {
        let mut length = 0;
        let outcome = loop {
            match first_frame(&input[length..]) {
                FirstFrame::Frame { header, payload } => {
                    let is_skippable = length == 0 && payload.is_empty() && header.id != Id::LINK;
                    if self.receive_if_accepted(&header) {
                        length += HEADER_BYTES + payload.len();
                    } else if is_skippable {
                        // An empty data frame of a connection that cannot receive: skip it.
                        *input = &input[HEADER_BYTES..];
                    } else {
                        break RunOutcome::Disassemble;
                    }
                }
                FirstFrame::Other => break RunOutcome::Disassemble,
                FirstFrame::Incomplete => break RunOutcome::Incomplete,
            }
        };
        let (run, rest) = input.split_at(length);
        *input = rest;
        if run.is_empty() { outcome } else { RunOutcome::Run(run) }
    }

    /// Counts a complete data frame as received, unless its connection does not accept it. Returns whether it
    /// does.
    fn receive_if_accepted(&mut self, header: &Header) -> bool {
        let bytes = usize::from(header.length);
        let Some(connection) = self.get_mut(header.id) else { return false };
        let is_accepted = header.kind == Kind::Request
            && connection.is_open()
            && !connection.is_carrier()
            && connection.incoming.receive(bytes).is_ok();
        if is_accepted && bytes > 0 {
            self.count_received(bytes, !header.more);
            self.acknowledge_later(header.id);
        }
        is_accepted
    }

    pub(crate) fn acknowledge_later(&mut self, id: Id) {
        if self.get_mut(id).is_some_and(|connection| connection.incoming.mark_acknowledge_due()) {
            self.acknowledges_due.push(id);
        }
    }

    pub(crate) fn send_acknowledges(&mut self) {
        while let Some(id) = self.acknowledges_due.pop() {
            let Some(connection) = self.get_mut(id) else { continue };
            let is_open = connection.is_open();
            if let Some(acknowledge) = connection.incoming.take_acknowledge()
                && is_open
            {
                self.batching.control(id, Control::Acknowledge(acknowledge));
            }
        }
    }

    /// Checks a server's acknowledgement and returns its offset. `None`: the connection is unknown, or the server
    /// acknowledges more than was sent.
    pub(crate) fn check_acknowledge(&self, id: Id, acknowledge: Acknowledge) -> Option<u64> {
        self.get(id)?.outgoing.is_valid_acknowledge(acknowledge).then_some(acknowledge.received)
    }
}

fn violation(connection: &mut Connection, reason: CloseReason) -> Disposition {
    connection.record_violation(reason);
    Disposition::Broken(reason)
}

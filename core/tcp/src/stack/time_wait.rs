//! Connections that have closed, remembered so that a FIN that comes again is answered (RFC 9293 §3.6.1); and those that
//! have moved away.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use spillway_transport::Time;
use spillway_wire::packet::tcp::{self, Flags};

use crate::flow::Flow;
use crate::hasher::Keyed;
use crate::isn::Key;

/// What is left of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeWait {
    /// It has closed.
    Closed {
        /// The answer to whatever comes.
        acknowledgement: tcp::Header,
        /// TS.Recent, if there were timestamps.
        stamps: Option<u32>,
    },
    /// It goes on elsewhere: what comes here has come late, and an answer would end it.
    Moved,
}

/// What to do about a segment of one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Nothing,
    Acknowledge(tcp::Header),
    /// It is forgotten: a new connection begins (RFC 6191).
    Begin,
}

#[derive(Debug)]
pub(super) struct TimeWaits {
    entries: HashMap<Flow, (TimeWait, Time), Keyed>,
    /// In order of expiry, for all stay equally long; some are gone already, or were renewed.
    order: VecDeque<(Time, Flow)>,
    many_max: usize,
}

impl TimeWaits {
    pub(super) fn new(many_max: usize, key: Key) -> TimeWaits {
        let entries = HashMap::with_hasher(Keyed::new(key));
        TimeWaits { entries, order: VecDeque::new(), many_max }
    }

    /// Remembers a connection. Whether an older one was forgotten before its time.
    pub(super) fn add(&mut self, flow: Flow, expiry: Time, entry: TimeWait) -> bool {
        let mut is_forgotten = false;
        while self.order.len() >= self.many_max {
            let Some((at, oldest)) = self.order.pop_front() else { return false };
            is_forgotten |= self.remove_if(oldest, at);
        }
        self.entries.insert(flow, (entry, expiry));
        self.order.push_back((expiry, flow));
        is_forgotten
    }

    fn remove_if(&mut self, flow: Flow, expiry: Time) -> bool {
        let is_it = self.entries.get(&flow).is_some_and(|(_, at)| *at == expiry);
        is_it && self.entries.remove(&flow).is_some()
    }

    /// It comes back.
    pub(super) fn forget(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Whether it has closed a while ago.
    pub(super) fn has_closed(&self, flow: &Flow) -> bool {
        self.entries.get(flow).is_some_and(|(entry, _)| matches!(entry, TimeWait::Closed { .. }))
    }

    pub(super) fn contains(&self, flow: &Flow) -> bool {
        self.entries.contains_key(flow)
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        self.order.front().map(|(at, _)| *at)
    }

    pub(super) fn expire(&mut self, now: Time) {
        while let Some((at, flow)) = self.order.front().copied().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            self.remove_if(flow, at);
        }
    }

    /// A segment of a closed connection, with so many bytes. Resets do not shorten the wait (RFC 1337). A mere
    /// acknowledgement gets no answer: where both ends wait, they would answer each other until the end of the wait.
    pub(super) fn handle(&mut self, flow: &Flow, header: &tcp::Header, bytes: usize) -> Option<Answer> {
        let (entry, _) = self.entries.get(flow)?;
        let TimeWait::Closed { acknowledgement, stamps } = *entry else { return Some(Answer::Nothing) };
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            return Some(Answer::Nothing);
        }
        let is_after = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        let is_newer = match (stamps, header.options.timestamps) {
            (Some(recent), Some(told)) if told.value != recent => is_after(told.value, recent),
            _ => is_after(header.seq, acknowledgement.ack),
        };
        if has(Flags::SYN) && !has(Flags::ACK) && is_newer {
            self.entries.remove(flow);
            return Some(Answer::Begin);
        }
        let occupies = bytes > 0 || has(Flags::SYN) || has(Flags::FIN);
        let asks = header.seq.wrapping_add(1) == acknowledgement.ack;
        Some(if occupies || asks { Answer::Acknowledge(acknowledgement) } else { Answer::Nothing })
    }
}

//! Connections in TIME-WAIT, remembered so that a repeated FIN is answered (RFC 9293 §3.6.1); also connections that were
//! exported, or were imported and then aborted.

use alloc::collections::VecDeque;

use hashbrown::HashMap;
use spillway_transport::Time;
use spillway_wire::packet::tcp::{self, Flags};

use crate::dropped::Dropped;
use crate::flow::Flow;
use crate::hasher::{Keyed, keyed};
use crate::isn::Key;

/// The state kept of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum TimeWait {
    /// The connection has closed.
    Closed {
        /// The answer to its segments.
        acknowledgement: tcp::Header,
        /// TS.Recent, if timestamps were negotiated.
        stamps: Option<u32>,
    },
    /// Imported under another address than the stack's own, and aborted: its segments are answered by resets.
    Broken,
    /// The connection continues on another stack: segments that arrive here are late, and an answer would end it there. A
    /// newer SYN is not late: the connection is over there, too.
    Moved {
        /// The acknowledgement that would have been sent here next.
        acknowledgement: tcp::Header,
        /// TS.Recent, if timestamps were negotiated.
        stamps: Option<u32>,
    },
}

/// How to answer a segment of a remembered connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Drop the segment for this reason.
    Nothing(Dropped),
    Refuse,
    Acknowledge(tcp::Header),
    /// The connection was forgotten: a new one begins (RFC 6191), with sequence numbers after `last`.
    Begin {
        last: u32,
    },
}

#[derive(Debug)]
struct Entry {
    time_wait: TimeWait,
    until: Time,
    /// The time under which the entry is in `order`.
    queued: Time,
}

#[derive(Debug)]
pub(super) struct TimeWaits {
    entries: HashMap<Flow, Entry, Keyed>,
    /// One place per entry in order of expiry, because all wait equally long; some places have lost their entry. Not
    /// `spillway_parts::Delays`: this queue's length has a fixed bound, at which the oldest entry is forgotten.
    order: VecDeque<(Time, Flow)>,
    many_max: usize,
}

impl TimeWaits {
    pub(super) fn new(many_max: usize, key: Key) -> TimeWaits {
        let entries = HashMap::with_hasher(keyed(key));
        TimeWaits { entries, order: VecDeque::new(), many_max }
    }

    /// Remembers a connection; returns whether an older one was forgotten before its expiry.
    pub(super) fn add(&mut self, flow: Flow, expiry: Time, entry: TimeWait) -> bool {
        let mut is_forgotten = false;
        if let Some(old) = self.entries.get_mut(&flow).filter(|old| old.queued == expiry) {
            (old.time_wait, old.until) = (entry, expiry);
            return false;
        }
        // If connections come and go, most places have no entry: remove those places rather than entries.
        if self.order.len() >= self.many_max && self.entries.len() <= self.many_max / 2 {
            let entries = &self.entries;
            self.order.retain(|(at, flow)| entries.get(flow).is_some_and(|entry| entry.queued == *at));
        }
        while self.order.len() >= self.many_max {
            let Some((at, oldest)) = self.order.pop_front() else { return false };
            is_forgotten |= self.remove_if(oldest, at);
        }
        self.entries.insert(flow, Entry { time_wait: entry, until: expiry, queued: expiry });
        self.order.push_back((expiry, flow));
        is_forgotten
    }

    /// Removes the entry of a place in `order`, unless it has another place meanwhile; returns whether it did.
    fn remove_if(&mut self, flow: Flow, queued: Time) -> bool {
        let is_it = self.entries.get(&flow).is_some_and(|entry| entry.queued == queued);
        is_it && self.entries.remove(&flow).is_some()
    }

    /// Forgets a connection that returns by import.
    pub(super) fn forget(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Whether a connection is in TIME-WAIT.
    pub(super) fn has_closed(&self, flow: &Flow) -> bool {
        self.entries.get(flow).is_some_and(|entry| matches!(entry.time_wait, TimeWait::Closed { .. }))
    }

    pub(super) fn contains(&self, flow: &Flow) -> bool {
        self.entries.contains_key(flow)
    }

    #[inline]
    pub(super) fn next_at(&self) -> Option<Time> {
        self.order.front().map(|(at, _)| *at)
    }

    pub(super) fn expire(&mut self, now: Time) {
        while let Some((at, flow)) = self.order.front().copied().filter(|(at, _)| *at <= now) {
            self.order.pop_front();
            match self.entries.get_mut(&flow).filter(|entry| entry.queued == at && entry.until > now) {
                // A repeated FIN has restarted the wait. The entry moves to the end, and may be removed slightly late.
                Some(entry) => {
                    entry.queued = entry.until;
                    self.order.push_back((entry.until, flow));
                }
                None => _ = self.remove_if(flow, at),
            }
        }
    }

    /// Handles a segment of a remembered connection. `is_listening`: a SYN may begin a new one. Resets do not shorten the
    /// wait (RFC 1337); a repeated FIN extends it to `expiry` (RFC 9293 §3.10.7.4, eighth).
    pub(super) fn handle(
        &mut self,
        flow: &Flow,
        header: &tcp::Header,
        payload_bytes: usize,
        expiry: Time,
        is_listening: bool,
    ) -> Option<Answer> {
        let entry = self.entries.get_mut(flow)?;
        let (acknowledgement, stamps, is_moved) = match entry.time_wait {
            TimeWait::Closed { acknowledgement, stamps } => (acknowledgement, stamps, false),
            TimeWait::Moved { acknowledgement, stamps } => (acknowledgement, stamps, true),
            TimeWait::Broken => return Some(Answer::Refuse),
        };
        let reason = if is_moved { Dropped::Moved } else { Dropped::TimeWait };
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            return Some(Answer::Nothing(reason));
        }
        let is_after = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        let is_newer = match (stamps, header.options.timestamps) {
            (Some(recent), Some(told)) if told.value != recent => is_after(told.value, recent),
            _ => is_after(header.seq, acknowledgement.ack),
        };
        if has(Flags::SYN) && !has(Flags::ACK) && is_newer && is_listening {
            self.entries.remove(flow);
            return Some(Answer::Begin { last: acknowledgement.seq });
        }
        let occupies = payload_bytes > 0 || header.flags.intersects(Flags::SYN | Flags::FIN);
        let asks = header.seq.wrapping_add(1) == acknowledgement.ack;
        if is_moved || (!occupies && !asks) {
            return Some(Answer::Nothing(reason)); // two ends in TIME-WAIT would answer each other endlessly
        }
        if has(Flags::FIN) {
            entry.until = entry.until.max(expiry);
        }
        Some(Answer::Acknowledge(acknowledgement))
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddrV4};

    use super::*;

    fn flow(port: u16) -> Flow {
        let end = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        Flow { local: end(80), peer: end(port) }
    }

    #[test]
    fn one_that_comes_and_goes_makes_nobody_forgotten() {
        let mut all = TimeWaits::new(8, Key([1; 16]));
        all.add(flow(1), Time(1_000), TimeWait::Broken);
        for moves in 0..100 {
            let moved = TimeWait::Moved { acknowledgement: tcp::Header::default(), stamps: None };
            all.add(flow(2), Time(2_000 + moves / 2), moved); // two with the same expiry
            assert!(all.order.len() <= 8);
            assert!(all.contains(&flow(1)), "{moves}");
            if moves % 3 > 0 {
                all.forget(&flow(2));
            }
        }
        for port in 3..20 {
            all.add(flow(port), Time(3_000), TimeWait::Broken);
        }
        assert!(!all.contains(&flow(1)) && all.contains(&flow(19)) && all.order.len() == 8);
    }
}

//! Connections in TIME-WAIT, remembered so that a retransmitted FIN is answered (RFC 9293 §3.6.1). Also connections
//! that were exported, or that were imported and then aborted.

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
    Closed {
        /// The answer to segments of the connection.
        acknowledgement: tcp::Header,
        /// TS.Recent, if timestamps were negotiated.
        ts_recent: Option<u32>,
    },
    /// The connection was imported under another address than the stack's own, and aborted: its segments are answered
    /// by resets.
    Aborted,
    /// The connection was exported: segments that arrive here are late, and an answer would end the connection on its
    /// new stack. A newer SYN may open a connection: the driver passes it to the stack only when the exported one has
    /// ended.
    Moved {
        /// The acknowledgement at the time of the export, for comparison with later segments.
        acknowledgement: tcp::Header,
        /// TS.Recent, if timestamps were negotiated.
        ts_recent: Option<u32>,
    },
}

/// The answer to a segment of a remembered connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// No answer: the segment is dropped for this reason.
    Drop(Dropped),
    Reset,
    Acknowledge(tcp::Header),
    /// The segment may open a new connection (RFC 6191), whose sequence numbers begin after `last_seq`.
    Open {
        last_seq: u32,
    },
}

#[derive(Debug)]
struct Entry {
    time_wait: TimeWait,
    until: Time,
    /// The time under which the entry is queued in `order`.
    queued: Time,
}

#[derive(Debug)]
pub(super) struct TimeWaits {
    entries: HashMap<Flow, Entry, Keyed>,
    /// Expiry and flow of each entry, sorted by expiry, because all entries wait equally long. Some places are left
    /// over from removed entries. Not `spillway_parts::TimerQueue`: this queue's length has a fixed bound, at
    /// which the oldest entry is removed.
    order: VecDeque<(Time, Flow)>,
    entries_max: usize,
}

impl TimeWaits {
    pub(super) fn new(entries_max: usize, key: Key) -> TimeWaits {
        let entries = HashMap::with_hasher(keyed(key));
        TimeWaits { entries, order: VecDeque::new(), entries_max }
    }

    /// Remembers a connection. Returns whether an older one was removed before its expiry.
    pub(super) fn add(&mut self, flow: Flow, expiry: Time, entry: TimeWait) -> bool {
        let mut is_removed_early = false;
        if let Some(old) = self.entries.get_mut(&flow).filter(|old| old.queued == expiry) {
            (old.time_wait, old.until) = (entry, expiry);
            return false;
        }
        // After many exports and imports most places have no entry: remove these places rather than entries.
        if self.order.len() >= self.entries_max && self.entries.len() <= self.entries_max / 2 {
            let entries = &self.entries;
            self.order.retain(|(at, flow)| entries.get(flow).is_some_and(|entry| entry.queued == *at));
        }
        while self.order.len() >= self.entries_max {
            let Some((at, oldest)) = self.order.pop_front() else { return false };
            is_removed_early |= self.remove_queued(oldest, at);
        }
        self.entries.insert(flow, Entry { time_wait: entry, until: expiry, queued: expiry });
        self.order.push_back((expiry, flow));
        is_removed_early
    }

    /// Removes the entry of a place in `order`, unless the entry has moved to another place. Returns whether an entry
    /// was removed.
    fn remove_queued(&mut self, flow: Flow, queued: Time) -> bool {
        let is_queued_there = self.entries.get(&flow).is_some_and(|entry| entry.queued == queued);
        is_queued_there && self.entries.remove(&flow).is_some()
    }

    /// Removes a connection that is imported again, followed by a new one, or lost.
    pub(super) fn forget(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    /// Whether a connection is in TIME-WAIT.
    pub(super) fn has_closed(&self, flow: &Flow) -> bool {
        self.entries.get(flow).is_some_and(|entry| matches!(entry.time_wait, TimeWait::Closed { .. }))
    }

    /// Whether a connection was exported.
    pub(super) fn has_moved(&self, flow: &Flow) -> bool {
        self.entries.get(flow).is_some_and(|entry| matches!(entry.time_wait, TimeWait::Moved { .. }))
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
                // A retransmitted FIN has restarted the wait: the entry moves to the end, and may be removed late.
                Some(entry) => {
                    entry.queued = entry.until;
                    self.order.push_back((entry.until, flow));
                }
                None => _ = self.remove_queued(flow, at),
            }
        }
    }

    /// Handles a segment of a remembered connection. `is_listening`: a SYN may open a new connection; the listener
    /// [removes](Self::forget) this entry once it has room for the new connection. Resets do not shorten the wait (RFC
    /// 1337); a retransmitted FIN extends the wait to `expiry` (RFC 9293 §3.10.7.4, eighth).
    pub(super) fn handle(
        &mut self,
        flow: &Flow,
        header: &tcp::Header,
        payload_bytes: usize,
        expiry: Time,
        is_listening: bool,
    ) -> Option<Answer> {
        let entry = self.entries.get_mut(flow)?;
        let (acknowledgement, ts_recent, is_moved) = match entry.time_wait {
            TimeWait::Closed { acknowledgement, ts_recent } => (acknowledgement, ts_recent, false),
            TimeWait::Moved { acknowledgement, ts_recent } => (acknowledgement, ts_recent, true),
            TimeWait::Aborted => return Some(Answer::Reset),
        };
        let reason = if is_moved { Dropped::Moved } else { Dropped::TimeWait };
        let has = |flag| header.flags.contains(flag);
        if has(Flags::RST) {
            return Some(Answer::Drop(reason));
        }
        let is_after = |new: u32, old: u32| new.wrapping_sub(old).cast_signed() > 0;
        let is_newer = match (ts_recent, header.options.timestamps) {
            (Some(recent), Some(theirs)) if theirs.value != recent => is_after(theirs.value, recent),
            _ => is_after(header.seq, acknowledgement.ack),
        };
        if has(Flags::SYN) && !has(Flags::ACK) && is_newer && is_listening {
            return Some(Answer::Open { last_seq: acknowledgement.seq });
        }
        let has_length = payload_bytes > 0 || header.flags.intersects(Flags::SYN | Flags::FIN);
        let is_probe = header.seq.wrapping_add(1) == acknowledgement.ack;
        if is_moved || (!has_length && !is_probe) {
            return Some(Answer::Drop(reason)); // otherwise two ends in TIME-WAIT would answer each other
        }
        if has(Flags::FIN) {
            entry.until = entry.until.max(expiry);
        }
        Some(Answer::Acknowledge(acknowledgement))
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, SocketAddr};

    use super::*;

    fn flow(port: u16) -> Flow {
        let end = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Flow::new(end(80), end(port)).unwrap()
    }

    #[test]
    fn repeated_moves_of_a_connection_displace_no_other_entry() {
        let mut time_waits = TimeWaits::new(8, Key([1; 16]));
        time_waits.add(flow(1), Time(1_000), TimeWait::Aborted);
        for moves in 0..100 {
            let moved = TimeWait::Moved { acknowledgement: tcp::Header::default(), ts_recent: None };
            time_waits.add(flow(2), Time(2_000 + moves / 2), moved); // two moves in succession have the same expiry
            assert!(time_waits.order.len() <= 8, "the order should have eight entries at most");
            assert!(time_waits.contains(&flow(1)), "the other entry should remain after {moves} moves");
            if moves % 3 > 0 {
                time_waits.forget(&flow(2));
            }
        }
        for port in 3..20 {
            time_waits.add(flow(port), Time(3_000), TimeWait::Aborted);
        }
        assert!(
            !time_waits.contains(&flow(1)) && time_waits.contains(&flow(19)) && time_waits.order.len() == 8,
            "the first flow should be displaced, and not the last"
        );
    }
}

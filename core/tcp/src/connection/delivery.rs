//! Delivers received bytes to the application: at once, or when a gap is filled or the application grants them. Raises the
//! limits that the application sets: its grants, and the gate of acknowledgements.

use spillway_wire::packet::tcp::{self, Flags};

use super::Connection;
use super::context::{Context, SegmentResult};
use super::receiving::Room;
use crate::dropped::Dropped;
use crate::event::StackEvent;
use crate::seq::{FIRST, Seq};

impl Connection {
    /// Handles the payload and the FIN of a segment that was accepted.
    pub(super) fn handle_payload(
        &mut self,
        cx: &mut Context<'_>,
        seq: Seq,
        header: &tcp::Header,
        payload: &[u8],
        handled: &mut SegmentResult,
    ) {
        let has_fin = header.flags.contains(Flags::FIN);
        if payload.is_empty() && !has_fin {
            return;
        }
        if self.receiving.is_finished() {
            return cx.drop(Dropped::AfterEnd);
        }
        let ahead = cx.settings.reassembly_bytes_max;
        let room = Room { ahead, bytes: ahead.min(self.waiting_share.bytes() + cx.waiting_bytes_free) };
        let before = self.receiving.acknowledged();
        let start = seq + u64::from(header.flags.contains(Flags::SYN));
        let taken = self.receiving.take(start, payload, has_fin, room);
        if let Some(range) = taken.direct {
            // Waiting bytes that follow these are delivered below.
            let end = start + range.end as u64 - FIRST - 1;
            if cx.events.is_empty() {
                handled.delivery = Some((range, end));
            } else {
                let bytes = payload[range].to_vec();
                cx.events.push(self.conn, StackEvent::Data { end, bytes });
            }
        }
        if self.receiving.has_waiting() {
            self.deliver_waiting(cx);
        }
        if taken.has_no_room {
            cx.drop(Dropped::NoRoom);
        }
        let rise = self.receiving.acknowledged() - before;
        if let Some((from, to)) = taken.duplicate.filter(|_| self.agreed.has_sack) {
            self.acking.duplicates.add(from, to);
        }
        if taken.is_out_of_order || self.receiving.is_finished() {
            self.acking.on_out_of_order(cx.now, taken.is_disordered);
        } else if rise > 0 {
            let (segment, delay) = (payload.len() as u64, cx.settings.delayed_ack);
            self.acking.on_bytes(cx.now, rise, segment, delay, &mut self.timers);
        }
        if self.receiving.is_finished() {
            self.on_fin();
        }
    }

    /// Delivers bytes that waited because they arrived out of order or before they were granted.
    fn deliver_waiting(&mut self, cx: &mut Context<'_>) {
        while let Some(bytes) = self.receiving.take_waiting() {
            let end = self.receiving.offset();
            cx.events.push(self.conn, StackEvent::Data { end, bytes });
        }
    }

    /// The application grants `bytes` more. Bytes that [wait](Self::has_waiting) may then be delivered.
    pub(crate) fn grant(&mut self, bytes: u32) {
        if !self.is_lost() {
            self.receiving.grant(bytes);
        }
    }

    /// Whether received bytes wait for a gap to be filled, or for a grant.
    pub(crate) fn has_waiting(&self) -> bool {
        self.receiving.has_waiting() && self.is_opened && !self.is_lost()
    }

    /// Delivers bytes that waited for a grant.
    pub(crate) fn deliver_granted(&mut self, cx: &mut Context<'_>) {
        let before = self.receiving.next;
        self.deliver_waiting(cx);
        if self.receiving.next > before && self.receiving.is_finished() {
            self.on_fin();
        }
        self.push_events(cx);
    }

    /// Opens the gate up to a stream offset.
    pub(crate) fn release(&mut self, cx: &mut Context<'_>, through: u64) {
        let before = self.receiving.acknowledged();
        self.receiving.gate.open(through);
        if self.receiving.acknowledged() > before {
            self.acking.is_due = true;
        }
        self.push_events(cx);
    }

    /// Bytes that wait because they arrived out of order or before they were granted.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.receiving.waiting.bytes()
    }

    /// Updates this connection's share of the stack's total of waiting bytes.
    #[inline]
    pub(crate) fn count_waiting(&mut self, total: &mut usize) {
        if self.waiting_share.bytes() > 0 || self.receiving.has_waiting() {
            let bytes = self.waiting_bytes();
            self.waiting_share.update(bytes, total);
        }
    }

    pub(crate) fn uncount_waiting(&mut self, total: &mut usize) {
        self.waiting_share.remove(total);
    }
}

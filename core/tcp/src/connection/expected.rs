//! The fast path, which most segments take: those in order, not old, with no bytes missing in either direction
//! (Jacobson's header prediction). Its effect equals that of the general path; [`Settings::has_header_prediction`] switches it
//! off, for tests that compare the two.
//!
//! [`Settings::has_header_prediction`]: crate::Settings::has_header_prediction

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags};

use super::context::SegmentResult;
use super::{Connection, Context, State};
use crate::seq::{FIRST, Seq};

impl Connection {
    /// Handles a segment if it is the expected one. `false`: the general path must handle the segment.
    #[inline]
    pub(super) fn handle_expected(
        &mut self,
        cx: &mut Context<'_>,
        source: Mac,
        header: &tcp::Header,
        payload: &[u8],
        handled: &mut SegmentResult,
    ) -> bool {
        if !self.is_expected(cx, header, payload) {
            return false;
        }
        let (una, seq) = (self.recovery.una(), self.receiving.next);
        let ack = self.base.expand(header.ack, una);
        if !(una..=self.recovery.nxt()).contains(&ack) || (ack == una && payload.is_empty()) {
            return false;
        }
        self.update_peer_window(cx.now, seq, ack, header);
        if ack > una {
            let echoed = self.agreed.timestamps.zip(header.options.timestamps);
            let rtt = || echoed.and_then(|(ours, theirs)| ours.since_echo(cx.now, theirs));
            self.recovery.on_plain_ack(cx.now, ack, self.peer_window.size, rtt, &mut self.timers);
            self.queue.acknowledge(ack, cx.spent);
            self.persist.on_progress();
        } else {
            self.recovery.set_peer_window(self.peer_window.size);
        }
        self.remember_timestamp(cx.now, seq, header);
        self.last_received_at = cx.now;
        self.next_hop.confirm(source);
        if !payload.is_empty() {
            self.handle_expected_bytes(cx, seq + payload.len() as u64, payload.len(), handled);
        }
        if self.reports.depends_on_acknowledgements() {
            self.push_events(cx);
        }
        true
    }

    /// Checks everything but the acknowledgement number.
    #[inline]
    fn is_expected(&self, cx: &Context<'_>, header: &tcp::Header, payload: &[u8]) -> bool {
        let receiving = &self.receiving;
        let end = receiving.next + payload.len() as u64;
        let is_timely = match (&self.agreed.timestamps, header.options.timestamps) {
            (Some(ours), Some(theirs)) => ours.is_at_most(theirs.value),
            (ours, _) => ours.is_none(),
        };
        header.seq == receiving.base.on_wire(receiving.next)
            && header.flags.0 & !Flags::PSH.0 == Flags::ACK.0
            && self.state == State::Established
            && is_timely
            && end <= receiving.granted.min(receiving.edge).max(receiving.next)
            && self.recovery.is_quiet()
            && header.options.sack.is_empty()
            && !receiving.has_waiting()
            && receiving.fin.is_none()
            && cx.events.is_empty()
            && cx.settings.has_header_prediction
    }

    /// Delivers bytes that are in order and granted, with no waiting bytes after them.
    #[inline]
    fn handle_expected_bytes(
        &mut self,
        cx: &Context<'_>,
        end: Seq,
        bytes: usize,
        handled: &mut SegmentResult,
    ) {
        let before = self.receiving.acknowledged();
        self.receiving.next = end;
        handled.delivery = Some((0..bytes, end - FIRST - 1));
        let rise = self.receiving.acknowledged() - before;
        if rise > 0 {
            self.acking.on_bytes(cx.now, rise, bytes as u64, cx.settings.delayed_ack, &mut self.timers);
        }
    }
}

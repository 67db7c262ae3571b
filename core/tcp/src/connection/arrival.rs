//! The general path of a segment that arrives (RFC 9293 §3.10.7): which part of the connection handles it, and in which
//! order.

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::packet::tcp::{self, Flags};

use super::Connection;
use super::context::{Context, SegmentResult};
use super::state::State;
use crate::dropped::Dropped;

impl Connection {
    /// Handles a segment of this connection; its checksum was verified.
    pub(crate) fn handle_segment(
        &mut self,
        cx: &mut Context<'_>,
        source: Mac,
        header: &tcp::Header,
        payload: &[u8],
    ) -> SegmentResult {
        let mut handled = SegmentResult::default();
        if self.handle_expected(cx, source, header, payload, &mut handled) {
            return handled;
        }
        match self.state {
            State::Closed => {
                debug_assert!(false, "the flow of an ended connection should not be in the table")
            }
            State::SynSent => handled.must_reset = self.handle_in_syn_sent(cx, header),
            _ => self.handle_synchronised(cx, source, header, payload, &mut handled),
        }
        self.push_events(cx);
        handled
    }

    fn handle_synchronised(
        &mut self,
        cx: &mut Context<'_>,
        source: Mac,
        header: &tcp::Header,
        payload: &[u8],
        handled: &mut SegmentResult,
    ) {
        let seq = self.receiving.base.expand(header.seq, self.receiving.next);
        if !self.accept_segment(cx, seq, header, payload) {
            return;
        }
        if self.state == State::SynReceived {
            let (una, nxt) = (self.recovery.una(), self.recovery.nxt());
            let ack = self.base.expand(header.ack, una);
            if ack <= una || ack > nxt {
                cx.drop(Dropped::BadHandshakeAck);
                handled.must_reset = true;
                return;
            }
            // The window field of the SYN was not scaled, so this segment sets the peer's window as well.
            self.peer_window.update(seq, ack, header.window, header.flags.contains(Flags::SYN));
            self.establish(cx, ack);
        } else if !self.handle_ack(cx, seq, header, payload.len()) {
            return;
        }
        self.remember_timestamp(cx.now, seq, header);
        self.last_received_at = cx.now;
        self.next_hop.confirm(source);
        self.handle_payload(cx, seq, header, payload, handled);
    }
}

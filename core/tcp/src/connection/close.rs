//! Closing a connection (RFC 9293 §3.6).

use spillway_transport::LostReason;

use super::{Connection, Context, State};
use crate::event::StackEvent;

/// What the stack keeps of a connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing: our FIN is acknowledged, and the peer has received the acknowledgement of its FIN.
    Gone,
    /// An entry that answers a retransmitted FIN of the peer: the acknowledgement of the FIN may be lost.
    TimeWait,
}

impl Connection {
    /// Sends a FIN after all queued bytes.
    pub(crate) fn finish(&mut self) {
        if self.fin.is_some() || self.is_lost() {
            return;
        }
        self.fin = Some(self.queue.end());
        self.state = match self.state {
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            other => other,
        };
    }

    pub(super) fn is_fin_acknowledged(&self) -> bool {
        self.fin.is_some_and(|fin| self.recovery.una() > fin)
    }

    /// Advances the state: the peer's FIN and all bytes before it have arrived.
    pub(super) fn on_fin(&mut self) {
        self.state = match self.state {
            State::Established | State::SynReceived => State::CloseWait,
            State::FinWait1 => State::Closing,
            State::FinWait2 => State::TimeWait,
            other => other,
        };
    }

    /// Advances the state when our FIN is acknowledged, and ends the connection when both directions are finished. A
    /// closed gate, which holds back the acknowledgement of the peer's FIN, postpones the end.
    pub(super) fn advance_closing(&mut self) {
        if !self.is_fin_acknowledged() {
            return;
        }
        let is_gate_open = self.receiving.acknowledged() == self.receiving.next;
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing | State::TimeWait if is_gate_open => self.end(Ended::TimeWait),
            // A gate may have held back the acknowledgement of the peer's FIN when our FIN was sent. Then the
            // acknowledgement of our FIN does not show that the peer has received it.
            State::LastAck if is_gate_open => {
                let is_peer_fin_acknowledged = self.acking.sent_with_fin == self.receiving.received();
                self.end(if is_peer_fin_acknowledged { Ended::Gone } else { Ended::TimeWait });
            }
            _ => {}
        }
    }

    fn end(&mut self, how: Ended) {
        self.ended = Some(how);
        self.lose(LostReason::Closed);
    }

    /// Ends the connection. Its `Lost` event follows all other events.
    pub(super) fn lose(&mut self, reason: LostReason) {
        if self.lost.is_none() {
            self.lost = Some(reason);
            self.state = State::Closed;
        }
    }

    /// Whether this end has finished sending: its FIN is sent or queued.
    pub(crate) fn has_finished(&self) -> bool {
        self.fin.is_some()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Pushes the events that are due, in the order of the transport's contract.
    pub(crate) fn push_events(&mut self, cx: &mut Context<'_>) {
        self.advance_closing();
        let through = self.acknowledged_offset();
        if self.reports.on_acknowledged(through) {
            cx.events.push(self.conn, StackEvent::Acknowledged { through });
        }
        if self.reports.wants_room() && self.has_much_room(cx.settings) {
            self.reports.on_room();
            cx.events.push(self.conn, StackEvent::Room);
        }
        if self.receiving.is_finished() && self.is_opened && self.reports.on_finished() {
            cx.events.push(self.conn, StackEvent::Finished);
        }
        if let Some(reason) = self.lost
            && self.reports.on_lost()
        {
            if !self.is_visible() {
                return;
            }
            cx.events.push(self.conn, StackEvent::Lost(reason));
        }
    }
}

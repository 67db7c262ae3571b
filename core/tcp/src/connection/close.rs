//! How a connection ends (RFC 9293 §3.6).

use spillway_transport::LostReason;

use super::{Connection, Context, State};
use crate::event::StackEvent;

/// How the stack is to go on with a connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Nothing is left of it.
    Gone,
    /// The peer may not know that we have its FIN: answer it for a while.
    TimeWait,
}

impl Connection {
    /// We send no more.
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

    /// Our FIN was sent and acknowledged.
    pub(super) fn is_fin_acknowledged(&self) -> bool {
        self.fin.is_some_and(|fin| self.recovery.una() > fin)
    }

    /// The peer's FIN has come, and all before it.
    pub(super) fn take_fin(&mut self) {
        self.state = match self.state {
            State::Established | State::SynReceived => State::CloseWait,
            State::FinWait1 => State::Closing,
            State::FinWait2 => State::TimeWait,
            other => other,
        };
    }

    /// What an acknowledgement of our FIN changes, and whether all is over. Behind a closed gate it is not: the peer's FIN is
    /// not acknowledged yet.
    pub(super) fn advance_closing(&mut self) {
        if !self.is_fin_acknowledged() {
            return;
        }
        let is_open = self.receiving.acknowledged() == self.receiving.next;
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing | State::TimeWait if is_open => self.end(Ended::TimeWait),
            // A gate may have kept our acknowledgement back when our FIN was sent.
            State::LastAck if is_open => {
                let is_told = self.acking.with_fin == self.receiving.received();
                self.end(if is_told { Ended::Gone } else { Ended::TimeWait });
            }
            _ => {}
        }
    }

    fn end(&mut self, how: Ended) {
        self.ended = Some(how);
        self.lose(LostReason::Closed);
    }

    /// The connection is over. The event is told when everything else was.
    pub(super) fn lose(&mut self, reason: LostReason) {
        if self.lost.is_none() {
            self.lost = Some(reason);
            self.state = State::Closed;
        }
    }

    /// Whether it is over.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Tells what has happened, in the order that the transport's contract wants.
    pub(crate) fn tell(&mut self, cx: &mut Context<'_>) {
        self.advance_closing();
        let through = self.acknowledged_offset();
        if self.is_watched && through > self.told_acknowledged {
            self.told_acknowledged = through;
            cx.events.push(self.conn, StackEvent::Acknowledged { through });
        }
        if self.wants_room && self.has_much_room(cx.settings) {
            self.wants_room = false;
            cx.events.push(self.conn, StackEvent::Room);
        }
        if self.receiving.is_finished() && !self.told_finished && self.is_opened {
            self.told_finished = true;
            cx.events.push(self.conn, StackEvent::Finished);
        }
        if let Some(reason) = self.lost
            && !self.told_lost
        {
            self.told_lost = true;
            if !self.is_known() {
                return;
            }
            cx.events.push(self.conn, StackEvent::Lost(reason));
        }
    }
}

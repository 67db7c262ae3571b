//! State of one virtual connection at one end of a link.

mod incoming;
mod outgoing;

use core::net::SocketAddr;

use spillway_wire::CloseReason;

pub(crate) use self::incoming::Incoming;
pub(crate) use self::outgoing::Outgoing;

#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    closed: Closed,
    /// The peer broke a rule: nothing more is delivered. The reason goes into our *close*.
    broken: Option<CloseReason>,
    /// At a server's end: the client's address.
    client: Option<SocketAddr>,
    /// The connection carries a session, which keeps credit and offsets itself.
    is_carrier: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    Nobody,
    Here,
    There,
    /// The id may be used again.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedHere {
    /// Reason to send to the peer.
    pub(crate) reason: CloseReason,
    /// Both ends have closed, so that the id is free.
    pub(crate) is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedThere {
    /// The connection was open until now: the application needs an event.
    pub(crate) was_open: bool,
    pub(crate) is_over: bool,
}

impl Connection {
    /// `limit`: bytes that the peer lets us send at first. `window`: bytes that it may send ahead of consumption.
    pub(crate) fn new(limit: u64, window: u32) -> Connection {
        Connection::with(Outgoing::new(limit), Incoming::new(u64::from(window)))
    }

    pub(crate) fn carrier() -> Connection {
        Connection { is_carrier: true, ..Connection::with(Outgoing::new(u64::MAX), Incoming::unlimited()) }
    }

    fn with(outgoing: Outgoing, incoming: Incoming) -> Connection {
        Connection {
            outgoing,
            incoming,
            closed: Closed::Nobody,
            broken: None,
            client: None,
            is_carrier: false,
        }
    }

    pub(crate) fn of(self, client: SocketAddr) -> Connection {
        Connection { client: Some(client), ..self }
    }

    pub(crate) fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    pub(crate) fn is_carrier(&self) -> bool {
        self.is_carrier
    }

    /// Whether neither end has closed and the peer has broken no rule.
    pub(crate) fn is_open(&self) -> bool {
        self.closed == Closed::Nobody && self.broken.is_none()
    }

    pub(crate) fn may_send(&self) -> bool {
        self.is_open() && !self.outgoing.is_finished()
    }

    /// Whether control messages may still be sent: this end has not closed, and the peer has broken no rule.
    pub(crate) fn may_control(&self) -> bool {
        !self.is_closed_here() && self.broken.is_none()
    }

    fn is_closed_here(&self) -> bool {
        matches!(self.closed, Closed::Here | Closed::Both)
    }

    pub(crate) fn is_closed_there(&self) -> bool {
        matches!(self.closed, Closed::There | Closed::Both)
    }

    /// After our own close, kept replies remain until the helper closes, so acknowledgements still count.
    pub(crate) fn takes_acknowledgements(&self) -> bool {
        self.is_open() || (self.outgoing.is_keeping() && self.broken.is_none())
    }

    pub(crate) fn break_off(&mut self, reason: CloseReason) {
        self.broken = Some(reason);
    }

    /// The application closes. `None`: it has closed before.
    pub(crate) fn close(&mut self, reason: CloseReason) -> Option<ClosedHere> {
        self.closed = match self.closed {
            Closed::Nobody => Closed::Here,
            Closed::There => Closed::Both,
            Closed::Here | Closed::Both => return None,
        };
        Some(ClosedHere { reason: self.broken.unwrap_or(reason), is_over: self.closed == Closed::Both })
    }

    pub(crate) fn closed_there(&mut self) -> ClosedThere {
        let was_open = self.is_open();
        self.closed = if self.is_closed_here() { Closed::Both } else { Closed::There };
        ClosedThere { was_open, is_over: self.closed == Closed::Both }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_free_when_both_have_closed() {
        let mut ours = Connection::new(0, 0);
        let closed = ClosedHere { reason: CloseReason::Normal, is_over: false };
        assert_eq!(ours.close(CloseReason::Normal), Some(closed));
        assert_eq!(ours.close(CloseReason::Normal), None, "a second close sends nothing");
        assert_eq!(ours.closed_there(), ClosedThere { was_open: false, is_over: true });

        let mut theirs = Connection::new(0, 0);
        assert_eq!(theirs.closed_there(), ClosedThere { was_open: true, is_over: false });
        assert_eq!(theirs.closed_there(), ClosedThere { was_open: false, is_over: false });
        let closed = ClosedHere { reason: CloseReason::Normal, is_over: true };
        assert_eq!(theirs.close(CloseReason::Normal), Some(closed));
    }

    #[test]
    fn close_carries_the_reason_after_a_broken_rule() {
        let mut connection = Connection::new(0, 0);
        connection.break_off(CloseReason::OverCredit);
        assert!(!connection.is_open() && !connection.may_control());
        let closed = ClosedHere { reason: CloseReason::OverCredit, is_over: false };
        assert_eq!(connection.close(CloseReason::Normal), Some(closed));
    }
}

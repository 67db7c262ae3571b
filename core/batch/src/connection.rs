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
    /// The peer violated the protocol: nothing more is delivered. Our *close* has this reason.
    violation: Option<CloseReason>,
    /// At a server's end: the client's address.
    client: Option<SocketAddr>,
    /// The connection carries a session, which has its own credit and offsets.
    is_carrier: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    Neither,
    ThisEnd,
    Peer,
    /// The id may be used again.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedHere {
    pub(crate) reason: CloseReason,
    /// Both ends have closed, so that the id is free.
    pub(crate) is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedByPeer {
    /// The connection was open before: the application needs an event.
    pub(crate) was_open: bool,
    pub(crate) is_over: bool,
}

impl Connection {
    /// `limit`: initial credit from the peer, in bytes. `window`: bytes that the peer may send ahead of consumption.
    pub(crate) fn new(limit: u64, window: u32) -> Connection {
        Connection::with_directions(Outgoing::new(limit), Incoming::new(u64::from(window)))
    }

    pub(crate) fn carrier() -> Connection {
        Connection {
            is_carrier: true,
            ..Connection::with_directions(Outgoing::new(u64::MAX), Incoming::unlimited())
        }
    }

    fn with_directions(outgoing: Outgoing, incoming: Incoming) -> Connection {
        Connection {
            outgoing,
            incoming,
            closed: Closed::Neither,
            violation: None,
            client: None,
            is_carrier: false,
        }
    }

    pub(crate) fn with_client(self, client: SocketAddr) -> Connection {
        Connection { client: Some(client), ..self }
    }

    pub(crate) fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    pub(crate) fn is_carrier(&self) -> bool {
        self.is_carrier
    }

    pub(crate) fn is_open(&self) -> bool {
        self.closed == Closed::Neither && self.violation.is_none()
    }

    pub(crate) fn may_send(&self) -> bool {
        self.is_open() && !self.outgoing.is_finished()
    }

    pub(crate) fn may_send_control(&self) -> bool {
        !self.is_closed_here() && self.violation.is_none()
    }

    fn is_closed_here(&self) -> bool {
        matches!(self.closed, Closed::ThisEnd | Closed::Both)
    }

    pub(crate) fn is_closed_by_peer(&self) -> bool {
        matches!(self.closed, Closed::Peer | Closed::Both)
    }

    /// Whether acknowledgements of replies are accepted. A server that has closed still keeps the replies that the client
    /// has not acknowledged, and accepts acknowledgements as long as it keeps replies.
    pub(crate) fn accepts_acknowledgements(&self) -> bool {
        self.is_open() || (self.outgoing.is_keeping() && self.violation.is_none())
    }

    pub(crate) fn record_violation(&mut self, reason: CloseReason) {
        self.violation = Some(reason);
    }

    /// The application closes this end. `None`: this end is closed already.
    pub(crate) fn close(&mut self, reason: CloseReason) -> Option<ClosedHere> {
        self.closed = match self.closed {
            Closed::Neither => Closed::ThisEnd,
            Closed::Peer => Closed::Both,
            Closed::ThisEnd | Closed::Both => return None,
        };
        Some(ClosedHere { reason: self.violation.unwrap_or(reason), is_over: self.closed == Closed::Both })
    }

    pub(crate) fn handle_peer_close(&mut self) -> ClosedByPeer {
        let was_open = self.is_open();
        self.closed = if self.is_closed_here() { Closed::Both } else { Closed::Peer };
        ClosedByPeer { was_open, is_over: self.closed == Closed::Both }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_over_when_both_ends_have_closed() {
        let mut closed_here_first = Connection::new(0, 0);
        let closed = ClosedHere { reason: CloseReason::Normal, is_over: false };
        assert_eq!(closed_here_first.close(CloseReason::Normal), Some(closed));
        assert_eq!(closed_here_first.close(CloseReason::Normal), None, "a second close should not be sent");
        assert_eq!(closed_here_first.handle_peer_close(), ClosedByPeer { was_open: false, is_over: true });

        let mut closed_by_peer_first = Connection::new(0, 0);
        assert_eq!(closed_by_peer_first.handle_peer_close(), ClosedByPeer { was_open: true, is_over: false });
        assert_eq!(
            closed_by_peer_first.handle_peer_close(),
            ClosedByPeer { was_open: false, is_over: false }
        );
        let closed = ClosedHere { reason: CloseReason::Normal, is_over: true };
        assert_eq!(closed_by_peer_first.close(CloseReason::Normal), Some(closed));
    }

    #[test]
    fn close_after_a_violation_has_the_violations_reason() {
        let mut connection = Connection::new(0, 0);
        connection.record_violation(CloseReason::OverCredit);
        assert!(
            !connection.is_open() && !connection.may_send_control(),
            "a closed connection should not send"
        );
        let closed = ClosedHere { reason: CloseReason::OverCredit, is_over: false };
        assert_eq!(connection.close(CloseReason::Normal), Some(closed));
    }
}

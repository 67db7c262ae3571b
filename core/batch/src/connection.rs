//! One virtual connection, as one end of a link sees it.

mod incoming;
mod outgoing;

use core::net::SocketAddr;

use spillway_wire::CloseReason;

pub(crate) use self::incoming::Incoming;
pub(crate) use self::outgoing::Outgoing;

/// Both directions and who has closed.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    closed: Closed,
    /// The peer broke a rule: nothing more is delivered, and this is what we say when the application closes.
    broken: Option<CloseReason>,
    /// At a server's end: the client's address.
    client: Option<SocketAddr>,
    /// It carries a session, which keeps to credit and offsets itself.
    is_carrier: bool,
}

/// Who has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    Nobody,
    Here,
    There,
    /// The id is free.
    Both,
}

/// What an end's own closing leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedHere {
    /// What the peer is told.
    pub(crate) reason: CloseReason,
    /// Both ends have closed, so that the id is free.
    pub(crate) is_over: bool,
}

/// What the peer's closing leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClosedThere {
    /// Bytes passed until now: the application has to hear of it.
    pub(crate) was_open: bool,
    /// Both ends have closed, so that the id is free.
    pub(crate) is_over: bool,
}

impl Connection {
    /// `limit`: how much the peer lets us send at first. `window`: how much we let it send.
    pub(crate) fn new(limit: u64, window: u32) -> Connection {
        Connection::with(Outgoing::new(limit), Incoming::new(u64::from(window)))
    }

    /// One that carries a session.
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

    /// The same of this client.
    pub(crate) fn of(self, client: SocketAddr) -> Connection {
        Connection { client: Some(client), ..self }
    }

    pub(crate) fn client(&self) -> Option<SocketAddr> {
        self.client
    }

    pub(crate) fn is_carrier(&self) -> bool {
        self.is_carrier
    }

    /// Whether bytes still pass.
    pub(crate) fn is_open(&self) -> bool {
        self.closed == Closed::Nobody && self.broken.is_none()
    }

    /// Whether we may still send.
    pub(crate) fn may_send(&self) -> bool {
        self.is_open() && !self.outgoing.is_finished()
    }

    /// Whether the peer still hears what we say of the connection.
    pub(crate) fn is_heard(&self) -> bool {
        !self.is_closed_here() && self.broken.is_none()
    }

    fn is_closed_here(&self) -> bool {
        matches!(self.closed, Closed::Here | Closed::Both)
    }

    pub(crate) fn is_closed_there(&self) -> bool {
        matches!(self.closed, Closed::There | Closed::Both)
    }

    /// Whether what the client's TCP acknowledges matters: after our own close the rest is kept until the helper closes too.
    pub(crate) fn hears_acknowledgements(&self) -> bool {
        self.is_open() || (self.outgoing.is_keeping() && self.broken.is_none())
    }

    /// The peer broke a rule.
    pub(crate) fn break_off(&mut self, reason: CloseReason) {
        self.broken = Some(reason);
    }

    /// The application closes. None: it has closed already.
    pub(crate) fn close(&mut self, reason: CloseReason) -> Option<ClosedHere> {
        self.closed = match self.closed {
            Closed::Nobody => Closed::Here,
            Closed::There => Closed::Both,
            Closed::Here | Closed::Both => return None,
        };
        Some(ClosedHere { reason: self.broken.unwrap_or(reason), is_over: self.closed == Closed::Both })
    }

    /// The peer closes.
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
        assert_eq!(ours.close(CloseReason::Normal), None, "once is enough");
        assert_eq!(ours.closed_there(), ClosedThere { was_open: false, is_over: true });

        let mut theirs = Connection::new(0, 0);
        assert_eq!(theirs.closed_there(), ClosedThere { was_open: true, is_over: false });
        assert_eq!(theirs.closed_there(), ClosedThere { was_open: false, is_over: false });
        let closed = ClosedHere { reason: CloseReason::Normal, is_over: true };
        assert_eq!(theirs.close(CloseReason::Normal), Some(closed));
    }

    #[test]
    fn who_broke_a_rule_is_told_which() {
        let mut connection = Connection::new(0, 0);
        connection.break_off(CloseReason::OverCredit);
        assert!(!connection.is_open() && !connection.is_heard());
        let closed = ClosedHere { reason: CloseReason::OverCredit, is_over: false };
        assert_eq!(connection.close(CloseReason::Normal), Some(closed));
    }
}

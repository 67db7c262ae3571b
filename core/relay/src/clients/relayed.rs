//! The virtual connection of a library client, whose frames are relayed between the client's link and a server's link.

use spillway_batch::{CloseReason, Control, Id};

/// A virtual connection on a server's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VirtualId {
    pub(crate) link: usize,
    pub(crate) id: Id,
}

/// A virtual connection between a client's link and a server's link.
#[derive(Debug)]
pub(crate) struct RelayedConn {
    virtual_id: VirtualId,
    /// Whether the connection carries a session, which may resume on another carrier.
    carries_session: bool,
    state: State,
    /// The client has sent *finish*.
    is_finished: bool,
    /// Bytes of requests so far.
    sent: u64,
    /// The server's credit. `None` for sessions, whose credit is part of the session protocol.
    credit: Option<u64>,
}

/// Which ends have closed. A server's *refused* counts as a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    ClosedByClient,
    ClosedByServer,
    Closed,
}

/// What to do with data of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataAction {
    Forward(VirtualId),
    /// Ignore the data: the connection has ended.
    Ignore,
    /// Close the connection: the data exceeds the server's credit.
    OverCredit,
}

/// What to do with a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlAction {
    /// Ignore the message: its sender has closed already, or has sent *finish* twice.
    Ignore,
    Forward(VirtualId),
    /// Forward the message. No other message follows, because both ends have closed.
    ForwardLast(VirtualId),
}

impl RelayedConn {
    /// `credit`: the server's initial credit in bytes, or `None` for a session.
    pub(crate) fn new(virtual_id: VirtualId, credit: Option<u32>) -> RelayedConn {
        RelayedConn {
            virtual_id,
            carries_session: credit.is_none(),
            state: State::Open,
            is_finished: false,
            sent: 0,
            credit: credit.map(u64::from),
        }
    }

    pub(crate) fn virtual_id(&self) -> VirtualId {
        self.virtual_id
    }

    pub(crate) fn is_closed_by_server(&self) -> bool {
        matches!(self.state, State::ClosedByServer | State::Closed)
    }

    /// Whether data of the server is forwarded to the client.
    pub(crate) fn takes_replies(&self) -> bool {
        self.state == State::Open
    }

    pub(crate) fn request(&mut self, bytes: usize) -> DataAction {
        if self.state != State::Open {
            return DataAction::Ignore;
        }
        self.sent = self.sent.saturating_add(bytes as u64);
        if self.credit.is_some_and(|credit| self.sent > credit) {
            DataAction::OverCredit
        } else {
            DataAction::Forward(self.virtual_id)
        }
    }

    /// Decides about a control message of the client other than *connect* and *reconnect*.
    pub(crate) fn handle_client_control(&mut self, control: &Control) -> ControlAction {
        let is_finish = matches!(control, Control::Finish(_));
        let is_closed = matches!(self.state, State::ClosedByClient | State::Closed);
        if is_closed || (is_finish && self.is_finished) {
            return ControlAction::Ignore;
        }
        self.is_finished |= is_finish;
        if matches!(control, Control::Close(_)) {
            self.close(State::ClosedByClient);
        }
        self.forward_action()
    }

    pub(crate) fn handle_server_control(&mut self, control: &Control) -> ControlAction {
        if self.is_closed_by_server() {
            return ControlAction::Ignore;
        }
        match control {
            Control::Close(_) => self.close(State::ClosedByServer),
            Control::Refused(_) => {
                self.close(State::ClosedByServer);
                return ControlAction::ForwardLast(self.virtual_id);
            }
            Control::Credit(limit) => self.raise_credit(*limit),
            _ => {}
        }
        self.forward_action()
    }

    /// The reason for the *close* to the server when the client's link is lost. `None`: the client had closed before.
    pub(crate) fn reason_if_lost(&self) -> Option<CloseReason> {
        match self.state {
            State::ClosedByClient | State::Closed => None,
            State::Open | State::ClosedByServer if self.carries_session => Some(CloseReason::Lost),
            State::Open | State::ClosedByServer => Some(CloseReason::Reset),
        }
    }

    fn close(&mut self, by: State) {
        self.state = if self.state == State::Open { by } else { State::Closed };
    }

    fn forward_action(&self) -> ControlAction {
        if self.state == State::Closed {
            ControlAction::ForwardLast(self.virtual_id)
        } else {
            ControlAction::Forward(self.virtual_id)
        }
    }

    fn raise_credit(&mut self, limit: u64) {
        if let Some(credit) = &mut self.credit {
            *credit = limit.max(*credit);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_batch::RefuseReason;

    use super::*;

    const VIRTUAL_ID: VirtualId = VirtualId { link: 3, id: Id(7) };
    const CLOSE: Control = Control::Close(CloseReason::Normal);

    fn relayed() -> RelayedConn {
        RelayedConn::new(VIRTUAL_ID, Some(100))
    }

    #[test]
    fn connection_ends_when_both_sides_have_closed_in_either_order() {
        let mut relayed = self::relayed();
        assert_eq!(relayed.handle_client_control(&CLOSE), ControlAction::Forward(VIRTUAL_ID));
        assert_eq!(
            (relayed.request(1), relayed.takes_replies()),
            (DataAction::Ignore, false),
            "a closed connection should take nothing"
        );
        assert_eq!(relayed.handle_client_control(&CLOSE), ControlAction::Ignore);
        assert_eq!(relayed.reason_if_lost(), None);
        assert_eq!(
            relayed.handle_server_control(&Control::Credit(9)),
            ControlAction::Forward(VIRTUAL_ID),
            "control messages of a server that has not closed should be forwarded"
        );
        assert_eq!(relayed.handle_server_control(&CLOSE), ControlAction::ForwardLast(VIRTUAL_ID));

        let mut relayed = self::relayed();
        assert_eq!(relayed.handle_server_control(&CLOSE), ControlAction::Forward(VIRTUAL_ID));
        assert!(relayed.is_closed_by_server(), "the connection should be closed by the server");
        assert_eq!(
            (relayed.request(1), relayed.takes_replies()),
            (DataAction::Ignore, false),
            "a closed connection should take nothing"
        );
        assert_eq!(relayed.handle_server_control(&CLOSE), ControlAction::Ignore);
        assert_eq!(relayed.reason_if_lost(), Some(CloseReason::Reset));
        assert_eq!(relayed.handle_client_control(&CLOSE), ControlAction::ForwardLast(VIRTUAL_ID));
    }

    #[test]
    fn refusal_ends_the_connection_in_every_state() {
        let refused = Control::Refused(RefuseReason::Full);
        assert_eq!(relayed().handle_server_control(&refused), ControlAction::ForwardLast(VIRTUAL_ID));
        let mut closed = relayed();
        closed.handle_client_control(&CLOSE);
        assert_eq!(closed.handle_server_control(&refused), ControlAction::ForwardLast(VIRTUAL_ID));
    }

    #[test]
    fn repeated_finish_is_ignored() {
        let mut relayed = relayed();
        let finish = Control::Finish(0);
        assert_eq!(relayed.handle_client_control(&finish), ControlAction::Forward(VIRTUAL_ID));
        assert_eq!(relayed.handle_client_control(&finish), ControlAction::Ignore);
        assert!(relayed.takes_replies(), "the connection should still take replies");
    }

    #[test]
    fn requests_are_limited_by_credit_except_in_sessions() {
        let mut relayed = relayed();
        assert_eq!(relayed.request(100), DataAction::Forward(VIRTUAL_ID));
        relayed.handle_server_control(&Control::Credit(150));
        relayed.handle_server_control(&Control::Credit(50));
        assert_eq!(relayed.request(50), DataAction::Forward(VIRTUAL_ID), "a lower credit should be ignored");
        assert_eq!(relayed.request(1), DataAction::OverCredit);
        let mut session = RelayedConn::new(VIRTUAL_ID, None);
        assert_eq!(session.request(usize::MAX), DataAction::Forward(VIRTUAL_ID));
        assert_eq!(session.reason_if_lost(), Some(CloseReason::Lost));
    }
}

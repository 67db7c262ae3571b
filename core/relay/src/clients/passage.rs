//! The virtual connection of a library client, whose frames pass between the client's link and a server's link.

use spillway_batch::{CloseReason, Control, Id};

/// Where a virtual connection is on the links to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the link.
    pub(crate) link: usize,
    /// The connection's id there.
    pub(crate) id: Id,
}

/// A virtual connection between a client's link and a server's link.
#[derive(Debug)]
pub(crate) struct Passage {
    place: Place,
    /// It carries a session, which may go on elsewhere.
    is_of_session: bool,
    state: State,
    /// The client has said that it sends no more data.
    is_finished: bool,
    /// Bytes of requests so far, and up to where the server's credit goes. Sessions keep to their own.
    sent: u64,
    credit: Option<u64>,
}

/// Which ends have closed. The server's refusal closes its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    ClosedByClient,
    ClosedByServer,
    Closed,
}

/// What to do with a piece of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Forward(Place),
    /// Its connection has ended.
    PassOver,
    /// It is more than the server has allowed.
    OverCredit,
}

/// What to do with a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It comes after the end of its sender's side.
    PassOver,
    Forward(Place),
    /// Forward it; then both sides have closed.
    Last(Place),
}

impl Passage {
    /// `credit`: bytes of requests that the server allows at first; none for a session.
    pub(crate) fn new(place: Place, credit: Option<u32>) -> Passage {
        Passage {
            place,
            is_of_session: credit.is_none(),
            state: State::Open,
            is_finished: false,
            sent: 0,
            credit: credit.map(u64::from),
        }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn is_closed_by_server(&self) -> bool {
        matches!(self.state, State::ClosedByServer | State::Closed)
    }

    /// Whether data of the server still goes to the client.
    pub(crate) fn takes_replies(&self) -> bool {
        self.state == State::Open
    }

    /// The client has sent a piece of a request.
    pub(crate) fn request(&mut self, bytes: usize) -> Request {
        if self.state != State::Open {
            return Request::PassOver;
        }
        self.sent = self.sent.saturating_add(bytes as u64);
        if self.credit.is_some_and(|credit| self.sent > credit) {
            Request::OverCredit
        } else {
            Request::Forward(self.place)
        }
    }

    /// The client has sent a control message, which opens nothing.
    pub(crate) fn client_says(&mut self, control: &Control) -> Step {
        let finishes = matches!(control, Control::Finish(_));
        let is_closed = matches!(self.state, State::ClosedByClient | State::Closed);
        if is_closed || (finishes && self.is_finished) {
            return Step::PassOver;
        }
        self.is_finished |= finishes;
        if matches!(control, Control::Close(_)) {
            self.close(State::ClosedByClient);
        }
        self.forwarded()
    }

    /// The server has sent a control message.
    pub(crate) fn server_says(&mut self, control: &Control) -> Step {
        if self.is_closed_by_server() {
            return Step::PassOver;
        }
        match control {
            Control::Close(_) => self.close(State::ClosedByServer),
            Control::Refused(_) => {
                self.close(State::ClosedByServer);
                return Step::Last(self.place);
            }
            Control::Credit(limit) => self.raise_credit(*limit),
            _ => {}
        }
        self.forwarded()
    }

    /// How the server learns that the client is lost. None: the client had closed.
    pub(crate) fn reason_if_lost(&self) -> Option<CloseReason> {
        match self.state {
            State::ClosedByClient | State::Closed => None,
            State::Open | State::ClosedByServer if self.is_of_session => Some(CloseReason::Lost),
            State::Open | State::ClosedByServer => Some(CloseReason::Reset),
        }
    }

    fn close(&mut self, by: State) {
        self.state = if self.state == State::Open { by } else { State::Closed };
    }

    fn forwarded(&self) -> Step {
        if self.state == State::Closed { Step::Last(self.place) } else { Step::Forward(self.place) }
    }

    /// The server allows requests up to this offset.
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

    const PLACE: Place = Place { link: 3, id: Id(7) };
    const CLOSE: Control = Control::Close(CloseReason::Normal);

    fn passage() -> Passage {
        Passage::new(PLACE, Some(100))
    }

    #[test]
    fn ends_when_both_sides_have_closed_in_either_order() {
        let mut passage = self::passage();
        assert_eq!(passage.client_says(&CLOSE), Step::Forward(PLACE));
        assert_eq!((passage.request(1), passage.takes_replies()), (Request::PassOver, false));
        assert_eq!(passage.client_says(&CLOSE), Step::PassOver);
        assert_eq!(passage.reason_if_lost(), None);
        assert_eq!(passage.server_says(&Control::Credit(9)), Step::Forward(PLACE), "it has not closed");
        assert_eq!(passage.server_says(&CLOSE), Step::Last(PLACE));

        let mut passage = self::passage();
        assert_eq!(passage.server_says(&CLOSE), Step::Forward(PLACE));
        assert!(passage.is_closed_by_server());
        assert_eq!((passage.request(1), passage.takes_replies()), (Request::PassOver, false));
        assert_eq!(passage.server_says(&CLOSE), Step::PassOver);
        assert_eq!(passage.reason_if_lost(), Some(CloseReason::Reset));
        assert_eq!(passage.client_says(&CLOSE), Step::Last(PLACE));
    }

    #[test]
    fn a_refusal_ends_it_whatever_the_client_has_said() {
        let refused = Control::Refused(RefuseReason::Full);
        assert_eq!(passage().server_says(&refused), Step::Last(PLACE));
        let mut closed = passage();
        closed.client_says(&CLOSE);
        assert_eq!(closed.server_says(&refused), Step::Last(PLACE));
    }

    #[test]
    fn the_client_finishes_once() {
        let mut passage = passage();
        let finish = Control::Finish(0);
        assert_eq!(passage.client_says(&finish), Step::Forward(PLACE));
        assert_eq!(passage.client_says(&finish), Step::PassOver);
        assert!(passage.takes_replies());
    }

    #[test]
    fn requests_go_as_far_as_the_server_allows() {
        let mut passage = passage();
        assert_eq!(passage.request(100), Request::Forward(PLACE));
        passage.server_says(&Control::Credit(150));
        passage.server_says(&Control::Credit(50));
        assert_eq!(passage.request(50), Request::Forward(PLACE), "credit never shrinks");
        assert_eq!(passage.request(1), Request::OverCredit);
        let mut session = Passage::new(PLACE, None);
        assert_eq!(session.request(usize::MAX), Request::Forward(PLACE));
        assert_eq!(session.reason_if_lost(), Some(CloseReason::Lost));
    }
}

//! The passage of a library client's frames to the server's link and back.

use spillway_batch::{CloseReason, Connect, Control, Id, LinkError, Reconnect, RefuseReason};
use spillway_transport::{Conn, Transport};

use super::Relay;
use crate::clients::{Passage, Place, Request, Step};
use crate::reasons::{Cut, Refusal};

/// What the client sends.
impl Relay {
    /// A piece of a request.
    pub(super) fn passage_request(&mut self, conn: Conn, request: Request, (bytes, last): (&[u8], bool)) {
        match request {
            Request::Forward(Place { link, id }) => {
                if let Some(linked) = self.links.carrier(link) {
                    linked.relay_data(id, bytes, last);
                }
            }
            Request::PassOver => {}
            Request::OverCredit => self.break_passage(conn),
        }
    }

    /// The client has sent more than the server allows: both are told, and nothing more of it passes.
    fn break_passage(&mut self, conn: Conn) {
        let broken = self.clients.library_mut(conn).and_then(|client| {
            let place = client.break_passage()?;
            Some((client.service(), place))
        });
        let Some((service, Place { link, id })) = broken else {
            debug_assert!(false, "only a client with a connection has credit to exceed");
            return;
        };
        self.service_mut(service).counters_mut().connections_broken += 1;
        if let Some(linked) = self.links.carrier(link) {
            linked.relay_control(id, Control::Close(CloseReason::OverCredit));
            linked.orphan(id);
        }
        self.mark_dirty(conn);
    }

    /// # Errors
    /// The client opens a connection with a wrong id, or a second one.
    pub(super) fn client_control(&mut self, conn: Conn, id: Id, control: Control) -> Result<(), LinkError> {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has just taken an event of this library client");
            return Ok(());
        };
        if matches!(control, Control::Connect(_) | Control::Reconnect(_)) {
            if !client.may_open(id) {
                return Err(LinkError::Id(id));
            }
            if let Err(why) = self.open_passage(conn, control) {
                self.refuse_passage(conn, why);
            }
            return Ok(());
        }
        let (place, is_over) = match client.client_says(id, &control) {
            Step::PassOver => return Ok(()),
            Step::Forward(place) => (place, false),
            Step::Last(place) => (place, true),
        };
        if let Some(linked) = self.links.carrier(place.link) {
            linked.relay_control(place.id, control);
        }
        if is_over {
            self.end_passage(conn, place);
        }
        Ok(())
    }

    /// `first_words`: *connect* or *reconnect*.
    fn open_passage(&mut self, conn: Conn, first_words: Control) -> Result<(), Refusal> {
        let Some(client) = self.clients.library(conn) else {
            debug_assert!(false, "the caller has seen a library client");
            return Ok(());
        };
        // The server's link belongs to one server: which one was wanted is settled here.
        let (address, wanted, is_of_session, first_words) = match first_words {
            Control::Connect(connect) => {
                let forwarded = Control::Connect(Connect { server: None, ..connect });
                (connect.client, connect.server, connect.session.is_some(), forwarded)
            }
            Control::Reconnect(reconnect) => {
                let forwarded = Control::Reconnect(Reconnect { server: None, ..reconnect });
                (reconnect.client, reconnect.server, true, forwarded)
            }
            _ => {
                debug_assert!(false, "the caller has seen one of the two");
                return Ok(());
            }
        };
        let (service, credit) = (client.service(), client.credit());
        if !client.speaks_for_itself(address) {
            return Err(Refusal::NotItsOwnAddress);
        }
        if !self.service(service).config().serves(wanted) {
            return Err(Refusal::OtherServer);
        }
        self.service(service).takes_clients(self.turn.now)?;
        let link = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let linked = self.links.linked_mut(link).ok_or(Refusal::LinkDown)?;
        // The server was restarted with less credit since the client's link began: it must ask again. A session gets its
        // credit from the server.
        if !is_of_session && linked.initial_credit() < credit {
            return Err(Refusal::LinkDown);
        }
        let allowed = (!is_of_session).then(|| linked.initial_credit());
        let id = linked.open_relayed(conn, first_words)?;
        if let Some(client) = self.clients.library_mut(conn) {
            client.opened(Passage::new(Place { link, id }, allowed));
        }
        self.service_mut(service).counters_mut().library_connections += 1;
        Ok(())
    }

    fn refuse_passage(&mut self, conn: Conn, why: Refusal) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has seen a library client");
            return;
        };
        let reason = match why {
            Refusal::NotItsOwnAddress | Refusal::Address => RefuseReason::Forbidden,
            Refusal::OtherServer => RefuseReason::UnknownServer,
            Refusal::LinkFull | Refusal::ClientsMax | Refusal::Memory => RefuseReason::Full,
            _ => RefuseReason::Unavailable,
        };
        client.say(Control::Refused(reason));
        let (service, peer) = (client.service(), client.peer());
        self.refused(service, peer, why);
        self.mark_dirty(conn);
    }

    /// Both sides have closed, or the server refused: the id is free.
    fn end_passage(&mut self, conn: Conn, place: Place) {
        if let Some(linked) = self.links.carrier(place.link) {
            linked.release_relayed(place.id);
        }
        self.leave_passage(conn);
    }

    /// A library client's connection has ended, or the link that carried it. The client's own link goes on without it.
    pub(super) fn leave_passage(&mut self, conn: Conn) {
        if let Some(client) = self.clients.library_mut(conn) {
            client.leave_passage();
            self.mark_dirty(conn);
        }
    }
}

/// What the server sends.
impl Relay {
    pub(super) fn passage_data<T: Transport>(&mut self, link: usize, id: Id, bytes: &[u8], out: &mut T) {
        // The client may have gone before the server's data came.
        let Some(conn) = self.links.client(link, id) else { return };
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "ids of library clients are given to others when both sides have closed");
            return;
        };
        if !client.reply(bytes, &mut self.memory) {
            return;
        }
        self.services[usize::from(client.service())].counters_mut().replies.count(bytes.len());
        if self.is_within_buffer(conn, out) {
            self.mark_dirty(conn);
        }
    }

    pub(super) fn passage_control<T: Transport>(
        &mut self,
        link: usize,
        id: Id,
        control: Control,
        out: &mut T,
    ) {
        let Some(conn) = self.links.client(link, id) else {
            return self.orphan_control(link, id, control);
        };
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "ids of library clients are given to others when both sides have closed");
            return;
        };
        let (service, peer) = (client.service(), client.peer());
        let (place, is_over) = match client.server_says(control) {
            Step::PassOver => return,
            Step::Forward(place) => (place, false),
            Step::Last(place) => (place, true),
        };
        if !self.is_within_buffer(conn, out) {
            return;
        }
        self.mark_dirty(conn);
        if let Control::Refused(reason) = control {
            self.refused(service, peer, Refusal::Server(reason));
        }
        if is_over {
            self.end_passage(conn, place);
        }
    }

    /// A control message for a client that may have gone: the id is free when the server has closed too.
    fn orphan_control(&mut self, link: usize, id: Id, control: Control) {
        let ends = matches!(control, Control::Close(_) | Control::Refused(_));
        if ends
            && let Some(linked) = self.links.carrier(link)
            && linked.is_orphan(id)
        {
            linked.release_relayed(id);
        }
    }

    /// A client for which too much waits, although it was sent what could be sent, is cut. False: it was.
    #[must_use]
    fn is_within_buffer<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        let most = self.settings.connection_buffer_bytes;
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has seen a library client");
            return false;
        };
        if client.pending() > most {
            // What the turn has gathered may still go.
            client.transmit(self.turn.now, conn, &mut self.memory, out);
        }
        let is_within = client.pending() <= most;
        if !is_within {
            self.cut(conn, Cut::Buffer, out);
        }
        is_within
    }
}

//! How clients' connections end: by the client, by the server, or by us.

use spillway_batch::{CloseReason, Control};
use spillway_transport::{Conn, LostReason, Transport};

use super::Relay;
use crate::clients::{Holder, Sort};
use crate::notice::Notice;
use crate::reasons::Cut;

impl Relay {
    /// A new client, which has been admitted.
    pub(super) fn put_client(&mut self, conn: Conn, holder: Holder) {
        if let Some((service, sort)) = holder.client_of() {
            self.service_mut(service).client_came(sort);
        }
        self.clients.put(conn, holder);
    }

    /// Forgets a client's connection and what was buffered for it. Its virtual connection is the caller's. `failed`
    /// when that is not the client's doing, nor its server's.
    pub(super) fn drop_client(&mut self, conn: Conn, failed: bool) {
        self.settle(conn);
        let mut holder = self.clients.take(conn);
        let Some((service, sort)) = holder.client_of() else {
            debug_assert!(
                false,
                "a client is dropped once: callers have seen it, and lists of clients name each once"
            );
            return;
        };
        self.service_mut(service).client_went(sort, failed);
        if let Holder::Raw(client) = &mut holder {
            let stalled = client.end_stall(self.turn.now);
            self.service_mut(service).counters_mut().stalls.add(stalled);
        }
        let is_stranger = match &holder {
            Holder::Library(client) => !client.is_established(),
            Holder::Leaving(leaving) => leaving.sort() == Sort::Library,
            _ => false,
        };
        if is_stranger {
            self.admission.end(conn);
        }
        holder.over(&mut self.memory);
    }

    /// The client has closed or lost its connection: its virtual connection ends.
    pub(super) fn client_lost(&mut self, conn: Conn, reason: LostReason) {
        let closed = if reason == LostReason::Closed { CloseReason::Normal } else { CloseReason::Reset };
        self.end_virtual(conn, closed);
        self.drop_client(conn, false);
    }

    /// A client is reset by us, and so is its virtual connection.
    pub(super) fn reset_client<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.end_virtual(conn, CloseReason::Reset);
        self.drop_client(conn, true);
        out.abort(conn);
    }

    fn end_virtual(&mut self, conn: Conn, reason: CloseReason) {
        match self.clients.get(conn) {
            Some(Holder::Raw(client)) => {
                if let Some(linked) = self.links.carrier(client.link()) {
                    linked.close_plain(client.id(), reason);
                }
            }
            // A library client says itself when it closes normally: whatever ends its link before is a reset.
            Some(Holder::Library(_)) => self.orphan(conn),
            _ => {}
        }
    }

    /// A library client is gone: the server learns it, and the id stays until the server has closed too.
    pub(super) fn orphan(&mut self, conn: Conn) {
        // A client without a connection to the server leaves none behind.
        let passage = self.clients.library_mut(conn).and_then(|client| client.take_passage());
        let Some(passage) = passage else { return };
        let place = passage.place();
        let Some(linked) = self.links.carrier(place.link) else { return };
        if let Some(reason) = passage.reason_if_lost() {
            linked.relay_control(place.id, Control::Close(reason));
        }
        if passage.is_closed_by_server() {
            linked.release_relayed(place.id);
        } else {
            linked.orphan(place.id);
        }
    }

    /// A client is reset because of what it does, or does not do.
    pub(super) fn cut<T: Transport>(&mut self, conn: Conn, why: Cut, out: &mut T) {
        let Some((service, client)) = self.clients.get(conn).and_then(Holder::identity) else {
            debug_assert!(false, "only clients are cut, and each is still there");
            return;
        };
        self.service_mut(service).counters_mut().cut.count(why);
        self.notices.push(Notice::ClientCut { service, client, why });
        self.reset_client(conn, out);
    }
}

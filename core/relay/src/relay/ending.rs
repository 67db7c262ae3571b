//! Ends of clients' connections: by the client, by the server, or by the relay.

use spillway_batch::{CloseReason, Control};
use spillway_transport::{Conn, LostReason, Transport};

use super::Relay;
use crate::clients::{ClientType, ConnRole};
use crate::notice::Notice;
use crate::reasons::ResetReason;

impl Relay {
    pub(super) fn put_client(&mut self, conn: Conn, role: ConnRole) {
        if let Some((service, client_type)) = role.client_of() {
            self.service_mut(service).client_added(client_type);
        }
        self.clients.put(conn, role);
    }

    /// Removes a client and its buffers. The caller must end its virtual connection. `failed`: neither the client nor
    /// the server has closed the connection normally; counted during a drain.
    pub(super) fn drop_client(&mut self, conn: Conn, failed: bool) {
        self.send_final_ack(conn);
        let mut role = self.clients.take(conn);
        let Some((service, client_type)) = role.client_of() else {
            debug_assert!(false, "each client should be removed only once");
            return;
        };
        self.service_mut(service).client_removed(client_type, failed);
        if let ConnRole::Plain(client) = &mut role {
            let stalled = client.end_stall(self.turn.now);
            self.service_mut(service).counters_mut().stalls.add(stalled);
        }
        let may_be_unauthenticated = match &role {
            ConnRole::Library(client) => !client.is_established(),
            ConnRole::Lingering(lingering) => lingering.client_type() == ClientType::Library,
            _ => false,
        };
        if may_be_unauthenticated {
            self.admission.end(conn);
        }
        role.release_memory(&mut self.memory);
    }

    pub(super) fn client_lost(&mut self, conn: Conn, reason: LostReason) {
        let closed = if reason == LostReason::Closed { CloseReason::Normal } else { CloseReason::Reset };
        self.end_virtual(conn, closed);
        self.drop_client(conn, false);
    }

    pub(super) fn reset_client<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.end_virtual(conn, CloseReason::Reset);
        self.drop_client(conn, true);
        out.abort(conn);
    }

    fn end_virtual(&mut self, conn: Conn, reason: CloseReason) {
        match self.clients.get(conn) {
            Some(ConnRole::Plain(client)) => {
                if let Some(linked) = self.links.open_link(client.link()) {
                    linked.close_plain(client.id(), reason);
                }
            }
            // A library client sends *close* for a normal end, so the end of its link counts as a loss.
            Some(ConnRole::Library(_)) => self.orphan(conn),
            _ => {}
        }
    }

    /// Closes the virtual connection of a library client that has left. The id stays in use until the server has
    /// closed, too.
    pub(super) fn orphan(&mut self, conn: Conn) {
        let relayed = self.clients.library_mut(conn).and_then(|client| client.take_relayed());
        let Some(relayed) = relayed else { return };
        let virtual_id = relayed.virtual_id();
        let Some(linked) = self.links.open_link(virtual_id.link) else { return };
        if let Some(reason) = relayed.reason_if_lost() {
            linked.relay_control(virtual_id.id, Control::Close(reason));
        }
        if relayed.is_closed_by_server() {
            linked.release_relayed(virtual_id.id);
        } else {
            linked.orphan(virtual_id.id);
        }
    }

    /// Resets a client for a reason that is counted and logged.
    pub(super) fn reset_for<T: Transport>(&mut self, conn: Conn, why: ResetReason, out: &mut T) {
        let Some((service, client)) = self.clients.get(conn).and_then(ConnRole::identity) else {
            debug_assert!(false, "callers reset only clients that they have found");
            return;
        };
        self.service_mut(service).counters_mut().reset.count(why);
        self.notices.push(Notice::ClientReset { service, client, why });
        self.reset_client(conn, out);
    }
}

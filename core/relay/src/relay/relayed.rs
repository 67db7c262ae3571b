//! Relaying of a library client's frames to the server's link and back.

use spillway_batch::{CloseReason, Connect, Control, Id, LinkError, Reconnect, RefuseReason};
use spillway_transport::{Conn, Transport};

use super::Relay;
use crate::clients::{ControlAction, DataAction, RelayedConn, VirtualId};
use crate::reasons::{Refusal, ResetReason};

/// Frames from clients.
impl Relay {
    pub(super) fn relay_request(&mut self, conn: Conn, action: DataAction, (bytes, last): (&[u8], bool)) {
        match action {
            DataAction::Forward(VirtualId { link, id }) => {
                if let Some(linked) = self.links.open_link(link) {
                    linked.relay_data(id, bytes, last);
                }
            }
            DataAction::Ignore => {}
            DataAction::OverCredit => self.close_over_credit(conn),
        }
    }

    /// Closes a connection at both ends, because the client exceeded the server's credit.
    fn close_over_credit(&mut self, conn: Conn) {
        let closed = self.clients.library_mut(conn).and_then(|client| {
            let virtual_id = client.close_over_credit()?;
            Some((client.service(), virtual_id))
        });
        let Some((service, VirtualId { link, id })) = closed else {
            debug_assert!(false, "only a client with a connection can exceed its credit");
            return;
        };
        self.service_mut(service).counters_mut().connections_broken += 1;
        if let Some(linked) = self.links.open_link(link) {
            linked.relay_control(id, Control::Close(CloseReason::OverCredit));
            linked.orphan(id);
        }
        self.mark_dirty(conn);
    }

    /// Handles a control message of a client.
    ///
    /// # Errors
    /// The client opens a connection with an invalid id, or a second connection.
    pub(super) fn client_control(&mut self, conn: Conn, id: Id, control: Control) -> Result<(), LinkError> {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has just taken an event of this client");
            return Ok(());
        };
        if matches!(control, Control::Connect(_) | Control::Reconnect(_)) {
            if !client.may_open(id) {
                return Err(LinkError::Id(id));
            }
            if let Err(why) = self.open_relayed(conn, control) {
                self.refuse_relayed(conn, why);
            }
            return Ok(());
        }
        let (virtual_id, has_ended) = match client.handle_client_control(id, &control) {
            ControlAction::Ignore => return Ok(()),
            ControlAction::Forward(virtual_id) => (virtual_id, false),
            ControlAction::ForwardLast(virtual_id) => (virtual_id, true),
        };
        if let Some(linked) = self.links.open_link(virtual_id.link) {
            linked.relay_control(virtual_id.id, control);
        }
        if has_ended {
            self.end_relayed(conn, virtual_id);
        }
        Ok(())
    }

    /// `opening`: *connect* or *reconnect*.
    fn open_relayed(&mut self, conn: Conn, opening: Control) -> Result<(), Refusal> {
        let Some(client) = self.clients.library(conn) else {
            debug_assert!(false, "the caller has found a library client");
            return Ok(());
        };
        // The helper checks the requested server, and does not forward it: a link belongs to one server.
        let (address, server, carries_session, opening) = match opening {
            Control::Connect(connect) => {
                let forwarded = Control::Connect(Connect { server: None, ..connect });
                (connect.client, connect.server, connect.session.is_some(), forwarded)
            }
            Control::Reconnect(reconnect) => {
                let forwarded = Control::Reconnect(Reconnect { server: None, ..reconnect });
                (reconnect.client, reconnect.server, true, forwarded)
            }
            _ => {
                debug_assert!(false, "the caller has checked the kind of control message");
                return Ok(());
            }
        };
        let (service, announced_credit) = (client.service(), client.credit());
        if !client.is_own_address(address) {
            return Err(Refusal::ForeignAddress);
        }
        if !self.service(service).config().serves(server) {
            return Err(Refusal::OtherServer);
        }
        self.service(service).accepts_clients(self.turn.now)?;
        let link = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let linked = self.links.linked_mut(link).ok_or(Refusal::LinkDown)?;
        // If the server has restarted with less credit than this helper announced to the client, the client
        // must open its link to the helper again. A session gets its credit from the server.
        if !carries_session && linked.initial_credit() < announced_credit {
            return Err(Refusal::LinkDown);
        }
        let initial_credit = (!carries_session).then(|| linked.initial_credit());
        let id = linked.open_relayed(conn, opening)?;
        if let Some(client) = self.clients.library_mut(conn) {
            client.set_relayed(RelayedConn::new(VirtualId { link, id }, initial_credit));
        }
        self.service_mut(service).counters_mut().library_connections += 1;
        Ok(())
    }

    fn refuse_relayed(&mut self, conn: Conn, why: Refusal) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has found a library client");
            return;
        };
        let reason = match why {
            Refusal::ForeignAddress | Refusal::Address => RefuseReason::Forbidden,
            Refusal::OtherServer => RefuseReason::UnknownServer,
            Refusal::LinkFull | Refusal::ClientsMax | Refusal::Memory => RefuseReason::Full,
            _ => RefuseReason::Unavailable,
        };
        client.send_control(Control::Refused(reason));
        let (service, peer) = (client.service(), client.peer());
        self.report_refusal(service, peer, why);
        self.mark_dirty(conn);
    }

    /// Frees the id of a connection that both ends have closed or the server has refused.
    fn end_relayed(&mut self, conn: Conn, virtual_id: VirtualId) {
        if let Some(linked) = self.links.open_link(virtual_id.link) {
            linked.release_relayed(virtual_id.id);
        }
        self.remove_relayed(conn);
    }

    /// Removes a library client's connection. The client's own link stays open.
    pub(super) fn remove_relayed(&mut self, conn: Conn) {
        if let Some(client) = self.clients.library_mut(conn) {
            client.remove_relayed();
            self.mark_dirty(conn);
        }
    }
}

/// Frames from servers.
impl Relay {
    pub(super) fn relay_reply<T: Transport>(&mut self, link: usize, id: Id, bytes: &[u8], out: &mut T) {
        // `None`: the client has left before the data arrived.
        let Some(conn) = self.links.client(link, id) else { return };
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the id should belong to a library client until both ends have closed");
            return;
        };
        if !client.reply(bytes, &mut self.memory) {
            return;
        }
        self.services[usize::from(client.service())].counters_mut().replies.count(bytes.len());
        if self.enforce_buffer_limit(conn, out) {
            self.mark_dirty(conn);
        }
    }

    pub(super) fn relay_server_control<T: Transport>(
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
            debug_assert!(false, "the id should belong to a library client until both ends have closed");
            return;
        };
        let (service, peer) = (client.service(), client.peer());
        // `handle_server_control` has added a forwarded message to the client's output.
        let (virtual_id, has_ended) = match client.handle_server_control(control) {
            ControlAction::Ignore => return,
            ControlAction::Forward(virtual_id) => (virtual_id, false),
            ControlAction::ForwardLast(virtual_id) => (virtual_id, true),
        };
        if !self.enforce_buffer_limit(conn, out) {
            return;
        }
        self.mark_dirty(conn);
        if let Control::Refused(reason) = control {
            self.report_refusal(service, peer, Refusal::Server(reason));
        }
        if has_ended {
            self.end_relayed(conn, virtual_id);
        }
    }

    /// Handles a control message for a client that has left: frees the id when the server closes too.
    fn orphan_control(&mut self, link: usize, id: Id, control: Control) {
        let is_end = matches!(control, Control::Close(_) | Control::Refused(_));
        if is_end
            && let Some(linked) = self.links.open_link(link)
            && linked.is_orphan(id)
        {
            linked.release_relayed(id);
        }
    }

    /// Resets a client whose output exceeds its buffer although the transport has taken what it could.
    /// Returns whether the client remains.
    #[must_use]
    fn enforce_buffer_limit<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        let limit = self.settings.connection_buffer_bytes;
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has found a library client");
            return false;
        };
        if client.pending() > limit {
            client.transmit(self.turn.now, conn, &mut self.memory, out);
        }
        let is_within = client.pending() <= limit;
        if !is_within {
            self.reset_for(conn, ResetReason::Buffer, out);
        }
        is_within
    }
}

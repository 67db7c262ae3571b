//! Plain clients: how they come in, also behind a load balancer, and what their server says about their connections.
//!
//! Behind a gate a client's bytes are acknowledged when the server has taken them, so that a helper that dies has
//! acknowledged nothing that is lost (PostMan §4.2). Kernel sockets have no gates, and acknowledge by themselves.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, Id, RefuseReason};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::PROXY_BYTES_MAX;

use super::Relay;
use crate::clients::{Announcing, Arrival, Header, Holder, RawClient};
use crate::reasons::{ProxyFault, Refusal};
use crate::timers::Timer;

impl Relay {
    pub(super) fn raw_opened<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if self.service(service).is_load_balancer(peer) {
            return self.announcing_opened(conn, service, peer, out);
        }
        let arrival = Arrival { peer, via: None, granted: 0, before: 0 };
        let opened = self.admit(service, peer).and_then(|()| {
            self.make_room(out);
            self.open_raw(conn, service, arrival, out)
        });
        if let Err(why) = opened {
            self.refused(service, peer, why);
            out.abort(conn);
        }
    }

    /// Whether a client may come in, whether its link is up or not.
    pub(super) fn admit(&self, service: u16, client: SocketAddr) -> Result<(), Refusal> {
        self.service(service).admits(client.ip())?;
        self.room(service)
    }

    fn open_raw<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        arrival: Arrival,
        out: &mut T,
    ) -> Result<(), Refusal> {
        let now = self.turn.now;
        let link = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let keeps = self.service(service).config().acknowledges_replies;
        let linked = self.links.linked_mut(link).ok_or(Refusal::LinkDown)?;
        let window = self.settings.first_window_bytes.min(linked.window_bytes_max());
        let id = linked.open_plain(conn, arrival.peer, window, keeps)?;
        let mut client = RawClient::new(now, service, (link, id), arrival, window);
        if keeps && linked.carries_sessions() {
            client.keeps_replies();
            out.watch_acknowledged(conn, true);
        }
        let hears = keeps && linked.hears_what_is_taken();
        out.release(conn, if hears { client.stream_offset(0) } else { u64::MAX });
        client.grant(now, conn, linked, &mut self.memory, out);
        self.put_client(conn, Holder::Raw(client));
        self.service_mut(service).counters_mut().raw_clients += 1;
        Ok(())
    }

    /// The server has taken requests of a client up to this offset.
    pub(super) fn requests_taken<T: Transport>(
        &mut self,
        link: usize,
        id: Id,
        (through, is_finished): (u64, bool),
        out: &mut T,
    ) {
        // A client that leaves sends no more requests.
        if let Some(conn) = self.links.client(link, id)
            && let Some(client) = self.clients.raw(conn)
        {
            // The end of the stream counts one, as it does in TCP.
            out.release(conn, client.stream_offset(through) + u64::from(is_finished));
        }
    }

    /// Replies for a plain client.
    pub(super) fn reply<T: Transport>(&mut self, link: usize, id: Id, bytes: &[u8], out: &mut T) {
        let Some(linked) = self.links.carrier(link) else { return };
        // What a server still sends to a client that has left comes too late.
        let Some(conn) = linked.client(id) else { return };
        let Some(client) = self.clients.raw_mut(conn) else { return };
        self.services[usize::from(client.service())].counters_mut().replies.count(bytes.len());
        client.reply(self.turn.now, conn, bytes, linked, &mut self.memory, out);
    }

    /// The server sends no more to a plain client.
    pub(super) fn raw_finished<T: Transport>(&mut self, link: usize, id: Id, out: &mut T) {
        if let Some(conn) = self.links.client(link, id)
            && let Some(client) = self.clients.raw_mut(conn)
        {
            client.server_finished(conn, out);
        }
    }

    pub(super) fn raw_refused<T: Transport>(
        &mut self,
        link: usize,
        id: Id,
        reason: RefuseReason,
        out: &mut T,
    ) {
        // The client may have gone before the server's answer came.
        let Some(conn) = self.links.client(link, id) else { return };
        let Some(client) = self.clients.raw(conn) else { return };
        let (service, peer) = (client.service(), client.peer());
        self.refused(service, peer, Refusal::Server(reason));
        if let Some(linked) = self.links.carrier(link) {
            linked.plain_refused(id);
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    /// The server's application has closed a plain client's connection, or the connection is broken.
    pub(super) fn raw_closed<T: Transport>(
        &mut self,
        now: Time,
        link: usize,
        (id, reason): (Id, CloseReason),
        out: &mut T,
    ) {
        let service = self.links[link].service();
        let is_broken = matches!(reason, CloseReason::Protocol | CloseReason::OverCredit);
        self.service_mut(service).counters_mut().connections_broken += u64::from(is_broken);
        let Some(linked) = self.links.carrier(link) else { return };
        let conn = linked.client(id);
        let client = conn.and_then(|conn| self.clients.raw_mut(conn));
        let is_normal = reason == CloseReason::Normal;
        let owed = client.as_ref().filter(|_| is_normal).and_then(|client| client.owed(linked));
        if owed.is_none() {
            linked.close_plain(id, reason);
        }
        // The client may have gone before the server closed.
        let Some(conn) = conn else { return };
        if !is_normal {
            self.drop_client(conn, true);
            out.abort(conn);
            return;
        }
        // A leaving client: its server has closed before.
        let Some(client) = client else { return };
        let stalled = client.end_stall(now);
        let leaving = client.leave(owed, &mut self.memory);
        out.release(conn, u64::MAX); // the server wants no more of the client
        if client.is_granted_nothing() {
            out.grant(conn, 1); // so that we hear if it says more
        }
        out.watch_acknowledged(conn, true);
        self.service_mut(service).counters_mut().stalls.add(stalled);
        self.let_leave(now, conn, leaving, out);
    }
}

/// Behind a load balancer.
impl Relay {
    /// It waits for a header. Whether its client may come in is known after that.
    fn announcing_opened<T: Transport>(&mut self, conn: Conn, service: u16, peer: SocketAddr, out: &mut T) {
        if let Err(why) = self.room(service) {
            self.refused(service, peer, why);
            return out.abort(conn);
        }
        self.make_room(out);
        let now = self.turn.now;
        self.put_client(conn, Holder::Announcing(Box::new(Announcing::new(now, service, peer))));
        #[expect(clippy::cast_possible_truncation, reason = "PROXY_BYTES_MAX is 4,096")]
        out.grant(conn, PROXY_BYTES_MAX as u32);
        self.clients.start(Timer::ProxyHeader, now, conn);
    }

    pub(super) fn announcing_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(Holder::Announcing(announcing)) = self.clients.get_mut(conn) else {
            debug_assert!(false, "the caller has seen that the header is still to come");
            return;
        };
        let service = announcing.service();
        let (arrival, rest) = match announcing.receive(bytes, &mut self.memory) {
            Header::Incomplete => return,
            Header::Complete { arrival, rest } => (arrival, rest),
            Header::Wrong(fault) => return self.refuse_announcing(conn, fault, out),
        };
        // While its service is drained it is refused below, which is not its own doing.
        self.drop_client(conn, true);
        let client = arrival.peer;
        let opened = self
            .admit(service, client)
            .and_then(|()| self.service(service).admits_announced(client.ip()))
            .and_then(|()| self.open_raw(conn, service, arrival, out));
        match opened {
            Ok(()) => {
                self.service_mut(service).counters_mut().announced += 1;
                if !rest.is_empty() {
                    self.data(now, conn, &rest, out);
                }
            }
            Err(why) => {
                self.refused(service, client, why);
                out.abort(conn);
            }
        }
    }

    /// The peer sends no more. One that has said nothing at all was looking whether the port is open.
    pub(super) fn announcing_ended<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(Holder::Announcing(announcing)) = self.clients.get(conn)
            && announcing.is_silent()
        {
            self.drop_client(conn, false);
            return out.finish(conn);
        }
        self.refuse_announcing(conn, ProxyFault::Ended, out);
    }

    pub(super) fn announcing_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.refuse_announcing(conn, ProxyFault::TimedOut, out);
    }

    fn refuse_announcing<T: Transport>(&mut self, conn: Conn, fault: ProxyFault, out: &mut T) {
        // A timer without a purpose: the header has come.
        let Some(Holder::Announcing(announcing)) = self.clients.get(conn) else { return };
        let (service, peer) = (announcing.service(), announcing.peer());
        self.refused(service, peer, Refusal::ProxyHeader(fault));
        self.drop_client(conn, false);
        out.abort(conn);
    }
}

//! Plain clients: admission, also behind load balancers, and events of their servers.
//!
//! A transport with gates acknowledges a client's bytes only when the server has taken them, so that a helper that
//! crashes has acknowledged no byte that is lost (PostMan §4.2). Kernel sockets have no gates and acknowledge at once.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, Id, RefuseReason};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::PROXY_BYTES_MAX;

use super::Relay;
use crate::clients::{Arrival, AwaitingHeader, ConnRole, Header, PlainClient};
use crate::measurement::RequestMetrics;
use crate::reasons::{ProxyFault, Refusal};
use crate::timers::Timer;

impl Relay {
    pub(super) fn plain_opened<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if self.service(service).is_load_balancer(peer) {
            return self.balancer_opened(conn, service, peer, out);
        }
        let arrival = Arrival { peer, via: None, granted: 0, header_bytes: 0 };
        let opened = self.admit(service, peer).and_then(|()| {
            self.make_room(out);
            self.open_plain(conn, service, arrival, out)
        });
        if let Err(why) = opened {
            self.report_refusal(service, peer, why);
            out.abort(conn);
        }
    }

    /// Whether a client is admitted. Does not check the service's link.
    pub(super) fn admit(&self, service: u16, client: SocketAddr) -> Result<(), Refusal> {
        self.service(service).admits(client.ip())?;
        self.check_room(service)
    }

    fn open_plain<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        arrival: Arrival,
        out: &mut T,
    ) -> Result<(), Refusal> {
        let now = self.turn.now;
        let link = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let keeps_replies = self.service(service).config().acknowledges_replies;
        let linked = self.links.linked_mut(link).ok_or(Refusal::LinkDown)?;
        let window = self.settings.first_window_bytes.min(linked.window_bytes_max());
        let id = linked.open_plain(conn, arrival.peer, window, keeps_replies)?;
        let mut client = PlainClient::new(now, service, (link, id), arrival, window);
        if keeps_replies && linked.carries_sessions() {
            client.report_acknowledgements();
            out.watch_acknowledged(conn, true);
        }
        let has_gate = keeps_replies && linked.acknowledges_requests();
        out.release(conn, if has_gate { client.stream_offset(0) } else { u64::MAX });
        client.grant(now, conn, linked, &mut self.memory, out);
        let (measurement, before) = {
            let service = self.service(service);
            (service.config().measurement, service.counters().plain_clients)
        };
        if let Some(tracker) = RequestMetrics::sample(measurement, before) {
            client.measure(tracker);
        }
        self.put_client(conn, ConnRole::Plain(client));
        self.service_mut(service).counters_mut().plain_clients += 1;
        Ok(())
    }

    /// The server has taken a client's requests up to `through`: the client's TCP may acknowledge them.
    pub(super) fn requests_taken<T: Transport>(
        &mut self,
        link: usize,
        id: Id,
        (through, is_finished): (u64, bool),
        out: &mut T,
    ) {
        if let Some(conn) = self.links.client(link, id)
            && let Some(client) = self.clients.plain(conn)
        {
            // The end of the stream counts one, like a FIN (RFC 9293 §3.4).
            out.release(conn, client.stream_offset(through) + u64::from(is_finished));
        }
    }

    pub(super) fn reply<T: Transport>(&mut self, link: usize, id: Id, bytes: &[u8], out: &mut T) {
        let Some(linked) = self.links.open_link(link) else { return };
        // `None`: the client has left before the reply arrived.
        let Some(conn) = linked.client(id) else { return };
        let Some(client) = self.clients.plain_mut(conn) else { return };
        let counters = self.services[usize::from(client.service())].counters_mut();
        counters.replies.count(bytes.len());
        client.track_replies(self.turn.now, bytes, &mut counters.measured);
        client.reply(self.turn.now, conn, bytes, linked, &mut self.memory, out);
    }

    /// The server has finished its stream to a plain client.
    pub(super) fn plain_finished<T: Transport>(&mut self, link: usize, id: Id, out: &mut T) {
        if let Some(conn) = self.links.client(link, id)
            && let Some(client) = self.clients.plain_mut(conn)
        {
            client.handle_server_finished(conn, out);
        }
    }

    pub(super) fn plain_refused<T: Transport>(
        &mut self,
        link: usize,
        id: Id,
        reason: RefuseReason,
        out: &mut T,
    ) {
        // `None`: the client has left before the server's refusal arrived.
        let Some(conn) = self.links.client(link, id) else { return };
        let Some(client) = self.clients.plain(conn) else { return };
        let (service, peer) = (client.service(), client.peer());
        self.report_refusal(service, peer, Refusal::Server(reason));
        if let Some(linked) = self.links.open_link(link) {
            linked.free_refused_plain(id);
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    /// The server's application has closed a plain client's connection, or one end broke the protocol.
    pub(super) fn plain_closed<T: Transport>(
        &mut self,
        now: Time,
        link: usize,
        (id, reason): (Id, CloseReason),
        out: &mut T,
    ) {
        let service = self.links[link].service();
        let is_broken = matches!(reason, CloseReason::Protocol | CloseReason::OverCredit);
        self.service_mut(service).counters_mut().connections_broken += u64::from(is_broken);
        let Some(linked) = self.links.open_link(link) else { return };
        let conn = linked.client(id);
        let client = conn.and_then(|conn| self.clients.plain_mut(conn));
        let is_normal = reason == CloseReason::Normal;
        let final_ack = client.as_ref().filter(|_| is_normal).and_then(|client| client.final_ack(linked));
        if final_ack.is_none() {
            linked.close_plain(id, reason);
        }
        // `None`: the client has left before the server's close arrived.
        let Some(conn) = conn else { return };
        if !is_normal {
            self.drop_client(conn, true);
            out.abort(conn);
            return;
        }
        // `None`: the client lingers already, because the server has closed before.
        let Some(client) = client else { return };
        let stalled = client.end_stall(now);
        let lingering = client.linger(final_ack, &mut self.memory);
        // The server takes no more requests: the client's TCP may acknowledge all bytes.
        out.release(conn, u64::MAX);
        if client.is_grant_used_up() {
            // One byte is enough to detect that the client sends after the close.
            out.grant(conn, 1);
        }
        out.watch_acknowledged(conn, true);
        self.service_mut(service).counters_mut().stalls.add(stalled);
        self.start_lingering(now, conn, lingering, out);
    }
}

/// Plain clients behind load balancers.
impl Relay {
    /// Waits for the PROXY header. The client's address is checked when the header is complete.
    fn balancer_opened<T: Transport>(&mut self, conn: Conn, service: u16, peer: SocketAddr, out: &mut T) {
        if let Err(why) = self.check_room(service) {
            self.report_refusal(service, peer, why);
            return out.abort(conn);
        }
        self.make_room(out);
        let now = self.turn.now;
        self.put_client(conn, ConnRole::AwaitingHeader(Box::new(AwaitingHeader::new(now, service, peer))));
        #[expect(clippy::cast_possible_truncation, reason = "PROXY_BYTES_MAX is 4,096")]
        out.grant(conn, PROXY_BYTES_MAX as u32);
        self.clients.start(Timer::ProxyHeader, now, conn);
    }

    pub(super) fn header_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(ConnRole::AwaitingHeader(awaiting_header)) = self.clients.get_mut(conn) else {
            debug_assert!(false, "the caller has found a connection without a complete header");
            return;
        };
        let service = awaiting_header.service();
        let (arrival, rest) = match awaiting_header.receive(bytes, &mut self.memory) {
            Header::Incomplete => return,
            Header::Complete { arrival, rest } => (arrival, rest),
            Header::Invalid(fault) => return self.refuse_balancer(conn, fault, out),
        };
        // `failed` is `true` for the counters of a drain: while the service drains, the client is rejected below.
        self.drop_client(conn, true);
        let client = arrival.peer;
        let opened = self
            .admit(service, client)
            .and_then(|()| self.service(service).admits_announced_address(client.ip()))
            .and_then(|()| self.open_plain(conn, service, arrival, out));
        match opened {
            Ok(()) => {
                self.service_mut(service).counters_mut().announced += 1;
                if !rest.is_empty() {
                    self.data(now, conn, &rest, out);
                }
            }
            Err(why) => {
                self.report_refusal(service, client, why);
                out.abort(conn);
            }
        }
    }

    /// The load balancer has finished its stream. A connection without any byte was a health check of the port.
    pub(super) fn header_ended<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(ConnRole::AwaitingHeader(awaiting_header)) = self.clients.get(conn)
            && awaiting_header.has_sent_nothing()
        {
            self.drop_client(conn, false);
            return out.finish(conn);
        }
        self.refuse_balancer(conn, ProxyFault::Ended, out);
    }

    pub(super) fn header_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.refuse_balancer(conn, ProxyFault::TimedOut, out);
    }

    fn refuse_balancer<T: Transport>(&mut self, conn: Conn, fault: ProxyFault, out: &mut T) {
        // In any other role the header is complete, and the timer is not needed any more.
        let Some(ConnRole::AwaitingHeader(awaiting_header)) = self.clients.get(conn) else { return };
        let (service, peer) = (awaiting_header.service(), awaiting_header.peer());
        self.report_refusal(service, peer, Refusal::ProxyHeader(fault));
        self.drop_client(conn, false);
        out.abort(conn);
    }
}

//! Dispatch of the transport's events to clients and links, timeouts, and the end of a turn.

use core::net::SocketAddr;

use spillway_transport::{Application, Conn, Event, HostLimit, LostReason, Time, Transport};

use super::Relay;
use crate::clients::{ClientType, ConnRole};
use crate::reasons::LinkDown;
use crate::timers::Timer;

impl Application for Relay {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.begin_turn(now, out);
        if let Event::Opened { .. } = event {
            // `begin_turn` has counted the bytes that the host did not take. If they exceed the bound, close the
            // largest clients first, so that the new one is not rejected because of them.
            self.keep_within_memory(out);
        }
        match event {
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
            Event::Room => self.handle_room(now, conn, out),
            Event::Opened { peer, listener } => self.opened(now, conn, peer, listener, out),
            Event::Finished => self.finished(now, conn, out),
            Event::Lost(reason) => self.lost(now, conn, reason, out),
            Event::Acknowledged { through } => self.acknowledged(now, conn, through, out),
        }
        self.keep_within_memory(out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.begin_turn(now, out);
        self.links.mark_due(now);
        let mut nth = 0;
        while let Some(link) = self.links.marked(nth) {
            self.link_timeout(now, link, out);
            self.end_retired(now, link, out);
            nth += 1;
        }
        for timer in Timer::ALL {
            while let Some(conn) = self.clients.pop_due(timer, now) {
                self.client_timeout(now, timer, conn, out);
            }
        }
        self.services.mark_due(now);
        let mut nth = 0;
        while let Some(service) = self.services.marked(nth) {
            self.advance_drain(now, service, out);
            self.end_override(now, service, out);
            self.unencrypted_timeout(now, service, out);
            nth += 1;
        }
        self.pressure_timeout(out);
        self.keep_within_memory(out);
    }

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        // `None`: no service uses the listener any more, and it is closed in this turn.
        if let Some((service, _)) = self.listeners.assignment(listener) {
            self.service_mut(service).counters_mut().refused.count_at_host(limit, peers);
        }
    }

    fn handle_datagram(
        &mut self,
        now: Time,
        listener: u16,
        from: SocketAddr,
        query: &[u8],
        reply: &mut [u8],
    ) -> usize {
        self.answer(now, listener, (from, query), reply)
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.begin_turn(now, out);
        self.links_turn(now, out);
        let mut nth = 0;
        while let Some(conn) = self.clients.dirty(nth) {
            self.library_turn(conn, out);
            nth += 1;
        }
        self.clients.clear_dirty();
        self.services_turn(now, out);
        self.memory.end_turn(out);
        self.keep_within_memory(out);
        self.turn.is_begun = false;
    }

    fn poll_timeout(&self) -> Option<Time> {
        let (links, services) = (self.links.next_deadline(), self.services.next_deadline());
        let (clients, memory) = (self.clients.poll_timeout(), self.pressure.poll_timeout());
        [links, services, clients, memory].into_iter().flatten().min()
    }
}

impl Relay {
    fn opened<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        peer: SocketAddr,
        listener: Option<u16>,
        out: &mut T,
    ) {
        let Some(listener) = listener else {
            return self.link_opened(now, conn, out);
        };
        match self.listeners.assignment(listener) {
            Some((service, ClientType::Plain)) => self.plain_opened(conn, service, peer, out),
            Some((service, ClientType::Library)) => self.library_opened(now, conn, service, peer, out),
            None => out.abort(conn),
        }
    }

    /// Handles received bytes, also those that followed a PROXY header.
    pub(super) fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                let Some(linked) = self.links.open_link(client.link()) else { return };
                let counters = self.services[usize::from(client.service())].counters_mut();
                counters.requests.count(bytes.len());
                client.track_requests(now, bytes, &mut counters.measured);
                client.request(now, conn, bytes, linked, &mut self.memory, out);
                linked.transmit_large(now, out);
            }
            Some(ConnRole::Library(_)) => self.library_data(now, conn, bytes, out),
            Some(ConnRole::Link(link)) => {
                let link = *link;
                self.link_data(now, link, bytes, out);
            }
            Some(ConnRole::AwaitingHeader(_)) => self.header_data(now, conn, bytes, out),
            Some(ConnRole::Lingering(lingering)) => {
                lingering.received_after_close();
                self.reset_if_sent_after_close(conn, out);
            }
            Some(ConnRole::Free) | None => {}
        }
    }

    /// The transport takes more bytes for a connection again.
    fn handle_room<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                let Some(linked) = self.links.open_link(client.link()) else { return };
                client.handle_client_room(now, conn, linked, &mut self.memory, out);
            }
            Some(ConnRole::Library(_)) => self.library_turn(conn, out),
            Some(ConnRole::Lingering(lingering)) => lingering.transmit(conn, &mut self.memory, out),
            Some(ConnRole::Link(link)) => {
                let link = *link;
                self.link_turn(now, link, out);
            }
            Some(ConnRole::AwaitingHeader(_) | ConnRole::Free) | None => {}
        }
    }

    fn finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                let Some(linked) = self.links.open_link(client.link()) else { return };
                client.handle_client_finished(linked);
            }
            Some(ConnRole::Library(_)) => self.library_finished(now, conn, out),
            Some(ConnRole::AwaitingHeader(_)) => self.header_ended(conn, out),
            Some(ConnRole::Link(link)) => {
                let link = *link;
                out.abort(conn);
                self.link_down(now, link, LinkDown::ClosedByServer, out);
            }
            Some(ConnRole::Lingering(_) | ConnRole::Free) | None => {}
        }
    }

    fn lost<T: Transport>(&mut self, now: Time, conn: Conn, reason: LostReason, out: &mut T) {
        match self.clients.get(conn) {
            Some(ConnRole::Link(link)) => {
                let link = *link;
                self.link_down(now, link, LinkDown::Lost(reason), out);
            }
            // The relay has finished this connection and removed it.
            Some(ConnRole::Free) | None => {}
            Some(_) => self.client_lost(conn, reason),
        }
    }

    /// A timer of a client has expired. A timer that is not needed any more has no effect.
    fn client_timeout<T: Transport>(&mut self, now: Time, timer: Timer, conn: Conn, out: &mut T) {
        match timer {
            Timer::Acknowledge => self.acknowledge_timeout(conn),
            Timer::Linger => self.linger_timeout(now, conn, out),
            Timer::Handshake => self.handshake_timeout(conn, out),
            Timer::Record => self.record_timeout(now, conn, out),
            Timer::Throttle => self.throttle_timeout(now, conn, out),
            Timer::ProxyHeader => self.header_timeout(conn, out),
        }
    }
}

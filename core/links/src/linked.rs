//! An application with helped clients.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, LinkError, RefuseReason, ServerEvent};
use spillway_moves::{Arrival, Attachment, Movable, OwnLoad, RequestCommand, RequestEvent};
use spillway_transport::{Application, Conn, Event, HostLimit, LostReason, Time, Transport};

use crate::clients::{Clients, Finish};
use crate::links::Links;
use crate::notice::LinkNotice;
use crate::out::Out;
use crate::settings::LinkSettings;

/// An application with helped clients. To the application they are connections of listener 0.
#[derive(Debug)]
pub struct Linked<A> {
    application: A,
    links: Links,
}

impl<A: Application> Linked<A> {
    /// The transport must have the listener of `settings`, open.
    pub fn new(application: A, settings: LinkSettings) -> Linked<A> {
        Linked { application, links: Links::new(settings) }
    }

    /// The application.
    pub fn application(&self) -> &A {
        &self.application
    }

    fn pass<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.application.handle(now, conn, event, &mut Out { out, links: &mut self.links });
    }

    fn handle_link<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Data { bytes, .. } => self.receive(now, conn, bytes, out),
            Event::Room => self.links.touch(conn),
            Event::Finished => self.end_link(now, conn, None, out),
            Event::Lost(_) => {
                let clients = self.links.handle_lost(now, conn);
                self.reset(now, clients, out);
            }
            Event::Opened { .. } | Event::Acknowledged { .. } => {}
        }
    }

    fn open_link<T: Transport>(&mut self, now: Time, conn: Conn, peer: SocketAddr, out: &mut T) {
        for victim in self.links.open(now, conn, peer, out) {
            out.abort(victim);
            let clients = self.links.handle_lost(now, victim);
            self.reset(now, clients, out);
        }
    }

    fn receive<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.links.scratch);
        if let Some(link) = self.links.get_mut(conn) {
            link.record_received(bytes.len());
            let mut input = link.end.unseal(now, bytes, &mut scratch);
            while let Some(link) = self.links.get_mut(conn) {
                match link.end.decompose(now, &mut input) {
                    Ok(Some(event)) => self.handle_link_event(now, conn, event, out),
                    Ok(None) => break,
                    Err(error) => self.end_link(now, conn, Some(error), out),
                }
            }
            self.links.end_of_input(conn);
        }
        self.links.scratch = scratch;
        self.settle(now, out);
    }

    fn handle_link_event<T: Transport>(
        &mut self,
        now: Time,
        link: Conn,
        event: ServerEvent<'_>,
        out: &mut T,
    ) {
        match event {
            ServerEvent::Established { role, key } => {
                if let Some(peer) = self.links.authenticated(link) {
                    (self.links.settings.notices)(LinkNotice::Up { peer, role, key });
                }
            }
            ServerEvent::Connect { id, client, .. } => {
                let is_full = self.links.clients.len() >= self.links.settings.clients_max;
                let name = if is_full { None } else { self.links.clients.insert(link, id) };
                let Some(of) = self.links.get_mut(link) else { return };
                let Some(name) = name else { return of.end.refuse(id, RefuseReason::Full) };
                of.add(id, name);
                of.end.accept(id);
                self.pass(now, name, Event::Opened { peer: client, listener: Some(0) }, out);
            }
            ServerEvent::Forbidden { client, why } => self.links.report_forbidden(now, client, why),
            ServerEvent::Data { id, bytes } => {
                if let Some(name) = self.links.get_mut(link).and_then(|link| link.name(id)) {
                    self.handle_data(now, name, bytes, out);
                }
            }
            ServerEvent::Finished { id } => {
                let name = self.links.get_mut(link).and_then(|link| link.name(id));
                let client = name.and_then(|name| self.links.clients.get_mut(name));
                if let (Some(name), Some(client)) = (name, client) {
                    client.finish = Finish::Waiting;
                    self.links.ready.push(name);
                }
            }
            ServerEvent::Closed { id, reason } => {
                let Some(link) = self.links.get_mut(link) else { return };
                let name = link.name(id);
                link.end.close(id, CloseReason::Normal);
                let Some(name) = name else { return };
                let is_over = reason == CloseReason::Normal;
                self.links.close(name, CloseReason::Normal);
                let why = if is_over { LostReason::Closed } else { LostReason::Reset };
                self.pass(now, name, Event::Lost(why), out);
            }
            ServerEvent::Session { id, .. } => {
                if let Some(link) = self.links.get_mut(link) {
                    link.end.refuse(id, RefuseReason::Unavailable);
                }
            }
            // Sessions are refused, so that no link carries one. A helper that drains moves its clients itself.
            ServerEvent::Carried { .. } | ServerEvent::CarriedControl { .. } | ServerEvent::Drain { .. } => {}
        }
    }

    /// Bytes of a helped client: as far as they are granted the application gets them at once, the others wait.
    fn handle_data<T: Transport>(&mut self, now: Time, name: Conn, bytes: &[u8], out: &mut T) {
        let mut rest = bytes;
        loop {
            let Some(client) = self.links.clients.get_mut(name) else { return };
            let granted = if client.has_waiting() { 0 } else { client.granted.min(rest.len()) };
            if granted == 0 {
                if !self.links.keep(now, name, rest) {
                    self.pass(now, name, Event::Lost(LostReason::Reset), out);
                }
                return;
            }
            let (taken, others) = rest.split_at(granted);
            self.deliver(now, name, taken, out);
            if others.is_empty() {
                return;
            }
            rest = others;
        }
    }

    /// Passes bytes to the application, which has granted them.
    fn deliver<T: Transport>(&mut self, now: Time, name: Conn, bytes: &[u8], out: &mut T) {
        let Some(client) = self.links.clients.get_mut(name) else { return };
        client.granted -= bytes.len();
        client.end += bytes.len() as u64;
        let end = client.end;
        if let Some((link_end, id)) = self.links.end_of_mut(name) {
            let consumed = link_end.consumed(id, bytes.len());
            debug_assert!(consumed.is_ok(), "the bytes were received");
        }
        self.pass(now, name, Event::Data { end, bytes }, out);
    }

    /// Delivers what waits: granted bytes, ends of directions, and ends of connections.
    fn settle<T: Transport>(&mut self, now: Time, out: &mut T) {
        while let Some(name) = self.links.ready.pop() {
            self.settle_client(now, name, out);
        }
    }

    fn settle_client<T: Transport>(&mut self, now: Time, name: Conn, out: &mut T) {
        while let Some(granted) = self.links.clients.take_granted(name) {
            self.deliver(now, name, &granted, out);
        }
        let Some(client) = self.links.clients.get_mut(name) else { return };
        if client.finish == Finish::Waiting && !client.has_waiting() {
            client.finish = Finish::Delivered;
            self.pass(now, name, Event::Finished, out);
        }
        let Some(client) = self.links.clients.get_mut(name) else { return };
        if client.finish == Finish::Delivered && client.is_finished_here {
            self.links.close(name, CloseReason::Normal);
            self.pass(now, name, Event::Lost(LostReason::Closed), out);
        }
    }

    fn end_link<T: Transport>(&mut self, now: Time, conn: Conn, error: Option<LinkError>, out: &mut T) {
        let clients = self.links.end(now, conn, error, out);
        self.reset(now, clients, out);
    }

    /// The clients of a link have ended with it.
    fn reset<T: Transport>(&mut self, now: Time, clients: Vec<Conn>, out: &mut T) {
        for client in clients {
            self.pass(now, client, Event::Lost(LostReason::Reset), out);
        }
    }
}

impl<A: Application> Application for Linked<A> {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, listener } if listener == Some(self.links.settings.listener) => {
                self.open_link(now, conn, peer, out);
            }
            _ if self.links.is_link(conn) => self.handle_link(now, conn, event, out),
            _ => self.pass(now, conn, event, out),
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.application.poll_timeout().is_some_and(|at| at <= now) {
            self.application.handle_timeout(now, &mut Out { out, links: &mut self.links });
        }
        for (conn, error) in self.links.handle_timeout(now, out) {
            self.end_link(now, conn, Some(error), out);
        }
    }

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        self.application.handle_refused(listener, limit, peers);
    }

    fn handle_datagram(
        &mut self,
        now: Time,
        listener: u16,
        from: SocketAddr,
        query: &[u8],
        reply: &mut [u8],
    ) -> usize {
        self.application.handle_datagram(now, listener, from, query, reply)
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.application.end_of_turn(now, &mut Out { out, links: &mut self.links });
        self.settle(now, out);
        for name in self.links.flush(now, out) {
            if Clients::is_helped(name) && self.links.clients.get(name).is_some() {
                self.pass(now, name, Event::Room, out);
            }
        }
        self.settle(now, out);
        // What the application has sent at the events of room. Room for more is reported in the next turn.
        self.links.transmit(now, out);
    }

    fn poll_timeout(&self) -> Option<Time> {
        [self.application.poll_timeout(), self.links.poll_timeout()].into_iter().flatten().min()
    }
}

/// Helped clients do not move: their connections are those of the link.
impl<A: Movable> Movable for Linked<A> {
    fn is_at_safe_point(&self, conn: Conn) -> bool {
        !self.links.is_link(conn) && self.application.is_at_safe_point(conn)
    }

    fn leave(&mut self, now: Time, conn: Conn) -> Option<Attachment> {
        self.application.leave(now, conn)
    }

    fn knows_protocol(&self, protocol: &str) -> bool {
        self.application.knows_protocol(protocol)
    }

    fn own_load(&mut self, now: Time) -> OwnLoad {
        self.application.own_load(now)
    }

    fn serves_requests(&self) -> bool {
        self.application.serves_requests()
    }

    /// Helped clients' connections do not move: the server answers such a command by [`RequestEvent::Stays`].
    fn poll_request_command(&mut self, now: Time) -> Option<(Conn, RequestCommand)> {
        self.application.poll_request_command(now)
    }

    fn on_request<T: Transport>(&mut self, now: Time, event: RequestEvent, out: &mut T) {
        self.application.on_request(now, event, &mut Out { out, links: &mut self.links });
    }

    fn on_migrated<T: Transport>(&mut self, now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T) {
        self.application.on_migrated(now, conn, arrival, &mut Out { out, links: &mut self.links });
    }
}

//! Library clients: how their links begin and end, and what comes over them.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::{Acceptor, AcceptorEvent, LinkError, Role};
use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::{Holder, LibraryClient, Received};
use crate::reasons::{Cut, Refusal};
use crate::timers::Timer;

impl Relay {
    pub(super) fn library_opened<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        match self.admit_library(service, peer) {
            Ok(credit) => {
                self.make_room(out);
                self.load.came(now, peer);
                let deadline = now + self.settings.timeouts.handshake;
                let encryption = self.service(service).config().client_encryption;
                let acceptor = Acceptor::new(encryption, credit, 1, deadline, self.fresh());
                let mut client = LibraryClient::new(now, service, peer, acceptor, credit);
                client.grant(conn, None, &mut self.memory, out);
                self.put_client(conn, Holder::Library(Box::new(client)));
                self.clients.start(Timer::Handshake, now, conn);
                if let Some(victim) = self.admission.begin(now, peer.ip(), conn) {
                    self.crowd_out(victim, out);
                }
            }
            Err(why) => {
                self.refused(service, peer, why);
                out.abort(conn);
            }
        }
    }

    /// Returns bytes of requests that each *connect* may be followed by.
    fn admit_library(&self, service: u16, peer: SocketAddr) -> Result<u32, Refusal> {
        let is_trusted = self.service(service).config().client_keys.is_some() || peer.ip().is_loopback();
        if !is_trusted {
            return Err(Refusal::Address);
        }
        self.admit(service, peer)?;
        let linked = self.choose_link(service).and_then(|link| self.links.linked(link));
        linked.map(|linked| linked.initial_credit()).ok_or(Refusal::LinkDown)
    }

    /// A client was admitted. If there is no room for it, one that has yet to authenticate goes.
    pub(super) fn make_room<T: Transport>(&mut self, out: &mut T) {
        if let Some(victim) = self.admission.make_room(self.turn.now, self.clients.count()) {
            self.crowd_out(victim, out);
        }
    }

    /// A library client that has yet to authenticate, or that was rejected and stays, is dropped for a newer one.
    fn crowd_out<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.clients.get(conn) {
            Some(Holder::Library(client)) => {
                let (service, peer) = (client.service(), client.peer());
                self.refused(service, peer, Refusal::Crowded);
            }
            Some(Holder::Leaving(_)) => {} // refused already
            _ => debug_assert!(false, "only library clients wait for authentication"),
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    pub(super) fn handshake_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(client) = self.clients.library(conn)
            && !client.is_established()
        {
            let (service, peer) = (client.service(), client.peer());
            self.refused(service, peer, Refusal::Handshake(LinkError::HandshakeTimeout));
            self.drop_client(conn, true);
            out.abort(conn);
        }
    }

    pub(super) fn library_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has seen a library client");
            return;
        };
        let linked = client.link().and_then(|link| self.links.carrier(link));
        match client.receive(conn, bytes, linked, &mut self.memory) {
            Received::Now => self.library_frames(now, conn, bytes, out),
            Received::WhenDrained => {}
            Received::AtEndOfTurn => self.mark_dirty(conn),
        }
    }

    /// The server's link has drained, or the client's connection there has ended: what waited goes on.
    pub(super) fn library_goes_on<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // It may have gone since it began to wait.
        let Some(client) = self.clients.library_mut(conn) else { return };
        let waiting = client.take_waiting(&mut self.memory);
        self.library_frames(now, conn, &waiting, out);
        if self.clients.library(conn).is_some_and(|client| client.has_ended()) {
            self.library_finished(now, conn, out);
        }
    }

    fn library_frames<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.scratch);
        if let Some(client) = self.clients.library_mut(conn) {
            let ring = self.services[usize::from(client.service())].config().client_keys.as_ref();
            let opened = client.unseal(now, ring, bytes, &mut scratch);
            self.library_opened_data(now, conn, opened, out);
        } else {
            debug_assert!(false, "the caller has seen a library client");
        }
        self.scratch = scratch;
    }

    fn library_opened_data<T: Transport>(&mut self, now: Time, conn: Conn, mut input: &[u8], out: &mut T) {
        loop {
            let Some(client) = self.clients.library_mut(conn) else {
                debug_assert!(false, "an event that ends a library client ends this loop");
                return;
            };
            let (service, is_established) = (client.service(), client.is_established());
            match client.decompose(&mut input) {
                Ok(Some(AcceptorEvent::Data { id, bytes, last })) => {
                    let request = client.request(id, bytes);
                    self.service_mut(service).counters_mut().requests.count(bytes.len());
                    self.passage_request(conn, request, (bytes, last));
                }
                Ok(Some(AcceptorEvent::Control { id, control })) => {
                    if let Err(error) = self.client_control(conn, id, control) {
                        return self.cut(conn, Cut::Protocol(error), out);
                    }
                }
                Ok(Some(AcceptorEvent::Established { role: Role::Client, .. })) => {
                    self.admission.end(conn);
                    if self.service(service).is_leaving() {
                        self.say_drain(conn, 0);
                    }
                }
                Ok(Some(AcceptorEvent::Established { role: Role::Helper, key })) => {
                    let error = LinkError::UnknownKey { role: Role::Helper, key };
                    return self.reject(now, conn, error, out);
                }
                Ok(None) => {
                    if !is_established && client.has_named_key() {
                        self.admission.named_key(conn);
                    }
                    break;
                }
                Err(error) if is_established => return self.cut(conn, Cut::Protocol(error), out),
                Err(error) => return self.reject(now, conn, error, out),
            }
        }
        self.after_library_data(now, conn, out);
    }

    /// Decides whether more of the client is read, and which of its timers run.
    fn after_library_data<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "nothing has ended the library client since its bytes were taken apart");
            return;
        };
        let (watches, rests) = (client.starts_watch(), client.starts_rest(now));
        let mut linked = client.link().and_then(|link| self.links.carrier(link));
        if let Some(linked) = &mut linked {
            linked.transmit_large(now, out);
        }
        client.grant(conn, linked, &mut self.memory, out);
        client.count(&mut self.memory);
        let has_pending = client.pending() > 0;
        if watches {
            self.clients.start(Timer::Record, now, conn);
        }
        if rests {
            self.clients.start(Timer::Rest, now, conn);
        }
        if has_pending {
            self.mark_dirty(conn);
        }
    }

    /// Time to look at a client whose record was incomplete. Its link ends if the rest is withheld, for what has arrived of it
    /// takes memory.
    pub(super) fn record_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // A timer without a purpose: the client has gone.
        let Some(client) = self.clients.library_mut(conn) else { return };
        match client.record_timeout(now) {
            Ok(()) if client.starts_watch() => self.clients.start(Timer::Record, now, conn),
            Ok(()) => {}
            Err(error) => self.cut(conn, Cut::Protocol(error), out),
        }
    }

    /// Time to look at a client that is not read for a time because hardly anything that it sends is data.
    pub(super) fn rest_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // A timer without a purpose: the client has gone.
        let Some(client) = self.clients.library_mut(conn) else { return };
        if client.rests_on(now) {
            self.clients.start(Timer::Rest, now, conn);
        } else {
            self.grant_again(conn, out);
        }
    }

    /// A client that does not authenticate learns why, as far as the protocol has a message for it, and leaves.
    fn reject<T: Transport>(&mut self, now: Time, conn: Conn, error: LinkError, out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has just taken an event of this library client");
            return;
        };
        let (service, peer) = (client.service(), client.peer());
        let leaving = client.leave_rejected(now, &mut self.memory);
        // It counts as a stranger until it has gone.
        self.refused(service, peer, Refusal::Handshake(error));
        self.let_leave(now, conn, leaving, out);
    }

    /// The client's link ends. What was open on it is reset.
    pub(super) fn library_finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if self.clients.library_mut(conn).is_some_and(|client| !client.ends()) {
            return;
        }
        self.orphan(conn);
        self.library_turn(conn, out);
        // What waited for it may have been too much.
        let Some(client) = self.clients.library_mut(conn) else { return };
        let leaving = client.leave(now, &mut self.memory);
        self.let_leave(now, conn, leaving, out);
    }

    /// Sends what waits for a library client, and reads on.
    pub(super) fn library_turn<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let now = self.turn.now;
        // It may have gone since it was marked.
        let Some(client) = self.clients.library_mut(conn) else { return };
        client.transmit(now, conn, &mut self.memory, out);
        if client.pending() > self.settings.connection_buffer_bytes {
            return self.cut(conn, Cut::Buffer, out);
        }
        if client.may_go_on() {
            self.library_goes_on(now, conn, out);
        }
        // A client that was not read because it did not read answers goes on.
        self.grant_again(conn, out);
    }

    /// What a client may send is decided anew.
    pub(super) fn grant_again<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.clients.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                if let Some(linked) = self.links.carrier(client.link()) {
                    client.grant(self.turn.now, conn, linked, &mut self.memory, out);
                }
            }
            Some(Holder::Library(client)) => {
                let linked = client.link().and_then(|link| self.links.carrier(link));
                client.grant(conn, linked, &mut self.memory, out);
            }
            _ => {}
        }
    }
}

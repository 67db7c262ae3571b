//! Library clients: admission, authentication, input and the end of their links.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::{Acceptor, AcceptorEvent, LinkError, Role};
use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::{ConnRole, HandleWhen, LibraryClient};
use crate::reasons::{Refusal, ResetReason};
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
                self.load.client_connected(now, peer);
                let deadline = now + self.settings.timeouts.handshake;
                let encryption = self.service(service).config().client_encryption;
                let acceptor = Acceptor::new(encryption, credit, 1, deadline, self.link_randomness());
                let mut client = LibraryClient::new(now, service, peer, acceptor, credit);
                client.grant(conn, None, &mut self.memory, out);
                self.put_client(conn, ConnRole::Library(Box::new(client)));
                self.clients.start(Timer::Handshake, now, conn);
                if let Some(evicted) = self.admission.begin(now, peer.ip(), conn) {
                    self.evict_unauthenticated(evicted, out);
                }
            }
            Err(why) => {
                self.report_refusal(service, peer, why);
                out.abort(conn);
            }
        }
    }

    /// Admits a library client. Returns the initial credit of each of its connections in bytes.
    fn admit_library(&self, service: u16, peer: SocketAddr) -> Result<u32, Refusal> {
        let is_trusted = self.service(service).config().client_keys.is_some() || peer.ip().is_loopback();
        if !is_trusted {
            return Err(Refusal::Address);
        }
        self.admit(service, peer)?;
        let linked = self.choose_link(service).and_then(|link| self.links.linked(link));
        linked.map(|linked| linked.initial_credit()).ok_or(Refusal::LinkDown)
    }

    /// Evicts an unauthenticated client before another client is added, if the limit on clients is reached.
    pub(super) fn make_room<T: Transport>(&mut self, out: &mut T) {
        if let Some(evicted) = self.admission.make_room(self.turn.now, self.clients.count()) {
            self.evict_unauthenticated(evicted, out);
        }
    }

    /// Closes a library client that has not authenticated, or was rejected and lingers, for a newer client.
    fn evict_unauthenticated<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.clients.get(conn) {
            Some(ConnRole::Library(client)) => {
                let (service, peer) = (client.service(), client.peer());
                self.report_refusal(service, peer, Refusal::Evicted);
            }
            Some(ConnRole::Lingering(_)) => {} // the rejection is counted already
            _ => debug_assert!(false, "only library clients should wait for authentication"),
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    pub(super) fn handshake_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(client) = self.clients.library(conn)
            && !client.is_established()
        {
            let (service, peer) = (client.service(), client.peer());
            self.report_refusal(service, peer, Refusal::Handshake(LinkError::HandshakeTimeout));
            self.drop_client(conn, true);
            out.abort(conn);
        }
    }

    pub(super) fn library_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has found a library client");
            return;
        };
        let linked = client.link().and_then(|link| self.links.open_link(link));
        match client.receive(conn, bytes, linked, &mut self.memory) {
            HandleWhen::Now => self.library_frames(now, conn, bytes, out),
            HandleWhen::LinkUncongested => {}
            HandleWhen::EndOfTurn => self.mark_dirty(conn),
        }
    }

    /// Handles a client's stored bytes. Call this when the server's link is no longer congested, or when the
    /// client's connection to the server has ended.
    pub(super) fn resume_library<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // `None`: the client has ended while it waited.
        let Some(client) = self.clients.library_mut(conn) else { return };
        let waiting = client.take_waiting(&mut self.memory);
        self.library_frames(now, conn, &waiting, out);
        if self.clients.library(conn).is_some_and(|client| client.has_stored_end()) {
            self.library_finished(now, conn, out);
        }
    }

    fn library_frames<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.scratch);
        if let Some(client) = self.clients.library_mut(conn) {
            let ring = self.services[usize::from(client.service())].config().client_keys.as_ref();
            let unsealed = client.unseal(now, ring, bytes, &mut scratch);
            self.library_unsealed_data(now, conn, unsealed, out);
        } else {
            debug_assert!(false, "the caller has found a library client");
        }
        self.scratch = scratch;
    }

    fn library_unsealed_data<T: Transport>(&mut self, now: Time, conn: Conn, mut input: &[u8], out: &mut T) {
        loop {
            let Some(client) = self.clients.library_mut(conn) else {
                debug_assert!(false, "the loop returns after an event that ends the client");
                return;
            };
            let (service, is_established) = (client.service(), client.is_established());
            match client.decompose(&mut input) {
                Ok(Some(AcceptorEvent::Data { id, bytes, last })) => {
                    let request = client.request(id, bytes);
                    self.service_mut(service).counters_mut().requests.count(bytes.len());
                    self.relay_request(conn, request, (bytes, last));
                }
                Ok(Some(AcceptorEvent::Control { id, control })) => {
                    if let Err(error) = self.client_control(conn, id, control) {
                        return self.reset_for(conn, ResetReason::Protocol(error), out);
                    }
                }
                Ok(Some(AcceptorEvent::Established { role: Role::Client, .. })) => {
                    self.admission.end(conn);
                    if !self.enforce_encryption(now, conn, out) {
                        return;
                    }
                    if self.service(service).is_draining() {
                        self.send_drain(conn, 0);
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
                Err(error) if is_established => {
                    return self.reset_for(conn, ResetReason::Protocol(error), out);
                }
                Err(error) => return self.reject(now, conn, error, out),
            }
        }
        self.after_library_data(now, conn, out);
    }

    /// Starts the timers that the received bytes require, and grants more bytes.
    fn after_library_data<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller returns after an event that ends the client");
            return;
        };
        let starts_record_timer = client.starts_record_timer();
        let starts_throttle = client.starts_throttle(now);
        let mut linked = client.link().and_then(|link| self.links.open_link(link));
        if let Some(linked) = &mut linked {
            linked.transmit_large(now, out);
        }
        client.grant(conn, linked, &mut self.memory, out);
        client.count(&mut self.memory);
        let has_pending = client.pending() > 0;
        if starts_record_timer {
            self.clients.start(Timer::Record, now, conn);
        }
        if starts_throttle {
            self.clients.start(Timer::Throttle, now, conn);
        }
        if has_pending {
            self.mark_dirty(conn);
        }
    }

    /// Resets a client whose record has been incomplete for too long, because the record's first bytes occupy
    /// memory.
    pub(super) fn record_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // `None`: the client has ended, and the timer is not needed any more.
        let Some(client) = self.clients.library_mut(conn) else { return };
        match client.record_timeout(now) {
            Ok(()) if client.starts_record_timer() => self.clients.start(Timer::Record, now, conn),
            Ok(()) => {}
            Err(error) => self.reset_for(conn, ResetReason::Protocol(error), out),
        }
    }

    /// Grants a throttled client bytes again, if its allowance permits.
    pub(super) fn throttle_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        // `None`: the client has ended, and the timer is not needed any more.
        let Some(client) = self.clients.library_mut(conn) else { return };
        if client.update_throttle(now) {
            self.clients.start(Timer::Throttle, now, conn);
        } else {
            self.grant_again(conn, out);
        }
    }

    /// Rejects a client whose authentication failed. Sends the protocol's message for this reason, if there
    /// is one.
    fn reject<T: Transport>(&mut self, now: Time, conn: Conn, error: LinkError, out: &mut T) {
        let Some(client) = self.clients.library_mut(conn) else {
            debug_assert!(false, "the caller has just taken an event of this client");
            return;
        };
        let (service, peer) = (client.service(), client.peer());
        let lingering = client.linger_rejected(now, &mut self.memory);
        // The client counts as unauthenticated until its connection ends, so that it can be evicted.
        self.report_refusal(service, peer, Refusal::Handshake(error));
        self.start_lingering(now, conn, lingering, out);
    }

    /// The client has finished its link. A virtual connection that is still open is closed as if the link
    /// were lost.
    pub(super) fn library_finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if self.clients.library_mut(conn).is_some_and(|client| !client.handle_finished()) {
            return;
        }
        self.orphan(conn);
        self.library_turn(conn, out);
        // `None`: the client was reset, because too much output waited.
        let Some(client) = self.clients.library_mut(conn) else { return };
        let lingering = client.linger(now, &mut self.memory);
        self.start_lingering(now, conn, lingering, out);
    }

    /// Sends a library client's output, and grants more bytes.
    pub(super) fn library_turn<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let now = self.turn.now;
        // `None`: the client has ended since it was marked.
        let Some(client) = self.clients.library_mut(conn) else { return };
        client.transmit(now, conn, &mut self.memory, out);
        if client.pending() > self.settings.connection_buffer_bytes {
            return self.reset_for(conn, ResetReason::Buffer, out);
        }
        if client.can_resume() {
            self.resume_library(now, conn, out);
        }
        // A client that was paused because it did not read may have read its replies by now.
        self.grant_again(conn, out);
    }

    /// Grants a client more bytes, if it may send more now.
    pub(super) fn grant_again<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.clients.get_mut(conn) {
            Some(ConnRole::Plain(client)) => {
                if let Some(linked) = self.links.open_link(client.link()) {
                    client.grant(self.turn.now, conn, linked, &mut self.memory, out);
                }
            }
            Some(ConnRole::Library(client)) => {
                let linked = client.link().and_then(|link| self.links.open_link(link));
                client.grant(conn, linked, &mut self.memory, out);
            }
            _ => {}
        }
    }
}

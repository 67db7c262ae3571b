//! Library clients: their links' beginning, and the passage of their frames to the server's link and back.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_batch::{
    Acceptor, AcceptorEvent, CloseReason, Connect, Control, Id, LinkError, OpenError, Reconnect,
    RefuseReason, Role,
};
use spillway_transport::{Conn, Time, Transport};

use crate::backlog::Backlog;
use crate::clients::is_served;
use crate::library::{CLIENT_ID, LibraryClient, Passage, Request};
use crate::memory::Unread;
use crate::notice::{Cut, Refusal};
use crate::relay::Relay;
use crate::slots::{Holder, Sort};
use crate::upstream::Member;

impl Relay {
    pub(crate) fn library_opened<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let config = &self.config.services[usize::from(service)];
        let trusted = config.client_keys.is_some() || peer.ip().is_loopback();
        let admitted = if trusted { self.admit(service, peer) } else { Err(Refusal::Address) };
        let credit = self.choose_link(service).and_then(|index| self.upstreams[index].linked());
        let credit = credit.map(|linked| linked.opener.initial_credit()).ok_or(Refusal::LinkDown);
        match admitted.and(credit) {
            Ok(credit) => {
                self.make_room(out);
                self.gauge.came(now, peer);
                let deadline = now + self.config.timeouts.handshake;
                let encryption = self.config.services[usize::from(service)].client_encryption;
                let acceptor = Acceptor::new(encryption, credit, 1, deadline, self.fresh());
                let mut client = LibraryClient::new(now, service, peer, acceptor, credit);
                client.grant(conn, None, &mut self.memory, out);
                self.put_client(conn, Holder::Library(Box::new(client)));
                let slots = &self.slots;
                self.handshakes.start(now, conn, |conn| is_authenticating(slots.get(conn)));
                if let Some(victim) = self.unauthenticated.begin(now, peer.ip(), conn) {
                    self.crowd_out(victim, out);
                }
            }
            Err(why) => {
                self.refused(service, peer, why);
                out.abort(conn);
            }
        }
    }

    /// A client was admitted. If there is no room for it, one that has yet to authenticate goes.
    pub(crate) fn make_room<T: Transport>(&mut self, out: &mut T) {
        if self.is_full_of_clients()
            && let Some(victim) = self.unauthenticated.evict(self.now)
        {
            self.crowd_out(victim, out);
        }
    }

    /// A library client that has yet to authenticate, or that was rejected and stays, is dropped for a newer one.
    fn crowd_out<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        match self.slots.get(conn) {
            Some(Holder::Library(client)) => {
                let (service, peer) = (client.service, client.peer);
                self.refused(service, peer, Refusal::Crowded);
            }
            Some(Holder::Leaving(_)) => {} // refused already
            _ => debug_assert!(false, "only library clients wait for authentication"),
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    pub(crate) fn handshake_timeout<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(Holder::Library(client)) = self.slots.get(conn)
            && !client.acceptor.is_established()
        {
            let (service, peer) = (client.service, client.peer);
            self.refused(service, peer, Refusal::Handshake(LinkError::HandshakeTimeout));
            self.drop_client(conn, true);
            out.abort(conn);
        }
    }

    pub(crate) fn library_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        client.received(bytes.len());
        let upstream = client.passage.map(|passage| &mut self.upstreams[passage.upstream]);
        let linked = upstream.and_then(|upstream| upstream.linked_mut());
        // While the link's batch is as large as it may be, the client's bytes wait here. Bytes that come later wait behind
        // them, also when the client's connection to the server has ended meanwhile.
        if client.waiting.is_empty() && !linked.as_ref().is_some_and(|linked| linked.opener.is_full()) {
            return self.library_frames(now, conn, bytes, out);
        }
        client.waiting.push(bytes, &mut self.memory);
        match linked {
            Some(linked) => client.starve(conn, linked),
            None => self.mark_dirty(conn),
        }
    }

    /// The server's link has drained, or the client's connection there has ended: what waited goes on.
    pub(crate) fn library_goes_on<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        client.link_drained();
        let waiting = client.waiting.take(&mut self.memory);
        self.library_frames(now, conn, &waiting, out);
        if let Some(Holder::Library(client)) = self.slots.get(conn)
            && client.has_ended
        {
            self.library_finished(now, conn, out);
        }
    }

    fn library_frames<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.scratch);
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn) {
            let keyless;
            let ring = match &self.config.services[usize::from(client.service)].client_keys {
                Some(ring) => ring,
                None => {
                    // Settings may have changed since it came: who is not on loopback is not let in without a key.
                    let trusted = !client.acceptor.is_established() && client.peer.ip().is_loopback();
                    keyless = if trusted { KeyRing::loopback_only() } else { KeyRing::new() };
                    &keyless
                }
            };
            let opened = client.acceptor.unseal(now, ring, bytes, &mut scratch);
            self.library_opened_data(now, conn, opened, out);
        }
        self.scratch = scratch;
    }

    fn library_opened_data<T: Transport>(&mut self, now: Time, conn: Conn, mut input: &[u8], out: &mut T) {
        loop {
            let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
            let (service, established) = (client.service, client.acceptor.is_established());
            match client.acceptor.decompose(&mut input) {
                Ok(Some(AcceptorEvent::Data { id, bytes, last })) => {
                    client.bytes_in += bytes.len() as u64;
                    self.services[usize::from(service)].counters.requests.count(bytes.len());
                    self.request(conn, id, bytes, last);
                }
                Ok(Some(AcceptorEvent::Control { id, control })) => {
                    if let Err(error) = self.library_control(conn, id, control) {
                        self.cut(conn, Cut::Protocol(error), out);
                        return;
                    }
                }
                Ok(Some(AcceptorEvent::Established { role: Role::Client, .. })) => {
                    self.unauthenticated.end(conn);
                    if self.is_leaving(service) {
                        self.say_drain(conn, 0);
                    }
                }
                Ok(Some(AcceptorEvent::Established { role: Role::Helper, key })) => {
                    let error = LinkError::UnknownKey { role: Role::Helper, key };
                    return self.reject(now, conn, error, out);
                }
                Ok(None) => {
                    if !established && client.acceptor.has_named_key() {
                        self.unauthenticated.named_key(conn);
                    }
                    break;
                }
                Err(error) if established => {
                    self.cut(conn, Cut::Protocol(error), out);
                    return;
                }
                Err(error) => return self.reject(now, conn, error, out),
            }
        }
        self.after_library_data(now, conn, out);
    }

    fn after_library_data<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        self.note_incomplete(now, conn);
        self.note_rest(now, conn);
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let upstream = client.passage.map(|passage| &mut self.upstreams[passage.upstream]);
        let mut linked = upstream.and_then(|upstream| upstream.linked_mut());
        if let Some(linked) = &mut linked {
            linked.transmit_large(now, out);
        }
        client.grant(conn, linked, &mut self.memory, out);
        client.count(&mut self.memory);
        if client.pending() > 0 {
            self.mark_dirty(conn);
        }
    }

    /// Whoever does not authenticate is told why, as far as the protocol has a word for it, and let go.
    fn reject<T: Transport>(&mut self, now: Time, conn: Conn, error: LinkError, out: &mut T) {
        let Some(holder) = self.slots.get_mut(conn) else { return };
        let Holder::Library(client) = holder else { return };
        let (service, peer, since) = (client.service, client.peer, client.since);
        let mut backlog = Backlog::default();
        if let Some(last_words) = client.acceptor.flush() {
            backlog.push(last_words.as_slice(), &mut self.memory);
        }
        client.over(&mut self.memory);
        *holder = Holder::leaving(service, Sort::Library, peer, since, (backlog, Unread::new(now)));
        // It counts as a stranger until it has gone.
        self.refused(service, peer, Refusal::Handshake(error));
        self.start_lingering(now, conn);
        self.send_rest(conn, out);
    }

    /// A piece of a request. What comes after the end of its connection is passed over.
    fn request(&mut self, conn: Conn, id: Id, bytes: &[u8], last: bool) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let Some(passage) = client.passage.as_mut().filter(|_| id == CLIENT_ID) else {
            return client.acceptor.passed_over(bytes.len());
        };
        match passage.request(bytes.len()) {
            Request::Forward => {
                let (upstream, id) = (passage.upstream, passage.id);
                if let Some(linked) = self.upstreams[upstream].linked_mut() {
                    linked.opener.relay_data(id, bytes, last);
                }
            }
            Request::PassOver => client.acceptor.passed_over(bytes.len()),
            Request::OverCredit => self.break_passage(conn),
        }
    }

    /// The client has sent more than the server allows: both are told, and nothing more of it passes.
    fn break_passage(&mut self, conn: Conn) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let Some(passage) = client.passage.take() else { return };
        client.acceptor.control(CLIENT_ID, Control::Close(CloseReason::OverCredit));
        self.services[usize::from(client.service)].counters.connections_broken += 1;
        if let Some(linked) = self.upstreams[passage.upstream].linked_mut() {
            linked.opener.relay_control(passage.id, Control::Close(CloseReason::OverCredit));
            linked.set_member(passage.id, Member::Orphan);
        }
        self.mark_dirty(conn);
    }

    fn library_control(&mut self, conn: Conn, id: Id, control: Control) -> Result<(), LinkError> {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return Ok(()) };
        if matches!(control, Control::Connect(_) | Control::Reconnect(_)) {
            if id != CLIENT_ID || client.passage.is_some() {
                return Err(LinkError::Id(id));
            }
            if let Err(why) = self.open_passage(conn, control) {
                self.refuse_passage(conn, why);
            }
            return Ok(());
        }
        let Some(passage) = client.passage.as_mut().filter(|_| id == CLIENT_ID) else { return Ok(()) };
        let is_repeated = passage.finished_by_client && matches!(control, Control::Finish(_));
        if passage.closed_by_client || is_repeated {
            return Ok(());
        }
        passage.finished_by_client |= matches!(control, Control::Finish(_));
        passage.closed_by_client = matches!(control, Control::Close(_));
        let passage = *passage;
        if let Some(linked) = self.upstreams[passage.upstream].linked_mut() {
            linked.opener.relay_control(passage.id, control);
        }
        if passage.closed_by_client && passage.closed_by_server {
            self.end_passage(conn, passage);
        }
        Ok(())
    }

    /// `first_words`: *connect* or *reconnect*.
    fn open_passage(&mut self, conn: Conn, first_words: Control) -> Result<(), Refusal> {
        let Some(Holder::Library(client)) = self.slots.get(conn) else { return Ok(()) };
        // The server's link belongs to one server: which one was wanted is settled here.
        let (address, wanted, of_session, first_words) = match first_words {
            Control::Connect(connect) => {
                let forwarded = Control::Connect(Connect { server: None, ..connect });
                (connect.client, connect.server, connect.session.is_some(), forwarded)
            }
            Control::Reconnect(reconnect) => {
                let forwarded = Control::Reconnect(Reconnect { server: None, ..reconnect });
                (reconnect.client, reconnect.server, true, forwarded)
            }
            _ => return Ok(()),
        };
        let service = client.service;
        let config = &self.config.services[usize::from(service)];
        if !client.speaks_for_itself(address) {
            return Err(Refusal::NotItsOwnAddress);
        }
        if !is_served(config, wanted) {
            return Err(Refusal::OtherServer);
        }
        if self.is_leaving(service) {
            return Err(Refusal::Draining);
        }
        if self.is_off(service) {
            return Err(Refusal::Off);
        }
        let credit = client.credit;
        let upstream = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let linked = self.upstreams[upstream].linked_mut().ok_or(Refusal::LinkDown)?;
        // The server was restarted with less credit since the client's link began: it must ask again. A session is
        // told its credit by the server.
        if !of_session && linked.opener.initial_credit() < credit {
            return Err(Refusal::LinkDown);
        }
        let allowed = (!of_session).then(|| linked.opener.initial_credit());
        let id = linked.opener.open_relayed(first_words).map_err(|error| match error {
            OpenError::NotEstablished => Refusal::LinkDown,
            OpenError::Full => Refusal::LinkFull,
            OpenError::Sessions => Refusal::OldServer,
        })?;
        linked.relayed += 1;
        linked.set_member(id, Member::Client(conn));
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn) {
            client.passage = Some(Passage::new(upstream, id, allowed));
        }
        self.services[usize::from(service)].counters.library_connections += 1;
        Ok(())
    }

    fn refuse_passage(&mut self, conn: Conn, why: Refusal) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let reason = match why {
            Refusal::NotItsOwnAddress | Refusal::Address => RefuseReason::Forbidden,
            Refusal::OtherServer => RefuseReason::UnknownServer,
            Refusal::LinkFull | Refusal::ClientsMax | Refusal::Memory => RefuseReason::Full,
            _ => RefuseReason::Unavailable,
        };
        client.acceptor.control(CLIENT_ID, Control::Refused(reason));
        let (service, peer) = (client.service, client.peer);
        self.refused(service, peer, why);
        self.mark_dirty(conn);
    }

    /// Both sides have closed, or the server refused: the id is free.
    fn end_passage(&mut self, conn: Conn, passage: Passage) {
        self.release(passage.upstream, passage.id);
        self.leave_passage(conn);
    }

    /// Whether a library client's connection has been closed by the server.
    pub(crate) fn is_closed_by_server(&self, conn: Conn) -> bool {
        let holder = self.slots.get(conn);
        matches!(holder, Some(Holder::Library(client)) if client.passage.is_some_and(|one| one.closed_by_server))
    }

    /// The link that carried a library client's connection has ended. The client's own link goes on without it.
    pub(crate) fn leave_passage(&mut self, conn: Conn) {
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn) {
            client.passage = None;
            self.mark_dirty(conn);
        }
    }

    fn release(&mut self, upstream: usize, id: Id) {
        if let Some(linked) = self.upstreams[upstream].linked_mut() {
            linked.set_member(id, Member::Nobody);
            linked.opener.release_relayed(id);
            linked.relayed -= 1;
        }
    }

    /// The client is gone: the server is told, and the id stays until the server has closed too.
    pub(crate) fn orphan(&mut self, conn: Conn) {
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let Some(passage) = client.passage.take() else { return };
        let Some(linked) = self.upstreams[passage.upstream].linked_mut() else { return };
        if !passage.closed_by_client {
            let reason = if passage.of_session { CloseReason::Lost } else { CloseReason::Reset };
            linked.opener.relay_control(passage.id, Control::Close(reason));
        }
        if passage.closed_by_server {
            self.release(passage.upstream, passage.id);
        } else {
            linked.set_member(passage.id, Member::Orphan);
        }
    }

    pub(crate) fn passage_data<T: Transport>(&mut self, upstream: usize, id: Id, bytes: &[u8], out: &mut T) {
        let Some(conn) = self.member(upstream, id) else { return };
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        if !client.passage.is_some_and(|passage| !passage.closed_by_client && !passage.closed_by_server) {
            return;
        }
        client.bytes_out += bytes.len() as u64;
        self.services[usize::from(client.service)].counters.replies.count(bytes.len());
        client.acceptor.data(CLIENT_ID, bytes);
        client.count(&mut self.memory);
        if client.pending() > self.config.connection_buffer_bytes {
            // What the turn has gathered may still go.
            client.transmit(self.now, conn, &mut self.memory, out);
            if client.pending() > self.config.connection_buffer_bytes {
                return self.cut(conn, Cut::Buffer, out);
            }
        }
        self.mark_dirty(conn);
    }

    pub(crate) fn passage_control<T: Transport>(
        &mut self,
        upstream: usize,
        id: Id,
        control: Control,
        out: &mut T,
    ) {
        let ends = matches!(control, Control::Close(_) | Control::Refused(_));
        let Some(conn) = self.member(upstream, id) else {
            if ends && self.is_orphan(upstream, id) {
                self.release(upstream, id);
            }
            return;
        };
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        let (service, peer) = (client.service, client.peer);
        let Some(passage) = client.passage.as_mut().filter(|passage| !passage.closed_by_server) else {
            return;
        };
        client.acceptor.control(CLIENT_ID, control);
        passage.closed_by_server = ends;
        if let Control::Credit(limit) = control {
            passage.raise_credit(limit);
        }
        let passage = *passage;
        if client.pending() > self.config.connection_buffer_bytes {
            client.transmit(self.now, conn, &mut self.memory, out);
        }
        if client.pending() > self.config.connection_buffer_bytes {
            return self.cut(conn, Cut::Buffer, out);
        }
        self.mark_dirty(conn);
        if let Control::Refused(reason) = control {
            self.refused(service, peer, Refusal::Server(reason));
            self.end_passage(conn, passage);
        } else if passage.closed_by_client && passage.closed_by_server {
            self.end_passage(conn, passage);
        }
    }

    fn is_orphan(&self, upstream: usize, id: Id) -> bool {
        self.upstreams[upstream].linked().is_some_and(|linked| linked.member(id) == Member::Orphan)
    }

    /// The client's link ends. What was open on it is reset.
    pub(crate) fn library_finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn)
            && !client.waiting.is_empty()
        {
            client.has_ended = true;
            return;
        }
        self.orphan(conn);
        self.library_turn(conn, out);
        let Some(holder) = self.slots.get_mut(conn) else { return };
        let Holder::Library(client) = holder else { return };
        client.over(&mut self.memory);
        *holder = Holder::leaving(
            client.service,
            Sort::Library,
            client.peer,
            client.since,
            (Backlog::default(), Unread::new(now)),
        );
        self.start_lingering(now, conn);
        self.send_rest(conn, out);
    }

    pub(crate) fn library_turn<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let now = self.now;
        let Some(Holder::Library(client)) = self.slots.get_mut(conn) else { return };
        client.transmit(now, conn, &mut self.memory, out);
        if client.pending() > self.config.connection_buffer_bytes {
            return self.cut(conn, Cut::Buffer, out);
        }
        if client.passage.is_none() && !client.waiting.is_empty() {
            self.library_goes_on(now, conn, out);
        }
        // A client that was not read because it did not read answers goes on.
        self.grant_again(conn, out);
    }
}

fn is_authenticating(holder: Option<&Holder>) -> bool {
    matches!(holder, Some(Holder::Library(client)) if !client.acceptor.is_established())
}

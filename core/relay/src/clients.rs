//! Clients of both sorts: who is taken, how they leave, when they are cut off.

use alloc::boxed::Box;
use core::net::SocketAddr;

use spillway_batch::{CloseReason, OpenError};
use spillway_transport::{Conn, LostReason, Time, Transport};

use crate::acknowledging::Owed;
use crate::config::ServiceConfig;
use crate::gates;
use crate::notice::{Cut, Notice, Refusal};
use crate::raw::{Arrival, RawClient};
use crate::relay::Relay;
use crate::slots::{Holder, Sort, Stream};
use crate::upstream::Member;

/// Whether a library client that wants this server finds it at this service.
pub(crate) fn is_served(service: &ServiceConfig, wanted: Option<SocketAddr>) -> bool {
    wanted.is_none_or(|wanted| wanted == service.server || service.server_aliases.contains(&wanted))
}

impl Relay {
    /// Whether a client may come in; whatever its link says.
    pub(crate) fn admit(&self, service: u16, peer: SocketAddr) -> Result<(), Refusal> {
        let config = &self.config.services[usize::from(service)];
        if !config.clients.iter().any(|range| range.contains(peer.ip())) {
            return Err(Refusal::Address);
        }
        self.admit_anybody(service)
    }

    /// Whether there is room for one more.
    pub(crate) fn admit_anybody(&self, service: u16) -> Result<(), Refusal> {
        if self.is_leaving(service) {
            return Err(Refusal::Draining);
        }
        if self.is_off(service) {
            return Err(Refusal::Off);
        }
        // One that has yet to authenticate goes when somebody else wants its place.
        if self.is_full_of_clients() && !self.unauthenticated.can_evict(self.now) {
            return Err(Refusal::ClientsMax);
        }
        // Those that hold most are closed before it comes to this: the rest of the memory is not clients'.
        if self.memory.is_exceeded() {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    pub(crate) fn is_full_of_clients(&self) -> bool {
        self.clients >= self.config.clients_max
    }

    /// The link of a service with the fewest connections, of those that take clients.
    pub(crate) fn choose_link(&self, service: u16) -> Option<usize> {
        let all = self.services[usize::from(service)].upstreams.iter().copied();
        let takes = all.filter(|index| self.upstreams[*index].takes_clients());
        takes.min_by_key(|index| self.upstreams[*index].linked().map_or(0, |linked| linked.connections()))
    }

    pub(crate) fn refused(&mut self, service: u16, client: SocketAddr, why: Refusal) {
        self.services[usize::from(service)].counters.refused.count(why);
        self.notices.push(Notice::ClientRefused { service, client, why });
    }

    pub(crate) fn raw_opened<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        peer: SocketAddr,
        out: &mut T,
    ) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        if self.announces(service, peer) {
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

    pub(crate) fn open_raw<T: Transport>(
        &mut self,
        conn: Conn,
        service: u16,
        arrival: Arrival,
        out: &mut T,
    ) -> Result<(), Refusal> {
        let now = self.now;
        let upstream = self.choose_link(service).ok_or(Refusal::LinkDown)?;
        let linked = self.upstreams[upstream].linked_mut().ok_or(Refusal::LinkDown)?;
        let keeps = self.config.services[usize::from(service)].acknowledges_replies;
        let window = self.config.first_window_bytes.min(linked.window_bytes_max);
        let opened = linked.opener.open_narrow(arrival.peer, window, keeps);
        let id = opened.map_err(|error| match error {
            OpenError::NotEstablished => Refusal::LinkDown,
            OpenError::Full => Refusal::LinkFull,
            OpenError::Sessions => Refusal::OldServer,
        })?;
        linked.set_member(id, Member::Client(conn));
        let mut client = RawClient::new(now, service, (upstream, id), arrival, window);
        if keeps && linked.opener.carries_sessions() {
            client.acknowledging = Some(Box::default());
            out.watch_acknowledged(conn, true);
        }
        if keeps && linked.opener.hears_what_is_taken() {
            out.release(conn, client.stream_offset(0));
        } else {
            gates::open_for_good(conn, out);
        }
        client.grant(now, conn, linked, &mut self.memory, out);
        self.put_client(conn, Holder::Raw(client));
        self.services[usize::from(service)].counters.raw_clients += 1;
        Ok(())
    }

    pub(crate) fn put_client(&mut self, conn: Conn, holder: Holder) {
        if let Some((service, sort)) = holder.client_of() {
            self.clients += 1;
            *self.present(service, sort) += 1;
        }
        self.slots.put(conn, holder);
    }

    fn present(&mut self, service: u16, sort: Sort) -> &mut u32 {
        let service = &mut self.services[usize::from(service)];
        match sort {
            Sort::Raw => &mut service.raw_clients,
            Sort::Library => &mut service.library_clients,
        }
    }

    /// Forgets a client's connection and what was buffered for it. Its virtual connection is the caller's. `failed`
    /// when that is not the client's doing, nor its server's.
    pub(crate) fn drop_client(&mut self, conn: Conn, failed: bool) {
        self.settle(conn);
        let mut holder = self.slots.take(conn);
        let Some((service, sort)) = holder.client_of() else { return };
        self.clients -= 1;
        *self.present(service, sort) -= 1;
        self.count_drained(service, sort, failed);
        match &mut holder {
            Holder::Raw(client) => {
                let stalled = client.end_stall(self.now);
                self.services[usize::from(service)].counters.stalls.add(stalled);
                client.over(&mut self.memory).0.clear(&mut self.memory);
            }
            Holder::Library(client) => {
                client.over(&mut self.memory);
                if !client.acceptor.is_established() {
                    self.unauthenticated.end(conn);
                }
            }
            Holder::Leaving(leaving) => {
                leaving.backlog.clear(&mut self.memory);
                if leaving.sort == Sort::Library {
                    self.unauthenticated.end(conn);
                }
            }
            Holder::Announcing(announcing) => self.memory.changed(announcing.counted, 0),
            Holder::Free | Holder::Upstream(_) => {}
        }
    }

    /// A client's connection is gone by itself: its virtual connection ends.
    pub(crate) fn client_lost(&mut self, conn: Conn, reason: LostReason) {
        let closed = if reason == LostReason::Closed { CloseReason::Normal } else { CloseReason::Reset };
        self.end_virtual(conn, closed);
        self.drop_client(conn, false);
    }

    /// A client is reset by us, and so is its virtual connection.
    pub(crate) fn reset_client<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        self.end_virtual(conn, CloseReason::Reset);
        self.drop_client(conn, true);
        out.abort(conn);
    }

    fn end_virtual(&mut self, conn: Conn, reason: CloseReason) {
        match self.slots.get(conn) {
            Some(Holder::Raw(client)) => {
                let (upstream, id) = (client.upstream, client.id);
                if let Some(linked) = self.upstreams[upstream].linked_mut() {
                    linked.opener.close(id, reason);
                    linked.set_member(id, Member::Nobody);
                }
            }
            // A library client says itself when it closes normally: whatever ends its link before is a reset.
            Some(Holder::Library(_)) => self.orphan(conn),
            _ => {}
        }
    }

    pub(crate) fn cut<T: Transport>(&mut self, conn: Conn, why: Cut, out: &mut T) {
        let (service, client) = match self.slots.get(conn) {
            Some(Holder::Raw(client)) => (client.service, client.peer),
            Some(Holder::Library(client)) => (client.service, client.peer),
            Some(Holder::Leaving(leaving)) => (leaving.service, leaving.peer),
            Some(Holder::Announcing(announcing)) => (announcing.service, announcing.peer),
            _ => return,
        };
        self.services[usize::from(service)].counters.cut.count(why);
        self.notices.push(Notice::ClientCut { service, client, why });
        self.reset_client(conn, out);
    }

    /// The server has closed: the client gets what is left, then the end; and the server what it is owed.
    pub(crate) fn let_leave<T: Transport>(&mut self, now: Time, conn: Conn, owed: Option<Owed>, out: &mut T) {
        let Some(holder) = self.slots.get_mut(conn) else { return };
        let Holder::Raw(client) = holder else { return };
        self.services[usize::from(client.service)].counters.stalls.add(client.end_stall(now));
        let left = client.over(&mut self.memory);
        let bytes = client.bytes_out;
        gates::open_for_good(conn, out); // it wants no more of the client
        if client.is_granted_nothing() {
            out.grant(conn, 1); // so that we hear if it says more
        }
        *holder = Holder::leaving(client.service, Sort::Raw, client.peer, client.since, left);
        if let Holder::Leaving(leaving) = holder {
            leaving.end = Stream::Known { bytes };
            leaving.acknowledged = owed.as_ref().map_or(0, Owed::acknowledged);
            leaving.owed = owed;
        }
        out.watch_acknowledged(conn, true);
        self.start_lingering(now, conn);
        self.send_rest(conn, out);
    }

    /// Sends what is left for a leaving client; after the last byte comes the end.
    pub(crate) fn send_rest<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        let Some(Holder::Leaving(leaving)) = self.slots.get_mut(conn) else { return };
        while !leaving.backlog.is_empty() {
            let offered = leaving.backlog.front().len();
            let taken = out.send(conn, leaving.backlog.front());
            leaving.backlog.advance(taken, &mut self.memory);
            if taken < offered {
                break;
            }
        }
        if leaving.backlog.is_empty() {
            out.finish(conn);
        }
    }

    /// A client sends although its server has closed. Once its TCP has all that was left for it, it is reset, as a kernel
    /// resets it at once: one that only writes notices nothing else.
    pub(crate) fn leaving_data<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(Holder::Leaving(leaving)) = self.slots.get_mut(conn) {
            leaving.has_spoken = true;
            self.reset_if_it_spoke(conn, out);
        }
    }

    pub(crate) fn reset_if_it_spoke<T: Transport>(&mut self, conn: Conn, out: &mut T) {
        if let Some(Holder::Leaving(leaving)) = self.slots.get(conn)
            && leaving.has_spoken
            && leaving.has_all()
        {
            self.drop_client(conn, false);
            out.abort(conn);
        }
    }

    pub(crate) fn start_lingering(&mut self, now: Time, conn: Conn) {
        let slots = &self.slots;
        self.lingering.start(now, conn, |conn| matches!(slots.get(conn), Some(Holder::Leaving(_))));
    }

    /// A leaving client has time as long as its TCP acknowledges something in each period: what was given to
    /// the host may be far from there.
    pub(crate) fn linger_timeout<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Leaving(leaving)) = self.slots.get_mut(conn) else { return };
        if leaving.acknowledged > leaving.acknowledged_before {
            leaving.acknowledged_before = leaving.acknowledged;
            self.start_lingering(now, conn);
            return;
        }
        self.drop_client(conn, false);
        out.abort(conn);
    }
}

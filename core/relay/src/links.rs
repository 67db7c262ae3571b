//! Links to servers: opened at the start and kept; what comes over them; what happens when they are lost.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Fresh, Id, Limits, LinkError, OpenerConfig, OpenerEvent, OpenerLink, RefuseReason, Role,
    Verdict,
};
use spillway_policy::Word;
use spillway_transport::{Conn, Time, Transport};

use crate::acknowledging::Owed;
use crate::notice::{LinkDown, Notice, Refusal};
use crate::relay::Relay;
use crate::slots::Holder;
use crate::upstream::{BATCH_BYTES, LINK_GRANT_BYTES, Linked, Member, Standing, State};

impl Relay {
    /// Listeners are open while a link is there to carry their clients; otherwise the host refuses them.
    pub(crate) fn update_listening<T: Transport>(&mut self, service: usize, out: &mut T) {
        let running = &mut self.services[service];
        let takes = running.upstreams.iter().any(|index| self.upstreams[*index].takes_clients());
        running.listening = takes && running.drain.is_none() && running.standing.at(self.now) != Word::Off;
        let config = &self.config.services[service];
        for index in config.raw_listeners.iter().chain(&config.link_listeners) {
            if let Some(listener) = self.listeners.get_mut(usize::from(*index))
                && listener.open != running.listening
            {
                listener.open = running.listening;
                out.set_listening(*index, listener.open);
            }
        }
    }

    pub(crate) fn link_timeout<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        match &mut self.upstreams[index].state {
            State::Waiting { until } if *until <= now => self.connect_link(now, index, out),
            State::Connecting { conn, deadline } if *deadline <= now => {
                let conn = *conn;
                out.abort(conn);
                self.link_down(now, index, LinkDown::ConnectTimeout, out);
            }
            State::Linked(linked) => {
                if let Err(error) = linked.opener.handle_timeout(now) {
                    let conn = linked.conn;
                    out.abort(conn);
                    self.link_down(now, index, LinkDown::Link(error), out);
                }
            }
            _ => {}
        }
    }

    fn connect_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let service = &self.config.services[usize::from(self.upstreams[index].service)];
        match out.connect(now, service.server) {
            Ok(conn) => {
                self.slots.put(conn, Holder::Upstream(index));
                let deadline = now + service.connect_timeout;
                self.upstreams[index].state = State::Connecting { conn, deadline };
            }
            Err(_) => self.link_down(now, index, LinkDown::HostFull, out),
        }
    }

    pub(crate) fn link_opened<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Upstream(index)) = self.slots.get(conn) else {
            out.abort(conn);
            return;
        };
        let index = *index;
        let fresh = self.fresh();
        // All links' batches together may have a quarter of the memory.
        let share = self.config.memory_bytes_max / 4 / self.upstreams.len();
        let upstream = &mut self.upstreams[index];
        let service = &self.config.services[usize::from(upstream.service)];
        let pending_bytes_max = service.limits.pending_bytes_max.min(share.max(BATCH_BYTES));
        // Settings may have changed since the connection was begun.
        let key = service.keys.get(upstream.key).or(service.keys.first()).cloned();
        let config = OpenerConfig {
            role: Role::Helper,
            key: key.unwrap_or_else(Key::loopback_only),
            limits: Limits { pending_bytes_max, ..service.limits },
            policy: service.policy,
            encryption: service.encryption,
        };
        let opener = OpenerLink::new(&config, now, fresh);
        upstream.state =
            State::Linked(Box::new(Linked::new(conn, opener, config.limits.window_bytes, config.key.id())));
        out.grant(conn, LINK_GRANT_BYTES);
    }

    pub(crate) fn fresh(&mut self) -> Fresh {
        Fresh::filled(|bytes| (self.random)(bytes))
    }

    pub(crate) fn link_data<T: Transport>(&mut self, now: Time, index: usize, bytes: &[u8], out: &mut T) {
        let mut scratch = core::mem::take(&mut self.scratch);
        if let Some(linked) = self.upstreams[index].linked_mut() {
            let opened = linked.opener.unseal(now, bytes, &mut scratch);
            self.link_opened_data(now, index, (bytes.len(), opened), out);
        }
        self.scratch = scratch;
    }

    /// `received` bytes have been opened: `input` was in them.
    fn link_opened_data<T: Transport>(
        &mut self,
        now: Time,
        index: usize,
        (received, mut input): (usize, &[u8]),
        out: &mut T,
    ) {
        loop {
            let Some(linked) = self.upstreams[index].linked_mut() else { return };
            match linked.opener.decompose(now, &mut input) {
                Ok(Some(OpenerEvent::Data { id, bytes })) => self.reply(index, id, bytes, out),
                Ok(Some(event)) => self.link_event(now, index, event, out),
                Ok(None) => {
                    out.grant(linked.conn, received as u32); // at most what was granted
                    return;
                }
                Err(error) => {
                    out.abort(linked.conn);
                    self.link_down(now, index, LinkDown::Link(error), out);
                    return;
                }
            }
        }
    }

    fn reply<T: Transport>(&mut self, index: usize, id: Id, bytes: &[u8], out: &mut T) {
        let Some(linked) = self.upstreams[index].linked_mut() else { return };
        let Member::Client(conn) = linked.member(id) else { return };
        let Some(Holder::Raw(client)) = self.slots.get_mut(conn) else { return };
        self.services[usize::from(client.service)].counters.replies.count(bytes.len());
        client.reply(self.now, conn, bytes, linked, &mut self.memory, out);
    }

    fn link_event<T: Transport>(&mut self, now: Time, index: usize, event: OpenerEvent<'_>, out: &mut T) {
        match event {
            OpenerEvent::Established { connections_max } => self.link_up(now, index, connections_max, out),
            OpenerEvent::Accepted { .. } | OpenerEvent::Data { .. } => {}
            OpenerEvent::Refused { id, reason } => self.raw_refused(index, id, reason, out),
            OpenerEvent::Taken { id, through, is_finished } => {
                self.requests_taken(index, id, through, is_finished, out);
            }
            OpenerEvent::Finished { id } => {
                if let Some(conn) = self.member(index, id)
                    && let Some(Holder::Raw(client)) = self.slots.get_mut(conn)
                {
                    client.server_finished(conn, out);
                }
            }
            OpenerEvent::Closed { id, reason } => self.raw_closed(now, index, id, reason, out),
            OpenerEvent::Drain { deadline_ms } => self.server_drains(index, deadline_ms, out),
            OpenerEvent::RelayedData { id, bytes, .. } => self.passage_data(index, id, bytes, out),
            OpenerEvent::RelayedControl { id, control } => self.passage_control(index, id, control, out),
        }
    }

    pub(crate) fn member(&self, index: usize, id: Id) -> Option<Conn> {
        match self.upstreams[index].linked()?.member(id) {
            Member::Client(conn) => Some(conn),
            Member::Nobody | Member::Orphan => None,
        }
    }

    fn link_up<T: Transport>(&mut self, now: Time, index: usize, connections_max: u32, out: &mut T) {
        let upstream = &mut self.upstreams[index];
        upstream.came_up();
        if let Some(linked) = upstream.linked_mut() {
            linked.up = true;
        }
        let (service, link) = (upstream.service, upstream.link);
        self.services[usize::from(service)].counters.links_up += 1;
        self.notices.push(Notice::LinkUp { service, link, connections_max });
        self.retire_predecessors(now, usize::from(service));
        self.update_listening(usize::from(service), out);
    }

    fn raw_refused<T: Transport>(&mut self, index: usize, id: Id, reason: RefuseReason, out: &mut T) {
        let Some(conn) = self.member(index, id) else { return };
        let Some(Holder::Raw(client)) = self.slots.get(conn) else { return };
        let (service, peer) = (client.service, client.peer);
        self.refused(service, peer, Refusal::Server(reason));
        if let Some(linked) = self.upstreams[index].linked_mut() {
            linked.set_member(id, Member::Nobody);
        }
        self.drop_client(conn, true);
        out.abort(conn);
    }

    /// The server's application has closed a plain client's connection, or the connection is broken.
    fn raw_closed<T: Transport>(
        &mut self,
        now: Time,
        index: usize,
        id: Id,
        reason: CloseReason,
        out: &mut T,
    ) {
        let broken = matches!(reason, CloseReason::Protocol | CloseReason::OverCredit);
        let service = usize::from(self.upstreams[index].service);
        self.services[service].counters.connections_broken += u64::from(broken);
        let Some(linked) = self.upstreams[index].linked_mut() else { return };
        let member = linked.member(id);
        let mut owed = None;
        if let (CloseReason::Normal, Member::Client(conn)) = (reason, member)
            && let Some(Holder::Raw(client)) = self.slots.get(conn)
        {
            owed = Owed::new((index, id), client.bytes_out, client.acknowledging.as_deref().copied(), linked);
        }
        if owed.is_none() {
            linked.opener.close(id, reason);
            linked.set_member(id, Member::Nobody);
        }
        let Member::Client(conn) = member else { return };
        if reason == CloseReason::Normal {
            self.let_leave(now, conn, owed, out);
        } else {
            self.drop_client(conn, true);
            out.abort(conn);
        }
    }

    fn server_drains<T: Transport>(&mut self, index: usize, deadline_ms: u32, out: &mut T) {
        let upstream = &mut self.upstreams[index];
        let (service, link) = (upstream.service, upstream.link);
        let Some(linked) = upstream.linked_mut() else { return };
        linked.draining = true;
        let clients: Vec<Conn> = linked.clients().collect();
        self.notices.push(Notice::ServerDrains { service, link, deadline_ms });
        clients.into_iter().for_each(|conn| self.say_drain(conn, deadline_ms));
        self.update_listening(usize::from(service), out);
    }

    /// The turn of links on which something has changed, or something is due.
    pub(crate) fn links_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let links = self.upstreams.begin_turn(now);
        for index in links.iter().copied() {
            self.link_turn(now, index, out);
            self.end_retired(now, index, out);
            self.upstreams.settle(index);
        }
        self.upstreams.end_turn(links);
    }

    /// Sends what is due, and lets those go on who waited for it.
    pub(crate) fn link_turn<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Some(linked) = self.upstreams[index].linked_mut() else { return };
        linked.transmit(now, out);
        while let Some(id) = linked.opener.poll_room() {
            if let Member::Client(conn) = linked.member(id)
                && let Some(Holder::Raw(client)) = self.slots.get_mut(conn)
            {
                client.link_has_room(now, conn, linked, &mut self.memory, out);
            }
        }
        if !linked.is_congested() && !linked.starved.is_empty() {
            self.feed_starved(now, index, out);
        }
        if let Some(linked) = self.upstreams[index].linked_mut() {
            linked.count(&mut self.memory);
        }
    }

    /// A link has drained: those that waited for it go on in turn, until it is full again.
    fn feed_starved<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Some(linked) = self.upstreams[index].linked_mut() else { return };
        let mut starved = core::mem::take(&mut linked.starved).into_iter();
        for conn in starved.by_ref() {
            match self.slots.get_mut(conn) {
                Some(Holder::Raw(client)) => {
                    let Some(linked) = self.upstreams[client.upstream].linked_mut() else { continue };
                    client.link_drained(now, conn, linked, &mut self.memory, out);
                }
                Some(Holder::Library(_)) => self.library_goes_on(now, conn, out),
                _ => {}
            }
            if self.upstreams[index].linked().is_none_or(|linked| linked.opener.is_full()) {
                break;
            }
        }
        if let Some(linked) = self.upstreams[index].linked_mut() {
            let latest = core::mem::replace(&mut linked.starved, starved.collect());
            linked.starved.extend(latest);
        }
    }

    /// A link is lost, or did not come up. Its own connection is gone already.
    pub(crate) fn link_down<T: Transport>(&mut self, now: Time, index: usize, why: LinkDown, out: &mut T) {
        let upstream = &mut self.upstreams[index];
        let (service, link) = (upstream.service, upstream.link);
        let before = core::mem::replace(&mut upstream.state, State::Closed);
        let (mut clients, mut was_up, mut starved) = (0, false, Vec::new());
        match before {
            State::Connecting { conn, .. } => drop(self.slots.take(conn)),
            State::Linked(mut linked) => {
                starved = core::mem::take(&mut linked.starved);
                upstream.past.add(&linked);
                linked.uncount(&mut self.memory);
                was_up = linked.up;
                drop(self.slots.take(linked.conn));
                for conn in linked.clients() {
                    if let Some(Holder::Leaving(leaving)) = self.slots.get_mut(conn) {
                        // It takes what is left for it all the same.
                        leaving.owed = None;
                        continue;
                    }
                    if self.is_closed_by_server(conn) {
                        // The server's *close* came before the end of its link: the client hears of it.
                        self.leave_passage(conn);
                        continue;
                    }
                    self.drop_client(conn, true);
                    out.abort(conn);
                    clients += 1;
                }
            }
            State::Waiting { .. } | State::Closed => {}
        }
        let counters = &mut self.services[usize::from(service)].counters;
        counters.links_lost += u64::from(was_up);
        counters.lost_with_link += u64::from(clients);
        counters.link_failures.count(why);
        let older = self.older_key(index, why);
        let retry_in = if older { Some(Duration::ZERO) } else { self.retry_link(now, index) };
        if older {
            self.upstreams[index].state = State::Waiting { until: now };
        } else {
            self.notices.push(Notice::LinkDown { service, link, why, clients, retry_in });
        }
        self.update_listening(usize::from(service), out);
        // Library clients whose connection there had ended before: their links go on.
        starved.into_iter().for_each(|conn| self.library_goes_on(now, conn, out));
    }

    /// Whether the server did not accept a key and there is an older one, which is tried next.
    fn older_key(&mut self, index: usize, why: LinkDown) -> bool {
        let upstream = &mut self.upstreams[index];
        let (service, link) = (upstream.service, upstream.link);
        let keys = &self.config.services[usize::from(service)].keys;
        let refused = why == LinkDown::Link(LinkError::RefusedByServer(Verdict::Key));
        if !refused || upstream.standing != Standing::Current {
            return false;
        }
        let tried = keys.get(upstream.key).map(Key::id);
        upstream.key += 1;
        if upstream.key >= keys.len() {
            upstream.key = 0;
            return false;
        }
        self.notices.extend(tried.map(|key| Notice::KeyRefused { service, link, key }));
        true
    }

    /// When a lost link is opened again; never, if it was replaced.
    fn retry_link(&mut self, now: Time, index: usize) -> Option<Duration> {
        if self.upstreams[index].standing != Standing::Current {
            self.forget_link(index);
            return None;
        }
        let mut random = [0; 2];
        (self.random)(&mut random);
        let timeouts = self.config.timeouts;
        let random = u16::from_le_bytes(random);
        Some(self.upstreams[index].wait(now, timeouts.reconnect_min, timeouts.reconnect_max, random))
    }

    /// The relay goes away, or does without this link: what is gathered leaves, then the link ends.
    pub(crate) fn close_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let upstream = &mut self.upstreams[index];
        match core::mem::replace(&mut upstream.state, State::Closed) {
            State::Linked(mut linked) => {
                linked.transmit_all(now, out);
                linked.uncount(&mut self.memory);
                upstream.past.add(&linked);
                drop(self.slots.take(linked.conn));
                out.finish(linked.conn);
            }
            State::Connecting { conn, .. } => {
                drop(self.slots.take(conn));
                out.abort(conn);
            }
            State::Waiting { .. } | State::Closed => {}
        }
    }
}

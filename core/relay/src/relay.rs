//! The relay as a whole: events to whom they concern, turns, timers, status.

use alloc::vec::Vec;

use spillway_auth::KeyRing;
use spillway_batch::{Scratch, Unauthenticated};
use spillway_policy::{Gauge, Shedding};
use spillway_transport::{Application, Conn, Event, HostLimit, LostReason, Time, Transport};

use crate::acknowledging::TELL_AFTER;
use crate::config::{Config, ConfigError, Random, ServiceConfig};
use crate::deadlines::Deadlines;
use crate::draining::Drain;
use crate::incomplete;
use crate::marked::{MarkedList, Turns};
use crate::memory::Memory;
use crate::notice::{LinkDown, Notice, Notices};
use crate::pressure::Pressure;
use crate::slots::{Holder, Slots, Sort};
use crate::status::{
    ClientKind, ClientStatus, LinkState, LinkStatus, ServiceCounters, ServiceStatus, Status,
};
use crate::upstream::{Past, Standing, State, Upstream};

/// A helper without I/O.
pub struct Relay {
    pub(crate) config: Config,
    pub(crate) services: MarkedList<Service>,
    pub(crate) upstreams: MarkedList<Upstream>,
    pub(crate) slots: Slots,
    pub(crate) clients: u32,
    pub(crate) memory: Memory,
    pub(crate) pressure: Pressure,
    /// Clients closed because memory was short.
    pub(crate) closed_for_memory: u64,
    /// Something has happened since the last end of a turn.
    pub(crate) in_turn: bool,
    /// Library clients that have something to be sent at the end of the turn.
    pub(crate) dirty: Vec<Conn>,
    pub(crate) lingering: Deadlines,
    /// Of plain clients whose acknowledgements their servers are to be told of.
    pub(crate) tellings: Deadlines,
    pub(crate) handshakes: Deadlines,
    /// When to look at library clients whose records are incomplete.
    pub(crate) incomplete: Deadlines,
    /// Of library clients that are not read for a time because of what they send.
    pub(crate) resting: Deadlines,
    /// Library clients that have yet to authenticate.
    pub(crate) unauthenticated: Unauthenticated<Conn>,
    /// When library clients are cut whose links lack the encryption that a change of settings has required.
    pub(crate) encrypted_by: Option<Time>,
    pub(crate) announcing: Deadlines,
    /// Of the turn.
    pub(crate) now: Time,
    pub(crate) notices: Notices,
    pub(crate) random: Random,
    /// By listener: whose clients come in there. Its host listens there, if `open`.
    pub(crate) listeners: Vec<Listener>,
    /// The relay goes away, and all its services with it.
    pub(crate) going: bool,
    pub(crate) gauge: Gauge,
    pub(crate) shedding: Option<Shedding>,
    /// Where to look for the next client to send away.
    pub(crate) shed_next: u32,
    /// Where records of encrypted links are opened.
    pub(crate) scratch: Scratch,
    /// Of services without client keys.
    pub(crate) loopback_ring: KeyRing,
}

/// One of the transport's listeners.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listener {
    pub(crate) of: Option<(u16, Sort)>,
    pub(crate) open: bool,
}

/// One service as it runs. Its configuration has the same index.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Indexes of its links, those that are being replaced included.
    pub(crate) upstreams: Vec<usize>,
    pub(crate) listening: bool,
    pub(crate) raw_clients: u32,
    pub(crate) library_clients: u32,
    pub(crate) counters: ServiceCounters,
    /// What links that are gone have carried.
    pub(crate) past: Past,
    /// What the operator wants.
    pub(crate) standing: spillway_policy::Standing,
    /// It takes no more clients, and ends with those that it has.
    pub(crate) drain: Option<Drain>,
    /// It is no longer configured: with its last client it is gone.
    pub(crate) removed: bool,
}

impl Service {
    /// Of both sorts, those that are only taking what is left for them included.
    pub(crate) fn clients(&self) -> u32 {
        self.raw_clients + self.library_clients
    }

    /// Removed, and nothing is left of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.removed && self.drain.is_some_and(|drain| drain.is_over())
    }
}

impl Turns for Service {
    fn deadline(&self) -> Option<Time> {
        let drain = self.drain.and_then(|drain| drain.poll_timeout());
        [drain, self.standing.until()].into_iter().flatten().min()
    }

    fn is_unfinished(&self) -> bool {
        false
    }

    fn is_at_rest(&self) -> bool {
        self.clients() > 0 || self.drain.is_none_or(|drain| drain.is_over())
    }
}

impl core::fmt::Debug for Relay {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Relay").field("services", &self.services).field("clients", &self.clients).finish()
    }
}

impl Relay {
    /// A relay that opens its links when its first timeout is handled, which is due at once.
    pub fn new(config: Config, mut random: Random) -> Result<Relay, ConfigError> {
        config.check()?;
        let mut seed = [0; 8];
        random(&mut seed);
        let mut relay = Relay {
            memory: Memory::new(config.memory_bytes_max),
            pressure: Pressure::default(),
            closed_for_memory: 0,
            in_turn: false,
            lingering: Deadlines::new(config.timeouts.linger),
            tellings: Deadlines::new(TELL_AFTER),
            handshakes: Deadlines::new(config.timeouts.handshake),
            incomplete: Deadlines::new(incomplete::LOOK_EVERY),
            resting: Deadlines::new(crate::resting::LOOK_AGAIN),
            unauthenticated: Unauthenticated::new(config.unauthenticated),
            encrypted_by: None,
            announcing: Deadlines::new(config.timeouts.proxy_header),
            now: Time::ZERO,
            services: MarkedList::default(),
            upstreams: MarkedList::default(),
            listeners: Vec::new(),
            slots: Slots::default(),
            clients: 0,
            dirty: Vec::new(),
            notices: Notices::default(),
            random,
            going: false,
            gauge: Gauge::new(config.capacity(), u64::from_le_bytes(seed)),
            shedding: config.load.shedding.map(Shedding::new),
            shed_next: 0,
            scratch: Scratch::new(),
            loopback_ring: KeyRing::loopback_only(),
            config: Config { services: Vec::new(), ..config },
        };
        config.services.into_iter().for_each(|service| relay.add_service(service));
        relay.map_listeners();
        Ok(relay)
    }

    /// The next decision for the log. Ask until `None`, after each turn.
    #[must_use]
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop()
    }

    /// Clients connected now, those that are only taking what is left for them included.
    pub fn clients(&self) -> u32 {
        self.clients
    }

    /// How often a link or a service was looked at since the start. Counted where assertions are on: tests show by it that
    /// a turn does not cost more the more services there are.
    #[doc(hidden)]
    pub fn looks(&self) -> u64 {
        self.upstreams.looks() + self.services.looks()
    }

    /// Bytes of memory in this relay that hold what waits for and from clients, beyond the links' batches.
    pub fn buffered_bytes(&self) -> usize {
        self.memory.clients()
    }

    /// A snapshot of everything.
    pub fn status(&self) -> Status {
        Status {
            services: self
                .services
                .iter()
                .zip(&self.config.services)
                .filter(|(service, _)| !service.is_gone())
                .map(|(s, c)| self.service_status(s, c))
                .collect(),
            clients: self.clients,
            buffered_bytes: self.memory.total(),
            memory_is_scarce: self.memory.is_scarce(),
            paused: self.memory.pauses,
            draining: self.is_draining(),
            load: self.load(),
            notices_dropped: self.notices.dropped,
        }
    }

    fn service_status(&self, service: &Service, config: &ServiceConfig) -> ServiceStatus {
        let upstreams = || service.upstreams.iter().map(|index| &self.upstreams[*index]);
        let mut done = service.past;
        upstreams().for_each(|upstream| done.merge(&upstream.done()));
        let Past { traffic, batches, stalls } = done;
        let mut counters = service.counters;
        counters.stalls.add(stalls);
        ServiceStatus {
            name: config.name.clone(),
            server: config.server,
            listening: service.listening,
            relief: service.standing,
            drained: service.drain.map(|drain| drain.counts()),
            removed: service.removed,
            links: upstreams().map(link_status).collect(),
            raw_clients: service.raw_clients,
            library_clients: service.library_clients,
            counters,
            traffic,
            batches,
        }
    }

    /// Up to `limit` clients of a service, or of all, in the order of the transport's slots; and how many there are.
    pub fn client_statuses(&self, service: Option<&str>, limit: usize) -> (Vec<ClientStatus>, u32) {
        let name_of = |index: u16| self.config.services.get(usize::from(index)).map(|config| &*config.name);
        let of_service = |holder: &&Holder| {
            holder.client_of().is_some_and(|(index, _)| service.is_none() || name_of(index) == service)
        };
        let clients = self.slots.client_holders().filter(of_service);
        let total = u32::try_from(clients.clone().count()).unwrap_or(u32::MAX);
        (clients.filter_map(client_status).take(limit).collect(), total)
    }

    pub(crate) fn mark_dirty(&mut self, conn: Conn) {
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn) {
            client.count(&mut self.memory);
            if !core::mem::replace(&mut client.dirty, true) {
                self.dirty.push(conn);
            }
        }
    }

    fn opened<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        peer: core::net::SocketAddr,
        listener: Option<u16>,
        out: &mut T,
    ) {
        let Some(listener) = listener else {
            return self.link_opened(now, conn, out);
        };
        match self.listeners.get(usize::from(listener)).and_then(|listener| listener.of) {
            Some((service, Sort::Raw)) => self.raw_opened(conn, service, peer, out),
            Some((service, Sort::Library)) => self.library_opened(now, conn, service, peer, out),
            None => out.abort(conn),
        }
    }

    pub(crate) fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let Some(linked) = self.upstreams[client.upstream].linked_mut() else { return };
                self.services[usize::from(client.service)].counters.requests.count(bytes.len());
                client.request(now, conn, bytes, linked, &mut self.memory, out);
                linked.transmit_large(now, out);
            }
            Some(Holder::Library(_)) => self.library_data(now, conn, bytes, out),
            Some(Holder::Upstream(upstream)) => {
                let upstream = *upstream;
                self.link_data(now, upstream, bytes, out);
            }
            Some(Holder::Announcing(_)) => self.announcing_data(now, conn, bytes, out),
            Some(Holder::Leaving(_)) => self.leaving_data(conn, out),
            Some(Holder::Free) | None => {}
        }
    }

    fn room<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let Some(linked) = self.upstreams[client.upstream].linked_mut() else { return };
                client.client_has_room(now, conn, linked, &mut self.memory, out);
            }
            Some(Holder::Library(_)) => self.library_turn(conn, out),
            Some(Holder::Leaving(_)) => self.send_rest(conn, out),
            Some(Holder::Upstream(upstream)) => {
                let upstream = *upstream;
                self.link_turn(now, upstream, out);
            }
            Some(Holder::Announcing(_) | Holder::Free) | None => {}
        }
    }

    fn finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.slots.get_mut(conn) {
            Some(Holder::Raw(client)) => {
                let Some(linked) = self.upstreams[client.upstream].linked_mut() else { return };
                client.finished(linked);
            }
            Some(Holder::Library(_)) => self.library_finished(now, conn, out),
            Some(Holder::Announcing(_)) => self.announcing_ended(conn, out),
            Some(Holder::Upstream(upstream)) => {
                let upstream = *upstream;
                out.abort(conn);
                self.link_down(now, upstream, LinkDown::ClosedByServer, out);
            }
            Some(Holder::Leaving(_) | Holder::Free) | None => {}
        }
    }

    fn lost<T: Transport>(&mut self, now: Time, conn: Conn, reason: LostReason, out: &mut T) {
        match self.slots.get(conn) {
            Some(Holder::Upstream(upstream)) => {
                let upstream = *upstream;
                self.link_down(now, upstream, LinkDown::Lost(reason), out);
            }
            Some(_) => self.client_lost(conn, reason),
            None => {}
        }
    }
}

fn link_status(upstream: &Upstream) -> LinkStatus {
    let state = match &upstream.state {
        State::Waiting { .. } => LinkState::Waiting,
        State::Connecting { .. } => LinkState::Connecting,
        State::Linked(linked) if !linked.up => LinkState::Connecting,
        State::Linked(linked) if linked.draining => LinkState::Draining,
        State::Linked(_) if matches!(upstream.standing, Standing::Retired { .. }) => LinkState::Draining,
        State::Linked(_) => LinkState::Up,
        State::Closed => LinkState::Closed,
    };
    let linked = upstream.linked();
    LinkStatus {
        state,
        connections: linked.map_or(0, |linked| linked.connections() as u32),
        pending_bytes: linked.map_or(0, |linked| linked.pending()),
        replaced: upstream.standing != Standing::Current,
        key: linked.map(|linked| linked.key),
        encrypted: linked.is_some_and(|linked| linked.opener.is_encrypted()),
    }
}

fn client_status(holder: &Holder) -> Option<ClientStatus> {
    let blank = |client, kind, since| ClientStatus {
        client,
        via: None,
        kind,
        since,
        bytes_in: 0,
        bytes_out: 0,
        buffered: 0,
        stalled_since: None,
    };
    Some(match holder {
        Holder::Raw(client) => ClientStatus {
            via: client.via,
            bytes_in: client.bytes_in,
            bytes_out: client.bytes_out,
            buffered: client.buffered(),
            stalled_since: client.stalled_since(),
            ..blank(client.peer, ClientKind::Raw, client.since)
        },
        Holder::Library(client) => ClientStatus {
            bytes_in: client.bytes_in,
            bytes_out: client.bytes_out,
            buffered: client.buffered(),
            ..blank(client.peer, ClientKind::Library, client.since)
        },
        Holder::Announcing(announcing) => ClientStatus {
            buffered: announcing.bytes.len(),
            ..blank(announcing.peer, ClientKind::Announcing, announcing.since)
        },
        Holder::Leaving(leaving) => ClientStatus {
            buffered: leaving.backlog.len(),
            ..blank(leaving.peer, ClientKind::Leaving, leaving.since)
        },
        Holder::Free | Holder::Upstream(_) => return None,
    })
}

impl Application for Relay {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        self.begin_turn(now, out);
        if let Event::Opened { .. } = event {
            // What the host has not taken in the last turn is known since this one began: it is no reason to refuse anybody.
            self.keep_within_memory(out);
        }
        match event {
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
            Event::Room => self.room(now, conn, out),
            Event::Opened { peer, listener } => self.opened(now, conn, peer, listener, out),
            Event::Finished => self.finished(now, conn, out),
            Event::Lost(reason) => self.lost(now, conn, reason, out),
            Event::Acknowledged { through } => self.acknowledged(now, conn, through, out),
        }
        self.keep_within_memory(out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.begin_turn(now, out);
        self.upstreams.mark_due(now);
        let mut nth = 0;
        while let Some(upstream) = self.upstreams.marked(nth) {
            self.link_timeout(now, upstream, out);
            self.end_retired(now, upstream, out);
            nth += 1;
        }
        while let Some(conn) = self.tellings.pop(now) {
            self.telling_timeout(conn);
        }
        while let Some(conn) = self.lingering.pop(now) {
            self.linger_timeout(now, conn, out);
        }
        while let Some(conn) = self.handshakes.pop(now) {
            self.handshake_timeout(conn, out);
        }
        while let Some(conn) = self.incomplete.pop(now) {
            self.incomplete_timeout(now, conn, out);
        }
        while let Some(conn) = self.resting.pop(now) {
            self.resting_timeout(now, conn, out);
        }
        while let Some(conn) = self.announcing.pop(now) {
            self.announcing_timeout(conn, out);
        }
        self.services.mark_due(now);
        let mut nth = 0;
        while let Some(service) = self.services.marked(nth) {
            self.advance_drain(now, service, out);
            self.end_word(now, service, out);
            nth += 1;
        }
        self.pressure_timeout(out);
        self.unencrypted_timeout(out);
        self.keep_within_memory(out);
    }

    fn handle_refused(&mut self, listener: u16, limit: HostLimit, peers: u64) {
        // One that no service uses any more closes within this turn.
        if let Some((service, _)) = self.listeners.get(usize::from(listener)).and_then(|listener| listener.of)
        {
            self.services[usize::from(service)].counters.refused.count_at_host(limit, peers);
        }
    }

    fn handle_question(
        &mut self,
        now: Time,
        listener: u16,
        from: core::net::SocketAddr,
        question: &[u8],
        answer: &mut [u8],
    ) -> usize {
        self.answer(now, listener, from, question, answer)
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        self.begin_turn(now, out);
        self.links_turn(now, out);
        for index in 0..self.dirty.len() {
            self.library_turn(self.dirty[index], out);
        }
        self.dirty.clear();
        self.services_turn(now, out);
        self.memory.turn_ends(out);
        self.keep_within_memory(out);
        self.in_turn = false;
    }

    fn poll_timeout(&self) -> Option<Time> {
        let (links, services) = (self.upstreams.next_deadline(), self.services.next_deadline());
        let waiting = [
            &self.tellings,
            &self.lingering,
            &self.handshakes,
            &self.incomplete,
            &self.resting,
            &self.announcing,
        ]
        .map(Deadlines::next);
        [links, services, self.pressure.poll_timeout(), self.encrypted_by]
            .into_iter()
            .chain(waiting)
            .flatten()
            .min()
    }
}

//! A server with sessions: the shipped link and session port, and an application behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{CloseReason, Control, Id, LinkRandomness, ServerConfig, ServerLink, Unauthenticated};
use spillway_session::{Expired, Placement, Port, ServerLinkCarrier, SessionHandle, TableLimits};
use spillway_transport::{Application, Conn, Event, Time, Transport, Unsent};
use spillway_wire::session::{Resumed, SessionId};

use super::app::{App, End};
use super::check::Check;
use super::checker::SharedChecker;
use super::planted_fault::PlantedFault;
use crate::attackers::NO_BOUNDS;
use crate::rng::Rng;

/// A virtual connection on a link, as the carrier of a session.
type CarrierId = (Conn, Id);

pub(crate) struct Server {
    pub(super) config: Arc<ServerConfig>,
    pub(super) limits: TableLimits,
    pub(super) local: SocketAddr,
    pub(super) rng: Rng,
    pub(super) checker: SharedChecker,
    pub(super) links: BTreeMap<Conn, Link>,
    pub(super) authenticating: BTreeSet<Conn>,
    /// Bounds the links in `authenticating`: at the bound, chooses the one to close.
    pub(super) unauthenticated: Unauthenticated<Conn>,
    /// Links that have authenticated and have a [read timeout](ServerLink::poll_read_timeout).
    pub(super) read_timeouts: BTreeSet<Conn>,
    pub(super) dirty_links: BTreeSet<Conn>,
    pub(super) port: Port<CarrierId>,
    /// Where the operator's override places sessions: helped, direct, or either.
    pub(super) placement: Placement,
    /// All sessions of the port, and those in `ended_sessions`.
    pub(super) known_sessions: BTreeMap<SessionHandle, KnownSession>,
    /// Sessions that have ended, and are removed at the next transmission.
    pub(super) ended_sessions: Vec<SessionHandle>,
    /// Sessions whose applications can work without a further event.
    pub(super) busy_sessions: BTreeSet<SessionHandle>,
    /// Carriers that their sessions have left for another carrier.
    pub(super) left_carriers: Vec<CarrierId>,
    /// Sessions, of a thousand, that the application closes early.
    pub(super) early_ends_per_1000: u64,
    pub(super) work_at: Option<Time>,
    pub(super) is_listening: bool,
    pub(super) planted: Option<PlantedFault>,
    /// The answer with which each session began, for the planted fault [`PlantedFault::AcceptStale`].
    pub(super) answers: BTreeMap<SessionId, Resumed>,
}

pub(super) struct KnownSession {
    pub(super) id: SessionId,
    /// `None` after the application has closed.
    pub(super) app: Option<App>,
}

pub(super) struct Link {
    pub(super) protocol: ServerLink,
    pub(super) unsent: Unsent,
    /// Bytes read and not yet granted again: [`ServerLink::may_read`] must allow the grant.
    pub(super) ungranted: u32,
    pub(super) carried: BTreeMap<u32, SessionHandle>,
}

impl Server {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        (limits, bounds): (TableLimits, Bounds),
        local: SocketAddr,
        early_ends_per_1000: u64,
        mut rng: Rng,
        checker: SharedChecker,
    ) -> Server {
        let port = Port::new(limits, rng.word());
        Server {
            config,
            limits,
            local,
            rng,
            checker,
            links: BTreeMap::new(),
            authenticating: BTreeSet::new(),
            unauthenticated: Unauthenticated::new(bounds),
            read_timeouts: BTreeSet::new(),
            dirty_links: BTreeSet::new(),
            port,
            placement: Placement::default(),
            known_sessions: BTreeMap::new(),
            ended_sessions: Vec::new(),
            busy_sessions: BTreeSet::new(),
            left_carriers: Vec::new(),
            early_ends_per_1000,
            work_at: None,
            is_listening: false,
            planted: None,
            answers: BTreeMap::new(),
        }
    }

    pub(crate) fn plant_fault(&mut self, planted: Option<PlantedFault>) {
        self.planted = planted;
        let mut limits = self.limits;
        match planted {
            Some(PlantedFault::KeepMore) => limits.stream.kept_bytes_max *= 3,
            Some(PlantedFault::TakeMore) => limits.stream.window_bytes *= 3,
            Some(PlantedFault::KeepStrangers) => {
                self.unauthenticated = Unauthenticated::new(NO_BOUNDS);
                return;
            }
            _ => return,
        }
        self.port = Port::new(limits, self.rng.word());
    }

    pub(crate) fn sessions(&self) -> usize {
        self.port.len()
    }

    /// Bytes that wait for the peer of each link.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (SocketAddr, usize)> + '_ {
        self.links
            .values()
            .map(move |link| (link.protocol.peer(), link.protocol.pending() + link.unsent.len()))
    }

    /// Records at the checker that the process ends.
    pub(crate) fn die(&mut self) {
        let mut checker = self.checker.borrow_mut();
        checker.server_dies(self.known_sessions.values().map(|known| known.id));
    }

    pub(super) fn rule_violation(&self, what: String) {
        self.checker.borrow_mut().violation(Check::Rules, what);
    }

    /// Whether the planted fault is `planted` and strikes now, with probability 1 / `one_in`.
    pub(super) fn strikes(&mut self, planted: PlantedFault, one_in: u64) -> bool {
        self.planted == Some(planted) && self.rng.chance(1, one_in)
    }

    /// Runs a turn of each busy application with probability 3/4. Returns whether any is still busy.
    fn work(&mut self, now: Time) -> bool {
        for session in std::mem::take(&mut self.busy_sessions) {
            if self.rng.chance(1, 4) {
                self.busy_sessions.insert(session);
                continue;
            }
            let Some(known) = self.known_sessions.get_mut(&session) else { continue };
            let Some(mut app) = known.app.take() else { continue };
            let is_open = self.work_on(now, session, &mut app);
            if is_open && app.is_busy() {
                self.busy_sessions.insert(session);
            }
            if let Some(known) = self.known_sessions.get_mut(&session) {
                known.app = is_open.then_some(app);
            }
        }
        !self.busy_sessions.is_empty()
    }

    /// Runs a turn of one application. Returns false if it has closed the session.
    fn work_on(&mut self, now: Time, session: SessionHandle, app: &mut App) -> bool {
        if !std::mem::replace(&mut app.is_accepted, true)
            && let Some((conn, id)) = self.port.accept(session)
            && let Some(link) = self.links.get_mut(&conn)
        {
            accept(link, id, self.placement);
            self.dirty_links.insert(conn);
        }
        let read = app.read_some(&mut self.rng);
        if self.planted != Some(PlantedFault::ForgetCredit) {
            let outcome = self.port.consumed(session, read as usize);
            debug_assert_eq!(outcome, Ok(()), "the application should consume only unread bytes");
        }
        let mut checker = self.checker.borrow_mut();
        let part = app.unwritten().min(self.rng.log_uniform(1, 64 * 1024));
        if app.may_write && part > 0 {
            // Writes one byte more than there is room for, so that room is reported later.
            let mut bytes = checker.reply(app.id, part.min(self.port.room(session) as u64 + 1));
            if self.planted == Some(PlantedFault::AlterReply) && self.rng.chance(1, 20) {
                bytes = altered(&bytes);
            }
            let accepted = self.port.write(session, &bytes);
            app.may_write = accepted == bytes.len();
            app.replied += accepted as u64;
            checker.replied(app.id, accepted as u64);
            let kept = self.port.info(session).map_or(0, |info| info.bytes_kept);
            if kept > self.limits.stream.kept_bytes_max {
                checker.violation(
                    Check::Memory,
                    format!("the server keeps {kept} bytes for a session, more than its bound"),
                );
            }
        }
        match app.next_end(self.planted, &mut self.rng) {
            End::Open => true,
            End::Close(reason) => {
                checker.server_closes(app.id, reason != CloseReason::Normal);
                self.port.close(now, session, reason);
                false
            }
            End::Finish { closes } => {
                if app.unwritten() == 0 {
                    checker.server_finishes(app.id);
                }
                if self.planted == Some(PlantedFault::WrongFinish)
                    && let Some(info) = self.port.info(session)
                    && let Some((conn, id)) = info.carrier
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    link.protocol.send_control(id, Control::Finish(info.bytes_sent + 1));
                    self.dirty_links.insert(conn);
                }
                self.port.finish(session);
                if closes {
                    checker.server_closes(app.id, false);
                    self.port.close(now, session, CloseReason::Normal);
                }
                !closes
            }
        }
    }

    /// Sets the placement, and sends *drain* on the carriers of misplaced sessions.
    pub(crate) fn set_placement(&mut self, placement: Placement) {
        self.placement = placement;
        let misplaced = self.port.misplaced_sessions(placement);
        self.send_controls(misplaced);
    }

    /// Releases `count` helped sessions to the server's own port.
    pub(crate) fn release(&mut self, count: usize) {
        let released = self.port.ask_to_return(count);
        self.send_controls(released);
    }

    fn send_controls(&mut self, controls: Vec<(SessionHandle, CarrierId, Control)>) {
        for (_, (conn, id), control) in controls {
            if let Some(link) = self.links.get_mut(&conn) {
                link.protocol.send_control(id, control);
                self.dirty_links.insert(conn);
            }
        }
    }

    fn close_moved(&mut self) {
        for (conn, id) in std::mem::take(&mut self.left_carriers) {
            if self.planted != Some(PlantedFault::DeliverOld)
                && let Some(link) = self.links.get_mut(&conn)
            {
                link.carried.remove(&id.0);
                link.protocol.close(id, CloseReason::Moved);
                self.dirty_links.insert(conn);
            }
        }
    }

    fn transmit_sessions(&mut self, now: Time) {
        while let Some((session, (conn, id))) = self.port.poll_dirty() {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            if self.port.transmit(now, session, &mut ServerLinkCarrier { link: &mut link.protocol, id }) {
                self.ended_sessions.push(session);
            }
            self.dirty_links.insert(conn);
        }
        for session in std::mem::take(&mut self.ended_sessions) {
            self.forget(now, session, false);
        }
    }

    fn forget(&mut self, now: Time, session: SessionHandle, lost: bool) {
        if let Some(known) = self.known_sessions.remove(&session) {
            self.checker.borrow_mut().server_forgets(now, known.id, lost);
        }
    }

    /// Sends the output of each dirty link. Sessions whose link has room again become dirty.
    fn transmit_links<T: Transport>(&mut self, now: Time, out: &mut T) {
        for conn in std::mem::take(&mut self.dirty_links) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            let next = |spent| {
                link.protocol.recycle(spent);
                link.protocol.flush(now)
            };
            link.unsent.send_all_to(next, |bytes| out.send(conn, bytes));
            if link.protocol.may_read() || self.planted == Some(PlantedFault::ReadFlooders) {
                out.grant(conn, std::mem::take(&mut link.ungranted));
            }
            if link.protocol.is_established() && link.protocol.has_read_timeout() {
                self.read_timeouts.insert(conn);
            }
            while let Some(id) = link.protocol.poll_room() {
                link.carried.get(&id.0).into_iter().for_each(|session| self.port.carrier_has_room(*session));
            }
        }
    }

    pub(super) fn authenticated(&mut self, conn: Conn) {
        self.authenticating.remove(&conn);
        self.unauthenticated.end(conn);
    }

    pub(super) fn drop_link(&mut self, now: Time, conn: Conn, link: &Link) {
        self.authenticated(conn);
        for (&id, &session) in &link.carried {
            self.port.detach(now, session, (conn, Id(id)));
        }
    }

    fn abort<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        if let Some(link) = self.links.remove(&conn) {
            self.drop_link(now, conn, &link);
        }
        out.abort(conn);
    }

    fn expire(&mut self, now: Time) {
        while let Some(expired) = self.port.poll_expired(now) {
            let (session, carrier) = match expired {
                Expired::Abandoned(session) => (session, None),
                Expired::Lingered(session, carrier) | Expired::Overflowed(session, carrier) => {
                    (session, carrier)
                }
            };
            self.left_carriers.extend(carrier);
            self.forget(now, session, true);
        }
        self.port.handle_timeout(now);
    }
}

pub(super) fn accept(link: &mut Link, id: Id, placement: Placement) {
    link.protocol.accept(id);
    if let Some(drain) = link.protocol.role().and_then(|role| placement.drain_for(role)) {
        link.protocol.send_control(id, drain);
    }
}

pub(super) fn altered(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    bytes
}

impl Application for Server {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, .. } => {
                let randomness = LinkRandomness::generate(|bytes| self.rng.fill(bytes));
                let protocol = ServerLink::new(self.config.clone(), now, peer, self.local, randomness);
                self.links.insert(
                    conn,
                    Link { protocol, unsent: Unsent::default(), ungranted: 0, carried: BTreeMap::new() },
                );
                self.authenticating.insert(conn);
                out.grant(conn, 64 << 10);
                if let Some(victim) = self.unauthenticated.begin(now, peer.ip(), conn) {
                    self.abort(now, victim, out);
                }
            }
            Event::Data { bytes, .. } => self.handle_data(now, conn, bytes, out),
            Event::Finished | Event::Lost(_) => {
                if let Some(link) = self.links.remove(&conn) {
                    self.drop_link(now, conn, &link);
                }
                if matches!(event, Event::Finished) {
                    out.finish(conn);
                }
            }
            Event::Room => {
                self.dirty_links.insert(conn);
            }
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.is_listening {
            self.is_listening = true;
            out.set_listening(0, true);
        }
        self.work_at = self.work_at.filter(|at| *at > now);
        self.expire(now);
        let is_late = |conn: &Conn, links: &mut BTreeMap<Conn, Link>| {
            links.get_mut(conn).is_some_and(|link| link.protocol.handle_timeout(now).is_err())
        };
        let late: Vec<Conn> =
            self.authenticating.iter().copied().filter(|conn| is_late(conn, &mut self.links)).collect();
        late.into_iter().for_each(|conn| self.abort(now, conn, out));
        for conn in std::mem::take(&mut self.read_timeouts) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            match link.protocol.handle_timeout(now) {
                Ok(()) => drop(self.dirty_links.insert(conn)),
                Err(_) => self.abort(now, conn, out),
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.port.len() > self.limits.sessions_max {
            let what = format!("the server has {} sessions, more than its bound", self.port.len());
            self.checker.borrow_mut().violation(Check::Memory, what);
        }
        let busy = self.work(now);
        self.close_moved();
        self.transmit_sessions(now);
        while !self.dirty_links.is_empty() {
            self.transmit_links(now, out);
            self.transmit_sessions(now);
        }
        if busy && self.work_at.is_none() {
            self.work_at = Some(now + Duration::from_nanos(self.rng.range(10_000, 500_000)));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.is_listening {
            return Some(Time::ZERO);
        }
        let proving = self.authenticating.iter().filter_map(|conn| self.links.get(conn));
        let deadlines =
            proving.filter(|link| link.protocol.pending() == 0).filter_map(|l| l.protocol.poll_timeout());
        let reading =
            self.read_timeouts.iter().filter_map(|conn| self.links.get(conn)?.protocol.poll_read_timeout());
        deadlines.chain(reading).chain(self.work_at).chain(self.port.poll_timeout()).min()
    }
}

//! A server with sessions: the shipped link and session port, and an application behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{CloseReason, Control, Id, LinkRandomness, ServerConfig, ServerLink, Unauthenticated};
use spillway_session::{Expired, OnServerLink, Placement, Port, SessionHandle, TableLimits};
use spillway_transport::{Application, Conn, Event, Time, Transport, Unsent};
use spillway_wire::session::{Resumed, SessionId};

use super::app::{App, End};
use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use crate::attackers::NO_BOUNDS;
use crate::rng::Rng;

/// A virtual connection on a link, as the carrier of a session.
type CarrierName = (Conn, Id);

pub(crate) struct Server {
    pub(super) config: Arc<ServerConfig>,
    pub(super) limits: TableLimits,
    pub(super) local: SocketAddr,
    pub(super) rng: Rng,
    pub(super) books: Shared,
    pub(super) links: BTreeMap<Conn, Link>,
    /// Links that have not authenticated.
    pub(super) proving: BTreeSet<Conn>,
    /// Bounds the links in `proving`; chooses which one is closed for a new one.
    pub(super) unauthenticated: Unauthenticated<Conn>,
    /// Links that have authenticated and have a [read timeout](ServerLink::poll_read_timeout).
    pub(super) read_timeouts: BTreeSet<Conn>,
    pub(super) dirty: BTreeSet<Conn>,
    pub(super) port: Port<CarrierName>,
    /// Where the operator wants sessions: helped, direct, or either.
    pub(super) placement: Placement,
    /// All sessions that the port knows, and those in `over`.
    pub(super) known: BTreeMap<SessionHandle, Known>,
    /// Sessions that are over, to be forgotten at the next transmission.
    pub(super) over: Vec<SessionHandle>,
    /// Sessions whose applications can work.
    pub(super) busy: BTreeSet<SessionHandle>,
    /// Carriers whose sessions have moved to another one.
    pub(super) moved: Vec<CarrierName>,
    /// Sessions, of a thousand, that are closed early.
    pub(super) early_ends_in_1000: u64,
    pub(super) work_at: Option<Time>,
    pub(super) has_begun: bool,
    pub(super) canary: Option<Canary>,
    /// For [`Canary::AcceptStale`]: the answer with which each session began.
    pub(super) answers: BTreeMap<SessionId, Resumed>,
}

pub(super) struct Known {
    pub(super) id: SessionId,
    /// `None` after the application has closed.
    pub(super) app: Option<App>,
}

pub(super) struct Link {
    pub(super) end: ServerLink,
    pub(super) unsent: Unsent,
    /// Bytes that were read, to be granted again when [`ServerLink::may_read`] allows it.
    pub(super) ungranted: u32,
    pub(super) carried: BTreeMap<u32, SessionHandle>,
}

impl Server {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        (limits, bounds): (TableLimits, Bounds),
        local: SocketAddr,
        early_ends_in_1000: u64,
        mut rng: Rng,
        books: Shared,
    ) -> Server {
        let port = Port::new(limits, rng.word());
        Server {
            config,
            limits,
            local,
            rng,
            books,
            links: BTreeMap::new(),
            proving: BTreeSet::new(),
            unauthenticated: Unauthenticated::new(bounds),
            read_timeouts: BTreeSet::new(),
            dirty: BTreeSet::new(),
            port,
            placement: Placement::default(),
            known: BTreeMap::new(),
            over: Vec::new(),
            busy: BTreeSet::new(),
            moved: Vec::new(),
            early_ends_in_1000,
            work_at: None,
            has_begun: false,
            canary: None,
            answers: BTreeMap::new(),
        }
    }

    pub(crate) fn plant(&mut self, canary: Option<Canary>) {
        self.canary = canary;
        let mut limits = self.limits;
        match canary {
            Some(Canary::KeepMore) => limits.stream.kept_bytes_max *= 3,
            Some(Canary::TakeMore) => limits.stream.window_bytes *= 3,
            Some(Canary::KeepStrangers) => {
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

    /// Bytes that wait for each link's peer.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (SocketAddr, usize)> + '_ {
        self.links.values().map(move |link| (link.end.peer(), link.end.pending() + link.unsent.len()))
    }

    /// Records in the books that the process dies.
    pub(crate) fn die(&mut self) {
        let mut books = self.books.borrow_mut();
        books.server_dies(self.known.values().map(|known| known.id));
    }

    pub(super) fn wrong(&self, what: String) {
        self.books.borrow_mut().violation(Check::Rules, what);
    }

    /// Whether the planted fault is `canary`, and strikes now: one time in `one_in`.
    pub(super) fn strikes(&mut self, canary: Canary, one_in: u64) -> bool {
        self.canary == Some(canary) && self.rng.chance(1, one_in)
    }

    /// Gives each busy application a turn, at random. Returns whether any is still busy.
    fn work(&mut self, now: Time) -> bool {
        for session in std::mem::take(&mut self.busy) {
            if self.rng.chance(1, 4) {
                self.busy.insert(session);
                continue;
            }
            let Some(known) = self.known.get_mut(&session) else { continue };
            let Some(mut app) = known.app.take() else { continue };
            let is_open = self.work_on(now, session, &mut app);
            if is_open && app.is_busy() {
                self.busy.insert(session);
            }
            if let Some(known) = self.known.get_mut(&session) {
                known.app = is_open.then_some(app);
            }
        }
        !self.busy.is_empty()
    }

    /// Gives one application a turn. Returns false if it has closed the session.
    fn work_on(&mut self, now: Time, session: SessionHandle, app: &mut App) -> bool {
        if !std::mem::replace(&mut app.is_accepted, true)
            && let Some((conn, id)) = self.port.accept(session)
            && let Some(link) = self.links.get_mut(&conn)
        {
            accept(link, id, self.placement);
            self.dirty.insert(conn);
        }
        let part = app.reads(&mut self.rng);
        if self.canary != Some(Canary::ForgetCredit) {
            let outcome = self.port.consumed(session, part as usize);
            debug_assert_eq!(outcome, Ok(()), "at most what waits");
        }
        let mut books = self.books.borrow_mut();
        let part = app.unwritten().min(self.rng.scale(1, 64 * 1024));
        if app.may_write && part > 0 {
            // One byte more than there is room for, so that room is reported later.
            let mut bytes = books.reply(app.id, part.min(self.port.room(session) as u64 + 1));
            if self.canary == Some(Canary::AlterReply) && self.rng.chance(1, 20) {
                bytes = altered(&bytes);
            }
            let taken = self.port.write(session, &bytes);
            app.may_write = taken == bytes.len();
            app.replied += taken as u64;
            books.replied(app.id, taken as u64);
            let kept = self.port.info(session).map_or(0, |info| info.bytes_kept);
            if kept > self.limits.stream.kept_bytes_max {
                books.violation(Check::Memory, format!("{kept} bytes are kept, more than the bound"));
            }
        }
        match app.next_end(self.canary, &mut self.rng) {
            End::Open => true,
            End::Close(reason) => {
                books.server_closes(app.id, reason != CloseReason::Normal);
                self.port.close(now, session, reason);
                false
            }
            End::Finish { closes } => {
                if app.unwritten() == 0 {
                    books.server_finishes(app.id);
                }
                if self.canary == Some(Canary::WrongFinish)
                    && let Some(info) = self.port.info(session)
                    && let Some((conn, id)) = info.carrier
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    link.end.say(id, Control::Finish(info.bytes_sent + 1));
                    self.dirty.insert(conn);
                }
                self.port.finish(session);
                if closes {
                    books.server_closes(app.id, false);
                    self.port.close(now, session, CloseReason::Normal);
                }
                !closes
            }
        }
    }

    /// Sets where sessions belong; sends clients of misplaced sessions away.
    pub(crate) fn place(&mut self, placement: Placement) {
        self.placement = placement;
        let misplaced = self.port.misplaced(placement);
        self.send_controls(misplaced);
    }

    /// Releases `count` helped sessions to the server's own port.
    pub(crate) fn release(&mut self, count: usize) {
        let released = self.port.return_home(count);
        self.send_controls(released);
    }

    fn send_controls(&mut self, controls: Vec<(SessionHandle, CarrierName, Control)>) {
        for (_, (conn, id), control) in controls {
            if let Some(link) = self.links.get_mut(&conn) {
                link.end.say(id, control);
                self.dirty.insert(conn);
            }
        }
    }

    fn close_moved(&mut self) {
        for (conn, id) in std::mem::take(&mut self.moved) {
            if self.canary != Some(Canary::DeliverOld)
                && let Some(link) = self.links.get_mut(&conn)
            {
                link.carried.remove(&id.0);
                link.end.close(id, CloseReason::Moved);
                self.dirty.insert(conn);
            }
        }
    }

    fn transmit_sessions(&mut self, now: Time) {
        while let Some((session, (conn, id))) = self.port.poll_dirty() {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            if self.port.transmit(now, session, &mut OnServerLink { link: &mut link.end, id }) {
                self.over.push(session);
            }
            self.dirty.insert(conn);
        }
        for session in std::mem::take(&mut self.over) {
            self.forget(now, session, false);
        }
    }

    fn forget(&mut self, now: Time, session: SessionHandle, lost: bool) {
        if let Some(known) = self.known.remove(&session) {
            self.books.borrow_mut().server_forgets(now, known.id, lost);
        }
    }

    /// Sends each dirty link's output. Sessions that get room on a link are marked dirty again.
    fn transmit_links<T: Transport>(&mut self, now: Time, out: &mut T) {
        for conn in std::mem::take(&mut self.dirty) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            let next = |spent| {
                link.end.recycle(spent);
                link.end.flush(now)
            };
            link.unsent.send_all_to(next, |bytes| out.send(conn, bytes));
            if link.end.may_read() || self.canary == Some(Canary::ReadFlooders) {
                out.grant(conn, std::mem::take(&mut link.ungranted));
            }
            if link.end.is_established() && link.end.has_read_timeout() {
                self.read_timeouts.insert(conn);
            }
            while let Some(id) = link.end.poll_room() {
                link.carried.get(&id.0).into_iter().for_each(|session| self.port.has_room(*session));
            }
        }
    }

    pub(super) fn authenticated(&mut self, conn: Conn) {
        self.proving.remove(&conn);
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
            self.moved.extend(carrier);
            self.forget(now, session, true);
        }
        self.port.handle_timeout(now);
    }
}

pub(super) fn accept(link: &mut Link, id: Id, placement: Placement) {
    link.end.accept(id);
    if let Some(drain) = link.end.role().and_then(|role| placement.drains(role)) {
        link.end.say(id, drain);
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
                let fresh = LinkRandomness::filled(|bytes| self.rng.fill(bytes));
                let end = ServerLink::new(self.config.clone(), now, peer, self.local, fresh);
                self.links.insert(
                    conn,
                    Link { end, unsent: Unsent::default(), ungranted: 0, carried: BTreeMap::new() },
                );
                self.proving.insert(conn);
                out.grant(conn, 64 << 10);
                if let Some(victim) = self.unauthenticated.begin(now, peer.ip(), conn) {
                    self.abort(now, victim, out);
                }
            }
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
            Event::Finished | Event::Lost(_) => {
                if let Some(link) = self.links.remove(&conn) {
                    self.drop_link(now, conn, &link);
                }
                if matches!(event, Event::Finished) {
                    out.finish(conn);
                }
            }
            Event::Room => {
                self.dirty.insert(conn);
            }
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.has_begun {
            self.has_begun = true;
            out.set_listening(0, true);
        }
        self.work_at = self.work_at.filter(|at| *at > now);
        self.expire(now);
        let is_late = |conn: &Conn, links: &mut BTreeMap<Conn, Link>| {
            links.get_mut(conn).is_some_and(|link| link.end.handle_timeout(now).is_err())
        };
        let late: Vec<Conn> =
            self.proving.iter().copied().filter(|conn| is_late(conn, &mut self.links)).collect();
        late.into_iter().for_each(|conn| self.abort(now, conn, out));
        for conn in std::mem::take(&mut self.read_timeouts) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            match link.end.handle_timeout(now) {
                Ok(()) => drop(self.dirty.insert(conn)),
                Err(_) => self.abort(now, conn, out),
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.port.len() > self.limits.sessions_max {
            let what = format!("{} sessions, more than the bound", self.port.len());
            self.books.borrow_mut().violation(Check::Memory, what);
        }
        let busy = self.work(now);
        self.close_moved();
        self.transmit_sessions(now);
        while !self.dirty.is_empty() {
            self.transmit_links(now, out);
            self.transmit_sessions(now);
        }
        if busy && self.work_at.is_none() {
            self.work_at = Some(now + Duration::from_nanos(self.rng.range(10_000, 500_000)));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.has_begun {
            return Some(Time::ZERO);
        }
        let proving = self.proving.iter().filter_map(|conn| self.links.get(conn));
        let deadlines = proving.filter(|link| link.end.pending() == 0).filter_map(|l| l.end.poll_timeout());
        let reading =
            self.read_timeouts.iter().filter_map(|conn| self.links.get(conn)?.end.poll_read_timeout());
        deadlines.chain(reading).chain(self.work_at).chain(self.port.poll_timeout()).min()
    }
}

//! A server with sessions: the shipped end of its links and the shipped table, and an application behind them. Like the
//! shipped servers it looks only at what something happened to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use spillway_batch::{
    CloseReason, Control, Id, Kind, LinkError, NONCE_BYTES, RefuseReason, ServerConfig, ServerEvent,
    ServerLink,
};
use spillway_session::{
    Expired, FirstWords, OnServerLink, Opened, SessionHandle, Sessions, StreamEvent, TableLimits,
};
use spillway_transport::{Application, Chunk, Conn, Event, Time, Transport};
use spillway_wire::session::{Opening, Resumed, SessionId};

use super::app::{App, End};
use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use crate::rng::Rng;

/// A connection on a link: what carries a session.
type CarrierName = (Conn, Id);

/// A server host's application.
pub(crate) struct Server {
    config: Arc<ServerConfig>,
    limits: TableLimits,
    local: SocketAddr,
    rng: Rng,
    books: Shared,
    links: BTreeMap<Conn, Link>,
    /// Links that have not authenticated.
    proving: BTreeSet<Conn>,
    /// Links that have something to send.
    dirty: BTreeSet<Conn>,
    table: Sessions<CarrierName>,
    /// All sessions that the table knows.
    known: BTreeMap<SessionHandle, Known>,
    /// Sessions to which something happened.
    touched: BTreeSet<SessionHandle>,
    /// Sessions whose applications can get on.
    busy: BTreeSet<SessionHandle>,
    /// When clients are told what they are owed, if nothing goes along with it.
    tellings: BTreeSet<(Time, SessionHandle)>,
    /// Connections whose sessions have gone on elsewhere.
    moved: Vec<CarrierName>,
    /// Of a thousand sessions, how many are closed early.
    rude_in_1000: u64,
    work_at: Option<Time>,
    has_begun: bool,
    /// Planted.
    canary: Option<Canary>,
    /// For one of the planted faults: how each session began.
    answers: BTreeMap<SessionId, Resumed>,
}

struct Known {
    id: SessionId,
    /// `None`: it has closed.
    app: Option<App>,
    tell_at: Option<Time>,
}

struct Link {
    end: ServerLink,
    unsent: Option<Chunk>,
    carried: BTreeMap<u32, SessionHandle>,
}

impl Server {
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        limits: TableLimits,
        local: SocketAddr,
        rude_in_1000: u64,
        mut rng: Rng,
        books: Shared,
    ) -> Server {
        let table = Sessions::new(limits, rng.word());
        Server {
            config,
            limits,
            local,
            rng,
            books,
            links: BTreeMap::new(),
            proving: BTreeSet::new(),
            dirty: BTreeSet::new(),
            table,
            known: BTreeMap::new(),
            touched: BTreeSet::new(),
            busy: BTreeSet::new(),
            tellings: BTreeSet::new(),
            moved: Vec::new(),
            rude_in_1000,
            work_at: None,
            has_begun: false,
            canary: None,
            answers: BTreeMap::new(),
        }
    }

    /// Plants a fault.
    pub(crate) fn plant(&mut self, canary: Option<Canary>) {
        self.canary = canary;
        let mut limits = self.limits;
        match canary {
            Some(Canary::KeepMore) => limits.stream.kept_bytes_max *= 3,
            Some(Canary::TakeMore) => limits.stream.window_bytes *= 3,
            _ => return,
        }
        self.table = Sessions::new(limits, self.rng.word());
    }

    /// Sessions that it knows.
    pub(crate) fn sessions(&self) -> usize {
        self.table.len()
    }

    /// The program dies.
    pub(crate) fn die(&mut self) {
        let mut books = self.books.borrow_mut();
        self.known.values().for_each(|known| books.server_forgets(known.id, true));
    }

    fn wrong(&self, what: String) {
        self.books.borrow_mut().violation(Check::Rules, what);
    }

    /// Whether the planted fault is this one, and its moment has come: once in so many times.
    fn plants(&mut self, canary: Canary, one_in: u64) -> bool {
        self.canary == Some(canary) && self.rng.chance(1, one_in)
    }

    // What links bring.

    fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let mut input = bytes;
        let Some(mut link) = self.links.remove(&conn) else { return };
        loop {
            match link.end.decompose(now, &mut input) {
                Ok(Some(event)) => self.event(now, conn, &mut link, event),
                Ok(None) => break,
                Err(error) => {
                    if error != LinkError::HandshakeTimeout {
                        self.wrong(format!("the server's link failed: {error}"));
                    }
                    self.drop_link(now, conn, &link);
                    out.abort(conn);
                    return;
                }
            }
        }
        out.grant(conn, bytes.len() as u32); // at most what was granted
        self.links.insert(conn, link);
        self.dirty.insert(conn);
    }

    fn event(&mut self, now: Time, conn: Conn, link: &mut Link, event: ServerEvent<'_>) {
        match event {
            ServerEvent::Established { .. } => {
                self.proving.remove(&conn);
            }
            ServerEvent::Drain { .. } => {}
            ServerEvent::Session { id, kind, client, opening } => {
                self.first_words(now, conn, link, (id, kind, client, opening));
            }
            ServerEvent::Carried { id, bytes } => {
                let Some(&session) = link.carried.get(&id.0) else { return };
                if self.plants(Canary::DropPiece, 20) {
                    return;
                }
                self.touched.insert(session);
                match self.table.handle_data(now, session, (conn, id), bytes.len()) {
                    Ok(true) => {
                        if self.plants(Canary::AlterRequest, 20) {
                            self.receive(session, &altered(bytes));
                        } else {
                            self.receive(session, bytes);
                        }
                        if self.plants(Canary::RepeatPiece, 20) {
                            self.receive_wrongly(session, bytes);
                        }
                    }
                    Ok(false) if self.canary == Some(Canary::DeliverOld) => {
                        self.receive_wrongly(session, bytes);
                    }
                    Ok(false) => {}
                    Err(event) => self.wrong(format!("a client breaks a rule: {event:?}")),
                }
            }
            ServerEvent::CarriedControl { id, control } => self.control(now, conn, link, id, control),
            other => self.wrong(format!("the server hears {other:?}")),
        }
    }

    fn first_words(
        &mut self,
        now: Time,
        conn: Conn,
        link: &mut Link,
        (id, kind, client, opening): (Id, Kind, SocketAddr, Opening),
    ) {
        let words = FirstWords { carrier: (conn, id), kind, client, opening };
        if kind == Kind::Reconnect && self.plants(Canary::FalseGone, 4) {
            return link.end.refuse(id, RefuseReason::Gone);
        }
        match self.table.open(now, &self.config.ring, &words) {
            Opened::New { session, answer } => {
                if let Control::Resumed(answer) = &answer {
                    self.books.borrow_mut().server_begins(opening.session, answer);
                    if self.canary == Some(Canary::AcceptStale) {
                        self.answers.insert(opening.session, *answer);
                    }
                }
                link.carried.insert(id.0, session);
                link.end.say(id, answer);
                let app = App::new(opening.session, self.rude_in_1000, &mut self.rng);
                self.known.insert(session, Known { id: opening.session, app: Some(app), tell_at: None });
                self.touched.insert(session);
                self.busy.insert(session);
            }
            Opened::Resumed { session, answer, is_accepted, room, replaced } => {
                if let Control::Resumed(answer) = &answer {
                    self.books.borrow_mut().server_resumes(opening.session, answer);
                }
                link.carried.insert(id.0, session);
                link.end.say(id, answer);
                if is_accepted {
                    link.end.accept(id);
                }
                self.moved.extend(replaced);
                self.touched.insert(session);
                if room && self.canary != Some(Canary::ForgetRoom) {
                    self.may_write(session);
                }
            }
            Opened::Refused(reason) => {
                if reason == RefuseReason::Stale
                    && self.canary == Some(Canary::AcceptStale)
                    && let Some(answer) = self.answers.get(&opening.session)
                {
                    let answer = Resumed { epoch: opening.epoch, ..*answer };
                    self.books.borrow_mut().server_resumes(opening.session, &answer);
                }
                link.end.refuse(id, reason);
            }
        }
    }

    /// The session's application, as long as it has not closed. Something happened to it.
    fn app(&mut self, session: SessionHandle) -> Option<&mut App> {
        self.busy.insert(session);
        self.known.get_mut(&session)?.app.as_mut()
    }

    fn may_write(&mut self, session: SessionHandle) {
        if let Some(app) = self.app(session) {
            app.may_write = true;
        }
    }

    fn receive(&mut self, session: SessionHandle, bytes: &[u8]) {
        let books = self.books.clone();
        if let Some(app) = self.app(session) {
            app.waiting += bytes.len() as u64;
            let mut books = books.borrow_mut();
            books.server_reads(app.id, bytes);
            books.server_holds(app.id, app.waiting);
        }
    }

    /// The mistake is in what is delivered, not in the count of it.
    fn receive_wrongly(&mut self, session: SessionHandle, bytes: &[u8]) {
        self.receive(session, bytes);
        if let Some(app) = self.app(session) {
            app.waiting -= bytes.len() as u64;
        }
    }

    fn control(&mut self, now: Time, conn: Conn, link: &mut Link, id: Id, control: Control) {
        let Some(&session) = link.carried.get(&id.0) else { return };
        self.touched.insert(session);
        let event = self.table.handle_control(now, session, (conn, id), &control);
        let books = self.books.clone();
        match event {
            Some(StreamEvent::Finished) => {
                if let Some(app) = self.app(session) {
                    app.client_finished = true;
                    books.borrow_mut().server_sees_end(app.id);
                }
            }
            Some(StreamEvent::Closed(reason)) => {
                if let Some(app) = self.known.get_mut(&session).and_then(|known| known.app.take()) {
                    let mut books = books.borrow_mut();
                    match reason {
                        CloseReason::Normal => books.server_sees_end(app.id),
                        CloseReason::Reset => {}
                        other => books.server_sees_break(app.id, other),
                    }
                    books.server_closes(app.id, reason != CloseReason::Normal);
                    self.table.close(now, session, CloseReason::Normal);
                }
            }
            Some(StreamEvent::Room) => self.may_write(session),
            None => {}
        }
        let carries = self.table.info(session).is_some_and(|info| info.carrier == Some((conn, id)));
        if matches!(control, Control::Close(_)) && !carries && self.canary != Some(Canary::ForgetClose) {
            link.carried.remove(&id.0);
            link.end.close(id, CloseReason::Moved);
        }
    }

    // What applications do.

    /// Some of those that can get on do. Whether any can still.
    fn work(&mut self, now: Time) -> bool {
        for session in std::mem::take(&mut self.busy) {
            if self.rng.chance(1, 4) {
                self.busy.insert(session);
                continue;
            }
            let Some(known) = self.known.get_mut(&session) else { continue };
            let Some(mut app) = known.app.take() else { continue };
            self.touched.insert(session);
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

    /// Whether the application has not closed the session.
    fn work_on(&mut self, now: Time, session: SessionHandle, app: &mut App) -> bool {
        if !std::mem::replace(&mut app.is_accepted, true)
            && let Some((conn, id)) = self.table.accept(session)
            && let Some(link) = self.links.get_mut(&conn)
        {
            link.end.accept(id);
            self.dirty.insert(conn);
        }
        let part = app.reads(&mut self.rng);
        if self.canary != Some(Canary::ForgetCredit) {
            self.table.consumed(session, part as usize);
        }
        let mut books = self.books.borrow_mut();
        let part = app.unsaid().min(self.rng.scale(1, 64 * 1024));
        if app.may_write && part > 0 {
            // One more than there is room for, to be told when there is more.
            let mut bytes = books.reply(app.id, part.min(self.table.room(session) as u64 + 1));
            if self.canary == Some(Canary::AlterReply) && self.rng.chance(1, 20) {
                bytes = altered(&bytes);
            }
            let taken = self.table.write(session, &bytes);
            app.may_write = taken == bytes.len();
            app.replied += taken as u64;
            books.replied(app.id, taken as u64);
        }
        match app.ends(self.canary, &mut self.rng) {
            End::Open => true,
            End::Close(reason) => {
                books.server_closes(app.id, reason != CloseReason::Normal);
                self.table.close(now, session, reason);
                false
            }
            End::Finish { closes } => {
                if app.unsaid() == 0 {
                    books.server_finishes(app.id);
                }
                if self.canary == Some(Canary::WrongFinish)
                    && let Some(info) = self.table.info(session)
                    && let Some((conn, id)) = info.carrier
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    link.end.say(id, Control::Finish(info.bytes_sent + 1));
                    self.dirty.insert(conn);
                }
                self.table.finish(session);
                if closes {
                    books.server_closes(app.id, false);
                    self.table.close(now, session, CloseReason::Normal);
                }
                !closes
            }
        }
    }

    // What is sent.

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
        while let Some(&(at, session)) = self.tellings.first()
            && at <= now
        {
            self.tellings.pop_first();
            if let Some(known) = self.known.get_mut(&session) {
                known.tell_at = None;
            }
            self.touched.insert(session);
        }
        for session in std::mem::take(&mut self.touched) {
            let Some(info) = self.table.info(session) else {
                self.forget(session, false);
                continue;
            };
            if info.bytes_kept > self.limits.stream.kept_bytes_max {
                let what = format!("{} bytes are kept, more than the bound", info.bytes_kept);
                self.books.borrow_mut().violation(Check::Memory, what);
            }
            if let Some((conn, id)) = info.carrier
                && let Some(link) = self.links.get_mut(&conn)
            {
                self.table.transmit(now, session, &mut OnServerLink { link: &mut link.end, id });
                self.dirty.insert(conn);
            }
            if self.table.info(session).is_none() {
                self.forget(session, false);
                continue;
            }
            let tell_at = self.table.poll_transmit_timeout(session);
            if let Some(known) = self.known.get_mut(&session)
                && known.tell_at != tell_at
            {
                self.tellings.extend(tell_at.map(|at| (at, session)));
                let before = std::mem::replace(&mut known.tell_at, tell_at);
                before.map(|at| self.tellings.remove(&(at, session)));
            }
        }
    }

    fn forget(&mut self, session: SessionHandle, lost: bool) {
        if let Some(known) = self.known.remove(&session) {
            known.tell_at.map(|at| self.tellings.remove(&(at, session)));
            self.books.borrow_mut().server_forgets(known.id, lost);
        }
    }

    /// Sessions that a link had no room for, and has now, are touched.
    fn transmit_links<T: Transport>(&mut self, now: Time, out: &mut T) {
        for conn in std::mem::take(&mut self.dirty) {
            let Some(link) = self.links.get_mut(&conn) else { continue };
            while let Some(mut chunk) = link.unsent.take().or_else(|| link.end.flush(now)) {
                let taken = out.send(conn, chunk.as_slice());
                chunk.advance(taken);
                if !chunk.is_empty() {
                    link.unsent = Some(chunk);
                    break;
                }
                link.end.recycle(chunk);
            }
            while let Some(id) = link.end.poll_room() {
                self.touched.extend(link.carried.get(&id.0));
            }
        }
    }

    // Ends.

    fn drop_link(&mut self, now: Time, conn: Conn, link: &Link) {
        self.proving.remove(&conn);
        for (&id, &session) in &link.carried {
            self.table.detach(now, session, (conn, Id(id)));
            self.touched.insert(session);
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some(expired) = self.table.poll_expired(now) {
            let (session, carrier) = match expired {
                Expired::Abandoned(session) => (session, None),
                Expired::Lingered(session, carrier) => (session, carrier),
            };
            self.moved.extend(carrier);
            self.forget(session, true);
        }
    }
}

fn altered(bytes: &[u8]) -> Vec<u8> {
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
                let mut nonce = [0; NONCE_BYTES];
                self.rng.fill(&mut nonce);
                let end = ServerLink::new(self.config.clone(), now, peer, self.local, nonce);
                self.links.insert(conn, Link { end, unsent: None, carried: BTreeMap::new() });
                self.proving.insert(conn);
                out.grant(conn, 1 << 20);
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
        for conn in &self.proving {
            if self.links.get_mut(conn).is_some_and(|link| link.end.handle_timeout(now).is_err()) {
                out.abort(*conn);
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.table.len() > self.limits.sessions_max {
            let what = format!("{} sessions, more than the bound", self.table.len());
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
        let telling = self.tellings.first().map(|(at, _)| *at);
        deadlines.chain(telling).chain(self.work_at).chain(self.table.poll_timeout()).min()
    }
}

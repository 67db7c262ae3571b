//! A server with sessions: the shipped end of its links and the shipped table, and a small application behind them.

use std::collections::BTreeMap;
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

use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use crate::rng::Rng;

/// Replies that the application prepares before it stops reading requests.
const OWED_BYTES_MAX: u64 = 64 * 1024;

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
    table: Sessions<CarrierName>,
    /// All sessions that the table knows.
    known: BTreeMap<SessionHandle, SessionId>,
    /// Those that the application has not closed.
    apps: BTreeMap<SessionHandle, App>,
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

struct Link {
    end: ServerLink,
    unsent: Option<Chunk>,
    carried: BTreeMap<u32, SessionHandle>,
}

/// One session as the application sees it.
struct App {
    id: SessionId,
    is_accepted: bool,
    /// Received and not yet read by the application.
    waiting: u64,
    read: u64,
    replied: u64,
    client_finished: bool,
    finished: bool,
    /// Closes when it has read this much.
    close_at: Option<u64>,
    /// Closes as soon as it has finished, or waits for the client to.
    closes_first: bool,
}

impl App {
    /// Replies for what was read: none, an echo, or more than was asked for.
    fn owed(&self) -> u64 {
        self.read * [0, 1, 1, 4][usize::from(self.id.0[0] % 4)]
    }
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
            table,
            known: BTreeMap::new(),
            apps: BTreeMap::new(),
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
        self.known.values().for_each(|id| books.server_forgets(*id, true));
    }

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
    }

    fn event(&mut self, now: Time, conn: Conn, link: &mut Link, event: ServerEvent<'_>) {
        match event {
            ServerEvent::Established { .. } | ServerEvent::Drain { .. } => {}
            ServerEvent::Session { id, kind, client, opening } => {
                self.first_words(now, conn, link, (id, kind, client, opening));
            }
            ServerEvent::Carried { id, bytes } => {
                let Some(&session) = link.carried.get(&id.0) else { return };
                if self.plants(Canary::DropPiece, 20) {
                    return;
                }
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

    fn wrong(&self, what: String) {
        self.books.borrow_mut().violation(Check::Rules, what);
    }

    /// Whether the planted fault is this one, and its moment has come: once in so many times.
    fn plants(&mut self, canary: Canary, one_in: u64) -> bool {
        self.canary == Some(canary) && self.rng.chance(1, one_in)
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
                self.known.insert(session, opening.session);
                let rude = self.rng.chance(self.rude_in_1000, 1000);
                let app = App {
                    id: opening.session,
                    is_accepted: false,
                    waiting: 0,
                    read: 0,
                    replied: 0,
                    client_finished: false,
                    finished: false,
                    close_at: rude.then(|| self.rng.scale(1, 50_000)),
                    closes_first: self.rng.chance(1, 2),
                };
                self.apps.insert(session, app);
            }
            Opened::Resumed { session, answer, is_accepted, replaced } => {
                if let Control::Resumed(answer) = &answer {
                    self.books.borrow_mut().server_resumes(opening.session, answer);
                }
                link.carried.insert(id.0, session);
                link.end.say(id, answer);
                if is_accepted {
                    link.end.accept(id);
                }
                self.moved.extend(replaced);
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

    fn receive(&mut self, session: SessionHandle, bytes: &[u8]) {
        let Some(app) = self.apps.get_mut(&session) else { return };
        let mut books = self.books.borrow_mut();
        books.server_reads(app.id, bytes);
        app.waiting += bytes.len() as u64;
        books.server_holds(app.id, app.waiting);
    }

    /// The mistake is in what is delivered, not in the count of it.
    fn receive_wrongly(&mut self, session: SessionHandle, bytes: &[u8]) {
        self.receive(session, bytes);
        if let Some(app) = self.apps.get_mut(&session) {
            app.waiting -= bytes.len() as u64;
        }
    }

    fn control(&mut self, now: Time, conn: Conn, link: &mut Link, id: Id, control: Control) {
        let Some(&session) = link.carried.get(&id.0) else { return };
        let event = self.table.handle_control(now, session, (conn, id), &control);
        match event {
            Some(StreamEvent::Finished) => {
                if let Some(app) = self.apps.get_mut(&session) {
                    app.client_finished = true;
                    self.books.borrow_mut().server_sees_end(app.id);
                }
            }
            Some(StreamEvent::Closed(reason)) => {
                if let Some(app) = self.apps.remove(&session) {
                    let mut books = self.books.borrow_mut();
                    match reason {
                        CloseReason::Normal => books.server_sees_end(app.id),
                        CloseReason::Reset => {}
                        other => books.server_sees_break(app.id, other),
                    }
                    books.server_closes(app.id, reason != CloseReason::Normal);
                    self.table.close(now, session, CloseReason::Normal);
                }
            }
            Some(StreamEvent::Room) | None => {}
        }
        let carries = self.table.info(session).is_some_and(|info| info.carrier == Some((conn, id)));
        if matches!(control, Control::Close(_)) && !carries && self.canary != Some(Canary::ForgetClose) {
            link.carried.remove(&id.0);
            link.end.close(id, CloseReason::Moved);
        }
    }

    /// The application's own pace: reads some, replies some, ends what is to be ended.
    fn work(&mut self, now: Time) -> bool {
        let mut busy = false;
        let mut closed = Vec::new();
        for (&session, app) in &mut self.apps {
            if self.rng.chance(1, 4) {
                busy = true;
                continue;
            }
            if !app.is_accepted {
                app.is_accepted = true;
                if let Some((conn, id)) = self.table.accept(session)
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    link.end.accept(id);
                }
            }
            let room = OWED_BYTES_MAX.saturating_sub(app.owed() - app.replied);
            let part = app.waiting.min(self.rng.scale(1, 64 * 1024)).min(room / 4);
            app.waiting -= part;
            app.read += part;
            if self.canary != Some(Canary::ForgetCredit) {
                self.table.consumed(session, part as usize);
            }
            let mut books = self.books.borrow_mut();
            let part = (app.owed() - app.replied).min(self.rng.scale(1, 64 * 1024));
            if part > 0 {
                let mut bytes = books.reply(app.id, part.min(self.table.room(session) as u64 + 1));
                if self.canary == Some(Canary::AlterReply) && self.rng.chance(1, 20) {
                    bytes = altered(&bytes);
                }
                let taken = self.table.write(session, &bytes) as u64;
                app.replied += taken;
                books.replied(app.id, taken);
            }
            if app.close_at.is_some_and(|at| app.read >= at) {
                let reason = self.rng.pick(&[CloseReason::Normal, CloseReason::Reset]);
                books.server_closes(app.id, reason != CloseReason::Normal);
                self.table.close(now, session, reason);
                closed.push(session);
                continue;
            }
            let has_all = app.replied == app.owed() || self.canary == Some(Canary::EarlyEnd);
            let all = app.client_finished && app.waiting == 0 && has_all;
            if all && !app.finished {
                app.finished = true;
                if app.replied == app.owed() {
                    books.server_finishes(app.id);
                }
                if self.canary == Some(Canary::WrongFinish)
                    && let Some(info) = self.table.info(session)
                    && let Some((conn, id)) = info.carrier
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    link.end.say(id, Control::Finish(info.bytes_sent + 1));
                }
                self.table.finish(session);
                if app.closes_first {
                    books.server_closes(app.id, false);
                    self.table.close(now, session, CloseReason::Normal);
                    closed.push(session);
                }
            }
            busy |= app.waiting > 0 || app.replied < app.owed();
        }
        for session in closed {
            self.apps.remove(&session);
        }
        busy
    }

    fn transmit_sessions(&mut self, now: Time) {
        for (conn, id) in std::mem::take(&mut self.moved) {
            if self.canary == Some(Canary::DeliverOld) {
                continue;
            }
            if let Some(link) = self.links.get_mut(&conn) {
                link.carried.remove(&id.0);
                link.end.close(id, CloseReason::Moved);
            }
        }
        let mut books = self.books.borrow_mut();
        self.known.retain(|&session, &mut id| {
            if let Some(info) = self.table.info(session) {
                if info.bytes_kept > self.limits.stream.kept_bytes_max {
                    let what = format!("{} bytes are kept, more than the bound", info.bytes_kept);
                    books.violation(Check::Memory, what);
                }
                if let Some((conn, connection)) = info.carrier
                    && let Some(link) = self.links.get_mut(&conn)
                {
                    let mut carrier = OnServerLink { link: &mut link.end, id: connection };
                    self.table.transmit(now, session, &mut carrier);
                }
            }
            let is_known = self.table.info(session).is_some();
            if !is_known {
                books.server_forgets(id, false);
            }
            is_known
        });
    }

    fn transmit<T: Transport>(now: Time, conn: Conn, link: &mut Link, out: &mut T) {
        while link.end.poll_room().is_some() {}
        while let Some(mut chunk) = link.unsent.take().or_else(|| link.end.flush(now)) {
            let taken = out.send(conn, chunk.as_slice());
            chunk.advance(taken);
            if !chunk.is_empty() {
                link.unsent = Some(chunk);
                break;
            }
            link.end.recycle(chunk);
        }
    }

    fn drop_link(&mut self, now: Time, conn: Conn, link: &Link) {
        for (&id, &session) in &link.carried {
            self.table.detach(now, session, (conn, Id(id)));
        }
    }

    fn expire(&mut self, now: Time) {
        while let Some(expired) = self.table.poll_expired(now) {
            let (session, carrier) = match expired {
                Expired::Abandoned(session) => (session, None),
                Expired::Lingered(session, carrier) => (session, carrier),
            };
            self.moved.extend(carrier);
            self.apps.remove(&session);
            if let Some(id) = self.known.remove(&session) {
                self.books.borrow_mut().server_forgets(id, true);
            }
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
            Event::Room | Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if !self.has_begun {
            self.has_begun = true;
            out.set_listening(0, true);
        }
        self.work_at = self.work_at.filter(|at| *at > now);
        self.expire(now);
        for (conn, link) in &mut self.links {
            if link.end.handle_timeout(now).is_err() {
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
        self.transmit_sessions(now);
        for (conn, link) in &mut self.links {
            Server::transmit(now, *conn, link, out);
        }
        if busy && self.work_at.is_none() {
            self.work_at = Some(now + Duration::from_nanos(self.rng.range(10_000, 500_000)));
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        if !self.has_begun {
            return Some(Time::ZERO);
        }
        let handshakes = self
            .links
            .values()
            .filter(|link| link.end.pending() == 0)
            .filter_map(|link| link.end.poll_timeout());
        let tellings = self.known.keys().filter_map(|session| self.table.poll_transmit_timeout(*session));
        handshakes.chain(tellings).chain(self.work_at).chain(self.table.poll_timeout()).min()
    }
}

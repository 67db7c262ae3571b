//! Clients with sessions: each moves its session between helpers and the server itself, when a carrier is lost, when it
//! is silent for longer than the client has patience, and at whim.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    CloseReason, Id, Limits, NONCE_BYTES, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role,
};
use spillway_session::{ClientEvent, ClientSession, OnOpenerLink, StreamEvent, StreamLimits};
use spillway_transport::{Application, Chunk, Conn, Event, Time, Transport};
use spillway_wire::session::SessionId;

use super::books::Shared;
use crate::network::AddressBook;
use crate::rng::Rng;

/// Bytes that may wait on a client's link.
const PENDING_BYTES_MAX: usize = 64 * 1024;
/// Carriers that were left and still live, at most.
const LEFT_MAX: usize = 50;
/// When the weather is calm nobody is impatient without reason: longer than any stall.
const PATIENCE_CALM: Duration = Duration::from_secs(5);

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// At a time.
    pub(crate) clients_max: usize,
    /// Of a thousand, how many reset their session early.
    pub(crate) rude_in_1000: u64,
    /// Of each end of a session.
    pub(crate) limits: StreamLimits,
    /// The longest that a client waits for a sign of life.
    pub(crate) patience_max: Duration,
    /// Of a thousand turns of a client, how many make it move for no reason.
    pub(crate) whims_in_1000: u64,
    /// The most that a client writes, bytes.
    pub(crate) bytes_max: u64,
}

/// A host full of clients.
pub(crate) struct Clients {
    /// Link ports of helpers, and of the server.
    targets: Vec<SocketAddr>,
    key: Key,
    manners: Manners,
    rng: Rng,
    books: Shared,
    addresses: AddressBook,
    clients: BTreeMap<u64, Client>,
    by_carrier: BTreeMap<Conn, u64>,
    /// Carriers that were left and nobody reads, which their other ends still serve.
    left: Vec<(Conn, Time)>,
    next_number: u64,
    next_client: Option<Time>,
    is_calm: bool,
}

/// One client.
struct Client {
    session: ClientSession,
    id: SessionId,
    way: Option<Way>,
    /// When it looks for another carrier, or looks after this one.
    wake_at: Time,
    patience: Duration,
    heard_at: Time,
    to_write: u64,
    written: u64,
    has_finished: bool,
    /// Resets its session when it has written this much.
    leaves_at: Option<u64>,
    unread: u64,
    is_slow: bool,
    saw_end: bool,
    has_closed: bool,
}

/// A carrier of the client's own making.
struct Way {
    conn: Conn,
    link: Option<OpenerLink>,
    unsent: Option<Chunk>,
    id: Option<Id>,
}

impl Clients {
    pub(crate) fn new(
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        key: Key,
        manners: Manners,
        rng: Rng,
        books: Shared,
    ) -> Clients {
        Clients {
            targets,
            key,
            manners,
            rng,
            books,
            addresses,
            clients: BTreeMap::new(),
            by_carrier: BTreeMap::new(),
            left: Vec::new(),
            next_number: 0,
            next_client: Some(Time::ZERO),
            is_calm: false,
        }
    }

    /// No new clients come, and nobody is slow or impatient without reason.
    pub(crate) fn calm_down(&mut self, now: Time) {
        self.is_calm = true;
        self.next_client = None;
        for client in self.clients.values_mut() {
            client.patience = PATIENCE_CALM;
            client.is_slow = false;
            client.wake_at = now;
            client.to_write = client.to_write.min(client.written + 1_000);
        }
    }

    /// Carriers and clients that there still are.
    pub(crate) fn open(&self) -> usize {
        self.clients.len() + self.left.len()
    }

    fn arrive(&mut self, now: Time) {
        let mut id = SessionId([0; 16]);
        self.rng.fill(&mut id.0);
        self.books.borrow_mut().begin(id);
        let rude = self.rng.chance(self.manners.rude_in_1000, 1000);
        let client = Client {
            session: ClientSession::new(self.key.clone(), id, self.manners.limits),
            id,
            way: None,
            wake_at: now,
            patience: Duration::from_nanos(
                self.rng.scale(500_000, self.manners.patience_max.as_nanos() as u64), // less than a minute
            ),
            heard_at: now,
            to_write: self.rng.scale(1, self.manners.bytes_max),
            written: 0,
            has_finished: false,
            leaves_at: rude.then(|| self.rng.scale(1, self.manners.bytes_max)),
            unread: 0,
            is_slow: self.rng.chance(1, 4),
            saw_end: false,
            has_closed: false,
        };
        self.clients.insert(self.next_number, client);
        self.next_number += 1;
    }

    /// Leaves the carrier, which may live on, unread.
    fn leave<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(way) = client.way.take() else { return };
        client.session.detach();
        // A full server's places are free when its sessions have waited long enough: nobody hurries meanwhile.
        let longest = if self.is_calm { 500_000_000 } else { 5_000_000 };
        client.wake_at = now + Duration::from_nanos(self.rng.scale(1_000, longest));
        self.by_carrier.remove(&way.conn);
        if !self.is_calm && self.left.len() < LEFT_MAX && self.rng.chance(1, 2) {
            let until = now + Duration::from_nanos(self.rng.scale(100_000, 200_000_000));
            self.left.push((way.conn, until));
        } else {
            out.abort(way.conn);
        }
    }

    fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) {
        let Some(&number) = self.by_carrier.get(&conn) else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(mut link) = client.way.as_mut().and_then(|way| way.link.take()) else { return };
        client.heard_at = now;
        let mut input = bytes;
        let mut stays = true;
        while stays {
            match link.decompose(now, &mut input) {
                Ok(Some(event)) => stays = self.event(now, number, &mut link, event),
                Ok(None) => break,
                Err(error) => {
                    self.books.borrow_mut().violation(format!("a client's link failed: {error}"));
                    stays = false;
                }
            }
        }
        let Some(client) = self.clients.get_mut(&number) else { return };
        if let Some(way) = &mut client.way {
            way.link = Some(link);
        }
        if !stays {
            return self.leave(now, number, out);
        }
        out.grant(conn, bytes.len() as u32); // at most what was granted
        self.pump(now, number, out);
    }

    /// Whether the client stays on this carrier.
    fn event(&mut self, now: Time, number: u64, link: &mut OpenerLink, event: OpenerEvent<'_>) -> bool {
        let Some(client) = self.clients.get_mut(&number) else { return false };
        match event {
            OpenerEvent::Established { .. } => {
                let Some(way) = &mut client.way else { return false };
                let Some(&address) = self.addresses.borrow().get(&way.conn) else { return false };
                way.id = link.open_relayed(client.session.open(now, address, None)).ok();
                way.id.is_some()
            }
            OpenerEvent::RelayedData { bytes, .. } => match client.session.handle_data(now, bytes.len()) {
                Ok(true) => {
                    self.books.borrow_mut().client_reads(client.id, bytes);
                    client.unread += bytes.len() as u64;
                    true
                }
                Ok(false) => true,
                Err(event) => {
                    self.books.borrow_mut().violation(format!("the server breaks a rule: {event:?}"));
                    false
                }
            },
            OpenerEvent::RelayedControl { control, .. } => {
                match client.session.handle_control(now, &control) {
                    Ok(None) => true,
                    Ok(Some(event)) => client.hears(event, &self.books),
                    Err(error) => {
                        self.books.borrow_mut().violation(format!("a client hears: {error}"));
                        false
                    }
                }
            }
            OpenerEvent::Drain { .. } => false,
            other => {
                self.books.borrow_mut().violation(format!("a client hears {other:?}"));
                false
            }
        }
    }

    /// Does what there is to do: writes, reads, ends, moves.
    fn pump<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.work(&mut self.rng, &self.books);
        if client.session.kept() > self.manners.limits.kept_bytes_max {
            let kept = client.session.kept();
            self.books.borrow_mut().violation(format!("a client keeps {kept} bytes, more than its bound"));
        }
        let resets = client.leaves_at.is_some_and(|at| client.written >= at);
        let is_done = client.saw_end && client.has_finished && client.unread == 0;
        if !client.has_closed && (resets || is_done) {
            client.has_closed = true;
            self.books.borrow_mut().client_closes(client.id, resets);
            client.session.close(if resets { CloseReason::Reset } else { CloseReason::Normal });
        }
        client.transmit(now, out);
        let waits = client.way.is_some() && (!client.session.is_attached() || client.session.awaits());
        let is_late = waits && now.since(client.heard_at) >= client.patience;
        let is_over = client.session.is_over();
        if is_over {
            let id = client.id;
            self.books.borrow_mut().client_over(id);
            self.leave(now, number, out);
            self.clients.remove(&number);
            return;
        }
        let on_a_whim = !self.is_calm && self.rng.chance(self.manners.whims_in_1000, 1000);
        if is_late || (on_a_whim && client.way.is_some()) {
            return self.leave(now, number, out);
        }
        let soon = Duration::from_nanos(self.rng.range(50_000, 2_000_000));
        client.wake_at = if client.has_work() {
            now + soon
        } else if waits {
            client.heard_at + client.patience
        } else {
            client.session.poll_timeout().unwrap_or(now + PATIENCE_CALM)
        };
    }

    /// A client without a carrier takes another.
    fn connect<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let target = self.rng.pick(&self.targets);
        let again = Duration::from_nanos(self.rng.scale(10_000, 5_000_000));
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.heard_at = now;
        match out.connect(now, target) {
            Ok(conn) => {
                client.way = Some(Way { conn, link: None, unsent: None, id: None });
                client.wake_at = now + client.patience;
                self.by_carrier.insert(conn, number);
            }
            Err(_) => client.wake_at = now + again,
        }
    }

    fn opened<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(&number) = self.by_carrier.get(&conn) else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        let Some(way) = &mut client.way else { return };
        let mut nonce = [0; NONCE_BYTES];
        self.rng.fill(&mut nonce);
        let config = OpenerConfig {
            role: Role::Client,
            key: self.key.clone(),
            limits: Limits::default(),
            policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
        };
        way.link = Some(OpenerLink::new(&config, now, nonce));
        out.grant(conn, 1 << 20);
        self.pump(now, number, out);
    }
}

impl Client {
    /// Whether the client stays on this carrier.
    fn hears(&mut self, event: ClientEvent, books: &Shared) -> bool {
        match event {
            ClientEvent::Accepted | ClientEvent::Attached => true,
            ClientEvent::Refused(_) | ClientEvent::Drain { .. } => false,
            ClientEvent::Gone { acknowledged } => {
                books.borrow_mut().client_told_gone(self.id, acknowledged);
                true
            }
            ClientEvent::Stream(StreamEvent::Room) => true,
            ClientEvent::Stream(StreamEvent::Finished) => {
                self.saw_end = true;
                books.borrow_mut().client_sees_end(self.id);
                true
            }
            ClientEvent::Stream(StreamEvent::Closed(reason)) => {
                let mut books = books.borrow_mut();
                match reason {
                    CloseReason::Normal => books.client_sees_end(self.id),
                    CloseReason::Reset => {}
                    other => books.violation(format!("a session was closed for {other:?}")),
                }
                if !self.has_closed {
                    self.has_closed = true;
                    books.client_closes(self.id, reason != CloseReason::Normal);
                    self.session.close(CloseReason::Normal);
                }
                true
            }
        }
    }

    fn work(&mut self, rng: &mut Rng, books: &Shared) {
        if self.has_closed {
            return;
        }
        let mut books = books.borrow_mut();
        let most = (self.to_write - self.written.min(self.to_write)).min(rng.scale(1, 32 * 1024));
        if most > 0 {
            let bytes = books.request(self.id, most);
            let taken = self.session.write(&bytes) as u64;
            self.written += taken;
            books.wrote(self.id, taken);
        }
        if self.written >= self.to_write && !self.has_finished {
            self.has_finished = true;
            books.client_finishes(self.id);
            self.session.finish();
        }
        let part = if self.is_slow { self.unread.min(rng.scale(1, 2_000)) } else { self.unread };
        self.unread -= part;
        self.session.consumed(part as usize);
    }

    fn has_work(&self) -> bool {
        !self.has_closed && (self.unread > 0 || (self.written < self.to_write && self.session.room() > 0))
    }

    fn transmit<T: Transport>(&mut self, now: Time, out: &mut T) {
        let Some(way) = &mut self.way else { return };
        let Some(link) = &mut way.link else { return };
        loop {
            if let Some(id) = way.id {
                let mut carrier = OnOpenerLink { link, id, pending_bytes_max: PENDING_BYTES_MAX };
                self.session.transmit(now, &mut carrier);
            }
            let Some(mut chunk) = way.unsent.take().or_else(|| link.flush(now)) else { return };
            let taken = out.send(way.conn, chunk.as_slice());
            chunk.advance(taken);
            if !chunk.is_empty() {
                way.unsent = Some(chunk);
                return;
            }
            link.recycle(chunk);
        }
    }
}

impl Application for Clients {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => self.opened(now, conn, out),
            Event::Data { bytes, .. } => self.data(now, conn, bytes, out),
            Event::Room => {
                if let Some(&number) = self.by_carrier.get(&conn) {
                    self.pump(now, number, out);
                }
            }
            Event::Finished | Event::Lost(_) => {
                self.left.retain(|(left, _)| *left != conn);
                if let Some(number) = self.by_carrier.remove(&conn)
                    && let Some(client) = self.clients.get_mut(&number)
                {
                    client.way = None;
                    client.session.detach();
                    client.wake_at = now + Duration::from_nanos(self.rng.scale(1_000, 5_000_000));
                }
                if matches!(event, Event::Finished) {
                    out.finish(conn);
                }
            }
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client = Some(now + Duration::from_nanos(self.rng.scale(10_000, 10_000_000)));
            if self.clients.len() < self.manners.clients_max {
                self.arrive(now);
            }
        }
        let due: Vec<u64> =
            self.clients.iter().filter(|(_, client)| client.wake_at <= now).map(|(n, _)| *n).collect();
        for number in due {
            match self.clients.get(&number).is_some_and(|client| client.way.is_none()) {
                true => self.connect(now, number, out),
                false => self.pump(now, number, out),
            }
        }
        let (over, left) = self.left.drain(..).partition(|(_, until)| *until <= now);
        self.left = left;
        let over: Vec<(Conn, Time)> = over;
        over.iter().for_each(|(conn, _)| out.abort(*conn));
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        let clients = self.clients.values().map(|client| client.wake_at);
        clients.chain(self.left.iter().map(|(_, until)| *until)).chain(self.next_client).min()
    }
}

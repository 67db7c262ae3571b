//! A host full of clients with sessions: each moves its session between helpers and the server itself, when a carrier is
//! lost, when it is silent for longer than the client has patience, and at whim.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::{
    Encryption, Fresh, Limits, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role, Scratch,
};
use spillway_session::{ClientSession, Patience, StreamLimits, Vigil};
use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::session::SessionId;

use super::books::Shared;
use super::canary::Canary;
use super::check::Check;
use super::client::{Around, Client, Way};
use super::copies;
use crate::clock::Clock;
use crate::network::AddressBook;
use crate::rng::Rng;

/// Carriers that were left and still live, at most.
const LEFT_MAX: usize = 50;

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// At a time.
    pub(crate) clients_max: usize,
    /// Of a thousand, how many reset their session early.
    pub(crate) rude_in_1000: u64,
    /// Of a thousand, how many close in order as soon as they have written all, and await no reply.
    pub(crate) hasty_in_1000: u64,
    /// Of each end of a session.
    pub(crate) limits: StreamLimits,
    /// The longest that a client waits for a sign of life.
    pub(crate) patience_max: Duration,
    /// Of a thousand turns of a client, how many make it move for no reason.
    pub(crate) whims_in_1000: u64,
    /// The most that a client writes, bytes.
    pub(crate) bytes_max: u64,
}

/// Who takes part, as far as clients know.
pub(crate) struct Surroundings {
    pub(crate) addresses: AddressBook,
    /// Link ports of helpers, and of the server.
    pub(crate) targets: Vec<SocketAddr>,
    pub(crate) key: Key,
    pub(crate) books: Shared,
    /// Somebody on the way keeps copies.
    pub(crate) copies: Option<copies::Shared>,
    /// Planted.
    pub(crate) canary: Option<Canary>,
}

/// A host full of clients. The host's clock is right; each client has one of its own.
pub(crate) struct Clients {
    around: Surroundings,
    manners: Manners,
    rng: Rng,
    clients: BTreeMap<u64, Client>,
    by_carrier: BTreeMap<Conn, u64>,
    /// Carriers that were left and nobody reads, which their other ends still serve.
    left: Vec<(Conn, Time)>,
    next_number: u64,
    next_client: Option<Time>,
    is_calm: bool,
}

impl Surroundings {
    fn around<'a>(&'a self, rng: &'a mut Rng) -> Around<'a> {
        Around { rng, books: &self.books, copies: self.copies.as_ref(), canary: self.canary }
    }
}

impl Clients {
    pub(crate) fn new(around: Surroundings, manners: Manners, rng: Rng) -> Clients {
        Clients {
            around,
            manners,
            rng,
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
        self.clients.values_mut().for_each(|client| client.calm_down(now));
    }

    /// The clocks of some clients run otherwise from now on.
    pub(crate) fn drift(&mut self, now: Time) {
        for client in self.clients.values_mut() {
            if self.rng.chance(1, 2) {
                client.clock.drift(&mut self.rng, now);
                client.wake_at = now;
            }
        }
    }

    /// Carriers and clients that there still are.
    pub(crate) fn open(&self) -> usize {
        self.clients.len() + self.left.len()
    }

    fn arrive(&mut self, now: Time) {
        let rng = &mut self.rng;
        let mut id = SessionId([0; 16]);
        rng.fill(&mut id.0);
        self.around.books.borrow_mut().begin(id);
        let rude = rng.chance(self.manners.rude_in_1000, 1000);
        let is_hasty = rng.chance(self.manners.hasty_in_1000, 1000);
        let clock = Clock::drawn(rng);
        let longest = self.manners.patience_max.as_nanos() as u64; // less than a minute
        let ceiling = rng.scale(500_000, longest);
        let patience = Patience {
            floor: Duration::from_nanos(rng.scale(200_000, ceiling)),
            ceiling: Duration::from_nanos(ceiling),
            idle: Duration::from_nanos(rng.scale(500_000, 5_000_000_000)),
        };
        let client = Client {
            session: ClientSession::new(self.around.key.clone(), id, self.manners.limits),
            id,
            way: None,
            clock,
            vigil: Vigil::new(patience, clock.read(now)),
            attach_within: Duration::from_nanos(rng.scale(500_000, longest)),
            wake_at: now,
            to_write: rng.scale(1, self.manners.bytes_max),
            written: 0,
            may_write: true,
            has_finished: false,
            leaves_at: rude.then(|| rng.scale(1, self.manners.bytes_max)),
            unread: 0,
            is_hasty,
            is_slow: rng.chance(1, 4),
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
        let here = client.time(now);
        let mut scratch = Scratch::new();
        let mut input = link.unseal(here, bytes, &mut scratch);
        let mut stays = true;
        while stays {
            match link.decompose(here, &mut input) {
                Ok(Some(OpenerEvent::Established { .. })) => {
                    stays = Clients::say_first_words(client, here, conn, &mut link, &self.around);
                }
                Ok(Some(event)) => {
                    stays = client.takes(here, &mut link, event, &mut self.around.around(&mut self.rng));
                }
                Ok(None) => break,
                Err(error) => {
                    let what = format!("a client's link failed: {error}");
                    self.around.books.borrow_mut().violation(Check::Rules, what);
                    stays = false;
                }
            }
        }
        client.vigil.heard(here, client.session.awaits());
        if let Some(way) = &mut client.way {
            way.link = Some(link);
            way.ungranted += bytes.len() as u32; // at most what was granted
        }
        if stays { self.pump(now, number, out) } else { self.leave(now, number, out) }
    }

    fn say_first_words(
        client: &mut Client,
        here: Time,
        conn: Conn,
        link: &mut OpenerLink,
        around: &Surroundings,
    ) -> bool {
        let Some(&address) = around.addresses.borrow().get(&conn) else { return false };
        let words = client.session.open(here, address, None);
        let epoch = match &words {
            spillway_batch::Control::Reconnect(reconnect) => reconnect.opening.epoch,
            spillway_batch::Control::Connect(connect) => connect.session.map_or(0, |opening| opening.epoch),
            _ => 0,
        };
        around.books.borrow_mut().client_opens(client.id, epoch);
        if let Some(copies) = &around.copies {
            copies.borrow_mut().of_words(client.id, words);
        }
        let id = link.open_relayed(words).ok();
        if let Some(way) = &mut client.way {
            way.id = id;
        }
        id.is_some()
    }

    /// Does what there is to do: writes, reads, ends, moves.
    fn pump<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let here = client.time(now);
        client.work(&mut self.around.around(&mut self.rng));
        let kept = client.session.kept();
        if kept > self.manners.limits.kept_bytes_max {
            let what = format!("a client keeps {kept} bytes, more than its bound");
            self.around.books.borrow_mut().violation(Check::Memory, what);
        }
        client.grant(&mut self.rng, out);
        let is_late = client.has_doubts(here);
        client.transmit(here, self.around.copies.as_ref(), out);
        if client.session.is_over() {
            let id = client.id;
            self.around.books.borrow_mut().client_over(id);
            self.leave(now, number, out);
            self.clients.remove(&number);
            return;
        }
        if client.way.is_none() {
            return;
        }
        let on_a_whim = !self.is_calm && self.rng.chance(self.manners.whims_in_1000, 1000);
        if is_late || on_a_whim {
            return self.leave(now, number, out);
        }
        let wanted = client.poll_timeout().map_or(now + Duration::from_secs(1), |at| client.clock.when(at));
        client.wake_at = if client.has_work() {
            wanted.min(now + Duration::from_nanos(self.rng.range(50_000, 2_000_000)))
        } else {
            wanted
        };
    }

    /// A client without a carrier takes another.
    fn connect<T: Transport>(&mut self, now: Time, number: u64, out: &mut T) {
        let target = self.rng.pick(&self.around.targets);
        let again = Duration::from_nanos(self.rng.scale(10_000, 5_000_000));
        let Some(client) = self.clients.get_mut(&number) else { return };
        match out.connect(now, target) {
            Ok(conn) => {
                let deadline = client.time(now) + client.attach_within;
                client.way = Some(Way { conn, link: None, unsent: None, id: None, deadline, ungranted: 0 });
                client.wake_at = client.clock.when(deadline);
                self.by_carrier.insert(conn, number);
            }
            Err(_) => client.wake_at = now + again,
        }
    }

    fn opened<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(&number) = self.by_carrier.get(&conn) else { return };
        let Some(client) = self.clients.get_mut(&number) else { return };
        let here = client.time(now);
        let Some(way) = &mut client.way else { return };
        let fresh = Fresh::filled(|bytes| self.rng.fill(bytes));
        let config = OpenerConfig {
            role: Role::Client,
            key: self.around.key.clone(),
            // The way has a deadline of its own.
            limits: Limits { handshake_timeout: Duration::MAX, ..Limits::default() },
            policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
            encryption: Encryption::Preferred,
        };
        way.link = Some(OpenerLink::new(&config, here, fresh));
        out.grant(conn, 1 << 20);
        self.pump(now, number, out);
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
        let due = self.clients.iter().filter(|(_, client)| client.wake_at <= now);
        let due: Vec<u64> = due.map(|(number, _)| *number).collect();
        for number in due {
            match self.clients.get(&number).is_some_and(|client| client.way.is_none()) {
                true => self.connect(now, number, out),
                false => self.pump(now, number, out),
            }
        }
        self.left.retain(|(conn, until)| {
            if *until <= now {
                out.abort(*conn);
            }
            *until > now
        });
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        let clients = self.clients.values().map(|client| client.wake_at);
        clients.chain(self.left.iter().map(|(_, until)| *until)).chain(self.next_client).min()
    }
}

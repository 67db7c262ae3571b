//! What runs on each host: clients of the other hosts, and a server behind both listeners.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

use super::gates::SharedGates;
use crate::oracle::Shared;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, reply_word};
use crate::relay::script::Script;
use crate::rng::Rng;

/// Replies that a server prepares before it stops reading requests.
const OWED_BYTES_MAX: u64 = 64 * 1024;

/// But it reads after so long: a byte for which there was a window, and no grant yet, cannot be released at a gate, and its
/// sender gives up after two minutes.
const READS_WITHIN: Duration = Duration::from_secs(20);

/// How a program behaves, drawn once for a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Connections that it opens, at a time.
    pub(crate) clients_max: usize,
    /// Between two of them, at most.
    pub(crate) pause_ns_max: u64,
    /// Of a thousand connections, how many are ended early by either end.
    pub(crate) rude_in_1000: u64,
    /// What a fresh connection may receive, and a reader is granted in all.
    pub(crate) grant_bytes: u64,
    /// Before a server at the gate says that bytes are safe, at most.
    pub(crate) gate_ns_max: u64,
    /// Connections may be lost because nobody answers for long.
    pub(crate) may_time_out: bool,
}

/// Where a program is.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its address; port 0.
    pub(crate) own: SocketAddr,
    /// By listener. The second has a gate.
    pub(crate) listeners: [SocketAddr; 2],
    /// Listeners of other hosts.
    pub(crate) targets: Vec<SocketAddr>,
    /// Whoever connects from here keeps no rules, and no books.
    pub(crate) strangers: Vec<SocketAddr>,
}

impl Place {
    fn is_stranger(&self, peer: SocketAddr) -> bool {
        self.strangers.iter().any(|stranger| stranger.ip() == peer.ip())
    }
}

/// A host's application.
pub(crate) struct Program {
    place: Place,
    manners: Manners,
    rng: Rng,
    oracle: Shared,
    gates: SharedGates,
    talks: BTreeMap<Conn, Talk>,
    next_client: Option<Time>,
    next_work: Option<Time>,
    /// Of a canary: grants nothing any more.
    pub(crate) is_stingy: bool,
    /// Connections that were there.
    pub(crate) opened: u64,
}

enum Talk {
    Opening,
    Client(Script),
    Server(Box<Service>),
}

/// One connection as the server sees it.
struct Service {
    ends: (SocketAddr, SocketAddr),
    head: Vec<u8>,
    token: Option<Token>,
    /// The books know it.
    is_booked: bool,
    read: u64,
    owed: u64,
    replied: u64,
    /// Received and not yet read,
    unread: u64,
    /// since then.
    unread_since: Time,
    client_finished: bool,
    finished: bool,
    /// Ends without the client when it has read so much.
    ends_at: Option<u64>,
    /// Resets when it has read so much.
    leaves_at: Option<u64>,
    /// When to release how much; nothing without a gate.
    releases: Option<VecDeque<(Time, u64)>>,
}

impl Service {
    /// Replies for so many bytes of requests: none, an echo, or more than was asked for.
    fn reply_bytes(&self, read: u64) -> u64 {
        let factor = [0, 1, 1, 4][(self.token.unwrap_or(0) % 4) as usize];
        read * factor
    }
}

impl Program {
    pub(crate) fn new(place: Place, manners: Manners, rng: Rng, books: (Shared, SharedGates)) -> Program {
        let (oracle, gates) = books;
        Program {
            place,
            manners,
            rng,
            oracle,
            gates,
            talks: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
            is_stingy: false,
            opened: 0,
        }
    }

    /// No new clients come, and who did not read reads.
    pub(crate) fn calm_down(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        for talk in self.talks.values_mut() {
            if let Talk::Client(script) = talk {
                script.calm_down();
            }
        }
    }

    /// Connections that it knows of.
    pub(crate) fn open(&self) -> usize {
        self.talks.len()
    }

    fn violation(&self, what: String) {
        self.oracle.borrow_mut().violation(what);
    }

    fn work_soon(&mut self, now: Time) {
        if self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 20_000_000)));
        }
    }

    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.talks.get(&conn) {
            Some(Talk::Client(_)) => self.pump_client(now, conn, out),
            Some(Talk::Server(_)) => self.pump_server(now, conn, out),
            Some(Talk::Opening) | None => {}
        }
    }

    fn pump_client<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Talk::Client(script)) = self.talks.get_mut(&conn) else { return };
        loop {
            let bytes = script.next_bytes(now, &mut self.rng);
            if bytes.is_empty() {
                break;
            }
            let taken = out.send(conn, &bytes);
            script.sent_bytes(taken, now, &mut self.rng);
            if taken < bytes.len() {
                break;
            }
        }
        if script.resets() {
            script.done();
            self.talks.remove(&conn);
            return out.abort(conn);
        }
        if script.is_sent() {
            script.finish();
            out.finish(conn);
        }
        let read = if self.is_stingy { 0 } else { script.reads(&mut self.rng) };
        if read > 0 {
            out.grant(conn, read as u32); // at most what was granted
        }
        if script.unread > 0 || script.pause > now {
            self.work_soon(now);
        }
    }

    fn pump_server<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Talk::Server(service)) = self.talks.get_mut(&conn) else { return };
        if service.leaves_at.is_some_and(|at| service.read >= at) {
            if let (Some(token), true) = (service.token, service.is_booked) {
                let mut oracle = self.oracle.borrow_mut();
                oracle.server_ends_early(token);
                oracle.server_done(token);
            }
            self.talks.remove(&conn);
            return out.abort(conn);
        }
        if let Some(token) = service.token {
            while service.replied < service.owed {
                let part = (service.owed - service.replied).min(self.rng.scale(1, 40_000));
                let bytes = bytes_of(reply_word, token, service.replied, part);
                let taken = out.send(conn, &bytes) as u64;
                service.replied += taken;
                if service.is_booked {
                    self.oracle.borrow_mut().replied(token, taken);
                }
                if taken < part {
                    break;
                }
            }
        }
        let waited = now.since(service.unread_since);
        let may_read =
            service.finished || service.owed - service.replied < OWED_BYTES_MAX || waited > READS_WITHIN;
        if may_read && service.unread > 0 && !self.is_stingy {
            out.grant(conn, service.unread as u32); // at most what was granted
            service.unread = 0;
        }
        let is_enough = service.client_finished || service.ends_at.is_some_and(|at| service.read >= at);
        if is_enough && service.replied == service.owed && !service.finished {
            service.finished = true;
            if let (Some(token), true) = (service.token, service.is_booked) {
                self.oracle.borrow_mut().replied_all(token);
            }
            out.finish(conn);
        }
        self.release(now, conn, out);
    }

    /// What came is safe elsewhere by now.
    fn release<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Talk::Server(service)) = self.talks.get_mut(&conn) else { return };
        let Some(releases) = &mut service.releases else { return };
        let mut through = None;
        while releases.front().is_some_and(|(at, _)| *at <= now) {
            through = releases.pop_front().map(|(_, released)| released);
        }
        let waits = !releases.is_empty();
        if let Some(released) = through {
            if let Some(gate) = self.gates.borrow_mut().get_mut(service.ends.0, service.ends.1) {
                gate.released = gate.released.max(released);
            }
            out.release(conn, released);
        }
        if waits {
            self.work_soon(now);
        }
    }

    fn opened<T: Transport>(&mut self, now: Time, conn: Conn, event: (SocketAddr, Option<u16>), out: &mut T) {
        self.opened += 1;
        let (peer, listener) = event;
        let talk = match (listener, self.talks.get(&conn)) {
            (Some(listener), None) => Talk::Server(Box::new(self.service(peer, listener))),
            (None, Some(Talk::Opening)) => {
                let mut script =
                    Script::new(&mut self.rng, self.place.own, self.manners.rude_in_1000, &self.oracle);
                if self.next_client.is_none() {
                    // It was on its way when the storm ended.
                    script.calm_down();
                }
                Talk::Client(script)
            }
            _ => return self.violation(format!("{conn:?} was opened twice, or by nobody")),
        };
        self.talks.insert(conn, talk);
        out.grant(conn, self.manners.grant_bytes as u32); // fits
        self.pump(now, conn, out);
    }

    fn service(&mut self, peer: SocketAddr, listener: u16) -> Service {
        let local = self.place.listeners[usize::from(listener).min(1)];
        let is_gated = listener == 1;
        if is_gated {
            self.gates.borrow_mut().begin(local, peer);
        }
        let leaves = self.rng.chance(self.manners.rude_in_1000, 1000);
        Service {
            ends: (local, peer),
            head: Vec::new(),
            token: None,
            is_booked: !self.place.is_stranger(peer),
            read: 0,
            owed: 0,
            replied: 0,
            unread: 0,
            unread_since: Time::ZERO,
            client_finished: false,
            finished: false,
            ends_at: self.rng.chance(1, 6).then(|| self.rng.scale(TOKEN_BYTES, 100_000)),
            leaves_at: leaves.then(|| self.rng.scale(TOKEN_BYTES, 100_000)),
            releases: is_gated.then(VecDeque::new),
        }
    }

    fn data_for_server(&mut self, now: Time, conn: Conn, end: u64, bytes: &[u8]) {
        let delay = Duration::from_nanos(self.rng.scale(1_000, self.manners.gate_ns_max));
        let Some(Talk::Server(service)) = self.talks.get_mut(&conn) else { return };
        let mut oracle = self.oracle.borrow_mut();
        if let Some(releases) = &mut service.releases {
            if let Some(gate) = self.gates.borrow_mut().get_mut(service.ends.0, service.ends.1) {
                gate.came = end;
            }
            let at = releases.back().map_or(Time::ZERO, |(at, _)| *at).max(now + delay);
            releases.push_back((at, end));
        }
        if service.unread == 0 {
            service.unread_since = now;
        }
        service.unread += bytes.len() as u64;
        service.read += bytes.len() as u64;
        if service.is_booked && end != service.read {
            oracle.violation(format!("{conn:?}: the end is said to be {end}, {} bytes came", service.read));
        }
        let mut fresh = bytes;
        if service.token.is_none() {
            let missing = TOKEN_BYTES as usize - service.head.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            service.head.extend_from_slice(head);
            let Ok(word) = <[u8; 8]>::try_from(&service.head[..]) else { return };
            let token = Token::from_le_bytes(word);
            service.token = Some(token);
            if service.is_booked {
                service.is_booked = oracle.recognise(token, SocketAddr::new(service.ends.1.ip(), 0));
                oracle.server_received(token, &word);
            }
            fresh = rest;
        }
        service.owed = service.reply_bytes(service.read);
        if let (Some(token), true) = (service.token, service.is_booked) {
            oracle.server_received(token, fresh);
        }
    }

    fn finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.talks.get_mut(&conn) {
            Some(Talk::Client(script)) => {
                script.end_of_replies();
                if !script.finished {
                    // The server has closed: a program stops here.
                    script.finish();
                    out.finish(conn);
                }
            }
            Some(Talk::Server(service)) => {
                service.client_finished = true;
                if let (Some(token), true) = (service.token, service.is_booked) {
                    self.oracle.borrow_mut().server_saw_end(token);
                }
                let read = service.read;
                if let Some(releases) = &mut service.releases {
                    let at = releases.back().map_or(now, |(at, _)| *at);
                    releases.push_back((at, read + 1));
                }
                self.pump(now, conn, out);
            }
            Some(Talk::Opening) | None => self.violation(format!("{conn:?} finished before it was opened")),
        }
    }

    fn lost(&mut self, conn: Conn, reason: LostReason) {
        let is_stranger = matches!(self.talks.get(&conn), Some(Talk::Server(service)) if self.place.is_stranger(service.ends.1));
        if reason == LostReason::TimedOut && !self.manners.may_time_out && !is_stranger {
            self.violation(format!("{conn:?} timed out although nobody was silent for long"));
        }
        match self.talks.remove(&conn) {
            Some(Talk::Client(script)) => {
                if reason == LostReason::Closed && !script.saw_end {
                    self.violation(format!("stream {:x}: closed without an end", script.token));
                }
                script.done();
            }
            Some(Talk::Server(service)) => {
                if reason == LostReason::Closed && !(service.client_finished && service.finished) {
                    self.violation(format!("{:?}: closed, and nobody has closed it", service.token));
                }
                if let (Some(token), true) = (service.token, service.is_booked) {
                    self.oracle.borrow_mut().server_done(token);
                }
            }
            Some(Talk::Opening) => {}
            None => self.violation(format!("{conn:?} lost before it was opened")),
        }
    }
}

impl Application for Program {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, listener } => self.opened(now, conn, (peer, listener), out),
            Event::Data { end, bytes } => {
                match self.talks.get_mut(&conn) {
                    Some(Talk::Client(script)) => script.received(bytes),
                    Some(Talk::Server(_)) => self.data_for_server(now, conn, end, bytes),
                    _ => self.violation(format!("{conn:?}: bytes of nobody")),
                }
                self.pump(now, conn, out);
            }
            Event::Room => self.pump(now, conn, out),
            Event::Finished => self.finished(now, conn, out),
            Event::Lost(reason) => self.lost(conn, reason),
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_work.is_some_and(|at| at <= now) {
            self.next_work = None;
            for conn in self.talks.keys().copied().collect::<Vec<_>>() {
                self.pump(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client =
                Some(now + Duration::from_nanos(self.rng.scale(10_000, self.manners.pause_ns_max)));
            let burst = if self.rng.chance(1, 20) { 8 } else { 1 };
            for _ in 0..burst {
                if self.talks.len() < self.manners.clients_max {
                    let target = self.rng.pick(&self.place.targets);
                    if let Ok(conn) = out.connect(now, target) {
                        self.talks.insert(conn, Talk::Opening);
                    }
                }
            }
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        [self.next_client, self.next_work].into_iter().flatten().min()
    }
}

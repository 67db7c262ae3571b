//! The program of each host: clients of the other hosts, and a server behind both listeners.

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

/// After this time a server reads anyway: an ungranted byte in the window cannot be released at a gate, and its
/// sender gives up after two minutes.
const READS_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramBehaviour {
    /// Own connections at a time.
    pub(crate) clients_max: usize,
    /// Maximum time between two new connections.
    pub(crate) pause_ns_max: u64,
    /// Connections, of a thousand, that either end resets early.
    pub(crate) early_ends_in_1000: u64,
    /// Grant of a fresh connection; a reader restores it.
    pub(crate) grant_bytes: u64,
    /// Maximum time before a gated server releases bytes.
    pub(crate) gate_ns_max: u64,
    /// Faults may last so long that connections time out.
    pub(crate) may_time_out: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The host's address; port 0.
    pub(crate) own: SocketAddr,
    /// By listener; the second one is gated.
    pub(crate) listeners: [SocketAddr; 2],
    /// Listeners of other hosts.
    pub(crate) targets: Vec<SocketAddr>,
    /// Addresses of rogue hosts, whose connections are not checked.
    pub(crate) rogues: Vec<SocketAddr>,
}

impl Place {
    fn is_rogue(&self, peer: SocketAddr) -> bool {
        self.rogues.iter().any(|rogue| rogue.ip() == peer.ip())
    }
}

pub(crate) struct Program {
    place: Place,
    behaviour: ProgramBehaviour,
    rng: Rng,
    oracle: Shared,
    gates: SharedGates,
    endpoints: BTreeMap<Conn, Endpoint>,
    next_client: Option<Time>,
    next_work: Option<Time>,
    /// For [`Canary::ForgetCredit`](super::canary::Canary::ForgetCredit): grants nothing.
    pub(crate) withholds_grants: bool,
    pub(crate) opened: u64,
}

enum Endpoint {
    Opening,
    Client(Script),
    Server(Box<Service>),
}

struct Service {
    ends: (SocketAddr, SocketAddr),
    head: Vec<u8>,
    token: Option<Token>,
    /// The oracle checks the stream.
    is_checked: bool,
    read: u64,
    owed: u64,
    replied: u64,
    /// Received and not yet read, bytes.
    unread: u64,
    /// When `unread` grew from 0.
    unread_since: Time,
    client_finished: bool,
    finished: bool,
    /// Finishes early, when it has read this many bytes.
    finishes_at: Option<u64>,
    /// Resets when it has read this many bytes.
    resets_at: Option<u64>,
    /// Times and offsets of releases; `None` without a gate.
    releases: Option<VecDeque<(Time, u64)>>,
}

impl Service {
    /// Length of the replies to `read` bytes of requests: nothing, an echo, or four times as much.
    fn reply_bytes(&self, read: u64) -> u64 {
        let factor = [0, 1, 1, 4][(self.token.unwrap_or(0) % 4) as usize];
        read * factor
    }
}

impl Program {
    pub(crate) fn new(
        place: Place,
        behaviour: ProgramBehaviour,
        rng: Rng,
        books: (Shared, SharedGates),
    ) -> Program {
        let (oracle, gates) = books;
        Program {
            place,
            behaviour,
            rng,
            oracle,
            gates,
            endpoints: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
            withholds_grants: false,
            opened: 0,
        }
    }

    pub(crate) fn calm_down(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        for endpoint in self.endpoints.values_mut() {
            if let Endpoint::Client(script) = endpoint {
                script.calm_down();
            }
        }
    }

    pub(crate) fn open(&self) -> usize {
        self.endpoints.len()
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
        match self.endpoints.get(&conn) {
            Some(Endpoint::Client(_)) => self.pump_client(now, conn, out),
            Some(Endpoint::Server(_)) => self.pump_server(now, conn, out),
            Some(Endpoint::Opening) | None => {}
        }
    }

    fn pump_client<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Client(script)) = self.endpoints.get_mut(&conn) else { return };
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
            self.endpoints.remove(&conn);
            return out.abort(conn);
        }
        if script.is_sent() {
            script.finish();
            out.finish(conn);
        }
        let read = if self.withholds_grants { 0 } else { script.reads(&mut self.rng) };
        if read > 0 {
            out.grant(conn, read as u32); // at most what was granted
        }
        if script.unread > 0 || script.pause > now {
            self.work_soon(now);
        }
    }

    fn pump_server<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Server(service)) = self.endpoints.get_mut(&conn) else { return };
        if service.resets_at.is_some_and(|at| service.read >= at) {
            if let (Some(token), true) = (service.token, service.is_checked) {
                let mut oracle = self.oracle.borrow_mut();
                oracle.server_ends_early(token);
                oracle.server_done(token);
            }
            self.endpoints.remove(&conn);
            return out.abort(conn);
        }
        if let Some(token) = service.token {
            while service.replied < service.owed {
                let part = (service.owed - service.replied).min(self.rng.scale(1, 40_000));
                let bytes = bytes_of(reply_word, token, service.replied, part);
                let taken = out.send(conn, &bytes) as u64;
                service.replied += taken;
                if service.is_checked {
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
        if may_read && service.unread > 0 && !self.withholds_grants {
            out.grant(conn, service.unread as u32); // at most what was granted
            service.unread = 0;
        }
        let is_enough = service.client_finished || service.finishes_at.is_some_and(|at| service.read >= at);
        if is_enough && service.replied == service.owed && !service.finished {
            service.finished = true;
            if let (Some(token), true) = (service.token, service.is_checked) {
                self.oracle.borrow_mut().replied_all(token);
            }
            out.finish(conn);
        }
        self.release(now, conn, out);
    }

    fn release<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Server(service)) = self.endpoints.get_mut(&conn) else { return };
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
        let endpoint = match (listener, self.endpoints.get(&conn)) {
            (Some(listener), None) => Endpoint::Server(Box::new(self.service(peer, listener))),
            (None, Some(Endpoint::Opening)) => {
                let mut script = Script::new(
                    &mut self.rng,
                    self.place.own,
                    self.behaviour.early_ends_in_1000,
                    &self.oracle,
                );
                if self.next_client.is_none() {
                    // The connection attempt was in flight when the storm ended.
                    script.calm_down();
                }
                Endpoint::Client(script)
            }
            _ => return self.violation(format!("{conn:?} was opened twice, or without a connect")),
        };
        self.endpoints.insert(conn, endpoint);
        out.grant(conn, self.behaviour.grant_bytes as u32); // fits
        self.pump(now, conn, out);
    }

    fn service(&mut self, peer: SocketAddr, listener: u16) -> Service {
        let local = self.place.listeners[usize::from(listener).min(1)];
        let is_gated = listener == 1;
        if is_gated {
            self.gates.borrow_mut().begin(local, peer);
        }
        let resets = self.rng.chance(self.behaviour.early_ends_in_1000, 1000);
        Service {
            ends: (local, peer),
            head: Vec::new(),
            token: None,
            is_checked: !self.place.is_rogue(peer),
            read: 0,
            owed: 0,
            replied: 0,
            unread: 0,
            unread_since: Time::ZERO,
            client_finished: false,
            finished: false,
            finishes_at: self.rng.chance(1, 6).then(|| self.rng.scale(TOKEN_BYTES, 100_000)),
            resets_at: resets.then(|| self.rng.scale(TOKEN_BYTES, 100_000)),
            releases: is_gated.then(VecDeque::new),
        }
    }

    fn data_for_server(&mut self, now: Time, conn: Conn, end: u64, bytes: &[u8]) {
        let delay = Duration::from_nanos(self.rng.scale(1_000, self.behaviour.gate_ns_max));
        let Some(Endpoint::Server(service)) = self.endpoints.get_mut(&conn) else { return };
        let mut oracle = self.oracle.borrow_mut();
        if let Some(releases) = &mut service.releases {
            if let Some(gate) = self.gates.borrow_mut().get_mut(service.ends.0, service.ends.1) {
                gate.received = end;
            }
            let at = releases.back().map_or(Time::ZERO, |(at, _)| *at).max(now + delay);
            releases.push_back((at, end));
        }
        if service.unread == 0 {
            service.unread_since = now;
        }
        service.unread += bytes.len() as u64;
        service.read += bytes.len() as u64;
        if service.is_checked && end != service.read {
            oracle
                .violation(format!("{conn:?}: the event's end is {end}, but {} bytes arrived", service.read));
        }
        let mut fresh = bytes;
        if service.token.is_none() {
            let missing = TOKEN_BYTES as usize - service.head.len();
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            service.head.extend_from_slice(head);
            let Ok(word) = <[u8; 8]>::try_from(&service.head[..]) else { return };
            let token = Token::from_le_bytes(word);
            service.token = Some(token);
            if service.is_checked {
                service.is_checked = oracle.recognise(token, SocketAddr::new(service.ends.1.ip(), 0));
                oracle.server_received(token, &word);
            }
            fresh = rest;
        }
        service.owed = service.reply_bytes(service.read);
        if let (Some(token), true) = (service.token, service.is_checked) {
            oracle.server_received(token, fresh);
        }
    }

    fn finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.endpoints.get_mut(&conn) {
            Some(Endpoint::Client(script)) => {
                script.end_of_replies();
                if !script.finished {
                    // The server has closed: the client sends no more.
                    script.finish();
                    out.finish(conn);
                }
            }
            Some(Endpoint::Server(service)) => {
                service.client_finished = true;
                if let (Some(token), true) = (service.token, service.is_checked) {
                    self.oracle.borrow_mut().server_saw_end(token);
                }
                let read = service.read;
                if let Some(releases) = &mut service.releases {
                    let at = releases.back().map_or(now, |(at, _)| *at);
                    releases.push_back((at, read + 1));
                }
                self.pump(now, conn, out);
            }
            Some(Endpoint::Opening) | None => {
                self.violation(format!("{conn:?} finished before it was opened"))
            }
        }
    }

    fn lost(&mut self, conn: Conn, reason: LostReason) {
        let is_rogue = match self.endpoints.get(&conn) {
            Some(Endpoint::Server(service)) => self.place.is_rogue(service.ends.1),
            _ => false,
        };
        if reason == LostReason::TimedOut && !self.behaviour.may_time_out && !is_rogue {
            self.violation(format!("{conn:?} timed out without a long fault"));
        }
        match self.endpoints.remove(&conn) {
            Some(Endpoint::Client(script)) => {
                if reason == LostReason::Closed && !script.saw_end {
                    self.violation(format!("stream {:x}: closed without an end", script.token));
                }
                script.done();
            }
            Some(Endpoint::Server(service)) => {
                if reason == LostReason::Closed && !(service.client_finished && service.finished) {
                    self.violation(format!("{:?}: closed although an end is missing", service.token));
                }
                if let (Some(token), true) = (service.token, service.is_checked) {
                    self.oracle.borrow_mut().server_done(token);
                }
            }
            Some(Endpoint::Opening) => {}
            None => self.violation(format!("{conn:?} lost before it was opened")),
        }
    }
}

impl Application for Program {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, listener } => self.opened(now, conn, (peer, listener), out),
            Event::Data { end, bytes } => {
                match self.endpoints.get_mut(&conn) {
                    Some(Endpoint::Client(script)) => script.received(bytes),
                    Some(Endpoint::Server(_)) => self.data_for_server(now, conn, end, bytes),
                    _ => self.violation(format!("{conn:?}: bytes of an unknown connection")),
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
            for conn in self.endpoints.keys().copied().collect::<Vec<_>>() {
                self.pump(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client =
                Some(now + Duration::from_nanos(self.rng.scale(10_000, self.behaviour.pause_ns_max)));
            let burst = if self.rng.chance(1, 20) { 8 } else { 1 };
            for _ in 0..burst {
                if self.endpoints.len() < self.behaviour.clients_max {
                    let target = self.rng.pick(&self.place.targets);
                    if let Ok(conn) = out.connect(now, target) {
                        self.endpoints.insert(conn, Endpoint::Opening);
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

//! The program of each host: clients of the other hosts, and a server behind both listeners.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};

use super::frames::Family;
use super::gates::SharedGates;
use crate::oracle::SharedOracle;
use crate::pattern::{TOKEN_BYTES, Token, bytes_of, reply_word};
use crate::relay::script::Script;
use crate::rng::Rng;

/// After this time a server grants in any case: a byte in the window but beyond the grant is not delivered,
/// so it cannot be released at a gate, and its sender gives up after two minutes.
const READS_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramBehaviour {
    /// The program opens no connections while it has this many.
    pub(crate) clients_max: usize,
    /// Maximum time between two new connections, nanoseconds.
    pub(crate) pause_ns_max: u64,
    /// Connections, of a thousand, that either end resets early.
    pub(crate) early_ends_per_1000: u64,
    /// First grant of a new connection, bytes. Later the program grants as many bytes as it reads.
    pub(crate) grant_bytes: u64,
    /// A server does not read requests while it has this many unwritten bytes of replies. A window is a multiple of its
    /// unit: a client may send some bytes beyond the grant, which are not acknowledged before the server reads.
    pub(crate) unwritten_bytes_max: u64,
    /// Maximum time before a gated server releases bytes, nanoseconds.
    pub(crate) gate_ns_max: u64,
    /// Faults may last so long that connections time out.
    pub(crate) may_time_out: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    /// The host's address; port 0.
    pub(crate) own: SocketAddr,
    /// Listeners of this host; the second is gated.
    pub(crate) listeners: [SocketAddr; 2],
    /// Listeners of other hosts.
    pub(crate) targets: Vec<SocketAddr>,
    /// Addresses of rogue hosts, whose connections are not checked.
    pub(crate) rogues: Vec<SocketAddr>,
}

impl Addresses {
    /// The addresses of one of `hosts` hosts, and the listeners of the other hosts. `services`: those of a host.
    pub(super) fn of(
        host: usize,
        (hosts, family): (usize, Family),
        services: impl Fn(usize) -> [SocketAddr; 2],
    ) -> Addresses {
        let end = |host| SocketAddr::new(family.address_of(host), 0);
        let others = (0..hosts).filter(|other| *other != host);
        Addresses {
            own: end(host),
            listeners: services(host),
            targets: others.flat_map(&services).collect(),
            rogues: vec![end(hosts)],
        }
    }

    fn is_rogue(&self, peer: SocketAddr) -> bool {
        self.rogues.iter().any(|rogue| rogue.ip() == peer.ip())
    }
}

pub(crate) struct Program {
    addresses: Addresses,
    behaviour: ProgramBehaviour,
    rng: Rng,
    oracle: SharedOracle,
    gates: SharedGates,
    endpoints: BTreeMap<Conn, Endpoint>,
    next_client: Option<Time>,
    next_work: Option<Time>,
    /// Tokens of the clients.
    pub(crate) tokens: BTreeMap<Conn, Token>,
    /// Ends of connections that are violations, unless the connection was lost by design of the switch's protocol.
    pub(crate) doubtful: Vec<(Conn, String)>,
    /// Planted fault [`PlantedFault::ForgetCredit`](super::planted fault::PlantedFault::ForgetCredit): grants no bytes.
    pub(crate) withholds_grants: bool,
    pub(crate) opened: u64,
}

enum Endpoint {
    Opening,
    Client(Script),
    Server(Box<ServerConnection>),
}

struct ServerConnection {
    ends: (SocketAddr, SocketAddr),
    token_bytes: Vec<u8>,
    token: Option<Token>,
    /// Whether the oracle checks the stream.
    is_checked: bool,
    read: u64,
    reply_end: u64,
    replied: u64,
    unread: u64,
    /// Time at which `unread` last rose from 0.
    unread_since: Time,
    client_finished: bool,
    finished: bool,
    /// Ends the replies early, after it has read this many bytes.
    finishes_at: Option<u64>,
    /// Resets after it has read this many bytes.
    resets_at: Option<u64>,
    /// Offsets to release, and when; `None` without a gate.
    releases: Option<VecDeque<(Time, u64)>>,
}

impl ServerConnection {
    /// Length of the replies to `read` bytes of requests: 0, 1 or 4 times `read`, by the token.
    fn reply_bytes(&self, read: u64) -> u64 {
        let factor = [0, 1, 1, 4][(self.token.unwrap_or(0) % 4) as usize];
        read * factor
    }
}

impl Program {
    pub(crate) fn new(
        addresses: Addresses,
        behaviour: ProgramBehaviour,
        rng: Rng,
        records: (SharedOracle, SharedGates),
    ) -> Program {
        let (oracle, gates) = records;
        Program {
            addresses,
            behaviour,
            rng,
            oracle,
            gates,
            endpoints: BTreeMap::new(),
            next_client: Some(Time::ZERO),
            next_work: None,
            tokens: BTreeMap::new(),
            doubtful: Vec::new(),
            withholds_grants: false,
            opened: 0,
        }
    }

    pub(crate) fn begin_calm_phase(&mut self, now: Time) {
        self.next_client = None;
        self.next_work = Some(now);
        for endpoint in self.endpoints.values_mut() {
            if let Endpoint::Client(script) = endpoint {
                script.begin_calm_phase();
            }
        }
    }

    pub(crate) fn open(&self) -> impl Iterator<Item = Conn> + '_ {
        self.endpoints.keys().copied()
    }

    fn violation(&self, what: String) {
        self.oracle.borrow_mut().violation(what);
    }

    fn work_soon(&mut self, now: Time) {
        if self.next_work.is_none() {
            self.next_work = Some(now + Duration::from_nanos(self.rng.range(50_000, 20_000_000)));
        }
    }

    fn advance<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.endpoints.get(&conn) {
            Some(Endpoint::Client(_)) => self.advance_client(now, conn, out),
            Some(Endpoint::Server(_)) => self.advance_server(now, conn, out),
            Some(Endpoint::Opening) | None => {}
        }
    }

    fn advance_client<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Client(script)) = self.endpoints.get_mut(&conn) else { return };
        if !script.advance(now, conn, &mut self.rng, out) {
            self.endpoints.remove(&conn);
            return;
        }
        let read = if self.withholds_grants { 0 } else { script.read_some(&mut self.rng) };
        if read > 0 {
            out.grant(conn, read as u32); // fits: at most the granted bytes
        }
        if script.unread > 0 || script.paused_until > now {
            self.work_soon(now);
        }
    }

    fn advance_server<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Server(server)) = self.endpoints.get_mut(&conn) else { return };
        if server.resets_at.is_some_and(|at| server.read >= at) {
            if let (Some(token), true) = (server.token, server.is_checked) {
                let mut oracle = self.oracle.borrow_mut();
                oracle.server_ends_early(token);
                oracle.server_done(token);
            }
            self.endpoints.remove(&conn);
            return out.abort(conn);
        }
        if let Some(token) = server.token {
            while server.replied < server.reply_end {
                let part = (server.reply_end - server.replied).min(self.rng.log_uniform(1, 40_000));
                let bytes = bytes_of(reply_word, token, server.replied, part);
                let accepted = out.send(conn, &bytes) as u64;
                server.replied += accepted;
                if server.is_checked {
                    self.oracle.borrow_mut().replied(token, accepted);
                }
                if accepted < part {
                    break;
                }
            }
        }
        let waited = now.since(server.unread_since);
        let may_read = server.finished
            || server.reply_end - server.replied < self.behaviour.unwritten_bytes_max
            || waited > READS_WITHIN;
        if may_read && server.unread > 0 && !self.withholds_grants {
            out.grant(conn, server.unread as u32); // fits: at most the granted bytes
            server.unread = 0;
        }
        let may_finish = server.client_finished || server.finishes_at.is_some_and(|at| server.read >= at);
        if may_finish && server.replied == server.reply_end && !server.finished {
            server.finished = true;
            if let (Some(token), true) = (server.token, server.is_checked) {
                self.oracle.borrow_mut().replied_all(token);
            }
            out.finish(conn);
        }
        self.release(now, conn, out);
    }

    fn release<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Endpoint::Server(server)) = self.endpoints.get_mut(&conn) else { return };
        let Some(releases) = &mut server.releases else { return };
        let mut through = None;
        while releases.front().is_some_and(|(at, _)| *at <= now) {
            through = releases.pop_front().map(|(_, released)| released);
        }
        let waits = !releases.is_empty();
        if let Some(released) = through {
            if let Some(gate) = self.gates.borrow_mut().get_mut(server.ends.0, server.ends.1) {
                gate.released = gate.released.max(released);
            }
            out.release(conn, released);
        }
        if waits {
            self.work_soon(now);
        }
    }

    fn handle_opened<T: Transport>(
        &mut self,
        now: Time,
        conn: Conn,
        event: (SocketAddr, Option<u16>),
        out: &mut T,
    ) {
        self.opened += 1;
        let (peer, listener) = event;
        let endpoint = match (listener, self.endpoints.get(&conn)) {
            (Some(listener), None) => Endpoint::Server(Box::new(self.accept(peer, listener))),
            (None, Some(Endpoint::Opening)) => {
                let mut script = Script::new(
                    &mut self.rng,
                    self.addresses.own,
                    self.behaviour.early_ends_per_1000,
                    &self.oracle,
                );
                if self.next_client.is_none() {
                    // The connection attempt was in flight when the fault phase ended.
                    script.begin_calm_phase();
                }
                self.tokens.insert(conn, script.token);
                Endpoint::Client(script)
            }
            _ => return self.violation(format!("{conn:?} was opened twice, or without a connect")),
        };
        self.endpoints.insert(conn, endpoint);
        out.grant(conn, self.behaviour.grant_bytes as u32); // fits
        self.advance(now, conn, out);
    }

    fn accept(&mut self, peer: SocketAddr, listener: u16) -> ServerConnection {
        let local = self.addresses.listeners[usize::from(listener).min(1)];
        let is_gated = listener == 1;
        if is_gated {
            self.gates.borrow_mut().begin(local, peer);
        }
        let resets = self.rng.chance(self.behaviour.early_ends_per_1000, 1000);
        ServerConnection {
            ends: (local, peer),
            token_bytes: Vec::new(),
            token: None,
            is_checked: !self.addresses.is_rogue(peer),
            read: 0,
            reply_end: 0,
            replied: 0,
            unread: 0,
            unread_since: Time::ZERO,
            client_finished: false,
            finished: false,
            finishes_at: self.rng.chance(1, 6).then(|| self.rng.log_uniform(TOKEN_BYTES, 100_000)),
            resets_at: resets.then(|| self.rng.log_uniform(TOKEN_BYTES, 100_000)),
            releases: is_gated.then(VecDeque::new),
        }
    }

    fn receive_request(&mut self, now: Time, conn: Conn, end: u64, bytes: &[u8]) {
        let delay = Duration::from_nanos(self.rng.log_uniform(1_000, self.behaviour.gate_ns_max));
        let Some(Endpoint::Server(server)) = self.endpoints.get_mut(&conn) else { return };
        let mut oracle = self.oracle.borrow_mut();
        if let Some(releases) = &mut server.releases {
            if let Some(gate) = self.gates.borrow_mut().get_mut(server.ends.0, server.ends.1) {
                gate.received = end;
            }
            let at = releases.back().map_or(Time::ZERO, |(at, _)| *at).max(now + delay);
            releases.push_back((at, end));
        }
        if server.unread == 0 {
            server.unread_since = now;
        }
        server.unread += bytes.len() as u64;
        server.read += bytes.len() as u64;
        if server.is_checked && end != server.read {
            oracle.violation(format!(
                "{conn:?}: the event's end is {end}, but {} bytes were delivered",
                server.read
            ));
        }
        let mut after_token = bytes;
        if server.token.is_none() {
            let missing = TOKEN_BYTES as usize - server.token_bytes.len();
            let (token_part, rest) = bytes.split_at(missing.min(bytes.len()));
            server.token_bytes.extend_from_slice(token_part);
            let Ok(word) = <[u8; 8]>::try_from(&server.token_bytes[..]) else { return };
            let token = Token::from_le_bytes(word);
            server.token = Some(token);
            if server.is_checked {
                server.is_checked = oracle.recognise(token, SocketAddr::new(server.ends.1.ip(), 0));
                oracle.server_received(token, &word);
            }
            after_token = rest;
        }
        server.reply_end = server.reply_bytes(server.read);
        if let (Some(token), true) = (server.token, server.is_checked) {
            oracle.server_received(token, after_token);
        }
    }

    fn handle_finished<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        match self.endpoints.get_mut(&conn) {
            Some(Endpoint::Client(script)) => {
                script.receive_end();
                if !script.finished {
                    // The server has closed: the client ends its requests.
                    script.finish();
                    out.finish(conn);
                }
            }
            Some(Endpoint::Server(server)) => {
                server.client_finished = true;
                if let (Some(token), true) = (server.token, server.is_checked) {
                    self.oracle.borrow_mut().server_saw_end(token);
                }
                let read = server.read;
                if let Some(releases) = &mut server.releases {
                    let at = releases.back().map_or(now, |(at, _)| *at);
                    releases.push_back((at, read + 1));
                }
                self.advance(now, conn, out);
            }
            Some(Endpoint::Opening) | None => {
                self.violation(format!("{conn:?} finished before it was opened"))
            }
        }
    }

    fn handle_lost(&mut self, conn: Conn, reason: LostReason) {
        let is_rogue = match self.endpoints.get(&conn) {
            Some(Endpoint::Server(server)) => self.addresses.is_rogue(server.ends.1),
            _ => false,
        };
        if reason == LostReason::TimedOut && !self.behaviour.may_time_out && !is_rogue {
            self.doubtful.push((conn, format!("{conn:?} timed out although no fault is that long")));
        }
        match self.endpoints.remove(&conn) {
            Some(Endpoint::Client(script)) => {
                if reason == LostReason::Closed && !script.saw_end {
                    self.violation(format!(
                        "stream {:x}: closed before the end of the replies",
                        script.token
                    ));
                }
                script.record_closed();
            }
            Some(Endpoint::Server(server)) => {
                if reason == LostReason::Closed && !(server.client_finished && server.finished) {
                    self.violation(format!("{:?}: closed before both ends had finished", server.token));
                }
                if let (Some(token), true) = (server.token, server.is_checked) {
                    self.oracle.borrow_mut().server_done(token);
                }
            }
            Some(Endpoint::Opening) => {}
            None => self.violation(format!("{conn:?} was lost before it was opened")),
        }
    }
}

impl Application for Program {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { peer, listener } => self.handle_opened(now, conn, (peer, listener), out),
            Event::Data { end, bytes } => {
                match self.endpoints.get_mut(&conn) {
                    Some(Endpoint::Client(script)) => script.receive(bytes),
                    Some(Endpoint::Server(_)) => self.receive_request(now, conn, end, bytes),
                    _ => self.violation(format!("{conn:?} delivered bytes before it was opened")),
                }
                self.advance(now, conn, out);
            }
            Event::Room => self.advance(now, conn, out),
            Event::Finished => self.handle_finished(now, conn, out),
            Event::Lost(reason) => self.handle_lost(conn, reason),
            Event::Acknowledged { .. } => {}
        }
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_work.is_some_and(|at| at <= now) {
            self.next_work = None;
            for conn in self.endpoints.keys().copied().collect::<Vec<_>>() {
                self.advance(now, conn, out);
            }
        }
        if self.next_client.is_some_and(|at| at <= now) {
            self.next_client =
                Some(now + Duration::from_nanos(self.rng.log_uniform(10_000, self.behaviour.pause_ns_max)));
            let burst = if self.rng.chance(1, 20) { 8 } else { 1 };
            for _ in 0..burst {
                if self.endpoints.len() < self.behaviour.clients_max {
                    let target = self.rng.pick(&self.addresses.targets);
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

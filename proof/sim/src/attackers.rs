//! The host of all attackers in the worlds of relays and sessions. Strangers are peers without a key at link
//! ports. Other attackers have a key: they cause as many answers as they can, or never read replies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_auth::{Key, LinkRandomness};
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{
    Connect, Control, Encryption, Id, Limits, OpenerConfig, OpenerLink, PolicyKind, Reconnect, Role, Scratch,
};
use spillway_transport::{Application, Conn, Event, Time, Transport};
use spillway_wire::session::{Opening, Position, SessionId};

use crate::names::client_key;
use crate::network::{AddressBook, Network};
use crate::rng::Rng;
use crate::socket::HostId;

pub(crate) const ATTACKERS_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 9, 9));

/// Bytes that an attacker reads at a time during its handshake. Later only `Floods` with `reads` reads.
const HANDSHAKE_STEP_BYTES: u32 = 16;
/// An attacker composes no further messages while it has this many unsent bytes.
const UNSENT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of bytes that a peer may hold for a client that does not read: a batch at the transport,
/// one that is being gathered, and answers to the bytes that were granted before.
const UNREAD_BYTES_MAX: usize = 192 * 1024;

/// A frame of an undefined kind, with a payload of one byte.
const UNDEFINED_FRAME: [u8; 8] = [0x7e, 0, 1, 0, 0, 0, 1, 0];

pub(crate) fn is_attacker(address: SocketAddr) -> bool {
    address.ip() == ATTACKERS_IP
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    pub(crate) connections_max: usize,
    pub(crate) strangers_percent: u64,
}

impl Attack {
    /// A peer exceeds its bounds if it keeps the connections of all these strangers.
    pub(crate) const WITHOUT_KEY: Attack = Attack { connections_max: 60, strangers_percent: 100 };
    /// A peer exceeds its bounds if it keeps reading from these flooding clients.
    pub(crate) const FLOODING: Attack = Attack { connections_max: 8, strangers_percent: 0 };

    /// Draws an attack with probability 1/3. `rng` must be used only for attacks, so that a change of the
    /// attacks does not change the other draws of a seed.
    pub(crate) fn draw(rng: &mut Rng) -> Option<Attack> {
        rng.chance(1, 3).then(|| Attack {
            connections_max: rng.range(1, 60) as usize,
            strangers_percent: rng.pick(&[0, 30, 100]),
        })
    }
}

/// Draws the bounds of unauthenticated connections: the shipped ones, or small ones that an attack can reach.
pub(crate) fn draw_bounds(rng: &mut Rng, attack: Option<Attack>, has_planted_fault: bool) -> Bounds {
    let is_small = attack.is_some() && (has_planted_fault || rng.chance(1, 2));
    if is_small { SMALL_BOUNDS } else { Bounds::DEFAULT }
}

const SMALL_BOUNDS: Bounds = Bounds { per_source: 4, total: 8, total_any_age: 16 };

/// Bounds that are never reached, for planted faults.
pub(crate) const NO_BOUNDS: Bounds =
    Bounds { per_source: usize::MAX, total: usize::MAX, total_any_age: usize::MAX };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Silent,
    /// Sends random bytes.
    Garbage,
    /// Sends a part of the first handshake message.
    PartialHandshake,
    /// Uses a key that every peer rejects.
    WrongKey,
    /// Sends control messages without a pause; many cause answers. `reads`: it reads all answers, otherwise
    /// none. `opens`: it sends useless credit on a virtual connection, otherwise connects that are refused.
    Floods {
        reads: bool,
        opens: bool,
    },
    /// Sends requests, and reads no reply.
    NeverReads,
}

impl Behaviour {
    fn draw(attack: Attack, opens_plain: bool, rng: &mut Rng) -> Behaviour {
        if rng.chance(attack.strangers_percent, 100) {
            return rng.pick(&[
                Behaviour::Silent,
                Behaviour::Silent,
                Behaviour::Garbage,
                Behaviour::PartialHandshake,
                Behaviour::WrongKey,
            ]);
        }
        match rng.below(3) {
            0 if opens_plain => Behaviour::NeverReads,
            _ => Behaviour::Floods { reads: rng.chance(1, 2), opens: opens_plain && rng.chance(1, 2) },
        }
    }

    fn is_stranger(self) -> bool {
        !matches!(self, Behaviour::Floods { .. } | Behaviour::NeverReads)
    }
}

pub(crate) struct Attackers {
    attack: Attack,
    /// Attackers with a key may open virtual connections without a session; the world of sessions has none.
    opens_plain: bool,
    targets: Vec<SocketAddr>,
    key: Key,
    rng: Rng,
    addresses: AddressBook,
    peers: BTreeMap<Conn, Peer>,
    /// The behaviour of each open connection, by its local address.
    behaviours: BTreeMap<SocketAddr, Behaviour>,
    next_attempt: Option<Time>,
}

struct Peer {
    behaviour: Behaviour,
    link: Option<Link>,
}

struct Link {
    address: SocketAddr,
    /// `None`: the attacker sends `unsent` and nothing after it.
    protocol: Option<OpenerLink>,
    unsent: Vec<u8>,
    connection: Option<Id>,
}

impl Attackers {
    pub(crate) fn new(
        attack: Attack,
        opens_plain: bool,
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        key: Key,
        rng: Rng,
    ) -> Attackers {
        Attackers {
            attack,
            opens_plain,
            targets,
            key,
            rng,
            addresses,
            peers: BTreeMap::new(),
            behaviours: BTreeMap::new(),
            next_attempt: Some(Time::ZERO),
        }
    }

    /// Stops the attacks: the open connections are aborted in the next turn.
    pub(crate) fn begin_calm_phase(&mut self) {
        (self.attack.connections_max, self.next_attempt) = (0, Some(Time::ZERO));
    }

    /// Connections that are open or opening.
    pub(crate) fn open(&self) -> usize {
        self.peers.len()
    }

    /// Describes a violation if a peer holds more bytes (`held`) for the attacker `client` than the bound.
    /// Replies to the attacker's requests add up to `replies_max` bytes to the bound.
    pub(crate) fn exceeded_bound(
        &self,
        client: SocketAddr,
        held: usize,
        replies_max: usize,
    ) -> Option<String> {
        let behaviour = self.behaviours.get(&client)?;
        let bound = UNREAD_BYTES_MAX + if *behaviour == Behaviour::NeverReads { replies_max } else { 0 };
        (held > bound)
            .then(|| format!("{held} bytes are held for {client} ({behaviour:?}), but the bound is {bound}"))
    }

    /// Describes a violation if a host's program keeps more connections of strangers than `bounds` allow.
    pub(crate) fn exceeded_stranger_bound(
        &self,
        network: &Network,
        host: HostId,
        bounds: Bounds,
    ) -> Option<String> {
        let kept = network.accepted_remotes(host).filter(|remote| self.is_stranger(remote)).count();
        (kept > bounds.total_any_age).then(|| {
            format!(
                "host {host} keeps {kept} connections of strangers, but the bound is {}",
                bounds.total_any_age
            )
        })
    }

    fn is_stranger(&self, address: &SocketAddr) -> bool {
        self.behaviours.get(address).is_some_and(|behaviour| behaviour.is_stranger())
    }

    fn handle_opened(&mut self, now: Time, conn: Conn, address: SocketAddr) {
        let Some(peer) = self.peers.get_mut(&conn) else { return };
        let behaviour = peer.behaviour;
        self.behaviours.insert(address, behaviour);
        let key = match behaviour {
            Behaviour::WrongKey => Key::from_secret([self.rng.below(50) as u8 + 100; 32]),
            _ => self.key.clone(),
        };
        let config = OpenerConfig {
            role: Role::Client,
            key,
            limits: Limits { window_bytes: 1 << 30, ..Limits::default() },
            policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
            encryption: self.rng.pick(&[Encryption::Preferred, Encryption::Preferred, Encryption::Off]),
        };
        let mut protocol =
            OpenerLink::new(&config, now, LinkRandomness::generate(|bytes| self.rng.fill(bytes)));
        let mut link = Link { address, protocol: None, unsent: Vec::new(), connection: None };
        match behaviour {
            Behaviour::Silent => {}
            Behaviour::Garbage => {
                link.unsent.resize(self.rng.log_uniform(1, 300) as usize, 0);
                self.rng.fill(&mut link.unsent);
            }
            Behaviour::PartialHandshake => {
                let hello = protocol.flush(now).map_or_else(Vec::new, |hello| hello.as_slice().to_vec());
                let part = self.rng.below(hello.len().max(1) as u64) as usize;
                link.unsent.extend_from_slice(&hello[..part]);
            }
            Behaviour::WrongKey | Behaviour::Floods { .. } | Behaviour::NeverReads => {
                link.protocol = Some(protocol)
            }
        }
        peer.link = Some(link);
    }

    fn forget(&mut self, conn: Conn) {
        if let Some(Peer { link: Some(link), .. }) = self.peers.remove(&conn) {
            self.behaviours.remove(&link.address);
        }
    }

    /// Handles received bytes. Returns whether the link has failed.
    fn handle_data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) -> bool {
        let Some(Peer { behaviour, link: Some(link) }) = self.peers.get_mut(&conn) else { return true };
        let Some(protocol) = &mut link.protocol else {
            out.grant(conn, bytes.len() as u32); // fits: at most the granted bytes
            return false;
        };
        let mut scratch = Scratch::new();
        let mut input = protocol.unseal(now, bytes, &mut scratch);
        loop {
            match protocol.decompose(now, &mut input) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return true,
            }
        }
        if matches!(behaviour, Behaviour::Floods { reads: true, .. }) {
            out.grant(conn, bytes.len() as u32); // fits: at most the granted bytes
        } else if !protocol.is_established() {
            out.grant(conn, HANDSHAKE_STEP_BYTES);
        }
        false
    }

    fn send_output<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Peer { behaviour, link: Some(link) }) = self.peers.get_mut(&conn) else { return };
        match behaviour {
            Behaviour::Floods { opens, .. } => link.flood(*opens, &mut self.rng),
            Behaviour::NeverReads => link.send_requests(),
            _ => {}
        }
        if let Some(protocol) = &mut link.protocol {
            while link.unsent.len() < UNSENT_BYTES_MAX
                && let Some(batch) = protocol.flush(now)
            {
                link.unsent.extend_from_slice(batch.as_slice());
            }
        }
        let accepted = out.send(conn, &link.unsent);
        link.unsent.drain(..accepted);
    }
}

impl Link {
    fn flood(&mut self, opens: bool, rng: &mut Rng) {
        let Some(protocol) = self.protocol.as_mut().filter(|protocol| protocol.is_established()) else {
            return;
        };
        if opens && self.connection.is_none() {
            self.connection = protocol.open(self.address, None).ok();
        }
        let mut foreign_address = self.address;
        foreign_address.set_port(foreign_address.port() ^ 1);
        while self.unsent.len() + protocol.pending() < UNSENT_BYTES_MAX {
            let offset = rng.below(1 << 40);
            let connect = Connect { client: foreign_address, server: None, credit: offset, session: None };
            // An id that this attacker does not use: opening a used id would end the link.
            let unused_id = Id(2 + rng.below(10) as u32);
            let (id, control) = match rng.below(2_000) {
                // These messages are rare, because most of them end the link.
                0 if rng.chance(1, 50) => rule_breaking_control(connect, self.address, rng),
                0..200 => (Id(1), Control::Credit(offset)),
                200..400 => (unused_id, Control::Credit(offset)),
                400..500 => (unused_id, Control::Finish(offset)),
                500..600 => (Id(1 << 30), Control::Credit(offset)),
                600..1_000 if self.connection.is_none() => {
                    (Id(1), Control::Reconnect(unknown_session(foreign_address, rng)))
                }
                _ if self.connection.is_none() => (Id(1), Control::Connect(connect)),
                _ => (Id(1), Control::Credit(offset)),
            };
            protocol.relay_control(id, control);
        }
        if !protocol.is_encrypted() && rng.chance(1, 50) {
            self.unsent.extend_from_slice(&UNDEFINED_FRAME);
        }
    }

    fn send_requests(&mut self) {
        let Some(protocol) = self.protocol.as_mut().filter(|protocol| protocol.is_established()) else {
            return;
        };
        if self.connection.is_none() {
            self.connection = protocol.open(self.address, None).ok();
        }
        if let Some(id) = self.connection
            && self.unsent.len() < UNSENT_BYTES_MAX
        {
            protocol.compose(id, &[0; 8 * 1024]);
        }
    }
}

/// A control message that violates the protocol. The peer ends the link at once or at the next message.
fn rule_breaking_control(connect: Connect, own: SocketAddr, rng: &mut Rng) -> (Id, Control) {
    match rng.below(5) {
        0 => (Id(u32::MAX), Control::Connect(connect)),
        1 => (Id::LINK, Control::Connect(connect)),
        2 => (Id(1), Control::Accepted),
        3 => (Id::LINK, Control::Drain { deadline_ms: 0 }),
        // The address is the client's own, which helpers accept, but the id is in use.
        _ => (Id(1), Control::Reconnect(unknown_session(own, rng))),
    }
}

/// An opening message, on a new carrier, of a session that does not exist at the server.
fn unknown_session(client: SocketAddr, rng: &mut Rng) -> Reconnect {
    let mut session = [0; 16];
    rng.fill(&mut session);
    let opening = Opening {
        session: SessionId(session),
        key: client_key().id(),
        epoch: 1,
        life: rng.word(),
        position: Position::default(),
        proof: [0; 32],
    };
    Reconnect { client, server: None, opening }
}

impl Application for Attackers {
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T) {
        match event {
            Event::Opened { .. } => {
                let Some(address) = self.addresses.borrow().get(&conn).copied() else { return };
                self.handle_opened(now, conn, address);
                out.grant(conn, HANDSHAKE_STEP_BYTES);
            }
            Event::Data { bytes, .. } => {
                if self.handle_data(now, conn, bytes, out) {
                    self.forget(conn);
                    out.abort(conn);
                    return;
                }
            }
            Event::Finished => {
                self.forget(conn);
                out.abort(conn);
                return;
            }
            Event::Lost(_) => return self.forget(conn),
            Event::Room | Event::Acknowledged { .. } => {}
        }
        self.send_output(now, conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next_attempt.is_none_or(|at| at > now) {
            return;
        }
        let connections_max = self.attack.connections_max;
        self.next_attempt = (connections_max > 0)
            .then(|| now + Duration::from_nanos(self.rng.log_uniform(50_000, 20_000_000)));
        while self.peers.len() > connections_max {
            let Some(&conn) = self.peers.keys().next() else { return };
            self.forget(conn);
            out.abort(conn);
        }
        for _ in 0..self.rng.range(1, 60) {
            let (target, behaviour) =
                (self.rng.pick(&self.targets), Behaviour::draw(self.attack, self.opens_plain, &mut self.rng));
            if self.peers.len() < connections_max
                && let Ok(conn) = out.connect(now, target)
            {
                self.peers.insert(conn, Peer { behaviour, link: None });
            }
        }
        for conn in self.peers.keys().copied().collect::<Vec<_>>() {
            self.send_output(now, conn, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        self.next_attempt
    }
}

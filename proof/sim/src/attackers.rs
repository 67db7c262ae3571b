//! A host of attackers, in the relay's world and in the world of sessions: peers without a key at link ports, and
//! clients with a key that cause as many answers as they can, or that never read.

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

/// Bytes that a flooder reads at a time until its handshake is complete; after that it reads nothing.
const HANDSHAKE_STEP_BYTES: u32 = 16;
/// An attacker with this many unsent bytes makes no more.
const WAITING_BYTES_MAX: usize = 64 * 1024;
/// Bound of the bytes that a peer may hold for one client that does not read: a batch at the transport, a second one
/// being gathered, and answers to what was granted before the peer stopped reading.
const UNREAD_BYTES_MAX: usize = 192 * 1024;

/// A frame of an undefined kind, with a payload of one byte.
const UNDEFINED_FRAME: [u8; 8] = [0x7e, 0, 1, 0, 0, 0, 1, 0];

pub(crate) fn is_attacker(address: SocketAddr) -> bool {
    address.ip() == ATTACKERS_IP
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    /// Connections at a time.
    pub(crate) connections_max: usize,
    /// Attackers without a key, of 100.
    pub(crate) strangers_in_100: u64,
}

impl Attack {
    /// Makes a peer that keeps unauthenticated connections exceed its bounds.
    pub(crate) const WITHOUT_KEY: Attack = Attack { connections_max: 60, strangers_in_100: 100 };
    /// Makes a peer that reads flooders exceed its bounds.
    pub(crate) const FLOODING: Attack = Attack { connections_max: 8, strangers_in_100: 0 };

    /// Draws an attack in one world of three. Takes its own generator, so that the rest of the world does not change.
    pub(crate) fn drawn(rng: &mut Rng) -> Option<Attack> {
        rng.chance(1, 3).then(|| Attack {
            connections_max: rng.range(1, 60) as usize,
            strangers_in_100: rng.pick(&[0, 30, 100]),
        })
    }
}

/// Draws the bounds of unauthenticated connections: the shipped bounds, or, under attack, bounds that a small attack
/// reaches.
pub(crate) fn drawn_bounds(rng: &mut Rng, attack: Option<Attack>, is_planted: bool) -> Bounds {
    let is_small = attack.is_some() && (is_planted || rng.chance(1, 2));
    if is_small { SMALL_BOUNDS } else { Bounds::DEFAULT }
}

const SMALL_BOUNDS: Bounds = Bounds { per_source: 4, total: 8, young: 16 };

/// For canaries.
pub(crate) const NO_BOUNDS: Bounds = Bounds { per_source: usize::MAX, total: usize::MAX, young: usize::MAX };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// Sends nothing.
    Silent,
    /// Sends random bytes.
    Garbage,
    /// Sends a part of the first handshake message.
    PartialHandshake,
    /// Has a key that no peer accepts.
    WrongKey,
    /// Causes answers, and reads all of them or none; or opens a virtual connection and sends useless control
    /// messages on it.
    Floods { reads: bool, opens: bool },
    /// Sends requests, and reads no reply.
    NeverReads,
}

impl Behaviour {
    fn drawn(attack: Attack, is_plain: bool, rng: &mut Rng) -> Behaviour {
        if rng.chance(attack.strangers_in_100, 100) {
            return rng.pick(&[
                Behaviour::Silent,
                Behaviour::Silent,
                Behaviour::Garbage,
                Behaviour::PartialHandshake,
                Behaviour::WrongKey,
            ]);
        }
        match rng.below(3) {
            0 if is_plain => Behaviour::NeverReads,
            _ => Behaviour::Floods { reads: rng.chance(1, 2), opens: is_plain && rng.chance(1, 2) },
        }
    }

    fn is_stranger(self) -> bool {
        !matches!(self, Behaviour::Floods { .. } | Behaviour::NeverReads)
    }
}

pub(crate) struct Attackers {
    attack: Attack,
    /// Attackers with a key may open plain virtual connections: the world has others than sessions.
    is_plain: bool,
    targets: Vec<SocketAddr>,
    key: Key,
    rng: Rng,
    addresses: AddressBook,
    peers: BTreeMap<Conn, Peer>,
    /// By the local address of an open connection.
    behaviours: BTreeMap<SocketAddr, Behaviour>,
    next: Option<Time>,
}

struct Peer {
    behaviour: Behaviour,
    link: Option<Link>,
}

struct Link {
    address: SocketAddr,
    /// `None`: the attacker sends `unsent` and nothing after it.
    end: Option<OpenerLink>,
    unsent: Vec<u8>,
    connection: Option<Id>,
}

impl Attackers {
    pub(crate) fn new(
        attack: Attack,
        is_plain: bool,
        addresses: AddressBook,
        targets: Vec<SocketAddr>,
        key: Key,
        rng: Rng,
    ) -> Attackers {
        Attackers {
            attack,
            is_plain,
            targets,
            key,
            rng,
            addresses,
            peers: BTreeMap::new(),
            behaviours: BTreeMap::new(),
            next: Some(Time::ZERO),
        }
    }

    /// Stops new attackers; the others leave at their next turn.
    pub(crate) fn calm_down(&mut self) {
        (self.attack.connections_max, self.next) = (0, Some(Time::ZERO));
    }

    /// Connections that are open or opening.
    pub(crate) fn open(&self) -> usize {
        self.peers.len()
    }

    /// Describes a violation if `held` bytes for `client`, an attacker, exceed the bound. Up to `replies_max` of them
    /// may be replies to its requests.
    pub(crate) fn beyond_bounds(
        &self,
        client: SocketAddr,
        held: usize,
        replies_max: usize,
    ) -> Option<String> {
        let behaviour = self.behaviours.get(&client)?;
        let bound = UNREAD_BYTES_MAX + if *behaviour == Behaviour::NeverReads { replies_max } else { 0 };
        (held > bound)
            .then(|| format!("{held} bytes are held for {client} ({behaviour:?}), the bound is {bound}"))
    }

    /// Describes a violation if a host's program keeps more unauthenticated connections than `bounds` allow.
    pub(crate) fn beyond_strangers(&self, network: &Network, host: HostId, bounds: Bounds) -> Option<String> {
        let known = network.remotes(host).filter(|remote| self.is_stranger(remote)).count();
        (known > bounds.young)
            .then(|| format!("host {host} keeps {known} strangers, its bound is {}", bounds.young))
    }

    fn is_stranger(&self, address: &SocketAddr) -> bool {
        self.behaviours.get(address).is_some_and(|behaviour| behaviour.is_stranger())
    }

    fn opened(&mut self, now: Time, conn: Conn, address: SocketAddr) {
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
            policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
            encryption: self.rng.pick(&[Encryption::Preferred, Encryption::Preferred, Encryption::Off]),
        };
        let mut end = OpenerLink::new(&config, now, LinkRandomness::filled(|bytes| self.rng.fill(bytes)));
        let mut link = Link { address, end: None, unsent: Vec::new(), connection: None };
        match behaviour {
            Behaviour::Silent => {}
            Behaviour::Garbage => {
                link.unsent.resize(self.rng.scale(1, 300) as usize, 0);
                self.rng.fill(&mut link.unsent);
            }
            Behaviour::PartialHandshake => {
                let hello = end.flush(now).map_or_else(Vec::new, |hello| hello.as_slice().to_vec());
                let part = self.rng.below(hello.len().max(1) as u64) as usize;
                link.unsent.extend_from_slice(&hello[..part]);
            }
            Behaviour::WrongKey | Behaviour::Floods { .. } | Behaviour::NeverReads => link.end = Some(end),
        }
        peer.link = Some(link);
    }

    fn forget(&mut self, conn: Conn) {
        if let Some(Peer { link: Some(link), .. }) = self.peers.remove(&conn) {
            self.behaviours.remove(&link.address);
        }
    }

    /// Returns whether the link has failed.
    fn data<T: Transport>(&mut self, now: Time, conn: Conn, bytes: &[u8], out: &mut T) -> bool {
        let Some(Peer { behaviour, link: Some(link) }) = self.peers.get_mut(&conn) else { return true };
        let Some(end) = &mut link.end else {
            out.grant(conn, bytes.len() as u32); // at most what was granted
            return false;
        };
        let mut scratch = Scratch::new();
        let mut input = end.unseal(now, bytes, &mut scratch);
        loop {
            match end.decompose(now, &mut input) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return true,
            }
        }
        if matches!(behaviour, Behaviour::Floods { reads: true, .. }) {
            out.grant(conn, bytes.len() as u32); // at most what was granted
        } else if !end.is_established() {
            out.grant(conn, HANDSHAKE_STEP_BYTES);
        }
        false
    }

    fn pump<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Peer { behaviour, link: Some(link) }) = self.peers.get_mut(&conn) else { return };
        match behaviour {
            Behaviour::Floods { opens, .. } => link.flood(*opens, &mut self.rng),
            Behaviour::NeverReads => link.send_requests(),
            _ => {}
        }
        if let Some(end) = &mut link.end {
            while link.unsent.len() < WAITING_BYTES_MAX
                && let Some(batch) = end.flush(now)
            {
                link.unsent.extend_from_slice(batch.as_slice());
            }
        }
        let taken = out.send(conn, &link.unsent);
        link.unsent.drain(..taken);
    }
}

impl Link {
    fn flood(&mut self, opens: bool, rng: &mut Rng) {
        let Some(end) = self.end.as_mut().filter(|end| end.is_established()) else { return };
        if opens && self.connection.is_none() {
            self.connection = end.open(self.address, None).ok();
        }
        let mut foreign = self.address;
        foreign.set_port(foreign.port() ^ 1);
        while self.unsent.len() + end.pending() < WAITING_BYTES_MAX {
            let offset = rng.below(1 << 40);
            let connect = Connect { client: foreign, server: None, credit: offset, session: None };
            // To open an id that is in use would end the link.
            let other = Id(2 + rng.below(10) as u32);
            let (id, control) = match rng.below(2_000) {
                // Most of these break a rule of the protocol, and end the link.
                0 if rng.chance(1, 50) => rule_breaking_control(connect, self.address, rng),
                0..200 => (Id(1), Control::Credit(offset)),
                200..400 => (other, Control::Credit(offset)),
                400..500 => (other, Control::Finish(offset)),
                500..600 => (Id(1 << 30), Control::Credit(offset)),
                600..1_000 if self.connection.is_none() => {
                    (Id(1), Control::Reconnect(unknown_session(foreign, rng)))
                }
                _ if self.connection.is_none() => (Id(1), Control::Connect(connect)),
                _ => (Id(1), Control::Credit(offset)),
            };
            end.relay_control(id, control);
        }
        if !end.is_encrypted() && rng.chance(1, 50) {
            self.unsent.extend_from_slice(&UNDEFINED_FRAME);
        }
    }

    fn send_requests(&mut self) {
        let Some(end) = self.end.as_mut().filter(|end| end.is_established()) else { return };
        if self.connection.is_none() {
            self.connection = end.open(self.address, None).ok();
        }
        if let Some(id) = self.connection
            && self.unsent.len() < WAITING_BYTES_MAX
        {
            end.compose(id, &[0; 8 * 1024]);
        }
    }
}

/// A control message that ends its link, at once or with the next message.
fn rule_breaking_control(connect: Connect, own: SocketAddr, rng: &mut Rng) -> (Id, Control) {
    match rng.below(5) {
        0 => (Id(u32::MAX), Control::Connect(connect)),
        1 => (Id::LINK, Control::Connect(connect)),
        2 => (Id(1), Control::Accepted),
        3 => (Id::LINK, Control::Drain { deadline_ms: 0 }),
        // With the client's own address a helper accepts the message, but the id is in use.
        _ => (Id(1), Control::Reconnect(unknown_session(own, rng))),
    }
}

/// The opening message of a session that the server does not know, on a new carrier.
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
                self.opened(now, conn, address);
                out.grant(conn, HANDSHAKE_STEP_BYTES);
            }
            Event::Data { bytes, .. } => {
                if self.data(now, conn, bytes, out) {
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
        self.pump(now, conn, out);
    }

    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T) {
        if self.next.is_none_or(|at| at > now) {
            return;
        }
        let most = self.attack.connections_max;
        self.next = (most > 0).then(|| now + Duration::from_nanos(self.rng.scale(50_000, 20_000_000)));
        while self.peers.len() > most {
            let Some(&conn) = self.peers.keys().next() else { return };
            self.forget(conn);
            out.abort(conn);
        }
        for _ in 0..self.rng.range(1, 60) {
            let (target, behaviour) =
                (self.rng.pick(&self.targets), Behaviour::drawn(self.attack, self.is_plain, &mut self.rng));
            if self.peers.len() < most
                && let Ok(conn) = out.connect(now, target)
            {
                self.peers.insert(conn, Peer { behaviour, link: None });
            }
        }
        for conn in self.peers.keys().copied().collect::<Vec<_>>() {
            self.pump(now, conn, out);
        }
    }

    fn end_of_turn<T: Transport>(&mut self, _: Time, _: &mut T) {}

    fn poll_timeout(&self) -> Option<Time> {
        self.next
    }
}

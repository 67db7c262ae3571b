//! An opener and a server connected in memory, in virtual time.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::{Key, KeyRing, LinkRandomness};
use spillway_batch::{
    CloseReason, Control, Encryption, ForbiddenAddress, Id, KeyId, Kind, Limits, LinkError, OpenerConfig,
    OpenerEvent, OpenerLink, Opening, PolicyKind, Reconnect, RefuseReason, Role, Scratch, ServerConfig,
    ServerEvent, ServerLink,
};
use spillway_transport::Time;
use spillway_wire::Connect;
use spillway_wire::preamble::PROOF_BYTES;
use spillway_wire::session::{Position, SessionId};

pub const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));
pub const HELPER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 40_000);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5)), 11_411);

pub fn helper_key() -> Key {
    Key::from_secret([1; 32])
}

pub fn fresh(first: u8) -> LinkRandomness {
    LinkRandomness::from_random([first; LinkRandomness::BYTES])
}

pub fn server_config(limits: Limits) -> Arc<ServerConfig> {
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    ring.accept(Role::Client, Key::from_secret([2; 32]));
    Arc::new(ServerConfig { ring, limits, ..ServerConfig::default() })
}

pub fn connect_control(client: SocketAddr) -> Control {
    Control::Connect(Connect { client, server: None, credit: 1000, session: None })
}

/// Opening message of a session. A link does not check its proof.
pub fn reconnect_control(client: SocketAddr) -> Control {
    let opening = Opening {
        session: SessionId([1; 16]),
        key: KeyId([2; 8]),
        epoch: 1,
        life: 1,
        position: Position::default(),
        proof: [3; PROOF_BYTES],
    };
    Control::Reconnect(Reconnect { client, server: None, opening })
}

/// Events of either end, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Seen {
    Connect(Id, SocketAddr),
    Forbidden(SocketAddr, ForbiddenAddress),
    Accepted(Id),
    Refused(Id, RefuseReason),
    Data(Id, Vec<u8>),
    Acknowledged(Id, u64, bool),
    Finished(Id),
    Closed(Id, CloseReason),
    Drain(u32),
    Session(Id, Kind, u32),
    Control(Id, Control),
}

pub struct Pair {
    pub now: Time,
    pub opener: OpenerLink,
    pub server: ServerLink,
    to_server: Vec<u8>,
    to_opener: Vec<u8>,
    server_seen: Vec<Seen>,
    opener_seen: Vec<Seen>,
    /// Connections whose close event the server, or the opener, answers with its own close.
    pub server_closes: HashSet<Id>,
    pub opener_closes: HashSet<Id>,
    /// Offset of a byte of the stream, of which one bit will be flipped.
    pub alter_to_server: Option<usize>,
    pub alter_to_opener: Option<usize>,
}

impl Pair {
    pub fn new(role: Role, key: Key, config: Arc<ServerConfig>) -> Pair {
        Pair::build(role, key, Limits::default(), config)
    }

    fn build(role: Role, key: Key, limits: Limits, config: Arc<ServerConfig>) -> Pair {
        let now = Time(1_000_000_000);
        let policy = PolicyKind::Fixed { interval: Duration::from_micros(200), size_bytes: 32_768 };
        let encryption = Encryption::default();
        let opener = OpenerLink::new(&OpenerConfig { role, key, limits, policy, encryption }, now, fresh(7));
        Pair {
            now,
            opener,
            server: ServerLink::new(config, now, HELPER, SERVER, fresh(8)),
            to_server: Vec::new(),
            to_opener: Vec::new(),
            server_seen: Vec::new(),
            opener_seen: Vec::new(),
            server_closes: HashSet::new(),
            opener_closes: HashSet::new(),
            alter_to_server: None,
            alter_to_opener: None,
        }
    }

    pub fn established() -> Pair {
        Pair::with_limits(Limits::default(), Limits::default())
    }

    /// A link that is not encrypted, for tests that send their own frames.
    pub fn unencrypted(limits: Limits) -> Pair {
        let config = ServerConfig { encryption: Encryption::Off, ..(*server_config(limits)).clone() };
        let mut pair = Pair::new(Role::Helper, helper_key(), Arc::new(config));
        pair.exchange();
        assert!(
            pair.opener.is_established() && !pair.opener.is_encrypted(),
            "the link should be established without encryption"
        );
        pair
    }

    pub fn with_limits(opener: Limits, server: Limits) -> Pair {
        let mut pair = Pair::build(Role::Helper, helper_key(), opener, server_config(server));
        pair.exchange();
        assert!(pair.opener.is_established(), "the link should be established");
        pair
    }

    /// Opens a connection that the server accepts, and discards the resulting events.
    pub fn open(&mut self, port: u16) -> Id {
        let id = self.opener.open(SocketAddr::new(CLIENT, port), None).unwrap();
        self.exchange();
        self.server.accept(id);
        self.exchange();
        self.take_server_events();
        self.take_opener_events();
        id
    }

    pub fn take_server_events(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.server_seen)
    }

    pub fn take_opener_events(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.opener_seen)
    }

    /// Delivers bytes in both directions until none are left.
    pub fn exchange(&mut self) {
        self.try_exchange().expect("the link should not fail");
    }

    pub fn try_exchange(&mut self) -> Result<(), LinkError> {
        for _ in 0..10_000 {
            self.gather();
            if self.to_server.is_empty() && self.to_opener.is_empty() {
                return Ok(());
            }
            self.deliver_to_server(usize::MAX)?;
            self.gather();
            self.deliver_to_opener()?;
        }
        panic!("the exchange should end within 10,000 rounds");
    }

    /// Delivers the bytes that wait now, in pieces of at most `piece_bytes` bytes.
    pub fn exchange_in_pieces(&mut self, piece_bytes: usize) {
        self.gather();
        while !self.to_server.is_empty() {
            self.deliver_to_server(piece_bytes).expect("the link should not fail");
        }
        while !self.to_opener.is_empty() {
            self.deliver_some_to_opener(piece_bytes).expect("the link should not fail");
        }
    }

    fn gather(&mut self) {
        while let Some(batch) = self.opener.flush(self.now) {
            self.to_server.extend_from_slice(batch.as_slice());
            self.opener.recycle(batch);
        }
        while let Some(batch) = self.server.flush(self.now) {
            self.to_opener.extend_from_slice(batch.as_slice());
            self.server.recycle(batch);
        }
    }

    fn deliver_to_server(&mut self, piece_bytes: usize) -> Result<(), LinkError> {
        alter(&mut self.alter_to_server, &mut self.to_server);
        let rest = self.to_server.split_off(piece_bytes.min(self.to_server.len()));
        let bytes = std::mem::replace(&mut self.to_server, rest);
        let mut scratch = Scratch::new();
        let mut input = self.server.unseal(self.now, &bytes, &mut scratch);
        while let Some(event) = self.server.decompose(self.now, &mut input)? {
            let seen = match event {
                ServerEvent::Established { .. } => continue,
                ServerEvent::Connect { id, client, .. } => Seen::Connect(id, client),
                ServerEvent::Forbidden { client, why } => Seen::Forbidden(client, why),
                ServerEvent::Data { id, bytes } => Seen::Data(id, bytes.to_vec()),
                ServerEvent::Finished { id } => Seen::Finished(id),
                ServerEvent::Closed { id, reason } => Seen::Closed(id, reason),
                ServerEvent::Drain { deadline_ms } => Seen::Drain(deadline_ms),
                ServerEvent::Session { id, kind, opening, .. } => Seen::Session(id, kind, opening.epoch),
                ServerEvent::Carried { id, bytes } => Seen::Data(id, bytes.to_vec()),
                ServerEvent::CarriedControl { id, control } => Seen::Control(id, control),
            };
            if let Seen::Closed(id, _) = seen
                && self.server_closes.contains(&id)
            {
                self.server.close(id, CloseReason::Normal);
            }
            push_or_join(&mut self.server_seen, seen);
        }
        assert!(input.is_empty(), "the server should read its whole input");
        Ok(())
    }

    pub fn deliver_to_opener(&mut self) -> Result<(), LinkError> {
        self.gather();
        self.deliver_some_to_opener(usize::MAX)
    }

    fn deliver_some_to_opener(&mut self, piece_bytes: usize) -> Result<(), LinkError> {
        alter(&mut self.alter_to_opener, &mut self.to_opener);
        let rest = self.to_opener.split_off(piece_bytes.min(self.to_opener.len()));
        let bytes = std::mem::replace(&mut self.to_opener, rest);
        let mut scratch = Scratch::new();
        let mut input = self.opener.unseal(self.now, &bytes, &mut scratch);
        while let Some(event) = self.opener.decompose(self.now, &mut input)? {
            let seen = match event {
                OpenerEvent::Established { .. } => continue,
                OpenerEvent::Accepted { id } => Seen::Accepted(id),
                OpenerEvent::Refused { id, reason } => Seen::Refused(id, reason),
                OpenerEvent::Data { id, bytes } => Seen::Data(id, bytes.to_vec()),
                OpenerEvent::Acknowledged { id, through, is_finished } => {
                    Seen::Acknowledged(id, through, is_finished)
                }
                OpenerEvent::Finished { id } => Seen::Finished(id),
                OpenerEvent::Closed { id, reason } => Seen::Closed(id, reason),
                OpenerEvent::Drain { deadline_ms } => Seen::Drain(deadline_ms),
                OpenerEvent::RelayedData { .. } | OpenerEvent::RelayedControl { .. } => {
                    panic!("the pair opens no relayed connections")
                }
            };
            if let Seen::Closed(id, _) = seen
                && self.opener_closes.contains(&id)
            {
                self.opener.close(id, CloseReason::Normal);
            }
            push_or_join(&mut self.opener_seen, seen);
        }
        assert!(input.is_empty(), "the opener should read its whole input");
        Ok(())
    }
}

/// Adds an event. Data is joined to the last event if that is data of the same connection.
fn push_or_join(seen: &mut Vec<Seen>, event: Seen) {
    match (seen.last_mut(), event) {
        (Some(Seen::Data(last, joined)), Seen::Data(id, bytes)) if *last == id => joined.extend(bytes),
        (_, event) => seen.push(event),
    }
}

fn alter(altered_offset: &mut Option<usize>, stream: &mut [u8]) {
    match altered_offset.take() {
        Some(offset) if offset < stream.len() => stream[offset] ^= 4,
        Some(offset) => *altered_offset = Some(offset - stream.len()),
        None => {}
    }
}

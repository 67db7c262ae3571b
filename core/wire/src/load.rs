//! The datagrams with which a client queries the load of a helper (PostMan §5.2): one query, one reply.
//!
//! ```text
//! client                                                                       helper
//!   query: magic, version, kind, helpers asked, key id, nonce, server, proof       ->
//!   <-  reply: magic, version, kind, flags, nonce, figures, proof
//! ```
//!
//! Each proof is a keyed hash over all bytes before it; `spillway-auth` computes both. Both datagrams have a fixed
//! length. The reply is shorter than the query, so that helpers cannot be used for amplification attacks.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::preamble::{KeyId, NONCE_BYTES, PROOF_BYTES};

/// The first bytes of both datagrams.
pub const LOAD_MAGIC: [u8; 8] = *b"\xf5SPWLOAD";

/// The version of both datagrams. A reply has the version of its query.
pub const LOAD_VERSION: u8 = 1;

/// Length of a query ([`LoadQuery`]) in bytes.
pub const LOAD_QUERY_BYTES: usize = 88;
/// Length of a reply ([`LoadReport`]) in bytes.
pub const LOAD_REPLY_BYTES: usize = 80;

// A reply longer than its query would permit amplification.
const _: () = assert!(LOAD_REPLY_BYTES <= LOAD_QUERY_BYTES);

/// The value of a share that means that the resource is used up.
pub const SHARE_MAX: u16 = 1_000;
/// The value of [`LoadReport::load`] and [`LoadReport::tentative`] that means the full capacity.
pub const LOAD_MAX: u32 = 1_000_000;

// The kinds: a query and its reply.
const KIND_QUERY: u8 = 1;
const KIND_REPLY: u8 = 2;
const KIND_OFFSET: usize = 9;

/// A client's load query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadQuery {
    /// Number of helpers that the client queries at the same time, this one included; at least 1. The client then
    /// chooses one of them.
    pub helpers_asked: u8,
    /// The client key of the proof.
    pub key: KeyId,
    /// Fresh random bytes, different for each helper.
    pub nonce: [u8; NONCE_BYTES],
    /// The requested server, for a link port that serves several.
    pub server: Option<SocketAddr>,
}

/// A helper's reply to a load query: the load of the thread that would serve the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// The thread accepts no clients at present: a limit is reached, or the thread sheds load or has just done so.
    pub full: bool,
    /// The service accepts no clients: the helper drains, or an override has switched relief off.
    pub draining: bool,
    /// The helper has no link to the server, or does not serve the requested server.
    pub down: bool,
    /// The nonce of the query.
    pub nonce: [u8; NONCE_BYTES],
    /// Share of the thread's CPU capacity in use, in 1/1000.
    pub cpu: u16,
    /// Share of the network capacity in use, in 1/1000; 0 if the capacity is unknown.
    pub network: u16,
    /// Clients as a share of their maximum number, in 1/1000.
    pub connections: u16,
    /// Share of the memory for clients in use, in 1/1000.
    pub memory: u16,
    /// Load in millionths: the largest of the four shares, at a finer resolution. Like the shares, it
    /// includes an estimate for clients that have just connected.
    pub load: u32,
    /// Expected load of clients that have sent a query and have not connected yet, in millionths. Each counts with
    /// probability 1 / [`helpers_asked`](LoadQuery::helpers_asked).
    pub tentative: u32,
    /// Random number from 0 to 65,535, drawn for each query such that consecutive numbers are spread evenly.
    /// The client uses it to randomize how much `tentative` counts, so that clients that send queries at the
    /// same time do not all choose the same helper.
    pub random: u16,
}

impl LoadReport {
    /// Whether a client may choose this helper.
    pub fn accepts_clients(&self) -> bool {
        !(self.full || self.draining || self.down)
    }
}

/// Why a load datagram is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The length is wrong.
    Length(usize),
    /// The datagram does not start with [`LOAD_MAGIC`].
    Magic,
    /// The version is unknown.
    Version(u8),
    /// The datagram is a reply where a query is expected, or the reverse, or of an unknown kind.
    Kind(u8),
    /// [`LoadQuery::helpers_asked`] is 0.
    NoHelperAsked,
    /// The address family is unknown.
    AddressFamily(u8),
    /// Unknown flags are set.
    Flags(u8),
    /// A share or a load is above its maximum.
    Figure(u32),
    /// Reserved bytes are not zero.
    Reserved,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Length(bytes) => {
                write!(f, "a load datagram has {LOAD_QUERY_BYTES} or {LOAD_REPLY_BYTES} bytes, not {bytes}")
            }
            LoadError::Magic => f.write_str("this is not a Spillway datagram (wrong port, or not Spillway)"),
            LoadError::Version(version) => write!(f, "unknown version {version} of load datagrams"),
            LoadError::Kind(kind) => write!(f, "unexpected kind {kind} of load datagram"),
            LoadError::NoHelperAsked => {
                f.write_str("the query states that 0 helpers are queried; the minimum is 1")
            }
            LoadError::AddressFamily(family) => write!(f, "unknown address family {family}"),
            LoadError::Flags(flags) => write!(f, "unknown flags {flags:#04x}"),
            LoadError::Figure(figure) => write!(f, "a share or load of {figure} is above its maximum"),
            LoadError::Reserved => f.write_str("reserved bytes are not zero"),
        }
    }
}

impl core::error::Error for LoadError {}

impl LoadQuery {
    /// Emits the query with this proof.
    pub fn emit(&self, proof: &[u8; PROOF_BYTES]) -> [u8; LOAD_QUERY_BYTES] {
        let mut out = [0; LOAD_QUERY_BYTES];
        emit_head(&mut out, KIND_QUERY);
        out[10] = self.helpers_asked;
        // 11: reserved
        out[12..20].copy_from_slice(&self.key.0);
        out[20..36].copy_from_slice(&self.nonce);
        // 36..56: family, a reserved byte, port, address
        if let Some(server) = self.server {
            out[38..40].copy_from_slice(&server.port().to_be_bytes());
            match server.ip() {
                IpAddr::V4(ip) => {
                    out[36] = 4;
                    out[40..44].copy_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out[36] = 6;
                    out[40..56].copy_from_slice(&ip.octets());
                }
            }
        }
        out[LOAD_QUERY_BYTES - PROOF_BYTES..].copy_from_slice(proof);
        out
    }

    /// The bytes that the proof covers. Verifies nothing.
    pub fn bytes_under_proof(bytes: &[u8; LOAD_QUERY_BYTES]) -> &[u8] {
        &bytes[..LOAD_QUERY_BYTES - PROOF_BYTES]
    }

    /// Parses a query and its proof, which the caller must verify.
    pub fn parse(bytes: &[u8; LOAD_QUERY_BYTES]) -> Result<(LoadQuery, [u8; PROOF_BYTES]), LoadError> {
        check_head(bytes, KIND_QUERY)?;
        if bytes[10] == 0 {
            return Err(LoadError::NoHelperAsked);
        }
        let (family, port) = (bytes[36], u16::from_be_bytes(array(bytes, 38)));
        let used = match family {
            0 => 0,
            4 => 4,
            6 => 16,
            other => return Err(LoadError::AddressFamily(other)),
        };
        let has_port_without_address = family == 0 && port != 0;
        if bytes[11] != 0
            || bytes[37] != 0
            || has_port_without_address
            || bytes[40 + used..56].iter().any(|byte| *byte != 0)
        {
            return Err(LoadError::Reserved);
        }
        let ip: Option<IpAddr> = match family {
            4 => Some(Ipv4Addr::from(array::<4>(bytes, 40)).into()),
            6 => Some(Ipv6Addr::from(array::<16>(bytes, 40)).into()),
            _ => None,
        };
        let query = LoadQuery {
            helpers_asked: bytes[10],
            key: KeyId(array(bytes, 12)),
            nonce: array(bytes, 20),
            server: ip.map(|ip| SocketAddr::new(ip, port)),
        };
        Ok((query, array(bytes, LOAD_QUERY_BYTES - PROOF_BYTES)))
    }
}

impl LoadReport {
    /// Emits the reply with this proof.
    pub fn emit(&self, proof: &[u8; PROOF_BYTES]) -> [u8; LOAD_REPLY_BYTES] {
        let mut out = [0; LOAD_REPLY_BYTES];
        emit_head(&mut out, KIND_REPLY);
        out[10] = u8::from(self.full) | u8::from(self.draining) << 1 | u8::from(self.down) << 2;
        // 11: reserved
        out[12..28].copy_from_slice(&self.nonce);
        for (index, share) in self.shares().into_iter().enumerate() {
            out[28 + 2 * index..30 + 2 * index].copy_from_slice(&share.to_be_bytes());
        }
        out[36..40].copy_from_slice(&self.load.to_be_bytes());
        out[40..44].copy_from_slice(&self.tentative.to_be_bytes());
        out[44..46].copy_from_slice(&self.random.to_be_bytes());
        // 46, 47: reserved
        out[LOAD_REPLY_BYTES - PROOF_BYTES..].copy_from_slice(proof);
        out
    }

    /// The bytes that the proof covers. Verifies nothing.
    pub fn bytes_under_proof(bytes: &[u8; LOAD_REPLY_BYTES]) -> &[u8] {
        &bytes[..LOAD_REPLY_BYTES - PROOF_BYTES]
    }

    /// Parses a reply and its proof, which the caller must verify.
    pub fn parse(bytes: &[u8; LOAD_REPLY_BYTES]) -> Result<(LoadReport, [u8; PROOF_BYTES]), LoadError> {
        check_head(bytes, KIND_REPLY)?;
        let flags = bytes[10];
        if flags & !7 != 0 {
            return Err(LoadError::Flags(flags));
        }
        if bytes[11] != 0 || bytes[46..48] != [0, 0] {
            return Err(LoadError::Reserved);
        }
        let share = |offset| u16::from_be_bytes(array(bytes, offset));
        let millionths = |offset| u32::from_be_bytes(array(bytes, offset));
        let load = LoadReport {
            full: flags & 1 != 0,
            draining: flags & 2 != 0,
            down: flags & 4 != 0,
            nonce: array(bytes, 12),
            cpu: share(28),
            network: share(30),
            connections: share(32),
            memory: share(34),
            load: millionths(36),
            tentative: millionths(40),
            random: share(44), // not a share: may exceed `SHARE_MAX`
        };
        if let Some(share) = load.shares().into_iter().find(|share| *share > SHARE_MAX) {
            return Err(LoadError::Figure(share.into()));
        }
        if let Some(figure) = [load.load, load.tentative].into_iter().find(|figure| *figure > LOAD_MAX) {
            return Err(LoadError::Figure(figure));
        }
        Ok((load, array(bytes, LOAD_REPLY_BYTES - PROOF_BYTES)))
    }

    fn shares(&self) -> [u16; 4] {
        [self.cpu, self.network, self.connections, self.memory]
    }
}

/// Checks that a datagram has exactly the length that a parser expects.
pub fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], LoadError> {
    bytes.try_into().map_err(|_| LoadError::Length(bytes.len()))
}

fn emit_head(out: &mut [u8], kind: u8) {
    out[..8].copy_from_slice(&LOAD_MAGIC);
    out[8] = LOAD_VERSION;
    out[KIND_OFFSET] = kind;
}

fn check_head(bytes: &[u8], kind: u8) -> Result<(), LoadError> {
    if bytes[..8] != LOAD_MAGIC {
        return Err(LoadError::Magic);
    }
    if bytes[8] != LOAD_VERSION {
        return Err(LoadError::Version(bytes[8]));
    }
    if bytes[KIND_OFFSET] != kind { Err(LoadError::Kind(bytes[KIND_OFFSET])) } else { Ok(()) }
}

/// `N` bytes at a constant offset inside a fixed-length datagram.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;

    use super::*;

    fn query() -> LoadQuery {
        let server = Some("192.0.2.1:11211".parse().unwrap());
        LoadQuery { helpers_asked: 2, key: KeyId([7; 8]), nonce: [9; 16], server }
    }

    #[test]
    fn invalid_datagrams_are_rejected_with_their_cause() {
        let valid = query().emit(&[1; 32]);
        let error_with = |offset: usize, byte: u8| {
            let mut bytes = valid;
            bytes[offset] = byte;
            LoadQuery::parse(&bytes).unwrap_err()
        };
        assert_eq!(error_with(0, b'G'), LoadError::Magic);
        assert_eq!(error_with(8, 2), LoadError::Version(2));
        assert_eq!(error_with(9, 2), LoadError::Kind(2), "a query should not have a reply's kind");
        assert_eq!(error_with(10, 0), LoadError::NoHelperAsked);
        assert_eq!(error_with(36, 5), LoadError::AddressFamily(5));
        for reserved in [11, 37, 44, 55] {
            assert_eq!(
                error_with(reserved, 1),
                LoadError::Reserved,
                "reserved byte {reserved} should be zero"
            );
        }
        let mut bytes = LoadReport::default().emit(&[0; 32]);
        bytes[10] = 8;
        assert_eq!(LoadReport::parse(&bytes), Err(LoadError::Flags(8)));
        let over = LoadReport { cpu: 1001, ..LoadReport::default() }.emit(&[0; 32]);
        assert_eq!(LoadReport::parse(&over), Err(LoadError::Figure(1001)));
        let over = LoadReport { tentative: LOAD_MAX + 1, ..LoadReport::default() }.emit(&[0; 32]);
        assert_eq!(LoadReport::parse(&over), Err(LoadError::Figure(LOAD_MAX + 1)));
        assert_eq!(exactly::<LOAD_QUERY_BYTES>(&[0; 87]), Err(LoadError::Length(87)));
    }

    proptest! {
        /// A datagram that parses is emitted unchanged, so no byte of it is ignored.
        #[test]
        fn an_altered_datagram_is_rejected_or_emitted_unchanged(
            proof in proptest::array::uniform32(any::<u8>()), offset in 8_usize..60, byte in any::<u8>(),
        ) {
            let mut datagram = query().emit(&proof);
            datagram[offset] = byte;
            if let Ok((query, proof)) = LoadQuery::parse(&datagram) {
                prop_assert_eq!(query.emit(&proof), datagram);
            }
            let load = LoadReport { nonce: [3; 16], cpu: 999, load: 123_456, ..LoadReport::default() };
            let mut reply = load.emit(&proof);
            reply[offset] = byte;
            if let Ok((load, proof)) = LoadReport::parse(&reply) {
                prop_assert_eq!(load.emit(&proof), reply);
            }
        }

        #[test]
        fn every_query_survives_a_round_trip(
            asked in 1_u8..,
            key in any::<[u8; 8]>(),
            nonce in any::<[u8; 16]>(),
            server in proptest::option::of((any::<IpAddr>(), any::<u16>())),
            proof in any::<[u8; 32]>(),
        ) {
            let server = server.map(|(ip, port)| SocketAddr::new(ip, port));
            let query = LoadQuery { helpers_asked: asked, key: KeyId(key), nonce, server };
            prop_assert_eq!(LoadQuery::parse(&query.emit(&proof)), Ok((query, proof)));
        }
    }
}

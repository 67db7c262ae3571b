//! Asking a helper for its load (PostMan §5.2): one datagram there, one back.
//!
//! ```text
//! client                                                    helper
//!   ask: magic, version, key's name, nonce, server, proof     ->
//!   <-  load: magic, version, nonce, flags, figures, proof
//! ```
//!
//! Both proofs are keyed hashes over everything before them; `spillway-auth` computes them. The answer is shorter than the
//! question, so that nobody can use helpers to multiply what he sends. Both have a fixed length.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::preamble::{KeyId, NONCE_BYTES, PROOF_BYTES};

/// The first bytes of every such datagram.
pub const LOAD_MAGIC: [u8; 8] = *b"\xf5SPWLOAD";

/// The version of both datagrams. An answer has the version of its question.
pub const LOAD_VERSION: u8 = 1;

/// Bytes of [`Ask`].
pub const ASK_BYTES: usize = 88;
/// Bytes of [`Load`].
pub const LOAD_BYTES: usize = 80;

// No amplification.
const _: () = assert!(LOAD_BYTES <= ASK_BYTES);

/// What a full resource is in [`Load`]'s shares.
pub const SHARE_MAX: u16 = 1_000;
/// What a fully loaded helper is in [`Load::load`] and [`Load::tentative`].
pub const WEIGHT_MAX: u32 = 1_000_000;

const ASK: u8 = 1;
const LOAD: u8 = 2;
const KIND: usize = 9;

/// A client's question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How many helpers the client asks at the same time, this one included; at least 1. It will go to one of them.
    pub asked: u8,
    /// The client key that the question is proven with.
    pub key: KeyId,
    /// Fresh random bytes, others for each helper.
    pub nonce: [u8; NONCE_BYTES],
    /// Which server is wanted, where a helper's link port serves several.
    pub server: Option<SocketAddr>,
}

/// A helper's answer: of the thread that would serve the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// It takes no more clients now: too much to do, or it has just sent some away.
    pub full: bool,
    /// It goes away.
    pub draining: bool,
    /// It has no link to the server, or does not serve the one wanted.
    pub down: bool,
    /// That of the question.
    pub nonce: [u8; NONCE_BYTES],
    /// Of its core, in 1/1000.
    pub cpu: u16,
    /// Of the network that it may use, in 1/1000; 0 where no bound is known.
    pub network: u16,
    /// Of the clients that it may have, in 1/1000.
    pub connections: u16,
    /// Of the memory that it may use for them, in 1/1000.
    pub memory: u16,
    /// Its load for sure, in millionths: the scarcest of its resources, with the clients that have just come.
    pub load: u32,
    /// What clients that have asked and not come are expected to add, in millionths. Twice as much if all of them come,
    /// nothing if none does.
    pub tentative: u32,
    /// Drawn for this question, such that those of questions in a row are spread evenly. Clients decide by it among
    /// helpers of which none is less loaded for sure.
    pub lot: u16,
}

impl Load {
    /// Whether a client may go there.
    pub fn takes_clients(&self) -> bool {
        !(self.full || self.draining || self.down)
    }
}

/// What is wrong with such a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// It has not the length of one.
    Length(usize),
    /// It does not begin like one.
    Magic,
    /// Its version is unknown.
    Version(u8),
    /// It is an answer where a question is due, or the other way round.
    Kind(u8),
    /// Nobody is asked.
    NobodyAsked,
    /// An unknown family of addresses.
    AddressFamily(u8),
    /// Unknown flags.
    Flags(u8),
    /// More than there is.
    Figure(u32),
    /// Reserved bytes are not zero.
    Reserved,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Length(bytes) => write!(f, "{bytes} bytes are no question of load, nor an answer"),
            LoadError::Magic => f.write_str("this is not a Spillway datagram (wrong port, or not Spillway)"),
            LoadError::Version(version) => write!(f, "unknown version {version} of load datagrams"),
            LoadError::Kind(kind) => write!(f, "unexpected kind {kind} of load datagram"),
            LoadError::NobodyAsked => f.write_str("a question to no helper"),
            LoadError::AddressFamily(family) => write!(f, "unknown address family {family}"),
            LoadError::Flags(flags) => write!(f, "unknown flags {flags:#04x}"),
            LoadError::Figure(figure) => write!(f, "a load of {figure} is more than there is"),
            LoadError::Reserved => f.write_str("reserved bytes are not zero"),
        }
    }
}

impl core::error::Error for LoadError {}

impl Ask {
    /// Writes the question with this proof.
    pub fn emit(&self, proof: &[u8; PROOF_BYTES]) -> [u8; ASK_BYTES] {
        let mut out = [0; ASK_BYTES];
        begin(&mut out, ASK);
        out[10] = self.asked;
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
        out[ASK_BYTES - PROOF_BYTES..].copy_from_slice(proof);
        out
    }

    /// What its proof covers.
    pub fn proven(bytes: &[u8; ASK_BYTES]) -> &[u8] {
        &bytes[..ASK_BYTES - PROOF_BYTES]
    }

    /// Reads a question and its proof, which is still to be verified.
    pub fn parse(bytes: &[u8; ASK_BYTES]) -> Result<(Ask, [u8; PROOF_BYTES]), LoadError> {
        check(bytes, ASK)?;
        if bytes[10] == 0 {
            return Err(LoadError::NobodyAsked);
        }
        let (family, port) = (bytes[36], u16::from_be_bytes(array(bytes, 38)));
        let used = match family {
            0 => 0,
            4 => 4,
            6 => 16,
            other => return Err(LoadError::AddressFamily(other)),
        };
        let unused_port = family == 0 && port != 0;
        if bytes[11] != 0
            || bytes[37] != 0
            || unused_port
            || bytes[40 + used..56].iter().any(|byte| *byte != 0)
        {
            return Err(LoadError::Reserved);
        }
        let ip: Option<IpAddr> = match family {
            4 => Some(Ipv4Addr::from(array::<4>(bytes, 40)).into()),
            6 => Some(Ipv6Addr::from(array::<16>(bytes, 40)).into()),
            _ => None,
        };
        let ask = Ask {
            asked: bytes[10],
            key: KeyId(array(bytes, 12)),
            nonce: array(bytes, 20),
            server: ip.map(|ip| SocketAddr::new(ip, port)),
        };
        Ok((ask, array(bytes, ASK_BYTES - PROOF_BYTES)))
    }
}

impl Load {
    /// Writes the answer with this proof.
    pub fn emit(&self, proof: &[u8; PROOF_BYTES]) -> [u8; LOAD_BYTES] {
        let mut out = [0; LOAD_BYTES];
        begin(&mut out, LOAD);
        out[10] = u8::from(self.full) | u8::from(self.draining) << 1 | u8::from(self.down) << 2;
        // 11: reserved
        out[12..28].copy_from_slice(&self.nonce);
        for (index, share) in self.shares().into_iter().enumerate() {
            out[28 + 2 * index..30 + 2 * index].copy_from_slice(&share.to_be_bytes());
        }
        out[36..40].copy_from_slice(&self.load.to_be_bytes());
        out[40..44].copy_from_slice(&self.tentative.to_be_bytes());
        out[44..46].copy_from_slice(&self.lot.to_be_bytes());
        // 46, 47: reserved
        out[LOAD_BYTES - PROOF_BYTES..].copy_from_slice(proof);
        out
    }

    /// What its proof covers.
    pub fn proven(bytes: &[u8; LOAD_BYTES]) -> &[u8] {
        &bytes[..LOAD_BYTES - PROOF_BYTES]
    }

    /// Reads an answer and its proof, which is still to be verified.
    pub fn parse(bytes: &[u8; LOAD_BYTES]) -> Result<(Load, [u8; PROOF_BYTES]), LoadError> {
        check(bytes, LOAD)?;
        let flags = bytes[10];
        if flags & !7 != 0 {
            return Err(LoadError::Flags(flags));
        }
        if bytes[11] != 0 || bytes[46..48] != [0, 0] {
            return Err(LoadError::Reserved);
        }
        let share = |at| u16::from_be_bytes(array(bytes, at));
        let weight = |at| u32::from_be_bytes(array(bytes, at));
        let load = Load {
            full: flags & 1 != 0,
            draining: flags & 2 != 0,
            down: flags & 4 != 0,
            nonce: array(bytes, 12),
            cpu: share(28),
            network: share(30),
            connections: share(32),
            memory: share(34),
            load: weight(36),
            tentative: weight(40),
            lot: share(44),
        };
        if let Some(share) = load.shares().into_iter().find(|share| *share > SHARE_MAX) {
            return Err(LoadError::Figure(share.into()));
        }
        if let Some(weight) = [load.load, load.tentative].into_iter().find(|weight| *weight > WEIGHT_MAX) {
            return Err(LoadError::Figure(weight));
        }
        Ok((load, array(bytes, LOAD_BYTES - PROOF_BYTES)))
    }

    fn shares(&self) -> [u16; 4] {
        [self.cpu, self.network, self.connections, self.memory]
    }
}

/// A datagram of exactly this length, as the parsers want it.
pub fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], LoadError> {
    bytes.try_into().map_err(|_| LoadError::Length(bytes.len()))
}

fn begin(out: &mut [u8], kind: u8) {
    out[..8].copy_from_slice(&LOAD_MAGIC);
    out[8] = LOAD_VERSION;
    out[KIND] = kind;
}

fn check(bytes: &[u8], kind: u8) -> Result<(), LoadError> {
    if bytes[..8] != LOAD_MAGIC {
        return Err(LoadError::Magic);
    }
    if bytes[8] != LOAD_VERSION {
        return Err(LoadError::Version(bytes[8]));
    }
    if bytes[KIND] != kind { Err(LoadError::Kind(bytes[KIND])) } else { Ok(()) }
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

    fn ask() -> Ask {
        let server = Some("192.0.2.1:11211".parse().unwrap());
        Ask { asked: 2, key: KeyId([7; 8]), nonce: [9; 16], server }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let good = ask().emit(&[1; 32]);
        let wrong = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Ask::parse(&bytes).unwrap_err()
        };
        assert_eq!(wrong(0, b'G'), LoadError::Magic);
        assert_eq!(wrong(8, 2), LoadError::Version(2));
        assert_eq!(wrong(9, 2), LoadError::Kind(2), "an answer is no question");
        assert_eq!(wrong(10, 0), LoadError::NobodyAsked);
        assert_eq!(wrong(36, 5), LoadError::AddressFamily(5));
        for reserved in [11, 37, 44, 55] {
            assert_eq!(wrong(reserved, 1), LoadError::Reserved, "{reserved}");
        }
        let mut bytes = Load::default().emit(&[0; 32]);
        bytes[10] = 8;
        assert_eq!(Load::parse(&bytes), Err(LoadError::Flags(8)));
        let over = Load { cpu: 1001, ..Load::default() }.emit(&[0; 32]);
        assert_eq!(Load::parse(&over), Err(LoadError::Figure(1001)));
        let over = Load { tentative: WEIGHT_MAX + 1, ..Load::default() }.emit(&[0; 32]);
        assert_eq!(Load::parse(&over), Err(LoadError::Figure(WEIGHT_MAX + 1)));
        assert_eq!(exactly::<ASK_BYTES>(&[0; 87]), Err(LoadError::Length(87)));
    }

    proptest! {
        /// Whatever is read is written as it was: nothing is ignored, and nothing panics.
        #[test]
        fn any_bytes(bytes in proptest::array::uniform32(any::<u8>()), at in 8_usize..60, noise in any::<u8>()) {
            let mut question = ask().emit(&bytes);
            question[at] = noise;
            if let Ok((ask, proof)) = Ask::parse(&question) {
                prop_assert_eq!(ask.emit(&proof), question);
            }
            let load = Load { nonce: [3; 16], cpu: 999, load: 123_456, ..Load::default() };
            let mut answer = load.emit(&bytes);
            answer[at] = noise;
            if let Ok((load, proof)) = Load::parse(&answer) {
                prop_assert_eq!(load.emit(&proof), answer);
            }
        }

        #[test]
        fn any_question(
            asked in 1_u8..,
            key in any::<[u8; 8]>(),
            nonce in any::<[u8; 16]>(),
            server in proptest::option::of((any::<IpAddr>(), any::<u16>())),
            proof in any::<[u8; 32]>(),
        ) {
            let server = server.map(|(ip, port)| SocketAddr::new(ip, port));
            let ask = Ask { asked, key: KeyId(key), nonce, server };
            prop_assert_eq!(Ask::parse(&ask.emit(&proof)), Ok((ask, proof)));
        }
    }
}

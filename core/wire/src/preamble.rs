//! The handshake at the start of a link.
//!
//! ```text
//! opener                                   server
//!   hello: magic, versions, role, key id, nonce  ->
//!   <-  welcome: magic, version, verdict, nonce, proof, limits; since version 4, key exchange
//!   proof; since version 4, key exchange         ->
//!   batches                                      <->
//! ```
//!
//! Both proofs are keyed hashes over [`transcript`]; `spillway-auth` computes them. Every message has a fixed
//! length, so a receiver can parse it from an array.

use core::fmt;

/// The first bytes of every link. Byte 0xf5 never occurs in UTF-8, so a link cannot be mistaken for a text protocol.
pub const MAGIC: [u8; 8] = *b"\xf5SPILLWY";

/// The link versions that this code supports.
pub const VERSIONS: core::ops::RangeInclusive<u8> = 1..=4;

/// The first link version that carries sessions.
pub const SESSIONS_SINCE: u8 = 2;

/// The first link version in which a server that keeps a plain client's replies for a helper also acknowledges that
/// client's requests.
pub const REQUESTS_ACKNOWLEDGED_SINCE: u8 = 3;

/// The first link version in which batches are encrypted, except with the well-known key of 32 zero bytes.
pub const ENCRYPTED_SINCE: u8 = 4;

/// Bytes of [`Hello`].
pub const HELLO_BYTES: usize = 36;
/// Bytes of [`Welcome`].
pub const WELCOME_BYTES: usize = 68;
/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;
/// Bytes of each message of the key exchange: an ephemeral public key and a tag.
pub const EXCHANGE_BYTES: usize = 48;
/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 16;

/// Identifies a key without revealing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyId(pub [u8; 8]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The role of a link's opener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Role {
    /// A helper, which carries connections of many clients.
    Helper = 1,
    /// A library client, which carries its own connections.
    Client = 2,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Helper => "helper",
            Role::Client => "client",
        })
    }
}

/// The opener's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest link version that the opener supports.
    pub version_min: u8,
    /// Highest link version that the opener supports.
    pub version_max: u8,
    /// The role of the opener.
    pub role: Role,
    /// The key that the opener will prove to know.
    pub key: KeyId,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_BYTES],
}

/// The server's decision on a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// The handshake continues with the opener's proof.
    Proceed = 0,
    /// No link version in common.
    Version = 1,
    /// The key is not accepted for this role, or the opener's proof is wrong.
    Key = 2,
    /// No room for another link.
    Full = 3,
}

/// The server's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The link version to use; 0 unless the verdict is [`Verdict::Proceed`].
    pub version: u8,
    /// The server's decision.
    pub verdict: Verdict,
    /// Fresh random bytes.
    pub nonce: [u8; NONCE_BYTES],
    /// The server's proof that it knows the key.
    pub proof: [u8; PROOF_BYTES],
    /// Initial credit for requests of each virtual connection, in bytes.
    pub credit: u32,
    /// Maximum number of virtual connections on the link; ids range from 1 to this number.
    pub connections_max: u32,
}

/// Errors of handshake messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreambleError {
    /// The message does not start with [`MAGIC`].
    Magic,
    /// The role is unknown.
    Role(u8),
    /// The verdict is unknown.
    Verdict(u8),
    /// The lowest version is 0 or above the highest.
    Versions {
        /// Lowest version.
        min: u8,
        /// Highest version.
        max: u8,
    },
    /// Reserved bytes are not zero.
    Reserved,
}

impl fmt::Display for PreambleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PreambleError::Magic => f.write_str("this is not a Spillway link (wrong port, or not Spillway)"),
            PreambleError::Role(code) => write!(f, "unknown link role {code}"),
            PreambleError::Verdict(code) => write!(f, "unknown verdict {code}"),
            PreambleError::Versions { min, max } => {
                write!(f, "link versions {min} to {max} are not a valid range")
            }
            PreambleError::Reserved => f.write_str("reserved bytes of the preamble are not zero"),
        }
    }
}

impl core::error::Error for PreambleError {}

impl Hello {
    /// Emits the message.
    pub fn emit(&self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8] = self.version_min;
        out[9] = self.version_max;
        out[10] = self.role as u8;
        // 11: reserved
        out[12..20].copy_from_slice(&self.key.0);
        out[20..36].copy_from_slice(&self.nonce);
        out
    }

    /// Parses the message.
    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, PreambleError> {
        if bytes[0..8] != MAGIC {
            return Err(PreambleError::Magic);
        }
        let role = match bytes[10] {
            1 => Role::Helper,
            2 => Role::Client,
            other => return Err(PreambleError::Role(other)),
        };
        let (version_min, version_max) = (bytes[8], bytes[9]);
        if version_min > version_max || version_min == 0 {
            return Err(PreambleError::Versions { min: version_min, max: version_max });
        }
        if bytes[11] != 0 {
            return Err(PreambleError::Reserved);
        }
        Ok(Hello { version_min, version_max, role, key: KeyId(array(bytes, 12)), nonce: array(bytes, 20) })
    }

    /// The highest version that the opener and this code support.
    pub fn common_version(&self) -> Option<u8> {
        self.common_version_of(&VERSIONS)
    }

    /// The highest version that is supported by the opener and contained in `versions`.
    pub fn common_version_of(&self, versions: &core::ops::RangeInclusive<u8>) -> Option<u8> {
        let version = self.version_max.min(*versions.end());
        (version >= self.version_min && version >= *versions.start()).then_some(version)
    }
}

impl Welcome {
    /// The answer to a hello that is refused; all fields except the verdict are zero.
    pub fn refusal(verdict: Verdict) -> Welcome {
        Welcome { version: 0, verdict, nonce: [0; 16], proof: [0; 32], credit: 0, connections_max: 0 }
    }

    /// Emits the message.
    pub fn emit(&self) -> [u8; WELCOME_BYTES] {
        let mut out = [0; WELCOME_BYTES];
        out[0..8].copy_from_slice(&MAGIC);
        out[8] = self.version;
        out[9] = self.verdict as u8;
        // 10, 11: reserved
        out[12..28].copy_from_slice(&self.nonce);
        out[28..60].copy_from_slice(&self.proof);
        out[60..64].copy_from_slice(&self.credit.to_be_bytes());
        out[64..68].copy_from_slice(&self.connections_max.to_be_bytes());
        out
    }

    /// Parses the message.
    pub fn parse(bytes: &[u8; WELCOME_BYTES]) -> Result<Welcome, PreambleError> {
        if bytes[0..8] != MAGIC {
            return Err(PreambleError::Magic);
        }
        let verdict = match bytes[9] {
            0 => Verdict::Proceed,
            1 => Verdict::Version,
            2 => Verdict::Key,
            3 => Verdict::Full,
            other => return Err(PreambleError::Verdict(other)),
        };
        if bytes[10..12] != [0, 0] {
            return Err(PreambleError::Reserved);
        }
        Ok(Welcome {
            version: bytes[8],
            verdict,
            nonce: array(bytes, 12),
            proof: array(bytes, 28),
            credit: u32::from_be_bytes(array(bytes, 60)),
            connections_max: u32::from_be_bytes(array(bytes, 64)),
        })
    }
}

/// The bytes that both proofs cover: the hello, and the welcome with its proof set to zero. Each proof has a
/// label of its own before these bytes.
pub fn transcript(hello: &Hello, welcome: &Welcome) -> [u8; HELLO_BYTES + WELCOME_BYTES] {
    let mut out = [0; HELLO_BYTES + WELCOME_BYTES];
    out[..HELLO_BYTES].copy_from_slice(&hello.emit());
    let unproven = Welcome { proof: [0; PROOF_BYTES], ..*welcome };
    out[HELLO_BYTES..].copy_from_slice(&unproven.emit());
    out
}

/// `N` bytes at a constant offset inside a fixed-length message.
fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello { version_min: 1, version_max: 3, role: Role::Helper, key: KeyId([7; 8]), nonce: [9; 16] }
    }

    fn welcome() -> Welcome {
        Welcome {
            version: 1,
            verdict: Verdict::Proceed,
            nonce: [3; 16],
            proof: [4; 32],
            credit: 65536,
            connections_max: 1000,
        }
    }

    #[test]
    fn hello_and_welcome_survive_a_round_trip() {
        assert_eq!(Hello::parse(&hello().emit()), Ok(hello()));
        assert_eq!(Welcome::parse(&welcome().emit()), Ok(welcome()));
        let refusal = Welcome::refusal(Verdict::Key);
        assert_eq!(Welcome::parse(&refusal.emit()), Ok(refusal));
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        assert_eq!(hello().common_version(), Some(3));
        assert_eq!(Hello { version_max: 9, ..hello() }.common_version(), Some(4));
        assert_eq!(Hello { version_max: 1, ..hello() }.common_version(), Some(1));
        assert_eq!(Hello { version_min: 5, version_max: 9, ..hello() }.common_version(), None);
    }

    #[test]
    fn invalid_messages_are_rejected_with_their_cause() {
        let mut bytes = hello().emit();
        bytes[10] = 9;
        assert_eq!(Hello::parse(&bytes), Err(PreambleError::Role(9)));
        let mut bytes = hello().emit();
        bytes[8] = 4;
        assert_eq!(Hello::parse(&bytes), Err(PreambleError::Versions { min: 4, max: 3 }));
        let mut bytes = hello().emit();
        bytes[11] = 1;
        assert_eq!(Hello::parse(&bytes), Err(PreambleError::Reserved));
        assert_eq!(Hello::parse(&[b'G'; HELLO_BYTES]), Err(PreambleError::Magic));
        let mut bytes = welcome().emit();
        bytes[9] = 8;
        assert_eq!(Welcome::parse(&bytes), Err(PreambleError::Verdict(8)));
    }

    #[test]
    fn the_transcript_covers_all_fields_except_the_proof() {
        let base = transcript(&hello(), &welcome());
        assert_eq!(base, transcript(&hello(), &Welcome { proof: [0; 32], ..welcome() }));
        assert_ne!(base, transcript(&Hello { role: Role::Client, ..hello() }, &welcome()));
        assert_ne!(base, transcript(&hello(), &Welcome { nonce: [0; 16], ..welcome() }));
        assert_ne!(base, transcript(&hello(), &Welcome { credit: 1, ..welcome() }));
    }
}

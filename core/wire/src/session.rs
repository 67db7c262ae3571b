//! The messages by which a session begins, moves to another carrier and is acknowledged (PostMan §4.2, "Ensure packet
//! ordering"; Figure 3).

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use crate::address;
use crate::cursor::Cursor;
use crate::error::ControlError;
use crate::frame::Kind;
use crate::preamble::{KeyId, PROOF_BYTES};

/// Bytes of a session's id.
pub const SESSION_ID_BYTES: usize = 16;

const FINISH_RECEIVED: u8 = 1;
const REQUESTS_ANSWER: u8 = 2;

/// The id of a session: random bytes chosen by the client, so that it cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; SESSION_ID_BYTES]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The progress of one end of a session. Offsets count bytes since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// This end has sent bytes up to this offset, on any carrier.
    pub sent: u64,
    /// This end has received all bytes up to this offset.
    pub received: u64,
    /// The other end may send up to this offset.
    pub credit: u64,
    /// This end has received the other end's *finish*.
    pub finish_received: bool,
}

/// The part of *connect* and *reconnect* that identifies a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The session's id.
    pub session: SessionId,
    /// The client key from which the session's key is derived.
    pub key: KeyId,
    /// The number of the carrier. The server refuses a number that is not above that of the previous carrier.
    pub epoch: u32,
    /// The session's life as in [`Resumed::life`]; 0 in *connect*.
    pub life: u64,
    /// The client's progress.
    pub position: Position,
    /// Proof that the client knows the session's key; a keyed hash over [`Opening::bytes_under_proof`].
    pub proof: [u8; PROOF_BYTES],
}

/// Continues a session on this carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// The client's address on this carrier.
    pub client: SocketAddr,
    /// The requested server; `None` for the server of the link.
    pub server: Option<SocketAddr>,
    /// The session, and the client's progress.
    pub opening: Opening,
}

/// The server's answer to the first message of a session on a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// The epoch of the message that is answered.
    pub epoch: u32,
    /// Number of this life of the session, never 0. If the server loses the session and a late *connect* begins it
    /// again, the new session has another number.
    pub life: u64,
    /// The server's progress.
    pub position: Position,
    /// Proof that the server knows the session's key; a keyed hash over [`Resumed::bytes_under_proof`].
    pub proof: [u8; PROOF_BYTES],
}

/// Reports how far the sender of this message has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledge {
    /// All bytes up to this offset have arrived.
    pub received: u64,
    /// The other end's *finish* has arrived.
    pub finish_received: bool,
    /// Requests the other end to acknowledge at once: a probe of a carrier on which nothing has arrived for a while.
    pub requests_answer: bool,
}

impl Position {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sent.to_be_bytes());
        out.extend_from_slice(&self.received.to_be_bytes());
        out.extend_from_slice(&self.credit.to_be_bytes());
        out.push(if self.finish_received { FINISH_RECEIVED } else { 0 });
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Position, ControlError> {
        let (sent, received, credit) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let [finish_received, _] = parse_flags(cursor.u8()?, FINISH_RECEIVED)?;
        Ok(Position { sent, received, credit, finish_received })
    }
}

impl Opening {
    /// The bytes that the proof covers after a label: the frame's kind, the client's address, and the other fields. The
    /// requested server is not included, because a helper removes it from the message that it forwards.
    pub fn bytes_under_proof(&self, kind: Kind, client: SocketAddr) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(96);
        bytes.push(kind as u8);
        address::emit(Some(client), &mut bytes);
        self.emit_unproven(&mut bytes);
        bytes
    }

    fn emit_unproven(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0);
        out.extend_from_slice(&self.key.0);
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.life.to_be_bytes());
        self.position.emit(out);
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        self.emit_unproven(out);
        out.extend_from_slice(&self.proof);
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Opening, ControlError> {
        Ok(Opening {
            session: SessionId(cursor.array()?),
            key: KeyId(cursor.array()?),
            epoch: cursor.u32()?,
            life: cursor.u64()?,
            position: Position::parse(cursor)?,
            proof: cursor.array()?,
        })
    }
}

impl Reconnect {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        address::emit(Some(self.client), out);
        address::emit(self.server, out);
        self.opening.emit(out);
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Reconnect, ControlError> {
        let client = address::parse(cursor)?.ok_or(ControlError::NoClient)?;
        Ok(Reconnect { client, server: address::parse(cursor)?, opening: Opening::parse(cursor)? })
    }
}

impl Resumed {
    /// The bytes that the proof covers after a label.
    pub fn bytes_under_proof(&self, session: SessionId) -> Vec<u8> {
        let mut bytes = Vec::from(session.0);
        self.emit_unproven(&mut bytes);
        bytes
    }

    fn emit_unproven(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.life.to_be_bytes());
        self.position.emit(out);
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        self.emit_unproven(out);
        out.extend_from_slice(&self.proof);
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Resumed, ControlError> {
        let (epoch, life) = (cursor.u32()?, cursor.u64()?);
        Ok(Resumed { epoch, life, position: Position::parse(cursor)?, proof: cursor.array()? })
    }
}

impl Acknowledge {
    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.received.to_be_bytes());
        let finish = if self.finish_received { FINISH_RECEIVED } else { 0 };
        out.push(finish | if self.requests_answer { REQUESTS_ANSWER } else { 0 });
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Acknowledge, ControlError> {
        let received = cursor.u64()?;
        let [finish_received, requests_answer] =
            parse_flags(cursor.u8()?, FINISH_RECEIVED | REQUESTS_ANSWER)?;
        Ok(Acknowledge { received, finish_received, requests_answer })
    }
}

/// The two lowest bits of `byte`, if no bits outside `known` are set.
fn parse_flags(byte: u8, known: u8) -> Result<[bool; 2], ControlError> {
    if byte & !known != 0 {
        return Err(ControlError::Flags(byte));
    }
    Ok([byte & 1 != 0, byte & 2 != 0])
}

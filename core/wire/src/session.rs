//! What the ends of a session say when it begins and when it moves to another carrier (PostMan §4.2, "Ensure packet
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

/// Names a session. The client makes it of random bytes; nobody can guess it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; SESSION_ID_BYTES]);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Where one end of a session stands. Offsets count bytes since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// It has sent bytes up to this offset, on whatever carrier.
    pub sent: u64,
    /// It has received all bytes up to this offset.
    pub received: u64,
    /// The other end may send up to this offset.
    pub credit: u64,
    /// It knows that the other end sends no more.
    pub finish_received: bool,
}

/// A session's first words on a carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Which session.
    pub session: SessionId,
    /// The client key that the session's own key is derived from.
    pub key: KeyId,
    /// Counts carriers: one with a lower or the same number is an old one.
    pub epoch: u32,
    /// Which life of the session at its server is meant, as *resumed* told it; 0 in *connect*, which may begin one.
    pub life: u64,
    /// Where the client stands.
    pub position: Position,
    /// That the client knows the session's key; over [`Opening::proven`].
    pub proof: [u8; PROOF_BYTES],
}

/// A session continues on this carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// The address that the client has on this carrier.
    pub client: SocketAddr,
    /// The server wanted; `None` for the one that the link belongs to.
    pub server: Option<SocketAddr>,
    /// Which session, and where the client stands.
    pub opening: Opening,
}

/// The answer to *reconnect*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Of the session's first words on this carrier.
    pub epoch: u32,
    /// Names this life of the session, never 0: should the server lose the session, and begin it again because of words
    /// that came late, that is another one.
    pub life: u64,
    /// Where the server stands.
    pub position: Position,
    /// That the server knows the session's key; over [`Resumed::proven`].
    pub proof: [u8; PROOF_BYTES],
}

/// How far the sender of this message has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledge {
    /// All bytes up to this offset.
    pub received: u64,
    /// And that no more follow.
    pub finish_received: bool,
    /// The other end is to say the same of itself, at once: asked on a carrier that has been silent.
    pub answer: bool,
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
        let [finish_received, _] = flags(cursor.u8()?, FINISH_RECEIVED)?;
        Ok(Position { sent, received, credit, finish_received })
    }
}

impl Opening {
    /// What the proof covers, besides a label: in which kind of frame this is said, from which address, and all of
    /// it. Not the server that is wanted: a helper settles that.
    pub fn proven(&self, kind: Kind, client: SocketAddr) -> Vec<u8> {
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
    /// What the proof covers, besides a label.
    pub fn proven(&self, session: SessionId) -> Vec<u8> {
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
    const ANSWER: u8 = 2;

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.received.to_be_bytes());
        let finish = if self.finish_received { FINISH_RECEIVED } else { 0 };
        out.push(finish | if self.answer { Acknowledge::ANSWER } else { 0 });
    }

    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Acknowledge, ControlError> {
        let received = cursor.u64()?;
        let [finish_received, answer] = flags(cursor.u8()?, FINISH_RECEIVED | Acknowledge::ANSWER)?;
        Ok(Acknowledge { received, finish_received, answer })
    }
}

/// The two lowest bits of a byte that has no others than those known.
fn flags(byte: u8, known: u8) -> Result<[bool; 2], ControlError> {
    if byte & !known != 0 {
        return Err(ControlError::Flags(byte));
    }
    Ok([byte & 1 != 0, byte & 2 != 0])
}

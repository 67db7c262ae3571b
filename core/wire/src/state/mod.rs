//! A live TCP connection on its way to another host: everything that its stack knows.
//!
//! One format for all kinds of stack: ours, and the kernel's, which knows less: [`ConnectionState::recovery`] is its own
//! affair there. Whoever reads it checks it against its own limits; nothing in it is trusted.
//!
//! Sequence numbers are those of the stream: the SYN is 0, the first byte 1. They do not wrap. The initial sequence
//! numbers relate them to the wire. Times are relative, for clocks differ.
//!
//! | | bytes |
//! |---|---|
//! | magic | 8 |
//! | version | 1 |
//! | reserved, 0 | 3 |
//! | length of what follows, without the checksum | 4 |
//! | fields, in the order of the structures here | |
//! | XXH3 of everything before it | 8 |
//!
//! Numbers are in network order. What may be absent has a byte before it, 0 or 1; lists begin with their length, four bytes.

mod fields;
mod recovery;

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;

use crate::cursor::Truncated;
pub use fields::{QUEUE_BYTES_MAX, RANGES_MAX};
use fields::{Reader, Writer};
pub use recovery::{Controller, Epoch, Phase, Recovery, SEGMENTS_MAX, Segment, Undo};

const MAGIC: [u8; 8] = *b"SPWYCONN";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// The states in which both ends know of each other (RFC 9293 §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the RFC's")]
pub enum Stage {
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// The end that moves.
    pub local: SocketAddr,
    /// The one that does not notice.
    pub peer: SocketAddr,
    /// Where it stands.
    pub stage: Stage,
    /// The listener that it came from, by index; `None` when this end began it.
    pub listener: Option<u16>,
    /// What this end sends.
    pub sending: Sending,
    /// What it receives.
    pub receiving: Receiving,
    /// What was agreed on in the SYNs.
    pub agreed: Agreed,
    /// How long ago the peer was heard, nanoseconds.
    pub heard_age_ns: u64,
    /// Loss recovery and congestion control, where they are known.
    pub recovery: Option<Recovery>,
}

/// Of the SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The largest segment that the peer takes, without options.
    pub mss: u16,
    /// Selective acknowledgements (RFC 2018).
    pub has_sack: bool,
    /// Timestamps (RFC 7323).
    pub stamps: Option<Stamps>,
}

/// Timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// What our clock of milliseconds shows to this peer now.
    pub clock: u32,
    /// TS.Recent.
    pub recent: u32,
    /// How long ago that came, nanoseconds.
    pub recent_age_ns: u64,
}

/// The end of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// There may be more to send.
    No,
    /// The application sends no more: a FIN follows the last byte.
    Asked,
    /// The peer has acknowledged the FIN.
    Acknowledged,
}

/// The sending direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Our initial sequence number.
    pub initial: u32,
    /// SND.UNA.
    pub una: u64,
    /// SND.NXT.
    pub nxt: u64,
    /// SND.WND, bytes.
    pub window: u64,
    /// The largest that it ever was.
    pub window_largest: u64,
    /// SND.WL1 and SND.WL2.
    pub window_told: (u64, u64),
    /// By how many bits the peer's windows are shifted.
    pub scale: u8,
    /// Whether the application sends no more.
    pub finish: Finish,
    /// It was told that there is no room, and is to be told when there is.
    pub wants_room: bool,
    /// It wants to know what the peer has,
    pub is_watched: bool,
    /// and was told up to this stream offset.
    pub told_acknowledged: u64,
    /// Bytes from SND.UNA on.
    pub queue: Vec<u8>,
}

/// The receiving direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// The peer's initial sequence number.
    pub initial: u32,
    /// RCV.NXT.
    pub next: u64,
    /// How far the application has granted.
    pub granted: u64,
    /// The right edge of the window that the peer knows.
    pub edge: u64,
    /// The largest window that there was.
    pub window_largest: u64,
    /// By how many bits our windows are shifted.
    pub scale: u8,
    /// The peer's FIN, once it has come, by its sequence number.
    pub fin: Option<u64>,
    /// The application knows that the peer has finished.
    pub told_finished: bool,
    /// Nothing beyond this is acknowledged (PostMan §4.2).
    pub gate: Option<u64>,
    /// The acknowledgement that was sent last.
    pub acknowledged: u64,
    /// Something is to be acknowledged.
    pub owes: bool,
    /// Bytes beyond RCV.NXT, the one that came first is first.
    pub late: Vec<(u64, Vec<u8>)>,
}

/// Why bytes are no connection's state: their fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// They do not begin as one.
    Magic,
    /// Of a version that is not known here.
    Version(u8),
    /// Less or more than they say.
    Length,
    /// Altered on the way.
    Checksum,
    /// A field has a value that it cannot have.
    Field(&'static str),
    /// More bytes, ranges or segments than a state may have.
    TooMany(&'static str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Magic => f.write_str("these bytes are no connection's state"),
            StateError::Version(version) => {
                write!(
                    f,
                    "a connection's state of version {version}, {VERSION} is known here: upgrade this end"
                )
            }
            StateError::Length => f.write_str("a connection's state with bytes missing, or too many"),
            StateError::Checksum => f.write_str("a connection's state that was altered on the way"),
            StateError::Field(field) => write!(f, "a connection's state whose {field} cannot be"),
            StateError::TooMany(what) => write!(f, "a connection's state with too many {what}"),
        }
    }
}

impl core::error::Error for StateError {}

impl From<Truncated> for StateError {
    fn from(_: Truncated) -> StateError {
        StateError::Length
    }
}

impl ConnectionState {
    /// Writes it to the end of `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        let mut writer = Writer(out);
        self.write(&mut writer);
        let length = u32::try_from(out.len() - start - HEAD_BYTES).unwrap_or(u32::MAX); // bounded far below
        out[start + HEAD_BYTES - 4..start + HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
        let checksum = xxhash_rust::xxh3::xxh3_64(&out[start..]);
        out.extend_from_slice(&checksum.to_be_bytes());
    }

    /// Reads what [`emit`](Self::emit) has written, all of `bytes`.
    ///
    /// # Errors
    /// Anything else.
    pub fn parse(bytes: &[u8]) -> Result<ConnectionState, StateError> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>().ok_or(StateError::Length)?;
        if !head.starts_with(&MAGIC) {
            return Err(StateError::Magic);
        }
        let &[.., version, r0, r1, r2, l0, l1, l2, l3] = head;
        if version != VERSION {
            return Err(StateError::Version(version));
        }
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        let (fields, checksum) = rest.split_at_checked(length).ok_or(StateError::Length)?;
        let checksum = <[u8; CHECKSUM_BYTES]>::try_from(checksum).map_err(|_| StateError::Length)?;
        if xxhash_rust::xxh3::xxh3_64(&bytes[..HEAD_BYTES + length]) != u64::from_be_bytes(checksum) {
            return Err(StateError::Checksum);
        }
        if [r0, r1, r2] != [0; 3] {
            return Err(StateError::Field("reserved bytes"));
        }
        let mut reader = Reader::new(fields);
        let state = ConnectionState::read(&mut reader)?;
        if reader.is_empty() { Ok(state) } else { Err(StateError::Length) }
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.address(self.local);
        out.address(self.peer);
        out.u8(self.stage as u8);
        out.option(self.listener, Writer::u16);
        self.sending.write(out);
        self.receiving.write(out);
        out.u16(self.agreed.mss);
        out.flag(self.agreed.has_sack);
        out.option(self.agreed.stamps, |out, stamps| {
            out.u32(stamps.clock);
            out.u32(stamps.recent);
            out.u64(stamps.recent_age_ns);
        });
        out.u64(self.heard_age_ns);
        out.option(self.recovery.as_ref(), |out, recovery| recovery.write(out));
    }

    fn read(from: &mut Reader<'_>) -> Result<ConnectionState, StateError> {
        let (local, peer) = (from.address()?, from.address()?);
        let stage = match from.u8()? {
            0 => Stage::Established,
            1 => Stage::FinWait1,
            2 => Stage::FinWait2,
            3 => Stage::CloseWait,
            4 => Stage::Closing,
            5 => Stage::LastAck,
            _ => return Err(StateError::Field("stage")),
        };
        Ok(ConnectionState {
            local,
            peer,
            stage,
            listener: from.option(Reader::u16)?,
            sending: Sending::read(from)?,
            receiving: Receiving::read(from)?,
            agreed: Agreed {
                mss: from.u16()?,
                has_sack: from.flag()?,
                stamps: from.option(|from| {
                    let (clock, recent) = (from.u32()?, from.u32()?);
                    Ok(Stamps { clock, recent, recent_age_ns: from.u64()? })
                })?,
            },
            heard_age_ns: from.u64()?,
            recovery: from.option(Recovery::read)?,
        })
    }
}

impl Sending {
    fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.initial);
        for number in [self.una, self.nxt, self.window, self.window_largest] {
            out.u64(number);
        }
        out.u64(self.window_told.0);
        out.u64(self.window_told.1);
        out.u8(self.scale);
        out.u8(self.finish as u8);
        out.flag(self.wants_room);
        out.flag(self.is_watched);
        out.u64(self.told_acknowledged);
        out.bytes(&self.queue);
    }

    fn read(from: &mut Reader<'_>) -> Result<Sending, StateError> {
        Ok(Sending {
            initial: from.u32()?,
            una: from.u64()?,
            nxt: from.u64()?,
            window: from.u64()?,
            window_largest: from.u64()?,
            window_told: (from.u64()?, from.u64()?),
            scale: from.u8()?,
            finish: match from.u8()? {
                0 => Finish::No,
                1 => Finish::Asked,
                2 => Finish::Acknowledged,
                _ => return Err(StateError::Field("finish")),
            },
            wants_room: from.flag()?,
            is_watched: from.flag()?,
            told_acknowledged: from.u64()?,
            queue: from.bytes(QUEUE_BYTES_MAX, "bytes to send")?.to_vec(),
        })
    }
}

impl Receiving {
    fn write(&self, out: &mut Writer<'_>) {
        out.u32(self.initial);
        for number in [self.next, self.granted, self.edge, self.window_largest] {
            out.u64(number);
        }
        out.u8(self.scale);
        out.option(self.fin, Writer::u64);
        out.flag(self.told_finished);
        out.option(self.gate, Writer::u64);
        out.u64(self.acknowledged);
        out.flag(self.owes);
        out.length(self.late.len());
        for (seq, bytes) in &self.late {
            out.u64(*seq);
            out.bytes(bytes);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Receiving, StateError> {
        Ok(Receiving {
            initial: from.u32()?,
            next: from.u64()?,
            granted: from.u64()?,
            edge: from.u64()?,
            window_largest: from.u64()?,
            scale: from.u8()?,
            fin: from.option(Reader::u64)?,
            told_finished: from.flag()?,
            gate: from.option(Reader::u64)?,
            acknowledged: from.u64()?,
            owes: from.flag()?,
            late: from.list(RANGES_MAX, "ranges", |from| {
                Ok((from.u64()?, from.bytes(QUEUE_BYTES_MAX, "bytes out of order")?.to_vec()))
            })?,
        })
    }
}

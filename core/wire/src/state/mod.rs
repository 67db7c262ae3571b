//! The state of a live TCP connection that migrates to another host.
//!
//! One format serves the user-level TCP stack and the kernel's stack; the kernel does not export
//! [`ConnectionState::recovery`]. The importing stack must check the fields of a state against each other and against
//! its own limits.
//!
//! Sequence numbers count from the SYN, which has number 0, and do not wrap; the first byte of data has number 1. The
//! sequence number in a segment is this number plus the initial sequence number, modulo 2^32. Times are relative to the
//! export, because the clocks of two hosts differ.
//!
//! | | bytes |
//! |---|---|
//! | magic | 8 |
//! | version | 1 |
//! | reserved, 0 | 3 |
//! | length of the fields | 4 |
//! | fields, in the order of the structures here | |
//! | XXH3 of everything before it | 8 |
//!
//! Numbers are in network order. An optional field follows a byte 1, or is replaced by a byte 0. Lists begin with
//! their length in four bytes.

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

/// The synchronized states without TIME-WAIT (RFC 9293 §3.3.2).
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

/// The state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// Address of the end that migrates.
    pub local: SocketAddr,
    /// Address of the peer, for which the migration is transparent.
    pub peer: SocketAddr,
    /// The TCP state.
    pub stage: Stage,
    /// Index of the listener that accepted the connection; `None` if this end opened it.
    pub listener: Option<u16>,
    /// The sending direction.
    pub sending: Sending,
    /// The receiving direction.
    pub receiving: Receiving,
    /// The options negotiated in the SYNs.
    pub agreed: Agreed,
    /// Time since the peer's last segment, in nanoseconds.
    pub received_age_ns: u64,
    /// Loss recovery and congestion control, if the exporting stack exports them.
    pub recovery: Option<Recovery>,
}

/// The options negotiated in the SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The largest segment that the peer accepts, in bytes of TCP options and data (RFC 9293 §3.7.1).
    pub mss: u16,
    /// Selective acknowledgements (RFC 2018).
    pub has_sack: bool,
    /// The state of timestamps (RFC 7323), if negotiated.
    pub stamps: Option<Stamps>,
}

/// The state of timestamps (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// This end's timestamp clock at the export, in milliseconds.
    pub clock: u32,
    /// TS.Recent.
    pub recent: u32,
    /// Time since TS.Recent arrived, in nanoseconds.
    pub recent_age_ns: u64,
}

/// Whether the sending direction is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The application may send more.
    No,
    /// The application sends no more: a FIN follows the last byte, and the peer has not acknowledged the FIN.
    Unacknowledged,
    /// The peer has acknowledged the FIN.
    Acknowledged,
}

/// The sending direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// This end's initial sequence number.
    pub initial: u32,
    /// SND.UNA.
    pub una: u64,
    /// SND.NXT.
    pub nxt: u64,
    /// SND.WND, bytes.
    pub window: u64,
    /// The largest SND.WND so far, bytes.
    pub window_largest: u64,
    /// SND.WL1 and SND.WL2.
    pub window_update: (u64, u64),
    /// Shift count of the peer's windows.
    pub scale: u8,
    /// Whether the sending direction is finished.
    pub finish: Finish,
    /// The send buffer was full: the application waits for an event that reports room.
    pub wants_room: bool,
    /// The application has subscribed to the peer's acknowledgements.
    pub is_watched: bool,
    /// Stream offset of the acknowledgement last reported to the application.
    pub reported_acknowledged: u64,
    /// Bytes from SND.UNA on, sent or not.
    pub queue: Vec<u8>,
}

/// The receiving direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiving {
    /// The peer's initial sequence number.
    pub initial: u32,
    /// All data before this sequence number, and a FIN before it, were passed to the application.
    pub next: u64,
    /// Sequence number up to which the application has granted bytes.
    pub granted: u64,
    /// The rightmost window edge that was advertised to the peer.
    pub edge: u64,
    /// The largest window so far, bytes.
    pub window_largest: u64,
    /// Shift count of this end's windows.
    pub scale: u8,
    /// Sequence number of the peer's FIN, once it has arrived.
    pub fin: Option<u64>,
    /// The peer's FIN was reported to the application.
    pub reported_finished: bool,
    /// Acknowledgements are limited to this sequence number (PostMan §4.2).
    pub gate: Option<u64>,
    /// The acknowledgement number that was sent last.
    pub acknowledged: u64,
    /// An acknowledgement is owed to the peer.
    pub owes: bool,
    /// Data from `next` on that waits for missing data or for a grant: pieces with their sequence numbers, in the order
    /// in which their ranges last changed, oldest first.
    pub late: Vec<(u64, Vec<u8>)>,
}

/// Why bytes are not a valid connection state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// The magic is wrong.
    Magic,
    /// The version is unknown.
    Version(u8),
    /// The input is shorter or longer than its length fields specify.
    Length,
    /// The checksum is wrong.
    Checksum,
    /// This field has an invalid value.
    Field(&'static str),
    /// The state has too many of these bytes, ranges or segments.
    TooMany(&'static str),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Magic => f.write_str("not the state of a connection: wrong magic"),
            StateError::Version(version) => {
                write!(
                    f,
                    "the connection's state has version {version}, this end supports {VERSION}: upgrade this end"
                )
            }
            StateError::Length => {
                f.write_str("the length of the connection's state contradicts its length fields")
            }
            StateError::Checksum => {
                f.write_str("the connection's state was altered in transit: wrong checksum")
            }
            StateError::Field(field) => write!(f, "the connection's state has an invalid value: {field}"),
            StateError::TooMany(what) => write!(f, "the connection's state has too many {what}"),
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
    /// Appends the state to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0, 0, 0, 0, 0]);
        let mut writer = Writer(out);
        self.write(&mut writer);
        let length = u32::try_from(out.len() - start - HEAD_BYTES).unwrap_or(u32::MAX); // states are far below 4 GiB
        out[start + HEAD_BYTES - 4..start + HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
        let checksum = xxhash_rust::xxh3::xxh3_64(&out[start..]);
        out.extend_from_slice(&checksum.to_be_bytes());
    }

    /// Parses a state that [`emit`](Self::emit) has written; the state must fill `bytes`.
    ///
    /// # Errors
    /// The bytes are malformed, altered, or of another version.
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
        out.u64(self.received_age_ns);
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
            received_age_ns: from.u64()?,
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
        out.u64(self.window_update.0);
        out.u64(self.window_update.1);
        out.u8(self.scale);
        out.u8(self.finish as u8);
        out.flag(self.wants_room);
        out.flag(self.is_watched);
        out.u64(self.reported_acknowledged);
        out.bytes(&self.queue);
    }

    fn read(from: &mut Reader<'_>) -> Result<Sending, StateError> {
        Ok(Sending {
            initial: from.u32()?,
            una: from.u64()?,
            nxt: from.u64()?,
            window: from.u64()?,
            window_largest: from.u64()?,
            window_update: (from.u64()?, from.u64()?),
            scale: from.u8()?,
            finish: match from.u8()? {
                0 => Finish::No,
                1 => Finish::Unacknowledged,
                2 => Finish::Acknowledged,
                _ => return Err(StateError::Field("finish")),
            },
            wants_room: from.flag()?,
            is_watched: from.flag()?,
            reported_acknowledged: from.u64()?,
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
        out.flag(self.reported_finished);
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
            reported_finished: from.flag()?,
            gate: from.option(Reader::u64)?,
            acknowledged: from.u64()?,
            owes: from.flag()?,
            late: from.list(RANGES_MAX, "ranges", |from| {
                Ok((from.u64()?, from.bytes(QUEUE_BYTES_MAX, "bytes out of order")?.to_vec()))
            })?,
        })
    }
}

//! A connection's state, and its fields in the order in which they are written.

use alloc::vec::Vec;
use core::net::SocketAddr;

use super::attachment::{ATTACHMENT_BYTES_MAX, Attachment, PROTOCOL_BYTES_MAX};
use super::error::StateError;
use super::features::Features;
use super::fields::{Data, QUEUE_BYTES_MAX, RANGES_MAX, Reader, Writer};
use super::handed_request::HandedRequest;
use super::recovery::Recovery;
use super::socket_options::SocketOptions;
use crate::{Bytes, Chunks};

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
    /// The application's own bytes. A stack neither writes nor reads them.
    pub attachment: Option<Attachment>,
    /// The request that moves with the connection, if it is handed off.
    pub request: Option<HandedRequest>,
    /// The options of the kernel's socket that the connection had. An importing end without sockets ignores them.
    pub socket_options: Option<SocketOptions>,
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
    /// TS.Recent. `None` if the exporting stack does not reveal it, as kernels do not: then the importing stack takes it
    /// from the first acceptable segment. A made-up value would make PAWS reject the peer's segments (RFC 7323 §5.3).
    pub recent: Option<u32>,
    /// Time since TS.Recent arrived, in nanoseconds; 0 if it is not known.
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
    /// SND.WL1 and SND.WL2. `None` if the exporting stack does not reveal both: then the next acceptable segment sets the
    /// window.
    pub window_update: Option<(u64, u64)>,
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
    pub queue: Chunks,
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
    pub late: Vec<(u64, Bytes)>,
}

/// Maximum number of extensions of a state.
const EXTENSIONS_MAX: usize = 64;
/// Maximum bytes of one extension.
const EXTENSION_BYTES_MAX: usize = 4096;
/// The extension with a [`HandedRequest`].
const EXTENSION_REQUEST: u16 = 1;
/// The extension with [`SocketOptions`].
const EXTENSION_SOCKET_OPTIONS: u16 = 2;

impl ConnectionState {
    /// The features that an importing end must have.
    pub fn needs(&self) -> Features {
        let needed = |is_used, feature| if is_used { feature } else { Features::default() };
        needed(self.receiving.gate.is_some(), Features::GATE)
            .with(needed(self.attachment.is_some(), Features::ATTACHMENT))
            .with(needed(self.request.is_some(), Features::REQUEST))
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.address(self.local);
        out.address(self.peer);
        out.u8(self.stage as u8);
        out.option(self.listener, Writer::u16);
        self.sending.write(out);
        self.receiving.write(out);
        out.u16(self.agreed.mss);
        out.flag(self.agreed.has_sack);
        out.option(self.agreed.stamps, |out, stamps| stamps.write(out));
        out.u64(self.received_age_ns);
        out.option(self.recovery.as_ref(), |out, recovery| recovery.write(out));
        out.option(self.attachment.as_ref(), |out, attachment| {
            out.bytes(attachment.protocol().as_bytes());
            out.data(attachment.bytes());
        });
        out.length(usize::from(self.request.is_some()) + usize::from(self.socket_options.is_some()));
        if let Some(request) = &self.request {
            out.extension(EXTENSION_REQUEST, |out| request.write(out));
        }
        if let Some(options) = &self.socket_options {
            out.extension(EXTENSION_SOCKET_OPTIONS, |out| options.write(out));
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<ConnectionState, StateError> {
        let mut state = ConnectionState {
            local: from.address()?,
            peer: from.address()?,
            stage: match from.u8()? {
                0 => Stage::Established,
                1 => Stage::FinWait1,
                2 => Stage::FinWait2,
                3 => Stage::CloseWait,
                4 => Stage::Closing,
                5 => Stage::LastAck,
                _ => return Err(StateError::Field("stage")),
            },
            listener: from.option(Reader::u16)?,
            sending: Sending::read(from)?,
            receiving: Receiving::read(from)?,
            agreed: Agreed { mss: from.u16()?, has_sack: from.flag()?, stamps: from.option(Stamps::read)? },
            received_age_ns: from.u64()?,
            recovery: from.option(Recovery::read)?,
            attachment: from.since_version_2(|from| from.option(read_attachment))?.flatten(),
            request: None,
            socket_options: None,
        };
        from.since_version_2(|from| state.read_extensions(from))?;
        Ok(state)
    }

    /// Extensions, each with a number and bytes. A reader skips those that it does not know. One that it must know has a bit
    /// among the needed features, too.
    fn read_extensions(&mut self, from: &mut Reader<'_>) -> Result<(), StateError> {
        from.each(EXTENSIONS_MAX, "extensions", |from| {
            let number = from.u16()?;
            let bytes = from.bytes(EXTENSION_BYTES_MAX, "bytes of an extension")?;
            let mut fields = Reader::new(bytes, Data::Inline);
            let is_first = match number {
                EXTENSION_REQUEST => self.request.replace(HandedRequest::read(&mut fields)?).is_none(),
                EXTENSION_SOCKET_OPTIONS => {
                    self.socket_options.replace(SocketOptions::read(&mut fields)?).is_none()
                }
                _ => return Ok(()),
            };
            if is_first && fields.is_empty() { Ok(()) } else { Err(StateError::Field("extension")) }
        })
    }
}

fn read_attachment(from: &mut Reader<'_>) -> Result<Attachment, StateError> {
    let protocol = from.bytes(PROTOCOL_BYTES_MAX, "bytes in the name of the attachment's protocol")?;
    let bytes = from.data_joined(ATTACHMENT_BYTES_MAX, "attached bytes")?;
    let protocol = core::str::from_utf8(protocol).unwrap_or_default();
    Attachment::new(protocol, bytes).map_err(|_| StateError::Field("protocol of the attachment"))
}

impl Stamps {
    fn write(self, out: &mut Writer) {
        out.u32(self.clock);
        out.option(self.recent, Writer::u32);
        out.u64(self.recent_age_ns);
    }

    fn read(from: &mut Reader<'_>) -> Result<Stamps, StateError> {
        Ok(Stamps {
            clock: from.u32()?,
            recent: from.option_since_version_2(Reader::u32)?,
            recent_age_ns: from.u64()?,
        })
    }
}

impl Sending {
    fn write(&self, out: &mut Writer) {
        out.u32(self.initial);
        for number in [self.una, self.nxt, self.window, self.window_largest] {
            out.u64(number);
        }
        out.option(self.window_update, |out, (seq, ack)| {
            out.u64(seq);
            out.u64(ack);
        });
        out.u8(self.scale);
        out.u8(self.finish as u8);
        out.flag(self.wants_room);
        out.flag(self.is_watched);
        out.u64(self.reported_acknowledged);
        out.queue(&self.queue);
    }

    fn read(from: &mut Reader<'_>) -> Result<Sending, StateError> {
        Ok(Sending {
            initial: from.u32()?,
            una: from.u64()?,
            nxt: from.u64()?,
            window: from.u64()?,
            window_largest: from.u64()?,
            window_update: from.option_since_version_2(|from| Ok((from.u64()?, from.u64()?)))?,
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
            queue: from.queue(QUEUE_BYTES_MAX, "bytes to send")?,
        })
    }
}

impl Receiving {
    fn write(&self, out: &mut Writer) {
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
            out.data(bytes);
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
                Ok((from.u64()?, from.data_joined(QUEUE_BYTES_MAX, "bytes out of order")?))
            })?,
        })
    }
}

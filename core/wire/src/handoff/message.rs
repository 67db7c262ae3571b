//! The messages of a move.

use alloc::vec::Vec;

use super::{
    FRAME_BYTES_MAX, HandoffError, Kind, MESSAGE_HEAD_BYTES, Part, Reason, STATE_BYTES_MAX, field, parts_of,
};
use crate::switch::{Endpoint, Flow, ServerId};

/// A message about one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// The flow whose connection moves.
    pub flow: Flow,
    /// The generation of the flow's entry while the target holds the flow; 0 in messages that are not about a move
    /// ([`Kind::has_generation`]), and only there.
    pub generation: u64,
    /// The kind of the message, with its fields.
    pub body: Body<'a>,
}

/// The kind of a message, with its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// From the source: a part of the connection's state, at most [`STATE_BYTES_MAX`] bytes in total.
    State(Part<'a>),
    /// From the target: the parts of the state that it has.
    Received(Received),
    /// From the target: it owns the flow.
    Accepted,
    /// From the receiver of a state, of *lent* or of *reclaim*: it will not take part, and has discarded its copy of the
    /// state.
    Refused(Reason),
    /// From the source: it owns the flow again. The target discards its copy, and returns the frames that it holds.
    TakenBack,
    /// A part of a client's frame that belongs to the connection at the receiver.
    Forward {
        /// Number of the frame: the parts of one frame have the same.
        frame: u32,
        /// A part of the Ethernet frame as the sender received it, at most [`FRAME_BYTES_MAX`] bytes in total. The
        /// receiver replaces its destination by the receiver's own place.
        part: Part<'a>,
    },
    /// From an owner whose entry the switch has lost, to the original owner: requests a move to the sender.
    Reclaim,
    /// From the original owner, instead of a state: the receiver has the connection already.
    Lent,
    /// To the origin of the request with this number: the sender has served it.
    Served(u64),
    /// To the origin of the request with this number: the connection has ended before the request was served. It may have
    /// been executed in part.
    Abandoned(u64),
    /// To the origin of the request with this number: the sender has handed it off.
    PassedOn(u64, NextServer),
    /// From the origin of the request with this number: a report about it has arrived. With a server it was the
    /// [`PassedOn`](Body::PassedOn) that names this one.
    Noted(u64, Option<NextServer>),
}

/// The server to which a request was handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextServer {
    /// The server that has the request now.
    pub id: ServerId,
    /// How often that server may hand it off.
    pub hops_left: u8,
}

/// A set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// All parts with lower numbers have arrived.
    pub through: u16,
    /// Bit *i* stands for part `through + 1 + i`.
    pub beyond: u64,
}

impl Received {
    /// Whether the set contains the part with this number.
    pub fn contains(&self, number: u16) -> bool {
        let Some(beyond) = number.checked_sub(self.through) else { return true };
        (1..=64).contains(&beyond) && self.beyond >> (beyond - 1) & 1 == 1
    }
}

impl Body<'_> {
    /// The kind of the message.
    pub const fn kind(&self) -> Kind {
        match self {
            Body::State(_) => Kind::State,
            Body::Received(_) => Kind::Received,
            Body::Accepted => Kind::Accepted,
            Body::Refused(_) => Kind::Refused,
            Body::TakenBack => Kind::TakenBack,
            Body::Forward { .. } => Kind::Forward,
            Body::Reclaim => Kind::Reclaim,
            Body::Lent => Kind::Lent,
            Body::Served(_) => Kind::Served,
            Body::Abandoned(_) => Kind::Abandoned,
            Body::PassedOn(..) => Kind::PassedOn,
            Body::Noted(..) => Kind::Noted,
        }
    }

    /// Length in bytes.
    fn length(&self) -> usize {
        match self {
            Body::State(part) => field::PART_HEAD_BYTES + part.bytes().len(),
            Body::Received(_) => field::RECEIVED_BYTES,
            Body::Refused(_) => field::REFUSED_BYTES,
            Body::Forward { part, .. } => field::FORWARD_HEAD_BYTES + part.bytes().len(),
            Body::Served(_) | Body::Abandoned(_) | Body::PassedOn(..) | Body::Noted(..) => {
                field::REPORT_BYTES
            }
            Body::Accepted | Body::TakenBack | Body::Reclaim | Body::Lent => 0,
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Body::State(part) => part.emit(out),
            Body::Received(Received { through, beyond }) => {
                out.extend_from_slice(&through.to_be_bytes());
                out.extend_from_slice(&[0; 6]);
                out.extend_from_slice(&beyond.to_be_bytes());
            }
            Body::Refused(reason) => out.extend_from_slice(&[reason.code(), 0, 0, 0, 0, 0, 0, 0]),
            Body::Forward { frame, part } => {
                out.extend_from_slice(&frame.to_be_bytes());
                part.emit(out);
            }
            Body::Served(number) | Body::Abandoned(number) => emit_report(out, *number, None),
            Body::PassedOn(number, next) => emit_report(out, *number, Some(*next)),
            Body::Noted(number, next) => emit_report(out, *number, *next),
            Body::Accepted | Body::TakenBack | Body::Reclaim | Body::Lent => {}
        }
    }

    fn parse(kind: Kind, bytes: &[u8]) -> Result<Body<'_>, HandoffError> {
        let is_empty = |body| if bytes.is_empty() { Ok(body) } else { Err(HandoffError::Trailing(kind)) };
        match kind {
            Kind::State => Part::parse(bytes, kind, STATE_BYTES_MAX).map(Body::State),
            Kind::Received => Received::parse(exactly(bytes, kind)?).map(Body::Received),
            Kind::Accepted => is_empty(Body::Accepted),
            Kind::Refused => {
                let &[reason, ref rest @ ..]: &[u8; field::REFUSED_BYTES] = exactly(bytes, kind)?;
                if *rest != [0; 7] {
                    return Err(HandoffError::Reserved);
                }
                Reason::try_from(reason).map(Body::Refused)
            }
            Kind::TakenBack => is_empty(Body::TakenBack),
            Kind::Forward => {
                let (frame, part) = bytes.split_first_chunk().ok_or(HandoffError::Truncated(kind))?;
                let part = Part::parse(part, kind, FRAME_BYTES_MAX)?;
                Ok(Body::Forward { frame: u32::from_be_bytes(*frame), part })
            }
            Kind::Reclaim => is_empty(Body::Reclaim),
            Kind::Lent => is_empty(Body::Lent),
            Kind::Served => parse_report(bytes, kind).and_then(without_next).map(Body::Served),
            Kind::Abandoned => parse_report(bytes, kind).and_then(without_next).map(Body::Abandoned),
            Kind::PassedOn => match parse_report(bytes, kind)? {
                (number, Some(next)) => Ok(Body::PassedOn(number, next)),
                (_, None) => Err(HandoffError::Missing("next server")),
            },
            Kind::Noted => parse_report(bytes, kind).map(|(number, next)| Body::Noted(number, next)),
        }
    }
}

fn emit_report(out: &mut Vec<u8>, number: u64, next: Option<NextServer>) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&next.map_or([0; 2], |next| [next.id.0, next.hops_left]));
    out.extend_from_slice(&[0; field::REPORT_BYTES - 10]);
}

fn parse_report(bytes: &[u8], kind: Kind) -> Result<(u64, Option<NextServer>), HandoffError> {
    let bytes: &[u8; field::REPORT_BYTES] = exactly(bytes, kind)?;
    let &[n0, n1, n2, n3, n4, n5, n6, n7, server, hops_left, ref rest @ ..] = bytes;
    if *rest != [0; field::REPORT_BYTES - 10] {
        return Err(HandoffError::Reserved);
    }
    let next = match (server, hops_left) {
        (0, 0) => None,
        (0, _) => return Err(HandoffError::Missing("next server")),
        (id, hops_left) => Some(NextServer { id: ServerId(id), hops_left }),
    };
    Ok((u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]), next))
}

/// The number in a report that names no other server.
fn without_next((number, next): (u64, Option<NextServer>)) -> Result<u64, HandoffError> {
    if next.is_none() { Ok(number) } else { Err(HandoffError::Unused("next server")) }
}

impl Received {
    fn parse(bytes: &[u8; field::RECEIVED_BYTES]) -> Result<Received, HandoffError> {
        let &[t0, t1, r0, r1, r2, r3, r4, r5, b0, b1, b2, b3, b4, b5, b6, b7] = bytes;
        if [r0, r1, r2, r3, r4, r5] != [0; 6] {
            return Err(HandoffError::Reserved);
        }
        let through = u16::from_be_bytes([t0, t1]);
        if usize::from(through) > parts_of(STATE_BYTES_MAX) {
            return Err(HandoffError::Part);
        }
        Ok(Received { through, beyond: u64::from_be_bytes([b0, b1, b2, b3, b4, b5, b6, b7]) })
    }
}

impl Message<'_> {
    /// The kind of the message.
    pub const fn kind(&self) -> Kind {
        self.body.kind()
    }

    /// Length of the message before it is sealed, in bytes.
    pub fn length(&self) -> usize {
        MESSAGE_HEAD_BYTES + self.body.length()
    }

    /// Appends the message, which is to be sealed, to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut head = [0; MESSAGE_HEAD_BYTES];
        (head[field::KIND], head[field::FAMILY]) = (self.kind().code(), self.flow.client().family());
        head[field::GENERATION].copy_from_slice(&self.generation.to_be_bytes());
        let (client, service) = (self.flow.client(), self.flow.service());
        head[field::CLIENT_ADDRESS].copy_from_slice(&client.address());
        head[field::CLIENT_PORT].copy_from_slice(&client.port().to_be_bytes());
        head[field::SERVICE_ADDRESS].copy_from_slice(&service.address());
        head[field::SERVICE_PORT].copy_from_slice(&service.port().to_be_bytes());
        out.extend_from_slice(&head);
        self.body.emit(out);
        debug_assert_eq!(out.len() - start, self.length(), "the length follows from the kind");
    }

    /// Parses a message that fills `bytes`, which were opened and so are authentic.
    ///
    /// # Errors
    /// The bytes are not a message of this version.
    pub fn parse(bytes: &[u8]) -> Result<Message<'_>, HandoffError> {
        let (head, body) = bytes.split_first_chunk::<MESSAGE_HEAD_BYTES>().ok_or(HandoffError::NoMessage)?;
        let kind = Kind::try_from(head[field::KIND])?;
        if head[field::MESSAGE_RESERVED] != [0; 2] {
            return Err(HandoffError::Reserved);
        }
        let flow = parse_flow(head)?;
        let generation = u64::from_be_bytes(array(head, field::GENERATION.start));
        match (kind.has_generation(), generation) {
            (false, 1..) => return Err(HandoffError::Unused("generation")),
            (true, 0) => return Err(HandoffError::Missing("generation")),
            (false, 0) | (true, 1..) => {}
        }
        Ok(Message { flow, generation, body: Body::parse(kind, body)? })
    }
}

fn parse_flow(head: &[u8; MESSAGE_HEAD_BYTES]) -> Result<Flow, HandoffError> {
    let endpoint = |address, port| Endpoint::new(array(head, address), u16::from_be_bytes(array(head, port)));
    let client = endpoint(field::CLIENT_ADDRESS.start, field::CLIENT_PORT.start);
    let service = endpoint(field::SERVICE_ADDRESS.start, field::SERVICE_PORT.start);
    let family = head[field::FAMILY];
    for (end, what) in [(client, "client"), (service, "service")] {
        if end.is_unspecified() {
            return Err(HandoffError::Missing(what));
        }
        if end.family() != family {
            return Err(HandoffError::Family(family));
        }
    }
    Flow::new(client, service).map_err(|_| HandoffError::Family(family))
}

/// `offset + N` must be within the head.
fn array<const N: usize>(head: &[u8; MESSAGE_HEAD_BYTES], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&head[offset..offset + N]);
    out
}

fn exactly<const N: usize>(bytes: &[u8], kind: Kind) -> Result<&[u8; N], HandoffError> {
    let (chunk, rest) = bytes.split_first_chunk().ok_or(HandoffError::Truncated(kind))?;
    if rest.is_empty() { Ok(chunk) } else { Err(HandoffError::Trailing(kind)) }
}

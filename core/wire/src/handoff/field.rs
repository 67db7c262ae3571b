//! Where each field is. Numbers are in network order.

use core::ops::Range;

/// In the datagram's head: [`HANDOFF_MAGIC`](super::HANDOFF_MAGIC).
pub(super) const MAGIC: Range<usize> = 0..8;
/// [`HANDOFF_VERSION`](super::HANDOFF_VERSION).
pub(super) const VERSION: usize = 8;
/// 1 greeting, 2 move.
pub(super) const FORM: usize = 9;
/// The server that sends the datagram.
pub(super) const SENDER: usize = 10;
/// The server for which the datagram is meant.
pub(super) const RECEIVER: usize = 11;
/// The number of the session between these runs; 0 in a greeting.
pub(super) const SESSION: Range<usize> = 12..16;
/// The sender's run.
pub(super) const SENDER_RUN: Range<usize> = 16..24;
/// The receiver's run; 0 in a greeting whose sender has not learned it yet.
pub(super) const RECEIVER_RUN: Range<usize> = 24..32;
/// Number of the datagram; 0 in a greeting.
pub(super) const COUNTER: Range<usize> = 32..40;

/// In a greeting's content: the number of the greeting.
pub(super) const NUMBER: Range<usize> = 0..8;
/// The number of the other end's greeting that this one answers, or 0.
pub(super) const ECHO: Range<usize> = 8..16;
/// 1: the sender waits for an answer.
pub(super) const GREETING_FLAGS: usize = 16;
/// Zero.
pub(super) const GREETING_RESERVED: Range<usize> = 17..24;

/// In a message: a [`Kind`](super::Kind).
pub(super) const KIND: usize = 0;
/// The family of client and service: 4 or 6.
pub(super) const FAMILY: usize = 1;
/// Zero.
pub(super) const MESSAGE_RESERVED: Range<usize> = 2..4;
/// The generation of the flow's entry.
pub(super) const GENERATION: Range<usize> = 4..12;
/// Address of the client.
pub(super) const CLIENT_ADDRESS: Range<usize> = 12..28;
/// Port of the client.
pub(super) const CLIENT_PORT: Range<usize> = 28..30;
/// Address of the service.
pub(super) const SERVICE_ADDRESS: Range<usize> = 30..46;
/// Port of the service.
pub(super) const SERVICE_PORT: Range<usize> = 46..48;

/// Bytes of a part's own head: total, number, zero.
pub(super) const PART_HEAD_BYTES: usize = 8;
/// Bytes before a forwarded part: the frame's number, then the part's own head.
pub(super) const FORWARD_HEAD_BYTES: usize = 4 + PART_HEAD_BYTES;
/// Bytes of *received* after the message's head: through, zero, beyond.
pub(super) const RECEIVED_BYTES: usize = 16;
/// Bytes of *refused* after the message's head: the reason, zero.
pub(super) const REFUSED_BYTES: usize = 8;
/// Bytes of a report about a request, or of its acknowledgement, after the message's head: the request's number, a server, a
/// number of hops, zero.
pub(super) const REPORT_BYTES: usize = 16;

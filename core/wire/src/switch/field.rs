//! Where each field of a control message is. Numbers are in network order, except the tag.

use core::ops::Range;

use super::{MESSAGE_BYTES, TAG_BYTES};

/// [`SWITCH_MAGIC`](super::SWITCH_MAGIC).
pub const MAGIC: Range<usize> = 0..8;
/// [`SWITCH_VERSION`](super::SWITCH_VERSION).
pub const VERSION: usize = 8;
/// A [`Kind`](super::Kind).
pub const KIND: usize = 9;
/// 0, or [`FLAG_FROM_SWITCH`](super::FLAG_FROM_SWITCH).
pub const FLAGS: Range<usize> = 10..12;
/// The server that made the message.
pub const SENDER: Range<usize> = 12..16;
/// Number of the message; increases with each message of a sender.
pub const SEQUENCE: Range<usize> = 16..24;
/// In a request the generation that the request is about, in an answer or a relayed message that of the flow's entry.
pub const GENERATION: Range<usize> = 24..32;
/// The family of client and service: 4, 6, or 0 without addresses.
pub const FAMILY: usize = 32;
/// Zero in a request; the switch leaves these bytes as received.
pub const RESERVED: Range<usize> = 33..36;
/// Address of the client.
pub const CLIENT_ADDRESS: Range<usize> = 36..52;
/// Port of the client.
pub const CLIENT_PORT: Range<usize> = 52..54;
/// Address of the service.
pub const SERVICE_ADDRESS: Range<usize> = 54..70;
/// Port of the service.
pub const SERVICE_PORT: Range<usize> = 70..72;
/// Address at which the owner or the target has the connection.
pub const OWNER_ADDRESS: Range<usize> = 72..88;
/// Port at which the owner or the target has the connection.
pub const OWNER_PORT: Range<usize> = 88..90;
/// Ethernet address of the owner or the target.
pub const OWNER_MAC: Range<usize> = 90..96;
/// The owner's load, in a unit that the servers of a service agree on.
pub const LOAD: Range<usize> = 96..100;
/// Milliseconds from the message to the deadline of its move: after it the flow returns to its owner.
pub const LIFETIME_MS: Range<usize> = 100..104;
/// A [`Status`](super::Status).
pub const STATUS: usize = 104;
/// A [`FlowState`](super::FlowState).
pub const STATE: usize = 105;
/// Connections that the owner can still import.
pub const FREE_PLACES: Range<usize> = 106..110;
/// The owner's capacity relative to that of other owners.
pub const WEIGHT: Range<usize> = 110..112;
/// Start time of the switch in nanoseconds since 1970.
pub const EPOCH: Range<usize> = 112..120;
/// SipHash-2-4 of [`TAGGED`], in little-endian order as SipHash defines its output.
pub const TAG: Range<usize> = 120..128;

/// The bytes that the tag covers.
pub const TAGGED: Range<usize> = 0..TAG.start;

const _: () = assert!(TAG.end == MESSAGE_BYTES && TAG.end - TAG.start == TAG_BYTES);

//! The control messages between servers and the switch: datagrams of 128 bytes with which a server changes the switch's
//! rules for single flows (Prism §4.2, Figure 5; Capybara §3.2).
//!
//! ```text
//! server                       switch                                             another server
//!   request: flags 0             ->
//!   <-  the same bytes as answer: flags 1, status, state, generation, owner
//!   prepare: flags 0             ->  prepare: flags 1, sender as received, the target filled in  ->
//!   <-  prepared: flags 1        <-  prepared: flags 0                                           <-
//! ```
//!
//! All kinds have one layout, the [`field`]s, because the switch answers in the received packet and changes single
//! fields of it. [`View`] does the same here. Agents of servers use [`Message`], which has only valid messages.
//!
//! The tag in the last eight bytes is a keyed hash of everything before; `spillway-auth` computes it. docs/wire.md
//! specifies the protocol.

mod codes;
mod endpoint;
mod error;
pub mod field;
mod message;
mod parse;
mod view;

pub use codes::{FlowState, Kind, Status};
pub use endpoint::{Endpoint, Flow, ServerId, Site};
pub use error::MessageError;
pub use message::{Answer, Body, Import, Message, Relay, Request, Subject};
pub use view::View;

/// Bytes of a control message.
pub const MESSAGE_BYTES: usize = 128;

/// The first bytes of a control message.
pub const SWITCH_MAGIC: [u8; 8] = *b"\xf5SPWSWCH";

/// The version of control messages.
pub const SWITCH_VERSION: u8 = 1;

/// The flag that marks a message from the switch: an answer or a relayed message. All other flags are 0.
pub const FLAG_FROM_SWITCH: u16 = 0x0001;

/// The longest lifetime of a move in milliseconds; the shortest is 1.
pub const LIFETIME_MS_MAX: u32 = 60_000;

/// Length of a tag in bytes.
pub const TAG_BYTES: usize = 8;

/// The value of [`field::FAMILY`] in a message about IPv4 addresses.
pub const FAMILY_IPV4: u8 = 4;
/// The value of [`field::FAMILY`] in a message about IPv6 addresses.
pub const FAMILY_IPV6: u8 = 6;

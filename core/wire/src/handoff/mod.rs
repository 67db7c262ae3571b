//! The messages between servers that move connections: a connection's state in numbered parts, how the move ended, and
//! frames that arrived at the wrong server (Capybara §3.3, Prism §4.2). The switch's own messages are in
//! [`switch`](crate::switch).
//!
//! ```text
//! source                                   target
//!   state: part 0, 1, …      ->
//!   <-                           received: these parts
//!   forward: late frame      ->
//!                                (the target's *own* is confirmed by the switch)
//!   <-                           accepted
//! ```
//!
//! One datagram has a [`Head`] in clear, a content, and a tag. The content is a [`Greeting`], by which two servers
//! learn each other's present run, or a sealed [`Message`]; `spillway-auth` seals. docs/wire.md specifies the protocol.

mod code;
mod error;
mod field;
mod greeting;
mod head;
mod message;
mod part;

pub use code::{Kind, Reason};
pub use error::HandoffError;
pub use greeting::Greeting;
pub use head::{Form, Head, Run};
pub use message::{Body, Message, NextServer, Received};
pub use part::{Part, parts_of};

/// The first bytes of a datagram.
pub const HANDOFF_MAGIC: [u8; 8] = *b"\xf5SPWMOVE";

/// The version of these datagrams.
pub const HANDOFF_VERSION: u8 = 1;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 40;
/// Bytes of the tag that ends a datagram.
pub const TAG_BYTES: usize = 16;
/// Bytes of a greeting's content.
pub const GREETING_CONTENT_BYTES: usize = 24;
/// Bytes of a greeting's datagram.
pub const GREETING_BYTES: usize = HEAD_BYTES + GREETING_CONTENT_BYTES + TAG_BYTES;
/// Bytes at the beginning of each message: kind, generation and flow.
pub const MESSAGE_HEAD_BYTES: usize = 48;

/// Bytes of a state or of a frame in one datagram; only the last part has fewer. Such a datagram fits the
/// smallest MTU of Ethernet, 1,500 bytes, with IPv6 and room for tunnels.
pub const PART_BYTES: usize = 1200;
/// The longest state of a connection, in bytes. Send buffers are far smaller, unless a single chunk is larger.
pub const STATE_BYTES_MAX: usize = 16 << 20;
/// The longest Ethernet frame that is forwarded, in bytes.
pub const FRAME_BYTES_MAX: usize = u16::MAX as usize;
/// The longest datagram: a forwarded part.
pub const DATAGRAM_BYTES_MAX: usize =
    HEAD_BYTES + MESSAGE_HEAD_BYTES + field::FORWARD_HEAD_BYTES + PART_BYTES + TAG_BYTES;

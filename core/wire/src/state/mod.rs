//! The state of a live TCP connection that migrates to another host.
//!
//! One format serves the user-level TCP stack and the kernel's stack; the kernel does not export
//! [`ConnectionState::recovery`] and [`Stamps::recent`]. The importing stack must check the fields of a state against each
//! other and against its own limits.
//!
//! Sequence numbers count from the SYN, which has number 0, and do not wrap; the first byte of data has number 1. The
//! sequence number in a segment is this number plus the initial sequence number, modulo 2^32. Times are relative to the
//! export, because the clocks of two hosts differ.
//!
//! Queued bytes are chunks that the state shares with the exporting stack, or with the buffer that it was read from:
//! neither [`ConnectionState::encode`] nor [`ConnectionState::decode`] copies them. docs/wire.md has the layout.
//!
//! - `connection`: the state and its fields; `recovery`: those of loss recovery; `attachment`: the application's bytes;
//!   `handed_request`: the request that moves with the connection; `socket_options`: those of the kernel's socket
//! - `features`: what a reader must know
//! - `fields`: reads and writes numbers and bytes; `layout`: head, data and checksum
//! - `error`: why bytes are not a state

mod attachment;
mod connection;
mod error;
mod features;
mod fields;
mod handed_request;
mod layout;
mod recovery;
mod socket_options;

pub use attachment::{ATTACHMENT_BYTES_MAX, Attachment, AttachmentError, PROTOCOL_BYTES_MAX};
pub use connection::{Agreed, ConnectionState, Finish, Receiving, Sending, Stage, Stamps};
pub use error::StateError;
pub use features::Features;
pub use fields::{QUEUE_BYTES_MAX, RANGES_MAX};
pub use handed_request::{HandedRequest, Purpose};
pub use recovery::{Controller, Epoch, Phase, Recovery, SEGMENTS_MAX, Segment, Undo};
pub use socket_options::{Buffer, KeepAlive, SocketOptions};

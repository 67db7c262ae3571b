//! All byte layouts that Spillway reads and writes. docs/wire.md specifies those of Spillway's own protocols.
//!
//! - [`frame`]: the seven-byte header of messages inside a batch (PostMan §4.1, Table 2)
//! - [`control`]: control messages
//! - [`disassemble`]: splits a link's stream into pieces of data and control messages
//! - [`preamble`]: the handshake at the start of a link
//! - [`record`]: the records of an encrypted link
//! - [`session`]: the messages that begin, move and acknowledge sessions
//! - [`load`]: the datagrams with which a client queries the load of a helper
//! - [`state`]: the state of a live TCP connection that migrates to another host
//! - [`handoff`]: the datagrams between servers that move connections
//! - [`switch`]: the control messages with which servers change the rules of the switch
//! - [`proxy`]: the PROXY protocol of load balancers
//! - [`packet`]: Ethernet, IP, TCP and related packets
//!
//! Parsers accept any bytes: malformed input gives an error that names the cause, never a panic.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod address;
mod chunks;
mod cursor;
mod error;

pub mod control;
pub mod disassemble;
pub mod frame;
pub mod handoff;
pub mod load;
pub mod packet;
pub mod preamble;
pub mod proxy;
pub mod record;
pub mod session;
pub mod state;
pub mod switch;

pub use bytes::Bytes;
pub use chunks::Chunks;
pub use control::{CloseReason, Connect, Control, RefuseReason};
pub use disassemble::{DisassembleError, Disassembler, Piece};
pub use error::ControlError;
pub use frame::{CONTROL_BYTES_MAX, HEADER_BYTES, Header, Id, Kind, PAYLOAD_BYTES_MAX};
pub use proxy::{PROXY_BYTES_MAX, ProxyError, ProxyHeader, parse_proxy};

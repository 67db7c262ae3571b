//! Every byte layout of Spillway; docs/wire.md lists those that are its own.
//!
//! - [`frame`]: the seven-byte header of messages inside a batch (PostMan §4.1, Table 2)
//! - [`control`]: what control messages carry
//! - [`disassemble`]: a batch taken apart, piece by piece
//! - [`preamble`]: how a link begins
//! - [`record`]: what batches are cut into on an encrypted link
//! - [`session`]: what sessions say when they begin and move
//! - [`load`]: what helpers are asked by datagram before a client comes
//! - [`state`]: a live TCP connection on its way to another host
//! - [`proxy`]: what load balancers say about their clients
//! - [`packet`]: Ethernet, IP and TCP packets, as their RFCs have them
//!
//! Parsers take any bytes. Whatever is wrong with them is an error that says what, never a panic.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod address;
mod cursor;
mod error;

pub mod control;
pub mod disassemble;
pub mod frame;
pub mod load;
pub mod packet;
pub mod preamble;
pub mod proxy;
pub mod record;
pub mod session;
pub mod state;

pub use control::{CloseReason, Connect, Control, RefuseReason};
pub use disassemble::{DisassembleError, Disassembler, Piece};
pub use error::ControlError;
pub use frame::{CONTROL_BYTES_MAX, HEADER_BYTES, Header, Id, Kind, PAYLOAD_BYTES_MAX};
pub use proxy::{PROXY_BYTES_MAX, ProxyError, ProxyHeader, parse_proxy};

//! Assembling and disassembling batches, and both ends of a link (PostMan §4.1–4.3).
//!
//! A *link* is one TCP connection between a helper, or a library client, and a server's link port. It carries
//! batches for its *virtual connections*.
//!
//! - [`policy`]: when a batch is sent
//! - [`Assembler`]: gathers frames into a batch
//! - [`OpenerLink`]: a helper's or a library client's end
//! - [`ServerLink`]: the server's end, used by the server library and the preload library
//! - [`Acceptor`]: a helper's end towards a library client, whose frames it forwards
//! - [`Scratch`]: the buffer for decrypted records of encrypted links
//! - [`AddressRules`]: which client addresses a link may carry
//! - [`Unauthenticated`]: bounds the connections that have yet to authenticate, and chooses which one to drop
//!
//! The crate does no I/O and reads no clock: the caller passes bytes and the time, and receives events and batches.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod acceptor;
mod addresses;
mod assembler;
mod batching;
mod connection;
mod error;
mod event;
mod forwarding;
mod handshake;
mod histogram;
mod id_table;
mod ids;
mod kept;
mod limits;
mod link_end;
mod opener;
mod opener_event;
mod overhead;
mod receiving;
mod records;
mod round_trips;
mod run;
mod server;
pub mod unauthenticated;

pub mod policy;

pub use acceptor::{Acceptor, AcceptorEvent};
pub use addresses::{AddressRange, AddressRules, ForbiddenAddress, RangeError};
pub use assembler::Assembler;
pub use error::{ConsumedTooMuch, LinkError};
pub use event::{Info, ServerEvent};
pub use forwarding::Received;
pub use histogram::{Batches, Histogram};
pub use id_table::IdTable;
pub use ids::IdPool;
pub use kept::Unacknowledged;
pub use limits::{CLIENT_CONNECTIONS_MAX, CONTROL_BYTES_MAX, Limits, LinkCounters};
pub use opener::OpenerLink;
pub use opener_event::{OpenError, OpenerConfig, OpenerEvent};
pub use policy::{Policy, PolicyKind};
pub use records::{Encryption, Scratch};
pub use server::{ServerConfig, ServerLink};
pub use spillway_auth::LinkRandomness;
pub use spillway_wire::preamble::{KeyId, NONCE_BYTES, Role, Verdict};
pub use spillway_wire::session::{Opening, Reconnect};
pub use spillway_wire::{CloseReason, Connect, Control, Id, Kind, RefuseReason};
pub use unauthenticated::Unauthenticated;

//! A server's part in moves of live TCP connections, without I/O: datagrams of the switch and of other servers and the
//! time go in; datagrams and [`Event`]s come out. Prism §4.2 and Capybara §3.3 have the idea, docs/moves.md the protocol.
//!
//! - [`membership`]: hello, heartbeats, and when a server must be mute; `sequences`: the numbers of its messages
//! - [`migration`]: one move, as its source and as its target see it
//! - [`buffer`]: frames that arrive at the target before the connection does
//! - `transfer`: messages between servers, with the connection's state
//! - `lent`: connections of the original owner that other servers have
//! - [`agent`]: all of a server's flows; `answers` and `relays` dispatch what arrives, `timers` sends what is due
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod agent;
mod buffer;
mod lent;
mod membership;
mod migration;
mod sequences;
mod transfer;

pub use agent::{Agent, Cause, Event, Settings, Sorted, Transmit};
pub use buffer::Held;
pub use migration::MoveTimes;

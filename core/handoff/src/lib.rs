//! A server's part in moves of live TCP connections, without I/O: datagrams of the switch and of other servers and the
//! time go in; datagrams and [`Event`]s come out. The idea is that of Prism §4.2 and Capybara §3.3; docs/moves.md
//! describes the protocol.
//!
//! - `agent`: all of a server's flows: [`Agent`] has the verbs
//! - `membership`: hello, heartbeats, and when a server must be mute; `sequences`: the numbers of its messages;
//!   `relays`: which messages of other servers the switch has relayed
//! - `migration`: one move, as its source and as its target see it
//! - `transfer`: a connection's state in numbered parts; `peers`: datagrams of other servers
//! - `buffer`: frames that arrive before their connection; `forward`: frames that arrived at the wrong server
//! - `requests`: requests that move with their connections, until their origins know how they ended
//! - `reclaim`: times of requests after the switch has lost its entries
//! - `finished`: how moves to this server have ended; `lent`: connections of the original owner that other servers have
//! - `budget`, `recent`: bounds of memory and of tables; `timed`: a table of flows with deadlines
//! - `trace`: times of the steps of moves, for measurements
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod agent;
mod budget;
mod buffer;
mod event;
mod finished;
mod forward;
mod lent;
mod loads;
mod membership;
mod migration;
mod peers;
mod recent;
mod reclaim;
mod relays;
mod requests;
mod sequences;
mod settings;
#[cfg(test)]
mod test_flow;
mod timed;
mod trace;
mod transfer;

pub use agent::{Agent, Counters};
pub use event::{Cause, Event, MoveError, MoveResult, Obstacle, PeerFault, RequestOutcome, Sorted, Transmit};
pub use loads::PeerLoad;
pub use migration::MoveTimes;
pub use settings::{Limits, Peer, Service, Settings};
pub use spillway_wire::state::{HandedRequest, Purpose};
pub use trace::{End, Step, TracedMove};

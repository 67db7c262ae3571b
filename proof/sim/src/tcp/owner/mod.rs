//! The server's side of the switch's control protocol (docs/wire.md), without I/O: datagrams, messages of other servers and
//! the time go in; datagrams, messages and [`Event`]s come out. A move follows Prism §4.2 and Capybara §3.2.
//!
//! - [`membership`]: hello, heartbeats, and when a server must be mute; `sequences`: the numbers of its messages
//! - [`source`] and [`target`]: one move each; `held_frames`: what arrives at the target before the connection does
//! - [`transfer`]: messages between servers, with the connection's state
//! - [`lent`]: connections of the original owner that other servers have
//! - [`agent`]: all of a server's flows; `answers` and `relays` dispatch what arrives, `timers` sends what is due

mod agent;
mod answers;
mod held_frames;
mod lent;
mod membership;
mod relays;
mod sequences;
mod source;
mod target;
#[cfg(test)]
mod tests;
mod timers;
mod transfer;

pub(crate) use agent::{Agent, Cause, Event, Output, Settings, Sorted};
pub(crate) use held_frames::Held;
pub(crate) use source::MoveTimes;
pub(crate) use transfer::ends_of_flow;

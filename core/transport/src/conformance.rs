//! The contract of [`Transport`] as test scenarios, for the tests of its implementations.
//!
//! An implementation provides a [`Rig`]: two connected transports, each owned by a driver that runs a [`Probe`]; one of
//! them listens. [`SCENARIOS`] are functions on a new rig; they panic when a promise is broken. In all scenarios the
//! probe checks every event: the order of events, the bytes, the grants and the turns.
//!
//! # Delays
//! Scenarios wait at most [`Rig::patience`] for a condition, and [`Rig::quiet`] before they conclude that an event does
//! *not* happen, both in the rig's own time. After `set_listening(.., false)` every transport refuses peers at once.
//! The contract leaves these delays to the transport:
//!
//! | what | kernel sockets | exact transports (a stack, a simulator) |
//! |---|---|---|
//! | `Acknowledged` after the peer's TCP acknowledged | up to 20 ms, and only while something is outstanding | at once |
//! | `Lost(Closed)` | when the host has taken the last byte and the peer has finished; with `watch_acknowledged` on, after the last `Acknowledged` | when the peer acknowledged the last byte |
//! | `handle_timeout` after its instant | the host's timer resolution, some 50 µs | at once |

mod probe;
mod scenarios;
mod vocabulary;

use core::net::SocketAddr;
use core::time::Duration;

use crate::{Time, Transport};
pub use probe::{Probe, Reaction, Seen, pattern};
pub use scenarios::SCENARIOS;

/// One scenario. The rig must be unused.
pub type Scenario = fn(&mut dyn Rig);

/// One of the two transports of a rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Has one listener, index 0, initially closed.
    Accepting,
    /// Has no listener.
    Connecting,
}

/// A command to one side's probe and transport.
pub type Command<'a> = &'a mut dyn FnMut(Time, &mut Probe, &mut dyn Transport);

/// Two transports that can reach each other and run only within `step` and `command`. Each side has at most one
/// listener, room for at least 16 connections, and no faults other than those that a scenario causes.
pub trait Rig {
    /// Runs a command on one side between two turns, then `end_of_turn`, as a driver does for its owner's commands.
    /// Sends what the command wrote, and calls `poll_timeout` again.
    fn command(&mut self, side: Side, command: Command<'_>);

    /// Runs each side for one turn. An idle turn advances the time by between 10 µs and 10 ms.
    fn step(&mut self);

    /// The rig's time.
    fn now(&self) -> Time;

    /// Address of the accepting side's listener.
    fn listener(&self) -> SocketAddr;

    /// An address without a listener, whose host refuses connections.
    fn refusing_address(&self) -> SocketAddr;

    /// How long a scenario waits for a condition before it fails.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// How long a scenario waits before it concludes that an event does not happen.
    fn quiet(&self) -> Duration {
        Duration::from_millis(60)
    }
}

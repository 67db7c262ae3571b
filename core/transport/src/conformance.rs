//! The contract of [`Transport`] as test scenarios, for the tests of whoever implements it.
//!
//! An implementation provides a [`Rig`]: a world of two transports, each owned by a driver that runs a [`Probe`],
//! one of them listening. [`SCENARIOS`] are plain functions on a fresh rig; they panic where a promise is broken.
//! Besides what a scenario asks for, the probe checks every event it sees: the order of events, the bytes, the
//! grants and the turns.
//!
//! # Delays
//! Scenarios wait for a condition for [`Rig::patience`] and watch for what must *not* happen for [`Rig::quiet`],
//! both in the rig's own time. The contract leaves these delays to the transport:
//!
//! | what | kernel sockets | exact transports (a stack, a simulator) |
//! |---|---|---|
//! | `Acknowledged` after the peer's TCP acknowledged | up to 20 ms, and only while something is outstanding | at once |
//! | `Lost(Closed)` | when the host has taken the last byte and the peer has finished; with `watch_acknowledged` on, after the last `Acknowledged` | when the peer acknowledged the last byte |
//! | refusal after `set_listening(.., false)` | at once | at once |
//! | `handle_timeout` after its instant | the host's timer resolution, some 50 µs | at once |

mod probe;
mod scenarios;
mod vocabulary;

use core::net::SocketAddr;
use core::time::Duration;

use crate::{Time, Transport};
pub use probe::{Probe, Reaction, Seen, pattern};
pub use scenarios::SCENARIOS;

/// One scenario: takes a rig that nobody has used yet.
pub type Scenario = fn(&mut dyn Rig);

/// Which of the two transports of a rig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Has one listener, of index 0, closed at first.
    Accepting,
    /// Has no listener.
    Connecting,
}

/// What a command may touch: the probe and the transport of one side.
pub type Command<'a> = &'a mut dyn FnMut(Time, &mut Probe, &mut dyn Transport);

/// A world of two transports that can reach each other, with nothing running but what `step` runs.
///
/// Each side holds one listener at most, room for at least 16 connections, and sees no fault that a scenario
/// did not make.
pub trait Rig {
    /// Runs a command on one side between two turns, then `end_of_turn`, as a driver does for commands from its
    /// owner. What the command sent leaves, and `poll_timeout` is asked again.
    fn command(&mut self, side: Side, command: Command<'_>);

    /// Runs each side for one turn. Where nothing is to be done, time goes on by between 10 µs and 10 ms.
    fn step(&mut self);

    /// The rig's time.
    fn now(&self) -> Time;

    /// Where the accepting side listens.
    fn listener(&self) -> SocketAddr;

    /// An address at which nobody ever listens, and whose host says so.
    fn nobody(&self) -> SocketAddr;

    /// A limit for any wait of a scenario: how long until it has failed.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// How long after the last command nothing more is to be expected.
    fn quiet(&self) -> Duration {
        Duration::from_millis(60)
    }
}

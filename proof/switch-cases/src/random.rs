//! Random sequences of packets and messages for two implementations of the switch, which must agree.
//!
//! A seed determines the configuration and the whole sequence: it depends on what the first implementation answers, so
//! that most messages name the generation that a flow has now.

mod coverage;
mod lockstep;
mod messages;
mod mutation;
mod traffic;
mod world;

pub use coverage::{RandomCoverage, reachable_answers};
pub use lockstep::{Difference, Lockstep, run};
pub use world::random_setup;

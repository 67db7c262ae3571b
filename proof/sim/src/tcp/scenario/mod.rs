//! Moves of connections, step by step: each message of a move is lost, late, repeated, replayed or reordered, each
//! participant dies, and each direction between two of them is cut, at each step. In this world nothing else goes wrong.
//!
//! - [`case`]: the steps and faults, by name; `script`: the moves of a run
//! - `stage`: a world whose moves follow a script; [`run`]: runs and their reports
//!
//! The switch's daemon takes no part in a move, and these worlds have none: every case is also that of a daemon that has
//! died.

pub mod case;

mod run;
mod script;
mod stage;

pub use run::{Moves, ScenarioReport, run, run_with_trace};
pub(crate) use script::Script;

//! Relief policies in the simulator: hundreds of connections of many processes, a hot server, and helpers.
//! The shipped code decides: [`Activation`](spillway_policy::Activation) and
//! [`Choice`](spillway_policy::Choice) in each process, [`Release`](spillway_policy::Release) in the server.
//! The transport is a model of queues and costs.
//!
//! - [`plan`]: the parameters that a seed draws: the course of the load, and faults of the server and of helpers
//! - `server`, `helper`: queues with measured costs
//! - `process`: a process, its connections and decisions; `moves`: connections that move
//! - [`checker`]: checks late requests and moves, outside the code under test
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`run()`]: simulates the same load with and without relief, and compares

pub mod checker;
pub mod plan;
pub mod planted_fault;

mod event;
mod helper;
mod moves;
mod process;
mod run;
mod server;
mod world;

pub use run::{Report, run, run_with_trace};

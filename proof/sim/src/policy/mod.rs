//! Relief policies in the simulator: hundreds of connections of many processes, a hot server, and helpers. Each
//! process decides with the shipped [`Activation`](spillway_policy::Activation), chooses helpers with the shipped
//! [`Choice`](spillway_policy::Choice), and the server releases with the shipped
//! [`Release`](spillway_policy::Release); the transport is a model of queues and costs.
//!
//! - [`plan`]: the parameters that a seed draws: the course of the load, and faults of the server and of helpers
//! - `server`, `helper`: queues with measured costs
//! - `process`: a process, its connections and decisions; `moves`: connections that move
//! - [`checker`]: checks late requests and moves, outside the code under test
//! - [`canary`]: planted faults that a run must detect
//! - [`run()`]: the same load with relief, and without it for comparison

pub mod canary;
pub mod checker;
pub mod plan;

mod event;
mod helper;
mod moves;
mod process;
mod run;
mod server;
mod world;

pub use run::{Report, run, run_with_trace};

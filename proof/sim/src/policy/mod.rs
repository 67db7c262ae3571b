//! When to help, in the simulator: hundreds of connections of many processes, a hot server, helpers. Each process decides
//! with the shipped [`Activation`](spillway_policy::Activation), chooses helpers with the shipped
//! [`Choice`](spillway_policy::Choice), and the server releases with the shipped [`Release`](spillway_policy::Release);
//! what carries the bytes is a model: queues and costs.
//!
//! - [`plan`]: what is drawn from the seed: the load's course, what is wrong with the server and the helpers
//! - `server`, `helper`: queues that serve one piece of work after the other, with costs as measured
//! - `process`: a process, its connections, its decisions; `moves`: those on their way
//! - [`books`]: knows who was late and who moved; stands outside the code under test
//! - [`canary`]: planted faults that a run must find
//! - [`run()`]: the same course twice: with help, and without, to compare

pub mod books;
pub mod canary;
pub mod plan;

mod happening;
mod helper;
mod moves;
mod process;
mod run;
mod server;
mod world;

pub use run::{Report, run, run_loudly};

//! Sessions in the simulator: clients move between helpers and the server itself. Links break, servers
//! restart, clocks differ, networks are partitioned, also in one direction only, and an attacker replays
//! messages. Everything except the applications is shipped code.
//!
//! - [`checker`]: checks every session, outside the code under test
//! - [`check`]: the list of checks
//! - `client`, `clients`, `client_behaviour`, `client_app`: clients, each with an application
//! - `server`, `receive`, `app`: the server and its application
//! - `copies`, `replayer`: recorded messages, and the attacker who replays them
//! - [`world`]: hosts and faults; `world_config`: the parameters drawn for them
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`run()`]: a fault phase, then a calm phase, and the report

pub mod check;
pub mod checker;
pub mod planted_fault;
pub mod world;

mod app;
mod client;
mod client_app;
mod client_behaviour;
mod clients;
mod copies;
mod receive;
mod replayer;
mod run;
mod server;
mod world_config;

pub use run::{Report, run, run_without_check};

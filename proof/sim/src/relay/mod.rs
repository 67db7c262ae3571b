//! The world of relays: clients, helpers and a server over links, with faults. Every byte is checked.
//!
//! - [`world`]: the hosts and their faults
//! - `server`, `helpers`, `clients`, `library`: the hosts' applications
//! - `settings`, `world_config`, `faults`: the parameters that a seed draws, and the effects of faults
//! - `script`: the bytes that each client sends and reads
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`run()`]: a fault phase, then a calm phase, and the report

pub mod planted_fault;
pub mod world;

pub(crate) mod clients;
mod faults;
pub(crate) mod helpers;
mod library;
mod run;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod settings;
mod world_config;

pub use run::{Report, run};

//! The world of relays: clients, helpers and a server over links, with faults; every byte is checked.
//!
//! - [`world`]: the hosts and their faults
//! - `server`, `helpers`, `clients`, `library`: the hosts' applications
//! - `settings`, `world_config`, `faults`: what a seed draws, and what faults do
//! - `script`: what each client sends and reads
//! - [`canary`]: planted faults that a run must detect
//! - [`run()`]: a storm, then calm, and the report

pub mod canary;
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

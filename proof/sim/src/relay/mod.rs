//! The world of relays: clients, helpers and a server over links, with faults; every byte is checked.
//!
//! - [`world`]: who takes part
//! - `server`, `helpers`, `clients`, `library`: the hosts
//! - `settings`, `climate`, `faults`: what a seed draws, and what goes wrong when
//! - `script`: what each client says
//! - [`canary`]: planted faults that a run must find
//! - [`run()`]: a storm, then calm, and what was found

pub mod canary;
pub mod world;

pub(crate) mod clients;
mod climate;
mod faults;
pub(crate) mod helpers;
mod library;
mod run;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod settings;

pub use run::{Report, run};

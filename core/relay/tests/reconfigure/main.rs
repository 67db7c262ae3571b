//! Reconfiguration of a running relay.
//!
//! - `services`: changes that need no new links; services and listeners that come, go and drain
//! - `links`: links that are replaced because of other keys or another server
//! - `encryption`: links that end because encryption is required now
//! - `support`: steps that all tests use

#[path = "../harness/mod.rs"]
mod harness;
mod support;

mod encryption;
mod links;
mod services;

//! A deterministic simulator: clients, helpers and a server from the shipped code, in virtual time, from a seed.
//!
//! - [`network`]: hosts and TCP connections between them; a [`port::Port`] is one host's
//!   [`Transport`](spillway_transport::Transport)
//! - [`clock`]: each host has its own
//! - [`agenda`]: everything that will happen; [`weather`]: how the network behaves
//! - [`driver`]: runs an application on it, turn by turn
//! - [`pattern`]: what the bytes of every stream are
//! - [`oracle`]: knows what every stream must carry, and stands outside the code under test
//! - [`world`]: who takes part, the weather, the faults
//! - [`session`]: another world, of sessions that move
//! - [`batching`]: a third one, without faults, in which policies of batching are compared
//! - [`policy`]: another world, of decisions when to help
//! - [`tcp`]: another world, of frames between user-level stacks
//! - `attackers`: strangers and clients that flood, in the worlds of relays and of sessions
//! - [`canary`]: planted faults that a run must find
//! - [`run()`]: a storm, then calm, and what was found; [`swarm()`]: many seeds, on all cores
//!
//! Everything comes from the seed: the same seed, number of steps and program give the same trace hash.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod batching;
pub mod canary;
pub mod clock;
pub mod driver;
pub mod network;
pub mod oracle;
pub mod pattern;
pub mod policy;
pub mod port;
pub mod rng;
pub mod session;
pub mod tcp;
pub mod weather;
pub mod world;

mod alterer;
mod attackers;
mod clients;
mod climate;
mod faults;
mod helpers;
mod library;
mod run;
mod script;
mod server;
mod settings;
mod socket;
mod storm;
mod swarm;
mod turns;
mod violations;

pub use run::{Report, run};
pub use swarm::swarm;

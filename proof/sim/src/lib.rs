//! A deterministic simulator: clients, helpers and a server from the shipped code, in virtual time, from a seed.
//!
//! Each world has a folder:
//!
//! - [`relay`]: clients, helpers and a server over links, with faults
//! - [`session`]: sessions that move
//! - [`policy`]: decisions when to help
//! - [`batching`]: without faults; policies of batching are compared
//! - [`tcp`]: frames between user-level stacks
//!
//! What worlds share:
//!
//! - [`network`]: hosts and TCP connections between them; a [`port::Port`] is one host's
//!   [`Transport`](spillway_transport::Transport)
//! - [`clock`]: each host has its own
//! - [`agenda`]: everything that will happen; [`weather`]: how the network behaves; `storm`: for how long it is bad
//! - [`driver`]: runs an application on it, turn by turn
//! - [`pattern`]: what the bytes of every stream are
//! - [`oracle`]: knows what every stream must carry, and stands outside the code under test
//! - `attackers`: strangers and clients that flood; `alterer`: somebody on the path who changes bytes
//! - [`swarm()`]: many seeds, on all cores
//!
//! Everything comes from the seed: the same seed, number of steps and program give the same trace hash.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod batching;
pub mod clock;
pub mod driver;
pub mod network;
pub mod oracle;
pub mod pattern;
pub mod policy;
pub mod port;
pub mod relay;
pub mod rng;
pub mod session;
pub mod tcp;
pub mod weather;

mod alterer;
mod attackers;
mod names;
mod socket;
mod storm;
mod swarm;
mod turns;
mod violations;

pub use swarm::swarm;

//! A deterministic simulator: clients, helpers and a server run the shipped code in virtual time, from a seed.
//!
//! A world is one simulated set of hosts with its own kinds of faults. Each world has a folder:
//!
//! - [`relay`]: clients, helpers and a server over links, with faults
//! - [`session`]: sessions that move between carriers
//! - [`policy`]: when relief starts and ends
//! - [`move_policy`]: which connections move between servers, and when
//! - [`batching`]: comparison of batch policies, without faults
//! - [`tcp`]: frames between user-level TCP stacks
//!
//! Shared by the worlds:
//!
//! - [`network`]: hosts and TCP connections between them; a [`port::Port`] is one host's
//!   [`Transport`](spillway_transport::Transport)
//! - [`clock`]: one clock per host, each with its own rate
//! - [`agenda`]: the event queue; [`conditions`]: the network's delays and sizes; `phases`: a fault phase, then calm
//! - [`driver`]: runs an application on a host, turn by turn
//! - [`pattern`]: the bytes of every stream
//! - [`oracle`]: checks every stream, outside the code under test
//! - `attackers`: peers without a key, and clients that flood; `alterer`: alters bytes on the path of links
//! - [`run_seeds()`]: runs many seeds on all cores
//!
//! Every random draw comes from the seed: equal seeds, numbers of steps and code give equal trace hashes.
#![forbid(unsafe_code)]

pub mod agenda;
pub mod batching;
pub mod clock;
pub mod conditions;
pub mod driver;
pub mod move_policy;
pub mod network;
pub mod oracle;
pub mod pattern;
pub mod policy;
pub mod port;
pub mod relay;
pub mod rng;
pub mod session;
pub mod tcp;

mod alterer;
mod attackers;
mod names;
mod phases;
mod run_seeds;
mod socket;
mod turns;
mod violations;

pub use run_seeds::run_seeds;
pub use violations::Violation;

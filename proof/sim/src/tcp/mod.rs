//! The user-level stack in the simulator: hosts with one or more [`Stack`](spillway_tcp::Stack)s, joined by a network
//! of frames.
//!
//! - [`path`]: one direction of a cable: loss, reordering, copies, damage, delay, a rate limit with a queue
//! - `plan`: the parameters that a seed draws; `world`: handles all events; `world_frames`:
//!   frames on their way, `world_owners`: what the witness learns, `world_faults`: faults, `world_control`: *hold* and
//!   *list*, `world_end`: the last checks; `host`: servers, a program and a clock
//! - `frames`: builds and reads frames; a third of the worlds has IPv6 addresses
//! - `switch`: the rules of `core/rules` between all hosts, with restarts and pauses; `cabling`: its ports; `fabric`:
//!   the switch with its cables
//! - `rack`: the servers of one service, each a server of `core/moves`; `rack_transport`: for the program they are one
//!   transport; `local`: the program as one server sees it; `directory`: where the program's connections are
//! - `standstill`: servers that are woken for ever
//! - `restart`: servers that begin anew, without their connections; `loss`: why connections may be lost
//! - `moves`: when connections move; `moving`: orders, and exports and imports in place, which `compare` checks; `transit`:
//!   connections between two servers
//! - `requests`: requests that move with their connections, and what servers learn of them
//! - `witness`: checks that never two servers transmit for one flow
//! - `program`: clients and servers, checked by the [`oracle`](crate::oracle)
//! - `rogue`: a host that violates protocols: `puppet`s (connections that misbehave), floods, noise, forged segments
//! - `sniffer`: checks every frame that a stack sends; `gates`: bytes that applications have released
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`bench`]: throughput and latency over a line, in virtual time
//! - [`scenario`]: moves step by step, with a fault at each step
//! - [`scene`]: clients, helpers and a server on the stack
//! - [`run()`]: a fault phase, then a calm phase, and the report

pub mod bench;
pub mod path;
pub mod planted_fault;
pub mod scenario;
pub mod scene;

mod cabling;
mod compare;
mod directory;
mod fabric;
mod frames;
mod gates;
mod host;
mod local;
mod loss;
mod moves;
mod moving;
mod names;
mod plan;
mod program;
mod puppet;
mod rack;
mod rack_transport;
mod requests;
mod restart;
mod rogue;
mod run;
mod sniffer;
mod standstill;
mod switch;
mod trace;
mod transit;
mod witness;
mod world;
mod world_control;
mod world_end;
mod world_faults;
mod world_frames;
mod world_owners;
mod worlds;

pub use run::{Report, run, run_with_trace};
pub use worlds::Worlds;

//! The user-level stack in the simulator: hosts with one or more [`Stack`](spillway_tcp::Stack)s, joined by a network
//! of frames.
//!
//! - [`path`]: one direction between two hosts: loss, reordering, copies, damage, delay, a rate limit with a queue
//! - `plan`: the parameters that a seed draws; `world`: handles all events; `host`: stacks, a program and a clock
//! - `rack`: several stacks behind one address; `switch`: chooses the stack that receives a frame
//! - `moves`: when connections move between stacks; `moving`: the move itself
//! - `program`: clients and servers, checked by the [`oracle`](crate::oracle)
//! - `rogue`: a host that violates protocols: `puppet`s (connections that misbehave), floods, noise, forged segments
//! - `sniffer`: checks every frame that a stack sends; `gates`: bytes that applications have released
//! - [`planted_fault`]: planted faults that a run must detect
//! - [`bench`]: throughput and latency over a line, in virtual time
//! - [`scene`]: clients, helpers and a server on the stack
//! - [`run()`]: a fault phase, then a calm phase, and the report

pub mod bench;
pub mod path;
pub mod planted_fault;
pub mod scene;

mod frames;
mod gates;
mod host;
mod moves;
mod moving;
mod plan;
mod program;
mod puppet;
mod rack;
mod rogue;
mod run;
mod sniffer;
mod switch;
mod trace;
mod world;

pub use run::{Report, run, run_with_trace};

//! The user-level stack in the simulator: hosts with a [`Stack`](spillway_tcp::Stack) each, joined by a network of frames.
//!
//! - [`path`]: one direction between two hosts: loss, reordering, copies, damage, delay, a narrow way with a queue
//! - `plan`: what is drawn from the seed; `world`: everything that happens; `host`: stacks, a program, a clock
//! - `rack`: several stacks behind one address; `switch`: where frames go; `moves`: when connections go from one to another, `moving`: how
//! - `program`: clients and servers; every byte of theirs is in the [`oracle`](crate::oracle)'s books
//! - `rogue`: who keeps no rules: `puppet`s, each a connection with a trick; floods, noise, forged segments
//! - `sniffer`: reads every frame that a stack sends and knows what it may say; `gates`: what applications have released
//! - [`canary`]: planted faults that a run must find
//! - [`bench`]: throughput and latency over a line, in virtual time
//! - [`scene`]: whole helper scenes on the stack
//! - [`run()`]: a storm, then calm, and what was found

pub mod bench;
pub mod canary;
pub mod path;
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

pub use run::{Report, run, run_loudly};

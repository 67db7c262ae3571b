//! Sessions in the simulator: clients that move between helpers and the server itself, over links that break, with
//! servers that restart, clocks that differ, ways that carry in one direction only, and somebody who says again what
//! others have said. Everything but the applications is the shipped code.
//!
//! - [`books`]: knows what every session must carry, and who knows the session; stands outside the code under test
//! - [`check`]: what the books look at
//! - `client`, `clients`, `manners`, `client_app`, `server`, `hearing`, `app`: the two ends, each with a small application
//! - `copies`, `copyist`: what was said, and somebody who says it again
//! - [`world`]: who takes part, the weather, the faults; `climate`: what is drawn for it
//! - [`canary`]: planted faults that a run must find
//! - [`run()`]: a storm, then calm, and what was found

pub mod books;
pub mod canary;
pub mod check;
pub mod world;

mod app;
mod client;
mod client_app;
mod clients;
mod climate;
mod copies;
mod copyist;
mod hearing;
mod manners;
mod run;
mod server;

pub use run::{Report, run, run_blindly};

//! Sessions in the simulator: clients that move between helpers and the server itself, over links that break, with
//! servers that restart; everything but the applications is the shipped code.
//!
//! - [`books`]: knows what every session must carry, and who knows the session; stands outside the code under test
//! - `clients`, `server`: the two ends, each with a small application
//! - [`world`]: who takes part, the weather, the faults
//! - [`canary`]: planted faults that a run must find
//! - [`run()`]: a storm, then calm, and what was found

pub mod books;
pub mod canary;
pub mod world;

mod clients;
mod run;
mod server;

pub use run::{Report, run};

//! Experiments, the demo and its report.

pub mod attackers;
pub mod calibrate;
pub mod demo;
pub mod driver;
/// The server library's example. Experiments start it as their server, by the hidden command `echo`.
#[path = "../../../face/server/examples/echo.rs"]
#[allow(dead_code, reason = "only the example itself calls `main`")]
pub mod echo;
mod error;
pub mod experiments;
pub mod generator;
pub mod goodput;
pub mod machine;
pub mod measure;
mod neighbours;
pub mod programs;
pub mod ramp;
pub mod record;
pub mod relief;
pub mod report;
pub mod results;
pub mod scenario;
pub mod scene;
pub mod served;
pub mod stage;
pub mod stats;
mod steady;
pub mod stop;
pub mod table;

pub use error::Error;

//! Experiments, the demo and its report.

pub mod calibrate;
pub mod demo;
pub mod driver;
mod error;
pub mod experiments;
pub mod generator;
pub mod goodput;
pub mod machine;
pub mod measure;
pub mod ramp;
pub mod relief;
pub mod report;
pub mod results;
pub mod scenario;
pub mod scene;
pub mod served;
pub mod stage;
pub mod stats;
mod steady;
pub mod table;

pub use error::Error;

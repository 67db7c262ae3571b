//! Batch policies compared offline: generated arrivals, the shipped ends of a link, and a server model with CPU
//! costs.
//!
//! - [`load`]: when clients send requests
//! - [`server`]: CPU cost of batches and messages
//! - [`world`]: a helper's link between clients and server, in virtual time
//! - [`judge`]: comparison of policies
//!
//! This is a model to choose policies by, not a measurement: costs are those of `docs/measurements.md`, and all other
//! delays are the same for all policies.

pub mod judge;
pub mod load;
pub mod server;
pub mod world;

pub use judge::{Contest, Judged, ratios};
pub use load::{Arrivals, Course, RATES_PER_S, Step};
pub use server::{Costs, Quota};
pub use world::{Figures, Setting, play};

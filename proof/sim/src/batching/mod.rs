//! Comparison of batch policies in virtual time, with random arrivals, the shipped ends of a link, and a
//! model of a server's CPU costs.
//!
//! - [`load`]: times at which clients send requests
//! - [`server`]: CPU cost of batches and messages
//! - [`world`]: the link of a helper between clients and server
//! - [`judge`]: comparison of policies
//!
//! The model helps to choose policies; it measures nothing. Costs are those of `docs/measurements.md`. All
//! other delays have the same distributions for all policies.

pub mod judge;
pub mod load;
pub mod server;
pub mod world;

pub use judge::{BatchingComparison, RatiosToReference, ratios};
pub use load::{Arrivals, LoadCourse, RATES_PER_S, Step};
pub use server::{Costs, Quota};
pub use world::{Figures, Setting, simulate};

//! Comparison of batch policies in virtual time: random arrivals, the shipped ends of a link, and a model of a server's
//! CPU costs.
//!
//! - [`load`]: times at which clients send requests
//! - [`server`]: CPU cost of batches and messages
//! - [`world`]: a helper's link between clients and server, in virtual time
//! - [`judge`]: comparison of policies
//!
//! The model serves to choose policies; it is not a measurement. Costs are those of `docs/measurements.md`, and all
//! other delays are the same for all policies.

pub mod judge;
pub mod load;
pub mod server;
pub mod world;

pub use judge::{BatchingComparison, RatiosToReference, ratios};
pub use load::{Arrivals, LoadCourse, RATES_PER_S, Step};
pub use server::{Costs, Quota};
pub use world::{Figures, Setting, simulate};

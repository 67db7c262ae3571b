//! Policies of batching compared offline: traces of arrivals, the shipped ends of a link, a server that costs.
//!
//! - [`load`]: who asks when
//! - [`server`]: what batches and messages cost a server, and when it has done with them
//! - [`world`]: a helper's link between the two, in virtual time
//! - [`judge`]: which policy is the best, and by how much
//!
//! This is a model to choose policies by, not a measurement: costs are those of `docs/measurements.md`, and everything
//! else takes the same time for everybody.

pub mod judge;
pub mod load;
pub mod server;
pub mod world;

pub use judge::{Contest, Judged, ratios};
pub use load::{Arrivals, Course, RATES_PER_S, Step};
pub use server::{Costs, Quota};
pub use world::{Figures, Setting, play};

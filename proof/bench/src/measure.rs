//! Measurements: what the hosts used, what clients saw, and whether the figures are valid.
//!
//! - `usage`: CPU use and other counters between two moments
//! - `step`: a measurement at a fixed rate
//! - `validity`: reasons for which a measurement is not valid

mod step;
mod usage;
mod validity;

pub use crate::table::ms;
pub use step::Step;
pub use usage::{BatchCount, Snapshot, Used};
pub(crate) use validity::{OTHERS_PERCENT_MAX, QUOTA_SHARE_MAX, QUOTA_SHARE_SATURATED, measure_until_valid};
pub use validity::{disturbed, not_saturated, spoilt_by, stopped, too_busy};

//! Load generator that verifies every reply.
//!
//! One thread drives thousands of connections, at most one request outstanding on each, and compares every byte
//! that comes back with what it must be. In the open loop requests are due at the times of a seeded process;
//! latency counts from then, also when the request had to wait in the client. Everything is reported in bins by
//! that intended time, in a form that the reports of several generators can be merged exactly.
//!
//! [`run()`] does a run, [`config::Config`] says what it is, [`report`] holds what it measured.

pub mod arrivals;
mod clock;
pub mod config;
pub mod control;
mod error;
pub mod fill;
pub mod histogram;
pub mod keys;
pub mod output;
pub mod protocol;
mod queue;
mod random;
pub mod report;
mod run;
mod samples;
mod signals;
mod worker;

pub use clock::monotonic_ns;
pub use config::Config;
pub use error::Error;
pub use report::Report;
pub use run::{Surroundings, run};

/// Whether a run must count as failed: replies were wrong or lost, or (unless allowed) connections went away.
/// Being slow is not a failure.
pub fn failed(config: &Config, report: &Report) -> bool {
    let everything = report.span(0, u64::MAX).summary();
    everything.wrong > 0
        || (!config.allow_resets && (everything.lost > 0 || everything.resets > 0))
        || (config.allow_resets && everything.lost > everything.resets)
}

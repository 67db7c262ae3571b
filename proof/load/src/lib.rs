//! Load generator that verifies every reply.
//!
//! A thread drives thousands of connections, with at most one outstanding request on each, and compares each reply
//! with the expected reply, byte by byte. In the open loop, seeded random numbers determine the intended send time of each
//! request, and latency counts from that time, also when the request waits in the client. Figures are reported in bins
//! by intended send time, so that the reports of several generators merge exactly.
//!
//! [`run()`] executes a run, [`config::Config`] holds its options, [`report`] its measurements.

pub mod arrivals;
mod clock;
pub mod command;
pub mod config;
pub mod control;
mod engine;
mod error;
pub mod fill;
pub mod histogram;
pub mod keys;
pub mod objects;
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
pub use run::{RunIo, run};

/// Whether a run has failed: a reply was wrong, or a request or a connection was lost. With
/// [`Config::allow_resets`], lost connections are not a failure if at most one request is lost for each of them. Late replies are not a failure.
pub fn failed(config: &Config, report: &Report) -> bool {
    let total = report.span(0, u64::MAX).summary();
    total.wrong > 0
        || (!config.allow_resets && (total.lost > 0 || total.resets > 0))
        || (config.allow_resets && total.lost > total.resets)
}

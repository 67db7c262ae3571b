//! Stopping an experiment early by a signal.
//!
//! A signal ends everything in the laboratory at once. What the experiment does next fails, so it unwinds by the way of
//! every other error, states the rounds that it has, and its [results are written](crate::record), marked as incomplete.

use std::time::Duration;

use crate::error::Error;

/// How long an experiment may take after a signal to state what it has.
const STATES_WITHIN: Duration = Duration::from_secs(30);

/// Lets a signal stop an experiment instead of ending this process at once; a second signal ends it.
pub fn by_signals() {
    spillway_lab::finish_within(STATES_WITHIN);
}

/// Fails once a signal has asked to stop: for loops in which nothing else would fail then.
pub(crate) fn check() -> Result<(), Error> {
    match spillway_lab::interrupted() {
        Some(signal) => Err(Error::Usage(interrupted(signal))),
        None => Ok(()),
    }
}

/// Why a course ended that failed with this error. After a signal most errors are its consequences.
pub(crate) fn reason(error: &Error) -> String {
    spillway_lab::interrupted().map_or_else(|| error.to_string(), interrupted)
}

fn interrupted(signal: i32) -> String {
    format!("interrupted by signal {signal}")
}

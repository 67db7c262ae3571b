//! Stops an experiment early after a signal.
//!
//! A signal ends all programs of the laboratory at once. The experiment's next operation then fails. The
//! error is handled like any other: [the results so far are written](crate::record), marked as incomplete.

use std::time::Duration;

use crate::error::Error;

/// Time for writing the results after a signal.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// Lets a termination signal, such as SIGINT, stop an experiment; a second one ends this process at once.
pub fn on_signals() {
    spillway_lab::set_exit_grace(WRITE_TIME_MAX);
}

/// Fails after a signal. Call it in loops in which no other operation would fail.
pub(crate) fn check() -> Result<(), Error> {
    match spillway_lab::interrupted() {
        Some(signal) => Err(Error::Usage(interrupted(signal))),
        None => Ok(()),
    }
}

/// Why an experiment ended: the signal, if there was one, because it causes most later errors; else `error`.
pub(crate) fn reason(error: &Error) -> String {
    spillway_lab::interrupted().map_or_else(|| error.to_string(), interrupted)
}

fn interrupted(signal: i32) -> String {
    format!("interrupted by signal {signal}")
}

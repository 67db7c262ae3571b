//! Sends load queries to helpers, as a library client does.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_client::{LinkTarget, LoadQueries, LoadQueryOutcome};

/// Waits for the outcome, at most 60 s: longer than a query takes on a busy machine.
pub fn outcome(queries: &mut LoadQueries) -> LoadQueryOutcome {
    let start = Instant::now();
    loop {
        let mut descriptors = [PollFd::new(&*queries, PollFlags::IN)];
        poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 5_000_000 })).unwrap();
        queries.handle_ready();
        if let Some(outcome) = queries.poll(Instant::now()) {
            return outcome;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "a query should end within 60 s");
    }
}

pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

pub fn query(targets: &[LinkTarget]) -> LoadQueryOutcome {
    outcome(&mut LoadQueries::start_within(Instant::now(), targets, 2, ANSWER_TIMEOUT).unwrap())
}

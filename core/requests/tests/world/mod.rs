//! Conversations of a client and a server, played through a tracker.

// Each test file uses some of these functions only.
#![allow(dead_code)]

use std::time::Duration;

use spillway_requests::{GaveUp, Protocol, Reply, Tracker};
use spillway_transport::Time;

#[derive(Clone, Debug)]
pub enum Step {
    Asks(Vec<u8>),
    Answers(Vec<u8>),
}

pub fn asks(text: impl AsRef<[u8]>) -> Step {
    Step::Asks(text.as_ref().to_vec())
}

pub fn answers(text: impl AsRef<[u8]>) -> Step {
    Step::Answers(text.as_ref().to_vec())
}

/// The results of a tracker at the end of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub latencies: Vec<Option<Duration>>,
    pub gave_up: Option<GaveUp>,
    pub is_idle: Option<bool>,
    pub pending_since: Option<Time>,
}

/// Plays a conversation with a step each 10 ns. `cuts` returns the length of the next piece, given the bytes that
/// remain.
pub fn play(protocol: Protocol, steps: &[Step], mut cuts: impl FnMut(usize) -> usize) -> Outcome {
    let mut tracker = Tracker::new(protocol);
    let mut latencies = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let now = Time(at as u64 * 10);
        let (Step::Asks(bytes) | Step::Answers(bytes)) = step;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(cuts(rest.len()).clamp(1, rest.len()));
            match step {
                Step::Asks(_) => tracker.requests(now, piece),
                Step::Answers(_) => tracker.replies(now, piece, |Reply { latency }| latencies.push(latency)),
            }
            rest = after;
        }
    }
    let (gave_up, again) = (tracker.poll_gave_up(), tracker.poll_gave_up());
    assert_eq!(again, None, "the reason is reported once");
    Outcome { latencies, gave_up, is_idle: tracker.is_idle(), pending_since: tracker.pending_since() }
}

/// Plays the steps whole, in single bytes and in pieces of three bytes, and asserts that the outcomes are equal.
#[track_caller]
pub fn outcome(protocol: Protocol, steps: &[Step]) -> Outcome {
    let whole = play(protocol, steps, |all| all);
    for size in [1, 3] {
        assert_eq!(play(protocol, steps, |_| size), whole, "in pieces of {size}: {steps:?}");
    }
    whole
}

/// Expects replies with these latencies in ns (0: not measured), and an idle connection after them.
#[track_caller]
pub fn expect(protocol: Protocol, steps: &[Step], latencies: &[u64]) {
    let outcome = outcome(protocol, steps);
    let observed: Vec<u64> =
        outcome.latencies.iter().map(|latency| latency.map_or(0, |time| time.as_nanos() as u64)).collect();
    assert_eq!((observed.as_slice(), outcome.gave_up), (latencies, None), "{steps:?}");
    assert_eq!((outcome.is_idle, outcome.pending_since), (Some(true), None), "{steps:?}");
}

#[track_caller]
pub fn expect_gave_up(protocol: Protocol, steps: &[Step], why: GaveUp) {
    let outcome = outcome(protocol, steps);
    assert_eq!(
        (outcome.gave_up, outcome.is_idle, outcome.pending_since),
        (Some(why), None, None),
        "{steps:?}"
    );
}

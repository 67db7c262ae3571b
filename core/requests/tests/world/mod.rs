//! Conversations of a client and a server, played through a tracker.

#![allow(dead_code, reason = "each test program uses only some of these items")]

use std::time::Duration;

use spillway_requests::{Protocol, StopReason, Tracker};
use spillway_transport::Time;

#[derive(Clone, Debug)]
pub enum Step {
    FromClient(Vec<u8>),
    FromServer(Vec<u8>),
}

pub fn from_client(text: impl AsRef<[u8]>) -> Step {
    Step::FromClient(text.as_ref().to_vec())
}

pub fn from_server(text: impl AsRef<[u8]>) -> Step {
    Step::FromServer(text.as_ref().to_vec())
}

/// The results of a tracker at the end of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub latencies: Vec<Option<Duration>>,
    pub stop_reason: Option<StopReason>,
    pub is_idle: Option<bool>,
    pub pending_since: Option<Time>,
}

/// Plays a conversation with a step each 10 ns. `piece_bytes` returns the length of the next piece, given the number of
/// remaining bytes.
pub fn play(protocol: Protocol, steps: &[Step], mut piece_bytes: impl FnMut(usize) -> usize) -> Outcome {
    let mut tracker = Tracker::new(protocol);
    let mut latencies = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let now = Time(index as u64 * 10);
        let (Step::FromClient(bytes) | Step::FromServer(bytes)) = step;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(piece_bytes(rest.len()).clamp(1, rest.len()));
            match step {
                Step::FromClient(_) => tracker.requests(now, piece),
                Step::FromServer(_) => tracker.replies(now, piece, |reply| latencies.push(reply.latency)),
            }
            rest = after;
        }
    }
    let (stop_reason, repeated) = (tracker.poll_stop_reason(), tracker.poll_stop_reason());
    assert_eq!(repeated, None, "the reason should be reported once");
    Outcome { latencies, stop_reason, is_idle: tracker.is_idle(), pending_since: tracker.pending_since() }
}

/// Plays the steps whole, in single bytes and in pieces of three bytes, and asserts that the outcomes are equal.
#[track_caller]
pub fn outcome(protocol: Protocol, steps: &[Step]) -> Outcome {
    let whole = play(protocol, steps, |remaining| remaining);
    for size in [1, 3] {
        assert_eq!(
            play(protocol, steps, |_| size),
            whole,
            "pieces of {size} bytes should have the outcome of one piece: {steps:?}"
        );
    }
    whole
}

/// Expects replies with these latencies in ns (0: not measured), and an idle connection after them.
#[track_caller]
pub fn expect_latencies(protocol: Protocol, steps: &[Step], latencies: &[u64]) {
    let outcome = outcome(protocol, steps);
    let observed: Vec<u64> =
        outcome.latencies.iter().map(|latency| latency.map_or(0, |time| time.as_nanos() as u64)).collect();
    assert_eq!(
        (observed.as_slice(), outcome.stop_reason),
        (latencies, None),
        "the latencies should be measured: {steps:?}"
    );
    assert_eq!(
        (outcome.is_idle, outcome.pending_since),
        (Some(true), None),
        "the connection should be idle at the end: {steps:?}"
    );
}

#[track_caller]
pub fn expect_stop_reason(protocol: Protocol, steps: &[Step], reason: StopReason) {
    let outcome = outcome(protocol, steps);
    assert_eq!(
        (outcome.stop_reason, outcome.is_idle, outcome.pending_since),
        (Some(reason), None, None),
        "the measurement should stop with its reason: {steps:?}"
    );
}

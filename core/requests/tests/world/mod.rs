//! Conversations: what a client sends, what its server answers, and when.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::time::Duration;

use spillway_requests::{GaveUp, Protocol, Reply, Tracker};
use spillway_transport::Time;

/// A step of a conversation.
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

/// What a tracker made of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Of each reply.
    pub latencies: Vec<Option<Duration>>,
    pub gave_up: Option<GaveUp>,
    pub is_idle: Option<bool>,
    pub pending_since: Option<Time>,
}

/// Plays a conversation: each step comes 10 ns after the one before, cut into pieces as `cuts` says.
pub fn play(protocol: Protocol, steps: &[Step], mut cuts: impl FnMut(usize) -> usize) -> Heard {
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
    assert_eq!(again, None, "told once");
    Heard { latencies, gave_up, is_idle: tracker.is_idle(), pending_since: tracker.pending_since() }
}

/// The conversation in one piece a step, in single bytes, and in pieces of three: the same is heard.
#[track_caller]
pub fn heard(protocol: Protocol, steps: &[Step]) -> Heard {
    let whole = play(protocol, steps, |all| all);
    for size in [1, 3] {
        assert_eq!(play(protocol, steps, |_| size), whole, "in pieces of {size}: {steps:?}");
    }
    whole
}

/// Expects replies with these latencies in ns (0: no measure), and that nothing is left.
#[track_caller]
pub fn expect(protocol: Protocol, steps: &[Step], latencies: &[u64]) {
    let heard = heard(protocol, steps);
    let told: Vec<u64> =
        heard.latencies.iter().map(|latency| latency.map_or(0, |time| time.as_nanos() as u64)).collect();
    assert_eq!((told.as_slice(), heard.gave_up), (latencies, None), "{steps:?}");
    assert_eq!((heard.is_idle, heard.pending_since), (Some(true), None), "{steps:?}");
}

#[track_caller]
pub fn expect_gave_up(protocol: Protocol, steps: &[Step], why: GaveUp) {
    let heard = heard(protocol, steps);
    assert_eq!((heard.gave_up, heard.is_idle, heard.pending_since), (Some(why), None, None), "{steps:?}");
}

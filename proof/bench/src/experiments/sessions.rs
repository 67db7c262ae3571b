//! Experiments on sessions, which outlive a helper and may move by their own policy.

pub mod activation;
pub mod failover;
pub mod session_cost;
pub mod sidecar;

use super::{Experiment, Needs};
use crate::experiments::figures::{Figure, Paper};

/// In the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 4] = [
    Experiment {
        name: "failover",
        question: "how soon sessions go on when their helper is killed, stopped or cut off, and what that loses",
        paper: "PostMan, Figure 11: 1 s timeout + 0.4 s for 1,000 connections, nothing lost",
        figures: &[Figure::new(Paper::PostMan, "F11")],
        needs: Needs { root: true, minutes: 4 },
        run: failover::run,
    },
    Experiment {
        name: "session-cost",
        question: "what a session adds to a request's cost at the server, helped and direct, and on the wire",
        paper: "none: PostMan, §4.2, says \"buffer and release\"",
        figures: &[],
        needs: Needs { root: true, minutes: 6 },
        run: session_cost::run,
    },
    Experiment {
        name: "activation",
        question: "how often clients that decide for themselves switch while load swings around the threshold, and how long a \
                   burst is late",
        paper: "none: PostMan, §5.3, says how helpers are enabled and disabled, not how often",
        figures: &[],
        needs: Needs { root: true, minutes: 17 },
        run: activation::run,
    },
    Experiment {
        name: "sidecar",
        question: "what a sidecar adds to a request on an idle service: time, and CPU of its own, by protocol",
        paper: "none: PostMan's clients are linked with its library",
        figures: &[],
        needs: Needs { root: true, minutes: 4 },
        run: sidecar::run,
    },
];

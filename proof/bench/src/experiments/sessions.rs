//! Experiments on sessions, which outlive a helper and may move by their own policy.

pub mod activation;
pub mod failover;
pub mod session_cost;
pub mod sidecar;

use super::{Experiment, Needs};
use crate::experiments::figures::{Figure, Paper};

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 4] = [
    Experiment {
        name: "failover",
        question: "how soon sessions recover when their helper is killed, stopped or cut off, and whether they lose data",
        paper: "PostMan, Figure 11: 1 s timeout + 0.4 s for 1,000 connections, nothing lost",
        figures: &[Figure::new(Paper::PostMan, "F11")],
        needs: Needs { root: true, minutes: 4 },
        run: failover::run,
    },
    Experiment {
        name: "session-cost",
        question: "what a session adds to a request's CPU time at the server and bytes on the wire, helped and direct",
        paper: "none: PostMan, §4.2, says \"buffer and release\"",
        figures: &[],
        needs: Needs { root: true, minutes: 6 },
        run: session_cost::run,
    },
    Experiment {
        name: "activation",
        question: "how often clients with a policy of their own switch while load swings around the threshold, and for how long \
                   replies are late in a burst",
        paper: "none: PostMan, §5.3, says how helpers are enabled and disabled, not how often",
        figures: &[],
        needs: Needs { root: true, minutes: 17 },
        run: activation::run,
    },
    Experiment {
        name: "sidecar",
        question: "latency that a sidecar adds to a request on an idle service, and its own CPU time, by protocol",
        paper: "none: PostMan's clients are linked with its library",
        figures: &[],
        needs: Needs { root: true, minutes: 4 },
        run: sidecar::run,
    },
];

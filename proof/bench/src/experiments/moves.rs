//! Experiments on moves of live connections between servers.

mod distribution;
mod ends;
pub mod handoff;
pub mod load;
pub mod migration;
mod site;
mod thread_cpu;

use super::figures::{Figure, Paper};
use super::{Experiment, Needs};

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 3] = [
    Experiment {
        name: "migration",
        question: "CPU time and duration of a move of a connection between two servers through a switch, by phase and by the bytes that \
               the connection has queued; how long its client waits",
        paper: "Capybara, Figures 4 and 5: 3.7 µs of CPU time at both hosts for a move without queued data, and its distribution over \
            10,000 moves",
        figures: &[Figure::new(Paper::Capybara, "F4"), Figure::new(Paper::Capybara, "F5")],
        needs: Needs { root: true, minutes: 4 },
        run: migration::run,
    },
    Experiment {
        name: "migration-load",
        question: "p99 and number of moves when the connections of one server are too many for it, without moves and with each policy; p99 \
               of forced moves that take longer",
        paper: "Capybara, Figure 1: p99 below 500 µs while a move takes at most 200 µs, steeper at the higher rate; its successor: 4 \
            moves instead of 20",
        figures: &[Figure::new(Paper::Capybara, "F1")],
        needs: Needs { root: true, minutes: 12 },
        run: load::run,
    },
    Experiment {
        name: "handoff",
        question: "duration of a hand-off of a request with its connection, by step and direction, between servers on the kernel's sockets \
               and on the user-level stack; CPU time of both hosts; what the client waits",
        paper: "Prism, Table 1: 232 µs for a cycle of two hand-offs, 118 of them without TLS",
        figures: &[Figure::new(Paper::Prism, "T1")],
        needs: Needs { root: true, minutes: 4 },
        run: handoff::run,
    },
];

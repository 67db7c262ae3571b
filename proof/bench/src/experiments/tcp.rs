//! Experiments on the user-level TCP stack, and on the behaviour of kernel peers on which the stack depends.

pub mod coexist;
pub mod engine;
pub mod gate;
mod kernel_peer;
pub mod move_state;
pub mod stack;
pub mod tcp_interop;

use super::{Experiment, Needs};

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "stack",
        question: "CPU time of a message of 64 B in the user-level stack, compared with smoltcp, and in a helper on it; no network card",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, 1,040 ns a core with the card",
        figures: &[],
        needs: Needs { root: false, minutes: 8 },
        run: stack::run,
    },
    Experiment {
        name: "move-state",
        question: "time to move a connection from one user-level stack to another, by the bytes that it has buffered",
        paper: "Capybara, §6: 3.7 µs of host work for a migration, without queued data",
        figures: &[],
        needs: Needs { root: false, minutes: 2 },
        run: move_state::run,
    },
    Experiment {
        name: "tcp-interop",
        question: "throughput and latency between the user-level stack and Linux, compared with Linux and Linux, with loss and reordering",
        paper: "none: PostMan and Capybara take their stacks' speed for granted",
        figures: &[],
        needs: Needs { root: true, minutes: 12 },
        run: tcp_interop::run,
    },
    Experiment {
        name: "gate",
        question: "how Linux reacts to acknowledgements that are delayed by 0 to 500 ms: goodput, latency, retransmissions",
        paper: "none: PostMan, §4.2, acknowledges a request when the server has it, and does not say what that does to clients",
        figures: &[],
        needs: Needs { root: true, minutes: 5 },
        run: gate::run,
    },
    Experiment {
        name: "engine",
        question: "CPU time of a frame in a helper's engine by stage (driver, rings, crossing, stack, relay), on TAP and on AF_XDP; frames in a turn; effect of `busy_poll`",
        paper: "PostMan, Figure 10: 1,040 ns of a core for a message with the card (10 cores ÷ 9.6 M/s); eRPC: 100 ns",
        figures: &[],
        needs: Needs { root: true, minutes: 5 },
        run: engine::run,
    },
    Experiment {
        name: "coexist",
        question: "throughput and p99 of a kernel memcached that shares its interface with a helper on AF_XDP, compared with a program that passes all packets, and with none",
        paper: "none: PostMan's helper has the network card to itself (DPDK)",
        figures: &[],
        needs: Needs { root: true, minutes: 12 },
        run: coexist::run,
    },
];

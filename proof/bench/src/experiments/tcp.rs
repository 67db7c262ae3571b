//! Experiments on the user-level TCP stack, and on the behaviour of kernel peers on which the stack depends.

pub mod coexist;
pub mod engine;
pub mod gate;
mod kernel_peer;
pub mod move_state;
pub mod stack;
pub mod tcp_interop;

use super::{Experiment, Needs};

/// In the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 6] = [
    Experiment {
        name: "stack",
        question: "what a message of 64 B costs in the user-level stack, beside smoltcp, and in a helper on it; no network card",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, 1,040 ns a core with the card",
        figures: &[],
        needs: Needs { root: false, minutes: 8 },
        run: stack::run,
    },
    Experiment {
        name: "move-state",
        question: "how long a connection takes to leave one user-level stack and go on in another, by what waits in it",
        paper: "Capybara, §6: 3.7 µs of host work for a migration, without queued data",
        figures: &[],
        needs: Needs { root: false, minutes: 2 },
        run: move_state::run,
    },
    Experiment {
        name: "tcp-interop",
        question: "how many bytes a second and how soon answers come between the user-level stack and Linux, beside Linux and Linux, with loss and reordering",
        paper: "none: PostMan and Capybara take their stacks' speed for granted",
        figures: &[],
        needs: Needs { root: true, minutes: 12 },
        run: tcp_interop::run,
    },
    Experiment {
        name: "gate",
        question: "what Linux makes of acknowledgements that come 0 to 500 ms late: goodput, latency, what it sends again",
        paper: "none: PostMan, §4.2, acknowledges a request when the server has it, and does not say what that does to clients",
        figures: &[],
        needs: Needs { root: true, minutes: 5 },
        run: gate::run,
    },
    Experiment {
        name: "engine",
        question: "what a frame costs a helper's engine by stage (driver, rings, crossing, stack, relay), on TAP and on AF_XDP; frames in a turn; what `busy_poll` changes",
        paper: "PostMan, Figure 10: 1,040 ns of a core for a message with the card (10 cores ÷ 9.6 M/s); eRPC: 100 ns",
        figures: &[],
        needs: Needs { root: true, minutes: 5 },
        run: engine::run,
    },
    Experiment {
        name: "coexist",
        question: "what a helper on AF_XDP costs a kernel memcached on the same interface: throughput and p99, beside a program that passes all packets, and beside none",
        paper: "none: PostMan's helper has the network card to itself (DPDK)",
        figures: &[],
        needs: Needs { root: true, minutes: 12 },
        run: coexist::run,
    },
];

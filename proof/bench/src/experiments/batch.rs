//! Experiments on batching helpers (PostMan).

pub mod adaptive;
pub mod attacks;
pub mod burst;
pub mod client_cost;
pub mod helper_cost;
pub mod helpers;
pub mod load_latency;
pub mod loss;
pub mod payload;
pub mod server_cost;
pub mod slow_machine;
pub mod table1;

use super::{Experiment, Needs};
use crate::experiments::figures::{Figure, Paper};

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 13] = [
    Experiment {
        name: "burst",
        question: "how much more a helped server serves within the SLA, how fast clients move, when the SLA is kept again, CPU costs",
        paper: "PostMan, Figure 4 and §6.1: goodput 3.3×, 660 clients moved in 550 ms, relief below 1 s",
        figures: &[Figure::new(Paper::PostMan, "F4")],
        needs: Needs { root: true, minutes: 12 },
        run: burst::run,
    },
    Experiment {
        name: "server-cost",
        question: "the server's CPU time of a request: plain, with the preload library, in batches of 1 to 200, through helpers",
        paper: "PostMan, §6.1 and Figure 8: more GETs and no more SETs; gains up to 400 B (8 cores) or 1,460 B (one core)",
        figures: &[],
        needs: Needs { root: true, minutes: 9 },
        run: server_cost::run,
    },
    Experiment {
        name: "helper-cost",
        question: "CPU time of a round trip in a helper, compared with nginx, haproxy and nutcracker",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, on a user-level stack (DPDK)",
        figures: &[],
        needs: Needs { root: true, minutes: 16 },
        run: helper_cost::run,
    },
    Experiment {
        name: "client-cost",
        question: "the clients' CPU time of a request on kernel sockets and on the user-level stack; whether the server's differs",
        paper: "none: the laboratory's own cost",
        figures: &[],
        needs: Needs { root: true, minutes: 3 },
        run: client_cost::run,
    },
    Experiment {
        name: "load-latency",
        question: "p99 by load, GET and SET, direct and with 1 to 3 helpers; at which loads helpers lower it",
        paper: "PostMan, Figure 6: GETs from 2 M to 6 M messages/s with up to five helpers; SETs never (bound by locks)",
        figures: &[Figure::new(Paper::PostMan, "F6")],
        needs: Needs { root: true, minutes: 13 },
        run: load_latency::run,
    },
    Experiment {
        name: "payload",
        question: "throughput at payloads of 64 B to 32 KB, direct and helped; up to which payload helping raises it",
        paper: "PostMan, Figure 8: helping gives more below 400 B (server of 8 cores) or 1,460 B (one core)",
        figures: &[Figure::new(Paper::PostMan, "F8")],
        needs: Needs { root: true, minutes: 6 },
        run: payload::run,
    },
    Experiment {
        name: "payload-stack",
        question: "as payload, with the echo server on the user-level stack, whose cost of a message is lower: up to which \
                   payload helping raises its throughput",
        paper: "PostMan, Figure 9: on IX, helping gives more below 260 B (server of 8 cores) or 920 B (one core)",
        figures: &[Figure::new(Paper::PostMan, "F9")],
        needs: Needs { root: true, minutes: 6 },
        run: payload::run_on_stack,
    },
    Experiment {
        name: "helpers",
        question: "throughput of 1 to 4 helpers when the server is not the limit, and their CPU time of a request",
        paper: "PostMan, Figure 10: almost linear in the number of helpers",
        figures: &[Figure::new(Paper::PostMan, "F10")],
        needs: Needs { root: true, minutes: 4 },
        run: helpers::run,
    },
    Experiment {
        name: "table1",
        question: "throughput of small and of large messages through the kernel's stack, and the CPU time of each",
        paper: "PostMan, Table 1 and §1: 64 B 2.4 Gbit/s by 8 cores, 64 KB 9.1 Gbit/s by 2.2",
        figures: &[Figure::new(Paper::PostMan, "T1")],
        needs: Needs { root: true, minutes: 4 },
        run: table1::run,
    },
    Experiment {
        name: "adaptive",
        question: "batch policies under a load that rises and falls, by p99 and server CPU; the best compared with adaptive",
        paper: "PostMan, Figure 12: size and interval of batches follow the load",
        figures: &[Figure::new(Paper::PostMan, "F12")],
        needs: Needs { root: true, minutes: 17 },
        run: adaptive::run,
    },
    Experiment {
        name: "loss",
        question: "p99 with 0, 0.1 and 1 % of lost packets, direct and helped",
        paper: "none: PostMan was measured without loss",
        figures: &[],
        needs: Needs { root: true, minutes: 4 },
        run: loss::run,
    },
    Experiment {
        name: "slow-machine",
        question: "whether relief succeeds in the demo with cores slowed to a half and a third, 10 runs each \
                   (the machine must be quiet)",
        paper: "none: PostMan was measured on one kind of machine",
        figures: &[],
        needs: Needs { root: true, minutes: 25 },
        run: slow_machine::run,
    },
    Experiment {
        name: "attacks",
        question: "effects of strangers, clients with a key, slow readers and a stuck log collector on honest clients and on \
                   memory",
        paper: "none: PostMan assumes a trusted network",
        figures: &[],
        needs: Needs { root: true, minutes: 6 },
        run: attacks::run,
    },
];

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

/// In the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 12] = [
    Experiment {
        name: "burst",
        question: "how much more a helped server serves in time, how fast clients move, when relief is felt, what it costs",
        paper: "PostMan, Figure 4 and §6.1: goodput 3.3×, 660 clients moved in 550 ms, relief below 1 s",
        figures: &[Figure::new(Paper::PostMan, "F4")],
        needs: Needs { root: true, minutes: 12 },
        run: burst::run,
    },
    Experiment {
        name: "server-cost",
        question: "what a request costs the server: plain, with the shim, in batches of 1 to 200, through helpers",
        paper: "PostMan, §6.1 and Figure 8: more GETs and no more SETs; gains up to 400 B (8 cores) or 1,460 B (one core)",
        figures: &[],
        needs: Needs { root: true, minutes: 9 },
        run: server_cost::run,
    },
    Experiment {
        name: "helper-cost",
        question: "what a round trip costs in the middle, beside nginx, haproxy and nutcracker",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, on a user-level stack (DPDK)",
        figures: &[],
        needs: Needs { root: true, minutes: 16 },
        run: helper_cost::run,
    },
    Experiment {
        name: "client-cost",
        question: "what a request costs the clients on kernel sockets and on the user-level stack; whether the server notices",
        paper: "none: the laboratory's own cost",
        figures: &[],
        needs: Needs { root: true, minutes: 3 },
        run: client_cost::run,
    },
    Experiment {
        name: "load-latency",
        question: "p99 at which load, GET and SET, direct and with 1 to 3 helpers; from where to where helping pays",
        paper: "PostMan, Figure 6: GETs from 2 M to 6 M messages/s with up to five helpers; SETs never (bound by locks)",
        figures: &[Figure::new(Paper::PostMan, "F6")],
        needs: Needs { root: true, minutes: 13 },
        run: load_latency::run,
    },
    Experiment {
        name: "payload",
        question: "how much goes through at payloads of 64 B to 8 KB, direct and helped; up to which payload helping gives more",
        paper: "PostMan, Figure 8: helping gives more below 400 B (server of 8 cores) or 1,460 B (one core)",
        figures: &[Figure::new(Paper::PostMan, "F8")],
        needs: Needs { root: true, minutes: 6 },
        run: payload::run,
    },
    Experiment {
        name: "helpers",
        question: "what 1 to 4 helpers get through when the server is not the limit, and what a request costs them",
        paper: "PostMan, Figure 10: almost linear in the number of helpers",
        figures: &[Figure::new(Paper::PostMan, "F10")],
        needs: Needs { root: true, minutes: 4 },
        run: helpers::run,
    },
    Experiment {
        name: "table1",
        question: "how much of small and of large messages goes through the kernel's stack, and what each costs",
        paper: "PostMan, Table 1 and §1: 64 B 2.4 Gbit/s by 8 cores, 64 KB 9.1 Gbit/s by 2.2",
        figures: &[Figure::new(Paper::PostMan, "T1")],
        needs: Needs { root: true, minutes: 4 },
        run: table1::run,
    },
    Experiment {
        name: "adaptive",
        question: "policies of batching under a load that goes up and down, by p99 and server CPU; the best against adaptive",
        paper: "PostMan, Figure 12: size and interval of batches follow the load",
        figures: &[Figure::new(Paper::PostMan, "F12")],
        needs: Needs { root: true, minutes: 17 },
        run: adaptive::run,
    },
    Experiment {
        name: "loss",
        question: "what 0, 0.1 and 1 % of lost packets do to p99, direct and helped",
        paper: "none: PostMan was measured without loss",
        figures: &[],
        needs: Needs { root: true, minutes: 4 },
        run: loss::run,
    },
    Experiment {
        name: "slow-machine",
        question: "whether the demo ends relieved on a machine whose cores are slowed to a half and a third, 10 runs each \
                   (the machine must be quiet)",
        paper: "none: PostMan was measured on one kind of machine",
        figures: &[],
        needs: Needs { root: true, minutes: 25 },
        run: slow_machine::run,
    },
    Experiment {
        name: "attacks",
        question: "what strangers, clients with a key, slow readers and a stuck log collector do to honest clients, and how much \
                   memory they take",
        paper: "none: PostMan trusts its network",
        figures: &[],
        needs: Needs { root: true, minutes: 6 },
        run: attacks::run,
    },
];

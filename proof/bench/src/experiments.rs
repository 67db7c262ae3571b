//! The experiments that `spillway-lab bench` runs, by name.

pub mod activation;
pub mod adaptive;
pub mod attacks;
pub mod burst;
pub mod failover;
pub mod gate;
pub mod helper_cost;
pub mod helpers;
pub mod load_latency;
pub mod loss;
pub mod move_state;
pub mod payload;
pub mod server_cost;
pub mod session_cost;
pub mod sidecar;
pub mod slow_machine;
pub mod stack;
pub mod table1;
pub mod tcp_interop;

mod curves;
mod kernel_peer;
mod rates;
mod rounds;
mod saturation;
mod script;

use std::io::Write;

use crate::error::Error;
use crate::results::Results;
use crate::scene::Setting;
use crate::table::Table;

/// How an experiment is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Within two minutes: fewer rounds, and the less important parts left out.
    pub quick: bool,
    /// The scene, for experiments that have it.
    pub setting: Setting,
}

/// One experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// The paper's figure that it answers, and its value.
    pub paper: &'static str,
    /// Runs it; tells about it as it goes.
    pub run: fn(&Options, &mut dyn Write) -> Result<Results, Error>,
}

/// All experiments.
pub const ALL: [Experiment; 19] = [
    Experiment {
        name: "burst",
        question: "how much more a helped server serves in time, how fast clients move, when relief is felt, what it costs",
        paper: "PostMan, Figure 4 and §6.1: goodput 3.3×, 660 clients moved in 550 ms, relief below 1 s",
        run: burst::run,
    },
    Experiment {
        name: "server-cost",
        question: "what a request costs the server: plain, with the shim, in batches of 1 to 200, through helpers",
        paper: "PostMan, §6.1 and Figure 8: more GETs and no more SETs; gains up to 400 B (8 cores) or 1,460 B (one core)",
        run: server_cost::run,
    },
    Experiment {
        name: "helper-cost",
        question: "what a round trip costs in the middle, beside nginx, haproxy and nutcracker",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, on a user-level stack (DPDK)",
        run: helper_cost::run,
    },
    Experiment {
        name: "load-latency",
        question: "p99 at which load, GET and SET, direct and with 1 to 3 helpers; from where to where helping pays",
        paper: "PostMan, Figure 6: GETs from 2 M to 6 M messages/s with up to five helpers; SETs never (bound by locks)",
        run: load_latency::run,
    },
    Experiment {
        name: "payload",
        question: "how much goes through at payloads of 64 B to 8 KB, direct and helped; up to which payload helping gives more",
        paper: "PostMan, Figure 8: helping gives more below 400 B (server of 8 cores) or 1,460 B (one core)",
        run: payload::run,
    },
    Experiment {
        name: "helpers",
        question: "what 1 to 4 helpers get through when the server is not the limit, and what a request costs them",
        paper: "PostMan, Figure 10: almost linear in the number of helpers",
        run: helpers::run,
    },
    Experiment {
        name: "table1",
        question: "how much of small and of large messages goes through the kernel's stack, and what each costs",
        paper: "PostMan, Table 1 and §1: 64 B 2.4 Gbit/s by 8 cores, 64 KB 9.1 Gbit/s by 2.2",
        run: table1::run,
    },
    Experiment {
        name: "adaptive",
        question: "policies of batching under a load that goes up and down, by p99 and server CPU; the best against adaptive",
        paper: "PostMan, Figure 12: size and interval of batches follow the load",
        run: adaptive::run,
    },
    Experiment {
        name: "loss",
        question: "what 0, 0.1 and 1 % of lost packets do to p99, direct and helped",
        paper: "none: PostMan was measured without loss",
        run: loss::run,
    },
    Experiment {
        name: "failover",
        question: "how soon sessions go on when their helper is killed, stopped or cut off, and what that loses",
        paper: "PostMan, Figure 11: 1 s timeout + 0.4 s for 1,000 connections, nothing lost",
        run: failover::run,
    },
    Experiment {
        name: "session-cost",
        question: "what a session adds to a request's cost at the server, helped and direct, and on the wire",
        paper: "none: PostMan, §4.2, says \"buffer and release\"",
        run: session_cost::run,
    },
    Experiment {
        name: "activation",
        question: "how often clients that decide for themselves switch while load swings around the threshold, and how long a \
                   burst is late",
        paper: "none: PostMan, §5.3, says how helpers are enabled and disabled, not how often",
        run: activation::run,
    },
    Experiment {
        name: "sidecar",
        question: "what a sidecar adds to a request on an idle service: time, and CPU of its own, by protocol",
        paper: "none: PostMan's clients are linked with its library",
        run: sidecar::run,
    },
    Experiment {
        name: "slow-machine",
        question: "whether the demo ends relieved on a machine whose cores are slowed to a half and a third, 10 runs each (25 \
                   minutes; the machine must be quiet)",
        paper: "none: PostMan was measured on one kind of machine",
        run: slow_machine::run,
    },
    Experiment {
        name: "attacks",
        question: "what strangers, clients with a key, slow readers and a stuck log collector do to honest clients, and how much \
                   memory they take",
        paper: "none: PostMan trusts its network",
        run: attacks::run,
    },
    Experiment {
        name: "stack",
        question: "what a message of 64 B costs in the user-level stack, beside smoltcp, and in a helper on it; no network card",
        paper: "PostMan, Figure 10: 9.6 M messages/s a helper node, 1,040 ns a core with the card",
        run: stack::run,
    },
    Experiment {
        name: "move-state",
        question: "how long a connection takes to leave one user-level stack and go on in another, by what waits in it",
        paper: "Capybara, §6: 3.7 µs of host work for a migration, without queued data",
        run: move_state::run,
    },
    Experiment {
        name: "tcp-interop",
        question: "how many bytes a second and how soon answers come between the user-level stack and Linux, beside Linux and Linux, with loss and reordering",
        paper: "none: PostMan and Capybara take their stacks' speed for granted",
        run: tcp_interop::run,
    },
    Experiment {
        name: "gate",
        question: "what Linux makes of acknowledgements that come 0 to 500 ms late: goodput, latency, what it sends again",
        paper: "none: PostMan, §4.2, acknowledges a request when the server has it, and does not say what that does to clients",
        run: gate::run,
    },
];

/// The experiment of this name.
pub fn named(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}

/// All experiments, for people.
pub fn list() -> Table {
    let mut table = Table::new(["name", "what it asks", "paper"]).left(1).left(2);
    for Experiment { name, question, paper, .. } in &ALL {
        table.row([*name, *question, *paper]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_found_by_name_and_listed() {
        assert!(named("burst").is_some() && named("no-such").is_none());
        let list = list().to_string();
        assert!(ALL.iter().all(|e| list.contains(e.name) && list.contains(e.paper)));
        let mut names: Vec<_> = ALL.iter().map(|e| e.name).collect();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
        assert!(!names.contains(&"list") && !names.contains(&"all"), "those words mean something else");
    }
}

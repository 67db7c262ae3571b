//! Effects of attackers with a tenth of a core on honest clients: p99, failed requests, and the memory of
//! helper and server. Honest clients connect through a helper, directly, and through a sidecar. Further ones
//! open new connections all the time, and each round starts a helper, which needs a new link.
//!
//! Each attack has its own servers, helper and sidecar. A round is a quiet measurement and one under attack; ratios
//! compare within a round.

mod findings;
mod new_connections;
mod setup;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;

use crate::error::Error;
use crate::experiments::common::rounds::print_line;
use crate::experiments::{Options, selects};
use crate::results::Results;
use crate::scene::{Setting, quota_text};
use crate::stage::Stage;
use crate::stop;
use setup::Setup;

/// Quota of all attackers together.
const QUOTA: Quota = Quota { percent_of_core: 10.0, period: Duration::from_millis(10) };
/// Offered rate on each of the three paths, in requests a second.
const RATE_PER_S: f64 = 400.0;
const CONNECTIONS: u32 = 20;
const MAX_MEMORY_MIB: u64 = 64;

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Ids of the attacks to run.
    pub attacks: Vec<&'static str>,
    /// Valid rounds of each attack.
    pub rounds: usize,
    /// Maximum number of repetitions of spoilt rounds, for each attack.
    pub spoilt_max: usize,
    /// Pause between the start of an attack and its measurement, and after the attack.
    pub settle: Duration,
    /// Length of each measurement.
    pub length: Duration,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            attacks: ids(),
            rounds: 5,
            spoilt_max: 3,
            settle: Duration::from_millis(1_000),
            length: Duration::from_millis(3_000),
        }
    }

    /// The effort of a quick run: about three minutes.
    pub fn quick() -> Effort {
        Effort { rounds: 2, spoilt_max: 0, length: Duration::from_millis(1_500), ..Effort::full() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Attack {
    /// Suffix of ratio names.
    pub id: &'static str,
    pub description: &'static str,
    pub method: Method,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// A program of [`crate::attackers`], with the number of connections that it holds.
    Attacker { name: &'static str, count: usize, target: Target },
    /// Helper, sidecar and server log lines to a standard error with this fault.
    Logs(Stderr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    LinkPorts,
    /// The link port at which the helper accepts library clients.
    HelperLink,
    ServerLink,
    /// The port at which the helper accepts plain clients.
    HelperPlain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stderr {
    /// A pipe without a reader.
    Broken,
    /// A full pipe whose reader does not read.
    Full,
}

pub(super) const ATTACKS: [Attack; 8] = [
    Attack {
        id: "D1",
        description: "standard error is a pipe without a reader, and lines are logged",
        method: Method::Logs(Stderr::Broken),
    },
    Attack {
        id: "D2",
        description: "standard error is a full pipe whose reader does not read, and lines are logged",
        method: Method::Logs(Stderr::Full),
    },
    Attack {
        id: "D4",
        description: "strangers without a key hold 400 connections to link ports, and reopen them",
        method: Method::Attacker { name: "strangers", count: 400, target: Target::LinkPorts },
    },
    Attack {
        id: "D5",
        description: "a client with a key provokes refusals at the helper without end, and never reads",
        method: Method::Attacker { name: "refusals", count: 1, target: Target::HelperLink },
    },
    Attack {
        id: "D5b",
        description: "the same at the server",
        method: Method::Attacker { name: "refusals", count: 1, target: Target::ServerLink },
    },
    Attack {
        id: "D6",
        description: "a client with a key holds 100 links to the server, each with one connection of the highest id",
        method: Method::Attacker { name: "high-ids", count: 100, target: Target::ServerLink },
    },
    Attack {
        id: "D7",
        description: "300 plain clients of the helper request values of 1 MB, and never read",
        method: Method::Attacker { name: "slow-readers", count: 300, target: Target::HelperPlain },
    },
    Attack {
        id: "D9",
        description: "a client with a key sends credit frames to the helper without end",
        method: Method::Attacker { name: "credits", count: 1, target: Target::HelperLink },
    },
];

pub(crate) fn ids() -> Vec<&'static str> {
    ATTACKS.iter().map(|attack| attack.id).collect()
}

/// Paths of honest clients to the server. All arrays of three in this experiment have this order.
pub(super) const PATHS: [&str; 3] = ["helper", "direct", "sidecar"];

/// One round of an attack: p99 of each path in µs, quiet and under attack. `None` if it falls among unanswered
/// requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Round {
    pub quiet_us: [Option<f64>; 3],
    pub attacked_us: [Option<f64>; 3],
    /// Time until a new helper had its link; `None` if that took too long.
    pub link_ms: Option<f64>,
    /// Why the p99 are not valid: other work on the machine, or stolen time.
    pub spoilt: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct AttackResult {
    pub attack: Attack,
    pub rounds: Vec<Round>,
    /// Requests of honest clients; each new connection counts as one.
    pub requests: u64,
    /// Requests without a correct reply.
    pub failed: u64,
    /// The first failures.
    pub problems: Vec<String>,
    /// Peak memory of the helper, in MiB.
    pub helper_rss_mib: f64,
    /// Peak memory of the server beyond its memory before the attack, in MiB.
    pub server_grown_mib: f64,
    /// Why the attack could not be completed: it ended a program, or a program did not start.
    pub ended: Option<String>,
}

impl AttackResult {
    fn new(attack: Attack) -> AttackResult {
        AttackResult {
            attack,
            rounds: Vec::new(),
            requests: 0,
            failed: 0,
            problems: Vec::new(),
            helper_rss_mib: 0.0,
            server_grown_mib: 0.0,
            ended: None,
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let mut effort = if options.quick { Effort::quick() } else { Effort::full() };
    effort.attacks.retain(|id| selects(&options.only, id));
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::create("attacks", setting)?;
    let attackers = stage.attackers(QUOTA)?;
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    machine.lab.insert(
        "attackers".into(),
        format!("{}; links of version 3, not encrypted", quota_text(Some(QUOTA))),
    );
    machine.lab.insert(
        "honest clients".into(),
        format!("{CONNECTIONS} connections and {RATE_PER_S}/s on each of three paths, and new connections"),
    );
    machine.lab.insert("helper".into(), format!("1 thread, max_memory {MAX_MEMORY_MIB} MiB"));
    let mut attack_results = Vec::new();
    let selected = ATTACKS.iter().filter(|attack| effort.attacks.contains(&attack.id));
    let outcome = selected.into_iter().try_for_each(|&attack| {
        stop::check()?;
        print_line(out, format_args!("{}: {}", attack.id, attack.description));
        // A failure under attack, even at the start, is a finding and not an error of the experiment.
        let result = match Setup::start(&stage, &attackers, setting, attack) {
            Ok(setup) => setup.run(effort, out),
            Err(error) => AttackResult { ended: Some(error.to_string()), ..AttackResult::new(attack) },
        };
        stop::check()?;
        print_line(out, format_args!("  {}", findings::summary(&result)));
        attack_results.push(result);
        Ok(())
    });
    let outcome = outcome.and_then(|()| stage.close());
    let mut results = Results::new("attacks", machine);
    findings::add_results(&attack_results, &mut results);
    Ok(results.with_outcome(outcome))
}

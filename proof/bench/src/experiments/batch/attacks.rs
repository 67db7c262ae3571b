//! What attackers with a tenth of a core do to honest clients: their p99, their failed requests, and the memory of helper and
//! server. Honest clients come through a helper, directly, and through a sidecar; others connect anew all the time, and in each
//! attack a helper is started that needs a new link.
//!
//! Each attack has servers, helper and sidecar of its own. Its rounds are a quiet measurement and one under attack, in turn;
//! ratios compare within a round.

mod cast;
mod findings;
mod newcomers;

use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::say;
use crate::results::Results;
use crate::scene::{Setting, quota_words};
use crate::stage::Stage;
use crate::stop;
use cast::Cast;

/// What attackers have.
const QUOTA: Quota = Quota { percent_of_core: 10.0, period: Duration::from_millis(10) };
/// Offered on each way, in requests a second.
const RATE_PER_S: f64 = 400.0;
/// Honest connections on each way.
const CONNECTIONS: u32 = 20;
/// The helper's limit.
const MAX_MEMORY_MIB: u64 = 64;

/// How much is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Which attacks, by their ids.
    pub attacks: Vec<&'static str>,
    /// Rounds of each that must not be spoilt.
    pub rounds: usize,
    /// Spoilt rounds are done again, so many times in all for each attack.
    pub spoilt_max: usize,
    /// Between the beginning of an attack and its measurement, and after its end.
    pub settle: Duration,
    /// Of each measurement.
    pub length: Duration,
}

impl Effort {
    /// What figures need.
    pub fn full() -> Effort {
        Effort {
            attacks: ids(),
            rounds: 5,
            spoilt_max: 3,
            settle: Duration::from_millis(1_000),
            length: Duration::from_millis(3_000),
        }
    }

    /// What three minutes allow.
    pub fn quick() -> Effort {
        Effort { rounds: 2, spoilt_max: 0, length: Duration::from_millis(1_500), ..Effort::full() }
    }
}

/// One attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attack {
    /// What names of ratios end with.
    pub id: &'static str,
    /// What is done.
    pub what: &'static str,
    pub by: By,
}

/// Who attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A program of ours: its name, how many connections it holds, and whom it attacks.
    Attacker { name: &'static str, count: usize, at: At },
    /// Nobody: standard error of helper, sidecar and server takes nothing, and lines are logged.
    Logs(Stderr),
}

/// Whom attackers connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Link ports of helper and server.
    LinkPorts,
    /// The link port at which the helper accepts library clients.
    HelperLink,
    /// The server's link port.
    ServerLink,
    /// The port at which the helper accepts plain clients.
    HelperPlain,
}

/// What is wrong with standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stderr {
    /// A pipe whose reader is gone.
    Broken,
    /// A full pipe whose reader is stuck.
    Full,
}

pub(super) const ATTACKS: [Attack; 8] = [
    Attack {
        id: "D1",
        what: "standard error is a pipe whose reader is gone, and lines are logged",
        by: By::Logs(Stderr::Broken),
    },
    Attack {
        id: "D2",
        what: "standard error is a full pipe whose reader is stuck, and lines are logged",
        by: By::Logs(Stderr::Full),
    },
    Attack {
        id: "D4",
        what: "strangers without a key hold 400 connections to link ports, and reopen them",
        by: By::Attacker { name: "strangers", count: 400, at: At::LinkPorts },
    },
    Attack {
        id: "D5",
        what: "a client with a key provokes refusals at the helper without end, and never reads",
        by: By::Attacker { name: "refusals", count: 1, at: At::HelperLink },
    },
    Attack {
        id: "D5b",
        what: "the same at the server",
        by: By::Attacker { name: "refusals", count: 1, at: At::ServerLink },
    },
    Attack {
        id: "D6",
        what: "a client with a key holds 100 links to the server, each with one connection of the highest id",
        by: By::Attacker { name: "high-ids", count: 100, at: At::ServerLink },
    },
    Attack {
        id: "D7",
        what: "300 plain clients of the helper ask for values of 1 MB, and never read",
        by: By::Attacker { name: "slow-readers", count: 300, at: At::HelperPlain },
    },
    Attack {
        id: "D9",
        what: "a client with a key sends credit frames to the helper without end",
        by: By::Attacker { name: "credits", count: 1, at: At::HelperLink },
    },
];

/// Ids of all attacks.
pub(crate) fn ids() -> Vec<&'static str> {
    ATTACKS.iter().map(|attack| attack.id).collect()
}

/// Ways of honest clients, in the order of all lists of three.
pub(super) const WAYS: [&str; 3] = ["helper", "direct", "sidecar"];

/// One round of an attack: p99 of each way in µs, quiet and under attack; `None` where it falls among what was not answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Round {
    pub quiet_us: [Option<f64>; 3],
    pub attacked_us: [Option<f64>; 3],
    /// How long a new helper took to get its link; `None` if it got none in time.
    pub link_ms: Option<f64>,
    /// Why its p99 show nothing, if so: others were at work, or the machine was stopped.
    pub spoilt: Option<String>,
}

/// Everything about one attack.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub attack: Attack,
    pub rounds: Vec<Round>,
    /// Requests of honest clients, and those without a right reply; new connections count as requests.
    pub requests: u64,
    pub failed: u64,
    /// The first failures.
    pub troubles: Vec<String>,
    /// The most memory that the helper has had, and the server beyond what it had before the attack, in MiB.
    pub helper_rss_mib: f64,
    pub server_grown_mib: f64,
    /// The attack ended the service, so that it could not be carried out to its end.
    pub ended: Option<String>,
}

impl Seen {
    /// Nothing yet.
    fn new(attack: Attack) -> Seen {
        Seen {
            attack,
            rounds: Vec::new(),
            requests: 0,
            failed: 0,
            troubles: Vec::new(),
            helper_rss_mib: 0.0,
            server_grown_mib: 0.0,
            ended: None,
        }
    }
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let mut effort = if options.quick { Effort::quick() } else { Effort::full() };
    effort.attacks.retain(|id| options.only.is_empty() || options.only.iter().any(|only| only == id));
    run_with(&options.setting, &effort, out)
}

/// Runs it with so much effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let stage = Stage::set("attacks", setting)?;
    let attackers = stage.attackers(QUOTA)?;
    let mut machine = stage.machine(&[("memcached", "-V")])?;
    machine.lab.insert(
        "attackers".into(),
        format!("{}; links of version 3, not encrypted", quota_words(Some(QUOTA))),
    );
    machine.lab.insert(
        "honest clients".into(),
        format!("{CONNECTIONS} connections and {RATE_PER_S}/s on each of three ways; a new connection on each all the time"),
    );
    machine.lab.insert("helper".into(), format!("1 thread, max_memory {MAX_MEMORY_MIB} MiB"));
    let mut all = Vec::new();
    let wanted = ATTACKS.iter().filter(|attack| effort.attacks.contains(&attack.id));
    let course = wanted.into_iter().try_for_each(|&attack| {
        stop::check()?;
        say(out, format_args!("{}: {}", attack.id, attack.what));
        // What an attack breaks, at the start too, is a finding and no error.
        let seen = match Cast::start(&stage, &attackers, setting, attack) {
            Ok(cast) => cast.play(effort, out),
            Err(error) => Seen { ended: Some(error.to_string()), ..Seen::new(attack) },
        };
        stop::check()?;
        say(out, format_args!("  {}", findings::words(&seen)));
        all.push(seen);
        Ok(())
    });
    let course = course.and_then(|()| stage.close());
    let mut results = Results::new("attacks", machine);
    findings::state(&all, &mut results);
    Ok(results.after(course))
}

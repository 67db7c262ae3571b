//! Tail latency of servers whose connections move, under an open-loop load (Capybara, Figure 1).
//!
//! **Courses**: the connections of one server send more than the server can serve; either those of the same server all the time
//! (*skew*), or those of another server every 400 ms (*steps*). Without moves, and with each policy of the servers.
//!
//! **Forced moves**: both servers have the same load, and orders move connections to and fro at a fixed rate. After each export
//! the source stops for a time, as if its moves took longer.
//!
//! The servers are key-value and HTTP servers whose requests take a fixed time, for which they wait without using the CPU
//! (`spillway-lab kv --work`, `http --work`): on a machine with two cores, a server is then overloaded long before a core is.

mod courses;
mod findings;
mod forced;
mod generators;

use std::io::Write;
use std::time::Duration;

use spillway_load::config::ProtocolKind;

use crate::error::Error;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line, spoilt_suffix};
use crate::experiments::{Options, selects};
use crate::machine::Machine;
use crate::results::{Check, Results};
use crate::scene::Setting;
use crate::steady::Steady;

use courses::Course;
use forced::Forced;
use generators::Figures;

/// The parts that `--only` selects.
pub const PARTS: [&str; 2] = ["policies", "delays"];
/// Connections over all servers, as in the paper.
const CONNECTIONS: u32 = 150;
/// Time that a request takes.
const WORK: Duration = Duration::from_micros(200);
/// What one server can serve, in requests a second.
const CAPACITY_PER_S: f64 = 5_000.0;
/// The largest p99: that of requests without a reply.
const P99_US_MAX: f64 = 10e6;

/// The servers' rule for moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Connections stay.
    None,
    /// Capybara's rule.
    Reactive,
    /// Few moves, early.
    Proactive,
}

impl Policy {
    const ALL: [Policy; 3] = [Policy::None, Policy::Reactive, Policy::Proactive];

    fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Reactive => "reactive",
            Policy::Proactive => "proactive",
        }
    }
}

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Protocols and numbers of servers of the courses.
    pub scenes: Vec<(ProtocolKind, usize)>,
    /// Length of a course.
    pub course: Duration,
    /// Length of a measurement with forced moves.
    pub forced: Duration,
    /// Times for which a server stops after each export.
    pub delays: Vec<Duration>,
    /// Connections over all servers.
    pub connections: u32,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 5,
            scenes: vec![(ProtocolKind::Memcached, 2), (ProtocolKind::Http, 3)],
            course: Duration::from_secs(3),
            // 10,000 moves with each delay over all rounds.
            forced: Duration::from_millis(2_500),
            delays: [0, 50, 100, 200, 300, 500].map(Duration::from_micros).into(),
            connections: CONNECTIONS,
        }
    }

    /// The effort of a quick run: less than two minutes.
    pub fn quick() -> Effort {
        let time = Duration::from_secs(2);
        let delays = [0, 200, 500].map(Duration::from_micros).into();
        Effort { rounds: 1, course: time, forced: time, delays, ..Effort::full() }
    }
}

/// All rounds.
#[derive(Debug, Default)]
struct Measured {
    courses: Vec<(Course, Rounds<Figures>)>,
    forced: Vec<(Forced, Rounds<Figures>)>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    offered: u64,
    moves: u64,
    wrong: u64,
    /// Requests and connections that were lost, at clients and at servers.
    lost: u64,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &options.only, out)
}

/// Runs some parts of the experiment, or all of them if `only` is empty, with a given effort.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let steady = Steady::start(setting.idle_cores_poll);
    let mut machine = Machine::held(&steady);
    machine.lab.insert(
        "service time".into(),
        format!("{WORK:?} a request, waited for: {CAPACITY_PER_S} requests a second and server"),
    );
    machine.lab.insert("connections".into(), effort.connections.to_string());
    let mut measured = Measured::default();
    let bench = Bench { setting, effort, steady: &steady };
    let mut outcome = Ok(());
    if selects(only, "policies") {
        outcome = bench.measure_courses(&mut measured, &mut machine, out);
    }
    if outcome.is_ok() && selects(only, "delays") {
        outcome = bench.measure_forced(&mut measured, &mut machine, out);
    }
    let mut results = Results::new("migration-load", machine);
    findings::add(&measured, &mut results);
    results.checks = measured.counts.checks();
    Ok(results.with_outcome(outcome))
}

/// What all measurements share.
#[derive(Clone, Copy)]
struct Bench<'a> {
    setting: &'a Setting,
    effort: &'a Effort,
    steady: &'a Steady,
}

impl Bench<'_> {
    fn measure_courses(
        &self,
        measured: &mut Measured,
        machine: &mut Machine,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let all: Vec<Course> = Course::all(&self.effort.scenes).collect();
        measured.courses = all.iter().map(|course| (*course, Rounds::default())).collect();
        measurement_order(self.effort.rounds, all.len()).try_for_each(|(round, index)| {
            let course = all[index];
            let (figures, spoilt) = courses::measure(self, course, round as u64, machine)?;
            measured.counts.add(&figures);
            let line = format!("round {}: {course}: {figures}", round + 1);
            print_line(out, format_args!("{line}{}", spoilt_suffix(spoilt.as_deref())));
            measured.courses[index].1.push((figures, spoilt));
            Ok(())
        })
    }

    fn measure_forced(
        &self,
        measured: &mut Measured,
        machine: &mut Machine,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let all: Vec<Forced> = Forced::all(&self.effort.delays).collect();
        measured.forced = all.iter().map(|forced| (*forced, Rounds::default())).collect();
        measurement_order(self.effort.rounds, all.len()).try_for_each(|(round, index)| {
            let forced = all[index];
            let (figures, spoilt) = forced::measure(self, forced, round as u64, machine)?;
            measured.counts.add(&figures);
            let line = format!("round {}: {forced}: {figures}", round + 1);
            print_line(out, format_args!("{line}{}", spoilt_suffix(spoilt.as_deref())));
            measured.forced[index].1.push((figures, spoilt));
            Ok(())
        })
    }
}

impl Counts {
    fn add(&mut self, figures: &Figures) {
        self.offered += figures.offered;
        self.moves += figures.moves;
        self.wrong += figures.wrong;
        self.lost += figures.lost;
    }

    fn checks(&self) -> Vec<Check> {
        if self.offered == 0 {
            return Vec::new();
        }
        let of = format!("{} requests and {} moves", self.offered, self.moves);
        vec![Check::none("wrong", self.wrong, &of), Check::none("lost", self.lost, &of)]
    }
}

#[cfg(test)]
mod tests {
    use super::courses::Pattern;
    use super::*;

    #[test]
    fn each_policy_has_each_course_and_each_delay_both_rates() {
        assert_eq!(
            Course::all(&[(ProtocolKind::Memcached, 2), (ProtocolKind::Http, 3)]).count(),
            Policy::ALL.len() * Pattern::ALL.len() * 2
        );
        assert_eq!(Forced::all(&[Duration::ZERO; 6]).count(), 12);
    }

    #[test]
    fn lost_requests_and_wrong_replies_fail_the_checks() {
        let good = Counts { offered: 10, moves: 1, wrong: 0, lost: 0 };
        assert!(good.checks().iter().all(|check| check.ok));
        let bad = Counts { wrong: 1, lost: 1, ..good };
        assert!(bad.checks().iter().all(|check| !check.ok));
    }
}

//! Servers that hand connections off request by request, and reverse proxies in the same place (Prism, §5).
//!
//! **Hosts** are those of Figure 8: a client, a switch, a frontend to which clients connect, and one to five backends. Each
//! has a network namespace. The objects are in the memory of the backends; a hash of the request's target chooses the
//! backend.
//!
//! **Systems**: servers of `spillway-lab http`, whose frontend hands each request off with its connection, after which the
//! backend answers the client directly; and nginx and haproxy, which relay requests and responses over persistent connections.
//! The backends of the proxies run the same server.
//!
//! **Closed loop**: each connection sends its next request when it has its response. Frontends and backends have the same
//! share of a core, so that they, and not the machine, are the limit (Figures 2, 9 and 10). **Open loop**: requests arrive at
//! one rate at all systems, half of what the slowest system has served in the closed loop, and no host has a quota: CPU time of
//! a request, and latency (Figure 11).

mod case;
mod files;
mod findings;
mod measure;
mod site;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use spillway_lab::Quota;

use super::common::rounds::{Rounds, print_line, spoilt_suffix};
use super::figures::{Figure, Paper};
use super::{Experiment, Needs, Options, selects};
use crate::error::Error;
use crate::machine::Machine;
use crate::results::{Check, Results};
use crate::scene::Setting;
use crate::steady::Steady;

pub use case::System;
use case::{Case, Load};
use measure::Figures;
use site::Site;

/// The experiments, in the order in which `bench list` prints them.
pub(super) const EXPERIMENTS: [Experiment; 2] = [
    Experiment {
        name: "proxy",
        question: "throughput, and CPU time of the frontend, when requests are handed off to backends or relayed by nginx and haproxy, by the \
                   size of objects and the number of backends",
        paper: "Prism, §5.2: 3.7 times nginx's throughput with five backends from 256 KB on; 23 to 53 % less CPU of the frontend, 2.4 times \
                less for each byte; more throughput from 2 KB on",
        figures: &[
            Figure::new(Paper::Prism, "F2"),
            Figure::new(Paper::Prism, "F9"),
            Figure::new(Paper::Prism, "F10"),
        ],
        needs: Needs { root: true, minutes: 28 },
        run: run_throughput,
    },
    Experiment {
        name: "proxy-latency",
        question: "latency of a request when it is handed off to a backend or relayed by nginx and haproxy, by the size of objects and the \
                   number of backends, in a closed and in an open loop",
        paper: "Prism, §5.3: up to 74 % less at p50 and 96 % less at p90",
        figures: &[Figure::new(Paper::Prism, "F11")],
        needs: Needs { root: true, minutes: 24 },
        run: run_latency,
    },
];

/// The parts that `--only` selects: systems. Those of [`System::DEFAULT`] run without it.
pub const PARTS: [&str; System::ALL.len()] = System::NAMES;

/// What one of the experiments measures.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// The experiment's name.
    pub name: &'static str,
    /// Whether the experiment is about latency: its ratios are.
    pub is_of_latency: bool,
    /// Number of rounds.
    pub rounds: usize,
    /// Numbers of backends. The last one is that of all sizes.
    pub backends: Vec<usize>,
    /// Sizes of objects, in bytes, with the last number of backends.
    pub sizes: Vec<u32>,
    /// Sizes with the other numbers of backends.
    pub scaling_sizes: Vec<u32>,
    /// Sizes that are measured in the open loop, too.
    pub open_sizes: Vec<u32>,
    /// Connections for each backend, of which there were 100 in the paper.
    pub connections_per_backend: u32,
    /// Time before each measurement, with the same load.
    pub warm_up: Duration,
    /// Length of a measurement. That of objects of at least 1 MiB, and its warm-up, are three times as long: a response takes
    /// longer than a second.
    pub length: Duration,
    /// Share of a core that each frontend and each backend has in the closed loop, in percent.
    pub quota_percent: f64,
}

const KIB: u32 = 1 << 10;

impl Effort {
    /// The effort of a complete run of `proxy`, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            name: "proxy",
            is_of_latency: false,
            rounds: 5,
            backends: vec![1, 2, 3, 5],
            sizes: [64, KIB, 2 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 << 20, 4 << 20].into(),
            scaling_sizes: [16 * KIB, 256 * KIB, 512 * KIB].into(),
            open_sizes: [64, 2 * KIB, 16 * KIB, 256 * KIB, 4 << 20].into(),
            connections_per_backend: 4,
            warm_up: Duration::from_millis(500),
            length: Duration::from_millis(1_500),
            quota_percent: 10.0,
        }
    }

    /// The effort of a quick run of `proxy`: less than two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 1,
            backends: vec![1, 5],
            sizes: [64, 2 * KIB, 16 * KIB, 256 * KIB, 4 << 20].into(),
            scaling_sizes: [256 * KIB].into(),
            open_sizes: [256 * KIB].into(),
            ..Effort::full()
        }
    }

    /// This effort for `proxy-latency`: the sizes of Figure 11, each with all numbers of backends and in both loops.
    pub fn of_latency(self) -> Effort {
        let sizes = match self.rounds {
            1 => [16 * KIB, 256 * KIB].to_vec(),
            _ => [16 * KIB, 256 * KIB, 512 * KIB].to_vec(),
        };
        Effort {
            name: "proxy-latency",
            is_of_latency: true,
            sizes: sizes.clone(),
            scaling_sizes: sizes.clone(),
            open_sizes: sizes,
            ..self
        }
    }

    /// The measurements with a number of backends, without systems: those of the closed loop come before those of the open
    /// loop, whose rates they determine.
    fn loads(&self, backends: usize) -> Vec<(u32, Load)> {
        let has_all = self.backends.last() == Some(&backends);
        let sizes = if has_all { &self.sizes } else { &self.scaling_sizes };
        let opens = has_all || self.is_of_latency;
        let open = self.open_sizes.iter().filter(|size| opens && sizes.contains(size));
        let closed = sizes.iter().map(|size| (*size, Load::Closed));
        closed.chain(open.map(|size| (*size, Load::Open))).collect()
    }

    /// Warm-up and length of a measurement with objects of this size.
    fn times(&self, bytes: u32) -> (Duration, Duration) {
        let factor = if bytes >= 1 << 20 { 3 } else { 1 };
        (self.warm_up * factor, self.length * factor)
    }

    fn quota(&self) -> Quota {
        Quota::percent(self.quota_percent)
    }
}

/// All rounds.
#[derive(Debug, Default)]
struct Measured {
    cases: BTreeMap<Case, Rounds<Figures>>,
    /// Rates of the open loop, in requests a second, by backends and size.
    rates: BTreeMap<(usize, u32), f64>,
    /// All requests, spoilt measurements included.
    requests: u64,
    wrong: u64,
    /// Requests and connections that were lost, at clients and at servers.
    lost: u64,
}

fn run_throughput(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, &options.only, out)
}

fn run_latency(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort.of_latency(), &options.only, out)
}

/// Runs one of the experiments for some systems, or for [`System::DEFAULT`] if `only` is empty.
pub fn run_with(
    setting: &Setting,
    effort: &Effort,
    only: &[String],
    out: &mut dyn Write,
) -> Result<Results, Error> {
    let steady = Steady::start(setting.idle_cores_poll);
    let mut machine = Machine::held(&steady);
    let systems: Vec<System> = match only {
        [] => System::DEFAULT.into(),
        _ => System::ALL.into_iter().filter(|system| selects(only, system.name())).collect(),
    };
    let bench = Bench { setting, effort, steady: &steady, systems: &systems };
    let mut measured = Measured::default();
    let outcome = bench.measure(&mut measured, &mut machine, out);
    let mut results = Results::new(effort.name, machine);
    findings::add(&measured, effort, &systems, &mut results);
    results.checks = measured.checks();
    Ok(results.with_outcome(outcome))
}

/// What all measurements share.
#[derive(Clone, Copy)]
struct Bench<'a> {
    setting: &'a Setting,
    effort: &'a Effort,
    steady: &'a Steady,
    systems: &'a [System],
}

impl Bench<'_> {
    fn measure(
        &self,
        measured: &mut Measured,
        machine: &mut Machine,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        for round in 0..self.effort.rounds {
            for backends in &self.effort.backends {
                let mut site = Site::create(self.setting, self.effort, self.systems, *backends)?;
                site.describe(machine, self.setting, self.effort)?;
                for (bytes, load) in self.effort.loads(*backends) {
                    let mut served = Vec::new();
                    for turn in 0..self.systems.len() {
                        let system = self.systems[(turn + round) % self.systems.len()];
                        let case = Case { system, backends: *backends, bytes, load };
                        served.extend(self.measure_case(case, round, &mut site, measured, out)?);
                    }
                    if load == Load::Closed {
                        measured.note_rate(*backends, bytes, &served);
                    }
                }
                site.close()?;
            }
        }
        Ok(())
    }

    /// Returns the served requests a second; `None` if no rate is known for the open loop.
    fn measure_case(
        &self,
        case: Case,
        round: usize,
        site: &mut Site,
        measured: &mut Measured,
        out: &mut dyn Write,
    ) -> Result<Option<f64>, Error> {
        let rate = match case.load {
            Load::Closed => None,
            Load::Open => match measured.rates.get(&(case.backends, case.bytes)) {
                Some(rate) => Some(*rate),
                None => return Ok(None), // no system has served a request in the closed loop
            },
        };
        let (figures, spoilt) = measure::measure(self, site, case, rate, round as u64)?;
        print_line(
            out,
            format_args!("round {}: {case}: {figures}{}", round + 1, spoilt_suffix(spoilt.as_deref())),
        );
        measured.requests += figures.offered;
        measured.wrong += figures.wrong;
        measured.lost += figures.lost;
        let served = figures.requests_per_s();
        measured.cases.entry(case).or_default().push((figures, spoilt));
        Ok(Some(served))
    }
}

impl Measured {
    /// Determines the rate of the open loop from what the systems have served in the first round of the closed loop, spoilt
    /// measurements included: the rate must only be the same for all systems and rounds.
    fn note_rate(&mut self, backends: usize, bytes: u32, served: &[f64]) {
        let slowest = served.iter().copied().filter(|rate| *rate > 0.0).reduce(f64::min);
        if let Some(rate) = slowest {
            self.rates.entry((backends, bytes)).or_insert(rate / 2.0);
        }
    }

    fn checks(&self) -> Vec<Check> {
        if self.requests == 0 {
            return Vec::new();
        }
        let of = format!("{} requests, each response compared byte by byte", self.requests);
        vec![Check::none("wrong", self.wrong, &of), Check::none("lost", self.lost, &of)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_loops_come_before_the_open_loops_of_the_same_size_and_latency_has_all_numbers_of_backends() {
        for effort in
            [Effort::full(), Effort::quick(), Effort::full().of_latency(), Effort::quick().of_latency()]
        {
            for backends in &effort.backends {
                let loads = effort.loads(*backends);
                for (at, (size, load)) in loads.iter().enumerate() {
                    let is_after = loads[..at].contains(&(*size, Load::Closed));
                    assert!(*load == Load::Closed || is_after, "{backends} backends, {size} bytes");
                }
                let is_open = loads.iter().any(|(_, load)| *load == Load::Open);
                assert_eq!(is_open, effort.is_of_latency || *backends == 5);
            }
        }
    }

    #[test]
    fn wrong_responses_and_lost_requests_fail_the_checks() {
        let good = Measured { requests: 10, ..Measured::default() };
        assert!(good.checks().iter().all(|check| check.ok) && good.checks().len() == 2);
        let bad = Measured { wrong: 1, lost: 1, ..good };
        assert!(bad.checks().iter().all(|check| !check.ok));
    }

    #[test]
    fn the_open_loop_has_half_the_rate_of_the_slowest_system() {
        let mut measured = Measured::default();
        measured.note_rate(5, 64, &[2_000.0, 500.0, 0.0]);
        measured.note_rate(5, 64, &[100.0]);
        measured.note_rate(5, 128, &[0.0]);
        assert_eq!(measured.rates, BTreeMap::from([((5, 64), 250.0)]), "that of the first round");
    }
}

//! Our stack with a kernel as its peer, compared with two kernels, over interfaces of the same kind: bulk throughput in
//! each direction, and round trips; without faults, with loss, and with reordering. Every byte is compared.
//!
//! Rounds are interleaved, and a round's faults have the same seeds for both systems.

mod findings;

use std::io::Write;
use std::time::Duration;

use spillway_xdp::FaultsOptions;

use crate::error::Error;
use crate::experiments::Options;
use crate::experiments::common::rounds::{Rounds, measurement_order, print_line};
use crate::experiments::tcp::kernel_peer::{Measured, Plan, Site, System, Work};
use crate::results::Results;
use crate::scene::Setting;

/// Fault rates of the cable, in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultRates {
    /// Suffix of ratio names.
    pub suffix: &'static str,
    /// Share of frames that are lost, independently of each other.
    pub loss: f64,
    /// Share of frames that are delivered late, behind up to [`REORDERED_BY`] later ones.
    pub reordering: f64,
}

/// Maximum number of frames that overtake a delayed one.
pub const REORDERED_BY: usize = 8;

const FAULT_RATES: [FaultRates; 4] = [
    FaultRates { suffix: "", loss: 0.0, reordering: 0.0 },
    FaultRates { suffix: "_loss1", loss: 0.01, reordering: 0.0 },
    FaultRates { suffix: "_loss3", loss: 0.03, reordering: 0.0 },
    FaultRates { suffix: "_reordering", loss: 0.0, reordering: 0.05 },
];

/// The amount of measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Effort {
    /// Number of rounds.
    pub rounds: usize,
    /// Fault rates; each is measured.
    pub fault_rates: Vec<FaultRates>,
    /// Length of each measurement of throughput.
    pub bulk: Duration,
    /// Length of each measurement of round trips.
    pub messages: Duration,
}

impl Effort {
    /// The effort of a complete run, whose figures may be published.
    pub fn full() -> Effort {
        Effort {
            rounds: 11,
            fault_rates: FAULT_RATES.to_vec(),
            bulk: Duration::from_secs(3),
            messages: Duration::from_secs(2),
        }
    }

    /// The effort of a quick run: about two minutes.
    pub fn quick() -> Effort {
        Effort {
            rounds: 5,
            bulk: Duration::from_millis(600),
            messages: Duration::from_millis(300),
            ..Effort::full()
        }
    }
}

#[derive(Clone, Debug)]
struct Series {
    system: System,
    work: Work,
    rates: FaultRates,
    rounds: Rounds<Measured>,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let effort = if options.quick { Effort::quick() } else { Effort::full() };
    run_with(&options.setting, &effort, out)
}

/// Runs the experiment with a given effort.
pub fn run_with(setting: &Setting, effort: &Effort, out: &mut dyn Write) -> Result<Results, Error> {
    let mut site = Site::create("interop", setting)?;
    let machine = site.machine()?;
    let mut all = series(effort);
    let outcome = measurement_order(effort.rounds, all.len()).try_for_each(|(round, index)| {
        let Series { system, work, rates, .. } = all[index];
        let plan =
            Plan { system, work, faults: rates.faults(round), gate: None, length: effort.length(work) };
        let measured = site.measure(&plan)?;
        print_round(out, round, &all[index], &measured);
        all[index].rounds.push((measured, None));
        Ok(())
    });
    let outcome = outcome.and_then(|()| site.close());
    let mut results = Results::new("tcp-interop", machine);
    findings::add_results(&all, &mut results);
    Ok(results.with_outcome(outcome))
}

/// All series. The two systems of a pair are adjacent, so that they are measured one after the other.
fn series(effort: &Effort) -> Vec<Series> {
    let mut all = Vec::new();
    for &rates in &effort.fault_rates {
        for work in [Work::Sending, Work::Receiving, Work::Answering] {
            for system in [System::Spillway, System::Linux] {
                all.push(Series { system, work, rates, rounds: Rounds::default() });
            }
        }
    }
    all
}

impl Effort {
    fn length(&self, work: Work) -> Duration {
        if work == Work::Answering { self.messages } else { self.bulk }
    }
}

impl FaultRates {
    fn faults(&self, round: usize) -> FaultsOptions {
        FaultsOptions {
            seed: round as u64 + 1,
            loss: self.loss,
            reordering: self.reordering,
            reordering_frames: REORDERED_BY,
            ..FaultsOptions::default()
        }
    }

    fn description(&self) -> String {
        match (self.loss > 0.0, self.reordering > 0.0) {
            (false, false) => "clean".into(),
            (false, true) => format!("{} % out of order", 100.0 * self.reordering),
            _ => format!("{} % lost", 100.0 * self.loss),
        }
    }
}

fn print_round(out: &mut dyn Write, round: usize, series: &Series, measured: &Measured) {
    let Series { system, work, rates, .. } = series;
    let figures = match work {
        Work::Answering => {
            format!(
                "{} answers, p50 {:.1} µs",
                measured.latencies_ns.len(),
                measured.quantile_us(0.5).unwrap_or(f64::NAN)
            )
        }
        _ => format!("{:.1} MB/s", measured.bytes_per_s / 1e6),
    };
    print_line(
        out,
        format_args!(
            "round {}: {} {work:?}, {}: {figures}; {:.2} % sent again, {} timeouts; loop {:.0} % of a core",
            round + 1,
            system.name(),
            rates.description(),
            100.0 * measured.sender.retransmitted_share,
            measured.sender.timeouts,
            100.0 * measured.loop_share
        ),
    );
}

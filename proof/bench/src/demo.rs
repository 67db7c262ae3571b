//! The demo: a burst hits one unmodified memcached, clients move to a helper, and latency returns below the SLA.

mod page;
mod summary;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::calibrate::{Calibration, Neighbours, calibrate, helped_throughput, use_given_capacity};
use crate::error::Error;
use crate::goodput::{Tally, Timing};
use crate::results::{Results, write_file, write_json};
use crate::scenario;
use crate::scenario::{BurstRun, Plan, Sample, Second};
use crate::scene::{Scene, Setting};

/// Options of a demo run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Settings of the scene.
    pub setting: Setting,
    /// Seconds of light load before the burst.
    pub light_s: u64,
    /// Seconds of burst before relief is switched on.
    pub burst_s: u64,
    /// Seconds of burst after relief is switched on; at least 4, because relief needs three good seconds in a row.
    pub relieved_s: u64,
    /// Seconds after the burst.
    pub after_s: u64,
    /// The direct capacity in requests a second; `None` to calibrate.
    pub direct_per_s: Option<f64>,
    /// Whether to calibrate while other processes use the machine.
    pub neighbours: Neighbours,
    /// The helper's largest batch delay; `None` for a fixed share of the SLA.
    pub max_delay: Option<Duration>,
    /// File of the report; results and series are written beside it.
    pub report: PathBuf,
}

impl Options {
    /// The default lengths of the phases. A run takes a little more than a minute, calibration included.
    pub fn new(setting: Setting) -> Options {
        Options {
            setting,
            light_s: 6,
            burst_s: 8,
            relieved_s: 12,
            after_s: 6,
            direct_per_s: None,
            neighbours: Neighbours::Refused,
            max_delay: None,
            report: PathBuf::from("target/demo/report.html"),
        }
    }
}

/// A finished demo.
#[derive(Debug)]
pub struct Demo {
    calibration: Calibration,
    /// Saturated throughput of the helped server in replies a second, late ones included.
    helped_per_s: f64,
    run: BurstRun,
    seconds: Vec<Second>,
    tally: Tally,
    setting: Setting,
    /// The run's figures and checks.
    pub results: Results,
}

/// The file `*.series.json`: raw data for other plots.
#[derive(Serialize)]
struct Series<'a> {
    plan: &'a Plan,
    sla_us: u64,
    seconds: &'a [Second],
    samples: &'a [Sample],
    clients: &'a spillway_load::Report,
}

/// Default batch delay as a share of the SLA: 400 µs of 1 ms. On a slower machine the SLA is longer and
/// requests arrive at a lower rate, so a batch contains about as many messages.
const DELAY_SHARE_OF_SLA: f64 = 0.4;

/// Runs the demo, prints its progress to `out`, and writes its files.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Demo, Error> {
    let demo = run_without_files(options, out)?;
    demo.write(&options.report)?;
    print_line(out, &format!("report: {}", options.report.display()));
    Ok(demo)
}

/// Prints a line. Ignores errors, so that the demo continues if its output is closed.
fn print_line(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Runs the demo like [`run`], without writing files.
pub fn run_without_files(options: &Options, out: &mut dyn Write) -> Result<Demo, Error> {
    if options.relieved_s < 4 || options.burst_s < 2 || options.light_s < 2 {
        return Err(Error::Usage(
            "the demo needs 2 s of light load, 2 s of burst and 4 s of relieved burst, at least".into(),
        ));
    }
    print_line(out, "creating server, helper and clients in network namespaces");
    let mut scene = Scene::create("demo", options.setting.clone())?;
    print_line(out, &summary::placement(&options.setting));

    let timing = Timing { warm_up: Duration::from_secs(1), ..Timing::default() };
    let calibration = match options.direct_per_s {
        Some(direct_per_s) => use_given_capacity(&mut scene, direct_per_s, timing)?,
        None => {
            print_line(out, "calibrating: costs of a request, and the direct capacity (about 35 s)");
            calibrate(&mut scene, timing, options.neighbours)?
        }
    };
    let direct_per_s = calibration.direct_per_s;
    print_line(out, &format!("{}; the burst will be three times that\n", calibration.description()));
    let default_delay = Duration::from_micros((calibration.sla_us as f64 * DELAY_SHARE_OF_SLA) as u64);
    scene.set_max_delay(options.max_delay.unwrap_or(default_delay))?;
    let (machine, setting) = (scene.machine()?, scene.setting().clone());
    let (saturated, helped_tally) = helped_throughput(&mut scene, direct_per_s, timing)?;

    let plan = Plan::new(direct_per_s, options.light_s, options.burst_s, options.relieved_s, options.after_s);
    print_line(out, &summary::live_head(&setting, &machine.server, calibration.sla_us));
    let mut seconds = Vec::new();
    let run = scenario::run(&mut scene, plan, calibration.sla_us, &mut |second| {
        print_line(out, &summary::live_line(&plan, second));
        seconds.push(second.clone());
    })?;
    let mut tally = calibration.tally.clone();
    tally.add(&helped_tally);
    tally.add_report(&run.report);
    scene.close()?;

    let mut demo = Demo {
        calibration,
        helped_per_s: saturated.replies_per_s,
        run,
        seconds,
        tally,
        setting,
        results: Results::new("demo", machine),
    };
    summary::fill_results(&mut demo);
    print_line(out, "");
    print_line(out, &summary::text(&demo));
    Ok(demo)
}

impl Demo {
    /// Whether every check held.
    pub fn passed(&self) -> bool {
        self.results.passed()
    }

    /// Time from relief on until the SLA was kept again, in ms; `None` if the burst ended first.
    pub fn relief_ms(&self) -> Option<u64> {
        self.run.relief_ms()
    }

    /// Replies and failures of calibration and run together.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The calibration before the run.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Mean number of messages in a batch of the relieved burst; `None` without batches.
    pub fn messages_per_batch(&self) -> Option<f64> {
        let (from_ms, to_ms) = self.run.relieved();
        self.run.between(from_ms, to_ms).0.messages_per_batch()
    }

    /// Reasons why the run's times must not be cited; empty for a valid run.
    pub fn spoilt(&self) -> Vec<String> {
        self.run.spoilt(self.setting.quota)
    }

    fn write(&self, report: &Path) -> Result<(), Error> {
        write_file(report, page::page(self).html().as_bytes()).map_err(Error::writing(report))?;
        let results = report.with_extension("json");
        self.results.write(&results).map_err(Error::writing(&results))?;
        let series = report.with_extension("series.json");
        let document = Series {
            plan: &self.run.plan,
            sla_us: self.run.sla_us,
            seconds: &self.seconds,
            samples: &self.run.samples,
            clients: &self.run.report,
        };
        write_json(&series, &document).map_err(Error::writing(&series))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::measure::Used;
    use crate::programs::Programs;
    use spillway_load::Report;
    use spillway_load::report::{Bin, Move, Target};

    /// A synthetic demo: overload from 6 s, relief at 14 s, p99 within the SLA again after 0.4 s.
    pub(crate) fn example() -> Demo {
        let plan = Plan::new(3_000.0, 6, 8, 12, 6);
        let bins = (0..plan.end_ms / 100).map(|n| {
            let at_ms = n * 100;
            let mut bin = Bin { at_ms, offered: 900, ..Bin::default() };
            let is_late = (plan.burst_ms..plan.decision_ms + 400).contains(&at_ms);
            bin.helped.answered = 900;
            bin.helped.latency_us.record(if is_late { 310_000 } else { 400 }, 900);
            bin.lag_us.record(20, 900);
            bin
        });
        let moved = Move {
            id: 0,
            target: Target::Helper,
            given_us: plan.decision_ms * 1000,
            pace_us: 100.0,
            connections: 660,
            failed: 0,
            first_replies_us: vec![900, 143_000],
            complete: true,
        };
        let report =
            Report { bins: bins.collect(), moves: vec![moved], connections: 660, ..Report::default() };
        let samples = (0..plan.end_ms / 250).map(|n| {
            let overloaded = (plan.burst_ms..plan.decision_ms).contains(&(n * 250));
            let used = Used {
                seconds: 0.25,
                server_process_s: if overloaded { 0.019 } else { 0.01 },
                server_interface_s: if overloaded { 0.006 } else { 0.002 },
                helper_s: 0.06,
                clients_s: 0.05,
                bridge_s: 0.01,
                batches: 80,
                messages: 2_000,
                ..Used::default()
            };
            Sample {
                from_ms: n * 250,
                to_ms: n * 250 + 250,
                used,
                replies: if overloaded { 2_000 } else { 250 },
            }
        });
        let run = BurstRun { plan, sla_us: 1_000, report, samples: samples.collect() };
        let mut tally = Tally::default();
        tally.add_report(&run.report);
        let second = Second {
            at_s: 7,
            offered: 9_000,
            on_time_share: 0.19,
            server_percent: 10.0,
            ..Second::default()
        };
        let mut demo = Demo {
            calibration: Calibration { direct_per_s: 3_000.0, sla_us: 1_000, ..Calibration::default() },
            helped_per_s: 24_000.0,
            run,
            seconds: vec![second],
            tally,
            setting: Setting::new(Programs::in_directory(Path::new(""))),
            results: Results::new("demo", Machine::default()),
        };
        summary::fill_results(&mut demo);
        demo
    }

    #[test]
    fn a_demo_writes_its_report_results_and_series() {
        let directory = std::env::temp_dir().join(format!("spillway-bench-demo-{}", std::process::id()));
        let report = directory.join("report.html");
        let demo = example();
        demo.write(&report).unwrap();
        let html = std::fs::read_to_string(&report).unwrap();
        assert!(html.starts_with("<!doctype html>"));
        let results = std::fs::read_to_string(directory.join("report.json")).unwrap();
        let read: Results = serde_json::from_str(&results).unwrap();
        assert_eq!((read.rows.len(), read.checks), (demo.results.rows.len(), demo.results.checks.clone()));
        let series = std::fs::read_to_string(directory.join("report.series.json")).unwrap();
        let series: serde_json::Value = serde_json::from_str(&series).unwrap();
        assert_eq!(series["plan"]["decision_ms"], 14_000);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn too_short_phases_are_refused() {
        let options =
            Options { relieved_s: 3, ..Options::new(Setting::new(Programs::in_directory(Path::new("")))) };
        assert!(matches!(run(&options, &mut Vec::new()), Err(Error::Usage(_))));
    }
}

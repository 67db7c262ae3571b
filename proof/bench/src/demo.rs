//! The main job, shown: a burst hits one unmodified memcached, clients move to a helper, the burst is relieved.

mod page;
mod summary;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::calibrate::{Calibration, Neighbours, calibrate, given, helped_throughput};
use crate::error::Error;
use crate::goodput::{Tally, Timing};
use crate::results::{Results, write_file, write_json};
use crate::scenario;
use crate::scenario::{Plan, Relieved, Sample, Second};
use crate::scene::{Scene, Setting};

/// How the demo is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The scene.
    pub setting: Setting,
    /// Seconds of light load before the burst.
    pub light_s: u64,
    /// Seconds of burst before relief is switched on.
    pub burst_s: u64,
    /// Seconds of burst after relief is switched on; relief needs three good ones.
    pub relieved_s: u64,
    /// Seconds after the burst.
    pub after_s: u64,
    /// Requests a second that the server serves alone; the scene calibrates itself where it is not given.
    pub direct_per_s: Option<f64>,
    /// Whether the scene calibrates itself although others use the machine.
    pub neighbours: Neighbours,
    /// How long the helper may wait to fill a batch; a fixed part of the SLA where it is not given.
    pub max_delay: Option<Duration>,
    /// Where the report goes; the results go beside it.
    pub report: PathBuf,
}

impl Options {
    /// A little more than a minute, calibration included.
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

/// Everything that the demo found.
#[derive(Debug)]
pub struct Demo {
    calibration: Calibration,
    /// Replies a second of the helped server without regard to time, if the server was calibrated at all.
    helped_per_s: f64,
    run: Relieved,
    seconds: Vec<Second>,
    tally: Tally,
    setting: Setting,
    /// The figures.
    pub results: Results,
}

/// What is kept beside report and results, for those who want to draw their own curves.
#[derive(Serialize)]
struct Series<'a> {
    plan: &'a Plan,
    sla_us: u64,
    seconds: &'a [Second],
    samples: &'a [Sample],
    clients: &'a spillway_load::Report,
}

/// The part of the SLA for which a batch may wait where nobody says otherwise: 400 µs of 1 ms. On slower machines, with their
/// longer SLA, batches then hold as many messages.
const DELAY_PART_OF_SLA: f64 = 0.4;

/// Runs the demo, tells about it on `out` as it goes, and writes its files.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Demo, Error> {
    let demo = play(options, out)?;
    demo.write(&options.report)?;
    say(out, &format!("report: {}", options.report.display()));
    Ok(demo)
}

/// Tells something. Nobody reading is no reason to stop.
fn say(out: &mut dyn Write, text: &str) {
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// The same without files.
pub fn play(options: &Options, out: &mut dyn Write) -> Result<Demo, Error> {
    if options.relieved_s < 4 || options.burst_s < 2 || options.light_s < 2 {
        return Err(Error::Usage(
            "the demo needs 2 s of light load, 2 s of burst and 4 s of relieved burst, at least".into(),
        ));
    }
    say(out, "setting the scene: server, helper and clients in network namespaces");
    let mut scene = Scene::set("demo", options.setting.clone())?;
    say(out, &summary::placement(&options.setting));

    let timing = Timing { warm_up: Duration::from_secs(1), ..Timing::default() };
    let calibration = match options.direct_per_s {
        Some(direct_per_s) => given(&mut scene, direct_per_s, timing)?,
        None => {
            say(out, "calibrating: what requests cost here, and how much the server does alone (about 35 s)");
            calibrate(&mut scene, timing, options.neighbours)?
        }
    };
    let direct_per_s = calibration.direct_per_s;
    say(out, &format!("{}; the burst will be three times that\n", calibration.words()));
    let by_sla = Duration::from_micros((calibration.sla_us as f64 * DELAY_PART_OF_SLA) as u64);
    scene.set_max_delay(options.max_delay.unwrap_or(by_sla))?;
    let (machine, setting) = (scene.machine()?, scene.setting().clone());
    let (saturated, helped_tally) = helped_throughput(&mut scene, direct_per_s, timing)?;

    let plan = Plan::new(direct_per_s, options.light_s, options.burst_s, options.relieved_s, options.after_s);
    say(out, &summary::head(&setting, &machine.server, calibration.sla_us));
    let mut seconds = Vec::new();
    let run = scenario::run(&mut scene, plan, calibration.sla_us, &mut |second| {
        say(out, &summary::live(&plan, second));
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
    summary::fill(&mut demo);
    say(out, "");
    say(out, &summary::text(&demo));
    Ok(demo)
}

impl Demo {
    /// Whether every check held.
    pub fn passed(&self) -> bool {
        self.results.passed()
    }

    /// From relief on until the SLA was kept again, in ms, if it was before the burst was over.
    pub fn relief_ms(&self) -> Option<u64> {
        self.run.relief_ms()
    }

    /// Replies and failures of everything that ran.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// What calibration found.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Messages in each batch of the relieved burst, if there were batches.
    pub fn messages_per_batch(&self) -> Option<f64> {
        let (from_ms, to_ms) = self.run.relieved();
        self.run.between(from_ms, to_ms).0.messages_per_batch()
    }

    /// Why its times must not be cited, if so.
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

    /// A demo as it might have been: overload from 6 s, relief at 14 s, good again after 0.4 s.
    pub(crate) fn example() -> Demo {
        let plan = Plan::new(3_000.0, 6, 8, 12, 6);
        let bins = (0..plan.end_ms / 100).map(|n| {
            let at_ms = n * 100;
            let mut bin = Bin { at_ms, offered: 900, ..Bin::default() };
            let bad = (plan.burst_ms..plan.decision_ms + 400).contains(&at_ms);
            bin.helped.answered = 900;
            bin.helped.latency_us.record(if bad { 310_000 } else { 400 }, 900);
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
        let run = Relieved { plan, sla_us: 1_000, report, samples: samples.collect() };
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
        summary::fill(&mut demo);
        demo
    }

    #[test]
    fn a_demo_leaves_report_results_and_series() {
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
    fn times_that_show_nothing_are_refused() {
        let options =
            Options { relieved_s: 3, ..Options::new(Setting::new(Programs::in_directory(Path::new("")))) };
        assert!(matches!(run(&options, &mut Vec::new()), Err(Error::Usage(_))));
    }
}

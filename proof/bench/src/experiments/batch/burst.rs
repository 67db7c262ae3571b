//! Goodput of a helped server over a direct one, the time that clients take to move, the relief time, and CPU costs.
//!
//! Rounds are interleaved: each round measures every system once, in rotating order, so that a slow drift of the
//! machine affects all systems alike. A ratio compares two measurements of the same round.

mod findings;
mod rivals;

use std::io::Write;
use std::time::{Duration, Instant};

use spillway_lab::Burner;

use crate::calibrate::{Calibration, FLOOR_PER_S, LIMIT_PER_S, Neighbours, calibrate, p99_at_fifth_us};
use crate::error::Error;
use crate::experiments::{Options, selects};
use crate::generator::Engine;
use crate::goodput::{Driver, RampResult, Tally, Timing, ramp};
use crate::ramp::Ramp;
use crate::relief::{Span, sla_us};
use crate::results::Results;
use crate::scenario::{self, BurstRun, Plan};
use crate::scene::{Placement, Scene, ServerShare, Setting, System};
use crate::stats::median;

const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
/// With `--quick`, a step starts only if the step ends within this time from the start of the experiment. Removing the
/// laboratory takes a little longer.
const QUICK_TIME_MAX: Duration = Duration::from_secs(114);
/// Duration of the shortest useful ramp in seconds, including the start of the clients.
const RAMP_S: u64 = 10;
/// First rate of a ramp, as a share of the goodput in earlier rounds.
const RAMP_START: f64 = 0.85;
/// First rate of the helped system's first ramp, as a multiple of the direct capacity.
const HELPED_START: f64 = 3.0;
/// The paper's SLA, in µs. Stalls of the development machine last about as long, and can break this SLA.
const PAPER_SLA_US: u64 = 500;
/// An SLA in µs under which goodput is measured in addition to the calibrated SLA.
const ROUND_SLA_US: u64 = 1_000;
/// The burner's share of the server's core: busy time and period.
const BURNT: (Duration, Duration) = (Duration::from_micros(900), Duration::from_micros(1_000));

const PAPER_MAX_DELAY: Duration = Duration::from_micros(150);

/// Ramps of one system under one SLA.
#[derive(Debug)]
struct Series {
    system: System,
    sla_us: u64,
    max_delay: Duration,
    /// A burner (a busy program on the server's core) limits the server's CPU, instead of a quota.
    has_burner: bool,
    /// The series repeats another series of the same system, for the A/A ratio.
    is_repetition: bool,
    /// Only in the iso-CPU series: the server's quota plus the CPU time of a helper, in percent of a core.
    iso_percent: Option<f64>,
    /// One ramp for each round; `None` for a round that `--quick` left out.
    rounds: Vec<Option<RampResult>>,
}

#[derive(Debug)]
struct Measured {
    quick: bool,
    /// Prefix of the ratios' names; see [`prefix`].
    prefix: String,
    calibration: Calibration,
    series: Vec<Series>,
    burst_runs: Vec<BurstRun>,
    /// Latencies of the clients that stayed on the direct port, for each run in `burst_runs`.
    probed: Vec<Span>,
    migrations: Vec<rivals::Migration>,
    /// Measured CPU time of the burner, in percent of its core.
    burnt_percent: Option<f64>,
    left_out: Vec<String>,
    tally: Tally,
}

struct Course<'a> {
    quick: bool,
    started_at: Instant,
    timing: Timing,
    out: &'a mut dyn Write,
    measured: Measured,
}

/// Parts of the experiment that `--only` can select. `iso-cpu` needs `goodput` in the same run: `goodput` measures the
/// helper's CPU time.
pub const PARTS: [&str; 5] = ["goodput", "relief", "iso-cpu", "migration", "burner"];

/// Prefix of the ratios' names, which states the configuration. `xdp_`: the user-level TCP stack; `core_`: also a whole
/// core for the server; `deferred_` after these: the helper defers interrupts; empty: kernel sockets and the calibrated
/// quota.
fn prefix(setting: &Setting) -> String {
    let deferred = if setting.defer_interrupts.is_zero() { "" } else { "deferred_" };
    let engine_and_share = match (setting.engine, setting.server_share) {
        (Engine::Sockets, ServerShare::Calibrated) => String::new(),
        (Engine::Xdp, ServerShare::Calibrated) => "xdp_".into(),
        (Engine::Xdp, share) if share.is_whole_core() => "core_".into(),
        (engine, ServerShare::Percent(percent)) => format!("{}_{percent:.0}_percent_", engine.name()),
    };
    engine_and_share + deferred
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let started_at = Instant::now();
    let mut scene = Scene::create("burst", options.setting.clone())?;
    let warm_up = Duration::from_millis(if options.quick { 1_000 } else { 2_000 });
    let deadline = options.quick.then(|| started_at + QUICK_TIME_MAX);
    let timing = Timing { warm_up, deadline, ..Timing::default() };
    let _ = writeln!(out, "{}", options.setting.placement.description());
    if options.quick {
        let _ = writeln!(
            out,
            "--quick: {ROUNDS_QUICK} rounds instead of {ROUNDS}; do not cite ratios of this run"
        );
    }
    let calibration = calibrate(&mut scene, timing, Neighbours::Refused)?;
    let _ = writeln!(out, "{}", calibration.description());
    let machine = scene.machine()?;
    let measured = Measured {
        quick: options.quick,
        prefix: prefix(&options.setting),
        tally: calibration.tally.clone(),
        calibration,
        series: Vec::new(),
        burst_runs: Vec::new(),
        probed: Vec::new(),
        migrations: Vec::new(),
        burnt_percent: None,
        left_out: Vec::new(),
    };
    let mut course = Course { quick: options.quick, started_at, timing, out, measured };
    let outcome = course.run(scene, options);
    let mut results = Results::new("burst", machine);
    findings::add_results(&course.measured, options, &mut results);
    Ok(results.with_outcome(outcome))
}

impl Course<'_> {
    fn run(&mut self, mut scene: Scene, options: &Options) -> Result<(), Error> {
        let has_part = |part: &str| selects(&options.only, part);
        if options.quick && has_part("relief") {
            // A quick run may end before the ramps are complete, but must measure relief.
            self.measure_reliefs(&mut scene)?;
        }
        if has_part("goodput") {
            self.measure_goodput(&mut scene)?;
        }
        if !options.quick && has_part("relief") {
            self.measure_reliefs(&mut scene)?;
        }
        if has_part("iso-cpu") {
            self.measure_iso_cpu(&mut scene)?;
        }
        if has_part("migration") {
            self.measure_migrations(&mut scene)?;
        }
        scene.close()?;
        if has_part("burner") { self.cross_check(options) } else { Ok(()) }
    }

    fn measure_goodput(&mut self, scene: &mut Scene) -> Result<(), Error> {
        let max_delay = scene.setting().max_delay;
        let sla_us = self.measured.calibration.sla_us;
        let mut slas_us = vec![sla_us];
        if !self.quick {
            slas_us.extend([ROUND_SLA_US, PAPER_SLA_US].into_iter().filter(|&other| other != sla_us));
        }
        for (n, &sla_us) in slas_us.iter().enumerate() {
            let mut systems = vec![(System::Plain, false), (System::Helped, false), (System::Shimmed, false)];
            if n == 0 && !self.quick {
                systems.push((System::Plain, true));
                if scene.setting().engine == Engine::Sockets {
                    scene.start_nutcracker()?;
                    systems.push((System::Nutcracker, false));
                } else {
                    let why = "nutcracker (its packets would pass through the helper's XDP program)";
                    self.measured.left_out.push(why.into());
                }
            }
            if sla_us < ROUND_SLA_US {
                scene.set_max_delay(PAPER_MAX_DELAY)?;
            }
            self.measure_rounds(scene, &systems, sla_us, false)?;
        }
        scene.set_max_delay(max_delay)?;
        if self.quick {
            self.measured.left_out.push("goodput at 500 µs, A/A rounds and the burner (--quick)".into());
        }
        Ok(())
    }

    fn measure_rounds(
        &mut self,
        scene: &mut Scene,
        systems: &[(System, bool)],
        sla_us: u64,
        has_burner: bool,
    ) -> Result<(), Error> {
        let first = self.measured.series.len();
        self.measured.series.extend(systems.iter().map(|&(system, is_repetition)| Series {
            system,
            sla_us,
            max_delay: scene.setting().max_delay,
            has_burner,
            is_repetition,
            iso_percent: None,
            rounds: Vec::new(),
        }));
        let rounds = if self.quick { ROUNDS_QUICK } else { ROUNDS };
        for round in 0..rounds {
            for position in 0..systems.len() {
                // A quick run may have no time for all systems. Its order is fixed, so that only the last system can be
                // left out.
                let index = first + if self.quick { position } else { (position + round) % systems.len() };
                let ramped =
                    if self.has_time_for(RAMP_S) { Some(self.run_ramp(scene, index)?) } else { None };
                self.print_round(index, round, ramped.as_ref());
                self.measured.series[index].rounds.push(ramped);
            }
        }
        Ok(())
    }

    fn run_ramp(&mut self, scene: &mut Scene, index: usize) -> Result<RampResult, Error> {
        let series = &self.measured.series[index];
        let capacity = self.measured.calibration.direct_per_s;
        let earlier_per_s = series.median().or_else(|| {
            // Without an earlier round of this series: another series of the same system under the same limits.
            let similar = self.measured.series.iter().filter(|other| {
                (other.has_burner, other.sla_us, other.iso_percent)
                    == (series.has_burner, series.sla_us, series.iso_percent)
            });
            let mut similar = similar.filter(|other| other.system == series.system);
            similar.find_map(Series::median)
        });
        let direct = matches!(series.system, System::Plain | System::Shimmed)
            && series.iso_percent.is_none()
            && !series.has_burner
            && series.sla_us >= ROUND_SLA_US;
        let ramp_plan = match earlier_per_s.or(direct.then_some(capacity)) {
            Some(earlier_per_s) => Ramp::stepping(earlier_per_s * RAMP_START, FLOOR_PER_S, LIMIT_PER_S),
            None if series.system == System::Helped => {
                Ramp::searching(capacity * HELPED_START, FLOOR_PER_S, LIMIT_PER_S)
            }
            None => Ramp::searching(capacity / 2.0, FLOOR_PER_S, LIMIT_PER_S),
        };
        // In every round, the helped series under the calibrated SLA (one of the first four series) also measures the
        // saturated throughput.
        let saturate = series.system == System::Helped && index < 4 && !series.has_burner;
        let ramped = ramp(scene, series.system, self.timing, ramp_plan, series.sla_us, saturate)?;
        self.measured.tally.add(&ramped.tally);
        Ok(ramped)
    }

    /// Measures bursts that a helper relieves.
    fn measure_reliefs(&mut self, scene: &mut Scene) -> Result<(), Error> {
        let (direct_per_s, sla_us) =
            (self.measured.calibration.direct_per_s, self.measured.calibration.sla_us);
        let rounds = if self.quick { 1 } else { ROUNDS };
        let plan = if self.quick {
            Plan::new(direct_per_s, 2, 3, 5, 2)
        } else {
            Plan::new(direct_per_s, 3, 5, 8, 3)
        };
        for round in 0..rounds {
            let probe = rivals::Probe::start(scene)?;
            let run = scenario::run(scene, plan, sla_us, &mut |_| {})?;
            let (probed, probe_report) = probe.finish(&run)?;
            self.measured.tally.add_report(&run.report);
            self.measured.tally.add_report(&probe_report);
            self.measured.probed.push(probed);
            let ms_text = |ms: Option<f64>| ms.map_or("none".into(), |ms| format!("{ms:.0} ms"));
            let _ = writeln!(
                self.out,
                "relief {}: moved in {}, under the SLA after {}{}",
                round + 1,
                ms_text(run.moved_ms()),
                ms_text(run.relief_ms().map(|ms| ms as f64)),
                spoilt(&run.spoilt(scene.setting().quota))
            );
            self.measured.burst_runs.push(run);
        }
        Ok(())
    }

    /// Measures the goodput ratio with a burner in place of the quota. The helper and the bridge then run on another
    /// core than the server, because the burner would slow them too.
    fn cross_check(&mut self, options: &Options) -> Result<(), Error> {
        if self.quick {
            return Ok(());
        }
        let placement = options.setting.placement;
        let other_core = |core: usize| if core == placement.server { placement.clients } else { core };
        let (helper, bridge) = (other_core(placement.helper), other_core(placement.bridge));
        if helper == placement.server {
            self.measured.left_out.push("the burner (it needs a second core)".into());
            return Ok(());
        }
        let mut setting = options.setting.clone();
        setting.placement = Placement { helper, bridge, ..placement };
        setting.quota = None;
        let mut scene = Scene::create("burner", setting)?;
        let burner = Burner::start(placement.server, BURNT.0, BURNT.1)?;
        let _ = writeln!(
            self.out,
            "cross-check: a burner takes {:?} of every {:?} of the server's core",
            BURNT.0, BURNT.1
        );
        let systems = [(System::Plain, false), (System::Helped, false), (System::Shimmed, false)];
        let sla_us = self.sla_under_burner(&mut scene)?;
        self.measure_rounds(&mut scene, &systems, sla_us, true)?;
        self.measured.burnt_percent = Some(burner.percent_of_core());
        drop(burner);
        scene.close()
    }

    /// Derives the SLA again, from latencies beside the burner: a request that arrives while the burner runs waits for
    /// almost a period of the burner, so that no system could keep the SLA calibrated with a quota.
    fn sla_under_burner(&mut self, scene: &mut Scene) -> Result<u64, Error> {
        let mut driver = Driver::start(scene, System::Plain, self.timing)?;
        let p99_us = p99_at_fifth_us(&mut driver, self.measured.calibration.direct_per_s)?;
        self.measured.tally.add(&driver.finish()?);
        Ok(sla_us(p99_us.unwrap_or(0)))
    }

    fn has_time_for(&self, seconds: u64) -> bool {
        !self.quick || self.started_at.elapsed() + Duration::from_secs(seconds) <= QUICK_TIME_MAX
    }

    fn print_round(&mut self, index: usize, round: usize, ramped: Option<&RampResult>) {
        let series = &self.measured.series[index];
        let label = format!(
            "round {}: {}{}, SLA {} µs{}",
            round + 1,
            series.system.name(),
            if series.is_repetition { " (again)" } else { "" },
            series.sla_us,
            if series.has_burner { ", burner" } else { "" }
        );
        let outcome = ramped.map_or("left out, no time".into(), |ramped| {
            format!("{}{}", ramped.goodput, spoilt(&ramped.trouble.iter().cloned().collect::<Vec<_>>()))
        });
        // A closed output does not stop the experiment.
        let _ = writeln!(self.out, "{label}: {outcome}").and_then(|()| self.out.flush());
    }
}

impl Series {
    fn goodputs(&self) -> Vec<Option<f64>> {
        self.rounds.iter().map(|round| round.as_ref().and_then(|ramped| ramped.goodput.kept_per_s)).collect()
    }

    fn median(&self) -> Option<f64> {
        median(&self.goodputs().into_iter().flatten().collect::<Vec<_>>())
    }
}

fn spoilt(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" (spoilt: {})", reasons.join("; ")) }
}

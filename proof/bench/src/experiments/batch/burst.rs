//! How much more a helped server serves in time, how fast clients move, when relief is felt, and what it costs.
//!
//! Rounds are interleaved: each asks every system once, in turning order, so that a slow drift of the machine meets all
//! of them. A ratio compares systems within a round.

mod findings;
mod rivals;

use std::io::Write;
use std::time::{Duration, Instant};

use spillway_lab::Burner;

use crate::calibrate::{Calibration, FLOOR_PER_S, LIMIT_PER_S, Neighbours, calibrate, p99_at_fifth_us};
use crate::error::Error;
use crate::experiments::Options;
use crate::goodput::{Driver, Ramped, Tally, Timing, ramp};
use crate::ramp::Ramp;
use crate::relief::{Span, sla_us};
use crate::results::Results;
use crate::scenario::{self, Plan, Relieved};
use crate::scene::{Placement, Scene, System};
use crate::stats::median;

/// Rounds that the rule asks for.
const ROUNDS: usize = 5;
/// With `--quick`.
const ROUNDS_QUICK: usize = 2;
/// With `--quick`, nothing is begun that would not end by then; closing takes a moment more.
const QUICK: Duration = Duration::from_secs(114);
/// The shortest ramp that shows anything, its clients' start included, in seconds.
const RAMP_S: u64 = 10;
/// A ramp begins at this part of what earlier rounds found.
const BEGIN: f64 = 0.85;
/// Where the first search of the helped system begins, as a multiple of the direct capacity.
const HELPED_GUESS: f64 = 3.0;
/// The paper's SLA, in µs. It is at this machine's noise.
const PAPER_SLA_US: u64 = 500;
/// Also looked at whatever the run's SLA is, in µs.
const ROUND_SLA_US: u64 = 1_000;
/// The burner takes so much of every period of the server's core.
const BURNT: (Duration, Duration) = (Duration::from_micros(900), Duration::from_micros(1_000));

/// At the paper's SLA a batch may wait for less.
const PAPER_MAX_DELAY: Duration = Duration::from_micros(150);

/// Ramps on one system under one SLA, a round each; `None` where a round was left out.
#[derive(Debug)]
struct Series {
    system: System,
    sla_us: u64,
    /// How long the helper let a batch wait.
    max_delay: Duration,
    /// The server is limited by the burner instead of its quota.
    burner: bool,
    /// A second series of the same, to see what differs by itself.
    again: bool,
    /// The server had the helper's CPU as well: its quota then, in percent of a core.
    iso_percent: Option<f64>,
    rounds: Vec<Option<Ramped>>,
}

/// Everything that was measured.
#[derive(Debug)]
struct Measured {
    quick: bool,
    calibration: Calibration,
    series: Vec<Series>,
    relieved: Vec<Relieved>,
    /// Of each of them, what a probe on the direct port saw while the others were helped.
    probed: Vec<Span>,
    migrations: Vec<rivals::Migration>,
    /// What the burner really took, in percent of its core.
    burnt_percent: Option<f64>,
    /// What was left out, and why.
    left_out: Vec<String>,
    tally: Tally,
}

/// The run's course.
struct Course<'a> {
    quick: bool,
    begun: Instant,
    timing: Timing,
    out: &'a mut dyn Write,
    measured: Measured,
}

/// Runs the experiment.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<Results, Error> {
    let begun = Instant::now();
    let mut scene = Scene::set("burst", options.setting.clone())?;
    let warm_up = Duration::from_millis(if options.quick { 1_000 } else { 2_000 });
    let deadline = options.quick.then(|| begun + QUICK);
    let timing = Timing { warm_up, deadline, ..Timing::default() };
    let _ = writeln!(out, "{}", options.setting.placement.words());
    if options.quick {
        let _ = writeln!(
            out,
            "--quick: {ROUNDS_QUICK} rounds instead of {ROUNDS}, so no ratio here is to be cited"
        );
    }
    let calibration = calibrate(&mut scene, timing, Neighbours::Refused)?;
    let _ = writeln!(out, "{}", calibration.words());
    let machine = scene.machine()?;
    let measured = Measured {
        quick: options.quick,
        tally: calibration.tally.clone(),
        calibration,
        series: Vec::new(),
        relieved: Vec::new(),
        probed: Vec::new(),
        migrations: Vec::new(),
        burnt_percent: None,
        left_out: Vec::new(),
    };
    let mut course = Course { quick: options.quick, begun, timing, out, measured };
    let ended = course.all(scene, options);
    let mut results = Results::new("burst", machine);
    findings::state(&course.measured, options, &mut results);
    Ok(results.after(ended))
}

impl Course<'_> {
    /// Everything after the calibration.
    fn all(&mut self, mut scene: Scene, options: &Options) -> Result<(), Error> {
        if options.quick {
            // What must not be left out comes first.
            self.reliefs(&mut scene)?;
        }
        self.goodput(&mut scene)?;
        if !options.quick {
            self.reliefs(&mut scene)?;
        }
        self.rivals(&mut scene)?;
        scene.close()?;
        self.cross_check(options)
    }

    /// Ramps of all systems under all SLAs.
    fn goodput(&mut self, scene: &mut Scene) -> Result<(), Error> {
        let max_delay = scene.setting().max_delay;
        let sla_us = self.measured.calibration.sla_us;
        let mut slas_us = vec![sla_us];
        if !self.quick {
            slas_us.extend([ROUND_SLA_US, PAPER_SLA_US].into_iter().filter(|&other| other != sla_us));
        }
        for (n, &sla_us) in slas_us.iter().enumerate() {
            let mut plan = vec![(System::Plain, false), (System::Helped, false), (System::Shimmed, false)];
            if n == 0 && !self.quick {
                plan.push((System::Plain, true));
                scene.start_nutcracker()?;
                plan.push((System::Nutcracker, false));
            }
            if sla_us < ROUND_SLA_US {
                scene.set_max_delay(PAPER_MAX_DELAY)?;
            }
            self.rounds(scene, &plan, sla_us, false)?;
        }
        scene.set_max_delay(max_delay)?;
        if self.quick {
            self.measured.left_out.push("goodput at 500 µs, A/A rounds and the burner (--quick)".into());
        }
        Ok(())
    }

    /// All rounds of some systems, interleaved.
    fn rounds(
        &mut self,
        scene: &mut Scene,
        plan: &[(System, bool)],
        sla_us: u64,
        burner: bool,
    ) -> Result<(), Error> {
        let first = self.measured.series.len();
        self.measured.series.extend(plan.iter().map(|&(system, again)| Series {
            system,
            sla_us,
            max_delay: scene.setting().max_delay,
            burner,
            again,
            iso_percent: None,
            rounds: Vec::new(),
        }));
        let rounds = if self.quick { ROUNDS_QUICK } else { ROUNDS };
        for round in 0..rounds {
            for turn in 0..plan.len() {
                // A quick run keeps its order: what comes last may be left out.
                let at = first + if self.quick { turn } else { (turn + round) % plan.len() };
                let ramped = if self.time_for(RAMP_S) { Some(self.ramp(scene, at)?) } else { None };
                self.tell(at, round, ramped.as_ref());
                self.measured.series[at].rounds.push(ramped);
            }
        }
        Ok(())
    }

    fn ramp(&mut self, scene: &mut Scene, at: usize) -> Result<Ramped, Error> {
        let series = &self.measured.series[at];
        let capacity = self.measured.calibration.direct_per_s;
        let known = series.median().or_else(|| {
            // The same system without limits on its order: the other series of it, or the calibration.
            let same = self.measured.series.iter().filter(|s| {
                (s.burner, s.sla_us, s.iso_percent) == (series.burner, series.sla_us, series.iso_percent)
            });
            let mut same = same.filter(|s| s.system == series.system);
            same.find_map(Series::median)
        });
        let direct = matches!(series.system, System::Plain | System::Shimmed)
            && series.iso_percent.is_none()
            && !series.burner
            && series.sla_us >= ROUND_SLA_US;
        let plan = match known.or(direct.then_some(capacity)) {
            Some(known) => Ramp::stepping(known * BEGIN, FLOOR_PER_S, LIMIT_PER_S),
            None if series.system == System::Helped => {
                Ramp::searching(capacity * HELPED_GUESS, FLOOR_PER_S, LIMIT_PER_S)
            }
            None => Ramp::searching(capacity / 2.0, FLOOR_PER_S, LIMIT_PER_S),
        };
        // How much a helped server does at all is asked in every round of the main series.
        let saturate = series.system == System::Helped && at < 4 && !series.burner;
        let ramped = ramp(scene, series.system, self.timing, plan, series.sla_us, saturate)?;
        self.measured.tally.add(&ramped.tally);
        Ok(ramped)
    }

    /// Bursts and their reliefs.
    fn reliefs(&mut self, scene: &mut Scene) -> Result<(), Error> {
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
            let (probed, probe) = probe.finish(&run)?;
            self.measured.tally.add_report(&run.report);
            self.measured.tally.add_report(&probe);
            self.measured.probed.push(probed);
            let ms = |ms: Option<f64>| ms.map_or("none".into(), |ms| format!("{ms:.0} ms"));
            let _ = writeln!(
                self.out,
                "relief {}: moved in {}, under the SLA after {}{}",
                round + 1,
                ms(run.moved_ms()),
                ms(run.relief_ms().map(|ms| ms as f64)),
                spoilt(&run.spoilt(scene.setting().quota))
            );
            self.measured.relieved.push(run);
        }
        Ok(())
    }

    /// The same ratio with a burner in place of the quota. Helper and bridge cannot be on the server's core then, for
    /// the burner would take their time as well.
    fn cross_check(&mut self, options: &Options) -> Result<(), Error> {
        if self.quick {
            return Ok(());
        }
        let placement = options.setting.placement;
        let off_its_core = |core: usize| if core == placement.server { placement.clients } else { core };
        let (helper, bridge) = (off_its_core(placement.helper), off_its_core(placement.bridge));
        if helper == placement.server {
            self.measured.left_out.push("the burner (it needs a second core)".into());
            return Ok(());
        }
        let mut setting = options.setting.clone();
        setting.placement = Placement { helper, bridge, ..placement };
        setting.quota = None;
        let mut scene = Scene::set("burner", setting)?;
        let burner = Burner::start(placement.server, BURNT.0, BURNT.1)?;
        let _ = writeln!(
            self.out,
            "cross-check: a burner takes {:?} of every {:?} of the server's core",
            BURNT.0, BURNT.1
        );
        let plan = [(System::Plain, false), (System::Helped, false), (System::Shimmed, false)];
        let sla_us = self.sla_under_burner(&mut scene)?;
        self.rounds(&mut scene, &plan, sla_us, true)?;
        self.measured.burnt_percent = Some(burner.percent_of_core());
        drop(burner);
        scene.close()
    }

    /// The rule that fixes the SLA, applied anew: whoever comes while the burner is at work waits for nearly a period,
    /// so no system could keep the SLA of the quota.
    fn sla_under_burner(&mut self, scene: &mut Scene) -> Result<u64, Error> {
        let mut driver = Driver::start(scene, System::Plain, self.timing)?;
        let p99_us = p99_at_fifth_us(&mut driver, self.measured.calibration.direct_per_s)?;
        self.measured.tally.add(&driver.finish()?);
        Ok(sla_us(p99_us.unwrap_or(0)))
    }

    /// Whether something that takes so many seconds may still be begun.
    fn time_for(&self, seconds: u64) -> bool {
        !self.quick || self.begun.elapsed() + Duration::from_secs(seconds) <= QUICK
    }

    fn tell(&mut self, at: usize, round: usize, ramped: Option<&Ramped>) {
        let series = &self.measured.series[at];
        let what = format!(
            "round {}: {}{}, SLA {} µs{}",
            round + 1,
            series.system.name(),
            if series.again { " (again)" } else { "" },
            series.sla_us,
            if series.burner { ", burner" } else { "" }
        );
        let found = ramped.map_or("left out, no time".into(), |ramped| {
            format!("{}{}", ramped.found, spoilt(&ramped.trouble.iter().cloned().collect::<Vec<_>>()))
        });
        // Nobody reading is no reason to stop.
        let _ = writeln!(self.out, "{what}: {found}").and_then(|()| self.out.flush());
    }
}

impl Series {
    /// The goodput of each round, in requests a second.
    fn goodputs(&self) -> Vec<Option<f64>> {
        self.rounds.iter().map(|round| round.as_ref().and_then(|ramped| ramped.found.kept_per_s)).collect()
    }

    fn median(&self) -> Option<f64> {
        median(&self.goodputs().into_iter().flatten().collect::<Vec<_>>())
    }
}

fn spoilt(reasons: &[String]) -> String {
    if reasons.is_empty() { String::new() } else { format!(" (spoilt: {})", reasons.join("; ")) }
}

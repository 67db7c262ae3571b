//! `spillway-lab sim moves`: moves of connections, step by step, with a fault at each step.

use serde_json::json;
use spillway_sim::tcp::planted_fault::PlantedFault;
use spillway_sim::tcp::scenario::case::Case;
use spillway_sim::tcp::scenario::{Moves, ScenarioReport, run as run_moves, run_with_trace};

use super::{Progress, fault_by_name, write};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed: it decides addresses, sizes, windows and timers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Run only this case, STEP/FAULT, for example own-answer/lost; without it, all cases of each seed
    #[arg(long, value_name = "CASE", value_parser = Case::named, conflicts_with_all = ["swarm", "calm", "planted"])]
    case: Option<Case>,
    /// Run twelve moves of each seed instead, on all cores; a random fault strikes in half of them
    #[arg(long, conflicts_with_all = ["calm", "planted"])]
    swarm: bool,
    /// Run twelve moves of each seed without a fault instead: no retransmission timeout may happen
    #[arg(long, conflicts_with = "planted")]
    calm: bool,
    /// Plant a fault that the checks must find, in twelve moves of each seed: keep-source, forget-buffer, replay-seal, bounce
    #[arg(long = "plant", alias = "canary", value_name = "FAULT", value_parser = |name: &str| fault_by_name(PlantedFault::OF_MOVES, PlantedFault::name, name))]
    planted: Option<PlantedFault>,
    /// Also print each frame and datagram, its fate, and why stacks drop segments
    #[arg(long, conflicts_with = "json")]
    frames: bool,
    /// Write one JSON object for each run to FILE: seed, steps with outcomes, violations
    #[arg(long, value_name = "FILE")]
    json: Option<String>,
}

/// A run: the seed, and the case if there is one.
#[derive(Clone, Copy)]
struct Run {
    seed: u64,
    case: Option<Case>,
}

/// Returns the number of failed runs.
pub(super) fn run(args: &Args) -> u64 {
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let cases: Vec<Option<Case>> = match args.case {
        _ if args.swarm || args.calm || args.planted.is_some() => vec![None],
        Some(case) => vec![Some(case)],
        None => Case::all().map(Some).collect(),
    };
    let runs: Vec<Run> =
        seeds.flat_map(|seed| cases.iter().map(move |case| Run { seed, case: *case })).collect();
    let (mut failed, mut objects) = (0, Vec::new());
    let mut progress = Progress::new(runs.len() as u64);
    spillway_sim::run_seeds(
        0..runs.len() as u64,
        |index| {
            let run = runs[index as usize]; // fits: an index
            (run, report(run, args))
        },
        |(run, report)| {
            print(run, &report, args);
            progress.record(report.violations.is_empty());
            failed += u64::from(!report.violations.is_empty());
            objects.push(json!({ "report": report, "replay": replay(run, args) }).to_string());
        },
    );
    print_line!("{} of {} runs without violations", runs.len() as u64 - failed, runs.len());
    args.json.as_ref().map_or(failed, |file| failed + write(file, &objects.join("\n")))
}

/// Runs once; a panic of the code under test is a violation.
fn report(run: Run, args: &Args) -> ScenarioReport {
    let moves = match run.case {
        Some(case) => Moves::Case(case),
        None if args.swarm => Moves::Swarm,
        None => Moves::Twelve(args.planted),
    };
    let report = std::panic::catch_unwind(|| {
        if args.frames {
            return run_with_trace(run.seed, moves, |line| print_line!("{line}"));
        }
        run_moves(run.seed, moves)
    });
    let violations = vec!["the code under test panicked, see above".to_owned()];
    report.unwrap_or_else(|_| ScenarioReport { seed: run.seed, violations, ..ScenarioReport::default() })
}

/// The command that repeats a run.
fn replay(run: Run, args: &Args) -> String {
    let mode = match (run.case, args.planted) {
        (Some(case), _) => format!("--case {case}"),
        (None, Some(planted)) => format!("--plant {}", planted.name()),
        (None, None) if args.calm => "--calm".to_owned(),
        (None, None) => "--swarm".to_owned(),
    };
    format!("spillway-lab sim moves --seed {} {mode}", run.seed)
}

fn print(run: Run, report: &ScenarioReport, args: &Args) {
    if run.case.is_some() {
        for (name, outcome) in &report.steps {
            let (seed, timeouts, lost) = (report.seed, report.timeouts, report.lost);
            print_line!("{seed:6} {name:42} {outcome:26} timeouts {timeouts:4}  lost {lost:3}");
        }
    } else {
        let moved = report.steps.iter().filter(|(_, outcome)| outcome == "moved").count();
        let (seed, moves, timeouts, lost) = (report.seed, report.steps.len(), report.timeouts, report.lost);
        print_line!(
            "{seed:6} {moved} of {moves} moves reached their targets  timeouts {timeouts:4}  lost {lost:3}"
        );
    }
    for what in &report.violations {
        print_line!("       VIOLATION: {what}");
    }
    if !report.violations.is_empty() {
        print_line!("       replay: {}", replay(run, args));
    }
}

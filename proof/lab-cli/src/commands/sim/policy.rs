//! `spillway-lab sim policy`: simulates the relief policy.

use serde_json::json;
use spillway_sim::policy::checker::{Check, Violation};
use spillway_sim::policy::planted_fault::PlantedFault;
use spillway_sim::policy::{Report, run as run_world, run_with_trace};

use super::{Progress, fault_by_name};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Print one JSON object for each seed
    #[arg(long)]
    json: bool,
    /// Also print each decision
    #[arg(long, conflicts_with_all = ["json", "swarm"])]
    decisions: bool,
    /// Plant a fault that the checks must find: flap, deaf, rush, blind, twice, forgetful, hasty-release, herd
    #[arg(long = "plant", alias = "canary", value_name = "FAULT", value_parser = |name: &str| fault_by_name(PlantedFault::ALL, PlantedFault::name, name))]
    planted: Option<PlantedFault>,
    /// Run the seeds on all cores, and print only the sum and violations; with --json one object
    #[arg(long)]
    swarm: bool,
}

/// Returns the number of failed seeds.
pub(super) fn run(args: &Args) -> u64 {
    if args.swarm { run_swarm(args) } else { run_seeds(args) }
}

fn run_seeds(args: &Args) -> u64 {
    let mut failed = 0;
    if !args.json {
        print_line!(
            "  seed  course            helpers  processes  connections  requests    late  without   moves  most  \
             over/ms  without  relieved/ms  trace"
        );
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let report = if args.decisions {
            let (report, decisions) = run_with_trace(seed, args.planted);
            decisions.iter().for_each(|line| print_line!("{line}"));
            report
        } else {
            run_one(seed, args)
        };
        failed += u64::from(!report.violations.is_empty());
        if !args.json {
            print_line!("{}", line(&report));
        } else if let Ok(text) = serde_json::to_string(&report) {
            print_line!("{text}");
        }
        print_violations(args, &report);
    }
    if !args.json {
        print_line!("{} of {} seeds without violations", args.seeds - failed, args.seeds);
    }
    failed
}

fn line(report: &Report) -> String {
    let relieved = report.relieved_ms.map_or("-".to_owned(), |ms| ms.to_string());
    format!(
        "{:6}  {:16}  {:7}  {:9}  {:11}  {:8}  {:6}  {:7}  {:6}  {:4}  {:7}  {:7}  {relieved:>11}  {}",
        report.seed,
        report.course,
        report.trouble,
        report.processes,
        report.connections,
        report.requests,
        report.late,
        report.late_without,
        report.moves,
        report.switches_max,
        report.over_sla_ms,
        report.over_sla_ms_without,
        report.trace_hash
    )
}

/// Prints a seed's violations, and the command that reproduces them; with --json on standard error.
fn print_violations(args: &Args, report: &Report) {
    let planted = args.planted.map(|planted| format!(" --plant {}", planted.name())).unwrap_or_default();
    let replay =
        format!("       replay: spillway-lab sim policy --seed {} --decisions{planted}", report.seed);
    let lines = report.violations.iter().map(|violation| format!("       VIOLATION: {violation}"));
    for line in lines.chain((!report.violations.is_empty()).then_some(replay)) {
        if args.json { eprintln!("{line}") } else { print_line!("{line}") }
    }
}

/// Runs one seed; a panic of the code under test is a violation.
fn run_one(seed: u64, args: &Args) -> Report {
    std::panic::catch_unwind(|| run_world(seed, args.planted)).unwrap_or_else(|_| Report {
        seed,
        violations: vec![Violation {
            check: Check::Orders,
            what: "the code under test panicked, see above".to_owned(),
        }],
        ..Report::default()
    })
}

fn run_swarm(args: &Args) -> u64 {
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let mut reports: Vec<Report> = Vec::new();
    let mut progress = Progress::new(args.seeds);
    spillway_sim::run_seeds(
        seeds,
        |seed| run_one(seed, args),
        |report| {
            print_violations(args, &report);
            progress.record(report.violations.is_empty());
            reports.push(report);
        },
    );
    let failed = reports.iter().filter(|report| !report.violations.is_empty()).count() as u64;
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    let (requests, late, late_without) =
        (sum(|report| report.requests), sum(|report| report.late), sum(|report| report.late_without));
    let (moves, connections) = (sum(|report| report.moves), sum(|report| u64::from(report.connections)));
    let moves_max = reports.iter().map(|report| report.switches_max).max().unwrap_or(0);
    let relieved = reports.iter().filter_map(|report| report.relieved_ms).max();
    if args.json {
        let violations: Vec<_> = reports
            .iter()
            .flat_map(|report| report.violations.iter().map(|violation| (report.seed, violation)))
            .map(|(seed, violation)| json!({"seed": seed, "check": violation.check, "what": violation.what}))
            .collect();
        print_line!(
            "{}",
            json!({
                "first_seed": args.seed,
                "seeds": reports.len(),
                "requests": requests,
                "late": late,
                "late_without": late_without,
                "connections": connections,
                "moves": moves,
                "switches_max": moves_max,
                "relieved_ms_max": relieved,
                "violations": violations,
            })
        );
    } else {
        print_line!(
            "{} seeds, {failed} with violations; {requests} requests, {late} late ({late_without} without help), \
             {connections} connections, {moves} moves, at most {moves_max} moves of one connection in a minute",
            reports.len()
        );
    }
    failed
}

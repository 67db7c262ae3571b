//! `spillway-lab sim move-policy`: compares policies for moves of connections between servers.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::json;
use spillway_sim::move_policy::plan::Scenario;
use spillway_sim::move_policy::planted_fault::PlantedFault;
use spillway_sim::move_policy::{PolicyName, Report, RunSettings, run as run_world, run_with_trace};

use super::fault_by_name;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Run one policy only: none, reactive, proactive [default: all, compared by seed]
    #[arg(long, value_parser = |name: &str| fault_by_name(PolicyName::ALL, PolicyName::name, name))]
    policy: Option<PolicyName>,
    /// Run one load only: skew, steps [default: both]
    #[arg(long, value_parser = |name: &str| fault_by_name(Scenario::ALL, Scenario::name, name))]
    scenario: Option<Scenario>,
    /// Limits that the policies meet often, and a load that changes often
    #[arg(long)]
    tight_limits: bool,
    /// Plant a fault that the checks must find: rush, restless, bounce, crowd, twitch, deaf; implies --tight-limits
    #[arg(long = "plant", alias = "canary", value_name = "FAULT", value_parser = |name: &str| fault_by_name(PlantedFault::ALL, PlantedFault::name, name))]
    planted: Option<PlantedFault>,
    /// Also print each decision
    #[arg(long)]
    decisions: bool,
    /// Also write all reports and ratios to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Returns the number of seeds with a violation.
pub(super) fn run(args: &Args) -> u64 {
    let scenarios = args.scenario.map_or(Scenario::ALL.to_vec(), |scenario| vec![scenario]);
    let policies = args.policy.map_or(PolicyName::ALL.to_vec(), |policy| vec![policy]);
    let (mut failed, mut objects) = (0, Vec::new());
    for scenario in scenarios {
        let by_policy: Vec<Vec<Report>> =
            policies.iter().map(|policy| reports(args, scenario, *policy)).collect();
        print_line!("{}", scenario.name());
        print_line!(
            "  policy     p99/us: median       max  moves: median   max     sum  refused  violations"
        );
        by_policy.iter().for_each(|reports| print_policy(reports));
        let ratios = ratios(&by_policy);
        for (name, ratio) in &ratios {
            print_line!("  {name}: {ratio:.3}");
        }
        let ratios: serde_json::Map<_, _> =
            ratios.into_iter().map(|(name, ratio)| (name.to_owned(), json!(ratio))).collect();
        failed += failed_seeds(args, &by_policy);
        objects.push(json!({ "scenario": scenario, "ratios": ratios, "reports": by_policy.concat() }));
    }
    if let Some(path) = &args.json {
        let object = json!({ "first_seed": args.seed, "seeds": args.seeds, "scenarios": objects });
        if let Err(error) = std::fs::write(path, format!("{object}\n")) {
            eprintln!("spillway-lab sim move-policy: cannot write {}: {error}", path.display());
            failed += 1;
        }
    }
    failed
}

/// The reports of all seeds, in the order of the seeds.
fn reports(args: &Args, scenario: Scenario, policy: PolicyName) -> Vec<Report> {
    let has_tight_limits = args.tight_limits || args.planted.is_some();
    let settings = RunSettings { scenario, policy, has_tight_limits, planted: args.planted };
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let mut reports = Vec::new();
    if args.decisions {
        for seed in seeds {
            let (report, decisions) = run_with_trace(seed, settings);
            print_line!("seed {seed}, {}, {}", scenario.name(), policy.name());
            decisions.iter().for_each(|line| print_line!("{line}"));
            reports.push(report);
        }
    } else {
        let collected = Mutex::new(&mut reports);
        let collect = |report| {
            if let Ok(mut reports) = collected.lock() {
                reports.push(report);
            }
        };
        spillway_sim::run_seeds(seeds, |seed| run_world(seed, settings), collect);
    }
    reports.sort_by_key(|report| report.seed);
    reports
}

fn print_policy(reports: &[Report]) {
    let latencies = sorted(reports.iter().map(|report| report.p99_us));
    let moves = sorted(reports.iter().map(|report| report.moves as f64));
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    print_line!(
        "  {:9} {:15.0} {:9.0} {:14.0} {:5.0} {:7} {:8} {:11}",
        reports[0].policy.name(),
        median(&latencies),
        latencies[latencies.len() - 1],
        median(&moves),
        moves[moves.len() - 1],
        sum(|report| report.moves),
        sum(|report| report.refused),
        sum(|report| report.violations.len() as u64),
    );
}

/// The ratios of policies: of p99 the median over the seeds, of moves the ratio of the sums. Empty unless all policies
/// ran.
fn ratios(by_policy: &[Vec<Report>]) -> Vec<(&'static str, f64)> {
    let [none, reactive, proactive] = by_policy else { return Vec::new() };
    let p99 = |ours: &[Report], theirs: &[Report]| {
        median(&sorted(ours.iter().zip(theirs).map(|(ours, theirs)| ours.p99_us / theirs.p99_us)))
    };
    let moves = |reports: &[Report]| reports.iter().map(|report| report.moves).sum::<u64>() as f64;
    vec![
        ("p99_reactive_over_none", p99(reactive, none)),
        ("p99_proactive_over_none", p99(proactive, none)),
        ("p99_proactive_over_reactive", p99(proactive, reactive)),
        ("moves_proactive_over_reactive", moves(proactive) / moves(reactive).max(1.0)),
    ]
}

/// Prints violations, and the commands that reproduce them. Returns the number of runs with violations.
fn failed_seeds(args: &Args, by_policy: &[Vec<Report>]) -> u64 {
    let tight = if args.tight_limits { " --tight-limits" } else { "" };
    let planted = args.planted.map(|planted| format!(" --plant {}", planted.name())).unwrap_or_default();
    let failed = || by_policy.iter().flatten().filter(|report| !report.violations.is_empty());
    for report in failed() {
        report.violations.iter().for_each(|violation| print_line!("       VIOLATION: {violation}"));
        print_line!(
            "       replay: spillway-lab sim move-policy --seed {} --seeds 1 --policy {} --scenario {} \
             --decisions{tight}{planted}",
            report.seed,
            report.policy.name(),
            report.scenario.name()
        );
    }
    failed().count() as u64
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

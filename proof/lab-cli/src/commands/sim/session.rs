//! `spillway-lab sim session`: simulates sessions that move between carriers, with faults.

use std::time::Instant;

use serde_json::json;
use spillway_sim::session::check::{Check, Violation};
use spillway_sim::session::planted_fault::PlantedFault;
use spillway_sim::session::{Report, run as run_world};

use super::{Progress, Runs, fault_by_name};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    runs: Runs,
    /// Plant a fault that the checks must find: deliver-old, drop-piece, repeat-piece, alter-request, alter-reply,
    /// early-end, accept-stale, false-gone, forget-last, false-over, gone-further, keep-more, take-more, forget-credit,
    /// forget-room, forget-close, wrong-finish, keep-strangers, read-flooders
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
    let runs = &args.runs;
    let mut failed = 0;
    if !runs.json {
        print_line!("  seed   steps  time/ms  sessions  complete  gone  moves  faults  trace");
    }
    for seed in runs.all() {
        let report = run_one(seed, args);
        failed += u64::from(!report.violations.is_empty());
        runs.print(&report, line(&report));
        args.print_violations(&report);
    }
    runs.print_total(failed);
    failed
}

impl Args {
    fn print_violations(&self, report: &Report) {
        let planted = self.planted.map(PlantedFault::name);
        self.runs.print_violations("session", report.seed, planted, &report.violations);
    }
}

fn line(report: &Report) -> String {
    format!(
        "{:6} {:7} {:8} {:9} {:9} {:5} {:6} {:7}  {}",
        report.seed,
        report.steps,
        report.simulated_ms,
        report.sessions,
        report.completed,
        report.gone,
        report.moves,
        report.faults,
        report.trace_hash
    )
}

/// Runs one seed; a panic of the code under test is a violation.
fn run_one(seed: u64, args: &Args) -> Report {
    std::panic::catch_unwind(|| run_world(seed, args.runs.steps, args.planted)).unwrap_or_else(|_| Report {
        seed,
        violations: vec![Violation {
            check: Check::Rules,
            what: "the code under test panicked, see above".to_owned(),
        }],
        ..Report::default()
    })
}

/// Sums over all seeds of a swarm.
#[derive(Debug, Default)]
struct Totals {
    seeds: u64,
    failed: u64,
    steps: u64,
    sessions: u64,
    completed: u64,
    gone: u64,
    moves: u64,
    faults: u64,
    messages: u64,
    delivered_bytes: u64,
    copies: u64,
    violations: Vec<(u64, Violation)>,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.failed += u64::from(!report.violations.is_empty());
        self.steps += report.steps;
        self.sessions += report.sessions as u64;
        self.completed += report.completed;
        self.gone += report.gone;
        self.moves += report.moves;
        self.faults += report.faults;
        self.messages += report.messages;
        self.delivered_bytes += report.delivered_bytes;
        self.copies += report.copies_refused + report.copies_accepted;
        self.violations.extend(report.violations.iter().map(|violation| (report.seed, violation.clone())));
    }
}

fn run_swarm(args: &Args) -> u64 {
    let seeds = args.runs.all();
    let first_seed = seeds.start;
    let (mut totals, mut progress) = (Totals::default(), Progress::new(args.runs.seeds));
    let started_at = Instant::now();
    spillway_sim::run_seeds(
        seeds,
        |seed| run_one(seed, args),
        |report| {
            totals.add(&report);
            args.print_violations(&report);
            progress.record(report.violations.is_empty());
        },
    );
    if args.runs.json {
        let violations = totals
            .violations
            .iter()
            .map(|(seed, violation)| json!({"seed": seed, "check": violation.check, "what": violation.what}));
        let violations: Vec<_> = violations.collect();
        print_line!(
            "{}",
            json!({
                "first_seed": first_seed,
                "seeds": totals.seeds,
                "steps": totals.steps,
                "sessions": totals.sessions,
                "completed": totals.completed,
                "gone": totals.gone,
                "moves": totals.moves,
                "faults": totals.faults,
                "messages": totals.messages,
                "delivered_bytes": totals.delivered_bytes,
                "said_again": totals.copies,
                "seconds": started_at.elapsed().as_secs_f64(),
                "violations": violations,
            })
        );
    } else {
        print_line!(
            "{} seeds in {:.0} s, {} with violations; {} steps, {} messages, {} sessions ({} complete, {} gone), \
             {} moves, {} faults",
            totals.seeds,
            started_at.elapsed().as_secs_f64(),
            totals.failed,
            totals.steps,
            totals.messages,
            totals.sessions,
            totals.completed,
            totals.gone,
            totals.moves,
            totals.faults
        );
    }
    totals.failed
}

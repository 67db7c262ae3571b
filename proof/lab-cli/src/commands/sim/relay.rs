//! `spillway-lab sim relay`: simulates clients, helpers and a server with faults.

use spillway_sim::relay::planted_fault::PlantedFault;
use spillway_sim::relay::{Report, run as run_world};

use super::{Runs, fault_by_name};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    runs: Runs,
    /// Plant a fault that the checks must find: flip-byte, drop-piece, repeat-piece, swap-pieces, forget-close,
    /// forget-credit, hasty-acknowledgement, close-idle, keep-strangers, read-flooders, unsealed-links
    #[arg(long = "plant", alias = "canary", value_name = "FAULT", value_parser = |name: &str| fault_by_name(PlantedFault::ALL, PlantedFault::name, name))]
    planted: Option<PlantedFault>,
}

/// Returns the number of failed seeds.
pub(super) fn run(args: &Args) -> u64 {
    let runs = &args.runs;
    let mut failed = 0;
    if !runs.json {
        print_line!("  seed   steps  time/ms  streams  complete  broken  faults  messages/batch  trace");
    }
    for seed in runs.all() {
        let report = run_world(seed, runs.steps, args.planted);
        failed += u64::from(!report.violations.is_empty());
        runs.print(&report, line(&report));
        runs.print_violations("relay", seed, args.planted.map(PlantedFault::name), &report.violations);
    }
    runs.print_total(failed);
    failed
}

fn line(report: &Report) -> String {
    format!(
        "{:6} {:7} {:8} {:8} {:9} {:7} {:7} {:15.1}  {}",
        report.seed,
        report.steps,
        report.simulated_ms,
        report.streams,
        report.completed,
        report.broken,
        report.faults,
        report.messages as f64 / report.batches.max(1) as f64,
        report.trace_hash
    )
}

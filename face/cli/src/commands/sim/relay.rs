//! `spillway sim relay`.

use std::process::ExitCode;

use spillway_sim::canary::Canary;
use spillway_sim::{Report, run as run_world};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of each storm: arrivals, turns, timers.
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Plant a fault that must be found: flip-byte, drop-piece, repeat-piece, swap-pieces, forget-close, forget-credit.
    #[arg(long, value_name = "FAULT", value_parser = canary)]
    canary: Option<Canary>,
    /// One JSON object a seed.
    #[arg(long)]
    json: bool,
}

fn canary(name: &str) -> Result<Canary, String> {
    let named = Canary::ALL.into_iter().find(|canary| canary.name() == name);
    named.ok_or_else(|| format!("one of {}", Canary::ALL.map(Canary::name).join(", ")))
}

pub(crate) fn run(relay: &Args) -> ExitCode {
    let mut failed = 0;
    if !relay.json {
        println!("  seed   steps  time/ms  streams  complete  broken  faults  messages/batch  trace");
    }
    for seed in relay.seed..relay.seed.saturating_add(relay.seeds) {
        let report = run_world(seed, relay.steps, relay.canary);
        failed += u64::from(!report.violations.is_empty());
        if relay.json {
            match serde_json::to_string(&report) {
                Ok(line) => println!("{line}"),
                Err(error) => eprintln!("spillway sim: seed {seed}: {error}"),
            }
        } else {
            print(relay, &report);
        }
    }
    if !relay.json {
        println!("{} of {} seeds without violations", relay.seeds - failed, relay.seeds);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn print(relay: &Args, report: &Report) {
    println!(
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
    );
    if report.violations.is_empty() {
        return;
    }
    for violation in &report.violations {
        println!("       VIOLATION: {violation}");
    }
    let canary = relay.canary.map(|canary| format!(" --canary {}", canary.name())).unwrap_or_default();
    println!("       replay: spillway sim relay --seed {} --steps {}{canary}", report.seed, relay.steps);
}

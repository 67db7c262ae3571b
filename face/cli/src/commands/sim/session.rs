//! `spillway sim session`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use spillway_sim::session::canary::Canary;
use spillway_sim::session::{Report, run as run_world};

/// How often a swarm says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of each storm: arrivals, turns, timers
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Plant a fault that must be found: deliver-old, drop-piece, repeat-piece, false-gone, keep-more, forget-credit,
    /// early-end
    #[arg(long, value_name = "FAULT", value_parser = canary)]
    canary: Option<Canary>,
    /// Run the seeds on all cores, and tell only the sum and what was wrong
    #[arg(long)]
    swarm: bool,
    /// One JSON object a seed; of a swarm, one in all
    #[arg(long)]
    json: bool,
}

fn canary(name: &str) -> Result<Canary, String> {
    let named = Canary::ALL.into_iter().find(|canary| canary.name() == name);
    named.ok_or_else(|| format!("one of {}", Canary::ALL.map(Canary::name).join(", ")))
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let failed = if args.swarm { swarm(args) } else { one_by_one(args) };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn one_by_one(args: &Args) -> u64 {
    let mut failed = 0;
    if !args.json {
        println!("  seed   steps  time/ms  sessions  complete  gone  moves  faults  trace");
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let report = run_one(seed, args);
        failed += u64::from(!report.violations.is_empty());
        if args.json {
            println!("{}", json!(report));
            continue;
        }
        println!(
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
        );
        tell_violations(args, &report);
    }
    if !args.json {
        println!("{} of {} seeds without violations", args.seeds - failed, args.seeds);
    }
    failed
}

/// A seed at which the code under test panics is one that failed.
fn run_one(seed: u64, args: &Args) -> Report {
    std::panic::catch_unwind(|| run_world(seed, args.steps, args.canary)).unwrap_or_else(|_| Report {
        seed,
        violations: vec!["it panicked, see above".to_owned()],
        ..Report::default()
    })
}

/// What all seeds of a swarm add up to.
#[derive(Debug, Default)]
struct Sum {
    seeds: u64,
    failed: u64,
    steps: u64,
    sessions: u64,
    completed: u64,
    gone: u64,
    moves: u64,
    faults: u64,
    delivered_bytes: u64,
    violations: Vec<(u64, String)>,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.failed += u64::from(!report.violations.is_empty());
        self.steps += report.steps;
        self.sessions += report.sessions as u64;
        self.completed += report.completed;
        self.gone += report.gone;
        self.moves += report.moves;
        self.faults += report.faults;
        self.delivered_bytes += report.delivered_bytes;
        self.violations.extend(report.violations.iter().map(|what| (report.seed, what.clone())));
    }
}

fn swarm(args: &Args) -> u64 {
    let end = args.seed.saturating_add(args.seeds);
    let (next, sum) = (AtomicU64::new(args.seed), Mutex::new(Sum::default()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let report = run_one(seed, args);
                    if let Ok(mut sum) = sum.lock() {
                        sum.add(&report);
                    }
                    tell_violations(args, &report);
                }
            });
        }
        let mut told = Instant::now();
        while next.load(Ordering::Relaxed) < end {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= PROGRESS_EVERY
                && let Ok(sum) = sum.lock()
            {
                told = Instant::now();
                let per_s = sum.seeds as f64 / began.elapsed().as_secs_f64();
                eprintln!(
                    "{} of {} seeds, {per_s:.0}/s, {} with violations",
                    sum.seeds, args.seeds, sum.failed
                );
            }
        }
    });
    let sum = sum.into_inner().unwrap_or_default();
    if args.json {
        let violations = sum.violations.iter().map(|(seed, what)| json!({"seed": seed, "what": what}));
        let violations: Vec<_> = violations.collect();
        println!(
            "{}",
            json!({
                "first_seed": args.seed,
                "seeds": sum.seeds,
                "steps": sum.steps,
                "sessions": sum.sessions,
                "completed": sum.completed,
                "gone": sum.gone,
                "moves": sum.moves,
                "faults": sum.faults,
                "delivered_bytes": sum.delivered_bytes,
                "violations": violations,
            })
        );
    } else {
        println!(
            "{} seeds, {} with violations; {} steps, {} sessions ({} complete, {} gone), {} moves, {} faults",
            sum.seeds, sum.failed, sum.steps, sum.sessions, sum.completed, sum.gone, sum.moves, sum.faults
        );
    }
    sum.failed
}

/// On standard error where standard output is for programs.
fn tell_violations(args: &Args, report: &Report) {
    let mut text = String::new();
    for violation in &report.violations {
        text += &format!("       VIOLATION: {violation}\n");
    }
    if text.is_empty() {
        return;
    }
    let canary = args.canary.map(|canary| format!(" --canary {}", canary.name())).unwrap_or_default();
    let (seed, steps) = (report.seed, args.steps);
    text += &format!("       replay: spillway sim session --seed {seed} --steps {steps}{canary}\n");
    if args.json { eprint!("{text}") } else { print!("{text}") }
}

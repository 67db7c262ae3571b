//! `spillway-lab sim`: runs the shipped core in simulations.

mod batching;
mod move_policy;
mod moves;
mod policy;
mod relay;
mod session;
mod tcp;

use std::fmt::Display;
use std::ops::Range;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Run the shipped core in a simulation, from a seed
///
/// With `relay`, `session` and `tcp` the seed decides delays, sizes, windows, policies and faults. After a phase with
/// faults, every connection and session must end in a phase without faults. The exit status is 1 if a check failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    simulation: Simulation,
}

#[derive(Debug, clap::Subcommand)]
enum Simulation {
    /// Clients, helpers and a server over links, with faults; every byte is checked
    Relay(relay::Args),
    /// Sessions that move between helpers and the server while these fail, stall and restart; every byte is checked
    Session(session::Args),
    /// Batch policies under a load that rises and falls: latency, and the server's CPU time
    Batching(batching::Args),
    /// Processes that use helpers when replies are late, and a server that releases them; every decision is checked
    Policy(policy::Args),
    /// Servers that move connections to each other by policy, under a load that is skewed or steps: latency, and the
    /// number of moves; every decision is checked
    MovePolicy(move_policy::Args),
    /// The user-level TCP stack on a network that loses, delays, reorders, repeats and damages frames; every byte and
    /// every frame is checked
    Tcp(tcp::Args),
    /// Moves of TCP connections between servers, step by step: each message lost, late, repeated, replayed or reordered, each
    /// participant dead, each direction cut; every byte and every owner is checked
    Moves(moves::Args),
}

/// Options of the simulations with faults.
#[derive(Debug, clap::Args)]
struct Runs {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Steps of the phase with faults: arrivals, turns, timers
    #[arg(long, default_value_t = 20_000)]
    steps: u64,
    /// Print one JSON object for each seed
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let failed = match args.simulation {
        Simulation::Relay(relay) => relay::run(&relay),
        Simulation::Session(session) => session::run(&session),
        Simulation::Batching(batching) => batching::run(&batching),
        Simulation::Policy(policy) => policy::run(&policy),
        Simulation::MovePolicy(move_policy) => move_policy::run(&move_policy),
        Simulation::Tcp(tcp) => tcp::run(&tcp),
        Simulation::Moves(moves) => moves::run(&moves),
    };
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

impl Runs {
    fn all(&self) -> Range<u64> {
        self.seed..self.seed.saturating_add(self.seeds)
    }

    /// Prints a report as JSON or as a line of the table.
    fn print(&self, report: &impl Serialize, line: impl Display) {
        if !self.json {
            return print_line!("{line}");
        }
        match serde_json::to_string(report) {
            Ok(text) => print_line!("{text}"),
            Err(error) => eprintln!("spillway-lab sim: {error}"),
        }
    }

    /// Prints a seed's violations, and the command that reproduces them; with --json on standard error.
    fn print_violations(
        &self,
        simulation: &str,
        seed: u64,
        planted: Option<&str>,
        violations: &[impl Display],
    ) {
        let planted = planted.map(|name| format!(" --plant {name}")).unwrap_or_default();
        let replay = format!(
            "       replay: spillway-lab sim {simulation} --seed {seed} --steps {}{planted}",
            self.steps
        );
        let lines = violations.iter().map(|violation| format!("       VIOLATION: {violation}"));
        for line in lines.chain((!violations.is_empty()).then_some(replay)) {
            if self.json { eprintln!("{line}") } else { print_line!("{line}") }
        }
    }

    fn print_total(&self, failed: u64) {
        if !self.json {
            print_line!("{} of {} seeds without violations", self.seeds - failed, self.seeds);
        }
    }
}

const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Prints the progress of a swarm on standard error.
struct Progress {
    started_at: Instant,
    printed_at: Instant,
    seeds: u64,
    done: u64,
    failed: u64,
}

impl Progress {
    fn new(seeds: u64) -> Progress {
        let now = Instant::now();
        Progress { started_at: now, printed_at: now, seeds, done: 0, failed: 0 }
    }

    fn record(&mut self, has_passed: bool) {
        self.done += 1;
        self.failed += u64::from(!has_passed);
        if self.printed_at.elapsed() >= PROGRESS_EVERY {
            self.printed_at = Instant::now();
            let per_s = self.done as f64 / self.started_at.elapsed().as_secs_f64();
            let (done, seeds, failed) = (self.done, self.seeds, self.failed);
            eprintln!("{done} of {seeds} seeds, {per_s:.0}/s, {failed} with violations");
        }
    }
}

fn fault_by_name<T: Copy, const N: usize>(
    all: [T; N],
    name_of: fn(T) -> &'static str,
    name: &str,
) -> Result<T, String> {
    let found = all.into_iter().find(|one| name_of(*one) == name);
    found.ok_or_else(|| format!("give one of {}", all.map(name_of).join(", ")))
}

/// Writes to a file, or to standard output for `-`. Returns 1 if writing failed, otherwise 0.
fn write(file: &str, text: &str) -> u64 {
    if file == "-" {
        print_line!("{text}");
        return 0;
    }
    match std::fs::write(file, format!("{text}\n")) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("spillway-lab sim: {file} cannot be written: {error}");
            1
        }
    }
}

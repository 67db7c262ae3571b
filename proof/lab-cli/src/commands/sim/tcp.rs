//! `spillway-lab sim tcp`: simulates hosts on the user-level TCP stack, with faults.

use serde_json::json;
use spillway_sim::tcp::planted_fault::PlantedFault;
use spillway_sim::tcp::{Report, Worlds, run as run_world, run_with_trace, scene};

use super::{Progress, fault_by_name, write};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of seeds
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Approximate number of frames in the phase with faults
    #[arg(long, default_value_t = 10_000)]
    packets: u64,
    /// Print one JSON object for each seed, or write them to FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<String>,
    /// Also print each frame, its fate, and why stacks drop segments
    #[arg(long, conflicts_with_all = ["json", "swarm"])]
    frames: bool,
    /// Plant a fault that the checks must find: flip-byte, repeat-segment, drop-segment, early-end,
    /// hasty-acknowledgement, shrink-window, forget-credit, take-damaged; of connections that move: alter-queue,
    /// forget-sack, forget-late, skip-byte, forget-gate, keep-source, pass-stranger; of peers that break the rules: exact-reset
    #[arg(long = "plant", alias = "canary", value_name = "FAULT", value_parser = |name: &str| fault_by_name(PlantedFault::ALL, PlantedFault::name, name))]
    planted: Option<PlantedFault>,
    /// Simulate plain clients, helpers that fail, and a server instead, each on a stack; the only --plant with this
    /// option is hasty-acknowledgement
    #[arg(long, conflicts_with = "frames")]
    helpers: bool,
    /// Only worlds in which connections move often
    #[arg(long, conflicts_with_all = ["planted", "helpers"])]
    moves: bool,
    /// Only worlds in which connections move often, half of the times with a request that is handed off
    #[arg(long, conflicts_with_all = ["planted", "helpers", "moves"])]
    requests: bool,
    /// Run the seeds on all cores, and print only the sum and violations; with --json one object
    #[arg(long)]
    swarm: bool,
}

impl Args {
    fn worlds(&self) -> Worlds {
        match self.planted {
            Some(planted) => Worlds::Planted(planted),
            None if self.requests => Worlds::Requests,
            None if self.moves => Worlds::Moving,
            None => Worlds::All,
        }
    }
}

/// Returns the number of failed seeds.
pub(super) fn run(args: &Args) -> u64 {
    if args.swarm { run_swarm(args) } else { run_seeds(args) }
}

fn run_seeds(args: &Args) -> u64 {
    let (mut failed, mut objects) = (0, Vec::new());
    if args.json.is_none() {
        print_line!(
            "  seed  packets    lost  damaged   time/ms  streams  complete  broken  timeouts  faults    moves  bytes       trace"
        );
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let report = if args.frames {
            run_with_trace(seed, args.packets, args.worlds(), |frame| print_line!("{frame}"))
        } else {
            run_one(seed, args)
        };
        failed += u64::from(!report.violations.is_empty());
        if args.json.is_none() {
            print_line!("{}", line(&report));
        } else if let Ok(text) = serde_json::to_string(&report) {
            objects.push(text);
        }
        print_violations(args, &report);
    }
    match &args.json {
        Some(file) => failed += write(file, &objects.join("\n")),
        None => {
            print_line!("{} of {} seeds without violations", args.seeds.saturating_sub(failed), args.seeds)
        }
    }
    failed
}

fn line(report: &Report) -> String {
    format!(
        "{:6} {:8} {:7} {:8} {:9} {:8} {:9} {:7} {:9} {:7} {:8}  {:<10}  {}",
        report.seed,
        report.packets,
        report.lost,
        report.damaged,
        report.simulated_ms,
        report.streams,
        report.completed,
        report.broken,
        report.timeouts,
        report.faults,
        report.moves,
        report.delivered_bytes,
        report.trace_hash
    )
}

/// Prints a seed's violations, and the command that reproduces them; with --json on standard error.
fn print_violations(args: &Args, report: &Report) {
    let planted = args.planted.map(|planted| format!(" --plant {}", planted.name())).unwrap_or_default();
    let (seed, packets) = (report.seed, args.packets);
    let moves = match args.worlds() {
        Worlds::Moving => " --moves",
        Worlds::Requests => " --requests",
        Worlds::All | Worlds::Planted(_) => "",
    };
    let mode = if args.helpers { "--helpers" } else { "--frames" };
    let replay = format!(
        "       replay: spillway-lab sim tcp --seed {seed} --packets {packets} {mode}{moves}{planted}"
    );
    let lines = report.violations.iter().map(|what| format!("       VIOLATION: {what}"));
    let dropped = report.dropped.iter().map(|what| format!("       dropped: {}", what.trim_start()));
    for line in lines.chain(dropped).chain((!report.violations.is_empty()).then_some(replay)) {
        if args.json.is_some() { eprintln!("{line}") } else { print_line!("{line}") }
    }
}

/// Runs one seed; a panic of the code under test is a violation.
fn run_one(seed: u64, args: &Args) -> Report {
    let report = std::panic::catch_unwind(|| {
        if args.helpers {
            let is_hasty = args.planted == Some(PlantedFault::HastyAcknowledgement);
            return scene::run(seed, args.packets, is_hasty);
        }
        run_world(seed, args.packets, args.worlds())
    });
    let violations = vec!["the code under test panicked, see above".to_owned()];
    report.unwrap_or_else(|_| Report { seed, violations, ..Report::default() })
}

fn run_swarm(args: &Args) -> u64 {
    let seeds = args.seed..args.seed.saturating_add(args.seeds);
    let mut sum = Report::default();
    let (mut failed, mut violations) = (0, Vec::new());
    let mut progress = Progress::new(args.seeds);
    spillway_sim::run_seeds(
        seeds,
        |seed| run_one(seed, args),
        |report| {
            print_violations(args, &report);
            progress.record(report.violations.is_empty());
            failed += u64::from(!report.violations.is_empty());
            violations
                .extend(report.violations.iter().map(|what| json!({"seed": report.seed, "what": what})));
            add(&mut sum, &report);
        },
    );
    let Some(file) = &args.json else {
        print_line!(
            "{} seeds, {failed} with violations; {} packets, {} of them lost and {} damaged; {} connections, {} of them \
             broken, {} moves and {} in place; lost by silence {}, by restarts {}, in doubt {}; {} bytes, each checked",
            args.seeds,
            sum.packets,
            sum.lost,
            sum.damaged,
            sum.streams,
            sum.broken,
            sum.moves,
            sum.moves_in_place,
            sum.lost_by_silence,
            sum.lost_by_restart,
            sum.lost_in_doubt,
            sum.delivered_bytes
        );
        if args.requests {
            print_line!(
                "{} arrivals with a request to serve; {} served elsewhere, {} returned, {} stayed, {} abandoned, {} unknown",
                sum.requests_handed_off,
                sum.requests_served,
                sum.requests_returned,
                sum.requests_stayed,
                sum.requests_abandoned,
                sum.requests_unknown
            );
        }
        return failed;
    };
    let object = json!({
        "first_seed": args.seed,
        "seeds": args.seeds,
        "packets": sum.packets,
        "lost": sum.lost,
        "damaged": sum.damaged,
        "rogue_frames": sum.rogue_frames,
        "simulated_ms": sum.simulated_ms,
        "streams": sum.streams,
        "completed": sum.completed,
        "broken": sum.broken,
        "delivered_bytes": sum.delivered_bytes,
        "acknowledgements": sum.acknowledgements,
        "faults": sum.faults,
        "timeouts": sum.timeouts,
        "moves": sum.moves,
        "moves_returned": sum.moves_returned,
        "moves_in_place": sum.moves_in_place,
        "requests_handed_off": sum.requests_handed_off,
        "requests_served": sum.requests_served,
        "requests_returned": sum.requests_returned,
        "requests_stayed": sum.requests_stayed,
        "requests_abandoned": sum.requests_abandoned,
        "requests_unknown": sum.requests_unknown,
        "control_messages": sum.control_messages,
        "not_owner": sum.not_owner,
        "reclaimed": sum.reclaimed,
        "lost_by_silence": sum.lost_by_silence,
        "lost_by_restart": sum.lost_by_restart,
        "lost_in_doubt": sum.lost_in_doubt,
        "lost_with_server": sum.lost_with_server,
        "server_restarts": sum.server_restarts,
        "connections_max": sum.connections_max,
        "violations": violations,
    });
    failed + write(file, &object.to_string())
}

fn add(sum: &mut Report, report: &Report) {
    sum.packets += report.packets;
    sum.lost += report.lost;
    sum.damaged += report.damaged;
    sum.rogue_frames += report.rogue_frames;
    sum.simulated_ms += report.simulated_ms;
    sum.streams += report.streams;
    sum.completed += report.completed;
    sum.broken += report.broken;
    sum.delivered_bytes += report.delivered_bytes;
    sum.acknowledgements += report.acknowledgements;
    sum.faults += report.faults;
    sum.timeouts += report.timeouts;
    sum.moves += report.moves;
    sum.moves_returned += report.moves_returned;
    sum.moves_in_place += report.moves_in_place;
    sum.requests_handed_off += report.requests_handed_off;
    sum.requests_served += report.requests_served;
    sum.requests_returned += report.requests_returned;
    sum.requests_stayed += report.requests_stayed;
    sum.requests_abandoned += report.requests_abandoned;
    sum.requests_unknown += report.requests_unknown;
    sum.control_messages += report.control_messages;
    sum.not_owner += report.not_owner;
    sum.reclaimed += report.reclaimed;
    sum.lost_by_silence += report.lost_by_silence;
    sum.lost_by_restart += report.lost_by_restart;
    sum.lost_in_doubt += report.lost_in_doubt;
    sum.lost_with_server += report.lost_with_server;
    sum.server_restarts += report.server_restarts;
    sum.connections_max = sum.connections_max.max(report.connections_max);
}

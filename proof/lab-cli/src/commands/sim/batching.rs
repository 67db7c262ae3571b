//! `spillway-lab sim batching`: compares batch policies in a simulation.

use std::time::Duration;

use serde_json::json;
use spillway_batch::PolicyKind;
use spillway_sim::batching::{
    Arrivals, BatchingComparison, Costs, Figures, LoadCourse, Quota, RATES_PER_S, RatiosToReference, Setting,
    ratios, simulate,
};
use spillway_values::parse_duration;

/// A batch with this number of bytes leaves at once.
const MAX_BYTES: usize = 64 * 1024;
/// Period of the server's CPU quota.
const PERIOD: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds; the results are means over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Largest batch delay of the helper
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_delay)]
    max_delay: Duration,
    /// Share of a core that the server may use, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    quota: u32,
    /// SLA of the policy `following`: its largest batch delay is a quarter of the SLA [default: --max-delay, as for the
    /// other policies]
    #[arg(long, value_name = "TIME", value_parser = parse_delay)]
    sla: Option<Duration>,
    /// Multiply the server's costs by this factor, as on a slow host
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = parse_factor)]
    slower: f64,
    /// Length of each step of the load
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_step)]
    step: Duration,
    /// Send requests at equal intervals, not as a Poisson process
    #[arg(long)]
    even: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_step(text: &str) -> Result<Duration, String> {
    parse_within(text, Duration::from_millis(10), Duration::from_secs(60), "10ms to 60s")
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    parse_within(text, Duration::ZERO, Duration::from_secs(1), "0us to 1s")
}

fn parse_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.1..=10.0).contains(factor));
    factor.ok_or_else(|| "give a factor from 0.1 to 10".into())
}

fn parse_within(text: &str, min: Duration, max: Duration, range: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|why| why.to_string())?;
    if (min..=max).contains(&time) { Ok(time) } else { Err(format!("give a time from {range}")) }
}

/// Returns 0, the number of failed seeds: this simulation checks nothing.
pub(super) fn run(args: &Args) -> u64 {
    let arrivals = if args.even { Arrivals::Even } else { Arrivals::Poisson };
    let course = LoadCourse { arrivals, ..LoadCourse::up_and_down(&RATES_PER_S, args.step) };
    let time = PERIOD * args.quota / 100;
    let quota = (args.quota < 100).then_some(Quota { time, period: PERIOD });
    let setting = Setting { quota, costs: Costs::default().times(args.slower) };
    let (max_delay, max_bytes) = (args.max_delay, MAX_BYTES);
    let adaptive = PolicyKind::Adaptive { max_delay, max_bytes };
    let policies = [
        ("adaptive", adaptive),
        ("algorithm1", PolicyKind::Algorithm1),
        ("fixed", PolicyKind::Fixed { interval: max_delay, size_bytes: max_bytes }),
        ("deadline", PolicyKind::Deadline { max_delay, max_bytes }),
        (
            "following",
            PolicyKind::Following { max_delay: args.sla.map_or(max_delay, |sla| sla / 4), max_bytes },
        ),
    ];
    let comparison = BatchingComparison { course, setting, reference: adaptive };
    let seeds = || args.seed..args.seed.saturating_add(args.seeds);
    let reference: Vec<_> =
        seeds().map(|seed| simulate(&comparison.course, adaptive, &setting, seed)).collect();
    let mut policy_objects = Vec::new();
    for (name, policy) in policies {
        let runs: Vec<_> = seeds().map(|seed| simulate(&comparison.course, policy, &setting, seed)).collect();
        let ratios_to_adaptive: Vec<_> =
            runs.iter().zip(&reference).map(|(run, reference)| ratios(run, reference)).collect();
        let (steps, ratios_to_adaptive) = (&runs[0], RatiosToReference::mean(&ratios_to_adaptive));
        if !args.json {
            print_policy(name, steps, ratios_to_adaptive);
        }
        let steps: Vec<_> = steps.iter().map(step_json).collect();
        policy_objects.push(json!({
            "policy": name,
            "over_adaptive_p99": ratios_to_adaptive.p99,
            "over_adaptive_server_cpu": ratios_to_adaptive.server_cpu,
            "steps_of_first_seed": steps,
        }));
    }
    if args.json {
        print_line!(
            "{}",
            json!({ "first_seed": args.seed, "seeds": args.seeds, "policies": policy_objects })
        );
    }
    0
}

fn print_policy(name: &str, steps: &[Figures], ratios_to_adaptive: RatiosToReference) {
    print_line!(
        "{name}: {:.3} of adaptive's p99, {:.3} of its server CPU",
        ratios_to_adaptive.p99,
        ratios_to_adaptive.server_cpu
    );
    print_line!("  requests/s  p50/us  p99/us  server us/request  messages/batch  batch each/us");
    for step in steps {
        print_line!(
            "  {:10.0} {:7.0} {:7.0} {:18.2} {:15.2} {:14.0}",
            step.per_s,
            step.p50_us,
            step.p99_us,
            step.server_us,
            step.messages_per_batch,
            step.interval_us
        );
    }
}

fn step_json(step: &Figures) -> serde_json::Value {
    json!({
        "requests_per_second": step.per_s,
        "p50_us": step.p50_us,
        "p99_us": step.p99_us,
        "server_cpu_us_per_request": step.server_us,
        "messages_per_batch": step.messages_per_batch,
        "batch_interval_us": step.interval_us,
    })
}

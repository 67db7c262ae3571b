//! `spillway-lab demo`: shows how helpers relieve a burst at a real memcached.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use spillway_bench::Error;
use spillway_bench::calibrate::Neighbours;
use spillway_bench::demo::{self, Options};
use spillway_bench::generator::Engine;
use spillway_bench::scene::Setting;
use spillway_values::parse_duration;

/// Show the main use: a burst hits an unmodified memcached, and its clients move to a helper.
///
/// Needs root, for network namespaces; takes about a minute. The exit status is 1 when a reply was wrong or lost or a
/// connection was reset, and 2 when the demo could not be run. Slow replies do not change it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write the report to this HTML file, and its figures as JSON beside it.
    #[arg(long, value_name = "FILE", default_value = "target/demo/report.html")]
    report: PathBuf,
    /// Client connections, over all client hosts.
    #[arg(long, value_name = "N", default_value_t = 660, value_parser = clap::value_parser!(u32).range(2..=20_000))]
    connections: u32,
    /// Keys in the server.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// Requests a second that the server serves without helpers. By default the demo measures this host, and stops if
    /// other programs use it.
    #[arg(long, value_name = "PER_SECOND")]
    capacity: Option<f64>,
    /// Run although other programs use this host; the figures are then not meaningful.
    #[arg(long, conflicts_with = "capacity")]
    anyway: bool,
    /// Seconds of light load, of burst without relief, of burst with relief, and of light load afterwards.
    #[arg(long, value_name = "S,S,S,S", value_delimiter = ',', default_values_t = [6, 8, 12, 6])]
    times: Vec<u64>,
    /// Largest batch delay of the helper [default: 0.4 of the SLA].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_delay: Option<Duration>,
    /// Time between the starts of two clients' moves.
    #[arg(long, value_name = "TIME", default_value = "60us", value_parser = parse_duration)]
    pace: Duration,
    /// What carries the connections of the helper and the clients: sockets, or xdp, Spillway's own TCP stack.
    #[arg(long, value_name = "ENGINE", default_value = "sockets")]
    engine: Engine,
    /// Slow every core by this factor during the demo, as `spillway-lab bench slow-machine` does.
    #[arg(long, value_name = "TIMES", hide = true)]
    slow: Option<u32>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    match options(args).and_then(|options| demo::run(&options, &mut io::stdout())) {
        Ok(demo) if demo.passed() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("spillway-lab demo: {error}{}", advice(&error));
            ExitCode::from(2)
        }
    }
}

/// The options that the message suggests after this error.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Disturbed(_) => {
            ", give the server's capacity with --capacity N (requests a second), or go on with --anyway"
        }
        Error::TooSlow(_) => ", or give a capacity with --capacity N and expect late replies",
        _ => "",
    }
}

fn options(args: Args) -> Result<Options, Error> {
    let setting = Setting {
        connections: args.connections,
        keys: args.keys,
        pace: args.pace,
        slowdown_factor: args.slow,
        ..Setting::of_this_run()?
    }
    .with_engine(args.engine);
    let mut options = Options {
        direct_per_s: args.capacity,
        neighbours: if args.anyway { Neighbours::Accepted } else { Neighbours::Refused },
        max_delay: args.max_delay,
        report: args.report,
        ..Options::new(setting)
    };
    let [light_s, burst_s, relieved_s, after_s] = args.times[..] else {
        return Err(Error::Usage("--times takes four numbers, such as 6,8,12,6".into()));
    };
    options = Options { light_s, burst_s, relieved_s, after_s, ..options };
    Ok(options)
}

//! `spillway-lab bench`: runs experiments and compares their figures with the paper's.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use spillway_bench::Error;
use spillway_bench::experiments::figures::PENDING;
use spillway_bench::experiments::{self, Experiment, Options};
use spillway_bench::generator::Engine;
use spillway_bench::scene::{BatchPolicy, ServerShare, Setting};
use spillway_bench::{record, stop, table};
use spillway_lab::{Forwarding, Slowdown};
use spillway_values::parse_duration;

/// Longest time for which `--slow` slows the cores.
const SLOWDOWN_TIME_MAX: Duration = Duration::from_secs(3_600);

/// Run an experiment and print its results.
///
/// Needs root, for network namespaces. The exit status is 1 when a check failed (a wrong byte, a lost request, a reset
/// connection), and 2 when the experiment could not be run or stopped before its end. Slow results do not change it. An
/// experiment that is stopped by an error or Ctrl-C writes its results so far, marked as incomplete.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the experiment; `list` lists all with the paper's values, `all` runs all.
    #[arg(value_name = "NAME")]
    name: String,
    /// End within two minutes: fewer rounds, without the less important parts.
    #[arg(long)]
    quick: bool,
    /// Run only these parts of an experiment that has parts, such as `attacks` or `burst`: --only D7,D9 or --only
    /// goodput,iso-cpu
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Slow every core by this factor during the run, for an hour at most.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(2..=10))]
    slow: Option<u32>,
    /// Batch policy of the helper in `burst`: fixed or following.
    #[arg(long, value_name = "POLICY", default_value = "following")]
    batch: BatchPolicy,
    /// What carries the connections of helpers and clients in `burst` and `helpers`: sockets, or xdp, the user-level stack,
    /// with hosts that an XDP program joins.
    #[arg(long, value_name = "ENGINE", default_value = "sockets")]
    engine: Engine,
    /// With `burst --engine xdp`: the interval of the polls that replace interrupts of the helper under load, such as 200us.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    defer_interrupts: Duration,
    /// The server's share of a core in `burst`, such as 30%. By default the largest that the machine can overload.
    #[arg(long, value_name = "PERCENT", default_value = "calibrated")]
    server_share: ServerShare,
    /// What joins the hosts of experiments with a helper: the kernel's bridge, or a cheaper XDP program.
    #[arg(long, value_enum, default_value_t = Joined::Bridge)]
    forwarding: Joined,
    /// Write the results as JSON to this file; with `all`, to this directory [default: target/bench/NAME.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Joined {
    Bridge,
    Xdp,
}

impl From<Joined> for Forwarding {
    fn from(joined: Joined) -> Forwarding {
        match joined {
            Joined::Bridge => Forwarding::Bridge,
            Joined::Xdp => Forwarding::Xdp,
        }
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    if args.name == "list" {
        print_line!("{}", list().trim_end());
        return ExitCode::SUCCESS;
    }
    let outcome = match (args.name.as_str(), experiments::by_name(&args.name)) {
        ("all", _) => run_all(&args),
        (_, Some(experiment)) => {
            let file = args.json.clone();
            run_one(experiment, &args, &file.unwrap_or_else(|| result_file(experiment, &default_directory())))
        }
        (name, None) => {
            Err(Error::Usage(format!("no experiment is named {name}: see `spillway-lab bench list`")))
        }
    };
    match outcome {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Ok(Outcome::Incomplete) => ExitCode::from(2),
        Err(error) => {
            eprintln!("spillway-lab bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// All experiments, and the paper's figures that no experiment reproduces yet.
fn list() -> String {
    let mut text = experiments::list().to_string();
    text.push_str("\nnot reproduced yet:\n");
    for (figure, why) in PENDING {
        text.push_str(&format!("{figure}: {why}\n"));
    }
    text
}

/// How an experiment ended, in ascending order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Passed,
    Failed,
    /// The experiment stopped before its end.
    Incomplete,
}

fn default_directory() -> PathBuf {
    PathBuf::from("target/bench")
}

fn result_file(experiment: &Experiment, directory: &Path) -> PathBuf {
    directory.join(format!("{}.json", experiment.name))
}

fn run_all(args: &Args) -> Result<Outcome, Error> {
    let directory = args.json.clone().unwrap_or_else(default_directory);
    let mut worst = Outcome::Passed;
    for experiment in experiments::all() {
        print_line!("== {}: {}", experiment.name, experiment.question);
        worst = worst.max(run_one(experiment, args, &result_file(experiment, &directory))?);
        if spillway_lab::interrupted().is_some() {
            break;
        }
    }
    Ok(worst)
}

fn setting(args: &Args) -> Result<Setting, Error> {
    let setting = Setting {
        batch: args.batch,
        forwarding: args.forwarding.into(),
        defer_interrupts: args.defer_interrupts,
        ..Setting::of_this_run()?
    };
    Ok(setting.with_engine(args.engine).with_server_share(args.server_share))
}

fn run_one(experiment: &Experiment, args: &Args, file: &Path) -> Result<Outcome, Error> {
    let setting = setting(args)?;
    experiments::check_only(experiment, &args.only)?;
    experiments::check_setting(experiment, &setting)?;
    if let (true, Some(why)) = (experiment.needs.root, spillway_lab::unavailable()) {
        return Err(Error::Usage(format!("{} cannot run here: {why}", experiment.name)));
    }
    stop::on_signals();
    let options = Options { quick: args.quick, only: args.only.clone(), setting };
    let _slow = args.slow.map(|times| Slowdown::start(times, SLOWDOWN_TIME_MAX)).transpose()?;
    let results =
        record::run_and_record(experiment.name, file, || (experiment.run)(&options, &mut io::stdout()))?;
    print_line!("\n{}", table::results(&results));
    print_line!("paper: {}", experiment.paper);
    print_line!("results: {}", file.display());
    if results.incomplete {
        eprintln!("spillway-lab bench: {} is incomplete: {}", experiment.name, results.why);
        return Ok(Outcome::Incomplete);
    }
    Ok(if results.passed() { Outcome::Passed } else { Outcome::Failed })
}

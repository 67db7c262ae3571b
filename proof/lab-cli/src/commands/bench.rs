//! `spillway-lab bench`: experiments whose figures can be compared with the paper's.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use spillway_bench::Error;
use spillway_bench::experiments::figures::PENDING;
use spillway_bench::experiments::{self, Experiment, Options};
use spillway_bench::scene::{BatchPolicy, Setting};
use spillway_bench::{record, stop, table};
use spillway_lab::Slowdown;

/// No machine stays slow for longer, whatever becomes of this program.
const SLOW_AT_MOST: Duration = Duration::from_secs(3_600);

/// Run an experiment and state what it found.
///
/// Needs root, for network namespaces. The exit status is 1 when a check failed (a wrong byte, a lost request, a reset
/// connection), and 2 when the experiment could not be run or stopped before its end; being slow is no failure. An
/// experiment that stops, by an error or Ctrl-C, writes what it has, marked as incomplete.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The experiment's name; `list` names them all with the paper's values, `all` runs them all.
    #[arg(value_name = "NAME")]
    name: String,
    /// End within two minutes: fewer rounds, less important parts left out.
    #[arg(long)]
    quick: bool,
    /// Of `attacks`, only these, by their ids: --only D7,D9
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Slow every core this many times meanwhile, for an hour at most, as on a slow machine.
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(2..=10))]
    slow: Option<u32>,
    /// Of `burst`: when the helper's batches go, fixed or following.
    #[arg(long, value_name = "POLICY", default_value = "following")]
    batch: BatchPolicy,
    /// Where the results go as JSON; with `all`, a directory [default: target/bench/NAME.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    if args.name == "list" {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    let outcome = match (args.name.as_str(), experiments::named(&args.name)) {
        ("all", _) => all(&args),
        (_, Some(experiment)) => {
            let file = args.json.clone();
            one(experiment, &args, &file.unwrap_or_else(|| file_of(experiment, &default_directory())))
        }
        (name, None) => {
            Err(Error::Usage(format!("there is no experiment {name}: see `spillway-lab bench list`")))
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

/// All experiments, and the figures that none of them reproduces.
fn list() -> String {
    let mut text = experiments::list().to_string();
    text.push_str("\nnot reproduced yet:\n");
    for (figure, why) in PENDING {
        text.push_str(&format!("{figure}: {why}\n"));
    }
    text
}

/// How an experiment ended; the worst comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Every check held.
    Passed,
    /// A check failed.
    Failed,
    /// It stopped before its end.
    Incomplete,
}

fn default_directory() -> PathBuf {
    PathBuf::from("target/bench")
}

fn file_of(experiment: &Experiment, directory: &Path) -> PathBuf {
    directory.join(format!("{}.json", experiment.name))
}

fn all(args: &Args) -> Result<Outcome, Error> {
    let directory = args.json.clone().unwrap_or_else(default_directory);
    let mut worst = Outcome::Passed;
    for experiment in experiments::all() {
        println!("== {}: {}", experiment.name, experiment.question);
        worst = worst.max(one(experiment, args, &file_of(experiment, &directory))?);
        if spillway_lab::interrupted().is_some() {
            break;
        }
    }
    Ok(worst)
}

fn one(experiment: &Experiment, args: &Args, file: &Path) -> Result<Outcome, Error> {
    experiments::check_only(experiment, &args.only)?;
    if let (true, Some(why)) = (experiment.needs.root, spillway_lab::unavailable()) {
        return Err(Error::Usage(format!("{} cannot run here: {why}", experiment.name)));
    }
    stop::by_signals();
    let setting = Setting { batch: args.batch, ..Setting::of_this_run()? };
    let options = Options { quick: args.quick, only: args.only.clone(), setting };
    let _slow = args.slow.map(|times| Slowdown::start(times, SLOW_AT_MOST)).transpose()?;
    let results = record::recorded(experiment.name, file, || (experiment.run)(&options, &mut io::stdout()))?;
    println!("\n{}", table::results(&results));
    println!("paper: {}", experiment.paper);
    println!("results: {}", file.display());
    if results.incomplete {
        eprintln!("spillway-lab bench: {} is incomplete: {}", experiment.name, results.why);
        return Ok(Outcome::Incomplete);
    }
    Ok(if results.passed() { Outcome::Passed } else { Outcome::Failed })
}

//! `spillway bench`: experiments whose figures can be compared with the paper's.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use spillway_bench::Error;
use spillway_bench::experiments::{self, ALL, Experiment, Options};
use spillway_bench::scene::Setting;
use spillway_bench::table;

/// Run an experiment and state what it found.
///
/// Needs root, for network namespaces. The exit status is 1 when a check failed (a wrong byte, a lost request, a reset
/// connection), and 2 when the experiment could not be run; being slow is no failure.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The experiment's name; `list` names them all with the paper's values, `all` runs them all.
    #[arg(value_name = "NAME")]
    name: String,
    /// End within two minutes: fewer rounds, less important parts left out.
    #[arg(long)]
    quick: bool,
    /// Where the results go as JSON; with `all`, a directory [default: target/bench/NAME.json].
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let outcome = match args.name.as_str() {
        "list" => {
            print!("{}", experiments::list());
            Ok(true)
        }
        "all" => all(&args),
        name => match experiments::named(name) {
            Some(experiment) => {
                let file =
                    args.json.clone().unwrap_or_else(|| default_directory().join(format!("{name}.json")));
                one(experiment, args.quick, &file)
            }
            None => Err(Error::Usage(format!("there is no experiment {name}: see `spillway bench list`"))),
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("spillway bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn default_directory() -> PathBuf {
    PathBuf::from("target/bench")
}

fn all(args: &Args) -> Result<bool, Error> {
    let directory = args.json.clone().unwrap_or_else(default_directory);
    let mut passed = true;
    for experiment in &ALL {
        println!("== {}: {}", experiment.name, experiment.question);
        passed &= one(experiment, args.quick, &directory.join(format!("{}.json", experiment.name)))?;
    }
    Ok(passed)
}

fn one(experiment: &Experiment, quick: bool, file: &std::path::Path) -> Result<bool, Error> {
    let options = Options { quick, setting: Setting::of_this_program()? };
    let results = (experiment.run)(&options, &mut io::stdout())?;
    println!("\n{}", table::results(&results));
    println!("paper: {}", experiment.paper);
    results
        .write(file)
        .map_err(|cause| Error::System { what: format!("cannot write {}", file.display()), cause })?;
    println!("results: {}", file.display());
    Ok(results.passed())
}

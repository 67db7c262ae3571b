//! `spillway check`: finds mistakes in a configuration file.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use spillway_helper::config::{read_file, reference};

use super::output::{self, Report};

/// Check a helper's configuration file
///
/// Prints each problem with its line, its column and what to do. Key files are read, and host names and the engine's
/// interface looked up, as the helper does. The exit code is 1 when something is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(required_unless_present = "reference")]
    file: Option<PathBuf>,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["show", "reference"])]
    json: bool,

    /// Print every value as it would be in force, defaults included
    #[arg(long)]
    show: bool,

    /// Read neither key files nor interfaces: for checks on another machine, or as a user who must not read them
    #[arg(long)]
    without_keys: bool,

    /// Print the reference of all keys, as docs/configuration.md has it
    #[arg(long, conflicts_with_all = ["file", "show", "without_keys"])]
    reference: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Some(path) = &args.file else {
        return output::print([reference().trim_end()]);
    };
    match read_file(path, !args.without_keys) {
        Ok(config) if args.show => output::print([config.to_string().trim_end()]),
        Ok(config) => {
            let services: Vec<&str> = config.services.iter().map(|service| service.name.as_str()).collect();
            Report {
                lines: vec![format!("{}: fine, {} services", path.display(), services.len())],
                result: json!({ "file": path, "services": services, "problems": [] }),
                ..Report::default()
            }
            .print("check", args.json)
        }
        Err(problems) => {
            eprintln!("{problems}");
            let problems: Vec<String> = problems.to_string().lines().map(str::to_owned).collect();
            let result = json!({ "file": path, "problems": problems });
            Report { result, is_failure: true, ..Report::default() }.print("check", args.json)
        }
    }
}

//! `spillway-lab clean`: removes what a killed run left behind.

use std::process::ExitCode;

/// Remove namespaces, cgroups, processes and files that a killed run left behind
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also remove what belongs to runs that are still alive
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let cleaned = if args.force { spillway_lab::clean_all_runs() } else { spillway_lab::clean() };
    match cleaned {
        Ok(report) => {
            print_line!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("spillway-lab clean: {error}");
            ExitCode::FAILURE
        }
    }
}

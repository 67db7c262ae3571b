//! `spillway lab`: the laboratory of experiments and tests.

use std::process::ExitCode;

use clap::Subcommand;

/// The laboratory in which the demo, experiments and tests run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Remove namespaces, cgroups, processes and files that a killed run left behind.
    Clean {
        /// Also what belongs to runs that are still alive.
        #[arg(long)]
        force: bool,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let LabCommand::Clean { force } = args.command;
    let cleaned = if force { spillway_lab::clean_everything() } else { spillway_lab::clean() };
    match cleaned {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}

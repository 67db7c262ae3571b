//! The `spillway` command.

mod commands;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Relieves an overloaded server in under a second, without moving its data
#[derive(Debug, Parser)]
#[command(name = "spillway", propagate_version = true)]
struct Cli {
    #[command(flatten)]
    log: commands::logging::Args,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Helper(Box<commands::helper::Args>),
    Sidecar(Box<commands::sidecar::Args>),
    Switch(commands::switch::Args),
    Check(commands::check::Args),
    Reload(commands::reload::Args),
    Relief(commands::relief::Args),
    Drain(commands::drain::Args),
    Status(commands::status::Args),
    Connections(commands::connections::Args),
    Flows(commands::flows::Args),
    Move(commands::move_connections::Args),
    Server(commands::server::Args),
    Top(commands::top::Args),
    Load(Box<commands::load::Args>),
    Key(commands::key::Args),
    Run(commands::run::Args),
    Exporter(commands::exporter::Args),
    Assess(commands::assess::Args),
    Doctor(commands::doctor::Args),
    #[command(hide = true)]
    Generate(commands::generate::Args),
    #[command(hide = true, disable_help_flag = true)]
    Demo(commands::moved::Args),
    #[command(hide = true, disable_help_flag = true)]
    Bench(commands::moved::Args),
    #[command(hide = true, disable_help_flag = true)]
    Sim(commands::moved::Args),
    #[command(hide = true, disable_help_flag = true)]
    Lab(commands::moved::Args),
}

fn main() -> ExitCode {
    let matches = commands::groups::grouped(definition()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let log = match &cli.command {
        Command::Helper(_) | Command::Sidecar(_) | Command::Switch(_) | Command::Exporter(_) => {
            cli.log.start_daemon()
        }
        _ => {
            cli.log.start();
            Ok(())
        }
    };
    if let Err(error) = log {
        spillway_daemon::log_line(&format!("spillway: cannot start the thread that writes the log: {error}"));
        return ExitCode::FAILURE;
    }
    // Flushes the log also if this thread panics.
    let _flush_log = FlushLogOnDrop;
    run(cli.command)
}

/// The command line, with the supported link versions in the output of `--version`.
fn definition() -> clap::Command {
    let links = spillway_wire::preamble::VERSIONS;
    let version =
        format!("{} (link versions {} to {})", env!("CARGO_PKG_VERSION"), links.start(), links.end());
    Cli::command().version(version)
}

/// Writes the rest of a daemon's log when dropped, for 500 ms at most: standard error may be blocked.
struct FlushLogOnDrop;

impl Drop for FlushLogOnDrop {
    fn drop(&mut self) {
        spillway_daemon::flush_log(Duration::from_millis(500));
    }
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Helper(args) => commands::helper::run(*args),
        Command::Sidecar(args) => commands::sidecar::run(*args),
        Command::Switch(args) => commands::switch::run(&args),
        Command::Check(args) => commands::check::run(&args),
        Command::Reload(args) => commands::reload::run(&args),
        Command::Relief(args) => commands::relief::run(&args),
        Command::Drain(args) => commands::drain::run(&args),
        Command::Status(args) => commands::status::run(args),
        Command::Connections(args) => commands::connections::run(args),
        Command::Flows(args) => commands::flows::run(&args),
        Command::Move(args) => commands::move_connections::run(args),
        Command::Server(args) => commands::server::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Load(args) => commands::load::run(*args),
        Command::Key(args) => commands::key::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Exporter(args) => commands::exporter::run(&args),
        Command::Assess(args) => commands::assess::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Generate(args) => commands::generate::run(&args, definition()),
        Command::Demo(_) => commands::moved::run("demo", "demo"),
        Command::Bench(_) => commands::moved::run("bench", "bench"),
        Command::Sim(_) => commands::moved::run("sim", "sim"),
        Command::Lab(_) => commands::moved::run("lab clean", "clean"),
    }
}

//! The `spillway` command.

mod commands;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Relieves a suddenly overloaded server within milliseconds, without moving its data.
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
    Check(commands::check::Args),
    Reload(commands::reload::Args),
    Relief(commands::relief::Args),
    Drain(commands::drain::Args),
    Status(commands::status::Args),
    Connections(commands::connections::Args),
    Server(commands::server::Args),
    Top(commands::top::Args),
    Load(Box<commands::load::Args>),
    Key(commands::key::Args),
    Demo(Box<commands::demo::Args>),
    Bench(commands::bench::Args),
    #[command(hide = true)]
    Echo(commands::echo::Args),
    #[command(hide = true)]
    StackWork(commands::stack_work::Args),
    Lab(commands::lab::Args),
    Run(commands::run::Args),
    Assess(commands::assess::Args),
    Doctor(commands::doctor::Args),
    Sim(commands::sim::Args),
}

fn main() -> ExitCode {
    let links = spillway_wire::preamble::VERSIONS;
    let version =
        format!("{} (link versions {} to {})", env!("CARGO_PKG_VERSION"), links.start(), links.end());
    let matches = Cli::command().version(version).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.log.start();
    match cli.command {
        Command::Helper(args) => commands::helper::run(*args),
        Command::Sidecar(args) => commands::sidecar::run(*args),
        Command::Check(args) => commands::check::run(&args),
        Command::Reload(args) => commands::reload::run(&args),
        Command::Relief(args) => commands::relief::run(&args),
        Command::Drain(args) => commands::drain::run(&args),
        Command::Status(args) => commands::status::run(args),
        Command::Connections(args) => commands::connections::run(args),
        Command::Server(args) => commands::server::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Load(args) => commands::load::run(*args),
        Command::Key(args) => commands::key::run(args),
        Command::Demo(args) => commands::demo::run(*args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Echo(args) => commands::echo::run(args),
        Command::StackWork(args) => commands::stack_work::run(&args),
        Command::Lab(args) => commands::lab::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Assess(args) => commands::assess::run(args),
        Command::Doctor(args) => commands::doctor::run(args),
        Command::Sim(args) => commands::sim::run(args),
    }
}

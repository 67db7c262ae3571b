//! The `spillway-lab` command: demo, experiments, simulators and control messages of the switch; production hosts do
//! not need it.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

#[macro_use]
mod output;

mod commands;
mod servers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Demo, experiments and simulators of Spillway, and control messages to a switch
#[derive(Debug, Parser)]
#[command(name = "spillway-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(Box<commands::demo::Args>),
    Bench(commands::bench::Args),
    Sim(commands::sim::Args),
    Clean(commands::clean::Args),
    Load(Box<commands::load::Args>),
    Agent(commands::agent::Args),
    #[command(hide = true)]
    Attack(commands::attack::Args),
    Echo(commands::echo::Args),
    Kv(commands::kv::Args),
    Http(commands::http::Args),
    #[command(hide = true)]
    StackWork(commands::stack_work::Args),
    #[command(hide = true)]
    SwitchAnswers(commands::switch_answers::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(args) => commands::demo::run(*args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Clean(args) => commands::clean::run(&args),
        Command::Agent(args) => commands::agent::run(&args),
        Command::Load(args) => commands::load::run(*args),
        Command::Attack(args) => commands::attack::run(&args),
        Command::Echo(args) => commands::echo::run(args),
        Command::Http(args) => commands::http::run(&args),
        Command::Kv(args) => commands::kv::run(&args),
        Command::StackWork(args) => commands::stack_work::run(&args),
        Command::SwitchAnswers(args) => commands::switch_answers::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn options_do_not_contradict_each_other() {
        super::Cli::command().debug_assert();
    }
}

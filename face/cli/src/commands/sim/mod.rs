//! `spillway sim`: the shipped core in a simulated world.

mod relay;
mod session;

use std::process::ExitCode;

/// Run the shipped core in a simulated world, from a seed
///
/// Each seed is a world of its own: its delays, sizes, windows, policies and faults. A storm of faults is followed by
/// calm, in which everything must end. The exit status is 1 when something was wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Clients, helpers and a server over links, with faults; every byte is checked
    Relay(relay::Args),
    /// Sessions that move between helpers and the server while those break, sleep and restart; every byte is checked
    Session(session::Args),
}

pub(crate) fn run(args: Args) -> ExitCode {
    match args.what {
        What::Relay(relay) => relay::run(&relay),
        What::Session(session) => session::run(&session),
    }
}

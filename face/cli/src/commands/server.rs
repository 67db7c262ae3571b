//! `spillway server`: the switch of a server that runs under `spillway run`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_shim_core::status::{Request, ServerPage, State};

use super::servers;

/// Give up waiting for an answer after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Switch helping off or on again in a running server, without touching its ordinary port.
///
/// Only the server's user and root may do that. The server says so in its log.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Take no more links, and end those there are.
    ///
    /// Helpers are asked to move their connections away. Library clients go back to direct connections. Plain clients
    /// of a helper are reset when the time is over.
    Off {
        /// Which: a process id, a program, or a port
        server: String,
        /// Seconds that links may take to move their connections away
        #[arg(long, value_name = "SECONDS", default_value_t = 5)]
        within: u32,
        /// Come back only when all links have ended
        #[arg(long)]
        wait: bool,
    },
    /// Take links again.
    On {
        /// Which: a process id, a program, or a port
        server: String,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let (server, request, until) = match args.what {
        What::Off { server, within, wait } => {
            let within_ms = within.saturating_mul(1000);
            let patience = Duration::from_millis(within_ms.into()) + PATIENCE;
            (server, Request::Off { within_ms }, wait.then_some(patience))
        }
        What::On { server } => (server, Request::On, None),
    };
    match order(&server, request, until) {
        Ok(lines) => {
            println!("{lines}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}

fn order(name: &str, request: Request, until: Option<Duration>) -> Result<String, String> {
    let mut lines = Vec::new();
    for page in servers::named(Some(name))? {
        let failed = |error: std::io::Error| format!("{}: {error}", page.path.display());
        if !page.ask(request, PATIENCE).map_err(failed)? {
            return Err(format!("server {} has not answered yet; it obeys when it next looks", page.pid));
        }
        if let Some(patience) = until {
            await_off(&page, patience)?;
        }
        let status = page.status().map_err(failed)?;
        lines.push(format!("server {} {}: {}", page.pid, page.program(), status.state.name()));
    }
    Ok(lines.join("\n"))
}

fn await_off(page: &ServerPage, patience: Duration) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let state = page.status().map_err(|error| format!("{}: {error}", page.path.display()))?.state;
        if state == State::Off {
            return Ok(());
        }
        if began.elapsed() > patience {
            return Err(format!("server {} is still {}", page.pid, state.name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

//! `spillway server`: the switch of a server that runs under `spillway run`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_helper::config::parse_duration;
use spillway_shim_core::status::{Request, ServerPage, State, ask_all};

use super::{output, servers};

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
        #[command(flatten)]
        which: Which,
        /// How long links may take to move their connections away, such as 500ms or 5s; a number alone is seconds
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = within)]
        within: Duration,
        /// Come back only when all links have ended
        #[arg(long)]
        wait: bool,
    },
    /// Take links again.
    On {
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Which server: pid:812, port:11211 (its own or its link port), a program, or just the number
    #[arg(required_unless_present = "all")]
    server: Option<String>,
    /// All servers of this name, or without a name all servers here
    #[arg(long)]
    all: bool,
}

/// A time with its unit; a number without one is seconds, as it was before there were units.
fn within(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => parse_duration(text).map_err(|error| error.to_string()),
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    let (which, request, until, what) = match args.what {
        What::Off { which, within, wait } => {
            let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
            (which, Request::Off { within_ms }, wait.then_some(within + PATIENCE), "switching off")
        }
        What::On { which } => (which, Request::On, None, "switching on"),
    };
    let pages = match servers::choose(which.server.as_deref(), which.all) {
        Ok(pages) => pages,
        Err(error) => {
            eprintln!("spillway: {error}");
            return ExitCode::FAILURE;
        }
    };
    servers::announce(what, &pages);
    // All are asked before one is waited for, and one that does not obey keeps none of the others.
    let answers = ask_all(&pages, request, PATIENCE);
    let (lines, ended) = output::went_well(pages.iter().zip(answers).map(|(page, answer)| {
        servers::obeyed(page, answer)?;
        let state = outcome(page, until)?;
        Ok(format!("server {} {}: {}", page.pid, page.program(), state.name()))
    }));
    output::print_and_end(lines, ended)
}

/// How it is then, or once its links have ended.
fn outcome(page: &ServerPage, until: Option<Duration>) -> Result<State, String> {
    let began = Instant::now();
    loop {
        let state = page.status().map_err(|error| format!("{}: {error}", page.path.display()))?.state;
        let Some(patience) = until.filter(|_| state != State::Off) else { return Ok(state) };
        if began.elapsed() > patience {
            return Err(format!("server {} is still {}", page.pid, state.name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_seconds_need_none() {
        assert_eq!(within("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(within("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!((within("3600"), within("0")), (Ok(Duration::from_secs(3600)), Ok(Duration::ZERO)));
        assert!(within("1 s").is_err() && within("soon").is_err());
    }
}

//! `spillway server`: switches help off or on in a server that runs under `spillway run`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_shim_core::status::{Request, ServerPage, State, request_all};

use super::output::Report;
use super::servers;
use super::times::time_or_seconds;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Switch helping off or on in a running server
///
/// The ordinary port is not affected. Only the server's user and root may do this; the server logs it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Refuse new links and end the present ones
    ///
    /// Helpers are asked to move their clients away; plain clients of a helper are reset when the time is over. Sessions
    /// of library clients have no route until links are accepted again, and end after 60 s.
    Off {
        #[command(flatten)]
        target: ServerArgs,
        /// Time that helpers have to move their clients away, such as 500ms or 5s
        #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time_or_seconds)]
        within: Duration,
        /// Return when all links have ended
        #[arg(long)]
        wait: bool,
    },
    /// Accept links again
    On {
        #[command(flatten)]
        target: ServerArgs,
    },
}

#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// The server: pid:812, port:11211 (its ordinary port or its link port), its program, or the number alone
    #[arg(required_unless_present = "all")]
    server: Option<String>,
    /// All servers of this name; without a name, all servers of this host
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let (target, request, timeout, announcement) = match args.what {
        What::Off { target, within, wait } => {
            let within_ms = u32::try_from(within.as_millis()).unwrap_or(u32::MAX);
            (target, Request::Off { within_ms }, wait.then_some(within + ANSWER_TIMEOUT), "switching off")
        }
        What::On { target } => (target, Request::On, None, "switching on"),
    };
    let command = if matches!(request, Request::On) { "server on" } else { "server off" };
    let pages = match servers::choose(target.server.as_deref(), target.all) {
        Ok(pages) => pages,
        Err(error) => return Report::failed(error).print(command, target.json),
    };
    servers::announce(announcement, &pages);
    // Send the request to all servers before waiting for any. A failing server does not stop the others.
    let answers = request_all(&pages, request, ANSWER_TIMEOUT);
    let (done, report) = Report::gather(pages.iter().zip(answers).map(|(page, answer)| {
        servers::check_answer(page, answer)?;
        Ok((page, outcome(page, timeout)?))
    }));
    let line = |(page, state): &(&ServerPage, State)| {
        format!("server {} {}: {}", page.pid, page.program(), state.name())
    };
    let object = |(page, state): &(&ServerPage, State)| json!({ "pid": page.pid, "program": page.program(), "state": state.name() });
    let result = json!({ "servers": done.iter().map(object).collect::<Vec<Value>>() });
    Report { lines: done.iter().map(line).collect(), result, ..report }.print(command, target.json)
}

/// Returns the server's state. With `timeout`, waits until the server is off, and fails after that time.
fn outcome(page: &ServerPage, timeout: Option<Duration>) -> Result<State, String> {
    let began = Instant::now();
    loop {
        let state = page.status().map_err(|error| format!("{}: {error}", page.path.display()))?.state;
        let Some(timeout) = timeout.filter(|_| state != State::Off) else { return Ok(state) };
        if began.elapsed() > timeout {
            return Err(format!("server {} is still {}", page.pid, state.name()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

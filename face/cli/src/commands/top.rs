//! `spillway top`: what helpers and servers on this machine are doing, as it changes.

mod screen;
mod servers;
mod sidecars;
mod view;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use spillway_daemon::Signals;
use spillway_helper::{HelperStatus, Rates};

use screen::Screen;
use servers::SeenServer;
use sidecars::SeenSidecar;

use super::output::Report;
use super::sockets;
use super::times::interval;

/// Watch helpers, sidecars and servers of this host
///
/// Shows requests, batches, the delay that batching adds, CPU, links, stalls and refusals. On a terminal the view is
/// drawn again each second until Ctrl-C; elsewhere a plain block is printed each time.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one interval and end
    #[arg(long)]
    once: bool,

    /// Print JSON; without --once one document on a line for each interval
    #[arg(long)]
    json: bool,

    /// Only the helper or sidecar with this admin socket; repeat for more [default: those in /run/spillway and of
    /// sidecars' units, and all servers]
    #[arg(long, value_name = "PATH")]
    socket: Vec<PathBuf>,

    /// Time from one measurement to the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// Everything at one look.
#[derive(Default)]
pub(crate) struct Look {
    pub(crate) helpers: Vec<Seen>,
    pub(crate) sidecars: Vec<SeenSidecar>,
    pub(crate) servers: Vec<SeenServer>,
}

/// One helper at one look.
pub(crate) struct Seen {
    pub(crate) socket: PathBuf,
    pub(crate) status: Result<HelperStatus, String>,
    /// Since the look before.
    pub(crate) rates: Option<Rates>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let sockets = if args.socket.is_empty() { sockets::all() } else { args.socket.clone() };
    if sockets.is_empty() && servers::look(&[]).is_empty() {
        eprintln!(
            "spillway: no helper has an admin socket in /run/spillway (--socket PATH names one: helper.socket, \
             --status-socket), and no server here under `spillway run` can be read"
        );
        return ExitCode::FAILURE;
    }
    match watch(&args, &sockets, args.interval) {
        Ok(code) => code,
        // Whoever read this has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(args: &Args, sockets: &[PathBuf], interval: Duration) -> io::Result<ExitCode> {
    let live = !args.once && !args.json && io::stdout().is_terminal();
    let (tell, told) = channel();
    // Only a screen has to be put in order; elsewhere a signal ends us as it ends any program.
    let _signals = if live { Some(Signals::watch(move |_| tell.send(()).is_ok())?) } else { None };
    let mut screen = live.then(Screen::open).transpose()?;
    let with_servers = args.socket.is_empty();
    let mut seen = look(sockets, with_servers, &Look::default());
    loop {
        if let Some(screen) = &mut screen {
            screen.draw(&view::text(&seen))?;
        }
        if is_over(&told, interval) {
            return Ok(ExitCode::SUCCESS);
        }
        seen = look(sockets, with_servers, &seen);
        if screen.is_none() {
            print(args, &seen)?;
        }
        if args.once {
            let is_anybody = !seen.servers.is_empty() || !seen.sidecars.is_empty();
            let answered = is_anybody || seen.helpers.iter().any(|seen| seen.status.is_ok());
            return Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}

/// Waits for the next look. True when a signal came first.
fn is_over(told: &Receiver<()>, interval: Duration) -> bool {
    match told.recv_timeout(interval) {
        Ok(()) => true,
        Err(RecvTimeoutError::Timeout) => false,
        // Nobody watches signals.
        Err(RecvTimeoutError::Disconnected) => {
            std::thread::sleep(interval);
            false
        }
    }
}

fn look(sockets: &[PathBuf], with_servers: bool, before: &Look) -> Look {
    // Both have their sockets in the same directory; a sidecar says that it is one.
    let (mut helpers, mut sidecars) = (Vec::new(), Vec::new());
    let look_at = |socket: &PathBuf| {
        let status = spillway_helper::query(socket).map_err(|error| error.to_string());
        let earlier = before.helpers.iter().find(|seen| seen.socket == *socket);
        let earlier = earlier.and_then(|seen| seen.status.as_ref().ok());
        let rates = earlier.zip(status.as_ref().ok()).and_then(|(then, now)| Rates::between(then, now));
        Seen { socket: socket.clone(), status, rates }
    };
    let servers = if with_servers { servers::look(&before.servers) } else { Vec::new() };
    for socket in sockets {
        match sidecars::look(socket, &before.sidecars) {
            Some(seen) => sidecars.push(seen),
            None => helpers.push(look_at(socket)),
        }
    }
    Look { helpers, sidecars, servers }
}

fn print(args: &Args, seen: &Look) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !args.json {
        return writeln!(out, "{}\n", view::text(seen).join("\n"));
    }
    let helpers: Vec<Value> = seen.helpers.iter().map(as_json).collect();
    let sidecars: Vec<Value> = seen.sidecars.iter().map(SeenSidecar::as_json).collect();
    let servers: Vec<Value> = seen.servers.iter().map(SeenServer::as_json).collect();
    let result = json!({ "helpers": helpers, "sidecars": sidecars, "servers": servers });
    let document = Report { result, ..Report::default() }.envelope("top");
    if args.once { writeln!(out, "{document:#}") } else { writeln!(out, "{document}") }
}

fn as_json(seen: &Seen) -> Value {
    match &seen.status {
        Ok(status) => json!({ "socket": seen.socket, "status": status, "rates": seen.rates }),
        Err(error) => json!({ "socket": seen.socket, "error": error }),
    }
}

//! `spillway top`: shows rates of helpers, sidecars and servers of this host, refreshed at an interval.

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
use servers::ServerSample;
use sidecars::SidecarSample;

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

#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) helpers: Vec<HelperSample>,
    pub(crate) sidecars: Vec<SidecarSample>,
    pub(crate) servers: Vec<ServerSample>,
}

pub(crate) struct HelperSample {
    pub(crate) socket: PathBuf,
    pub(crate) status: Result<HelperStatus, String>,
    /// Rates since the previous snapshot.
    pub(crate) rates: Option<Rates>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    let sockets = if args.socket.is_empty() { sockets::all() } else { args.socket.clone() };
    if sockets.is_empty() && servers::sample(&[]).is_empty() {
        eprintln!(
            "spillway: no helper has an admin socket in /run/spillway (--socket PATH names one: helper.socket, \
             --status-socket), and no server here under `spillway run` can be read"
        );
        return ExitCode::FAILURE;
    }
    match watch(&args, &sockets, args.interval) {
        Ok(code) => code,
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spillway: {error}");
            ExitCode::FAILURE
        }
    }
}

fn watch(args: &Args, sockets: &[PathBuf], interval: Duration) -> io::Result<ExitCode> {
    let is_live = !args.once && !args.json && io::stdout().is_terminal();
    let (sender, receiver) = channel();
    // Only a screen needs signals, to restore the terminal.
    let _signals = if is_live { Some(Signals::watch(move |_| sender.send(()).is_ok())?) } else { None };
    let mut screen = is_live.then(Screen::open).transpose()?;
    let with_servers = args.socket.is_empty();
    let mut snapshot = sample(sockets, with_servers, &Snapshot::default());
    loop {
        if let Some(screen) = &mut screen {
            screen.draw(&view::text(&snapshot))?;
        }
        if is_over(&receiver, interval) {
            return Ok(ExitCode::SUCCESS);
        }
        snapshot = sample(sockets, with_servers, &snapshot);
        if screen.is_none() {
            print(args, &snapshot)?;
        }
        if args.once {
            let has_others = !snapshot.servers.is_empty() || !snapshot.sidecars.is_empty();
            let has_answer = has_others || snapshot.helpers.iter().any(|sample| sample.status.is_ok());
            return Ok(if has_answer { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
}

/// Waits for one interval. Returns true if a signal came first.
fn is_over(receiver: &Receiver<()>, interval: Duration) -> bool {
    match receiver.recv_timeout(interval) {
        Ok(()) => true,
        Err(RecvTimeoutError::Timeout) => false,
        // Signals are not watched.
        Err(RecvTimeoutError::Disconnected) => {
            std::thread::sleep(interval);
            false
        }
    }
}

fn sample(sockets: &[PathBuf], with_servers: bool, before: &Snapshot) -> Snapshot {
    // Helpers and sidecars have their sockets in the same directory; only a sidecar answers a sidecar's query.
    let (mut helpers, mut sidecars) = (Vec::new(), Vec::new());
    let sample_helper = |socket: &PathBuf| {
        let status = spillway_helper::request_status(socket).map_err(|error| error.to_string());
        let earlier = before.helpers.iter().find(|sample| sample.socket == *socket);
        let earlier = earlier.and_then(|sample| sample.status.as_ref().ok());
        let rates = earlier.zip(status.as_ref().ok()).and_then(|(earlier, now)| Rates::between(earlier, now));
        HelperSample { socket: socket.clone(), status, rates }
    };
    let servers = if with_servers { servers::sample(&before.servers) } else { Vec::new() };
    for socket in sockets {
        match sidecars::sample(socket, &before.sidecars) {
            Some(sample) => sidecars.push(sample),
            None => helpers.push(sample_helper(socket)),
        }
    }
    Snapshot { helpers, sidecars, servers }
}

fn print(args: &Args, snapshot: &Snapshot) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !args.json {
        return writeln!(out, "{}\n", view::text(snapshot).join("\n"));
    }
    let helpers: Vec<Value> = snapshot.helpers.iter().map(as_json).collect();
    let sidecars: Vec<Value> = snapshot.sidecars.iter().map(SidecarSample::as_json).collect();
    let servers: Vec<Value> = snapshot.servers.iter().map(ServerSample::as_json).collect();
    let result = json!({ "helpers": helpers, "sidecars": sidecars, "servers": servers });
    let document = Report { result, ..Report::default() }.envelope("top");
    if args.once { writeln!(out, "{document:#}") } else { writeln!(out, "{document}") }
}

fn as_json(sample: &HelperSample) -> Value {
    match &sample.status {
        Ok(status) => {
            json!({ "socket": sample.socket, "status": status.to_value(), "rates": sample.rates.as_ref().map(Rates::to_value) })
        }
        Err(error) => json!({ "socket": sample.socket, "error": error }),
    }
}

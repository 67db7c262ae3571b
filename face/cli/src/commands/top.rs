//! `spillway top`: shows rates of helpers, sidecars, switches and servers of this host, refreshed at an interval.

mod screen;
mod servers;
mod sidecars;
mod switches;
mod view;

use std::fmt::Display;
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
use switches::SwitchSample;

use super::output::Report;
use super::sockets;
use super::times::interval;

/// Watch helpers, sidecars, switches and servers of this host
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

    /// Only the helper, sidecar or switch with this admin socket; repeat for more [default: those in /run/spillway and of
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
    pub(crate) switches: Vec<SwitchSample>,
    pub(crate) servers: Vec<ServerSample>,
}

pub(crate) struct HelperSample {
    pub(crate) socket: PathBuf,
    pub(crate) status: Result<HelperStatus, String>,
    /// Rates since the previous snapshot.
    pub(crate) rates: Option<Rates>,
}

impl Snapshot {
    fn has_answer(&self) -> bool {
        let has_others = !self.servers.is_empty() || !self.sidecars.is_empty() || !self.switches.is_empty();
        has_others || self.helpers.iter().any(|sample| sample.status.is_ok())
    }
}

pub(crate) fn run(args: Args) -> ExitCode {
    let sockets = if args.socket.is_empty() { sockets::all() } else { args.socket.clone() };
    if sockets.is_empty() && servers::sample(&[]).is_empty() {
        let error = "no helper, sidecar or switch has an admin socket in /run/spillway (--socket PATH names one: \
                     helper.socket, --status-socket), and no server here under `spillway run` can be read";
        return failed(&args, error);
    }
    match watch(&args, &sockets, args.interval) {
        Ok(code) => code,
        // Not a failure: the reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => failed(&args, error),
    }
}

/// Prints an error, with `--json` also its envelope: without `--once` on one line, as for an interval.
fn failed(args: &Args, error: impl Display) -> ExitCode {
    let report = Report::failed(error);
    if args.json && !args.once { report.print_on_one_line("top") } else { report.print("top", args.json) }
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
        if args.once {
            return Ok(report(args, &snapshot).print("top", args.json));
        }
        if screen.is_none() {
            print(args, &snapshot)?;
        }
    }
}

/// Waits for one interval. Returns true if a signal came first.
fn is_over(receiver: &Receiver<()>, interval: Duration) -> bool {
    match receiver.recv_timeout(interval) {
        Ok(()) => true,
        Err(RecvTimeoutError::Timeout) => false,
        // No sender is left, so no signal can arrive.
        Err(RecvTimeoutError::Disconnected) => {
            std::thread::sleep(interval);
            false
        }
    }
}

fn sample(sockets: &[PathBuf], with_servers: bool, before: &Snapshot) -> Snapshot {
    // Helpers, sidecars and switches have their sockets in the same directory; their answers differ.
    let (mut helpers, mut sidecars, mut switches) = (Vec::new(), Vec::new(), Vec::new());
    let sample_helper = |socket: &PathBuf| {
        let status = spillway_helper::request_status(socket).map_err(|error| error.to_string());
        let earlier = before.helpers.iter().find(|sample| sample.socket == *socket);
        let earlier = earlier.and_then(|sample| sample.status.as_ref().ok());
        let rates = earlier.zip(status.as_ref().ok()).and_then(|(earlier, now)| Rates::between(earlier, now));
        HelperSample { socket: socket.clone(), status, rates }
    };
    let servers = if with_servers { servers::sample(&before.servers) } else { Vec::new() };
    for socket in sockets {
        if let Some(sample) = switches::sample(socket, &before.switches) {
            switches.push(sample);
        } else if let Some(sample) = sidecars::sample(socket, &before.sidecars) {
            sidecars.push(sample);
        } else {
            helpers.push(sample_helper(socket));
        }
    }
    Snapshot { helpers, sidecars, switches, servers }
}

fn print(args: &Args, snapshot: &Snapshot) -> io::Result<()> {
    let report = report(args, snapshot);
    let mut out = io::stdout().lock();
    if args.json {
        return writeln!(out, "{}", report.envelope("top"));
    }
    writeln!(out, "{}", report.lines.join("\n"))
}

fn report(args: &Args, snapshot: &Snapshot) -> Report {
    let is_failure = !snapshot.has_answer();
    if !args.json {
        // The lines contain the errors of helpers that do not answer. An empty line ends the block.
        let lines = view::text(snapshot).into_iter().chain([String::new()]).collect();
        return Report { lines, is_failure, ..Report::default() };
    }
    let helpers: Vec<Value> = snapshot.helpers.iter().map(as_json).collect();
    let sidecars: Vec<Value> = snapshot.sidecars.iter().map(SidecarSample::as_json).collect();
    let switches: Vec<Value> = snapshot.switches.iter().map(SwitchSample::as_json).collect();
    let servers: Vec<Value> = snapshot.servers.iter().map(ServerSample::as_json).collect();
    let result =
        json!({ "helpers": helpers, "sidecars": sidecars, "switches": switches, "servers": servers });
    let silent = snapshot.helpers.iter().filter_map(|sample| {
        let error = sample.status.as_ref().err()?;
        Some(format!("{}: {error}", sample.socket.display()))
    });
    let report = Report { result, is_failure, ..Report::default() };
    if is_failure {
        Report { errors: silent.collect(), ..report }
    } else {
        Report { warnings: silent.collect(), ..report }
    }
}

fn as_json(sample: &HelperSample) -> Value {
    match &sample.status {
        Ok(status) => {
            json!({ "socket": sample.socket, "status": status.to_value(), "rates": sample.rates.as_ref().map(Rates::to_value) })
        }
        Err(error) => json!({ "socket": sample.socket, "error": error }),
    }
}

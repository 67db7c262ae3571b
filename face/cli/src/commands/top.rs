//! `spillway top`: shows rates of helpers, sidecars, switches and servers of this host, refreshed at an interval.

mod keyboard;
mod screen;
mod servers;
mod sidecars;
mod stack_servers;
mod switches;
mod view;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Value, json};
use spillway_daemon::Signals;
use spillway_helper::{HelperStatus, Rates};

use keyboard::Keyboard;
use screen::Screen;
use servers::ServerSample;
use sidecars::SidecarSample;
use stack_servers::StackServerSample;
use switches::SwitchSample;

use super::answer::Answer;
use super::output::Report;
use super::sockets;
use super::times::interval;
use super::waiting::query_all;

/// Watch helpers, sidecars, switches and servers of this host
///
/// Shows requests, batches, the delay that batching adds, CPU, links, stalls and refusals. On a terminal the view is
/// drawn again each second until q or Ctrl-C; elsewhere a plain block is printed each time.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one interval and end
    #[arg(long)]
    once: bool,

    /// Print JSON; without --once one document on a line for each interval
    #[arg(long)]
    json: bool,

    /// Only the helper, sidecar, switch or server on the user-level stack with this admin socket; repeat for more [default: those in /run/spillway and of
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
    /// Servers on the user-level stack.
    pub(crate) stack_servers: Vec<StackServerSample>,
    /// Servers under `spillway run`.
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
        let has_servers = !(self.servers.is_empty() && self.stack_servers.is_empty());
        let has_others = has_servers || !self.sidecars.is_empty() || !self.switches.is_empty();
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

/// What the main thread waits for.
enum Event {
    Snapshot(Arc<Snapshot>),
    /// A signal, or the key q.
    End,
}

fn watch(args: &Args, sockets: &[PathBuf], interval: Duration) -> io::Result<ExitCode> {
    let is_live = !args.once && !args.json && io::stdout().is_terminal();
    // Bounded: if the output is blocked, sampling waits.
    let (events, received) = sync_channel(2);
    // Only a screen needs signals and the keyboard, to restore the terminal.
    let end = |events: &SyncSender<Event>| {
        let events = events.clone();
        move || events.send(Event::End).is_ok()
    };
    let signals = is_live.then(|| {
        let end = end(&events);
        Signals::watch(move |_| end())
    });
    let _signals = signals.transpose()?;
    let mut screen = is_live.then(Screen::open).transpose()?;
    let _keyboard = is_live.then(|| Keyboard::watch(end(&events))).flatten();
    if let Some(screen) = &mut screen {
        screen.draw(&["waiting for the first answers; q or Ctrl-C ends".to_owned()])?;
    }
    start_sampling(sockets.to_vec(), args.socket.is_empty(), interval, events)?;
    let mut has_rates = false;
    for event in received {
        let Event::Snapshot(snapshot) = event else { return Ok(ExitCode::SUCCESS) };
        if let Some(screen) = &mut screen {
            screen.draw(&view::text(&snapshot))?;
        } else if has_rates && args.once {
            return Ok(report(args, &snapshot).print("top", args.json));
        } else if has_rates {
            print(args, &snapshot)?;
        }
        has_rates = true;
    }
    Err(io::Error::other("the thread that queries daemons has ended"))
}

/// Sends a snapshot each interval from a separate thread, so that a daemon that does not answer delays no signal and no
/// key. The thread ends with the process, or when the receiver is dropped.
fn start_sampling(
    sockets: Vec<PathBuf>,
    with_servers: bool,
    interval: Duration,
    events: SyncSender<Event>,
) -> io::Result<()> {
    let run = move || {
        let mut snapshot = Arc::new(sample(&sockets, with_servers, &Snapshot::default()));
        while events.send(Event::Snapshot(Arc::clone(&snapshot))).is_ok() {
            std::thread::sleep(interval);
            snapshot = Arc::new(sample(&sockets, with_servers, &snapshot));
        }
    };
    std::thread::Builder::new().name("sampling".into()).spawn(run).map(drop)
}

fn sample(sockets: &[PathBuf], with_servers: bool, before: &Snapshot) -> Snapshot {
    let servers = if with_servers { servers::sample(&before.servers) } else { Vec::new() };
    let mut snapshot = Snapshot { servers, ..Snapshot::default() };
    let answers = query_all(sockets, |socket| Answer::send_request(socket));
    // Helpers, sidecars, switches and servers on the stack have their sockets in the same directory; their answers differ.
    for (socket, answer) in sockets.iter().zip(answers) {
        match answer {
            Ok(Answer::Switch(status)) => {
                snapshot.switches.push(switches::sample(socket, *status, &before.switches));
            }
            Ok(Answer::Sidecar(status)) => {
                snapshot.sidecars.push(sidecars::sample(socket, *status, &before.sidecars));
            }
            Ok(Answer::Helper(status)) => {
                snapshot.helpers.push(sample_helper(socket, Ok(*status), &before.helpers));
            }
            Ok(Answer::Server(status)) => {
                snapshot.stack_servers.push(stack_servers::sample(socket, *status, &before.stack_servers));
            }
            Err(error) => {
                snapshot.helpers.push(sample_helper(socket, Err(error.to_string()), &before.helpers));
            }
        }
    }
    snapshot
}

/// A sample of the helper at this socket, or of a daemon that does not answer.
fn sample_helper(
    socket: &Path,
    status: Result<HelperStatus, String>,
    before: &[HelperSample],
) -> HelperSample {
    let earlier = before.iter().find(|sample| sample.socket == socket);
    let earlier = earlier.and_then(|sample| sample.status.as_ref().ok());
    let rates = earlier.zip(status.as_ref().ok()).and_then(|(earlier, now)| Rates::between(earlier, now));
    HelperSample { socket: socket.to_owned(), status, rates }
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
    let stack_servers: Vec<Value> = snapshot.stack_servers.iter().map(StackServerSample::as_json).collect();
    let result = json!({
        "helpers": helpers, "sidecars": sidecars, "switches": switches, "stack_servers": stack_servers,
        "servers": servers
    });
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

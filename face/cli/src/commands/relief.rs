//! `spillway relief`: the operator's override, which overrides every policy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_batch::Role;
use spillway_helper::control::{AskError, OverrideOutcome, Request, ask};
use spillway_policy::Override;
use spillway_shim_core::status::{self, ServerPage, ask_all};
use spillway_values::parse_duration;

use super::output::Report;
use super::servers::Unclear;
use super::{servers, sockets};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long clients may take to go where the word sends them.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Override relief for a service: on, off or auto
///
/// The override replaces every policy, for present and later clients, at each helper and sidecar of this host that has
/// a service of this name, and at servers under `spillway run` that are named by process id, port or program.
///
/// A sidecar moves its sessions. A server asks sessions to move to helpers (`on`) or to its own link port (`off`). A
/// helper that is told `off` refuses new clients, PLAIN CLIENTS TOO, and sends library clients away; present plain
/// clients are served. `auto` ends the override.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a service, or a server of this host: pid:812, port:11211, or its program
    service: String,

    /// auto, on or off
    word: Override,

    /// How long the override holds; afterwards auto [default: until `auto`]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    lasts: Option<Duration>,

    /// Act on all servers of this name, if several have it
    #[arg(long)]
    all: bool,

    /// Return when clients have moved where the override sends them, or no more of them move. Plain clients of helpers
    /// stay, and sessions without another route
    #[arg(long)]
    wait: bool,

    /// Admin socket of a helper or sidecar; repeat for more [default: those in /run/spillway and of sidecars' units]
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a helper, sidecar or server did with the override.
struct Outcome {
    line: String,
    object: Value,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let report = match override_relief(args) {
        Ok(outcomes) => {
            let (done, report) = Report::gather(outcomes);
            let (lines, objects): (Vec<String>, Vec<Value>) =
                done.into_iter().map(|done| (done.line, done.object)).unzip();
            let result =
                json!({ "service": args.service, "override": args.word.name(), "outcomes": objects });
            Report { lines, result, ..report }
        }
        Err(error) => Report::failed(format!("relief {}: {error}", args.service)),
    };
    report.print("relief", args.json)
}

/// The outcome at each helper, sidecar and server. The error: none of them has the service.
fn override_relief(args: &Args) -> Result<Vec<Result<Outcome, String>>, String> {
    let mut told = Vec::new();
    let mut unknown = Vec::new();
    // Before anybody is told: where a name is not clear nothing changes.
    let pages = match servers::choose(Some(&args.service), args.all) {
        Ok(pages) => pages,
        Err(Unclear::Several(error)) => return Err(error),
        Err(Unclear::Unknown(error)) => {
            unknown.push(error);
            Vec::new()
        }
    };
    servers::announce(&format!("relief {}", args.word), &pages);
    let sockets = if args.sockets.is_empty() { sockets::all() } else { args.sockets.clone() };
    for socket in sockets {
        match tell_helper(args, &socket) {
            Ok(line) => told.push(Ok(line)),
            Err(AskError::Refused(why)) => unknown.push(format!("{}: {why}", socket.display())),
            // A socket that is left over from a helper that was killed.
            Err(error) if error.is_absent() && args.sockets.is_empty() => {}
            Err(error) => told.push(Err(format!("{}: {error}", socket.display()))),
        }
    }
    let lasts_s = args.lasts.map_or(0, |lasts| u32::try_from(lasts.as_secs().max(1)).unwrap_or(u32::MAX));
    let answers = ask_all(&pages, status::Request::Say { word: args.word, lasts_s }, PATIENCE);
    told.extend(pages.iter().zip(answers).map(|(page, answer)| {
        servers::obeyed(page, answer)?;
        told_server(args, page)
    }));
    if told.is_empty() { Err(unknown.join("; ")) } else { Ok(told) }
}

fn tell_helper(args: &Args, socket: &Path) -> Result<Outcome, AskError> {
    let lasts_ms = args.lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    let (service, word) = (args.service.clone(), args.word.to_string());
    let said: OverrideOutcome = ask(socket, &Request::Relief { service, word, lasts_ms })?;
    let left = if args.wait { await_fewer(|| clients(args, socket))? } else { said.clients };
    let line = format!("{} at {}: relief {}{}", args.service, socket.display(), said.word, to_go(left));
    Ok(Outcome { line, object: json!({ "socket": socket, "clients_to_move": left }) })
}

/// Clients of a helper or a sidecar that are not where the word wants them.
fn clients(args: &Args, socket: &Path) -> Result<u64, AskError> {
    let status: Value = ask(socket, &Request::Status {})?;
    if status["kind"] == "sidecar" {
        let wrong = match args.word.wrong_role() {
            None => return Ok(0),
            Some(Role::Client) => "direct",
            Some(Role::Helper) => "helped",
        };
        return Ok(status[wrong].as_u64().unwrap_or(0));
    }
    // A helper cannot make anybody come.
    let mut services = status["services"].as_array().into_iter().flatten();
    let service = services.find(|service| args.word == Override::Off && service["name"] == *args.service);
    Ok(service.and_then(|service| service["library_clients"].as_u64()).unwrap_or(0))
}

fn to_go(clients: u64) -> String {
    if clients == 0 { String::new() } else { format!(", {clients} clients to go elsewhere") }
}

/// What has become of it, at a server that was told.
fn told_server(args: &Args, page: &ServerPage) -> Result<Outcome, String> {
    let misplaced =
        || misplaced(args.word, page).map_err(|error| format!("{}: {error}", page.path.display()));
    let left = if args.wait { await_fewer(misplaced)? } else { 0 };
    let object = json!({ "pid": page.pid, "program": page.program(), "connections_to_move": left });
    let left = if left == 0 { String::new() } else { format!(", {left} connections stay") };
    Ok(Outcome {
        line: format!("server {} {}: relief {}{left}", page.pid, page.program(), args.word),
        object,
    })
}

/// How many are left, once they do not become fewer any more.
fn await_fewer<E>(mut count: impl FnMut() -> Result<u64, E>) -> Result<u64, E> {
    let began = Instant::now();
    let (mut least, mut since) = (u64::MAX, began);
    loop {
        let left = count()?;
        if left < least {
            (least, since) = (left, Instant::now());
        }
        if left == 0 || since.elapsed() > PATIENCE || began.elapsed() > WAIT_MAX {
            return Ok(left);
        }
        std::thread::sleep(LOOK);
    }
}

/// Connections that come over links of the other kind.
fn misplaced(word: Override, page: &ServerPage) -> std::io::Result<u64> {
    let Some(wrong) = word.wrong_role() else { return Ok(0) };
    let status = page.status()?;
    // A link's state is the role of its peer, once that has authenticated.
    Ok(status.links.iter().filter(|link| link.state == wrong.to_string()).map(|link| link.connections).sum())
}

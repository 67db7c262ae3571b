//! `spillway relief`: sets the operator's override, which replaces every policy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spillway_batch::Role;
use spillway_helper::control::{OverrideOutcome, Request, RequestError, send_request};
use spillway_policy::Override;
use spillway_shim_core::status::{self, LinkStatus, ServerPage, request_all};
use spillway_values::parse_duration;

use super::output::Report;
use super::servers::ChooseError;
use super::waiting::with_notice;
use super::{servers, sockets};

/// How long a server may take to answer, and how long `--wait` waits without progress.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long `--wait` waits for clients to move.
const MOVE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Override relief for a service: on, off or auto
///
/// The override replaces every policy, for present and later clients, at each helper and sidecar of this host that has
/// a service of this name, and at servers under `spillway run` that are named by process id, port or program.
///
/// A sidecar moves its sessions. A server asks sessions to move to helpers (`on`) or to its own link port (`off`). With
/// `off` a helper refuses new clients, PLAIN CLIENTS TOO, and sends library clients away; present plain clients are
/// served. `auto` ends the override.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of a service, or a server of this host: pid:812, port:11211, or its program
    service: String,

    /// auto, on or off
    word: Override,

    /// How long the override holds; afterwards auto [default: until `auto`]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_override_duration)]
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

/// The longest override that a server accepts: its status page has 24 bits for the seconds.
const DURATION_MAX: Duration = Duration::from_secs(4660 * 3600);

fn parse_override_duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).map_err(|error| error.to_string())?;
    let is_allowed = (Duration::from_millis(1)..=DURATION_MAX).contains(&duration);
    is_allowed
        .then_some(duration)
        .ok_or_else(|| "give a time from 1ms to 4660h; without --for it holds until `auto`".into())
}

/// The time in seconds, rounded up, because a server counts whole seconds.
fn whole_seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let report = match apply_override(args) {
        Ok(outcomes) => {
            let (done, report) = Report::gather(outcomes);
            let (lines, objects): (Vec<String>, Vec<Value>) =
                done.into_iter().map(|outcome| (outcome.line, outcome.object)).unzip();
            let result =
                json!({ "service": args.service, "override": args.word.name(), "outcomes": objects });
            Report { lines, result, ..report }
        }
        Err(error) => Report::failed(format!("relief {}: {error}", args.service)),
    };
    report.print("relief", args.json)
}

/// Sets the override at each server, helper and sidecar that has the service; returns their outcomes.
///
/// # Errors
/// No server, helper or sidecar has a service of this name, or the name of a server is ambiguous.
fn apply_override(args: &Args) -> Result<Vec<Result<Outcome, String>>, String> {
    let mut outcomes = Vec::new();
    let mut unknown = Vec::new();
    // Servers are chosen before anything changes: an ambiguous name must change nothing.
    let pages = match servers::choose(Some(&args.service), args.all) {
        Ok(pages) => pages,
        Err(ChooseError::Several(error)) => return Err(error),
        Err(ChooseError::Unknown(error)) => {
            unknown.push(error);
            Vec::new()
        }
    };
    servers::announce(&format!("relief {}", args.word), &pages);
    let sockets = if args.sockets.is_empty() { sockets::all() } else { args.sockets.clone() };
    for socket in sockets {
        match override_at_socket(args, &socket) {
            Ok(outcome) => outcomes.push(Ok(outcome)),
            Err(error) if error.is_unknown_service() => {
                unknown.push(format!("{}: {error}", socket.display()));
            }
            // The socket of a helper or sidecar that was killed.
            Err(error) if error.is_absent() && args.sockets.is_empty() => {}
            Err(error) => outcomes.push(Err(format!("{}: {error}", socket.display()))),
        }
    }
    let lasts_s = args.lasts.map_or(0, whole_seconds);
    let answers = request_all(
        &pages,
        status::Request::SetOverride { manual_override: args.word, lasts_s },
        ANSWER_TIMEOUT,
    );
    outcomes.extend(pages.iter().zip(answers).map(|(page, answer)| {
        servers::check_answer(page, answer)?;
        server_outcome(args, page)
    }));
    if outcomes.is_empty() { Err(unknown.join("; ")) } else { Ok(outcomes) }
}

fn override_at_socket(args: &Args, socket: &Path) -> Result<Outcome, RequestError> {
    let lasts_ms = args.lasts.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    let (service, manual_override) = (args.service.clone(), args.word.to_string());
    let request = Request::Relief { service, manual_override, lasts_ms };
    let outcome: OverrideOutcome = with_notice(socket, || send_request(socket, &request))?;
    let left =
        if args.wait { wait_until_no_progress(|| misplaced_clients(args, socket))? } else { outcome.clients };
    let line = format!(
        "{} at {}: relief {}{}",
        args.service,
        socket.display(),
        outcome.manual_override,
        clients_left_text(left)
    );
    Ok(Outcome { line, object: json!({ "socket": socket, "clients_to_move": left }) })
}

/// Clients of a helper or a sidecar that still have to move.
fn misplaced_clients(args: &Args, socket: &Path) -> Result<u64, RequestError> {
    let status: Value = send_request(socket, &Request::Status {})?;
    if status["kind"] == "sidecar" {
        let forbidden = match args.word.forbidden_role() {
            None => return Ok(0),
            Some(Role::Client) => "direct",
            Some(Role::Helper) => "helped",
        };
        return Ok(status[forbidden].as_u64().unwrap_or(0));
    }
    // With `on` a helper has no clients to move.
    let mut services = status["services"].as_array().into_iter().flatten();
    let service = services.find(|service| args.word == Override::Off && service["name"] == *args.service);
    Ok(service.and_then(|service| service["library_clients"].as_u64()).unwrap_or(0))
}

fn clients_left_text(clients: u64) -> String {
    if clients == 0 { String::new() } else { format!(", {clients} clients still have to move") }
}

/// The outcome at a server that has accepted the override; with `--wait` once its connections have moved.
fn server_outcome(args: &Args, page: &ServerPage) -> Result<Outcome, String> {
    let misplaced =
        || misplaced_sessions(args.word, page).map_err(|error| format!("{}: {error}", page.path.display()));
    let left = if args.wait { wait_until_no_progress(misplaced)? } else { 0 };
    let object = json!({ "pid": page.pid, "program": page.program(), "connections_to_move": left });
    let left = if left == 0 { String::new() } else { format!(", {left} sessions have not moved") };
    Ok(Outcome {
        line: format!("server {} {}: relief {}{left}", page.pid, page.program(), args.word),
        object,
    })
}

/// Waits until `count` is 0 or has not become smaller for [`ANSWER_TIMEOUT`]; returns the last count.
fn wait_until_no_progress<E>(mut count: impl FnMut() -> Result<u64, E>) -> Result<u64, E> {
    let began = Instant::now();
    let (mut fewest, mut since) = (u64::MAX, began);
    loop {
        let left = count()?;
        if left < fewest {
            (fewest, since) = (left, Instant::now());
        }
        if left == 0 || since.elapsed() > ANSWER_TIMEOUT || began.elapsed() > MOVE_TIMEOUT {
            return Ok(left);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sessions on links of the role that the override forbids.
fn misplaced_sessions(manual_override: Override, page: &ServerPage) -> std::io::Result<u64> {
    let Some(forbidden) = manual_override.forbidden_role() else { return Ok(0) };
    Ok(sessions_on(&page.status()?.links, forbidden))
}

/// Sessions on links of this role. Plain clients are left out, because they cannot move.
fn sessions_on(links: &[LinkStatus], role: Role) -> u64 {
    // The state of an authenticated link is its peer's role. Servers of older versions report only all connections.
    let on_role = links.iter().filter(|link| link.state == role.to_string());
    on_role.map(|link| link.sessions.unwrap_or(link.connections)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_clients_are_not_waited_for() {
        let link = |state, connections, sessions| LinkStatus {
            index: 0,
            peer: ([10, 0, 0, 9], 40_000).into(),
            state,
            key: 0,
            age: Duration::ZERO,
            encrypted: false,
            connections,
            sessions,
            traffic: Vec::new(),
        };
        let links = [link("helper", 5, Some(0)), link("helper", 4, Some(3)), link("client", 1, Some(1))];
        assert_eq!((sessions_on(&links, Role::Helper), sessions_on(&links, Role::Client)), (3, 1));
        assert_eq!(sessions_on(&[link("helper", 5, None)], Role::Helper), 5, "a server of an older version");
    }

    #[test]
    fn override_durations_are_rounded_up_and_limited() {
        for (text, seconds) in [("1ms", 1), ("1500ms", 2), ("10m", 600), ("4660h", 16_776_000)] {
            assert_eq!(parse_override_duration(text).map(whole_seconds), Ok(seconds));
        }
        for forbidden in ["0", "999us", "4661h", "5000000h", "10"] {
            assert!(parse_override_duration(forbidden).is_err(), "{forbidden}");
        }
    }
}

//! `spillway relief`: the operator's override, which overrides every policy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use spillway_batch::Role;
use spillway_helper::control::{AskError, OverrideOutcome, Request, ask};
use spillway_policy::Override;
use spillway_shim_core::status::{self, ServerPage, ask_all};
use spillway_values::parse_duration;

use super::servers::Unclear;
use super::{output, servers, sockets};

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
    #[arg(long = "for", value_name = "TIME", value_parser = parse_lasts)]
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
}

/// The longest override that a server takes: its page has 24 bits for the seconds.
const LASTS_MAX: Duration = Duration::from_secs(4660 * 3600);

fn parse_lasts(text: &str) -> Result<Duration, String> {
    let lasts = parse_duration(text).map_err(|error| error.to_string())?;
    let is_allowed = (Duration::from_millis(1)..=LASTS_MAX).contains(&lasts);
    is_allowed
        .then_some(lasts)
        .ok_or_else(|| "give a time from 1ms to 4660h; without --for it holds until `auto`".into())
}

/// A server counts whole seconds: the override holds for the time at least.
fn whole_seconds(lasts: Duration) -> u32 {
    u32::try_from(lasts.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let told = match tell(args) {
        Ok(told) => told,
        Err(error) => {
            eprintln!("spillway: relief {}: {error}", args.service);
            return ExitCode::FAILURE;
        }
    };
    let (lines, ended) = output::split_outcomes(told);
    output::print_and_end(lines, ended)
}

/// What each of them did. The error: nobody knows the service.
fn tell(args: &Args) -> Result<Vec<Result<String, String>>, String> {
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
    let lasts_s = args.lasts.map_or(0, whole_seconds);
    let answers = ask_all(&pages, status::Request::Say { word: args.word, lasts_s }, PATIENCE);
    told.extend(pages.iter().zip(answers).map(|(page, answer)| {
        servers::obeyed(page, answer)?;
        told_server(args, page)
    }));
    if told.is_empty() { Err(unknown.join("; ")) } else { Ok(told) }
}

fn tell_helper(args: &Args, socket: &Path) -> Result<String, AskError> {
    let lasts_ms = args.lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    let (service, word) = (args.service.clone(), args.word.to_string());
    let said: OverrideOutcome = ask(socket, &Request::Relief { service, word, lasts_ms })?;
    let left = if args.wait { await_fewer(|| clients(args, socket))? } else { said.clients };
    Ok(format!("{} at {}: relief {}{}", args.service, socket.display(), said.word, to_go(left)))
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
fn told_server(args: &Args, page: &ServerPage) -> Result<String, String> {
    let misplaced =
        || misplaced(args.word, page).map_err(|error| format!("{}: {error}", page.path.display()));
    let left = if args.wait { await_fewer(misplaced)? } else { 0 };
    let left = if left == 0 { String::new() } else { format!(", {left} connections stay") };
    Ok(format!("server {} {}: relief {}{left}", page.pid, page.program(), args.word))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_lasts_as_long_as_it_is_said_to() {
        for (text, seconds) in [("1ms", 1), ("1500ms", 2), ("10m", 600), ("4660h", 16_776_000)] {
            assert_eq!(parse_lasts(text).map(whole_seconds), Ok(seconds));
        }
        for wrong in ["0", "999us", "4661h", "5000000h", "10"] {
            assert!(parse_lasts(wrong).is_err(), "{wrong}");
        }
    }
}

//! `spillway relief`: the operator's word, which overrides every policy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use spillway_helper::config::parse_duration;
use spillway_helper::control::{AskError, Request, Said, ask};
use spillway_policy::Word;
use spillway_shim_core::status::{self, ServerPage};

use super::{output, servers};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long clients may take to go where the word sends them.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Say whether a service's clients are to be helped: now, whatever policies think of it.
///
/// Everybody on this machine who knows the service is told: helpers and sidecars by its name in their configuration,
/// servers under `spillway run` by process id, program or port. A helper told `off` takes no more clients and sends
/// library clients away; plain clients that it has are served. A sidecar moves its clients. A server sends sessions to
/// helpers (`on`) or back (`off`); those that come later, too. `auto` takes the word back.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A service, or a server here.
    service: String,

    /// auto, on or off.
    word: Word,

    /// How long the word holds; then it is auto again [default: for ever].
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    lasts: Option<Duration>,

    /// Come back when clients have gone where the word sends them, or no more of them go. Plain clients of helpers, and
    /// sessions that know no other way, stay.
    #[arg(long)]
    wait: bool,

    /// The admin socket of a helper or sidecar; may be given several times [default: all in /run/spillway*].
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let told = match tell(args) {
        Ok(told) => told,
        Err(error) => {
            eprintln!("spillway: relief {}: {error}", args.service);
            return ExitCode::FAILURE;
        }
    };
    let (lines, ended) = output::went_well(told);
    output::print_and_end(lines, ended)
}

/// What each of them did. The error: nobody knows the service.
fn tell(args: &Args) -> Result<Vec<Result<String, String>>, String> {
    let mut told = Vec::new();
    let mut unknown = Vec::new();
    for socket in sockets(args) {
        match tell_helper(args, &socket) {
            Ok(line) => told.push(Ok(line)),
            Err(AskError::Refused(why)) => unknown.push(format!("{}: {why}", socket.display())),
            // A socket that is left over from a helper that was killed.
            Err(error) if error.is_absent() && args.sockets.is_empty() => {}
            Err(error) => told.push(Err(format!("{}: {error}", socket.display()))),
        }
    }
    match servers::named(Some(&args.service)) {
        Ok(pages) => told.extend(pages.iter().map(|page| tell_server(args, page))),
        Err(error) => unknown.push(error),
    }
    if told.is_empty() { Err(unknown.join("; ")) } else { Ok(told) }
}

/// Where helpers and sidecars listen for their operator.
fn sockets(args: &Args) -> Vec<PathBuf> {
    if !args.sockets.is_empty() {
        return args.sockets.clone();
    }
    let own = Path::new(spillway_helper::DEFAULT_SOCKET).parent();
    own.and_then(Path::parent).map(sockets_below).unwrap_or_default()
}

/// The helper's directory, and those of sidecars that systemd has made, have the same parent.
fn sockets_below(parent: &Path) -> Vec<PathBuf> {
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("spillway"));
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "sock");
    let directories = entries(parent).into_iter().filter(is_ours);
    let mut sockets: Vec<PathBuf> =
        directories.flat_map(|directory| entries(&directory)).filter(is_socket).collect();
    sockets.sort();
    sockets
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.map(|file| file.path()).collect()
}

fn tell_helper(args: &Args, socket: &Path) -> Result<String, AskError> {
    let lasts_ms = args.lasts.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    let (service, word) = (args.service.clone(), args.word.to_string());
    let mut said: Said = ask(socket, &Request::Relief { service, word, lasts_ms })?;
    if args.wait && args.word == Word::Off {
        let began = Instant::now();
        while said.clients > 0 && began.elapsed() < WAIT_MAX {
            std::thread::sleep(LOOK);
            said.clients = clients(args, socket)?;
        }
    }
    Ok(format!("{} at {}: relief {}{}", args.service, socket.display(), said.word, to_go(said.clients)))
}

fn clients(args: &Args, socket: &Path) -> Result<u64, AskError> {
    let status: serde_json::Value = ask(socket, &Request::Status {})?;
    let services = status["services"].as_array().into_iter().flatten();
    let service = services.into_iter().find(|service| service["name"] == *args.service);
    Ok(service.and_then(|service| service["library_clients"].as_u64()).unwrap_or(0))
}

fn to_go(clients: u64) -> String {
    if clients == 0 { String::new() } else { format!(", {clients} clients to go elsewhere") }
}

fn tell_server(args: &Args, page: &ServerPage) -> Result<String, String> {
    let lasts_s = args.lasts.map_or(0, |lasts| u32::try_from(lasts.as_secs().max(1)).unwrap_or(u32::MAX));
    let request = status::Request::Say { word: args.word, lasts_s };
    match page.ask(request, PATIENCE) {
        Ok(true) => {}
        Ok(false) => {
            return Err(format!("server {} has not answered yet; it obeys when it next looks", page.pid));
        }
        Err(error) => return Err(format!("{}: {error}", page.path.display())),
    }
    let left = if args.wait { await_sessions(args.word, page)? } else { 0 };
    let left = if left == 0 { String::new() } else { format!(", {left} connections stay") };
    Ok(format!("server {} {}: relief {}{left}", page.pid, page.program(), args.word))
}

/// Connections that are not where they are to be, once they do not become fewer any more.
fn await_sessions(word: Word, page: &ServerPage) -> Result<u64, String> {
    let began = Instant::now();
    let (mut least, mut since) = (u64::MAX, began);
    loop {
        let left = misplaced(word, page).map_err(|error| format!("{}: {error}", page.path.display()))?;
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
fn misplaced(word: Word, page: &ServerPage) -> std::io::Result<u64> {
    let wrong = match word {
        Word::Auto => return Ok(0),
        Word::On => "client",
        Word::Off => "helper",
    };
    let status = page.status()?;
    Ok(status.links.iter().filter(|link| link.state == wrong).map(|link| link.connections).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_helpers_and_sidecars_are_found() {
        let run = directory();
        for file in
            ["spillway/helper.sock", "spillway/note.txt", "spillway-sidecar-a/status.sock", "other/x.sock"]
        {
            std::fs::create_dir_all(run.join(file).parent().unwrap()).unwrap();
            std::fs::write(run.join(file), "").unwrap();
        }
        let found = sockets_below(&run);
        let expected = ["spillway/helper.sock", "spillway-sidecar-a/status.sock"].map(|file| run.join(file));
        std::fs::remove_dir_all(&run).unwrap();
        let mut expected = expected.to_vec();
        expected.sort();
        assert_eq!(found, expected);
        assert!(sockets_below(Path::new("/no/such/place")).is_empty());
    }

    fn directory() -> PathBuf {
        let path = std::env::temp_dir().join(format!("spillway-relief-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }
}

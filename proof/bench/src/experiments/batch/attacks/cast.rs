//! Server, helper, sidecar and honest clients of one attack, and its course.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Host, Launch, Place, Process};
use spillway_load::config::Speech;

use crate::attackers::LARGE_KEY;
use crate::error::Error;
use crate::experiments::common::rounds::{say, spoilt_words};
use crate::generator::{BIN_MS, Order, Traffic};
use crate::goodput::Tally;
use crate::measure::{disturbed, stopped};
use crate::programs::Programs;
use crate::relief::Span;
use crate::scene::Setting;
use crate::served::CLIENTS;
use crate::stage::{HelperKind, Session, Stage, space};
use crate::stop;

use super::newcomers::Newcomers;
use super::{At, Attack, By, CONNECTIONS, Effort, MAX_MEMORY_MIB, RATE_PER_S, Round, Seen, Stderr, WAYS};

/// How long a program may take until it listens.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of the value that slow readers ask for.
const LARGE_BYTES: usize = 1_000_000;
/// A new helper that has its link only after this has got none.
const LINK_WITHIN: Duration = Duration::from_secs(30);
/// Between two things that are logged.
const LOGGED_EACH: Duration = Duration::from_millis(200);
/// How long a command that makes a program log may take; one that hangs is given up.
const COMMAND_WITHIN: Duration = Duration::from_secs(2);
/// How long a helper of one round may wait for its batches.
const MAX_DELAY: Duration = Duration::from_micros(200);
/// Complaints that are kept.
const TROUBLES_MAX: usize = 5;

/// Everybody but the attacker.
pub(super) struct Cast<'a> {
    stage: &'a Stage,
    attackers: &'a Host,
    programs: Programs,
    attack: Attack,
    server: Peer,
    link: SocketAddr,
    helper: Process,
    helper_plain: SocketAddr,
    helper_link: SocketAddr,
    sidecar: Process,
    sidecar_plain: SocketAddr,
    /// Admin sockets of helper and sidecar.
    sockets: [PathBuf; 2],
    server_rss_before: f64,
}

/// What a measurement saw of one way: since when, until when, on that session's clock.
type Window = [(u64, u64); 3];

impl<'a> Cast<'a> {
    /// Starts server, helper and sidecar, and waits until all of them serve.
    pub fn start(
        stage: &'a Stage,
        attackers: &'a Host,
        setting: &Setting,
        attack: Attack,
    ) -> Result<Cast<'a>, Error> {
        let programs = setting.programs.clone();
        let stderr = stderr_wrapper(&programs.lab, attack);
        let place = Place::from(&stage.server);
        let link = SocketAddr::new(stage.server.address(), place.free_port()?);
        let words: Vec<String> = stderr.iter().cloned().chain(stage.wrapper(link)).collect();
        let server = Memcached::default().wrapper(words).start(&place)?;
        stage.fill(Speech::Memcached, server.address(), &space(64, false))?;
        set_large(stage, server.address())?;

        let port = |host: &Host| Place::from(host).free_port();
        let middle = stage.middle.address();
        let helper_plain = SocketAddr::new(middle, port(&stage.middle)?);
        let helper_link = SocketAddr::new(middle, port(&stage.middle)?);
        let sidecar_plain = SocketAddr::from((Ipv4Addr::LOCALHOST, port(&stage.client)?));
        let file = |name: &str| stage.directory().join(format!("{}-{name}", attack.id.to_lowercase()));
        let sockets = [file("helper.sock"), file("sidecar.sock")];
        let config = file("helper.toml");
        fs::write(&config, configuration(stage, link, (helper_plain, helper_link), &sockets[0]))
            .map_err(Error::writing(&config))?;
        let launch = Launch::new(&programs.spillway).name("helper").args(["helper", "--config"]).arg(&config);
        let helper = stage.middle.spawn(&launch.wrapper(&stderr))?;
        let launch = Launch::new(&programs.spillway)
            .name("sidecar")
            .args(["sidecar", "--link", &link.to_string(), "--helpers", &helper_link.to_string()])
            .args(["--name", "sidecar", "--listen", &sidecar_plain.to_string()])
            .args(["--protocol", "memcached", "--require-encryption", "--client-key"])
            .arg(stage.client_key())
            .arg("--status-socket")
            .arg(&sockets[1]);
        let sidecar = stage.client.spawn(&launch.wrapper(&stderr))?;
        let server_rss_before = rss_mib(server.pid(), "VmRSS");
        let mut cast = Cast {
            stage,
            attackers,
            programs,
            attack,
            server,
            link,
            helper,
            helper_plain,
            helper_link,
            sidecar,
            sidecar_plain,
            sockets,
            server_rss_before,
        };
        cast.await_answers()?;
        Ok(cast)
    }

    fn targets(&self) -> [SocketAddr; 3] {
        [self.helper_plain, self.server.address(), self.sidecar_plain]
    }

    fn await_answers(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_WITHIN;
        for (way, target) in WAYS.into_iter().zip(self.targets()) {
            let mut clients = Newcomers::start(&self.stage.client, [target; 3])?.finish()?;
            while clients.tried == 0 || clients.failed > 0 {
                if Instant::now() >= deadline {
                    let output = format!("{}\n{}", self.helper.tail(), self.sidecar.tail());
                    return Err(Error::process(
                        format!("the way {way} does not serve: {:?}", clients.troubles),
                        output,
                    ));
                }
                std::thread::sleep(Duration::from_millis(50));
                let newcomers = Newcomers::start(&self.stage.client, [target; 3])?;
                std::thread::sleep(Duration::from_millis(50));
                clients = newcomers.finish()?;
            }
        }
        Ok(())
    }

    /// All rounds. Whatever the attack breaks is in what was seen, not an error.
    pub fn play(mut self, effort: &Effort, out: &mut dyn Write) -> Seen {
        let mut seen = Seen::new(self.attack);
        if let Err(error) = self.rounds(effort, &mut seen, out) {
            seen.ended = Some(stop::reason(&error));
        }
        seen.helper_rss_mib = seen.helper_rss_mib.max(rss_mib(self.helper.pid(), "VmHWM"));
        seen.server_grown_mib = rss_mib(self.server.pid(), "VmHWM") - self.server_rss_before;
        for (name, process) in [("helper", &mut self.helper), ("sidecar", &mut self.sidecar)] {
            if let Some(status) = process.exit() {
                seen.ended.get_or_insert(format!("the {name} ended with {status}: {}", process.tail()));
            }
        }
        if let Some(status) = self.server.process().exit() {
            seen.ended.get_or_insert(format!("the server ended with {status}"));
        }
        seen
    }

    fn rounds(&mut self, effort: &Effort, seen: &mut Seen, out: &mut dyn Write) -> Result<(), Error> {
        let traffic = Traffic::default();
        let mut sessions = Vec::new();
        for target in self.targets() {
            let mut session = self.stage.session(target, &traffic, CONNECTIONS)?;
            session.generators().order(&Order::Rate(RATE_PER_S))?;
            sessions.push(session);
        }
        let newcomers = Newcomers::start(&self.stage.client, self.targets())?;
        std::thread::sleep(effort.settle);
        let mut windows: Vec<(Window, Window)> = Vec::new();
        let course = (0..effort.rounds + effort.spoilt_max).try_for_each(|round| {
            if seen.rounds.iter().filter(|round| round.spoilt.is_none()).count() == effort.rounds {
                return Ok(());
            }
            let (quiet, first) = self.window(&mut sessions, effort.length)?;
            let attack = Begun::begin(self)?;
            std::thread::sleep(effort.settle);
            let (attacked, second) = self.window(&mut sessions, effort.length)?;
            let spoilt = first.or(second);
            // Measured after the window: a new helper costs CPU of its own.
            let link_ms = self.new_link();
            drop(attack);
            windows.push((quiet, attacked));
            let why = spoilt_words(spoilt.as_deref());
            seen.rounds.push(Round { link_ms, spoilt, ..Round::default() });
            // Its threads may be gone while the process stays: what counts is what clients see.
            seen.helper_rss_mib = seen.helper_rss_mib.max(rss_mib(self.helper.pid(), "VmHWM"));
            let link = link_ms.map_or("none".into(), |ms| format!("after {ms:.0} ms"));
            say(out, format_args!("  round {}: a new helper's link: {link}{why}", round + 1));
            std::thread::sleep(effort.settle);
            Ok(())
        });
        let arrivals = newcomers.finish()?;
        seen.requests += arrivals.tried;
        seen.failed += arrivals.failed;
        seen.troubles.extend(arrivals.troubles);
        for (way, session) in sessions.into_iter().enumerate() {
            self.settle_accounts(way, session, &windows, seen)?;
        }
        course
    }

    /// Counts what one way's clients saw, and takes the p99 of each window.
    fn settle_accounts(
        &self,
        way: usize,
        session: Session<'_>,
        windows: &[(Window, Window)],
        seen: &mut Seen,
    ) -> Result<(), Error> {
        let report = session.report()?;
        let all = Span::of(&report.bins, 0, u64::MAX);
        let mut tally = Tally::default();
        tally.add_report(&report);
        seen.requests += all.offered;
        // Whatever became of those without a right reply: wrong, lost, never sent. A connection that broke is a failure even
        // when nothing was under way on it.
        seen.failed += (all.offered - all.served.min(all.offered)).max(tally.resets);
        let told = tally.troubles.iter().map(|trouble| format!("{}: {trouble}", WAYS[way]));
        seen.troubles.extend(told);
        seen.troubles.truncate(TROUBLES_MAX);
        let p99_us = |(from_ms, to_ms)| Span::of(&report.bins, from_ms, to_ms).p99_us().map(|us| us as f64);
        for (round, (quiet, attacked)) in seen.rounds.iter_mut().zip(windows) {
            round.quiet_us[way] = p99_us(quiet[way]);
            round.attacked_us[way] = p99_us(attacked[way]);
        }
        Ok(())
    }

    /// The same time on all ways, on each one's clock; and why it shows nothing, if so.
    fn window(
        &self,
        sessions: &mut [Session<'_>],
        length: Duration,
    ) -> Result<(Window, Option<String>), Error> {
        let look = || Ok::<_, Error>((self.stage.snapshot(None)?, self.attackers.cpu()?.total()));
        let (before, attackers_before) = look()?;
        let window = window(sessions, length)?;
        let (after, attackers) = look()?;
        let mut used = after.since(&before);
        // No neighbours of ours.
        used.others_s -= attackers.saturating_sub(attackers_before).as_secs_f64();
        Ok((window, disturbed(&used).or_else(|| stopped(&used))))
    }

    /// Starts another helper, and says how long it took to get its link, in ms; `None` if it got none.
    fn new_link(&self) -> Option<f64> {
        let begun = Instant::now();
        let kind = HelperKind { library: false, batch: "adaptive", max_delay: MAX_DELAY };
        let port = Place::from(&self.stage.middle).free_port().ok()?;
        let mut helper = self.stage.helper_on((&self.stage.middle, port), self.link, &kind).ok()?;
        let took = begun.elapsed();
        helper.stop();
        (took < LINK_WITHIN).then_some(took.as_secs_f64() * 1000.0)
    }

    /// Has helper, sidecar and server log something.
    fn log_something(&self, count: usize) {
        let word = if count.is_multiple_of(2) { "on" } else { "auto" };
        for (host, socket, service) in [
            (&self.stage.middle, &self.sockets[0], "server"),
            (&self.stage.client, &self.sockets[1], "sidecar"),
        ] {
            let launch = Launch::new(&self.programs.spillway)
                .name("relief")
                .args(["relief", service, word, "--socket"])
                .arg(socket);
            if let Ok(mut command) = host.spawn(&launch) {
                let deadline = Instant::now() + COMMAND_WITHIN;
                while command.exit().is_none() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

/// An attack that goes on until this is dropped.
enum Begun {
    Attacker {
        _process: Process,
    },
    /// Lines were logged; programs stand as they do, with a standard error that takes nothing.
    Logged,
}

impl Begun {
    fn begin(cast: &Cast<'_>) -> Result<Begun, Error> {
        let (name, count, at) = match cast.attack.by {
            By::Attacker { name, count, at } => (name, count, at),
            By::Logs(_) => {
                for count in 0..2 {
                    cast.log_something(count);
                    std::thread::sleep(LOGGED_EACH);
                }
                // The server logs that a helper has come.
                let _ = cast.new_link();
                return Ok(Begun::Logged);
            }
        };
        let targets = match at {
            At::LinkPorts => vec![cast.link, cast.helper_link],
            At::HelperLink => vec![cast.helper_link],
            At::ServerLink => vec![cast.link],
            At::HelperPlain => vec![cast.helper_plain],
        };
        let mut launch = Launch::new(&cast.programs.lab).name("attacker").args(["attack", name]);
        for target in targets {
            launch = launch.args(["--target", &target.to_string()]);
        }
        launch = launch.args(["--count", &count.to_string(), "--key"]).arg(cast.stage.client_key());
        Ok(Begun::Attacker { _process: cast.attackers.spawn(&launch)? })
    }
}

/// What goes before a program whose standard error takes nothing.
fn stderr_wrapper(program: &Path, attack: Attack) -> Vec<String> {
    let name = match attack.by {
        By::Logs(Stderr::Broken) => "broken-stderr",
        By::Logs(Stderr::Full) => "full-stderr",
        By::Attacker { .. } => return Vec::new(),
    };
    [&program.display().to_string(), "attack", name, "--"].map(str::to_owned).into()
}

fn configuration(
    stage: &Stage,
    link: SocketAddr,
    (plain, library): (SocketAddr, SocketAddr),
    socket: &Path,
) -> String {
    format!(
        "[helper]\nname = \"attacked\"\nthreads = 1\nsocket = {socket:?}\nmax_memory = \"{MAX_MEMORY_MIB}MiB\"\n\n\
         [service.server]\nserver = \"{link}\"\nlisten = [\"{plain}\"]\nlink_listen = [\"{library}\"]\n\
         key_files = [{:?}]\nclient_key_files = [{:?}]\nclients = [\"{CLIENTS}\"]\n",
        stage.key(),
        stage.client_key()
    )
}

/// Sets the value that slow readers ask for.
fn set_large(stage: &Stage, server: SocketAddr) -> Result<(), Error> {
    let set = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(READY_WITHIN))?;
        write!(stream, "set {LARGE_KEY} 0 0 {LARGE_BYTES}\r\n")?;
        stream.write_all(&vec![b'x'; LARGE_BYTES])?;
        stream.write_all(b"\r\n")?;
        let mut reply = [0; 8];
        std::io::Read::read_exact(&mut stream, &mut reply)?;
        if reply == *b"STORED\r\n" { Ok(()) } else { Err(std::io::Error::other("it was not stored")) }
    };
    stage.client.enter(set)?.map_err(|cause| Error::System { what: "cannot set a large value".into(), cause })
}

/// A span of time, on the clock of each way.
fn window(sessions: &mut [Session<'_>], length: Duration) -> Result<Window, Error> {
    let grid = |ms: u64| ms.div_ceil(BIN_MS) * BIN_MS;
    let mut window = Window::default();
    for (session, (from_ms, to_ms)) in sessions.iter_mut().zip(&mut window) {
        *from_ms = grid(session.generators().now_ms());
        *to_ms = *from_ms + grid(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    }
    for (session, (_, to_ms)) in sessions.iter_mut().zip(&window) {
        session.generators().sleep_until_ms(*to_ms);
        session.generators().check()?;
    }
    stop::check()?;
    Ok(window)
}

/// Memory of a process in MiB, by the name of a line in its status; 0 when it has ended.
fn rss_mib(pid: u32, line: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = line.and_then(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_a_status() {
        let (now, most) = (rss_mib(std::process::id(), "VmRSS"), rss_mib(std::process::id(), "VmHWM"));
        assert!(now > 1.0 && most >= now * 0.9, "{now} {most}");
        assert_eq!(rss_mib(u32::MAX, "VmRSS"), 0.0);
    }
}

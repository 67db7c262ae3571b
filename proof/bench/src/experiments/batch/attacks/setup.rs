//! Starts server, helper, sidecar and honest clients of one attack, and runs its rounds.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use spillway_lab::peers::{Memcached, Peer};
use spillway_lab::{Host, Launch, Place, Process};
use spillway_load::config::ProtocolKind;

use crate::attackers::LARGE_KEY;
use crate::error::Error;
use crate::experiments::common::rounds::{print_line, spoilt_suffix};
use crate::generator::{BIN_MS, Order, Traffic};
use crate::goodput::Tally;
use crate::measure::{disturbed, stopped};
use crate::programs::Programs;
use crate::relief::Span;
use crate::scene::Setting;
use crate::served::CLIENTS;
use crate::stage::{HelperKind, Session, Stage, space};
use crate::stop;

use super::new_connections::NewConnections;
use super::{
    Attack, AttackResult, CONNECTIONS, Effort, MAX_MEMORY_MIB, Method, PATHS, RATE_PER_S, Round, Stderr,
    Target,
};

const READY_TIMEOUT: Duration = Duration::from_secs(30);
const LARGE_BYTES: usize = 1_000_000;
/// A new helper without a link after this time counts as not linked.
const LINK_TIMEOUT: Duration = Duration::from_secs(30);
const LOG_PAUSE: Duration = Duration::from_millis(200);
/// Timeout of a command that makes a program log a line.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// Batch delay of the helper that each round starts.
const MAX_DELAY: Duration = Duration::from_micros(200);
const PROBLEMS_MAX: usize = 5;

pub(super) struct Setup<'a> {
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
    sockets: [PathBuf; 2],
    server_rss_before: f64,
}

/// Start and end of a measurement on each path, in ms on the clock of that path's session.
type Window = [(u64, u64); 3];

impl<'a> Setup<'a> {
    /// Starts server, helper and sidecar, and waits until requests are answered on all three paths.
    pub fn start(
        stage: &'a Stage,
        attackers: &'a Host,
        setting: &Setting,
        attack: Attack,
    ) -> Result<Setup<'a>, Error> {
        let programs = setting.programs.clone();
        let stderr = stderr_wrapper(&programs.lab, attack);
        let place = Place::from(&stage.server);
        let link = SocketAddr::new(stage.server.address(), place.free_port()?);
        let wrapper: Vec<String> = stderr.iter().cloned().chain(stage.wrapper(link)).collect();
        let server = Memcached::default().wrapper(wrapper).start(&place)?;
        stage.fill(ProtocolKind::Memcached, server.address(), &space(64, false))?;
        set_large(stage, server.address())?;

        let port = |host: &Host| Place::from(host).free_port();
        let middle = stage.middle_host.address();
        let helper_plain = SocketAddr::new(middle, port(&stage.middle_host)?);
        let helper_link = SocketAddr::new(middle, port(&stage.middle_host)?);
        let sidecar_plain = SocketAddr::from((Ipv4Addr::LOCALHOST, port(&stage.client)?));
        let file = |name: &str| stage.directory().join(format!("{}-{name}", attack.id.to_lowercase()));
        let sockets = [file("helper.sock"), file("sidecar.sock")];
        let config = file("helper.toml");
        fs::write(&config, configuration(stage, link, (helper_plain, helper_link), &sockets[0]))
            .map_err(Error::writing(&config))?;
        let launch = Launch::new(&programs.spillway).name("helper").args(["helper", "--config"]).arg(&config);
        let helper = stage.middle_host.spawn(&launch.wrapper(&stderr))?;
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
        let mut setup = Setup {
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
        setup.wait_for_replies()?;
        Ok(setup)
    }

    fn targets(&self) -> [SocketAddr; 3] {
        [self.helper_plain, self.server.address(), self.sidecar_plain]
    }

    fn wait_for_replies(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + READY_TIMEOUT;
        for (path, target) in PATHS.into_iter().zip(self.targets()) {
            let mut clients = NewConnections::start(&self.stage.client, [target; 3])?.finish()?;
            while clients.total == 0 || clients.failed > 0 {
                if Instant::now() >= deadline {
                    let output = format!("{}\n{}", self.helper.last_output(), self.sidecar.last_output());
                    return Err(Error::process(
                        format!("the path {path} does not answer requests: {:?}", clients.problems),
                        output,
                    ));
                }
                std::thread::sleep(Duration::from_millis(50));
                let new_connections = NewConnections::start(&self.stage.client, [target; 3])?;
                std::thread::sleep(Duration::from_millis(50));
                clients = new_connections.finish()?;
            }
        }
        Ok(())
    }

    /// Runs all rounds. A failure ends the attack and is recorded in [`AttackResult::ended`].
    pub fn run(mut self, effort: &Effort, out: &mut dyn Write) -> AttackResult {
        let mut result = AttackResult::new(self.attack);
        if let Err(error) = self.measure_rounds(effort, &mut result, out) {
            result.ended = Some(stop::reason(&error));
        }
        result.helper_rss_mib = result.helper_rss_mib.max(rss_mib(self.helper.pid(), "VmHWM"));
        result.server_grown_mib = rss_mib(self.server.pid(), "VmHWM") - self.server_rss_before;
        for (name, process) in [("helper", &mut self.helper), ("sidecar", &mut self.sidecar)] {
            if let Some(status) = process.exit_status() {
                result
                    .ended
                    .get_or_insert(format!("the {name} ended with {status}: {}", process.last_output()));
            }
        }
        if let Some(status) = self.server.process().exit_status() {
            result.ended.get_or_insert(format!("the server ended with {status}"));
        }
        result
    }

    fn measure_rounds(
        &mut self,
        effort: &Effort,
        result: &mut AttackResult,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let traffic = Traffic::default();
        let mut sessions = Vec::new();
        for target in self.targets() {
            let mut session = self.stage.session(target, &traffic, CONNECTIONS)?;
            session.generators().order(&Order::Rate(RATE_PER_S))?;
            sessions.push(session);
        }
        let new_connections = NewConnections::start(&self.stage.client, self.targets())?;
        std::thread::sleep(effort.settle);
        let mut windows: Vec<(Window, Window)> = Vec::new();
        let outcome = (0..effort.rounds + effort.spoilt_max).try_for_each(|round| {
            if result.rounds.iter().filter(|round| round.spoilt.is_none()).count() == effort.rounds {
                return Ok(());
            }
            let (quiet, quiet_spoilt) = self.measure_window(&mut sessions, effort.length)?;
            let attack = RunningAttack::start(self)?;
            std::thread::sleep(effort.settle);
            let (attacked, attacked_spoilt) = self.measure_window(&mut sessions, effort.length)?;
            let spoilt = quiet_spoilt.or(attacked_spoilt);
            // After the window: starting a helper uses CPU time, which would delay the measured requests.
            let link_ms = self.measure_new_link();
            drop(attack);
            windows.push((quiet, attacked));
            let suffix = spoilt_suffix(spoilt.as_deref());
            result.rounds.push(Round { link_ms, spoilt, ..Round::default() });
            // Do not check whether the helper runs: its threads may end while the process stays, so only the
            // clients' results count. Its peak memory is read in each round, because it is lost at its end.
            result.helper_rss_mib = result.helper_rss_mib.max(rss_mib(self.helper.pid(), "VmHWM"));
            let link = link_ms.map_or("none".into(), |ms| format!("after {ms:.0} ms"));
            print_line(out, format_args!("  round {}: a new helper's link: {link}{suffix}", round + 1));
            std::thread::sleep(effort.settle);
            Ok(())
        });
        let attempts = new_connections.finish()?;
        result.requests += attempts.total;
        result.failed += attempts.failed;
        result.problems.extend(attempts.problems);
        for (path, session) in sessions.into_iter().enumerate() {
            self.add_report(path, session, &windows, result)?;
        }
        outcome
    }

    /// Adds one path's requests and failures, and the p99 of each window.
    fn add_report(
        &self,
        path: usize,
        session: Session<'_>,
        windows: &[(Window, Window)],
        result: &mut AttackResult,
    ) -> Result<(), Error> {
        let report = session.report()?;
        let span = Span::of(&report.bins, 0, u64::MAX);
        let mut tally = Tally::default();
        tally.add_report(&report);
        result.requests += span.offered;
        // Requests without a correct reply: wrong, lost, or never sent. A broken connection is a failure even without a
        // pending request.
        result.failed += (span.offered - span.served.min(span.offered)).max(tally.resets);
        result.problems.extend(tally.problems.iter().map(|problem| format!("{}: {problem}", PATHS[path])));
        result.problems.truncate(PROBLEMS_MAX);
        let p99_us = |(from_ms, to_ms)| Span::of(&report.bins, from_ms, to_ms).p99_us().map(|us| us as f64);
        for (round, (quiet, attacked)) in result.rounds.iter_mut().zip(windows) {
            round.quiet_us[path] = p99_us(quiet[path]);
            round.attacked_us[path] = p99_us(attacked[path]);
        }
        Ok(())
    }

    /// Measures all paths at the same time. Returns the window, and why it is spoilt.
    fn measure_window(
        &self,
        sessions: &mut [Session<'_>],
        length: Duration,
    ) -> Result<(Window, Option<String>), Error> {
        let cpu_times = || Ok::<_, Error>((self.stage.snapshot(None)?, self.attackers.cpu()?.total()));
        let (before, attackers_before) = cpu_times()?;
        let window = wait_for_window(sessions, length)?;
        let (after, attackers_after) = cpu_times()?;
        let mut used = after.since(&before);
        // The snapshot counts the attackers as other processes, but they are part of the experiment.
        used.others_s -= attackers_after.saturating_sub(attackers_before).as_secs_f64();
        Ok((window, disturbed(&used).or_else(|| stopped(&used))))
    }

    /// Starts another helper and returns the time until it had its link, in ms; `None` if that took too long.
    fn measure_new_link(&self) -> Option<f64> {
        let started_at = Instant::now();
        let kind = HelperKind { library: false, batch: "adaptive", max_delay: MAX_DELAY };
        let port = Place::from(&self.stage.middle_host).free_port().ok()?;
        let mut helper = self.stage.helper_on((&self.stage.middle_host, port), self.link, &kind).ok()?;
        let elapsed = started_at.elapsed();
        helper.stop();
        (elapsed < LINK_TIMEOUT).then_some(elapsed.as_secs_f64() * 1000.0)
    }

    /// Makes helper and sidecar log a line each, by a change of the override.
    fn log_lines(&self, count: usize) {
        let new_override = if count.is_multiple_of(2) { "on" } else { "auto" };
        for (host, socket, service) in [
            (&self.stage.middle_host, &self.sockets[0], "server"),
            (&self.stage.client, &self.sockets[1], "sidecar"),
        ] {
            let launch = Launch::new(&self.programs.spillway)
                .name("relief")
                .args(["relief", service, new_override, "--socket"])
                .arg(socket);
            if let Ok(mut command) = host.spawn(&launch) {
                let deadline = Instant::now() + COMMAND_TIMEOUT;
                while command.exit_status().is_none() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
    }
}

/// An attack in progress. Dropping it kills the attacker.
enum RunningAttack {
    Attacker {
        _process: Process,
    },
    /// The programs have logged lines to their faulty standard error.
    Logged,
}

impl RunningAttack {
    fn start(setup: &Setup<'_>) -> Result<RunningAttack, Error> {
        let (name, count, target) = match setup.attack.method {
            Method::Attacker { name, count, target } => (name, count, target),
            Method::Logs(_) => {
                for count in 0..2 {
                    setup.log_lines(count);
                    std::thread::sleep(LOG_PAUSE);
                }
                // The server logs a line when a helper opens a link.
                let _ = setup.measure_new_link();
                return Ok(RunningAttack::Logged);
            }
        };
        let targets = match target {
            Target::LinkPorts => vec![setup.link, setup.helper_link],
            Target::HelperLink => vec![setup.helper_link],
            Target::ServerLink => vec![setup.link],
            Target::HelperPlain => vec![setup.helper_plain],
        };
        let mut launch = Launch::new(&setup.programs.lab).name("attacker").args(["attack", name]);
        for target in targets {
            launch = launch.args(["--target", &target.to_string()]);
        }
        launch = launch.args(["--count", &count.to_string(), "--key"]).arg(setup.stage.client_key());
        Ok(RunningAttack::Attacker { _process: setup.attackers.spawn(&launch)? })
    }
}

/// Arguments that start a program with a faulty standard error; empty for attacks by programs.
fn stderr_wrapper(program: &Path, attack: Attack) -> Vec<String> {
    let name = match attack.method {
        Method::Logs(Stderr::Broken) => "broken-stderr",
        Method::Logs(Stderr::Full) => "full-stderr",
        Method::Attacker { .. } => return Vec::new(),
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

fn set_large(stage: &Stage, server: SocketAddr) -> Result<(), Error> {
    let set = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(READY_TIMEOUT))?;
        write!(stream, "set {LARGE_KEY} 0 0 {LARGE_BYTES}\r\n")?;
        stream.write_all(&vec![b'x'; LARGE_BYTES])?;
        stream.write_all(b"\r\n")?;
        let mut reply = [0; 8];
        std::io::Read::read_exact(&mut stream, &mut reply)?;
        if reply == *b"STORED\r\n" { Ok(()) } else { Err(std::io::Error::other("the reply is not STORED")) }
    };
    stage
        .client
        .run_inside(set)?
        .map_err(|cause| Error::System { what: "cannot set a large value".into(), cause })
}

/// Waits for `length`, rounded to whole bins on each session's clock, and returns the window.
fn wait_for_window(sessions: &mut [Session<'_>], length: Duration) -> Result<Window, Error> {
    let round_up_to_bin = |ms: u64| ms.div_ceil(BIN_MS) * BIN_MS;
    let mut window = Window::default();
    for (session, (from_ms, to_ms)) in sessions.iter_mut().zip(&mut window) {
        *from_ms = round_up_to_bin(session.generators().now_ms());
        *to_ms = *from_ms + round_up_to_bin(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    }
    for (session, (_, to_ms)) in sessions.iter_mut().zip(&window) {
        session.generators().sleep_until_ms(*to_ms);
        session.generators().check()?;
    }
    stop::check()?;
    Ok(window)
}

/// Memory of a process in MiB, from a line of `/proc/PID/status` such as `VmRSS`; 0 if the process has ended.
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
    fn memory_is_read_from_proc_status() {
        let (now, peak) = (rss_mib(std::process::id(), "VmRSS"), rss_mib(std::process::id(), "VmHWM"));
        assert!(now > 1.0 && peak >= now * 0.9, "{now} MiB now, {peak} MiB at the peak");
        assert_eq!(rss_mib(u32::MAX, "VmRSS"), 0.0);
    }
}

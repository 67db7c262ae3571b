//! Runs the clients of an experiment: one load generator process on each client host. [`Generators`] sends
//! the same orders to all generators and merges their results.

mod engine;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, Launch, Output, Process};
use spillway_load::config::ProtocolKind;
use spillway_load::monotonic_ns;
use spillway_load::report::{Bin, Bins, Event, Move, Report};

use crate::error::Error;
use crate::programs::Programs;
use crate::stop;

pub use self::engine::Engine;

/// Width of the generators' bins, in ms. Relief times have the same resolution.
pub const BIN_MS: u64 = crate::relief::GRID_MS;
/// Time from the end of a bin until its counts are read. All SLAs of the experiments are shorter, so a
/// request that has no reply by then has missed its SLA.
pub const BIN_REPORT_DELAY: Duration = Duration::from_millis(250);
/// Timeout for a generator to connect and set the keys, and for a move of all connections.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the start command to time zero; every generator must have read the command by then.
const START_DELAY_NS: u64 = 100_000_000;
/// Longest wait for outstanding replies after the last request.
const DRAIN: Duration = Duration::from_secs(10);
/// Timeout for the final report, from the end of [`DRAIN`].
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time until [`Generators::sleep_until_ms`] notices a signal.
const SLEEP_SLICE: Duration = Duration::from_millis(500);
/// Limit of the problems kept for [`Generators::problems`]; later problems are dropped.
const PROBLEMS_MAX: usize = 16;

/// The link ports that the clients' sessions may use, and how the sessions choose among them.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Link ports of helpers.
    pub helpers: Vec<SocketAddr>,
    /// True: all sessions start on the first helper, and the other helpers are standbys. False: sessions are
    /// spread over all helpers.
    pub standby: bool,
    /// The server's own link port. Sessions use it after all helpers have failed, always if `helpers` is empty, and
    /// at first if `sessions_per_process` is set.
    pub link: Option<SocketAddr>,
    /// Number of sessions in each simulated client process. If set, sessions start at the server, and a
    /// policy in each process moves its sessions to helpers and back.
    pub sessions_per_process: Option<u32>,
    /// File with the clients' key.
    pub key: PathBuf,
}

/// Configuration of all clients.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The server's ordinary port.
    pub server: SocketAddr,
    /// Link ports of the helpers over which [`Order::ToHelper`] spreads plain connections, and the file with
    /// the clients' key.
    pub helpers: Option<(Vec<SocketAddr>, PathBuf)>,
    /// If set, connections are sessions with these routes.
    pub sessions: Option<Routes>,
    /// Number of helpers that a session asks for their load when it chooses a helper; `None` for the generator's
    /// default.
    pub helpers_asked: Option<usize>,
    /// Threads of each generator.
    pub threads: u32,
    /// Connections over all hosts.
    pub connections: u32,
    /// Number of keys in the server.
    pub keys: u32,
    /// Whether the first generator sets all keys before the run. False if the server already has the keys.
    pub fill: bool,
    /// Seed of keys, values and the times at which requests are due.
    pub seed: u64,
    /// Initial rate in requests a second, over all hosts.
    pub rate_per_s: f64,
    /// Time from time zero to the last request; `None`: clients send until [`Generators::finish`].
    pub duration: Option<Duration>,
    /// Orders, each with its time since time zero; rates are over all hosts.
    pub schedule: Vec<(Duration, Order)>,
    /// Replies that take longer than this count as late.
    pub sla: Duration,
    /// Time between the starts of two connections' moves, over all hosts.
    pub pace: Duration,
}

/// The requests that clients send, and the engine that sends them.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The clients' protocol.
    pub protocol: ProtocolKind,
    /// Length of a value, in bytes. Keys have 32 bytes.
    pub value_size: usize,
    /// Share of gets, 0 to 1; all other requests are sets.
    pub get_ratio: f64,
    /// Closed loop: each connection sends its next request when it has received a reply, and the rate is
    /// ignored.
    pub closed: bool,
    /// Open loop with equal intervals between requests; false: exponentially distributed intervals.
    pub constant: bool,
    /// Width of the generators' bins, in ms; must divide 1,000.
    pub bin_ms: u64,
    /// The transport of the connections.
    pub engine: Engine,
}

impl Default for Traffic {
    /// The paper's traffic: GETs of 64 B values from memcached, in an open loop.
    fn default() -> Traffic {
        Traffic {
            protocol: ProtocolKind::Memcached,
            value_size: 64,
            get_ratio: 1.0,
            closed: false,
            constant: false,
            bin_ms: BIN_MS,
            engine: Engine::Sockets,
        }
    }
}

/// An order to all clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// The new rate in requests a second, over all hosts.
    Rate(f64),
    /// Move every connection to the helper.
    ToHelper,
    /// Move every connection back to the server.
    ToServer,
    /// Sets the override of all sessions' relief policies to `on` (see [`Routes::sessions_per_process`]).
    Help,
    /// Mark this moment in the report.
    Mark(&'static str),
}

impl Order {
    /// The command for each of `count` generators, split into its arguments.
    fn arguments(&self, count: usize, pace: Duration) -> Vec<String> {
        let owned = |arguments: &[&str]| arguments.iter().map(|&argument| argument.to_owned()).collect();
        // All generators move their connections at the same time, so each generator takes `count` times as
        // long between two of its connections.
        let pace = format!("pace={}ns", pace.as_nanos().saturating_mul(count as u128));
        match self {
            Order::Rate(rate) => owned(&["rate", &format!("{:.3}", rate / count as f64)]),
            Order::ToHelper => owned(&["move", "helper", &pace]),
            Order::ToServer => owned(&["move", "direct", &pace]),
            Order::Help => owned(&["relief", "on"]),
            Order::Mark(name) => owned(&["mark", name]),
        }
    }
}

/// Running generators. `drop` kills the processes.
#[derive(Debug)]
pub struct Generators {
    generators: Vec<Generator>,
    shared: Arc<Shared>,
    /// Time zero on the monotonic clock; 0 before [`Generators::begin`].
    zero_ns: u64,
    pace: Duration,
    /// Hosts whose interface threads the kernel replaces when the generators end ([`Engine::Xdp`]).
    changed_hosts: Vec<Host>,
}

#[derive(Debug)]
struct Generator {
    process: Process,
    orders: Option<ChildStdin>,
    reader_thread: Option<JoinHandle<()>>,
}

/// What the generators have reported, shared by the threads that read their output and [`Generators`].
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified after each change of `state`.
    changed: Condvar,
}

/// Events of all generators, merged.
#[derive(Debug, Default)]
struct State {
    /// Number of generators whose connections are established.
    ready: usize,
    /// Number of generators that have closed their output.
    ended: usize,
    bins: Bins,
    /// Number of requests due so far.
    offered: u64,
    /// Number of requests that are answered, lost, dropped, or given up unsent.
    settled: u64,
    answered: u64,
    /// Connections on a helper, by generator.
    helped_now: Vec<u32>,
    /// Moves, each with the number of generators that have finished it.
    moves: Vec<(Move, usize)>,
    reports: Vec<Report>,
    problems: Vec<String>,
}

impl Generators {
    /// Starts a generator on each host and waits until all are connected. Generators send no requests before
    /// [`Generators::begin`].
    pub fn start(programs: &Programs, hosts: &[Host], clients: &Clients) -> Result<Generators, Error> {
        Generators::start_with(programs, hosts, clients, &Traffic::default())
    }

    /// [`Generators::start`] with requests other than [`Traffic::default`].
    pub fn start_with(
        programs: &Programs,
        hosts: &[Host],
        clients: &Clients,
        traffic: &Traffic,
    ) -> Result<Generators, Error> {
        let shared = Arc::new(Shared::default());
        shared.state().helped_now = vec![0; hosts.len()];
        let mut started = Generators {
            generators: Vec::new(),
            shared,
            zero_ns: 0,
            pace: clients.pace,
            changed_hosts: Vec::new(),
        };
        for (index, host) in hosts.iter().enumerate() {
            let mut process = host.spawn(&launch(programs, clients, traffic, host, index, hosts.len()))?;
            let shared = Arc::clone(&started.shared);
            let reader_thread = process.take_stdout().map(|out| {
                std::thread::Builder::new()
                    .name("clients".into())
                    .spawn(move || read_events(out, index, &shared))
            });
            let reader_thread = reader_thread
                .transpose()
                .map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
            let orders = process.take_stdin();
            started.generators.push(Generator { process, orders, reader_thread });
            // Wait for each generator before the next starts: the first sets the keys that the others read.
            started.wait("connect", READY_TIMEOUT, |state| state.ready > index)?;
            if traffic.engine.replaces_interface_threads() {
                host.pin_and_account_interface()?;
                started.changed_hosts.push(host.clone());
            }
        }
        Ok(started)
    }

    /// Starts the requests: sets time zero to [`START_DELAY_NS`] from now.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.zero_ns = monotonic_ns() + START_DELAY_NS;
        self.send(&format!("start {}", self.zero_ns))
    }

    /// Time zero on the monotonic clock, in ns.
    pub fn zero_ns(&self) -> u64 {
        self.zero_ns
    }

    /// Milliseconds since time zero; 0 before time zero.
    pub fn now_ms(&self) -> u64 {
        self.ms_at(monotonic_ns())
    }

    /// Milliseconds from time zero to `monotonic_ns` on the monotonic clock; 0 before time zero.
    pub fn ms_at(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.zero_ns) / 1_000_000
    }

    /// Sleeps until `at_ms` after time zero, or until a signal stops the experiment.
    pub fn sleep_until_ms(&self, at_ms: u64) {
        // In slices, so that a signal interrupts a long sleep.
        while stop::check().is_ok() {
            let left_ns = (self.zero_ns + at_ms * 1_000_000).saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left_ns).min(SLEEP_SLICE));
        }
    }

    /// Sends an order to all generators.
    pub fn order(&mut self, order: &Order) -> Result<(), Error> {
        let command = order.arguments(self.generators.len(), self.pace).join(" ");
        self.send(&command)
    }

    /// Moves every connection to the helper. Returns when each connection has received a reply there or has
    /// failed to move.
    pub fn move_to_helper(&mut self) -> Result<Move, Error> {
        let (before, count) = (self.shared.state().moves.len(), self.generators.len());
        self.order(&Order::ToHelper)?;
        let is_finished =
            |state: &State| state.moves.get(before).is_some_and(|(_, finished)| *finished == count);
        self.wait("move to the helper", READY_TIMEOUT, is_finished)?;
        let state = self.shared.state();
        let (moved, _) =
            state.moves.get(before).ok_or_else(|| Error::process("the clients reported no move", ""))?;
        Ok(moved.clone())
    }

    /// Sets the rate to 0, and waits at most `timeout` until all requests are answered, lost or dropped. A
    /// timeout is not an error: the caller counts the remaining requests as unanswered.
    pub fn quiesce(&mut self, timeout: Duration) -> Result<(), Error> {
        self.order(&Order::Rate(0.0))?;
        // Requests that were due before the order are reported when their bin ends.
        std::thread::sleep(Duration::from_millis(2 * BIN_MS + 50));
        let settled = self.wait("settle", timeout, |state| state.settled >= state.offered);
        match settled {
            Err(_) if self.shared.state().ended == 0 => Ok(()),
            other => other,
        }
    }

    /// The bins that start within `from_ms..to_ms`, as reported so far.
    pub fn bins(&self, from_ms: u64, to_ms: u64) -> Vec<Bin> {
        let state = self.shared.state();
        state.bins.iter().filter(|bin| (from_ms..to_ms).contains(&bin.at_ms)).cloned().collect()
    }

    /// Number of replies received so far; updated every 100 ms.
    pub fn answered(&self) -> u64 {
        self.shared.state().answered
    }

    /// Connections that are on a helper now.
    pub fn helped_now(&self) -> u32 {
        self.shared.state().helped_now.iter().sum()
    }

    /// The problems reported so far, at most the first [`PROBLEMS_MAX`].
    pub fn problems(&self) -> Vec<String> {
        self.shared.state().problems.clone()
    }

    /// Moves that all generators have finished, in order.
    pub fn moves(&self) -> Vec<Move> {
        let count = self.generators.len();
        let state = self.shared.state();
        state
            .moves
            .iter()
            .filter(|(_, finished)| *finished == count)
            .map(|(moved, _)| moved.clone())
            .collect()
    }

    /// Fails if a generator has ended before [`Generators::finish`].
    pub fn check(&self) -> Result<(), Error> {
        if self.shared.state().ended > 0 { Err(self.failure("ended early")) } else { Ok(()) }
    }

    /// Stops sending requests, waits for outstanding replies, and returns the merged report of all generators.
    pub fn finish(mut self) -> Result<Report, Error> {
        // Fails if a generator has already ended, which is no error here.
        let _ = self.send("stop");
        let count = self.generators.len();
        self.wait("end", DRAIN + REPORT_TIMEOUT, |state| state.ended == count)?;
        let state = std::mem::take(&mut *self.shared.state());
        if state.reports.len() != count {
            return Err(self.failure("ended without a report"));
        }
        let mut merged: Option<Report> = None;
        for report in &state.reports {
            match &mut merged {
                Some(merged) => merged.merge(report),
                None => merged = Some(report.clone()),
            }
        }
        let mut merged = merged.unwrap_or_default();
        merged.bins = state.bins.into_vec();
        merged.summarize();
        Ok(merged)
    }

    fn send(&mut self, command: &str) -> Result<(), Error> {
        let line = format!("{command}\n");
        let mut is_complete = true;
        // Write to all generators even if one of them has ended.
        for generator in &mut self.generators {
            let written = generator.orders.as_mut().map(|orders| orders.write_all(line.as_bytes()));
            is_complete &= matches!(written, Some(Ok(())));
        }
        if is_complete { Ok(()) } else { Err(self.failure("does not accept commands")) }
    }

    fn wait(&self, what: &str, timeout: Duration, is_done: impl Fn(&State) -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state();
        while !is_done(&state) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                drop(state);
                return Err(self.failure(&format!("took longer than {timeout:?} to {what}")));
            };
            if state.ended > 0 && what != "end" {
                drop(state);
                return Err(self.failure(&format!("ended instead of going on to {what}")));
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn failure(&self, what: &str) -> Error {
        let outputs = self.generators.iter().map(|generator| generator.process.last_output());
        let printed: Vec<String> = outputs.filter(|text| !text.trim().is_empty()).collect();
        Error::process(format!("a load generator {what}"), printed.join("\n"))
    }
}

impl Drop for Generators {
    fn drop(&mut self) {
        for generator in &mut self.generators {
            generator.process.kill();
            if let Some(reader_thread) = generator.reader_thread.take() {
                // The thread ends when the pipe closes. A panic of the thread is ignored.
                let _ = reader_thread.join();
            }
        }
        for host in &self.changed_hosts {
            if let Err(error) = host.pin_and_account_interface() {
                eprintln!(
                    "host {}: CPU accounts omit its interface's work from now on: {error}",
                    host.name()
                );
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn launch(
    programs: &Programs,
    clients: &Clients,
    traffic: &Traffic,
    host: &Host,
    index: usize,
    count: usize,
) -> Launch {
    let share =
        clients.connections / count as u32 + u32::from((index as u32) < clients.connections % count as u32);
    let us_text = |d: Duration| format!("{}us", d.as_micros());
    let mut launch = Launch::new(traffic.engine.program(programs))
        .name("load")
        .args(["load", "--events", "--control", "stdin", "--hold", "--zipf", "0", "--key-size", "32"])
        .args(["--protocol", &traffic.protocol.to_string(), "--value-size", &traffic.value_size.to_string()])
        .args(["--get-ratio", &traffic.get_ratio.to_string()])
        .args(["--server", &clients.server.to_string()])
        .args(["--connections", &share.to_string()])
        .args(["--keys", &clients.keys.to_string()])
        .args(["--fill", if clients.fill && index == 0 { "set" } else { "skip" }])
        // Generators derive the keys from the seed, so all use the same keys; `--share` makes their requests
        // differ.
        .args(["--seed", &clients.seed.to_string(), "--share", &format!("{index}/{count}")])
        .args(["--duration", &us_text(clients.duration.unwrap_or_default())])
        .args([
            "--sla",
            &us_text(clients.sla),
            "--bin",
            &format!("{}ms", traffic.bin_ms),
            "--drain",
            &us_text(DRAIN),
        ])
        .args(["--threads", &clients.threads.to_string()])
        .args(traffic.engine.arguments(host));
    launch = match traffic.closed {
        true => launch.arg("--closed"),
        false => launch.args(["--rate", &format!("{:.3}", clients.rate_per_s / count as f64)]),
    };
    if traffic.constant {
        launch = launch.args(["--arrivals", "constant"]);
    }
    if let Some(routes) = &clients.sessions {
        launch = launch.args(["--sessions", "--require-encryption", "--client-key"]).arg(&routes.key);
        for helper in &routes.helpers {
            launch = launch.args(["--helper", &helper.to_string()]);
        }
        if routes.standby {
            launch = launch.arg("--standby");
        }
        if let Some(link) = routes.link {
            launch = launch.args(["--link", &link.to_string()]);
        }
        if let Some(sessions) = routes.sessions_per_process {
            launch = launch.args(["--relief", "--group", &sessions.to_string()]);
            if let Some(helpers_asked) = clients.helpers_asked {
                launch = launch.args(["--asked", &helpers_asked.to_string()]);
            }
        }
    }
    if let Some((helpers, key)) = &clients.helpers {
        for helper in helpers {
            launch = launch.args(["--helper", &helper.to_string()]);
        }
        launch = launch.args(["--require-encryption", "--client-key"]).arg(key);
    }
    for (at, order) in &clients.schedule {
        launch = launch
            .args(["--at", &format!("{}={}", us_text(*at), order.arguments(count, clients.pace).join(":"))]);
    }
    launch.output(Output::Piped).piped_stdin()
}

/// Reads the events of one generator until it closes its output.
fn read_events(out: ChildStdout, index: usize, shared: &Shared) {
    // Lowest priority: this thread must not take CPU time from the generator.
    let _ = rustix::process::nice(19);
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { break };
        let event = serde_json::from_str(&line);
        let mut state = shared.state();
        match event {
            Ok(event) => state.handle_event(event, index),
            Err(why) => state.add_problem(format!("cannot parse an event of a load generator: {why}")),
        }
        drop(state);
        shared.changed.notify_all();
    }
    shared.state().ended += 1;
    shared.changed.notify_all();
}

impl State {
    fn handle_event(&mut self, event: Event, index: usize) {
        match event {
            Event::Ready { .. } => self.ready += 1,
            Event::Bins { helped_now, bins, .. } => {
                if let Some(helped) = self.helped_now.get_mut(index) {
                    *helped = helped_now;
                }
                for bin in &bins {
                    self.offered += bin.offered;
                    self.settled += bin.dropped + bin.unsent + bin.direct.sent() + bin.helped.sent();
                    self.answered += bin.direct.answered + bin.helped.answered;
                    self.bins.add(bin);
                }
            }
            Event::Moved { moved, .. } => {
                match self.moves.iter_mut().find(|(m, _)| m.id == moved.id && m.target == moved.target) {
                    Some((known, finished)) => {
                        known.merge(&moved);
                        *finished += 1;
                    }
                    None => self.moves.push((moved, 1)),
                }
            }
            Event::Trouble { what, .. } => self.add_problem(what),
            Event::End { report } => self.reports.push(*report),
            // The final report contains the sessions' policy decisions.
            Event::Start { .. } | Event::Command { .. } | Event::Decided { .. } => {}
        }
    }

    fn add_problem(&mut self, what: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_load::report::Target;

    fn bin(at_ms: u64, offered: u64, answered: u64) -> Bin {
        let mut bin = Bin { at_ms, offered, ..Bin::default() };
        bin.direct.answered = answered;
        bin
    }

    #[test]
    fn events_of_several_generators_are_merged() {
        let mut state = State { helped_now: vec![0; 2], ..State::default() };
        state.handle_event(Event::Bins { at_us: 0, helped_now: 3, bins: vec![bin(100, 10, 4)] }, 0);
        state.handle_event(
            Event::Bins { at_us: 0, helped_now: 4, bins: vec![bin(100, 10, 9), bin(200, 1, 0)] },
            1,
        );
        state.handle_event(Event::Bins { at_us: 0, helped_now: 5, bins: vec![bin(100, 0, 6)] }, 0);
        assert_eq!((state.offered, state.settled, state.helped_now.iter().sum::<u32>()), (21, 19, 9));
        assert_eq!(state.bins.at(100).direct.answered, 19);
        let moved = |replies: &[u64]| Move {
            id: 0,
            target: Target::Helper,
            given_us: 5,
            pace_us: 1.0,
            connections: 1,
            failed: 0,
            first_replies_us: replies.to_vec(),
            complete: true,
        };
        state.handle_event(Event::Moved { moved: moved(&[7]), moved_ms: 0.0 }, 0);
        state.handle_event(Event::Moved { moved: moved(&[9]), moved_ms: 0.0 }, 1);
        assert_eq!((state.moves.len(), state.moves[0].1), (1, 2));
        assert_eq!(state.moves[0].0.first_replies_us, [7, 9]);
    }

    #[test]
    fn orders_are_divided_among_generators() {
        let pace = Duration::from_micros(100);
        assert_eq!(Order::Rate(9_000.0).arguments(2, pace), ["rate", "4500.000"]);
        assert_eq!(Order::ToHelper.arguments(2, pace), ["move", "helper", "pace=200000ns"]);
        assert_eq!(Order::ToServer.arguments(1, pace), ["move", "direct", "pace=100000ns"]);
        assert_eq!(Order::Mark("burst").arguments(3, pace), ["mark", "burst"]);
    }
}

//! The clients: one `spillway load` on each client host, steered and listened to as one.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, Launch, Output, Process};
use spillway_load::config::Speech;
use spillway_load::monotonic_ns;
use spillway_load::report::{Bin, Bins, Event, Move, Report};

use crate::error::Error;
use crate::stop;

/// Width of the generators' bins, in ms: the grid on which a relief's end is looked for.
pub const BIN_MS: u64 = crate::relief::GRID_MS;
/// Bins are told of when they are over; what has no reply after this time is over any SLA that is looked at.
pub const TOLD_AFTER: Duration = Duration::from_millis(250);
/// How long connecting and filling may take.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// From the word to time zero, so that every generator has heard it.
const START_DELAY_NS: u64 = 100_000_000;
/// After the end, for replies that are still under way.
const DRAIN: Duration = Duration::from_secs(10);
/// For the last words after the drain.
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long a signal may go unnoticed.
const SLEEP_SLICE: Duration = Duration::from_millis(500);
/// Complaints that are kept.
const TROUBLES_MAX: usize = 16;

/// Link ports that carry sessions of the client library.
#[derive(Clone, Debug)]
pub struct Ways {
    /// Helpers'.
    pub helpers: Vec<SocketAddr>,
    /// All begin on the first helper, and the others stand by; otherwise they are spread.
    pub standby: bool,
    /// The server's own: the last way, or the only one.
    pub link: Option<SocketAddr>,
    /// They begin at the server, and go to helpers and back by themselves, so many as those of one process.
    pub relief: Option<u32>,
    /// The file with the clients' key.
    pub key: PathBuf,
}

/// What clients do.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The server's ordinary port.
    pub server: SocketAddr,
    /// Helpers' link ports, over which connections are spread when they move, and the file with the clients' key.
    pub helpers: Option<(Vec<SocketAddr>, PathBuf)>,
    /// Connections are sessions, carried so.
    pub sessions: Option<Ways>,
    /// Sessions that decide for themselves ask so many helpers for their load; the library's default without it.
    pub asked: Option<usize>,
    /// Of each host's generator.
    pub threads: u32,
    /// Over all hosts.
    pub connections: u32,
    /// Keys in the server.
    pub keys: u32,
    /// Set all keys first; they are there already otherwise.
    pub fill: bool,
    /// Of everything random.
    pub seed: u64,
    /// Requests a second at the beginning, over all hosts.
    pub rate_per_s: f64,
    /// From time zero to the last arrival; until [`Generators::finish`] without it.
    pub duration: Option<Duration>,
    /// What happens when, in the generator's own words; rates are over all hosts.
    pub schedule: Vec<(Duration, Order)>,
    /// A reply later than this is late.
    pub sla: Duration,
    /// Between the starts of two connections' moves, over all hosts.
    pub pace: Duration,
}

/// What clients ask for, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// What they speak.
    pub speech: Speech,
    /// Length of a value, in bytes. Keys have 32.
    pub value_size: usize,
    /// Fraction of gets; the others are sets.
    pub get_ratio: f64,
    /// Each connection sends its next request when it has its reply; the rate does not matter then.
    pub closed: bool,
    /// Open loop: requests are due at equal distances, not at random ones.
    pub constant: bool,
    /// Width of the generators' bins, in ms: divides 1,000.
    pub bin_ms: u64,
}

impl Default for Traffic {
    /// The paper's: GET of 64 B values from a memcached, in an open loop.
    fn default() -> Traffic {
        Traffic {
            speech: Speech::Memcached,
            value_size: 64,
            get_ratio: 1.0,
            closed: false,
            constant: false,
            bin_ms: BIN_MS,
        }
    }
}

/// What clients can be told.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Requests a second from now on, over all hosts.
    Rate(f64),
    /// Move every connection to the helper.
    ToHelper,
    /// Move every connection back.
    ToServer,
    /// The operator's override to sessions that decide for themselves: be helped.
    Help,
    /// Remember this moment.
    Mark(&'static str),
}

impl Order {
    /// In the words of one of `count` generators.
    fn words(&self, count: usize, pace: Duration) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect();
        // Each generator moves its share of the connections at once with the others.
        let pace = format!("pace={}ns", pace.as_nanos().saturating_mul(count as u128));
        match self {
            Order::Rate(rate) => words(&["rate", &format!("{:.3}", rate / count as f64)]),
            Order::ToHelper => words(&["move", "helper", &pace]),
            Order::ToServer => words(&["move", "direct", &pace]),
            Order::Help => words(&["relief", "on"]),
            Order::Mark(name) => words(&["mark", name]),
        }
    }
}

/// Running generators. Dropping them kills them.
#[derive(Debug)]
pub struct Generators {
    parts: Vec<Part>,
    shared: Arc<Shared>,
    zero_ns: u64,
    pace: Duration,
}

#[derive(Debug)]
struct Part {
    process: Process,
    orders: Option<ChildStdin>,
    listener: Option<JoinHandle<()>>,
}

/// What the listeners gather.
#[derive(Debug, Default)]
struct Shared {
    heard: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Heard {
    ready: usize,
    closed: usize,
    bins: Bins,
    offered: u64,
    settled: u64,
    answered: u64,
    helped_now: Vec<u32>,
    moves: Vec<(Move, usize)>,
    ends: Vec<Report>,
    troubles: Vec<String>,
}

impl Generators {
    /// Starts a generator on each host and waits until all are connected. They offer nothing before
    /// [`Generators::begin`].
    pub fn start(program: &std::path::Path, hosts: &[Host], clients: &Clients) -> Result<Generators, Error> {
        Generators::start_with(program, hosts, clients, &Traffic::default())
    }

    /// The same with other requests.
    pub fn start_with(
        program: &std::path::Path,
        hosts: &[Host],
        clients: &Clients,
        traffic: &Traffic,
    ) -> Result<Generators, Error> {
        let shared = Arc::new(Shared::default());
        shared.heard().helped_now = vec![0; hosts.len()];
        let mut generators = Generators { parts: Vec::new(), shared, zero_ns: 0, pace: clients.pace };
        for (index, host) in hosts.iter().enumerate() {
            let mut process = host.spawn(&launch(program, clients, traffic, index, hosts.len()))?;
            let shared = Arc::clone(&generators.shared);
            let listener = process.take_stdout().map(|out| {
                std::thread::Builder::new().name("clients".into()).spawn(move || listen(out, index, &shared))
            });
            let listener = listener
                .transpose()
                .map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
            let orders = process.take_stdin();
            generators.parts.push(Part { process, orders, listener });
            // One after the other: the first sets the keys, the others find them.
            generators.wait("connect", READY_WITHIN, |heard| heard.ready > index)?;
        }
        Ok(generators)
    }

    /// Sets time zero.
    pub fn begin(&mut self) -> Result<(), Error> {
        self.zero_ns = monotonic_ns() + START_DELAY_NS;
        let words = format!("start {}", self.zero_ns);
        self.tell(|_| words.clone())
    }

    /// Time zero on the monotonic clock, in ns.
    pub fn zero_ns(&self) -> u64 {
        self.zero_ns
    }

    /// Milliseconds since time zero; 0 before.
    pub fn now_ms(&self) -> u64 {
        self.ms_at(monotonic_ns())
    }

    /// Milliseconds from time zero to a moment of the monotonic clock; 0 before.
    pub fn ms_at(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.saturating_sub(self.zero_ns) / 1_000_000
    }

    /// Sleeps until so many milliseconds after time zero, or until a signal stops the experiment.
    pub fn sleep_until_ms(&self, at_ms: u64) {
        // In slices, so that a signal does not have to wait for a long step.
        while stop::check().is_ok() {
            let left_ns = (self.zero_ns + at_ms * 1_000_000).saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return;
            }
            std::thread::sleep(Duration::from_nanos(left_ns).min(SLEEP_SLICE));
        }
    }

    /// Tells all of them something, now.
    pub fn order(&mut self, order: &Order) -> Result<(), Error> {
        let (count, pace) = (self.parts.len(), self.pace);
        self.tell(|_| order.words(count, pace).join(" "))
    }

    /// Moves every connection to the helper, and waits until each has had a reply there or failed to.
    pub fn move_to_helper(&mut self) -> Result<Move, Error> {
        let (before, parts) = (self.shared.heard().moves.len(), self.parts.len());
        self.order(&Order::ToHelper)?;
        let moved = |heard: &Heard| heard.moves.get(before).is_some_and(|(_, told)| *told == parts);
        self.wait("move to the helper", READY_WITHIN, moved)?;
        let heard = self.shared.heard();
        let (moved, _) =
            heard.moves.get(before).ok_or_else(|| Error::process("the clients forgot a move", ""))?;
        Ok(moved.clone())
    }

    /// Offers nothing more, and waits until all that was offered is settled, or `patience` is over.
    pub fn quiesce(&mut self, patience: Duration) -> Result<(), Error> {
        self.order(&Order::Rate(0.0))?;
        // The last requests from before the word may not even have been told of yet.
        std::thread::sleep(Duration::from_millis(2 * BIN_MS + 50));
        let settled = self.wait("settle", patience, |heard| heard.settled >= heard.offered);
        match settled {
            // What does not settle is judged where it was offered.
            Err(_) if self.shared.heard().closed == 0 => Ok(()),
            other => other,
        }
    }

    /// What is known by now of requests intended within `from_ms..to_ms`, bin by bin.
    pub fn bins(&self, from_ms: u64, to_ms: u64) -> Vec<Bin> {
        let heard = self.shared.heard();
        heard.bins.iter().filter(|bin| (from_ms..to_ms).contains(&bin.at_ms)).cloned().collect()
    }

    /// Replies so far, whenever they were asked for. Told every 100 ms.
    pub fn answered(&self) -> u64 {
        self.shared.heard().answered
    }

    /// Connections that are on a helper now.
    pub fn helped_now(&self) -> u32 {
        self.shared.heard().helped_now.iter().sum()
    }

    /// Complaints so far, a few at most.
    pub fn troubles(&self) -> Vec<String> {
        self.shared.heard().troubles.clone()
    }

    /// Moves that are over, in order.
    pub fn moves(&self) -> Vec<Move> {
        let parts = self.parts.len();
        let heard = self.shared.heard();
        heard.moves.iter().filter(|(_, told)| *told == parts).map(|(moved, _)| moved.clone()).collect()
    }

    /// Fails if a generator has ended before its time.
    pub fn check(&self) -> Result<(), Error> {
        if self.shared.heard().closed > 0 { Err(self.ended("ended early")) } else { Ok(()) }
    }

    /// Ends the arrivals if they have not ended, waits for what is under way, and returns everything as one report.
    pub fn finish(mut self) -> Result<Report, Error> {
        // One that has ended already cannot be told, and need not be.
        let _ = self.tell(|_| "stop".into());
        let parts = self.parts.len();
        self.wait("end", DRAIN + END_WITHIN, |heard| heard.closed == parts)?;
        let heard = std::mem::take(&mut *self.shared.heard());
        if heard.ends.len() != parts {
            return Err(self.ended("ended without a report"));
        }
        let mut whole: Option<Report> = None;
        for end in &heard.ends {
            match &mut whole {
                Some(whole) => whole.merge(end),
                None => whole = Some(end.clone()),
            }
        }
        let mut whole = whole.unwrap_or_default();
        whole.bins = heard.bins.into_vec();
        whole.summarize();
        Ok(whole)
    }

    fn tell(&mut self, words: impl Fn(usize) -> String) -> Result<(), Error> {
        for (index, part) in self.parts.iter_mut().enumerate() {
            let written =
                part.orders.as_mut().map(|orders| orders.write_all(format!("{}\n", words(index)).as_bytes()));
            if !matches!(written, Some(Ok(()))) {
                return Err(self.ended("does not listen"));
            }
        }
        Ok(())
    }

    fn wait(&self, what: &str, patience: Duration, done: impl Fn(&Heard) -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
        let mut heard = self.shared.heard();
        while !done(&heard) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                drop(heard);
                return Err(self.ended(&format!("took longer than {patience:?} to {what}")));
            };
            if heard.closed > 0 && what != "end" {
                drop(heard);
                return Err(self.ended(&format!("ended instead of going on to {what}")));
            }
            heard = self.shared.changed.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn ended(&self, what: &str) -> Error {
        let printed: Vec<String> =
            self.parts.iter().map(|part| part.process.tail()).filter(|t| !t.trim().is_empty()).collect();
        Error::process(format!("a load generator {what}"), printed.join("\n"))
    }
}

impl Drop for Generators {
    fn drop(&mut self) {
        for part in &mut self.parts {
            part.process.kill();
            if let Some(listener) = part.listener.take() {
                // It ends with the pipe; if it panicked there is nothing more to learn from it.
                let _ = listener.join();
            }
        }
    }
}

impl Shared {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn launch(
    program: &std::path::Path,
    clients: &Clients,
    traffic: &Traffic,
    index: usize,
    count: usize,
) -> Launch {
    let share =
        clients.connections / count as u32 + u32::from((index as u32) < clients.connections % count as u32);
    let ms = |d: Duration| format!("{}us", d.as_micros());
    let mut launch = Launch::new(program)
        .name("load")
        .args(["load", "--events", "--control", "stdin", "--hold", "--zipf", "0", "--key-size", "32"])
        .args(["--protocol", &traffic.speech.to_string(), "--value-size", &traffic.value_size.to_string()])
        .args(["--get-ratio", &traffic.get_ratio.to_string()])
        .args(["--server", &clients.server.to_string()])
        .args(["--connections", &share.to_string()])
        .args(["--keys", &clients.keys.to_string()])
        .args(["--fill", if clients.fill && index == 0 { "set" } else { "skip" }])
        // The seed also says which keys there are, so it is the same for all; their requests differ by their share.
        .args(["--seed", &clients.seed.to_string(), "--share", &format!("{index}/{count}")])
        .args(["--duration", &ms(clients.duration.unwrap_or_default())])
        .args(["--sla", &ms(clients.sla), "--bin", &format!("{}ms", traffic.bin_ms), "--drain", &ms(DRAIN)])
        .args(["--threads", &clients.threads.to_string()]);
    launch = match traffic.closed {
        true => launch.arg("--closed"),
        false => launch.args(["--rate", &format!("{:.3}", clients.rate_per_s / count as f64)]),
    };
    if traffic.constant {
        launch = launch.args(["--arrivals", "constant"]);
    }
    if let Some(ways) = &clients.sessions {
        launch = launch.args(["--sessions", "--require-encryption", "--client-key"]).arg(&ways.key);
        for helper in &ways.helpers {
            launch = launch.args(["--helper", &helper.to_string()]);
        }
        if ways.standby {
            launch = launch.arg("--standby");
        }
        if let Some(link) = ways.link {
            launch = launch.args(["--link", &link.to_string()]);
        }
        if let Some(group) = ways.relief {
            launch = launch.args(["--relief", "--group", &group.to_string()]);
            if let Some(asked) = clients.asked {
                launch = launch.args(["--asked", &asked.to_string()]);
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
        launch =
            launch.args(["--at", &format!("{}={}", ms(*at), order.words(count, clients.pace).join(":"))]);
    }
    launch.output(Output::Piped).piped_stdin()
}

/// Hears one generator out.
fn listen(out: ChildStdout, index: usize, shared: &Shared) {
    // Listening must not delay what it listens to; where that cannot be, the clients' own lag tells.
    let _ = rustix::process::nice(19);
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { break };
        let event = serde_json::from_str(&line);
        let mut heard = shared.heard();
        match event {
            Ok(event) => heard.take(event, index),
            Err(why) => heard.complain(format!("a load generator is not understood: {why}")),
        }
        drop(heard);
        shared.changed.notify_all();
    }
    shared.heard().closed += 1;
    shared.changed.notify_all();
}

impl Heard {
    fn take(&mut self, event: Event, index: usize) {
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
                    Some((ours, told)) => {
                        ours.merge(&moved);
                        *told += 1;
                    }
                    None => self.moves.push((moved, 1)),
                }
            }
            Event::Trouble { what, .. } => self.complain(what),
            Event::End { report } => self.ends.push(*report),
            // The report at the end has all decisions.
            Event::Start { .. } | Event::Command { .. } | Event::Decided { .. } => {}
        }
    }

    fn complain(&mut self, what: String) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(what);
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
    fn several_generators_are_heard_as_one() {
        let mut heard = Heard { helped_now: vec![0; 2], ..Heard::default() };
        heard.take(Event::Bins { at_us: 0, helped_now: 3, bins: vec![bin(100, 10, 4)] }, 0);
        heard.take(Event::Bins { at_us: 0, helped_now: 4, bins: vec![bin(100, 10, 9), bin(200, 1, 0)] }, 1);
        heard.take(Event::Bins { at_us: 0, helped_now: 5, bins: vec![bin(100, 0, 6)] }, 0);
        assert_eq!((heard.offered, heard.settled, heard.helped_now.iter().sum::<u32>()), (21, 19, 9));
        assert_eq!(heard.bins.at(100).direct.answered, 19);
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
        heard.take(Event::Moved { moved: moved(&[7]), moved_ms: 0.0 }, 0);
        heard.take(Event::Moved { moved: moved(&[9]), moved_ms: 0.0 }, 1);
        assert_eq!((heard.moves.len(), heard.moves[0].1), (1, 2));
        assert_eq!(heard.moves[0].0.first_replies_us, [7, 9]);
    }

    #[test]
    fn orders_are_divided_among_generators() {
        let pace = Duration::from_micros(100);
        assert_eq!(Order::Rate(9_000.0).words(2, pace), ["rate", "4500.000"]);
        assert_eq!(Order::ToHelper.words(2, pace), ["move", "helper", "pace=200000ns"]);
        assert_eq!(Order::ToServer.words(1, pace), ["move", "direct", "pace=100000ns"]);
        assert_eq!(Order::Mark("burst").words(3, pace), ["mark", "burst"]);
    }
}

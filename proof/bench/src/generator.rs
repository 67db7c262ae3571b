//! Runs the clients of an experiment: one load generator process on each client host. [`Generators`] sends
//! the same orders to all generators and merges their results.

mod clients;
mod engine;
mod launch;
mod order;
mod progress;

use std::io::Write;
use std::process::ChildStdin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_lab::{Host, Process};
use spillway_load::monotonic_ns;
use spillway_load::report::{Bin, Move, Report};

use crate::error::Error;
use crate::programs::Programs;
use crate::stop;

pub use self::clients::{BIN_MS, Clients, Routes, Traffic};
pub use self::engine::Engine;
use self::launch::{DRAIN, launch};
pub use self::order::Order;
use self::progress::{Progress, SharedProgress};

/// Time from the end of a bin until its counts are read. All SLAs of the experiments are shorter, so a
/// request that has no reply by then has missed its SLA.
pub const BIN_REPORT_DELAY: Duration = Duration::from_millis(250);
/// Timeout for a generator to connect and set the keys, and for a move of all connections.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time from the start command to time zero; every generator must have read the command by then.
const START_DELAY_NS: u64 = 100_000_000;
/// Timeout for the final report, from the end of [`DRAIN`].
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time until [`Generators::sleep_until_ms`] notices a signal.
const SLEEP_SLICE: Duration = Duration::from_millis(500);

/// Running generators. `drop` kills the processes.
#[derive(Debug)]
pub struct Generators {
    generators: Vec<Generator>,
    progress: Arc<SharedProgress>,
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
        let mut started = Generators {
            generators: Vec::new(),
            progress: Arc::new(SharedProgress::new(hosts.len())),
            zero_ns: 0,
            pace: clients.pace,
            changed_hosts: Vec::new(),
        };
        for (index, host) in hosts.iter().enumerate() {
            let mut process = host.spawn(&launch(programs, clients, traffic, host, index, hosts.len()))?;
            let progress = Arc::clone(&started.progress);
            let reader_thread = process.take_stdout().map(|out| {
                std::thread::Builder::new()
                    .name("clients".into())
                    .spawn(move || progress.read_events(out, index))
            });
            let reader_thread = reader_thread
                .transpose()
                .map_err(|cause| Error::System { what: "cannot start a thread".into(), cause })?;
            let orders = process.take_stdin();
            started.generators.push(Generator { process, orders, reader_thread });
            // Wait for each generator before the next starts: the first sets the keys that the others read.
            started.wait("connect", READY_TIMEOUT, |progress| progress.ready() > index)?;
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
        let index = self.progress.lock().moves_seen();
        self.order(&Order::ToHelper)?;
        self.wait("move to the helper", READY_TIMEOUT, |progress| progress.finished_move(index).is_some())?;
        let progress = self.progress.lock();
        let moved = progress
            .finished_move(index)
            .ok_or_else(|| Error::process("the clients reported no move", ""))?;
        Ok(moved.clone())
    }

    /// Sets the rate to 0, and waits at most `timeout` until all requests are answered, lost or dropped. A
    /// timeout is not an error: the caller counts the remaining requests as unanswered.
    pub fn quiesce(&mut self, timeout: Duration) -> Result<(), Error> {
        self.order(&Order::Rate(0.0))?;
        // Requests that were due before the order are reported when their bin ends.
        std::thread::sleep(Duration::from_millis(2 * BIN_MS + 50));
        let settled = self.wait("settle", timeout, Progress::is_settled);
        match settled {
            Err(_) if self.progress.lock().ended() == 0 => Ok(()),
            other => other,
        }
    }

    /// The bins that start within `from_ms..to_ms`, as reported so far.
    pub fn bins(&self, from_ms: u64, to_ms: u64) -> Vec<Bin> {
        self.progress.lock().bins(from_ms, to_ms)
    }

    /// Number of replies received so far; updated every 100 ms.
    pub fn answered(&self) -> u64 {
        self.progress.lock().answered()
    }

    /// Connections that are on a helper now.
    pub fn helped_now(&self) -> u32 {
        self.progress.lock().helped_now()
    }

    /// The problems reported so far, at most the first 16.
    pub fn problems(&self) -> Vec<String> {
        self.progress.lock().problems()
    }

    /// Moves that all generators have finished, in order.
    pub fn moves(&self) -> Vec<Move> {
        self.progress.lock().finished_moves()
    }

    /// Fails if a generator has ended before [`Generators::finish`].
    pub fn check(&self) -> Result<(), Error> {
        if self.progress.lock().ended() > 0 { Err(self.failure("ended early")) } else { Ok(()) }
    }

    /// Stops sending requests, waits for outstanding replies, and returns the merged report of all generators.
    pub fn finish(mut self) -> Result<Report, Error> {
        // Fails if a generator has already ended, which is no error here.
        let _ = self.send("stop");
        self.wait("end", DRAIN + REPORT_TIMEOUT, Progress::has_ended)?;
        let progress = std::mem::take(&mut *self.progress.lock());
        progress.into_report().ok_or_else(|| self.failure("ended without a report"))
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

    fn wait(&self, what: &str, timeout: Duration, is_done: impl Fn(&Progress) -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        let mut progress = self.progress.lock();
        while !is_done(&progress) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                drop(progress);
                return Err(self.failure(&format!("took longer than {timeout:?} to {what}")));
            };
            if progress.ended() > 0 && what != "end" {
                drop(progress);
                return Err(self.failure(&format!("ended instead of going on to {what}")));
            }
            progress = self.progress.wait_for_change(progress, left);
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

//! The network threads of a running helper, and the requests to them.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_daemon::{ThreadWatch, raise_open_files};
use spillway_metrics::process::thread_cpu;
use spillway_policy::Override;
use spillway_transport::Time;

use crate::config::HelperConfig;
use crate::engine::{EngineState, EngineStatus, Port, Remote};
use crate::listeners::{ListenerKind, ListenerTable};
use crate::log::Names;
use crate::registration::Registrars;
use crate::relay_app::RelayApp;
use crate::status::{HelperStatus, ServiceStatus, ThreadSnapshot};
use crate::threads::{Threads, clients_max_of_thread};
use tracing::warn;

/// A network thread that has not answered for this time counts as silent. It answers between turns.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// As [`ANSWER_TIMEOUT`], for the status; shorter, because operators and programs wait for the status.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// Descriptors for uses other than clients: links, listeners, epoll sets, files.
const OTHER_FILES: u64 = 256;

pub struct Running {
    pub remotes: Vec<Remote>,
    pub engine: EngineState,
    pub threads: Threads,
    pub names: Names,
    pub started: Instant,
    pub registrars: Registrars,
    watch: ThreadWatch,
    /// Locked only to read or replace the settings, not while waiting for threads: the main thread locks it.
    settings: Mutex<Settings>,
    /// Locked during a change of the settings, so that changes do not overlap.
    pub changing: Mutex<()>,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub config: HelperConfig,
    pub listeners: ListenerTable,
}

impl Running {
    pub fn new(
        remotes: Vec<Remote>,
        engine: EngineState,
        threads: Threads,
        names: Names,
        settings: Settings,
        watch: ThreadWatch,
    ) -> Running {
        let registrars = Registrars::default();
        let started = Instant::now();
        let (settings, changing) = (Mutex::new(settings), Mutex::new(()));
        Running { remotes, engine, threads, names, started, registrars, watch, settings, changing }
    }

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The helper's status. Waits up to [`STATUS_TIMEOUT`] for each thread.
    pub fn status(&self) -> HelperStatus {
        self.status_by_thread().0
    }

    /// The helper's status, and that of each thread that answers, with the thread's number.
    pub fn status_by_thread(&self) -> (HelperStatus, Vec<(usize, ThreadSnapshot)>) {
        let mut status = self.status_without_threads();
        let mut threads = Vec::with_capacity(self.remotes.len());
        for (number, remote) in self.remotes.iter().enumerate() {
            let answer = remote.run_and_wait_timeout(STATUS_TIMEOUT, |now, app, port| {
                let mut status = app.relay.status();
                status.notices_dropped += app.notices_dropped;
                ThreadSnapshot { status, cpu: thread_cpu(), now, xdp: port.figures() }
            });
            match answer {
                Ok(thread) => {
                    status.add(number, &thread);
                    threads.push((number, thread));
                }
                Err(_) => status.threads_silent += 1,
            }
        }
        (status, threads)
    }

    fn status_without_threads(&self) -> HelperStatus {
        let settings = self.settings();
        let services = settings.config.services.iter().map(|service| {
            let addresses = |kind| settings.listeners.addresses(&service.name, kind);
            let mut status =
                ServiceStatus::new(service, addresses(ListenerKind::Plain), addresses(ListenerKind::Library));
            status.registration = self.registrars.status(&service.name);
            status
        });
        HelperStatus {
            services: services.collect(),
            name: settings.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            engine: EngineStatus::from(&self.engine),
            threads: self.threads.count,
            thread_failure: self.watch.failure().map(str::to_owned),
            log_lines_dropped: spillway_daemon::log_lines_dropped(),
            max_connections: settings.config.max_connections,
            max_connections_of_thread: clients_max_of_thread(&settings.config, &self.threads),
            max_memory_bytes: settings.config.max_memory_bytes as u64,
            ..HelperStatus::default()
        }
    }

    /// Runs a command on each thread. Returns the results in the order of the threads, `None` for a thread that does
    /// not answer within [`ANSWER_TIMEOUT`] of the call. The command stays in a silent thread's queue and runs later.
    pub fn run_on_all<C, R>(&self, commands: impl Iterator<Item = C>) -> Vec<Option<R>>
    where
        C: FnOnce(Time, &mut RelayApp, &mut Port<'_>) -> R + Send + 'static,
        R: Send + 'static,
    {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let start = |(remote, command): (&Remote, C)| {
            let (sender, answer) = sync_channel(1);
            // Fails for a thread that has ended, whose result is then `None`.
            let _ = remote.run(move |now, app, out| {
                let _ = sender.send(command(now, app, out));
            });
            answer
        };
        let answers: Vec<Receiver<R>> = self.remotes.iter().zip(commands).map(start).collect();
        let left = || deadline.saturating_duration_since(Instant::now());
        answers.into_iter().map(|answer| answer.recv_timeout(left()).ok()).collect()
    }

    /// Whether every thread answers within `timeout`.
    pub fn answers(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        self.remotes.iter().all(|remote| {
            let left = deadline.saturating_duration_since(Instant::now());
            remote.run_and_wait_timeout(left, |_, _, _| ()).is_ok()
        })
    }

    /// Sets a service's override on every thread, and the time for which it lasts (`None`: without limit).
    /// With `off`, library clients are sent away within `within`. Returns false for an unknown service.
    pub fn set_override(
        &self,
        name: &str,
        override_and_time: (Override, Option<Duration>),
        within: Duration,
    ) -> bool {
        let mut has_service = false;
        for remote in &self.remotes {
            let name = name.to_owned();
            let set = move |now, app: &mut RelayApp, out: &mut Port<'_>| {
                app.relay.set_override(now, &name, override_and_time, within, out)
            };
            has_service |= remote.run_and_wait_timeout(ANSWER_TIMEOUT, set).unwrap_or(false);
        }
        has_service
    }

    /// Drains a service, and resets remaining clients after `within`. Returns false for an unknown service.
    pub fn drain_service(&self, name: &str, within: Duration) -> bool {
        // Before the drain, so that clients that are sent away do not find this helper in etcd.
        self.registrars.withdraw(name);
        let mut has_service = false;
        for remote in &self.remotes {
            let name = name.to_owned();
            let drain = move |now, app: &mut RelayApp, out: &mut Port<'_>| {
                app.relay.drain_service(now, &name, within, out)
            };
            has_service |= remote.run_and_wait_timeout(ANSWER_TIMEOUT, drain).unwrap_or(false);
        }
        has_service
    }
}

/// Logs settings that have less effect than an operator expects. `clients_have_files`: whether each client's
/// connection has a file descriptor.
pub fn warn_of_ineffective_settings(config: &HelperConfig, clients_have_files: bool) {
    if let Some(allowed) = raise_open_files(u64::from(config.max_connections) + OTHER_FILES)
        && clients_have_files
    {
        warn!(
            "this process may open {allowed} files, which is too few for {} clients: raise the hard limit \
             (ulimit -Hn, LimitNOFILE=) or lower --max-connections",
            config.max_connections
        );
    }
    for service in &config.services {
        for address in service.ineffective_listeners() {
            warn!(
                "{}: clients at {address} have loopback addresses, which a server on another host does not \
                 accept: listen on an address of this host that clients reach, or allow them with \
                 --allow-clients at the server and here",
                service.name
            );
        }
    }
}

//! What a helper's threads share with whoever asks them something.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spillway_daemon::{ThreadWatch, raise_open_files};
use spillway_metrics::process::thread_cpu;
use spillway_net::Remote;
use spillway_policy::Override;

use crate::config::HelperConfig;
use crate::contexts::{Threads, clients_max};
use crate::listeners::{Places, Sort};
use crate::log::Names;
use crate::registering::Registrars;
use crate::relaying::Relaying;
use crate::status::{HelperStatus, Part, ServiceStatus};
use tracing::warn;

/// How long a network thread may take to answer before it counts as silent. Turns take microseconds.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// How long a thread may take to say what it does: it answers between two turns.
const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// Descriptors beyond clients: links, listeners, epoll sets, files.
const OTHER_FILES: u64 = 256;

/// A helper's threads, and the settings in force.
pub struct Running {
    pub remotes: Vec<Remote<Relaying>>,
    pub threads: Threads,
    /// Service names by the relays' numbers, for the log.
    pub names: Names,
    pub started: Instant,
    pub registrars: Registrars,
    watch: ThreadWatch,
    settings: Mutex<Settings>,
}

/// Settings in force.
#[derive(Debug)]
pub struct Settings {
    pub config: HelperConfig,
    pub places: Places,
}

impl Running {
    pub fn new(
        remotes: Vec<Remote<Relaying>>,
        threads: Threads,
        names: Names,
        settings: Settings,
        watch: ThreadWatch,
    ) -> Running {
        let registrars = Registrars::default();
        let started = Instant::now();
        Running { remotes, threads, names, started, registrars, watch, settings: Mutex::new(settings) }
    }

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the helper is doing. Waits for each thread's answer.
    pub fn status(&self) -> HelperStatus {
        self.look().0
    }

    /// The sum, and what each thread that answers has to say.
    pub fn look(&self) -> (HelperStatus, Vec<(usize, Part)>) {
        let mut status = self.blank_status();
        let mut parts = Vec::with_capacity(self.remotes.len());
        for (thread, remote) in self.remotes.iter().enumerate() {
            let answer = remote.ask_within(LOOK_PATIENCE, |now, app, _| {
                let mut status = app.relay.status();
                status.notices_dropped += app.not_logged;
                Part { status, cpu: thread_cpu(), now }
            });
            match answer {
                Ok(part) => {
                    status.add(thread, &part);
                    parts.push((thread, part));
                }
                Err(_) => status.threads_silent += 1,
            }
        }
        (status, parts)
    }

    /// With everything that threads do not know.
    fn blank_status(&self) -> HelperStatus {
        let settings = self.settings();
        let services = settings.config.services.iter().map(|service| {
            let addresses = |sort| settings.places.addresses(&service.name, sort);
            let mut status = ServiceStatus::new(service, addresses(Sort::Plain), addresses(Sort::Library));
            status.registration = self.registrars.status(&service.name);
            status
        });
        HelperStatus {
            services: services.collect(),
            name: settings.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            threads: self.threads.count,
            thread_failure: self.watch.failure().map(str::to_owned),
            log_lines_dropped: spillway_daemon::log_lines_dropped(),
            max_connections: settings.config.max_connections,
            max_connections_of_thread: clients_max(&settings.config, &self.threads),
            max_memory_bytes: settings.config.max_memory_bytes as u64,
            ..HelperStatus::default()
        }
    }

    /// Whether every thread answers within this time.
    pub fn answers(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        self.remotes.iter().all(|remote| {
            let left = deadline.saturating_duration_since(Instant::now());
            remote.ask_within(left, |_, _, _| ()).is_ok()
        })
    }

    /// Tells every thread the operator's override on a service. False where there is no such service.
    pub fn say(&self, name: &str, word: (Override, Option<Duration>), within: Duration) -> bool {
        let mut found = false;
        for remote in &self.remotes {
            let name = name.to_owned();
            let say =
                move |now, app: &mut Relaying, out: &mut _| app.relay.say(now, &name, word, within, out);
            found |= remote.ask_within(ANSWER_PATIENCE, say).unwrap_or(false);
        }
        found
    }

    /// Stops taking clients of this service, and lets those that are there finish until the deadline. False where
    /// there is no such service.
    pub fn drain_service(&self, name: &str, within: Duration) -> bool {
        // Before clients are told to go, so that none comes back.
        self.registrars.withdraw(name);
        let mut found = false;
        for remote in &self.remotes {
            let name = name.to_owned();
            let drain =
                move |now, app: &mut Relaying, out: &mut _| app.relay.drain_service(now, &name, within, out);
            found |= remote.ask_within(ANSWER_PATIENCE, drain).unwrap_or(false);
        }
        found
    }
}

/// Says what in the settings will not do what it looks like.
pub fn warn_of_useless_settings(config: &HelperConfig) {
    if let Some(allowed) = raise_open_files(u64::from(config.max_connections) + OTHER_FILES) {
        warn!(
            "this process may open {allowed} files, which is too few for {} clients: raise the hard limit \
             (ulimit -Hn, LimitNOFILE=) or lower --max-connections",
            config.max_connections
        );
    }
    for service in &config.services {
        for address in service.useless_listeners() {
            warn!(
                "{}: clients at {address} have loopback addresses, which a server on another host does not \
                 take: listen on an address of this host that clients reach, or allow them with \
                 --allow-clients at the server and here",
                service.name
            );
        }
    }
}

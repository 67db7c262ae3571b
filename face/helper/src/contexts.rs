//! Network threads: how they are made of a configuration.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_batch::{Encryption, Limits, PolicyKind};
use spillway_daemon::ThreadWatch;
use spillway_net::{
    Clock, Config as NetConfig, Context, ContextListeners, allowed_cores, pin_current_thread,
};
use spillway_relay::{Config as RelayConfig, LoadConfig, Relay, ServiceConfig, SheddingSettings};
use tracing::warn;

use crate::config::{HelperConfig, Service, StartError};
use crate::listeners::{Places, Sort};
use crate::log::{Entry, Log};
use crate::quota;
use crate::relaying::Relaying;

/// Connections of a thread beyond its clients: links, and peers that are about to be refused.
const OTHER_CONNECTIONS: usize = 64;
/// The longest time that clients' bytes are left alone for one wake-up.
const PATIENCE_MAX: Duration = Duration::from_millis(1);
/// Longer than any `connect_timeout`, which the relay keeps.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(90);
/// What a library client may let wait before it is reset; what it wants to wait, it grants itself.
const LIBRARY_BUFFER_BYTES: usize = 1 << 20;

/// How many threads there are, and where they run.
#[derive(Clone, Debug)]
pub struct Threads {
    /// At least one.
    pub count: usize,
    /// Each thread's core, if they are pinned.
    pub cores: Vec<usize>,
    /// Cores that they may use together, where the process's control group limits them.
    pub cpu_quota: Option<f64>,
}

impl Threads {
    /// As configured: 0 for one on each allowed core.
    pub fn new(configured: usize) -> Threads {
        let cores = if configured == 0 { allowed_cores() } else { Vec::new() };
        let count = if cores.is_empty() { configured.max(1) } else { cores.len() };
        Threads { count, cores, cpu_quota: quota::cores() }
    }

    /// A thread's part of something. The kernel spreads clients unevenly: one may have half more than its share.
    fn share(&self, total: u64) -> u64 {
        match self.count as u64 {
            1 => total,
            count => (total * 3).div_ceil(count * 2),
        }
    }
}

/// The sockets' view of a configuration.
pub fn net_config(config: &HelperConfig, threads: &Threads) -> NetConfig {
    NetConfig {
        connections_max: clients_max(config, threads) as usize + OTHER_CONNECTIONS,
        connect_timeout: CONNECT_TIMEOUT_MAX,
        input_patience: input_patience(config),
        ..NetConfig::default()
    }
}

/// Clients that a thread may have.
pub fn clients_max(config: &HelperConfig, threads: &Threads) -> u32 {
    u32::try_from(threads.share(u64::from(config.max_connections))).unwrap_or(u32::MAX)
}

/// Requests wait for their batch anyway: one wake-up for all of them. Replies are not delayed.
fn input_patience(config: &HelperConfig) -> Duration {
    let delay = |service: &Service| match service.policy {
        PolicyKind::Fixed { delay, .. } => delay,
        PolicyKind::Adaptive { max_delay, .. } => max_delay,
        // It begins at the end of the turn that brought a batch's first request, not at the last look at clients.
        PolicyKind::Deadline { max_delay, .. } | PolicyKind::Following { max_delay, .. } => {
            max_delay.saturating_mul(2)
        }
        PolicyKind::Algorithm1 => PATIENCE_MAX,
    };
    config.services.iter().map(delay).max().unwrap_or_default().min(PATIENCE_MAX)
}

/// The relay's view of a configuration.
pub fn relay_config(config: &HelperConfig, places: &Places, threads: &Threads) -> RelayConfig {
    let services = config.services.iter().map(|service| ServiceConfig {
        raw_listeners: places.of(&service.name, Sort::Plain),
        link_listeners: places.of(&service.name, Sort::Library),
        keys: service.keys.clone(),
        client_keys: service.client_ring(),
        clients: service.client_ranges(),
        proxy_from: service.proxy_protocol_from.clone(),
        links: service.links_per_thread,
        acknowledges_replies: service.acknowledges_replies,
        policy: service.policy,
        encryption: encryption(service),
        client_encryption: encryption(service),
        limits: Limits { window_bytes: service.connection_buffer_bytes, ..Limits::default() },
        connect_timeout: service.connect_timeout,
        ..ServiceConfig::new(service.name.clone(), service.server)
    });
    let buffers = config.services.iter().map(|service| service.connection_buffer_bytes as usize);
    let memory_bytes = threads.share(config.max_memory_bytes as u64);
    RelayConfig {
        clients_max: clients_max(config, threads),
        memory_bytes_max: usize::try_from(memory_bytes).unwrap_or(usize::MAX),
        connection_buffer_bytes: buffers.max().unwrap_or(0).max(LIBRARY_BUFFER_BYTES),
        load: load_config(config, threads),
        ..RelayConfig::new(services.collect())
    }
}

fn encryption(service: &Service) -> Encryption {
    if service.require_encryption { Encryption::Required } else { Encryption::Preferred }
}

/// What one thread tells of its load, and does about it.
fn load_config(config: &HelperConfig, threads: &Threads) -> LoadConfig {
    let percent = |percent: u8| f64::from(percent) / 100.0;
    let shedding = (config.shed_above > 0).then(|| SheddingSettings {
        above: percent(config.shed_above),
        until: percent(config.shed_until),
        ..SheddingSettings::default()
    });
    LoadConfig {
        answers: config.load_answers,
        // Threads share what the process may have.
        cpu: threads.cpu_quota.map_or(1.0, |cores| (cores / threads.count as f64).min(1.0)),
        network_bytes: config.network_bits.map(|bits| bits / 8 / threads.count as u64),
        shedding,
    }
}

/// A thread's context, without listeners.
pub fn context(
    thread: usize,
    relay: &RelayConfig,
    net: &NetConfig,
    clock: Clock,
    log: &Log,
) -> Result<Context<Relaying>, StartError> {
    // Asked once here, so that a host without random bytes is an error at start.
    getrandom::fill(&mut [0; 32]).map_err(|error| StartError::Host(io::Error::other(error)))?;
    let random = Box::new(|bytes: &mut [u8]| {
        if let Err(error) = getrandom::fill(bytes) {
            // It answered at start. Nonces must not be guessed: no links are better than links with bad ones.
            panic!("the host has no more random bytes: {error}");
        }
    });
    let relay = Relay::new(relay.clone(), random).map_err(StartError::Relay)?;
    let app = Relaying { relay, thread, log: log.clone(), not_logged: 0 };
    let log = log.clone();
    let hook = move |notice| {
        log.put(Entry::Net { thread, notice });
    };
    Context::new(net.clone(), ContextListeners::default(), clock, app, hook).map_err(StartError::Host)
}

/// Runs a context on a thread of its own, which ends when the context is stopped.
pub fn spawn(
    thread: usize,
    core: Option<usize>,
    mut context: Context<Relaying>,
    watch: &ThreadWatch,
) -> Result<JoinHandle<()>, StartError> {
    let run = move || {
        if let Some(core) = core
            && let Err(error) = pin_current_thread(core)
        {
            warn!(thread, "cannot stay on core {core}: {error}");
        }
        context.run()
    };
    watch.spawn(&format!("net-{thread}"), run).map_err(StartError::Host)
}

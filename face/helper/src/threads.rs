//! Creates the network threads of a configuration.

use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_batch::{Encryption, Limits, PolicyKind};
use spillway_bpf::Mode;
use spillway_daemon::ThreadWatch;
use spillway_net::{Clock, Config as NetConfig, ContextListeners, allowed_cores, pin_current_thread};
use spillway_relay::{
    Config as RelayConfig, LoadConfig, Measurement, Relay, ServiceConfig, SheddingSettings,
};
use tracing::{info, warn};

use crate::config::{Engine, HelperConfig, Protocol, Service, StartError};
use crate::engine::{Chosen, Context, EngineState};
use crate::listeners::{ListenerKind, ListenerTable};
use crate::log::{Entry, Log};
use crate::quota;
use crate::relay_app::RelayApp;

/// Connections of a thread beyond its clients and links: peers that are about to be refused, and links that are closing.
const OTHER_CONNECTIONS: usize = 64;
/// Upper bound on [`input_patience`].
const INPUT_PATIENCE_MAX: Duration = Duration::from_millis(1);
/// Longer than any `connect_timeout`, which the relay applies itself.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(90);
/// Limit on bytes that wait for a library client: one that grants more credit and does not read is reset.
const LIBRARY_BUFFER_BYTES: usize = 1 << 20;

/// Number and placement of the network threads.
#[derive(Clone, Debug)]
pub struct Threads {
    /// Number of threads, at least 1.
    pub count: usize,
    /// The core of each thread; empty if threads are not pinned.
    pub cores: Vec<usize>,
    /// Cores that all threads together may use, if the process's control group limits them.
    pub cpu_quota: Option<f64>,
}

impl Threads {
    /// `configured`: number of threads; 0: one on each allowed core.
    pub fn new(configured: usize) -> Threads {
        let cores = if configured == 0 { allowed_cores() } else { Vec::new() };
        let count = if cores.is_empty() { configured.max(1) } else { cores.len() };
        Threads { count, cores, cpu_quota: quota::cores() }
    }

    /// With at most `count_max` threads. `configured`: as for [`new`](Self::new).
    pub fn at_most(configured: usize, count_max: usize) -> Threads {
        let mut threads = Threads::new(configured);
        if threads.count > count_max {
            let count = threads.count;
            if configured > 0 {
                warn!(
                    "threads = {count}: {count_max} run, because the interface has {count_max} receive queues"
                );
            } else {
                info!(
                    "{count_max} threads on {count} cores: as many as the interface has receive queues (ethtool -L)"
                );
            }
            threads.count = count_max;
            threads.cores.truncate(count_max);
        }
        threads
    }

    /// 1.5 times a thread's equal share of a limit, because the kernel spreads clients unevenly over threads.
    fn share(&self, total: u64) -> u64 {
        match self.count as u64 {
            1 => total,
            count => (total * 3).div_ceil(count * 2),
        }
    }
}

pub fn net_config(config: &HelperConfig, threads: &Threads) -> NetConfig {
    NetConfig {
        connections_max: clients_max_of_thread(config, threads) as usize + reserved_for_links(config),
        connect_timeout: CONNECT_TIMEOUT_MAX,
        input_patience: input_patience(config),
        free_bind: config.engine == Engine::Xdp && config.xdp.separate.is_some(),
        ..NetConfig::default()
    }
}

/// Connections of a thread that clients cannot take.
pub fn reserved_for_links(config: &HelperConfig) -> usize {
    let links: usize = config.services.iter().map(|service| usize::from(service.links_per_thread)).sum();
    links + OTHER_CONNECTIONS
}

pub fn clients_max_of_thread(config: &HelperConfig, threads: &Threads) -> u32 {
    u32::try_from(threads.share(u64::from(config.max_connections))).unwrap_or(u32::MAX)
}

/// How long requests may wait to be read, so that one wake-up reads several: they wait for a batch anyway.
fn input_patience(config: &HelperConfig) -> Duration {
    let delay = |service: &Service| match service.policy {
        PolicyKind::Fixed { interval: delay, .. } => delay,
        PolicyKind::Adaptive { max_delay, .. } => max_delay,
        // The deadline counts from the end of the turn that read a batch's first request, not from the read before it.
        PolicyKind::Deadline { max_delay, .. } | PolicyKind::Following { max_delay, .. } => {
            max_delay.saturating_mul(2)
        }
        PolicyKind::Algorithm1 => INPUT_PATIENCE_MAX,
    };
    config.services.iter().map(delay).max().unwrap_or_default().min(INPUT_PATIENCE_MAX)
}

pub fn relay_config(config: &HelperConfig, listeners: &ListenerTable, threads: &Threads) -> RelayConfig {
    let services = config.services.iter().map(|service| ServiceConfig {
        plain_listeners: listeners.of(&service.name, ListenerKind::Plain),
        link_listeners: listeners.of(&service.name, ListenerKind::Library),
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
        measurement: measurement(service),
        ..ServiceConfig::new(service.name.clone(), service.server)
    });
    let buffers = config.services.iter().map(|service| service.connection_buffer_bytes as usize);
    // Equal shares: if a thread could use what another leaves, all together could exceed the limit.
    let memory_bytes = config.max_memory_bytes.div_ceil(threads.count);
    RelayConfig {
        clients_max: clients_max_of_thread(config, threads),
        memory_bytes_max: memory_bytes,
        connection_buffer_bytes: buffers.max().unwrap_or(0).max(LIBRARY_BUFFER_BYTES),
        load: load_config(config, threads),
        ..RelayConfig::new(services.collect())
    }
}

fn measurement(service: &Service) -> Option<Measurement> {
    let protocol = match service.protocol {
        Protocol::Tcp => return None,
        Protocol::Memcached => spillway_requests::Protocol::Memcached,
        Protocol::Redis => spillway_requests::Protocol::Redis,
    };
    let one_in = service.measure_one_in;
    (one_in > 0).then_some(Measurement { protocol, sample_one_in: one_in })
}

fn encryption(service: &Service) -> Encryption {
    if service.require_encryption { Encryption::Required } else { Encryption::Preferred }
}

fn load_config(config: &HelperConfig, threads: &Threads) -> LoadConfig {
    let fraction = |percent: u8| f64::from(percent) / 100.0;
    let shedding = (config.shed_above > 0).then(|| SheddingSettings {
        above: fraction(config.shed_above),
        below: fraction(config.shed_until),
        ..SheddingSettings::default()
    });
    LoadConfig {
        answers: config.load_answers,
        cpu: threads.cpu_quota.map_or(1.0, |cores| (cores / threads.count as f64).min(1.0)),
        network_bytes: config.network_bits.map(|bits| bits / 8 / threads.count as u64),
        shedding,
    }
}

/// Makes the contexts of all threads. Also returns the engine's state.
pub fn contexts(
    engine: Chosen,
    threads: usize,
    relay: &RelayConfig,
    net: &NetConfig,
    log: &Log,
) -> Result<(Vec<Context>, EngineState), StartError> {
    // Report a host without random bytes at start: `application` panics without them.
    getrandom::fill(&mut [0; 32]).map_err(|error| StartError::Host(io::Error::other(error)))?;
    let clock = Clock::start();
    let applications: Vec<RelayApp> =
        (0..threads).map(|thread| application(thread, relay, log)).collect::<Result<_, _>>()?;
    match engine {
        Chosen::Sockets => {
            let on_sockets = |application: RelayApp| {
                let (thread, log) = (application.thread, log.clone());
                let hook = move |notice| {
                    log.put(Entry::Net { thread, notice });
                };
                spillway_net::Context::new(net.clone(), ContextListeners::default(), clock, application, hook)
                    .map(|context| Context::Sockets(Box::new(context)))
                    .map_err(StartError::Host)
            };
            let contexts = applications.into_iter().map(on_sockets).collect::<Result<_, _>>()?;
            Ok((contexts, EngineState::Sockets))
        }
        Chosen::Xdp(engine) => {
            let (contexts, state) = engine.into_contexts(applications, net, clock)?;
            let is_slow = state.mode == Mode::Generic;
            let state = EngineState::Xdp(state);
            match is_slow {
                true => warn!("engine {state}"),
                false => info!("engine {state}"),
            }
            Ok((contexts, state))
        }
    }
}

fn application(thread: usize, relay: &RelayConfig, log: &Log) -> Result<RelayApp, StartError> {
    let random = Box::new(|bytes: &mut [u8]| {
        if let Err(error) = getrandom::fill(bytes) {
            // The host had random bytes at start. Links must not open with predictable nonces, so the helper ends.
            panic!("the host has no more random bytes: {error}");
        }
    });
    let relay = Relay::new(relay.clone(), random).map_err(StartError::Relay)?;
    Ok(RelayApp { relay, thread, log: log.clone(), notices_dropped: 0 })
}

/// Runs a context on a new thread, which ends when the context is stopped.
pub fn spawn(
    thread: usize,
    core: Option<usize>,
    mut context: Context,
    watch: &ThreadWatch,
) -> Result<JoinHandle<()>, StartError> {
    let run = move || {
        if let Some(core) = core
            && let Err(error) = pin_current_thread(core)
        {
            warn!(thread, "cannot pin the thread to core {core}: {error}; it runs on any core");
        }
        context.run()
    };
    watch.spawn(&format!("net-{thread}"), run).map_err(StartError::Host)
}

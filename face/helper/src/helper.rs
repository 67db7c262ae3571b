//! A running helper.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use spillway_batch::PolicyKind;
use spillway_metrics::HttpServer;
use spillway_metrics::process::thread_cpu;
use spillway_net::{
    Clock, Config as NetConfig, Context, ContextListeners, Listeners, Remote, allowed_cores,
    pin_current_thread,
};
use spillway_relay::{Config as RelayConfig, Relay, ServiceConfig};
use tracing::{error, info, warn};

use crate::config::{HelperConfig, StartError};
use crate::descriptors::raise_limit;
use crate::log::{Entry, Log};
use crate::relaying::Relaying;
use crate::status::{HelperStatus, Part, ServiceStatus};
use crate::status_socket::{StatusServer, serve};
use crate::web::Web;

/// Connections of a thread beyond its clients: links, and peers that are about to be refused.
const OTHER_CONNECTIONS: usize = 64;

/// How long a thread may take to say what it does: it answers between two turns.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The longest time that clients' bytes are left alone for one wake-up.
const PATIENCE_MAX: Duration = Duration::from_millis(1);

/// A running helper. Ends when dropped, without regard for its clients; see [`Helper::drain`].
pub struct Helper {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    status_server: Option<StatusServer>,
    http: Option<HttpServer>,
}

/// What the status thread needs, too.
struct Shared {
    remotes: Vec<Remote<Relaying>>,
    /// With everything that does not change.
    blank: HelperStatus,
    started: Instant,
}

impl Helper {
    /// Binds the listening ports, starts the threads and has them open their links. Clients are taken as soon as
    /// a link is up.
    ///
    /// # Errors
    /// Whatever an operator has to put right; nothing is left running then.
    pub fn start(config: HelperConfig) -> Result<Helper, StartError> {
        Helper::start_watched(config, Arc::new(|| ()))
    }

    /// As [`start`](Self::start); `ended` is called by each network thread when it ends.
    pub(crate) fn start_watched(
        config: HelperConfig,
        ended: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Helper, StartError> {
        config.check()?;
        let cores = allowed_cores();
        let per_core = config.threads == 0 && !cores.is_empty();
        let threads = if per_core { cores.len() } else { config.threads.max(1) };
        // The kernel spreads clients unevenly: a thread may have half more than its share.
        let share = |total: u64| if threads == 1 { total } else { (total * 3).div_ceil(threads as u64 * 2) };
        let clients_max = u32::try_from(share(u64::from(config.max_connections))).unwrap_or(u32::MAX);

        let (relay_config, addresses) =
            relay_config(&config, clients_max, share(config.max_memory_bytes as u64));
        relay_config.check().map_err(StartError::Relay)?;
        let net_config = NetConfig {
            connections_max: clients_max as usize + OTHER_CONNECTIONS,
            connect_timeout: relay_config.timeouts.connect,
            // Requests wait for their batch anyway: one wake-up for all of them. Replies are not delayed.
            input_patience: max_delay(config.policy),
            ..NetConfig::default()
        };
        let bound = Listeners::bind(&addresses, threads, &net_config).map_err(StartError::Bind)?;
        let blank = blank_status(&config, threads, bound.addresses());
        let status_server = config.status_socket.as_deref().map(StatusServer::bind).transpose();
        let status_server = status_server.map_err(|error| StartError::StatusSocket {
            path: config.status_socket.clone().unwrap_or_default(),
            error,
        })?;

        let metrics = config
            .metrics
            .map(|address| HttpServer::bind(address).map_err(|error| StartError::Metrics { address, error }));
        let metrics = metrics.transpose()?;

        warn_of_useless_settings(&config);
        let log = start_log(&config)?;
        let clock = Clock::start();
        let mut contexts = Vec::with_capacity(threads);
        for (thread, listeners) in bound.into_contexts().into_iter().enumerate() {
            contexts.push(context(thread, &relay_config, &net_config, listeners, clock, &log)?);
        }
        let remotes = contexts.iter().map(Context::remote).collect();
        let shared = Arc::new(Shared { remotes, blank, started: Instant::now() });
        let mut helper = Helper { shared, threads: Vec::new(), status_server, http: None };
        for service in &helper.shared.blank.services {
            let (name, server) = (&service.name, &service.server);
            info!("{name}: opening links to {server}{}", Ports(service));
        }
        for (thread, context) in contexts.into_iter().enumerate() {
            let core = if per_core { cores.get(thread).copied() } else { None };
            helper.threads.push(spawn(thread, core, context, Arc::clone(&ended))?);
        }
        helper.serve_status()?;
        helper.http = metrics.map(|listener| helper.serve_metrics(listener)).transpose()?;
        Ok(helper)
    }

    /// What it is doing. Waits for each thread's answer.
    pub fn status(&self) -> HelperStatus {
        self.shared.status()
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpServer::address)
    }

    /// Stops taking clients and lets those that are there finish what is in flight, until the deadline. See
    /// [`is_drained`](Self::is_drained).
    pub fn drain(&self, deadline: Duration) {
        for remote in &self.shared.remotes {
            // A thread that has ended has no clients.
            let _ = remote.run(move |now, app, out| app.relay.drain(now, deadline, out));
        }
    }

    /// Whether no client is left, after [`drain`](Self::drain).
    pub fn is_drained(&self) -> bool {
        let drained = |remote: &Remote<Relaying>| remote.ask(|_, app, _| app.relay.is_drained());
        self.shared.remotes.iter().all(|remote| drained(remote).unwrap_or(true))
    }

    /// Whether no connection is left: after a drain, servers have seen the end of their links, too.
    pub fn is_disconnected(&self) -> bool {
        let gone = |remote: &Remote<Relaying>| remote.ask(|_, _, out| out.connections() == 0);
        self.shared.remotes.iter().all(|remote| gone(remote).unwrap_or(true))
    }

    /// Whether every network thread runs. One that does not has logged why.
    pub fn is_whole(&self) -> bool {
        !self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends at once: links are closed, and so are clients that are left.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.status_server = None;
        self.http = None;
        self.shared.remotes.iter().for_each(Remote::stop);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => error!("a network thread failed: {error}"),
                Err(_) => error!("a network thread panicked"),
            }
        }
    }

    fn serve_status(&self) -> Result<(), StartError> {
        let Some(server) = &self.status_server else { return Ok(()) };
        let listener = server.listener().map_err(StartError::Host)?;
        let shared = Arc::clone(&self.shared);
        let serving = move || serve(&listener, || shared.status().to_json());
        std::thread::Builder::new().name("status".into()).spawn(serving).map_err(StartError::Host)?;
        Ok(())
    }
}

impl Helper {
    fn serve_metrics(&self, listener: TcpListener) -> Result<HttpServer, StartError> {
        let shared = Arc::clone(&self.shared);
        let web = Web::new(move || shared.look());
        let server = HttpServer::serve(listener, move |request| web.answer(request));
        let server = server.map_err(StartError::Host)?;
        let address = server.address();
        info!("metrics and status page at http://{address}/");
        if !address.ip().is_loopback() {
            warn!("whoever reaches {address} can read addresses and figures there: it asks for no password");
        }
        Ok(server)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn status(&self) -> HelperStatus {
        self.look().0
    }

    /// The sum, and what each thread that answers has to say.
    fn look(&self) -> (HelperStatus, Vec<(usize, Part)>) {
        let uptime_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut status = HelperStatus { uptime_ms, ..self.blank.clone() };
        let mut parts = Vec::with_capacity(self.remotes.len());
        for (thread, remote) in self.remotes.iter().enumerate() {
            let answer = remote.ask_within(ANSWER_WITHIN, |_, app, _| Part {
                status: app.relay.status(),
                cpu: thread_cpu(),
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
}

/// The relay's view of the configuration, and the addresses of its listeners by their index.
fn relay_config(
    config: &HelperConfig,
    clients_max: u32,
    memory_bytes: u64,
) -> (RelayConfig, Vec<SocketAddr>) {
    let mut addresses = Vec::new();
    let mut indices = |of: &[SocketAddr]| -> Vec<u16> {
        let first = addresses.len();
        addresses.extend_from_slice(of);
        (first..addresses.len()).filter_map(|index| u16::try_from(index).ok()).collect()
    };
    let services = config.services.iter().map(|service| ServiceConfig {
        raw_listeners: indices(&service.listen),
        link_listeners: indices(&service.link_listen),
        key: service.key.clone(),
        client_keys: service.client_keys.clone(),
        clients: service.client_ranges(),
        proxy_from: service.proxy_from.clone(),
        policy: config.policy,
        ..ServiceConfig::new(service.name.clone(), service.server)
    });
    let relay = RelayConfig::new(services.collect());
    let memory_bytes_max = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
    (RelayConfig { clients_max, memory_bytes_max, ..relay }, addresses)
}

/// What the policy may delay a request by; a bound where it has none.
fn max_delay(policy: PolicyKind) -> Duration {
    let delay = match policy {
        PolicyKind::Fixed { delay, .. } => delay,
        PolicyKind::Adaptive { max_delay, .. } => max_delay,
        PolicyKind::Algorithm1 => PATIENCE_MAX,
    };
    delay.min(PATIENCE_MAX)
}

fn blank_status(config: &HelperConfig, threads: usize, bound: &[SocketAddr]) -> HelperStatus {
    let mut bound = bound.iter().copied();
    let services = config.services.iter().map(|service| {
        let listen = bound.by_ref().take(service.listen.len()).collect();
        let link_listen = bound.by_ref().take(service.link_listen.len()).collect();
        ServiceStatus::new(service, listen, link_listen)
    });
    HelperStatus {
        services: services.collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        threads,
        max_connections: config.max_connections,
        ..HelperStatus::default()
    }
}

fn warn_of_useless_settings(config: &HelperConfig) {
    if let Some(allowed) = raise_limit(config.max_connections) {
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

fn start_log(config: &HelperConfig) -> Result<Log, StartError> {
    let (log, lines) = Log::new();
    let names: Vec<String> = config.services.iter().map(|service| service.name.clone()).collect();
    let writing = move || crate::log::write(&lines, &names);
    std::thread::Builder::new().name("log".into()).spawn(writing).map_err(StartError::Host)?;
    Ok(log)
}

fn context(
    thread: usize,
    relay_config: &RelayConfig,
    net_config: &NetConfig,
    listeners: ContextListeners,
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
    let relay = Relay::new(relay_config.clone(), random).map_err(StartError::Relay)?;
    let app = Relaying { relay, thread, log: log.clone() };
    let log = log.clone();
    let hook = move |notice| log.put(Entry::Net { thread, notice });
    Context::new(net_config.clone(), listeners, clock, app, hook).map_err(StartError::Host)
}

fn spawn(
    thread: usize,
    core: Option<usize>,
    mut context: Context<Relaying>,
    ended: Arc<dyn Fn() + Send + Sync>,
) -> Result<JoinHandle<io::Result<()>>, StartError> {
    let run = move || {
        let _ended = AtEnd(ended);
        if let Some(core) = core
            && let Err(error) = pin_current_thread(core)
        {
            warn!(thread, "cannot stay on core {core}: {error}");
        }
        context.run()
    };
    std::thread::Builder::new().name(format!("net-{thread}")).spawn(run).map_err(StartError::Host)
}

/// Calls when it is dropped: at the end of a thread, a panic included.
struct AtEnd(Arc<dyn Fn() + Send + Sync>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Where clients come in, for the log.
struct Ports<'a>(&'a ServiceStatus);

impl std::fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for address in &self.0.listen {
            write!(f, "; plain clients at {address}")?;
        }
        for address in &self.0.link_listen {
            write!(f, "; library clients at {address}")?;
        }
        Ok(())
    }
}

//! The status of a helper, for operators and programs.

mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::deprecated::add_old_fields;
use spillway_policy::Override;
use spillway_relay::{LinkState, LoadReport, Status};
use spillway_transport::Time;

use crate::config::Service;
use crate::distribution::Distribution;
use crate::engine::EngineStatus;
use crate::registration::RegistrationStatus;

/// The status of one network thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadSnapshot {
    pub status: Status,
    pub cpu: Duration,
    /// Time of this snapshot by the thread's clock.
    pub now: Time,
    /// Counters of the user-level stack; `None` on kernel sockets.
    pub xdp: Option<Box<spillway_xdp::Figures>>,
}

/// A snapshot of a helper. Later versions may add fields to the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HelperStatus {
    /// Configured name of the helper.
    #[serde(default)]
    pub name: String,
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Time since the start, in milliseconds.
    pub uptime_ms: u64,
    /// Whether the helper is draining.
    pub draining: bool,
    /// Engine of the connections.
    #[serde(default)]
    pub engine: EngineStatus,
    /// Number of network threads.
    pub threads: usize,
    /// Threads that did not answer; totals do not include them.
    pub threads_silent: usize,
    /// Name and error of a thread that has failed; the process is about to end.
    #[serde(default)]
    pub thread_failure: Option<String>,
    /// Log lines dropped because writing failed or was too slow.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// Clients of all services.
    pub clients: u32,
    /// Configured maximum number of clients.
    pub max_connections: u32,
    /// Maximum number of clients of one thread: 1.5 times its share, because clients spread unevenly.
    #[serde(default)]
    pub max_connections_of_thread: u32,
    /// Bytes of memory for data from and to clients.
    pub buffered_bytes: u64,
    /// Configured limit on `buffered_bytes`.
    #[serde(default)]
    pub max_memory_bytes: u64,
    /// Threads on which memory is scarce: clients that do not read are paused.
    #[serde(default, rename = "threads_scarce")]
    pub threads_short_of_memory: usize,
    /// Clients that were paused because memory was scarce and they did not read.
    #[serde(default)]
    pub clients_paused: u64,
    /// The network threads that answered.
    #[serde(default)]
    pub per_thread: Vec<ThreadStatus>,
    /// The services, in the order of the configuration.
    pub services: Vec<ServiceStatus>,
}

/// One network thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStatus {
    /// Number of the thread.
    pub thread: usize,
    /// CPU time of the thread, in microseconds.
    pub cpu_us: u64,
    /// Clients of all services.
    pub clients: u32,
    /// Bytes of memory for data from and to these clients.
    pub buffered_bytes: u64,
    /// The load that the thread reports to clients.
    #[serde(default)]
    pub load: ThreadLoad,
}

/// Load of a thread. Each resource is in 1/1000 of the thread's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLoad {
    /// CPU time, of the thread's core or of its share of the CPU quota.
    pub cpu_permille: u16,
    /// Network bandwidth; 0 if the limit is not known.
    pub network_permille: u16,
    /// Number of clients.
    pub connections_permille: u16,
    /// Memory for clients' data.
    pub memory_permille: u16,
    /// The largest of these shares, including clients that have just connected, in millionths.
    pub load_ppm: u32,
    /// Whether the thread answers load queries with `full`.
    pub full: bool,
}

impl From<LoadReport> for ThreadLoad {
    fn from(load: LoadReport) -> ThreadLoad {
        let LoadReport { cpu, network, connections, memory, load, full, .. } = load;
        ThreadLoad {
            cpu_permille: cpu,
            network_permille: network,
            connections_permille: connections,
            memory_permille: memory,
            load_ppm: load,
            full,
        }
    }
}

/// One service on all threads. Counters are since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Configured name of the service.
    pub name: String,
    /// The server's link port.
    pub server: String,
    /// Bound addresses for plain clients.
    pub listen: Vec<SocketAddr>,
    /// Bound addresses for library clients.
    pub link_listen: Vec<SocketAddr>,
    /// The operator's override: `auto`, `on` or `off`.
    #[serde(default)]
    #[serde(rename = "override")]
    pub relief_override: String,
    /// Time until the override ends, in milliseconds; `None`: without limit.
    #[serde(default)]
    pub override_left_ms: Option<u64>,
    /// The service's registration, if it has one.
    #[serde(default)]
    pub registration: Option<RegistrationStatus>,
    /// Progress of a drain; `None` if the service is not draining.
    #[serde(default)]
    pub drained: Option<Drained>,
    /// Whether the service is no longer configured, and ends with its last client.
    #[serde(default)]
    pub removed: bool,
    /// Threads that accept clients now: those with a link that is up.
    pub threads_listening: usize,
    /// Links to the server.
    pub links: Vec<LinkStatus>,
    /// Plain clients connected now.
    pub plain_clients: u32,
    /// Library clients connected now.
    pub library_clients: u32,
    /// Data messages in each batch to the server, on average.
    pub messages_per_batch: f64,
    /// Batches sent to the server.
    pub batches_sent: u64,
    /// Data messages sent to the server.
    pub messages_sent: u64,
    /// Bytes sent to the server, headers and control included.
    pub bytes_sent: u64,
    /// Data messages received from the server.
    pub messages_received: u64,
    /// Bytes of data received from the server.
    pub bytes_received: u64,
    /// Times that a plain client could not send: it had no credit, or its link's buffer was full.
    pub stalls: u64,
    /// Duration of stalls that have ended, all clients together, in milliseconds.
    #[serde(default)]
    pub stalled_ms: u64,
    /// Segments of requests received from clients: about one for each small request.
    #[serde(default)]
    pub requests: u64,
    /// Bytes of requests.
    #[serde(default)]
    pub request_bytes: u64,
    /// Segments of replies received from the server.
    #[serde(default)]
    pub replies: u64,
    /// Bytes of replies.
    #[serde(default)]
    pub reply_bytes: u64,
    /// Data messages in each batch to the server.
    #[serde(default)]
    pub batch_messages: Distribution,
    /// Bytes in each batch to the server.
    #[serde(default)]
    pub batch_bytes: Distribution,
    /// Time for which the first message of each batch waited, in microseconds.
    #[serde(default)]
    pub batch_delay_us: Distribution,
    /// Latency of requests of the measured plain clients, in microseconds.
    #[serde(default)]
    pub request_latency_us: Distribution,
    /// Replies to measured clients that do not measure the server, such as those of blocking commands.
    #[serde(default)]
    pub replies_unmeasured: u64,
    /// Measured clients whose requests could not be followed any more, by reason.
    #[serde(default)]
    pub measuring_given_up: BTreeMap<String, u64>,
    /// Plain clients accepted.
    pub plain_clients_accepted: u64,
    /// Virtual connections of library clients forwarded.
    pub library_connections_accepted: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that were lost after they had come up.
    pub links_lost: u64,
    /// Clients reset because their link was lost.
    pub clients_lost_with_link: u64,
    /// Clients refused.
    pub refused: Refused,
    /// Clients reset for data that they do not read or for protocol errors.
    pub reset: Resets,
    /// Load queries that were answered.
    #[serde(default)]
    pub load_queries_answered: u64,
    /// Load queries that were not answered, by reason.
    #[serde(default)]
    pub load_queries_refused: BTreeMap<String, u64>,
    /// Library clients sent to other helpers, because the load was too high.
    #[serde(default)]
    pub library_clients_sent_away: u64,
}

/// One link of one thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Number of the link's thread.
    pub thread: usize,
    /// `waiting`, `connecting`, `up`, `draining` or `closed`.
    pub state: String,
    /// Virtual connections on the link.
    pub connections: u32,
    /// Bytes for the server that the transport has not accepted yet.
    pub pending_bytes: u64,
    /// Whether a new link has replaced this one, which then ends with its last client.
    #[serde(default)]
    pub replaced: bool,
    /// Id of the key that opened the link, while the link is open.
    #[serde(default)]
    pub key: Option<String>,
    /// Whether batches are encrypted.
    #[serde(default)]
    pub encrypted: bool,
}

/// Progress of a service's drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Library clients that have moved elsewhere.
    pub moved: u64,
    /// Plain clients whose connections have ended.
    pub left: u64,
    /// Clients that were reset at the deadline, or because their link was lost.
    pub failed: u64,
    /// Clients that are still connected.
    pub remaining: u64,
}

/// Clients refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// All refused clients.
    pub total: u64,
    /// Refused clients by the reasons of [`Refusals::by_reason`](spillway_relay::Refusals::by_reason).
    #[serde(flatten)]
    pub by_reason: BTreeMap<String, u64>,
}

/// Clients reset for data that they do not read or for protocol errors, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of the relay's `Resets`, with their sum")]
pub struct Resets {
    pub total: u64,
    pub buffer: u64,
    pub memory: u64,
    pub protocol: u64,
}

impl HelperStatus {
    /// The JSON form, which also has the field names of the previous version.
    pub fn to_value(&self) -> Value {
        let mut document = json!(self);
        add_old_fields(&mut document);
        document
    }

    /// The JSON form as text, with a line end.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", self.to_value())
    }

    /// Adds the status of thread `number` to the totals.
    pub(crate) fn add(&mut self, number: usize, thread: &ThreadSnapshot) {
        let ThreadSnapshot { status, cpu, now, .. } = thread;
        self.per_thread.push(ThreadStatus {
            thread: number,
            cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
            clients: status.clients,
            buffered_bytes: status.buffered_bytes as u64,
            load: status.load.into(),
        });
        self.draining |= status.draining;
        self.clients += status.clients;
        self.buffered_bytes += status.buffered_bytes as u64;
        self.threads_short_of_memory += usize::from(status.memory_is_scarce);
        self.clients_paused += status.paused;
        for service in &status.services {
            match self.services.iter_mut().find(|total| total.name == service.name) {
                Some(total) => total.add((number, *now), service),
                // A removed service that still has clients is not in the configuration.
                None => {
                    let (name, server) = (service.name.clone(), service.server.to_string());
                    let mut total = ServiceStatus { name, server, ..ServiceStatus::default() };
                    total.add((number, *now), service);
                    self.services.push(total);
                }
            }
        }
    }

    /// One short line for a service manager.
    pub fn summary(&self) -> String {
        let state = if self.draining { "draining, " } else { "" };
        let up = |service: &&ServiceStatus| service.links_up() > 0;
        let (ready, all) = (self.services.iter().filter(up).count(), self.services.len());
        format!("{state}{ready} of {all} services with a link, {} clients", self.clients)
    }
}

impl ServiceStatus {
    pub(crate) fn new(
        service: &Service,
        listen: Vec<SocketAddr>,
        link_listen: Vec<SocketAddr>,
    ) -> ServiceStatus {
        let (name, server) = (service.name.clone(), service.server.to_string());
        ServiceStatus { name, server, listen, link_listen, ..ServiceStatus::default() }
    }

    /// Number of links that accept clients. A draining link carries its clients only until they have left.
    pub fn links_up(&self) -> usize {
        self.links.iter().filter(|link| link.state == "up").count()
    }

    fn add(&mut self, (thread, now): (usize, Time), service: &spillway_relay::ServiceStatus) {
        self.threads_listening += usize::from(service.listening);
        self.links.extend(service.links.iter().map(|link| LinkStatus {
            thread,
            state: state_name(link.state).to_owned(),
            connections: link.connections,
            pending_bytes: link.pending_bytes as u64,
            replaced: link.replaced,
            key: link.key.map(|key| key.to_string()),
            encrypted: link.encrypted,
        }));
        self.removed |= service.removed;
        // The override is the same on every thread.
        let (relief, until) = (service.relief.at(now), service.relief.until());
        self.relief_override = relief.name().to_owned();
        let left = until.filter(|_| relief != Override::Auto).map(|until| until.since(now));
        self.override_left_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if let Some(drained) = service.drained {
            let total = self.drained.get_or_insert_default();
            total.moved += drained.moved;
            total.left += drained.left;
            total.failed += drained.failed;
            total.remaining += u64::from(service.plain_clients + service.library_clients);
        }
        self.plain_clients += service.plain_clients;
        self.library_clients += service.library_clients;
        let traffic = &service.traffic;
        self.batches_sent += traffic.batches_sent;
        self.messages_sent += traffic.messages_sent;
        self.bytes_sent += traffic.bytes_sent;
        self.messages_received += traffic.messages_received;
        self.bytes_received += traffic.bytes_received;
        self.messages_per_batch = self.messages_sent as f64 / self.batches_sent.max(1) as f64;
        self.batch_messages.add(&service.batches.messages, 1);
        self.batch_bytes.add(&service.batches.bytes, 1);
        self.batch_delay_us.add(&service.batches.delay_ns, 1000);
        let counters = &service.counters;
        self.request_latency_us.add(&counters.measured.latency_ns, 1000);
        self.replies_unmeasured += counters.measured.unmeasured;
        for (reason, clients) in counters.measured.given_up_by_reason() {
            *self.measuring_given_up.entry(reason.to_owned()).or_default() += clients;
        }
        self.stalls += counters.stalls.credit + counters.stalls.link;
        self.stalled_ms += (counters.stalls.credit_ns + counters.stalls.link_ns) / 1_000_000;
        self.requests += counters.requests.segments;
        self.request_bytes += counters.requests.bytes;
        self.replies += counters.replies.segments;
        self.reply_bytes += counters.replies.bytes;
        self.plain_clients_accepted += counters.plain_clients;
        self.library_connections_accepted += counters.library_connections;
        self.links_up += counters.links_up;
        self.links_lost += counters.links_lost;
        self.clients_lost_with_link += counters.lost_with_link;
        self.refused.add(&counters.refused);
        self.reset.add(&counters.reset);
        self.load_queries_answered += counters.load_queries.answered;
        for (reason, queries) in counters.load_queries.refused_by_reason() {
            *self.load_queries_refused.entry(reason.to_owned()).or_default() += queries;
        }
        self.library_clients_sent_away += counters.shed;
    }
}

impl Refused {
    /// Clients refused for `reason`.
    pub fn of(&self, reason: &str) -> u64 {
        self.by_reason.get(reason).copied().unwrap_or(0)
    }

    fn add(&mut self, refused: &spillway_relay::Refusals) {
        self.total += refused.total();
        for (reason, clients) in refused.by_reason() {
            *self.by_reason.entry(reason.to_owned()).or_default() += clients;
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused", self.total)?;
        let reasons = self.by_reason.iter().filter(|(_, clients)| **clients > 0);
        let reasons: Vec<String> = reasons.map(|(reason, clients)| format!("{reason} {clients}")).collect();
        if reasons.is_empty() { Ok(()) } else { write!(f, " ({})", reasons.join(", ")) }
    }
}

impl Resets {
    fn add(&mut self, resets: &spillway_relay::Resets) {
        self.total += resets.buffer + resets.memory + resets.protocol;
        self.buffer += resets.buffer;
        self.memory += resets.memory;
        self.protocol += resets.protocol;
    }
}

pub(crate) const LINK_STATES: [LinkState; 5] =
    [LinkState::Waiting, LinkState::Connecting, LinkState::Up, LinkState::Draining, LinkState::Closed];

/// Name of a state in status and metrics.
pub(crate) fn state_name(state: LinkState) -> &'static str {
    match state {
        LinkState::Waiting => "waiting",
        LinkState::Connecting => "connecting",
        LinkState::Up => "up",
        LinkState::Draining => "draining",
        LinkState::Closed => "closed",
    }
}

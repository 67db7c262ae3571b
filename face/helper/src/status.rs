//! What a helper is doing, for operators and programs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_policy::Override;
use spillway_relay::{LinkState, Load, Status};
use spillway_transport::Time;

use crate::config::Service;
use crate::distribution::Distribution;
use crate::registering::RegistrationStatus;

/// What one network thread answers when it is asked.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Of its relay.
    pub status: Status,
    /// Of its thread.
    pub cpu: Duration,
    /// By its clock.
    pub now: Time,
}

/// A snapshot of a helper. Its JSON form is what the status socket answers; fields may be added to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HelperStatus {
    /// As configured.
    #[serde(default)]
    pub name: String,
    /// Of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// It has been told to go, and lets its clients finish.
    pub draining: bool,
    /// Network threads.
    pub threads: usize,
    /// Threads that did not answer; their clients are missing here.
    pub threads_silent: usize,
    /// A thread has failed, and the process is about to end: which, and why.
    #[serde(default)]
    pub thread_failure: Option<String>,
    /// Log lines that could not be written, or not as fast as they came.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// Clients of all services.
    pub clients: u32,
    /// As configured.
    pub max_connections: u32,
    /// Clients that one network thread may have: more than its share, because they come unevenly.
    #[serde(default)]
    pub max_connections_of_thread: u32,
    /// Bytes of memory that hold what waits for and from clients.
    pub buffered_bytes: u64,
    /// As configured.
    #[serde(default)]
    pub max_memory_bytes: u64,
    /// Threads on which memory is scarce: clients that do not read are paused.
    #[serde(default)]
    pub threads_scarce: usize,
    /// Clients that were paused because memory was scarce and they did not read, since the start.
    #[serde(default)]
    pub clients_paused: u64,
    /// One for each network thread that answers.
    #[serde(default)]
    pub contexts: Vec<ContextStatus>,
    /// In the order of the configuration.
    pub services: Vec<ServiceStatus>,
}

/// One network thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextStatus {
    /// Its number.
    pub context: usize,
    /// CPU time of its thread, in microseconds.
    pub cpu_us: u64,
    /// Clients of all services.
    pub clients: u32,
    /// Bytes buffered for and from them.
    pub buffered_bytes: u64,
    /// As clients that ask are told.
    #[serde(default)]
    pub load: ContextLoad,
}

/// How loaded a thread is. Shares are in 1/1000 of what it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextLoad {
    /// Of its core.
    pub cpu: u16,
    /// Of the network; 0 where no bound is known.
    pub network: u16,
    /// Of the clients that it may have.
    pub connections: u16,
    /// Of the memory for them.
    pub memory: u16,
    /// The scarcest of them, with clients that have just come, in millionths.
    pub load: u32,
    /// Clients that ask are told to go elsewhere.
    pub full: bool,
}

impl From<Load> for ContextLoad {
    fn from(load: Load) -> ContextLoad {
        let Load { cpu, network, connections, memory, load, full, .. } = load;
        ContextLoad { cpu, network, connections, memory, load, full }
    }
}

/// One service, all threads together. Counters are since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// As configured.
    pub name: String,
    /// The server's link port.
    pub server: String,
    /// Where plain clients come in.
    pub listen: Vec<SocketAddr>,
    /// Where library clients come in.
    pub link_listen: Vec<SocketAddr>,
    /// The operator's override: `auto`, `on`, `off`.
    #[serde(default)]
    pub relief: String,
    /// For how long it still holds, in milliseconds; for ever, if not given.
    #[serde(default)]
    pub relief_left_ms: Option<u64>,
    /// Where clients are told of it, if anywhere.
    #[serde(default)]
    pub registration: Option<RegistrationStatus>,
    /// It takes no more clients: what has become of those it had, and how many are left.
    #[serde(default)]
    pub drained: Option<Drained>,
    /// It is no longer configured, and goes with its last client.
    #[serde(default)]
    pub removed: bool,
    /// Threads that take clients now: those with a link that is up.
    pub threads_listening: usize,
    /// Links to the server.
    pub links: Vec<LinkStatus>,
    /// Plain clients connected now.
    pub raw_clients: u32,
    /// Library clients connected now.
    pub library_clients: u32,
    /// Data messages for each batch to the server.
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
    /// How often a plain client could send nothing, for want of credit or because a link took no more.
    pub stalls: u64,
    /// How long, all clients together, in milliseconds; of stalls that have ended.
    #[serde(default)]
    pub stalled_ms: u64,
    /// Pieces of requests as they came from clients: about one for each small request.
    #[serde(default)]
    pub requests: u64,
    /// Their bytes.
    #[serde(default)]
    pub request_bytes: u64,
    /// Pieces of replies as they came from the server.
    #[serde(default)]
    pub replies: u64,
    /// Their bytes.
    #[serde(default)]
    pub reply_bytes: u64,
    /// Data messages in each batch to the server.
    #[serde(default)]
    pub batch_messages: Distribution,
    /// Bytes in each batch to the server.
    #[serde(default)]
    pub batch_bytes: Distribution,
    /// How long the first message of each batch has waited, in microseconds.
    #[serde(default)]
    pub batch_delay_us: Distribution,
    /// Plain clients taken.
    pub raw_clients_taken: u64,
    /// Virtual connections of library clients passed on.
    pub library_connections_taken: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Links that were lost after they had come up.
    pub links_lost: u64,
    /// Clients reset because their link was lost.
    pub clients_lost_with_link: u64,
    /// Clients refused.
    pub refused: Refused,
    /// Clients reset because of what they did.
    pub cut: Cut,
    /// Questions of load that were answered.
    #[serde(default)]
    pub questions_answered: u64,
    /// Those that were not, by reason.
    #[serde(default)]
    pub questions_refused: BTreeMap<String, u64>,
    /// Library clients sent to other helpers, because the load was too high.
    #[serde(default)]
    pub shed: u64,
}

/// One link of one thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Of which thread.
    pub thread: usize,
    /// `waiting`, `connecting`, `up`, `draining` or `closed`.
    pub state: String,
    /// Virtual connections on it.
    pub connections: u32,
    /// Bytes gathered that the host's sockets have not taken.
    pub pending_bytes: u64,
    /// It was replaced by a new one, and ends with its clients.
    #[serde(default)]
    pub replaced: bool,
    /// The name of the key that it was opened with, while it is open.
    #[serde(default)]
    pub key: Option<String>,
    /// Its batches are encrypted.
    #[serde(default)]
    pub encrypted: bool,
}

/// What has become of a draining service's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Library clients that went elsewhere by themselves.
    pub moved: u64,
    /// Plain clients whose connections ended by themselves.
    pub left: u64,
    /// Clients that were reset: by the deadline, or because their link was lost.
    pub failed: u64,
    /// Clients that are still there.
    pub remaining: u64,
}

/// Clients refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// All of them.
    pub total: u64,
    /// Under the names of [`Refusals::by_reason`](spillway_relay::Refusals::by_reason), beside `total` in JSON.
    #[serde(flatten)]
    pub by_reason: BTreeMap<String, u64>,
}

/// Clients reset because of what they did, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each is a reason as of the relay's `Cut`")]
pub struct Cut {
    pub total: u64,
    pub buffer: u64,
    pub memory: u64,
    pub protocol: u64,
}

impl HelperStatus {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        // Strings, numbers and lists always have one.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Adds what one thread does.
    pub(crate) fn add(&mut self, thread: usize, part: &Part) {
        let Part { status, cpu, now } = part;
        self.contexts.push(ContextStatus {
            context: thread,
            cpu_us: u64::try_from(cpu.as_micros()).unwrap_or(u64::MAX),
            clients: status.clients,
            buffered_bytes: status.buffered_bytes as u64,
            load: status.load.into(),
        });
        self.draining |= status.draining;
        self.clients += status.clients;
        self.buffered_bytes += status.buffered_bytes as u64;
        self.threads_scarce += usize::from(status.memory_is_scarce);
        self.clients_paused += status.paused;
        for service in &status.services {
            match self.services.iter_mut().find(|total| total.name == service.name) {
                Some(total) => total.add((thread, *now), service),
                // Removed, and not gone yet.
                None => {
                    let (name, server) = (service.name.clone(), service.server.to_string());
                    let mut total = ServiceStatus { name, server, ..ServiceStatus::default() };
                    total.add((thread, *now), service);
                    self.services.push(total);
                }
            }
        }
    }

    /// One short line: what a service manager shows.
    pub fn summary(&self) -> String {
        let state = if self.draining { "draining, " } else { "" };
        let up = |service: &&ServiceStatus| service.links_that_are_up() > 0;
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

    /// Links that carry clients.
    pub fn links_that_are_up(&self) -> usize {
        self.links.iter().filter(|link| link.state == "up" || link.state == "draining").count()
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
        // Every thread was told the same.
        let (word, until) = (service.relief.at(now), service.relief.until());
        self.relief = word.name().to_owned();
        let left = until.filter(|_| word != Override::Auto).map(|until| until.since(now));
        self.relief_left_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if let Some(drained) = service.drained {
            let total = self.drained.get_or_insert_default();
            total.moved += drained.moved;
            total.left += drained.left;
            total.failed += drained.failed;
            total.remaining += u64::from(service.raw_clients + service.library_clients);
        }
        self.raw_clients += service.raw_clients;
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
        self.stalls += counters.stalls.credit + counters.stalls.link;
        self.stalled_ms += (counters.stalls.credit_ns + counters.stalls.link_ns) / 1_000_000;
        self.requests += counters.requests.segments;
        self.request_bytes += counters.requests.bytes;
        self.replies += counters.replies.segments;
        self.reply_bytes += counters.replies.bytes;
        self.raw_clients_taken += counters.raw_clients;
        self.library_connections_taken += counters.library_connections;
        self.links_up += counters.links_up;
        self.links_lost += counters.links_lost;
        self.clients_lost_with_link += counters.lost_with_link;
        self.refused.add(&counters.refused);
        self.cut.add(&counters.cut);
        self.questions_answered += counters.questions.answered;
        for (reason, questions) in counters.questions.refused_by_reason() {
            *self.questions_refused.entry(reason.to_owned()).or_default() += questions;
        }
        self.shed += counters.shed;
    }
}

impl Refused {
    /// For this reason.
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

/// How many, and why where there were any.
impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} refused", self.total)?;
        let reasons = self.by_reason.iter().filter(|(_, clients)| **clients > 0);
        let reasons: Vec<String> = reasons.map(|(reason, clients)| format!("{reason} {clients}")).collect();
        if reasons.is_empty() { Ok(()) } else { write!(f, " ({})", reasons.join(", ")) }
    }
}

impl Cut {
    fn add(&mut self, cut: &spillway_relay::Cuts) {
        self.total += cut.buffer + cut.memory + cut.protocol;
        self.buffer += cut.buffer;
        self.memory += cut.memory;
        self.protocol += cut.protocol;
    }
}

/// All states of links.
pub(crate) const LINK_STATES: [LinkState; 5] =
    [LinkState::Waiting, LinkState::Connecting, LinkState::Up, LinkState::Draining, LinkState::Closed];

/// What an operator calls a state.
pub(crate) fn state_name(state: LinkState) -> &'static str {
    match state {
        LinkState::Waiting => "waiting",
        LinkState::Connecting => "connecting",
        LinkState::Up => "up",
        LinkState::Draining => "draining",
        LinkState::Closed => "closed",
    }
}

/// One line for each service.
impl fmt::Display for HelperStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.draining { "draining" } else { "running" };
        let name = if self.name.is_empty() { String::new() } else { format!("{} ", self.name) };
        write!(f, "helper {name}(pid {}) {state} for {} s", self.pid, self.uptime_ms / 1000)?;
        write!(f, ", {} clients of {}", self.clients, self.max_connections)?;
        write!(f, ", {} KiB buffered", self.buffered_bytes / 1024)?;
        if self.threads_silent > 0 {
            write!(f, ", {} of {} threads do not answer", self.threads_silent, self.threads)?;
        }
        if self.log_lines_dropped > 0 {
            write!(f, ", {} log lines dropped", self.log_lines_dropped)?;
        }
        self.services.iter().try_for_each(|service| write!(f, "\n{service}"))
    }
}

impl fmt::Display for ServiceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let takes = if self.threads_listening > 0 { "taking clients" } else { "refusing clients" };
        write!(f, "{} at {}: {takes}", self.name, self.server)?;
        if let Some(Drained { moved, left, failed, remaining }) = self.drained {
            let state = if self.removed { "removed" } else { "draining" };
            write!(f, " ({state}: {moved} moved, {left} left, {failed} failed, {remaining} to go)")?;
        }
        if !["", Override::Auto.name()].contains(&self.relief.as_str()) {
            write!(f, ", relief {}", self.relief)?;
            if let Some(left) = self.relief_left_ms {
                write!(f, " for {} s more", left / 1000)?;
            }
        }
        let (up, encrypted) =
            (self.links_that_are_up(), self.links.iter().filter(|link| link.encrypted).count());
        write!(f, ", {up} of {} links up", self.links.len())?;
        match encrypted {
            _ if up == 0 => {}
            0 => write!(f, " (not encrypted)")?,
            _ if encrypted == up => write!(f, " (encrypted)")?,
            _ => write!(f, " ({encrypted} encrypted)")?,
        }
        write!(f, ", {} plain and {} library clients", self.raw_clients, self.library_clients)?;
        write!(f, ", {:.1} messages a batch", self.messages_per_batch)?;
        write!(f, ", {}, {} reset", self.refused, self.cut.total + self.clients_lost_with_link)?;
        let unanswered: u64 = self.questions_refused.values().sum();
        if self.questions_answered + unanswered > 0 {
            write!(f, ", {} questions of load answered, {unanswered} not", self.questions_answered)?;
        }
        if self.shed > 0 {
            write!(f, ", {} sent to other helpers", self.shed)?;
        }
        self.registration.iter().try_for_each(|registration| write!(f, ", {registration}"))
    }
}

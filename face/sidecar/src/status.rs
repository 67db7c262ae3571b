//! A sidecar's status, for operators and programs.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spillway_daemon::deprecated::add_old_fields;

/// A snapshot of a sidecar. The admin socket and `/status` answer with its JSON form, to which fields may be added.
/// Counters count since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SidecarStatus {
    /// Always `sidecar`; other programs answer with another kind.
    pub kind: String,
    /// The program's version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// The sidecar is draining.
    pub draining: bool,
    /// The service's name in `spillway relief NAME …`.
    pub name: String,
    /// The server's own link port.
    pub server: String,
    /// Link ports of helpers that are known now.
    pub helpers: Vec<String>,
    /// Addresses on which clients are accepted.
    pub listen: Vec<String>,
    /// The clients' protocol, for measuring latency: `memcached`, `redis` or `tcp`.
    pub protocol: String,
    /// The operator's override: `auto`, `on` or `off`.
    #[serde(rename = "override")]
    pub relief_override: String,
    /// The relief policy's stage on the first thread: `direct`, `late`, `comparing`, `moving`, `trial`, `helped`,
    /// `doubting` or `backed off`.
    pub relief_stage: String,
    /// Relief decisions by kind, all threads together.
    pub decisions: BTreeMap<String, u64>,
    /// The SLA, in microseconds: the latency that 99 of 100 replies should stay below.
    pub sla_us: u64,
    /// Number of network threads.
    pub threads: usize,
    /// The name and error of a thread that has failed; the process is about to end.
    #[serde(default)]
    pub thread_failure: Option<String>,
    /// Log lines that were lost because they could not be written, or not fast enough.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// CPU time of the network threads, in microseconds; updated every second.
    pub cpu_us: u64,
    /// Local connections now.
    pub connections: u64,
    /// Most local connections at one time; further ones are rejected.
    pub max_connections: u32,
    /// Local connections that a helper carries now.
    pub helped: u64,
    /// Local connections that the server's own link port carries now.
    pub direct: u64,
    /// Local connections without a carrier now.
    pub waiting: u64,
    /// Bytes of memory for buffered data of all connections.
    pub buffered_bytes: u64,
    /// Threads on which memory is scarce: clients that do not read are paused.
    #[serde(default, rename = "threads_scarce")]
    pub threads_short_of_memory: u64,
    /// Clients that were paused because memory was scarce and they did not read.
    #[serde(default)]
    pub connections_paused: u64,
    /// The configured limit of `buffered_bytes`.
    pub max_memory_bytes: u64,
    /// Local connections accepted.
    pub accepted: u64,
    /// Local connections accepted with a load balancer's PROXY header.
    #[serde(rename = "announced")]
    pub with_proxy_header: u64,
    /// Local connections rejected, by reason.
    pub refused: BTreeMap<String, u64>,
    /// How local connections ended.
    pub ended: BTreeMap<String, u64>,
    /// Moves of sessions to another carrier, by reason.
    pub moves: BTreeMap<String, u64>,
    /// Carriers that were lost or rejected a session, by reason.
    pub carriers_lost: BTreeMap<String, u64>,
    /// Bytes from clients.
    pub request_bytes: u64,
    /// Bytes to clients.
    pub reply_bytes: u64,
    /// Replies, as counted by the configured protocol.
    pub replies: u64,
    /// Replies whose latency says nothing about the server, such as those of blocking commands.
    pub replies_unmeasured: u64,
    /// Connections whose latency is not measured any more, by reason.
    pub measuring_given_up: BTreeMap<String, u64>,
    /// Latency of replies on the server's own link port, of the last 10 to 20 seconds.
    pub latency_direct: LatencyStatus,
    /// Latency of replies through helpers, of the last 10 to 20 seconds.
    pub latency_helped: LatencyStatus,
}

/// Latencies of replies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Replies measured.
    pub count: u64,
    /// The median: half of the replies are faster.
    pub p50_us: u64,
    /// One reply in a hundred is slower.
    pub p99_us: u64,
    /// Latency of the slowest reply.
    pub max_us: u64,
}

impl LatencyStatus {
    pub(crate) fn of(histogram: &Histogram<u64>) -> LatencyStatus {
        LatencyStatus {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.5),
            p99_us: histogram.value_at_quantile(0.99),
            max_us: histogram.max(),
        }
    }
}

impl SidecarStatus {
    /// The JSON form.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", self.to_value())
    }

    /// The JSON form, which also has the previous version's names of renamed fields.
    pub fn to_value(&self) -> Value {
        let mut document = json!(self);
        add_old_fields(&mut document);
        document
    }

    /// One short line for a service manager.
    pub fn summary(&self) -> String {
        let state = if self.draining { "draining, " } else { "" };
        let SidecarStatus { connections, helped, direct, waiting, .. } = self;
        format!("{state}{connections} connections: {helped} helped, {direct} direct, {waiting} waiting")
    }
}

/// The sum of all counts, and the counts above 0 by name: `3 (lost 1, drain 2)`.
fn total(counts: &BTreeMap<String, u64>) -> String {
    let sum: u64 = counts.values().sum();
    let parts: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if parts.is_empty() { sum.to_string() } else { format!("{sum} ({})", parts.join(", ")) }
}

impl fmt::Display for SidecarStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.draining { "draining" } else { "running" };
        write!(f, "sidecar (pid {}) {state} for {} s: ", self.pid, self.uptime_ms / 1000)?;
        writeln!(f, "{} of {}", self.summary(), self.max_connections)?;
        let helpers = self.helpers.len();
        write!(f, "{} ({}) at {}, {helpers} helpers known", self.name, self.protocol, self.server)?;
        write!(f, ", relief {} ({})", self.relief_override, self.relief_stage)?;
        write!(f, "; listening on {}", self.listen.join(", "))?;
        for (name, latency) in [("direct", self.latency_direct), ("helped", self.latency_helped)] {
            if latency.count > 0 {
                let LatencyStatus { count, p50_us, p99_us, .. } = latency;
                write!(
                    f,
                    "\n{name}: p50 {p50_us} us, p99 {p99_us} us of {count} replies (SLA {} us)",
                    self.sla_us
                )?;
            }
        }
        write!(f, "\n{} replies, {} KiB buffered", self.replies, self.buffered_bytes / 1024)?;
        write!(f, ", moves {}, refused {}", total(&self.moves), total(&self.refused))?;
        if self.threads_short_of_memory > 0 {
            write!(f, ", memory scarce on {} of {} threads", self.threads_short_of_memory, self.threads)?;
        }
        if self.log_lines_dropped > 0 {
            write!(f, ", {} log lines dropped", self.log_lines_dropped)?;
        }
        Ok(())
    }
}

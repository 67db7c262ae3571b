//! What a sidecar is doing, for operators and programs.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// A snapshot of a sidecar. Its JSON form is what the admin socket and `/status` answer; fields may be added to it.
/// Counters are since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SidecarStatus {
    /// Always `sidecar`: tells it from what other programs answer.
    pub kind: String,
    /// Of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// It has been told to go.
    pub draining: bool,
    /// What the operator calls the service.
    pub name: String,
    /// The server's own link port.
    pub server: String,
    /// Link ports of helpers that are known now.
    pub helpers: Vec<String>,
    /// Where clients come in.
    pub listen: Vec<String>,
    /// By which latency is measured: `memcached`, `redis` or `tcp`.
    pub protocol: String,
    /// The operator's override that holds: `auto`, `on` or `off`.
    pub relief: String,
    /// What relief is about: `direct`, `late`, `comparing`, `moving`, `trial`, `helped`, `backed off`; of the first thread.
    pub relief_stage: String,
    /// What relief has decided, by kind, all threads together.
    pub decisions: BTreeMap<String, u64>,
    /// The p99 that is wanted, in microseconds.
    pub sla_us: u64,
    /// Network threads.
    pub threads: usize,
    /// A thread has failed, and the process is about to end: which, and why.
    #[serde(default)]
    pub thread_failure: Option<String>,
    /// Log lines that could not be written, or not as fast as they came.
    #[serde(default)]
    pub log_lines_dropped: u64,
    /// CPU time of these threads, in microseconds; brought up to date each second.
    pub cpu_us: u64,
    /// Local connections now.
    pub connections: u64,
    /// More are refused.
    pub max_connections: u32,
    /// Those that a helper carries now.
    pub helped: u64,
    /// Those that the server's own link port carries now.
    pub direct: u64,
    /// Those that nothing carries at this moment.
    pub waiting: u64,
    /// Bytes of memory that hold what waits, of all connections.
    pub buffered_bytes: u64,
    /// Threads on which memory is scarce: clients that do not read are paused.
    #[serde(default)]
    pub threads_scarce: u64,
    /// Clients that were paused because memory was scarce and they did not read, since the start.
    #[serde(default)]
    pub connections_paused: u64,
    /// As configured.
    pub max_memory_bytes: u64,
    /// Local connections taken.
    pub taken: u64,
    /// Those of them that a load balancer spoke for.
    pub announced: u64,
    /// Local connections refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// How local connections ended.
    pub ended: BTreeMap<String, u64>,
    /// How often sessions went on elsewhere, by reason.
    pub moves: BTreeMap<String, u64>,
    /// Carriers lost, or that did not take a session, by reason.
    pub carriers_lost: BTreeMap<String, u64>,
    /// Bytes from clients.
    pub request_bytes: u64,
    /// Bytes to clients.
    pub reply_bytes: u64,
    /// Replies, as the protocol tells them apart.
    pub replies: u64,
    /// Those of them whose time is no measure.
    pub replies_unmeasured: u64,
    /// Connections whose latency is not measured any more, by reason.
    pub gave_up: BTreeMap<String, u64>,
    /// Of the last 10 to 20 seconds, connections that are carried directly.
    pub latency_direct: LatencyStatus,
    /// The same, connections that a helper carries.
    pub latency_helped: LatencyStatus,
}

/// Latencies of replies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Replies measured.
    pub count: u64,
    /// Half of them are faster.
    pub p50_us: u64,
    /// One in a hundred is slower.
    pub p99_us: u64,
    /// The slowest.
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
        // Strings, numbers and lists always have one.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// One short line: what a service manager shows.
    pub fn summary(&self) -> String {
        let state = if self.draining { "draining, " } else { "" };
        let SidecarStatus { connections, helped, direct, waiting, .. } = self;
        format!("{state}{connections} connections: {helped} helped, {direct} direct, {waiting} waiting")
    }
}

/// All of a map, in words.
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
        write!(f, ", relief {} ({})", self.relief, self.relief_stage)?;
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
        if self.threads_scarce > 0 {
            write!(f, ", memory scarce on {} of {} threads", self.threads_scarce, self.threads)?;
        }
        if self.log_lines_dropped > 0 {
            write!(f, ", {} log lines dropped", self.log_lines_dropped)?;
        }
        Ok(())
    }
}

//! CPU use and other counters between two moments.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_lab::{HostCpu, Quota};
use spillway_load::monotonic_ns;

use crate::machine::Load;

/// A helper's counters of batches to its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCount {
    /// Batches sent so far.
    pub batches: u64,
    /// Data messages in these batches.
    pub messages: u64,
}

/// CPU accounts and other counters of all hosts and of the machine at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    taken_ns: u64,
    server: HostCpu,
    helper: HostCpu,
    clients: HostCpu,
    bridge: HostCpu,
    batches: Option<BatchCount>,
    stalled: Duration,
    machine: Load,
}

/// Differences of counters between two moments. CPU times are in s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Time between the two moments, in s.
    pub seconds: f64,
    /// CPU time of the server's processes.
    pub server_process_s: f64,
    /// CPU time of the server's interface.
    pub server_interface_s: f64,
    /// CPU time of the helper's host, interface included.
    pub helper_s: f64,
    /// CPU time of all client hosts, interfaces included.
    pub clients_s: f64,
    /// CPU time of the bridge.
    pub bridge_s: f64,
    /// Quota periods in which the server was runnable.
    pub periods: u64,
    /// Quota periods in which the server used up its quota.
    pub throttled: u64,
    /// Batches that the helper sent.
    pub batches: u64,
    /// Messages in these batches.
    pub messages: u64,
    /// Steal time, summed over all cores, in s.
    pub stolen_s: f64,
    /// Stalls, summed over all cores, in s. A thread on each core measures how late it wakes up, which shows
    /// shorter stalls, and shows them sooner, than the kernel's steal time.
    pub stalled_s: f64,
    /// CPU time of processes on this machine that belong neither to the hosts nor to this process. The kernel
    /// counts CPU time by sampling, so the value can be slightly below zero.
    pub others_s: f64,
}

impl Snapshot {
    /// Combines the hosts' CPU accounts and the stall time, which the caller has just read, with the
    /// machine's counters.
    pub fn now(
        server: HostCpu,
        helper: HostCpu,
        clients: HostCpu,
        bridge: HostCpu,
        stalled: Duration,
    ) -> Snapshot {
        let (taken_ns, machine) = (monotonic_ns(), Load::now());
        Snapshot { taken_ns, server, helper, clients, bridge, batches: None, stalled, machine }
    }

    /// Adds the batch counters of helpers, read at about the same time.
    pub fn with_batches(self, batches: Option<BatchCount>) -> Snapshot {
        Snapshot { batches, ..self }
    }

    /// Time of the snapshot on the monotonic clock, in ns.
    pub fn taken_ns(&self) -> u64 {
        self.taken_ns
    }

    /// Differences from an earlier snapshot.
    pub fn since(&self, earlier: &Snapshot) -> Used {
        let server = self.server.since(&earlier.server);
        let total = |later: &HostCpu, earlier: &HostCpu| later.since(earlier).total().as_secs_f64();
        let helper_s = total(&self.helper, &earlier.helper);
        let clients_s = total(&self.clients, &earlier.clients);
        let bridge_s = total(&self.bridge, &earlier.bridge);
        let machine = self.machine.since(&earlier.machine);
        let hosts_s = server.total().as_secs_f64() + helper_s + clients_s + bridge_s;
        let batches = match (self.batches, earlier.batches) {
            (Some(later), Some(earlier)) => BatchCount {
                batches: later.batches.saturating_sub(earlier.batches),
                messages: later.messages.saturating_sub(earlier.messages),
            },
            _ => BatchCount::default(),
        };
        Used {
            seconds: self.taken_ns.saturating_sub(earlier.taken_ns) as f64 / 1e9,
            server_process_s: server.process.as_secs_f64(),
            server_interface_s: server.interface.as_secs_f64(),
            helper_s,
            clients_s,
            bridge_s,
            periods: server.periods,
            throttled: server.throttled_periods,
            batches: batches.batches,
            messages: batches.messages,
            stolen_s: machine.stolen_s,
            stalled_s: self.stalled.saturating_sub(earlier.stalled).as_secs_f64(),
            others_s: if ignores_others() { 0.0 } else { machine.busy_s - machine.own_s - hosts_s },
        }
    }
}

/// Whether SPILLWAY_BENCH_BUSY is set: the CPU time of other processes then counts as 0, so that experiments
/// can be developed on a busy machine. Figures of such a run must not be cited.
fn ignores_others() -> bool {
    std::env::var_os("SPILLWAY_BENCH_BUSY").is_some()
}

impl Used {
    /// Converts CPU time in s to percent of one core.
    pub fn percent(&self, seconds: f64) -> f64 {
        if self.seconds > 0.0 { 100.0 * seconds / self.seconds } else { 0.0 }
    }

    /// CPU time of the server's host, processes and interface, in s.
    pub fn server_s(&self) -> f64 {
        self.server_process_s + self.server_interface_s
    }

    /// CPU use of the server's host, in percent of one core.
    pub fn server_percent(&self) -> f64 {
        self.percent(self.server_s())
    }

    /// Used share of the server's quota, 0 to 1; `None` without a quota.
    pub fn quota_share(&self, quota: Option<Quota>) -> Option<f64> {
        quota.map(|quota| self.server_percent() / quota.percent_of_core)
    }

    /// Share of the server host's CPU time that its interface used, 0 to 1.
    pub fn interface_share(&self) -> f64 {
        let total = self.server_s();
        if total > 0.0 { self.server_interface_s / total } else { 0.0 }
    }

    /// Mean number of messages in a batch; `None` without batches.
    pub fn messages_per_batch(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.messages as f64 / self.batches as f64)
    }

    /// CPU time per request in µs, for each kind of host: server, helper, clients, bridge.
    pub fn us_per_request(&self, requests: u64) -> [(&'static str, f64); 4] {
        let each = |seconds: f64| if requests > 0 { seconds * 1e6 / requests as f64 } else { 0.0 };
        [
            ("server", each(self.server_s())),
            ("helper", each(self.helper_s)),
            ("clients", each(self.clients_s)),
            ("bridge", each(self.bridge_s)),
        ]
    }

    /// Adds all fields of another span.
    pub fn add(&mut self, other: &Used) {
        self.seconds += other.seconds;
        self.server_process_s += other.server_process_s;
        self.server_interface_s += other.server_interface_s;
        self.helper_s += other.helper_s;
        self.clients_s += other.clients_s;
        self.bridge_s += other.bridge_s;
        self.periods += other.periods;
        self.throttled += other.throttled;
        self.batches += other.batches;
        self.messages += other.messages;
        self.stolen_s += other.stolen_s;
        self.stalled_s += other.stalled_s;
        self.others_s += other.others_s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_taken_between_snapshots() {
        let cpu = |ms: u64| HostCpu {
            process: Duration::from_millis(ms),
            interface: Duration::from_millis(ms / 4),
            ..HostCpu::default()
        };
        let snapshot = |taken_ns, scale: u64, batches| Snapshot {
            taken_ns,
            server: cpu(40 * scale),
            helper: cpu(80 * scale),
            clients: cpu(120 * scale),
            bridge: cpu(4 * scale),
            batches: Some(batches),
            stalled: Duration::from_millis(scale),
            machine: Load::default(),
        };
        let first = snapshot(1_000_000_000, 1, BatchCount { batches: 5, messages: 50 });
        let second = snapshot(2_000_000_000, 2, BatchCount { batches: 15, messages: 350 });
        let used = second.since(&first);
        assert_eq!(used.seconds, 1.0);
        assert!((used.server_percent() - 5.0).abs() < 1e-9 && (used.interface_share() - 0.2).abs() < 1e-9);
        assert_eq!(used.messages_per_batch(), Some(30.0));
        let costs = used.us_per_request(1_000);
        assert_eq!(costs.map(|(name, _)| name), ["server", "helper", "clients", "bridge"]);
        assert!((costs[0].1 - 50.0).abs() < 1e-9 && (costs[3].1 - 5.0).abs() < 1e-9);
        assert_eq!(Used::default().messages_per_batch(), None);
    }
}

//! Accounts of the hosts: CPU time, traffic on the server's cable, and batches of helpers.

use std::time::Duration;

use spillway_lab::HostCpu;

use super::Stage;
use crate::error::Error;
use crate::measure::{BatchCount, Snapshot};
use crate::served::Helper;

/// Counters of an interface, both directions together. A segment that the interface splits counts once, with one set of
/// headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Bytes sent and received.
    pub bytes: u64,
    /// Packets sent and received.
    pub packets: u64,
}

impl Wire {
    /// Differences from an earlier reading.
    pub(super) fn since(&self, earlier: &Wire) -> Wire {
        Wire {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            packets: self.packets.saturating_sub(earlier.packets),
        }
    }
}

impl Stage {
    /// Counters of the server host's interface.
    pub fn wire(&self) -> Result<Wire, Error> {
        let counters = self.server.counters()?;
        let (bytes, packets) =
            (counters.rx_bytes + counters.tx_bytes, counters.rx_packets + counters.tx_packets);
        Ok(Wire { bytes, packets })
    }

    /// The snapshot at the start of a measured span. Reads the helpers' batch counters first and CPU times
    /// second, so that the span omits the CPU time that helpers take to report their counters.
    pub fn snapshot<'h>(&self, helpers: impl IntoIterator<Item = &'h Helper>) -> Result<Snapshot, Error> {
        let batches = batches(helpers);
        Ok(self.cpu_snapshot()?.with_batches(batches))
    }

    /// The snapshot at the end of a measured span. Reads CPU times first and the helpers' batch counters
    /// second, so that the span omits the CPU time that helpers take to report their counters, which grows
    /// with their services.
    pub fn last_snapshot<'h>(
        &self,
        helpers: impl IntoIterator<Item = &'h Helper>,
    ) -> Result<Snapshot, Error> {
        let snapshot = self.cpu_snapshot()?;
        Ok(snapshot.with_batches(batches(helpers)))
    }

    fn cpu_snapshot(&self) -> Result<Snapshot, Error> {
        let client = self.client.cpu()?;
        let (server, middle, bridge) = (self.server.cpu()?, self.middle_cpu()?, self.lab.bridge_cpu()?);
        Ok(Snapshot::now(server, middle, client, bridge, self.steady.stalled()))
    }

    /// CPU time so far of all hosts for helpers and proxies, except that of [`Stage::second_middle`].
    pub fn middle_cpu(&self) -> Result<HostCpu, Error> {
        let mut sum = HostCpu::default();
        for host in self.middle_hosts() {
            let cpu = host.cpu()?;
            sum.process += cpu.process;
            sum.interface += cpu.interface;
        }
        Ok(sum)
    }
}

/// CPU time of all threads of a process; 0 if it has ended.
pub fn process_cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ran_ns = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ran_ns.sum())
}

/// The sum of all helpers' batch counters, without helpers that are too busy to report them.
fn batches<'h>(helpers: impl IntoIterator<Item = &'h Helper>) -> Option<BatchCount> {
    let counts = helpers.into_iter().filter_map(|helper| helper.batches().ok());
    counts.reduce(|sum, count| BatchCount {
        batches: sum.batches + count.batches,
        messages: sum.messages + count.messages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_process_grows() {
        let before = process_cpu(std::process::id());
        let mut sum = 0u64;
        while process_cpu(std::process::id()) == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(process_cpu(u32::MAX), Duration::ZERO);
    }
}

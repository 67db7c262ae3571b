//! Samples of this host's servers under `spillway run`, from their status pages.

use serde_json::{Value, json};
use spillway_shim_core::status::{ServerStatus, Traffic, find_pages};

use crate::commands::servers::{connections, count_of, established, refusals};

pub(crate) struct ServerSample {
    pub(crate) pid: u32,
    /// The PID namespace in which `pid` counts; `None`: that of this program.
    pid_namespace: Option<u64>,
    pub(crate) program: String,
    pub(crate) status: ServerStatus,
    /// Rates since the previous snapshot.
    pub(crate) rates: Option<ServerRates>,
}

/// A server's rates per second between two snapshots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServerRates {
    pub(crate) messages: f64,
    pub(crate) batches: f64,
    /// `None` without batches.
    pub(crate) messages_per_batch: Option<f64>,
    pub(crate) stalls: f64,
    pub(crate) refused: f64,
}

/// All servers whose status pages this user may read.
pub(super) fn sample(before: &[ServerSample]) -> Vec<ServerSample> {
    let (pages, _) = find_pages();
    let readable = pages.iter().filter_map(|page| Some((page, page.status().ok()?)));
    readable
        .map(|(page, status)| {
            let is_same =
                |sample: &&ServerSample| (sample.pid, sample.pid_namespace) == (page.pid, page.pid_namespace);
            let earlier = before.iter().find(is_same);
            let rates = earlier.and_then(|earlier| ServerRates::between(&earlier.status, &status));
            let (pid, pid_namespace, program) = (page.pid, page.pid_namespace, page.program());
            ServerSample { pid, pid_namespace, program, status, rates }
        })
        .collect()
}

impl ServerRates {
    fn between(before: &ServerStatus, after: &ServerStatus) -> Option<ServerRates> {
        let seconds = after.age.checked_sub(before.age)?.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let traffic =
            |what| count_of(&after.traffic, what).saturating_sub(count_of(&before.traffic, what)) as f64;
        let refused = |status| refusals(status).map(|(_, number)| number).sum::<u64>();
        let (messages, batches) = (traffic(Traffic::MessagesReceived), traffic(Traffic::BatchesReceived));
        Some(ServerRates {
            messages: messages / seconds,
            batches: batches / seconds,
            messages_per_batch: (batches > 0.0).then(|| messages / batches),
            stalls: traffic(Traffic::Stalls) / seconds,
            refused: refused(after).saturating_sub(refused(before)) as f64 / seconds,
        })
    }
}

impl ServerSample {
    pub(super) fn links(&self) -> usize {
        established(&self.status)
    }

    pub(super) fn connections(&self) -> u64 {
        connections(&self.status)
    }

    pub(super) fn as_json(&self) -> Value {
        let rates = self.rates.map(|rates| {
            json!({
                "messages_per_second": rates.messages,
                "batches_per_second": rates.batches,
                "messages_per_batch": rates.messages_per_batch,
                "stalls_per_second": rates.stalls,
                "refused_per_second": rates.refused,
            })
        });
        json!({
            "pid": self.pid,
            "program": self.program,
            "state": self.status.state.name(),
            "links": self.links(),
            "connections": self.connections(),
            "rates": rates,
        })
    }
}

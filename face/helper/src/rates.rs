//! Rates between two snapshots of a helper's status.

use serde::Serialize;
use serde_json::{Value, json};
use spillway_daemon::deprecated::add_old_fields;

use crate::status::{HelperStatus, ServiceStatus};

/// Rates of a helper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Time between the snapshots, in seconds.
    pub seconds: f64,
    /// CPU of each network thread, in percent of one core.
    pub thread_cpu_percent: Vec<f64>,
    /// Rates of each service of the later snapshot.
    pub services: Vec<ServiceRates>,
}

/// Rates of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServiceRates {
    /// Name of the service.
    pub name: String,
    /// Segments of requests from clients.
    pub requests_per_second: f64,
    /// Segments of replies from the server.
    pub replies_per_second: f64,
    /// Bytes of requests and replies.
    pub bytes_per_second: f64,
    /// Batches to the server.
    pub batches_per_second: f64,
    /// Data messages in each batch, on average; `None` without batches.
    pub messages_per_batch: Option<f64>,
    /// Median of the delay that batching adds, in microseconds.
    pub delay_p50_us: Option<f64>,
    /// 99th percentile of the delay that batching adds, in microseconds.
    pub delay_p99_us: Option<f64>,
    /// Times that a plain client could not send.
    pub stalls_per_second: f64,
    /// Median latency of the measured requests, in microseconds.
    pub latency_p50_us: Option<f64>,
    /// 99th percentile of the latency of the measured requests, in microseconds.
    pub latency_p99_us: Option<f64>,
    /// Clients refused.
    pub refused_per_second: f64,
    /// Clients reset by the helper.
    pub reset_per_second: f64,
}

impl Rates {
    /// The JSON form, which also has the field names of the previous version.
    pub fn to_value(&self) -> Value {
        let mut document = json!({ "rates": self });
        add_old_fields(&mut document);
        document["rates"].take()
    }

    /// The rates between two snapshots. `None` if they are of different processes, or `after` is not the later one.
    pub fn between(before: &HelperStatus, after: &HelperStatus) -> Option<Rates> {
        if before.pid != after.pid || after.uptime_ms <= before.uptime_ms {
            return None;
        }
        let seconds = (after.uptime_ms - before.uptime_ms) as f64 / 1000.0;
        let cpu = after.per_thread.iter().map(|thread| {
            let earlier = before.per_thread.iter().find(|earlier| earlier.thread == thread.thread);
            let earlier = earlier.map_or(thread.cpu_us, |earlier| earlier.cpu_us);
            thread.cpu_us.saturating_sub(earlier) as f64 / (seconds * 1e6) * 100.0
        });
        let zero = ServiceStatus::default();
        let services = after.services.iter().map(|service| {
            let earlier = before.services.iter().find(|earlier| earlier.name == service.name);
            ServiceRates::between(earlier.unwrap_or(&zero), service, seconds)
        });
        Some(Rates { seconds, thread_cpu_percent: cpu.collect(), services: services.collect() })
    }
}

impl ServiceRates {
    fn between(before: &ServiceStatus, after: &ServiceStatus, seconds: f64) -> ServiceRates {
        // Totals fall if a thread does not answer, or a service was removed and added again.
        let increase = |count: fn(&ServiceStatus) -> u64| count(after).saturating_sub(count(before)) as f64;
        let batches = increase(|s| s.batches_sent);
        let delay = after.batch_delay_us.since(&before.batch_delay_us);
        let latency = after.request_latency_us.since(&before.request_latency_us);
        ServiceRates {
            name: after.name.clone(),
            requests_per_second: increase(|s| s.requests) / seconds,
            replies_per_second: increase(|s| s.replies) / seconds,
            bytes_per_second: increase(|s| s.request_bytes + s.reply_bytes) / seconds,
            batches_per_second: batches / seconds,
            messages_per_batch: (batches > 0.0).then(|| increase(|s| s.messages_sent) / batches),
            delay_p50_us: delay.quantile(0.5),
            delay_p99_us: delay.quantile(0.99),
            latency_p50_us: latency.quantile(0.5),
            latency_p99_us: latency.quantile(0.99),
            stalls_per_second: increase(|s| s.stalls) / seconds,
            refused_per_second: increase(|s| s.refused.total) / seconds,
            reset_per_second: increase(|s| s.reset.total + s.clients_lost_with_link) / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::Distribution;
    use crate::status::ThreadStatus;

    fn status(uptime_ms: u64, cpu_us: u64, requests: u64) -> HelperStatus {
        let delay = Distribution { bounds: vec![100, 200], counts: vec![requests, 0, 0], sum: 0 };
        let service = ServiceStatus {
            name: "cache".into(),
            requests,
            batches_sent: requests / 10,
            messages_sent: requests,
            batch_delay_us: delay,
            ..ServiceStatus::default()
        };
        let per_thread = vec![ThreadStatus { thread: 0, cpu_us, ..ThreadStatus::default() }];
        HelperStatus { pid: 7, uptime_ms, per_thread, services: vec![service], ..HelperStatus::default() }
    }

    #[test]
    fn rates_cover_the_time_between_snapshots() {
        let rates = Rates::between(&status(1_000, 0, 1_000), &status(3_000, 500_000, 5_000)).unwrap();
        assert_eq!((rates.seconds, rates.thread_cpu_percent), (2.0, vec![25.0]));
        let cache = &rates.services[0];
        assert_eq!((cache.requests_per_second, cache.batches_per_second), (2_000.0, 200.0));
        assert_eq!((cache.messages_per_batch, cache.delay_p50_us), (Some(10.0), Some(50.0)));
    }

    #[test]
    fn snapshots_of_different_processes_have_no_rates() {
        let other = HelperStatus { pid: 8, ..status(1_000, 0, 0) };
        assert_eq!(Rates::between(&other, &status(2_000, 0, 0)), None);
        assert_eq!(Rates::between(&status(2_000, 0, 0), &status(2_000, 0, 0)), None);
        let idle = Rates::between(&status(1_000, 0, 100), &status(2_000, 0, 100)).unwrap();
        assert_eq!((idle.services[0].messages_per_batch, idle.services[0].delay_p99_us), (None, None));
    }
}

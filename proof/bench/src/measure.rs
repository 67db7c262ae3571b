//! CPU use between two moments, and whether a measurement over that time is valid.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use spillway_lab::{HostCpu, Quota};
use spillway_load::histogram::Histogram;
use spillway_load::monotonic_ns;
use spillway_load::report::Bin;

use crate::error::Error;
use crate::machine::Load;
use crate::relief::Span;
use crate::table::milliseconds;

/// The quota did not limit a server that used more than this share of it.
pub(crate) const QUOTA_SHARE_MAX: f64 = 1.05;
/// A saturated server uses at least this share of its quota.
pub(crate) const QUOTA_SHARE_SATURATED: f64 = 0.95;
/// If helpers or clients use this much of a core, in percent, a figure may show their limit and not the
/// server's.
const CORE_PERCENT_MAX: f64 = 80.0;
/// A measurement is spoilt if the p99 of the clients' own lag reaches this value, in µs.
const LAG_P99_US_MAX: u64 = 1_000;
/// A measurement of times is spoilt if steal time exceeds this share of the measured time.
const STOLEN_SHARE_MAX: f64 = 0.01;
/// Share of requests that may miss the SLA, because the SLA applies to the p99.
const LATE_SHARE_MAX: f64 = 0.01;
/// A stall may make requests late for this multiple of the stall's length. Late are requests that arrive
/// during the stall, requests that queue behind the resulting backlog, and requests that arrive after the
/// server has used up its quota for the backlog, until the next quota period.
const LATE_PER_STALLED: f64 = 8.0;
/// If a server uses less than this share of its quota, late direct replies have another cause than the
/// server.
const QUOTA_SHARE_IDLE: f64 = 0.5;
/// A measurement is spoilt if other processes use more CPU time than this, in percent of a core.
pub(crate) const OTHERS_PERCENT_MAX: f64 = 15.0;
/// A failed step is spoilt if other processes use more CPU time than this, in percent of a core. The limit is
/// above [`LATE_SHARE_MAX`], the share of requests that may be late. An idle machine uses about 0.5 %; a
/// kernel thread that scans for idle pages takes 2 % in some seconds.
const OTHERS_PERCENT_FAILED: f64 = 1.5;

/// Measures until a result is valid, at most `attempts_max` times and at least once. Returns the last result,
/// which may be invalid.
pub(crate) fn measure_until_valid<T>(
    attempts_max: u32,
    mut measure: impl FnMut() -> Result<T, Error>,
    is_valid: impl Fn(&T) -> bool,
) -> Result<T, Error> {
    let mut result = measure()?;
    for _ in 1..attempts_max {
        if is_valid(&result) {
            break;
        }
        result = measure()?;
    }
    Ok(result)
}

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

/// A measurement at a fixed rate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// The ordered rate, in requests a second.
    pub rate_per_s: f64,
    /// Requests and latencies.
    pub span: Span,
    /// p99 of the clients' own lag, in µs.
    pub lag_p99_us: u64,
    /// CPU use.
    pub used: Used,
    /// Replies received per second during the step, including replies to requests from before the step.
    pub replies_per_s: f64,
}

impl Step {
    /// Makes a step from its bins, its CPU use, and the number of replies received during the step.
    pub fn new(rate_per_s: f64, bins: &[Bin], used: Used, replies: u64) -> Step {
        let mut lag = Histogram::default();
        bins.iter().for_each(|bin| lag.merge(&bin.lag_us));
        let replies_per_s = if used.seconds > 0.0 { replies as f64 / used.seconds } else { 0.0 };
        Step {
            rate_per_s,
            span: Span::of(bins, 0, u64::MAX),
            lag_p99_us: lag.quantile_us(0.99),
            used,
            replies_per_s,
        }
    }

    /// All figures in one line.
    pub fn summary(&self, sla_us: u64) -> String {
        let (span, used) = (&self.span, &self.used);
        let latency = |q: f64| milliseconds(span.quantile_us(q), "unanswered");
        let costs: Vec<String> = [
            ("server", used.server_s()),
            ("its interface", used.server_interface_s),
            ("helper", used.helper_s),
            ("clients", used.clients_s),
            ("bridge", used.bridge_s),
            ("others", used.others_s),
        ]
        .map(|(name, seconds)| format!("{name} {:.1} %", used.percent(seconds)))
        .into();
        format!(
            "{:>8.0}/s: {:6.2} % on time, p50 {}, p99 {}, p99.9 {}, {:.0} replies/s; {}; throttled {:.0}/s; lag {} µs; \
             stolen {:.0} ms, stalled {:.1} ms; {:.1} messages a batch",
            self.rate_per_s,
            100.0 * span.on_time_share(sla_us),
            latency(0.5),
            latency(0.99),
            latency(0.999),
            self.replies_per_s,
            costs.join(", "),
            if used.seconds > 0.0 { used.throttled as f64 / used.seconds } else { 0.0 },
            self.lag_p99_us,
            used.stolen_s * 1000.0,
            used.stalled_s * 1000.0,
            used.messages_per_batch().unwrap_or(0.0)
        )
    }

    /// The reason why the step is not valid, or `None` for a valid step. A server that used more than its
    /// quota spoils only a step that kept the SLA: a step that failed would have failed within the quota,
    /// too. A stall spoils only a failed step whose late requests the stall can explain, and a little other
    /// work spoils only a failed step.
    pub fn spoilt(&self, quota: Option<Quota>, sla_us: u64) -> Option<String> {
        let is_kept = self.span.keeps(sla_us);
        let excess = 1.0 - self.span.on_time_share(sla_us) - LATE_SHARE_MAX;
        if !is_kept && excess <= LATE_PER_STALLED * self.used.stalled_s / self.used.seconds {
            return Some(format!(
                "the machine stalled for {:.0} ms of {:.1} s, which explains the late requests",
                self.used.stalled_s * 1000.0,
                self.used.seconds
            ));
        }
        let others = self.used.percent(self.used.others_s);
        if !is_kept && others > OTHERS_PERCENT_FAILED {
            return Some(format!("other work on this machine used {others:.0} % of a core"));
        }
        let over_quota = self.used.quota_share(quota).filter(|&share| is_kept && share > QUOTA_SHARE_MAX);
        if let Some(share) = over_quota {
            return Some(format!("the server used {:.0} % of its quota", share * 100.0));
        }
        spoilt_by(&self.used, self.lag_p99_us)
    }

    /// [`Step::spoilt`] for direct clients. Such a step is also spoilt if replies were late although the
    /// server used little of its quota: the server's capacity was not the cause.
    pub fn spoilt_direct(&self, quota: Option<Quota>, sla_us: u64) -> Option<String> {
        self.spoilt(quota, sla_us).or_else(|| {
            let share = self.used.quota_share(quota).filter(|&share| share < QUOTA_SHARE_IDLE)?;
            (!self.span.keeps(sla_us)).then(|| {
                format!("replies were late while the server used {:.0} % of its quota", share * 100.0)
            })
        })
    }
}

/// The reason why no measurement over this time is valid (lagging clients, busy helpers or clients, other
/// work), or `None`.
pub fn spoilt_by(used: &Used, lag_p99_us: u64) -> Option<String> {
    if lag_p99_us >= LAG_P99_US_MAX {
        return Some(format!("the clients lagged: p99 {:.1} ms", lag_p99_us as f64 / 1000.0));
    }
    too_busy(used).or_else(|| disturbed(used))
}

/// An error text if helpers, or clients, used so much of a core that the core may have been the limit instead
/// of the server.
pub fn too_busy(used: &Used) -> Option<String> {
    let busy = |(name, seconds): (&str, f64)| {
        let percent = used.percent(seconds);
        (percent >= CORE_PERCENT_MAX).then(|| format!("the {name} used {percent:.0} % of a core"))
    };
    [("helper", used.helper_s), ("clients", used.clients_s)].into_iter().find_map(busy)
}

/// An error text if other processes used too much CPU time.
pub fn disturbed(used: &Used) -> Option<String> {
    let others = used.percent(used.others_s);
    (others > OTHERS_PERCENT_MAX).then(|| format!("other work on this machine used {others:.0} % of a core"))
}

/// An error text if steal time was too long for a measurement of times.
pub fn stopped(used: &Used) -> Option<String> {
    (used.stolen_s > STOLEN_SHARE_MAX * used.seconds)
        .then(|| format!("the machine was stopped for {:.0} ms", used.stolen_s * 1000.0))
}

/// An error text if an overloaded server did not use 95 to 105 % of its quota: the quota was then not the
/// limit.
pub fn not_saturated(used: &Used, quota: Option<Quota>) -> Option<String> {
    let share = used.quota_share(quota)?;
    let is_saturated = (QUOTA_SHARE_SATURATED..=QUOTA_SHARE_MAX).contains(&share);
    (!is_saturated)
        .then(|| format!("the overloaded server used {:.1} % of its quota, not 95 to 105 %", share * 100.0))
}

/// A duration in ms, for JSON and tables.
pub fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUOTA: Option<Quota> = Some(Quota { percent_of_core: 10.0, period: Duration::from_millis(10) });

    /// SLAs that the steps of these tests keep and miss: the latency in all steps is 300 µs.
    const KEPT_SLA_US: u64 = 1_000;
    const MISSED_SLA_US: u64 = 100;

    fn used(server_ms: u64) -> Used {
        Used {
            seconds: 2.0,
            server_process_s: server_ms as f64 / 1000.0 * 0.75,
            server_interface_s: server_ms as f64 / 1000.0 * 0.25,
            ..Used::default()
        }
    }

    fn step(used: Used, lag_us: u64) -> Step {
        let mut bin = Bin { offered: 10, ..Bin::default() };
        bin.direct.answered = 10;
        bin.direct.latency_us.record(300, 10);
        bin.lag_us.record(lag_us, 10);
        Step::new(5.0, &[bin], used, 10)
    }

    #[test]
    fn the_first_valid_or_the_last_result_is_returned() {
        let run = |attempts_max, valid_at| {
            let mut count = 0;
            let measure = || {
                count += 1;
                Ok(count)
            };
            let result = measure_until_valid(attempts_max, measure, |&result| result == valid_at);
            (result.unwrap(), count)
        };
        assert_eq!([run(3, 1), run(3, 2), run(3, 9), run(0, 9)], [(1, 1), (2, 2), (3, 3), (1, 1)]);
    }

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

    #[test]
    fn use_beyond_the_quota_spoils_steps_that_kept_the_sla_but_not_failed_steps() {
        assert_eq!(step(used(209), 50).spoilt(QUOTA, KEPT_SLA_US), None);
        assert!(step(used(211), 50).spoilt(QUOTA, KEPT_SLA_US).unwrap().contains("106 % of its quota"));
        assert_eq!(step(used(211), 50).spoilt(QUOTA, MISSED_SLA_US), None);
        assert_eq!(step(used(1_000), 50).spoilt(None, KEPT_SLA_US), None);
    }

    #[test]
    fn lag_busy_cores_and_other_work_spoil_any_step() {
        assert!(step(used(100), 1_000).spoilt(QUOTA, MISSED_SLA_US).unwrap().contains("lagged"));
        assert_eq!(step(used(100), 999).spoilt(QUOTA, MISSED_SLA_US), None);
        let busy = Used { helper_s: 1.6, ..used(100) };
        assert!(step(busy, 50).spoilt(QUOTA, MISSED_SLA_US).unwrap().contains("helper used 80 %"));
        let busy = Used { clients_s: 1.7, ..used(100) };
        assert!(step(busy, 50).spoilt(QUOTA, MISSED_SLA_US).unwrap().contains("clients used 85 %"));
        let disturbed = Used { others_s: 0.4, ..used(100) };
        assert!(
            step(disturbed, 50)
                .spoilt(QUOTA, MISSED_SLA_US)
                .unwrap()
                .contains("other work on this machine used 20 %")
        );
    }

    #[test]
    fn a_stall_spoils_a_failed_step_only_if_it_explains_the_late_requests() {
        // All requests of 2 s are late, which a stall of 30 ms does not explain.
        let stalled = Used { stalled_s: 0.03, stolen_s: 0.03, ..used(100) };
        assert_eq!(step(stalled, 50).spoilt(QUOTA, MISSED_SLA_US), None);
        assert_eq!(step(stalled, 50).spoilt(QUOTA, KEPT_SLA_US), None);
        assert!(stopped(&stalled).unwrap().contains("stopped for 30 ms"));
        // 9 % of requests are late, 8 % more than allowed. A stall of at least 20 ms in 2 s explains 8 %.
        let mut bin = Bin { offered: 100, ..Bin::default() };
        bin.direct.answered = 100;
        bin.direct.latency_us.record(KEPT_SLA_US - 100, 91);
        bin.direct.latency_us.record(KEPT_SLA_US + 900, 9);
        let spoilt = |stalled_s| {
            let used = Used { stalled_s, ..used(100) };
            Step::new(50.0, std::slice::from_ref(&bin), used, 100).spoilt(QUOTA, KEPT_SLA_US)
        };
        assert!(spoilt(0.0201).unwrap().contains("stalled for 20 ms of 2.0 s"));
        assert_eq!(spoilt(0.0199), None);
    }

    #[test]
    fn late_direct_replies_of_a_server_below_half_its_quota_spoil_a_step() {
        let why = step(used(99), 50).spoilt_direct(QUOTA, MISSED_SLA_US).unwrap();
        assert!(why.contains("while the server used 50 % of its quota"), "{why}");
        assert_eq!(
            step(used(101), 50).spoilt_direct(QUOTA, MISSED_SLA_US),
            None,
            "above half of its quota the server may be the reason"
        );
        assert_eq!(step(used(99), 50).spoilt_direct(QUOTA, KEPT_SLA_US), None);
        assert_eq!(step(used(99), 50).spoilt_direct(None, MISSED_SLA_US), None);
        assert_eq!(
            step(used(99), 50).spoilt(QUOTA, MISSED_SLA_US),
            None,
            "late helped replies may be due to the helper"
        );
    }

    #[test]
    fn a_server_that_uses_less_or_more_than_its_quota_is_not_saturated() {
        assert_eq!(not_saturated(&used(200), QUOTA), None);
        assert!(not_saturated(&used(189), QUOTA).unwrap().contains("94.5 %"));
        assert!(not_saturated(&used(211), QUOTA).is_some());
        assert_eq!(not_saturated(&used(500), None), None);
    }
}

//! Whether a measurement is valid: reasons for which its figures may show something other than the server.

use spillway_lab::Quota;

use super::step::Step;
use super::usage::Used;
use crate::error::Error;

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

impl Step {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use spillway_load::report::Bin;

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

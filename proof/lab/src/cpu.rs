//! CPU quotas and CPU time of hosts.

use std::time::Duration;

use serde::Serialize;

use crate::LabError;

// Limits of the kernel's CFS bandwidth control.
const QUOTA_US_MIN: u64 = 1_000;
const PERIOD_US_MAX: u64 = 1_000_000;

/// The share of a core that a host may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quota {
    /// Percent of one core: 10.0 is a tenth of a core.
    pub percent_of_core: f64,
    /// Time after which the quota is renewed. Shorter periods cause shorter stalls, but the kernel demands at
    /// least 1 ms of CPU time in each period: 10 % of a core needs a period of 10 ms or more.
    pub period: Duration,
}

impl Quota {
    /// A quota with the shortest possible period, but at least 5 ms.
    pub fn percent(percent_of_core: f64) -> Quota {
        let period_us = (QUOTA_US_MIN as f64 * 100.0 / percent_of_core.max(0.1)).ceil().max(5_000.0);
        Quota { percent_of_core, period: Duration::from_micros(period_us as u64) }
    }

    /// Quota and period in µs. Returns an error outside the kernel's limits.
    pub(crate) fn micros(&self) -> Result<(u64, u64), LabError> {
        let period = u64::try_from(self.period.as_micros()).unwrap_or(u64::MAX);
        let quota = (period as f64 * self.percent_of_core / 100.0).round();
        if !quota.is_finite()
            || quota < QUOTA_US_MIN as f64
            || !(QUOTA_US_MIN..=PERIOD_US_MAX).contains(&period)
        {
            return Err(LabError::BadOption(format!(
                "a quota of {} % in periods of {:?} is not possible: it must allow at least 1 ms, in periods of \
                 1 ms to 1 s (use {:?} or more for this share)",
                self.percent_of_core,
                self.period,
                Quota::percent(self.percent_of_core).period
            )));
        }
        Ok((quota as u64, period))
    }
}

/// CPU time and throttling of a host since its start, or between two snapshots ([`HostCpu::since`]).
///
/// The resolution is 1 ns with cgroup v1 and 1 µs with v2. The kernel accounts a running thread's time at
/// scheduler ticks and switches, so a snapshot can lag by one tick (1–4 ms) for each running thread. This is
/// below 1 % of a measurement of a second or more. An interrupt's time is in the interrupted thread's
/// account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostCpu {
    /// User and system time of the host's processes, including ended ones.
    pub process: Duration,
    /// Time of the interface's NAPI thread, which does the network stack's receive work.
    pub interface: Duration,
    /// Quota periods in which the host was active.
    pub periods: u64,
    /// Quota periods in which the quota ran out.
    pub throttled_periods: u64,
    /// Time for which the quota stopped the host.
    pub throttled_time: Duration,
}

impl HostCpu {
    /// The difference between an earlier snapshot and this one.
    pub fn since(&self, earlier: &HostCpu) -> HostCpu {
        HostCpu {
            process: self.process.saturating_sub(earlier.process),
            interface: self.interface.saturating_sub(earlier.interface),
            periods: self.periods.saturating_sub(earlier.periods),
            throttled_periods: self.throttled_periods.saturating_sub(earlier.throttled_periods),
            throttled_time: self.throttled_time.saturating_sub(earlier.throttled_time),
        }
    }

    /// Processes and interface together.
    pub fn total(&self) -> Duration {
        self.process + self.interface
    }

    /// [`HostCpu::total`] in percent of one core over `elapsed`.
    pub fn percent_of_core(&self, elapsed: Duration) -> f64 {
        if elapsed.is_zero() { 0.0 } else { 100.0 * self.total().as_secs_f64() / elapsed.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_and_period_are_converted_to_microseconds() {
        let quota = Quota { percent_of_core: 10.0, period: Duration::from_millis(10) };
        assert_eq!(quota.micros().unwrap(), (1_000, 10_000));
        assert_eq!(Quota::percent(10.0).micros().unwrap(), (1_000, 10_000));
        assert_eq!(Quota::percent(20.0).micros().unwrap(), (1_000, 5_000));
        assert_eq!(Quota::percent(150.0).micros().unwrap(), (7_500, 5_000));
    }

    #[test]
    fn quotas_outside_the_kernels_limits_are_refused() {
        for (percent, millis) in [(10.0, 5), (0.0, 10), (-3.0, 10), (f64::NAN, 10), (50.0, 2_000), (500.0, 0)]
        {
            let quota = Quota { percent_of_core: percent, period: Duration::from_millis(millis) };
            assert!(quota.micros().is_err(), "{percent} % in periods of {millis} ms should be refused");
        }
    }

    #[test]
    fn differences_never_go_below_zero() {
        let early = HostCpu { process: Duration::from_secs(2), periods: 5, ..HostCpu::default() };
        let late = HostCpu { process: Duration::from_secs(3), interface: Duration::from_secs(1), ..early };
        let used = late.since(&early);
        assert_eq!((used.process, used.total()), (Duration::from_secs(1), Duration::from_secs(2)));
        assert_eq!(used.percent_of_core(Duration::from_secs(4)), 50.0);
        assert_eq!(early.since(&late).total(), Duration::ZERO);
        assert_eq!(used.percent_of_core(Duration::ZERO), 0.0);
    }
}

//! Computes the server's capacity and quota for this machine from measured costs.

use std::fmt;

use spillway_lab::Quota;

use crate::ramp::Goodput;
use crate::scene::Placement;

/// Largest capacity, in requests a second: that of a small memcached host. A larger one would show the same effects.
pub const CAPACITY_MAX_PER_S: f64 = 4_000.0;
/// Below this, batches within the SLA contain little more than one message each, and helping gains nothing.
pub const CAPACITY_MIN_PER_S: f64 = 1_000.0;
/// The burst that the machine must carry, as a multiple of the expected capacity. The demo's burst is three
/// times the capacity that its ramp finds, which may exceed the expected capacity by a tenth.
pub const BURST_TIMES: f64 = 3.3;
/// Largest share of a core that all hosts on it together may use in the burst.
const CORE_SHARE_MAX: f64 = 0.8;
/// Smallest quota, in percent of a core; its period is 20 ms. A smaller quota needs a longer period, in which the
/// server would stall for too long.
const QUOTA_PERCENT_MIN: f64 = 5.0;

/// Accepted results of a ramp, as a multiple of the expected capacity; the machine then carries a burst of three times
/// the result.
const NEAR_ENOUGH: std::ops::RangeInclusive<f64> = 0.8..=BURST_TIMES / 3.0;
const GROWTH_FACTOR_MAX: f64 = 1.5;

/// CPU time for each request, in µs, from the CPU account of each host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Cost of a direct request for the server.
    pub server_us: f64,
    /// Cost in the burst for the helper.
    pub helper_us: f64,
    /// Cost in the burst for all clients together.
    pub clients_us: f64,
    /// Cost in the burst for the bridge.
    pub bridge_us: f64,
}

/// The machine's capacity is below [`CAPACITY_MIN_PER_S`].
#[derive(Clone, Debug, PartialEq)]
pub struct TooSlow {
    capacity_per_s: f64,
    costs: Costs,
}

impl Costs {
    /// The largest capacity, in requests a second, for which a burst keeps every core below [`CORE_SHARE_MAX`]. `speed`
    /// is the share of each core that the scene has: 1, unless the cores are slowed on purpose.
    pub fn capacity_per_s(&self, placement: &Placement, speed: f64) -> f64 {
        let hosts = [
            // Even in the burst the quota limits the server to the cost of one capacity.
            (placement.server, self.server_us),
            (placement.helper, BURST_TIMES * self.helper_us),
            (placement.clients, BURST_TIMES * self.clients_us),
            (placement.bridge, BURST_TIMES * self.bridge_us),
        ];
        let limit = |core: usize| {
            let each_us: f64 =
                hosts.iter().filter(|(host_core, _)| *host_core == core).map(|(_, us)| us).sum();
            if each_us > 0.0 { CORE_SHARE_MAX * speed * 1e6 / each_us } else { f64::INFINITY }
        };
        hosts.iter().map(|(core, _)| limit(*core)).fold(CAPACITY_MAX_PER_S, f64::min)
    }

    /// [`Costs::capacity_per_s`], or an error if that is below [`CAPACITY_MIN_PER_S`].
    pub fn checked_capacity_per_s(&self, placement: &Placement, speed: f64) -> Result<f64, TooSlow> {
        let capacity_per_s = self.capacity_per_s(placement, speed);
        if capacity_per_s < CAPACITY_MIN_PER_S {
            return Err(TooSlow { capacity_per_s, costs: *self });
        }
        Ok(capacity_per_s)
    }

    /// The quota under which the server serves `capacity_per_s`.
    pub fn quota(&self, capacity_per_s: f64) -> Quota {
        let percent = (capacity_per_s * self.server_us / 1e4).max(QUOTA_PERCENT_MIN);
        Quota::percent((percent * 10.0).round() / 10.0)
    }
}

/// The corrected quota when a ramp found another capacity than the expected one; `None` if the result is near enough.
///
/// The first quota can be too large, because requests cost less at higher rates: the burst would overload the cores. It
/// can be too small, because an uneven load uses up the quota before the end of its period.
pub fn corrected(quota: Quota, expected_per_s: f64, found_per_s: f64) -> Option<Quota> {
    let found_over_expected = found_per_s / expected_per_s;
    if found_per_s <= 0.0 || NEAR_ENOUGH.contains(&found_over_expected) {
        return None;
    }
    let factor = (1.0 / found_over_expected).min(GROWTH_FACTOR_MAX);
    let percent = ((quota.percent_of_core * factor).max(QUOTA_PERCENT_MIN) * 10.0).round() / 10.0;
    (percent != quota.percent_of_core).then(|| Quota::percent(percent))
}

/// Whether a ramp ended far below the expected capacity although the server did not fail. The machine then disturbed
/// the steps, and the result does not show whether the quota is right.
pub fn is_disturbed(found: &Goodput, expected_per_s: f64) -> bool {
    let kept_per_s = found.kept_per_s.unwrap_or(0.0);
    found.failed_per_s.is_none() && kept_per_s < NEAR_ENOUGH.start() * expected_per_s
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Costs { server_us, helper_us, clients_us, bridge_us } = self;
        write!(
            f,
            "server {server_us:.1} µs direct; helper {helper_us:.1}, clients {clients_us:.1}, bridge {bridge_us:.1} µs in \
             the burst"
        )
    }
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooSlow { capacity_per_s, costs } = self;
        write!(
            f,
            "this machine is too slow to show a burst and its relief: with {:.0} % of each core it carries a server of \
             {capacity_per_s:.0} requests a second, and {CAPACITY_MIN_PER_S:.0} are needed ({costs}). Run it on a machine with faster \
             cores or with four of them",
            100.0 * CORE_SHARE_MAX
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Costs measured on the development machine, multiplied by `times` for a slower one.
    fn costs(times: f64) -> Costs {
        Costs {
            server_us: 25.0 * times,
            helper_us: 20.0 * times,
            clients_us: 27.0 * times,
            bridge_us: 14.0 * times,
        }
    }

    #[test]
    fn a_fast_machine_has_the_largest_capacity_and_a_tenth_of_a_core() {
        let placement = Placement::on(2);
        assert_eq!(costs(1.0).checked_capacity_per_s(&placement, 1.0), Ok(CAPACITY_MAX_PER_S));
        let quota = costs(1.0).quota(CAPACITY_MAX_PER_S);
        assert_eq!((quota.percent_of_core, quota.period), (10.0, Duration::from_millis(10)));
    }

    #[test]
    fn the_busiest_core_limits_the_capacity() {
        let placement = Placement::on(2);
        // Clients and bridge: 3.3 × 2 × 41 µs for each request of the capacity; 80 % of a core.
        let twice = costs(2.0).capacity_per_s(&placement, 1.0);
        assert!((twice - 800_000.0 / (3.3 * 82.0)).abs() < 1e-6, "{twice}");
        assert!((costs(2.0).quota(twice).percent_of_core - 14.8).abs() < 1e-9);
        // A helper that costs more than clients and bridge together, on the server's core.
        let heavy = Costs { helper_us: 100.0, ..costs(1.0) };
        assert!((heavy.capacity_per_s(&placement, 1.0) - 800_000.0 / (25.0 + 330.0)).abs() < 1e-6);
        // With four cores, clients and bridge no longer share one.
        assert!(costs(2.0).capacity_per_s(&Placement::on(4), 1.0) > twice * 1.3);
    }

    #[test]
    fn slowed_and_slow_cores_have_the_same_capacity() {
        let placement = Placement::on(2);
        for times in [2.0, 3.0] {
            let slow = costs(times).capacity_per_s(&placement, 1.0);
            let slowed = costs(1.0).capacity_per_s(&placement, 1.0 / times);
            assert!((slow - slowed).abs() < 1e-6, "{slow} and {slowed}");
            assert!(slow > CAPACITY_MIN_PER_S && slow < CAPACITY_MAX_PER_S);
        }
    }

    #[test]
    fn a_machine_below_the_minimum_is_refused_with_advice() {
        let refusal = costs(6.0).checked_capacity_per_s(&Placement::on(2), 1.0).unwrap_err().to_string();
        for expected in ["985 requests a second", "1000 are needed", "faster cores", "clients 162.0"] {
            assert!(refusal.contains(expected), "{expected} in {refusal}");
        }
        assert!(costs(5.9).checked_capacity_per_s(&Placement::on(2), 1.0).is_ok());
        // Costs of 0 were not measured: they set no limit and cause no division by zero.
        assert_eq!(Costs::default().capacity_per_s(&Placement::on(2), 1.0), CAPACITY_MAX_PER_S);
    }

    #[test]
    fn a_quota_is_at_least_its_minimum_and_the_kernel_accepts_it() {
        let quota = costs(1.0).quota(300.0);
        assert_eq!((quota.percent_of_core, quota.period), (5.0, Duration::from_millis(20)));
        for capacity in [1_000.0, 1_879.0, 2_818.0, 3_375.0] {
            let Quota { percent_of_core, period } = costs(1.0).quota(capacity);
            let allowance_us = period.as_micros() as f64 * percent_of_core / 100.0;
            assert!(allowance_us > 999.0, "{capacity}: {allowance_us} µs in {period:?}");
        }
    }

    #[test]
    fn a_low_ramp_end_without_a_failure_is_a_disturbance() {
        let disturbed =
            |kept_per_s, failed_per_s| is_disturbed(&Goodput { kept_per_s, failed_per_s }, 4_000.0);
        assert!(disturbed(Some(1_524.0), None) && disturbed(None, None));
        assert!(!disturbed(Some(1_524.0), Some(1_600.0)), "a failure of the server is not a disturbance");
        assert!(!disturbed(Some(3_300.0), None), "more than 0.8 of the expected capacity is near enough");
        assert!(
            !disturbed(Some(8_000.0), None),
            "a ramp that ends at its limit shows a quota that is too large"
        );
        assert!(!disturbed(None, Some(100.0)), "a failure at the lowest rate is not a disturbance");
    }

    #[test]
    fn a_quota_is_corrected_when_the_capacity_is_far_from_the_expected_one() {
        let quota = Quota::percent(16.0);
        for near in [1_700.0, 2_078.0, 2_200.0] {
            assert_eq!(corrected(quota, 2_078.0, near), None, "{near}");
        }
        let percent = |found| corrected(quota, 2_000.0, found).map(|quota| quota.percent_of_core);
        assert_eq!(percent(3_200.0), Some(10.0));
        assert_eq!(percent(1_500.0), Some(21.3));
        assert_eq!(percent(200.0), Some(24.0), "a quota should grow by one half at most");
        assert_eq!(percent(0.0), None, "a ramp without a result does not correct the quota");
        assert_eq!(corrected(Quota::percent(5.0), 1_000.0, 9_000.0), None, "the quota is at its minimum");
    }
}

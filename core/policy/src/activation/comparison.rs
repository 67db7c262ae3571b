//! Compares the latency of helped and direct members over the same time.

use core::time::Duration;

use spillway_transport::Time;

use super::member::{Carrier, Members};
use crate::histogram::Histogram;

/// Minimum number of samples on each side.
const SAMPLES_MIN: u64 = 5;

/// Compares requests that were sent after the comparison began.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub began: Time,
    /// All replies since `began`, including those to earlier requests.
    pub replies: u64,
    helped: Histogram,
    direct: Histogram,
    helped_late: u64,
    direct_late: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compared {
    /// The compared quantile: the highest for which there are enough samples.
    pub permille: u32,
    pub helped: Option<Duration>,
    pub direct: Option<Duration>,
    pub is_worse: bool,
    pub is_better: bool,
    /// Whether direct members are within the SLA.
    pub is_calm: bool,
    /// Whether there were enough direct requests for a verdict.
    pub is_known: bool,
    /// Whether helped members exceed the SLA.
    pub is_helped_late: bool,
}

impl Comparison {
    pub fn new(now: Time) -> Comparison {
        let (helped, direct) = (Histogram::default(), Histogram::default());
        Comparison { began: now, replies: 0, helped, direct, helped_late: 0, direct_late: 0 }
    }

    /// Records a reply that arrives now. `on`: the member's carrier, and since when the member uses it.
    pub fn record_latency(&mut self, now: Time, latency: Duration, on: (Carrier, Time), sla: Duration) {
        self.replies += 1;
        let (carrier, since) = on;
        if now.since(self.began.max(since)) < latency {
            return; // sent before the comparison or the move
        }
        match carrier {
            Carrier::Helped => {
                self.helped_late += u64::from(latency > sla);
                self.helped.record(latency);
            }
            Carrier::Direct => {
                self.direct_late += u64::from(latency > sla);
                self.direct.record(latency);
            }
        }
    }

    /// Replies to direct requests that were sent since the comparison began.
    pub fn answered_direct(&self) -> u64 {
        self.direct.count()
    }

    /// Judges by replies, and by outstanding requests that have waited for longer than the SLA. An outstanding request
    /// counts with its waiting time within the comparison. For `is_better` an outstanding request of a helped member
    /// counts with the whole length of the comparison, because members that moved last have not waited long.
    pub fn judge(&self, now: Time, members: &Members, sla: Duration) -> Compared {
        let (mut helped, mut direct) = (self.helped.clone(), self.direct.clone());
        let mut helped_pessimistic = helped.clone();
        let (mut helped_late, mut direct_late) = (self.helped_late, self.direct_late);
        for (_, state) in members.iter() {
            let Some(sent_at) = state.waits_since else { continue };
            let waited = now.since(sent_at.max(state.since).max(self.began));
            match state.carrier {
                _ if waited <= sla => {}
                Carrier::Helped => {
                    helped_late += 1;
                    helped.record(waited);
                    helped_pessimistic.record(now.since(self.began));
                }
                Carrier::Direct => {
                    direct_late += 1;
                    direct.record(waited);
                }
            }
        }
        let helped_count = helped.count();
        let permille = highest_permille(helped_count.min(direct.count()));
        let latency = |side: &Histogram| side.quantile(permille).filter(|_| side.count() >= SAMPLES_MIN);
        let (helped_latency, direct_latency) = (latency(&helped), latency(&direct));
        let is_known = direct.count() >= SAMPLES_MIN;
        let is_calm = is_known && direct_late * 100 <= direct.count();
        let is_helped_late = helped_late * 100 > helped_count;
        let (is_worse, is_better) = match (helped_latency, direct_latency) {
            // A helper and its batches add latency, which is acceptable within the SLA. The factor 2: a move repeats a
            // request in flight, which then waits behind all others in an overloaded server's queue.
            (Some(helped), Some(direct)) => {
                let is_better =
                    latency(&helped_pessimistic).is_some_and(|pessimistic| pessimistic <= direct / 5 * 4);
                (is_helped_late && helped > direct * 2 + sla / 2, is_better)
            }
            _ => (false, false),
        };
        Compared {
            permille,
            helped: helped_latency,
            direct: direct_latency,
            is_worse,
            is_better,
            is_calm,
            is_known,
            is_helped_late,
        }
    }
}

/// The highest quantile, per mille, for which this number of samples is enough.
pub(super) fn highest_permille(samples: u64) -> u32 {
    match samples {
        500.. => 990,
        50..500 => 900,
        _ => 500,
    }
}

/// Whether the rate `other` is at most `percent` % of the rate `one`, and the difference exceeds three standard
/// deviations of Poisson counts. A rate is a count and the time in which it was counted.
pub(super) fn is_clearly_more(one: (u64, Duration), other: (u64, Duration), percent: u32) -> bool {
    let ms = |time: Duration| time.as_millis().max(1);
    // Each count times the other rate's time, so that both have the same unit.
    let (one_scaled, other_scaled) = (u128::from(one.0) * ms(other.1), u128::from(other.0) * ms(one.1));
    let variance = u128::from(one.0) * ms(other.1).pow(2) + u128::from(other.0) * ms(one.1).pow(2);
    let excess = one_scaled.saturating_sub(other_scaled);
    other_scaled * 100 <= one_scaled * u128::from(percent)
        && excess.saturating_mul(excess) > variance.saturating_mul(9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Compares `replies` replies on each side with these latencies.
    fn compared(replies: u64, helped: Duration, direct: Duration) -> Compared {
        let mut comparison = Comparison::new(at(1000));
        for _ in 0..replies {
            comparison.record_latency(at(1200), helped, (Carrier::Helped, at(1010)), MS);
            comparison.record_latency(at(1200), direct, (Carrier::Direct, at(0)), MS);
        }
        comparison.judge(at(1250), &Members::new(), MS)
    }

    #[test]
    fn verdict_needs_a_clear_difference_and_enough_samples() {
        let worse = |helped, direct| compared(20, helped, direct).is_worse;
        assert!(
            worse(12 * MS, 5 * MS) && !worse(9 * MS, 5 * MS),
            "helped replies should be worse only at a clear difference"
        );
        assert!(!worse(MS, MS / 10), "a helped latency within the SLA should not count as worse");
        let better = |helped, direct| compared(20, helped, direct).is_better;
        assert!(
            better(4 * MS, 6 * MS) && !better(5 * MS, 5 * MS),
            "helped replies should be better only at a clear difference"
        );
        assert!(
            compared(20, MS, MS).is_calm && !compared(20, MS, 2 * MS).is_calm,
            "latencies up to the SLA should be calm, and later ones not"
        );
        let few = compared(4, 10 * MS, MS);
        assert!(
            !few.is_worse && !few.is_calm && few.helped.is_none(),
            "four replies should be too few for a verdict"
        );
    }

    #[test]
    fn earlier_requests_are_ignored_and_outstanding_ones_count() {
        let sent_before = compared(20, 195 * MS, 201 * MS);
        assert_eq!(
            (sent_before.helped, sent_before.direct),
            (None, None),
            "requests sent before the comparison should not count"
        );
        let mut members = Members::new();
        for _ in 0..10 {
            let member = members.join(at(1010), Carrier::Helped).unwrap();
            members.at_mut(member).unwrap().waits_since = Some(at(900));
        }
        let mut comparison = Comparison::new(at(1000));
        for _ in 0..10 {
            comparison.record_latency(at(1200), 5 * MS, (Carrier::Direct, at(0)), MS);
        }
        let unanswered = comparison.judge(at(1250), &members, MS);
        assert!(unanswered.is_worse, "a helper that does not reply should count as worse: {unanswered:?}");
    }

    #[test]
    fn members_that_moved_last_are_not_better() {
        let mut members = Members::new();
        for (carrier, since) in [(Carrier::Direct, 0), (Carrier::Helped, 1200)] {
            for _ in 0..20 {
                let member = members.join(at(since), carrier).unwrap();
                members.at_mut(member).unwrap().waits_since = Some(at(900));
            }
        }
        let silent = Comparison::new(at(1000)).judge(at(1250), &members, MS);
        assert!(
            silent.helped < silent.direct,
            "a helped member should count as waiting since its move: {silent:?}"
        );
        assert!(
            !silent.is_better && !silent.is_worse && !silent.is_calm,
            "members without replies from helpers should not decide: {silent:?}"
        );
    }
}

//! What a group (all connections of one process to one service) remembers of earlier moves: help was no cure, no helper
//! accepted a member, or the group returned to the server too soon; and its comparisons of helped members with direct
//! ones (*doubts*, see `doubt.rs`). The more often each has happened, the longer the group waits before the next
//! (exponential back-off).

use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

use super::settings::ActivationSettings;

/// A count of consecutive failures, which decays with time.
#[derive(Clone, Copy, Debug, Default)]
struct DecayingCount {
    count: u32,
    last_at: Time,
}

impl DecayingCount {
    fn increment(&mut self, now: Time) {
        *self = DecayingCount { count: self.count.saturating_add(1), last_at: now };
    }

    /// Reduces the count by one for each period `every` without a failure.
    fn decay(&mut self, now: Time, every: Duration) {
        while self.count > 0 && now.since(self.last_at) >= every {
            self.count -= 1;
            self.last_at = self.last_at + every;
        }
    }
}

/// Exponential back-off: `first`, doubled this number of times, at most `longest`.
fn doubled(first: Duration, doublings: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << doublings.min(24)).min(longest)
}

/// A random time about the exponential back-off after this number of doublings, at most `backoff_max`.
fn back_off(settings: &ActivationSettings, doublings: u32, random: &mut Random) -> Duration {
    let longest = settings.backoff_max;
    random.about(doubled(settings.backoff_min, doublings, longest)).min(longest)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    failures: DecayingCount,
    /// The earliest time of the next attempt.
    barred_until: Time,
    /// An attempt failed after all members had moved, and the group has not been calm since then.
    failed_after_all_moved: bool,
    /// Returns after which the group soon called for help again.
    early_returns: DecayingCount,
    returned_at: Option<Time>,
    /// Consecutive times that no helper accepted any member.
    refused: u32,
    /// When a late group last became calm before all members had moved.
    calm_before_all_moved_at: Option<Time>,
    /// Doubts: a few members returned to the server, to find out whether direct is better.
    doubts: DecayingCount,
    /// The earliest time of the next doubt.
    next_doubt_at: Time,
}

/// A group that is late again within this time after it became calm, without having moved all members, is at the edge of
/// the server's capacity.
const EDGE_TIME: Duration = Duration::from_secs(10);

impl Memory {
    /// The group was late and became calm before all members had moved.
    pub fn record_calm_before_all_moved(&mut self, now: Time) {
        self.calm_before_all_moved_at = Some(now);
    }

    /// Whether the group became calm less than [`EDGE_TIME`] ago, before all members had moved. At the edge of the
    /// server's capacity late periods are short but frequent: if the group is late again, all members should move.
    pub fn is_at_the_edge(&self, now: Time) -> bool {
        self.calm_before_all_moved_at.is_some_and(|at| now.since(at) < EDGE_TIME)
    }

    pub fn is_barred(&self, now: Time) -> bool {
        now < self.barred_until
    }

    pub fn failures(&self) -> u32 {
        self.failures.count
    }

    /// Records a failure. Returns the time to the next attempt.
    pub fn record_failure(
        &mut self,
        now: Time,
        all_had_moved: bool,
        settings: &ActivationSettings,
        random: &mut Random,
    ) -> Duration {
        self.failures.decay(now, settings.forget);
        let delay = back_off(settings, self.failures.count, random);
        self.failures.increment(now);
        self.failed_after_all_moved |= all_had_moved;
        self.barred_until = now + delay;
        delay
    }

    /// Whether canaries must be clearly faster before all members move: help was no cure when all members had last moved,
    /// and the group has not been calm since then. Not required any more when the back-off has reached its maximum.
    pub fn needs_faster_canaries(&self, settings: &ActivationSettings) -> bool {
        self.failed_after_all_moved
            && doubled(settings.backoff_min, self.failures.count.saturating_sub(1), settings.backoff_max)
                < settings.backoff_max
    }

    /// Repeats the last back-off, for a group that [needs faster canaries](Self::needs_faster_canaries) but was too small
    /// to send canaries: it cannot know whether those of other groups were faster.
    pub fn wait_again(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) {
        self.barred_until = now + back_off(settings, self.failures.count.saturating_sub(1), random);
    }

    pub fn may_doubt(&self, now: Time) -> bool {
        now >= self.next_doubt_at
    }

    /// Records a doubt, whatever its outcome.
    pub fn record_doubt(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) {
        self.doubts.decay(now, settings.forget);
        let delay = back_off(settings, self.doubts.count, random);
        self.doubts.increment(now);
        self.next_doubt_at = now + delay;
    }

    pub fn record_cure(&mut self) {
        self.failures.count = self.failures.count.saturating_sub(1);
        self.failed_after_all_moved = false;
    }

    /// The group has been calm for long: the next late period counts as one with a new cause.
    pub fn record_long_calm(&mut self) {
        self.failed_after_all_moved = false;
    }

    /// No helper accepted any member. Returns the time to the next attempt.
    pub fn record_refusal(
        &mut self,
        now: Time,
        settings: &ActivationSettings,
        random: &mut Random,
    ) -> Duration {
        let delay = random.about(self.retry(settings));
        self.refused = self.refused.saturating_add(1);
        self.barred_until = now + delay;
        delay
    }

    /// Time until a member that no helper accepted may be ordered to move again.
    pub fn retry(&self, settings: &ActivationSettings) -> Duration {
        const LONGEST: Duration = Duration::from_secs(10);
        doubled(settings.retry, self.refused, LONGEST.max(settings.retry))
    }

    pub fn record_acceptance(&mut self) {
        self.refused = 0;
    }

    /// The group returns to the server.
    pub fn record_return(&mut self, now: Time) {
        self.returned_at = Some(now);
    }

    /// The group calls for help again.
    pub fn record_call(&mut self, now: Time, settings: &ActivationSettings) {
        self.early_returns.decay(now, settings.forget);
        if self.returned_at.take().is_some_and(|at| now.since(at) < settings.calm * 2) {
            self.early_returns.increment(now);
        }
    }

    /// How long the group must be calm before it returns.
    pub fn calm_needed(&self, settings: &ActivationSettings) -> Duration {
        doubled(settings.calm, self.early_returns.count, settings.backoff_max.max(settings.calm))
    }

    /// Forgets all failures, because the operator has set an override.
    pub fn reset(&mut self) {
        *self = Memory::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    #[test]
    fn back_off_doubles_up_to_a_bound_and_failures_decay() {
        let (settings, mut random) = (ActivationSettings::default(), Random::new(1));
        let mut memory = Memory::default();
        let mut now = at(0);
        for expected in [30, 60, 120, 240, 480, 600, 600] {
            let ratio =
                memory.record_failure(now, true, &settings, &mut random).as_secs_f64() / f64::from(expected);
            // A back-off has a random factor of 0.75 to 1.25; the rest is rounding.
            assert!(
                (0.74..1.26).contains(&ratio),
                "the back-off should be about {expected} s, not {ratio} of it"
            );
            assert!(
                memory.is_barred(now) && memory.needs_faster_canaries(&settings) == (expected < 600),
                "the back-off should hold, and faster canaries be needed until it is the longest"
            );
        }
        now = at(10_000);
        assert!(!memory.is_barred(now), "the back-off should be over");
        memory.failures.decay(now, settings.forget);
        assert_eq!(memory.failures(), 0, "seven failures should decay in seven periods of `forget`");
        memory.record_long_calm();
        assert!(!memory.needs_faster_canaries(&settings), "a decayed failure should need no faster canaries");
    }

    #[test]
    fn no_back_off_exceeds_the_maximum() {
        let (settings, mut random) = (ActivationSettings::default(), Random::new(1));
        let mut memory = Memory::default();
        let latest = at(600);
        for _ in 0..100 {
            memory.record_failure(at(0), true, &settings, &mut random);
            assert!(memory.barred_until <= latest, "the back-off should be within the maximum");
            memory.wait_again(at(0), &settings, &mut random);
            assert!(memory.barred_until <= latest, "the back-off should be within the maximum");
            memory.record_doubt(at(0), &settings, &mut random);
            assert!(
                memory.next_doubt_at <= latest,
                "the wait for the next doubt should be within the maximum"
            );
        }
    }

    #[test]
    fn early_return_doubles_the_calm_that_is_needed() {
        let settings = ActivationSettings::default();
        let mut memory = Memory::default();
        let calm_s = |memory: &Memory| memory.calm_needed(&settings).as_secs();
        memory.record_return(at(0));
        memory.record_call(at(59), &settings);
        assert_eq!(calm_s(&memory), 60);
        memory.record_return(at(200));
        memory.record_call(at(500), &settings);
        assert_eq!(calm_s(&memory), 60, "a call 300 s after the return should not count as soon");
    }
}

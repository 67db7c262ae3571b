//! A group's memory of failures, with exponential back-off: help was of no use, or the group returned too soon.

use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

use super::settings::ActivationSettings;

/// A count of consecutive failures, which decays with time.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    times: u32,
    last_at: Time,
}

impl Row {
    fn again(&mut self, now: Time) {
        *self = Row { times: self.times.saturating_add(1), last_at: now };
    }

    /// Reduces the count by one for each time `every` without a failure.
    fn forget(&mut self, now: Time, every: Duration) {
        while self.times > 0 && now.since(self.last_at) >= every {
            self.times -= 1;
            self.last_at = self.last_at + every;
        }
    }
}

/// Exponential back-off: `first`, doubled `times` times, at most `longest`.
fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(24)).min(longest)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    failed: Row,
    /// The earliest time of the next attempt.
    barred_until: Time,
    /// An attempt failed after all members had moved, and the group has not been calm since then.
    in_vain: bool,
    /// Times that the group called for help again soon after it had returned.
    hasty: Row,
    returned_at: Option<Time>,
    /// Consecutive times that no helper accepted any member.
    refused: u32,
    /// When the group last became calm before all members had moved.
    calmed_at: Option<Time>,
    /// Doubts whether direct would be better, and the earliest time of the next one.
    doubted: Row,
    doubts_from: Time,
}

/// A group that is late again within this time after becoming calm without help is at the edge of the server's capacity.
const EDGE: Duration = Duration::from_secs(10);

impl Memory {
    /// The group was late and became calm before all members had moved.
    pub fn calmed(&mut self, now: Time) {
        self.calmed_at = Some(now);
    }

    /// Whether the group is late repeatedly: at the edge of the server's capacity late periods are short but frequent, so
    /// the whole group moves.
    pub fn is_at_the_edge(&self, now: Time) -> bool {
        self.calmed_at.is_some_and(|at| now.since(at) < EDGE)
    }

    pub fn is_barred(&self, now: Time) -> bool {
        now < self.barred_until
    }

    pub fn failures(&self) -> u32 {
        self.failed.times
    }

    /// Records a failure. Returns how long there is no other attempt.
    pub fn fail(
        &mut self,
        now: Time,
        all_had_moved: bool,
        settings: &ActivationSettings,
        random: &mut Random,
    ) -> Duration {
        self.failed.forget(now, settings.forget);
        let longest = settings.backoff_max;
        let lasts = random.about(doubled(settings.backoff_min, self.failed.times, longest)).min(longest);
        self.failed.again(now);
        self.in_vain |= all_had_moved;
        self.barred_until = now + lasts;
        lasts
    }

    /// Whether only canaries that are clearly faster justify a move of all, because the last one was of no use and the group
    /// has not been calm since. When the back-off has reached its maximum, an attempt may move all again.
    pub fn is_wary(&self, settings: &ActivationSettings) -> bool {
        self.in_vain
            && doubled(settings.backoff_min, self.failed.times.saturating_sub(1), settings.backoff_max)
                < settings.backoff_max
    }

    /// A wary group without canaries cannot learn the outcome of other groups' attempts: it waits as long again.
    pub fn pass(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) {
        let times = self.failed.times.saturating_sub(1);
        self.barred_until = now + random.about(doubled(settings.backoff_min, times, settings.backoff_max));
    }

    pub fn may_doubt(&self, now: Time) -> bool {
        now >= self.doubts_from
    }

    /// Records a doubt whether direct would be better, whatever its outcome.
    pub fn doubted(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) {
        self.doubted.forget(now, settings.forget);
        let lasts = doubled(settings.backoff_min, self.doubted.times, settings.backoff_max);
        self.doubted.again(now);
        self.doubts_from = now + random.about(lasts);
    }

    pub fn cured(&mut self) {
        self.failed.times = self.failed.times.saturating_sub(1);
        self.in_vain = false;
    }

    /// The group has been calm: the next late period has a new cause.
    pub fn calm(&mut self) {
        self.in_vain = false;
    }

    /// No helper accepted any member. Returns the time to the next attempt.
    pub fn refused(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) -> Duration {
        let lasts = random.about(self.retry(settings));
        self.refused = self.refused.saturating_add(1);
        self.barred_until = now + lasts;
        lasts
    }

    /// How long a member waits after no helper accepted it.
    pub fn retry(&self, settings: &ActivationSettings) -> Duration {
        const LONGEST: Duration = Duration::from_secs(10);
        doubled(settings.retry, self.refused, LONGEST.max(settings.retry))
    }

    pub fn taken(&mut self) {
        self.refused = 0;
    }

    /// The group returns to the server.
    pub fn returned(&mut self, now: Time) {
        self.returned_at = Some(now);
    }

    /// The group calls for help again.
    pub fn called(&mut self, now: Time, settings: &ActivationSettings) {
        self.hasty.forget(now, settings.forget);
        if self.returned_at.take().is_some_and(|at| now.since(at) < settings.calm * 2) {
            self.hasty.again(now);
        }
    }

    /// How long the group must be calm before it returns.
    pub fn calm_needed(&self, settings: &ActivationSettings) -> Duration {
        doubled(settings.calm, self.hasty.times, settings.backoff_max.max(settings.calm))
    }

    /// Forgets everything, after the operator set an override.
    pub fn forgive(&mut self) {
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
    fn each_failure_lasts_longer_up_to_a_bound_and_is_forgotten_slowly() {
        let (settings, mut random) = (ActivationSettings::default(), Random::new(1));
        let mut memory = Memory::default();
        let mut now = at(0);
        for expected in [30, 60, 120, 240, 480, 600, 600] {
            let lasts = memory.fail(now, true, &settings, &mut random).as_secs_f64() / f64::from(expected);
            assert!((0.74..1.26).contains(&lasts), "{expected}: {lasts}");
            assert!(memory.is_barred(now) && memory.is_wary(&settings) == (expected < 600));
        }
        now = at(10_000);
        assert!(!memory.is_barred(now));
        memory.failed.forget(now, settings.forget);
        assert_eq!(memory.failures(), 0, "16 times 10 min have passed");
        memory.calm();
        assert!(!memory.is_wary(&settings));
    }

    #[test]
    fn whoever_returned_too_soon_waits_longer_next_time() {
        let settings = ActivationSettings::default();
        let mut memory = Memory::default();
        let calm = |memory: &Memory| memory.calm_needed(&settings).as_secs();
        memory.returned(at(0));
        memory.called(at(59), &settings);
        assert_eq!(calm(&memory), 60);
        memory.returned(at(200));
        memory.called(at(500), &settings);
        assert_eq!(calm(&memory), 60, "that was long enough");
    }
}

//! What a group remembers: that help was of no use, that it returned too soon. Forgotten slowly.

use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;

use super::settings::ActivationSettings;

/// Something that went wrong so many times in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    times: u32,
    last_at: Time,
}

impl Row {
    fn again(&mut self, now: Time) {
        *self = Row { times: self.times.saturating_add(1), last_at: now };
    }

    /// One less for each so long.
    fn forget(&mut self, now: Time, every: Duration) {
        while self.times > 0 && now.since(self.last_at) >= every {
            self.times -= 1;
            self.last_at = self.last_at + every;
        }
    }
}

/// Twice as long each time.
fn doubled(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1 << times.min(24)).min(longest)
}

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    failed: Row,
    /// No attempt sooner.
    barred_until: Time,
    /// It failed when all had moved, and has not been calm since then.
    in_vain: bool,
    /// Returned by itself, and had to come back.
    hasty: Row,
    returned_at: Option<Time>,
    /// No helper took anybody.
    refused: u32,
    /// It was late and became calm by itself.
    calmed_at: Option<Time>,
    /// It was asked whether direct would be better; not sooner again.
    doubted: Row,
    doubts_from: Time,
}

/// Late again within this time after it had become calm by itself: help is wanted, not patience.
const EDGE: Duration = Duration::from_secs(10);

impl Memory {
    /// It was late, and became calm before the group had moved.
    pub fn calmed(&mut self, now: Time) {
        self.calmed_at = Some(now);
    }

    /// It is not the first time in a while that it is late: at the edge of what the server can do, each lateness is short, and
    /// together they are too many.
    pub fn is_at_the_edge(&self, now: Time) -> bool {
        self.calmed_at.is_some_and(|at| now.since(at) < EDGE)
    }

    pub fn is_barred(&self, now: Time) -> bool {
        now < self.barred_until
    }

    pub fn failures(&self) -> u32 {
        self.failed.times
    }

    /// How long nobody shall try again.
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

    /// Only what is clearly better is worth another attempt: the last one was in vain, and nothing has changed since. When
    /// attempts have become very rare, one may be whole again.
    pub fn is_wary(&self, settings: &ActivationSettings) -> bool {
        self.in_vain
            && doubled(settings.backoff_min, self.failed.times.saturating_sub(1), settings.backoff_max)
                < settings.backoff_max
    }

    /// Others may have tried, and nobody here knows what came of it: as long again.
    pub fn pass(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) {
        let times = self.failed.times.saturating_sub(1);
        self.barred_until = now + random.about(doubled(settings.backoff_min, times, settings.backoff_max));
    }

    pub fn may_doubt(&self, now: Time) -> bool {
        now >= self.doubts_from
    }

    /// It was asked whether direct would be better, whatever came of it.
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

    /// It has been calm: what comes next is something else.
    pub fn calm(&mut self) {
        self.in_vain = false;
    }

    /// No helper took anybody: when to ask again.
    pub fn refused(&mut self, now: Time, settings: &ActivationSettings, random: &mut Random) -> Duration {
        let lasts = random.about(self.retry(settings));
        self.refused = self.refused.saturating_add(1);
        self.barred_until = now + lasts;
        lasts
    }

    /// How long a member waits that was not taken.
    pub fn retry(&self, settings: &ActivationSettings) -> Duration {
        const LONGEST: Duration = Duration::from_secs(10);
        doubled(settings.retry, self.refused, LONGEST.max(settings.retry))
    }

    pub fn taken(&mut self) {
        self.refused = 0;
    }

    /// The group returns by itself, or is released.
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

    /// For how long it must be calm before the group returns by itself.
    pub fn calm_needed(&self, settings: &ActivationSettings) -> Duration {
        doubled(settings.calm, self.hasty.times, settings.backoff_max.max(settings.calm))
    }

    /// The operator knows better.
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

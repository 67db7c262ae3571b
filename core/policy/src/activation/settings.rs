//! Settings and their bounds.

use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

/// When a group of connections moves to helpers, and how carefully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationSettings {
    /// The service level agreement: 99 of 100 replies arrive within this time. 10 µs to 10 s, default 1 ms.
    pub sla: Duration,
    /// Length of the sliding window over which latencies are judged. 100 ms to 60 s, default 1 s.
    pub window: Duration,
    /// The window consists of slices of this time; at the end of each the group is judged (a *look*). 10 ms to 10 s,
    /// and a hundredth of the window to the whole window; default 100 ms.
    pub slice: Duration,
    /// Consecutive looks with p99 over the SLA before help is called. 1 to 100, default 2.
    pub late_looks: u32,
    /// Minimum number of requests for a verdict. 1 to 1,000,000, default 5.
    pub samples_min: u32,
    /// Minimum number of late requests for verdict *late*. 1 to 1,000,000, default 2: a single one does not count.
    pub late_min: u32,
    /// Percentage of connections that move first. 100: all move at once, without a comparison. 1 to 100, default 5.
    pub canary_percent: u32,
    /// How long canaries are compared with the others. 10 ms to 60 s, default 250 ms.
    pub compare: Duration,
    /// Maximum of the random wait before the first move, so that groups with the same problem do not act at the same
    /// moment. Up to 10 s, default 50 ms.
    pub jitter: Duration,
    /// Maximum of the random wait before the others move; groups of more than twenty wait less, as their moves are
    /// spread anyway. Up to 60 s, default 200 ms.
    pub spread: Duration,
    /// Time from the last move to the verdict whether help is a cure. Twice the window to 10 min, default 2 s.
    pub trial: Duration,
    /// Minimum time for which a group is helped before it returns because of calm. Up to a day, default 30 s.
    pub stay_min: Duration,
    /// How long a group must have been calm with little load before it returns. 1 s to a day, default 30 s. Doubles, up
    /// to `backoff_max`, each time that the group calls for help again soon after returning.
    pub calm: Duration,
    /// Load is *little* up to this percentage of the request rate at which help was called. 1 to 90, default 50.
    pub calm_percent: u32,
    /// Time (±25 %) to the next attempt after help was no cure. Doubles each time. 100 ms to a day, default 30 s.
    pub backoff_min: Duration,
    /// Maximum time to the next attempt. `backoff_min` to a week, default 10 min.
    pub backoff_max: Duration,
    /// After this time without another failure, one doubling is undone. 1 s to a week, default 10 min.
    pub forget: Duration,
    /// A group that returns without the server's *drain* does so over this time, as returning at once would be a burst.
    /// Up to 10 min, default 2 s.
    pub returning: Duration,
    /// Maximum number of moves a second. 1 to 1,000,000, default 5,000.
    pub moves_per_s_max: u32,
    /// Wait before a failed order is repeated. Doubles up to 10 s while no helper accepts any member. 10 ms to 10 min,
    /// default 1 s.
    pub retry: Duration,
    /// An order without a report for this time has failed. 10 ms to 10 min, default 5 s.
    pub order_timeout: Duration,
}

impl Default for ActivationSettings {
    fn default() -> ActivationSettings {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        ActivationSettings {
            sla: ms(1),
            window: s(1),
            slice: ms(100),
            late_looks: 2,
            samples_min: 5,
            late_min: 2,
            canary_percent: 5,
            compare: ms(250),
            jitter: ms(50),
            spread: ms(200),
            trial: s(2),
            stay_min: s(30),
            calm: s(30),
            calm_percent: 50,
            backoff_min: s(30),
            backoff_max: s(600),
            forget: s(600),
            returning: s(2),
            moves_per_s_max: 5_000,
            retry: s(1),
            order_timeout: s(5),
        }
    }
}

/// A setting is out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// The setting's name.
    pub setting: &'static str,
    /// The setting's bounds, as text.
    pub bounds: &'static str,
}

impl fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.setting, self.bounds)
    }
}

impl core::error::Error for OutOfBounds {}

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

impl ActivationSettings {
    /// Checks all settings.
    ///
    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let times: [(&str, Duration, RangeInclusive<Duration>, &str); 13] = [
            ("sla", self.sla, US * 10..=SECOND * 10, "10us to 10s"),
            ("window", self.window, MS * 100..=SECOND * 60, "100ms to 60s"),
            ("slice", self.slice, MS * 10..=SECOND * 10, "10ms to 10s"),
            (
                "slice",
                self.slice,
                self.window / 100..=self.window,
                "a hundredth of the window to the whole window",
            ),
            ("compare", self.compare, MS * 10..=SECOND * 60, "10ms to 60s"),
            ("jitter", self.jitter, Duration::ZERO..=SECOND * 10, "up to 10s"),
            ("spread", self.spread, Duration::ZERO..=SECOND * 60, "up to 60s"),
            ("trial", self.trial, self.window * 2..=SECOND * 600, "twice the window to 10min"),
            ("stay_min", self.stay_min, Duration::ZERO..=DAY, "up to a day"),
            ("calm", self.calm, SECOND..=DAY, "1s to a day"),
            ("backoff_min", self.backoff_min, MS * 100..=DAY, "100ms to a day"),
            ("backoff_max", self.backoff_max, self.backoff_min..=DAY * 7, "backoff_min to a week"),
            ("forget", self.forget, SECOND..=DAY * 7, "1s to a week"),
        ];
        let more: [(&str, Duration, RangeInclusive<Duration>, &str); 3] = [
            ("returning", self.returning, Duration::ZERO..=SECOND * 600, "up to 10min"),
            ("retry", self.retry, MS * 10..=SECOND * 600, "10ms to 10min"),
            ("order_timeout", self.order_timeout, MS * 10..=SECOND * 600, "10ms to 10min"),
        ];
        let numbers: [(&str, u32, RangeInclusive<u32>, &str); 6] = [
            ("late_looks", self.late_looks, 1..=100, "1 to 100"),
            ("samples_min", self.samples_min, 1..=1_000_000, "1 to 1,000,000"),
            ("late_min", self.late_min, 1..=1_000_000, "1 to 1,000,000"),
            ("canary_percent", self.canary_percent, 1..=100, "1 to 100"),
            ("calm_percent", self.calm_percent, 1..=90, "1 to 90"),
            ("moves_per_s_max", self.moves_per_s_max, 1..=1_000_000, "1 to 1,000,000"),
        ];
        let times = times
            .into_iter()
            .chain(more)
            .map(|(name, value, bounds, text)| (name, bounds.contains(&value), text));
        let numbers =
            numbers.into_iter().map(|(name, value, bounds, text)| (name, bounds.contains(&value), text));
        match times.chain(numbers).find(|(_, holds, _)| !holds) {
            Some((setting, _, bounds)) => Err(OutOfBounds { setting, bounds }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString;

    use super::*;

    #[test]
    fn defaults_are_within_bounds_and_errors_name_the_setting() {
        assert_eq!(ActivationSettings::default().check(), Ok(()));
        let error = |change: fn(&mut ActivationSettings)| {
            let mut settings = ActivationSettings::default();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert_eq!(error(|s| s.sla = US), "sla must be 10us to 10s");
        assert_eq!(error(|s| s.trial = SECOND), "trial must be twice the window to 10min");
        assert_eq!(error(|s| s.canary_percent = 0), "canary_percent must be 1 to 100");
        assert_eq!(error(|s| s.backoff_max = SECOND), "backoff_max must be backoff_min to a week");
    }
}

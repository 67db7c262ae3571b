//! When an overloaded helper drains clients, and how many (PostMan §5.2: "when a helper finds its resource utilization
//! is too high, it disconnects existing connections, so that the corresponding clients can connect to other helpers").

use core::time::Duration;

use spillway_transport::Time;

/// When to shed clients, and how fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SheddingSettings {
    /// Load at which shedding begins; 1 is the full capacity.
    pub above: f64,
    /// Load below which shedding ends; less than `above`, so that shedding does not oscillate.
    pub below: f64,
    /// How long the load must have been at least `above` before shedding begins.
    pub patience: Duration,
    /// Interval of looks, which evaluate the load; long enough for the effect of the last shedding to show.
    pub look: Duration,
    /// Share of the clients to shed at each look; at least one client.
    pub share: f64,
    /// Clients that connected within this time are not shed: they would only move from helper to helper.
    pub age_min: Duration,
    /// For this time after the last shedding the helper reports *full*, so that shed clients do not return at once.
    pub hold: Duration,
}

impl Default for SheddingSettings {
    fn default() -> SheddingSettings {
        SheddingSettings {
            above: 0.95,
            below: 0.85,
            patience: Duration::from_secs(3),
            look: Duration::from_secs(1),
            share: 0.03,
            age_min: Duration::from_secs(10),
            hold: Duration::from_secs(10),
        }
    }
}

/// Decides for one helper thread whether to shed, and how many clients.
#[derive(Clone, Debug)]
pub struct Shedding {
    settings: SheddingSettings,
    high_since: Option<Time>,
    is_shedding: bool,
    looked_at: Option<Time>,
    full_until: Option<Time>,
}

impl Shedding {
    /// A thread that does not shed yet.
    pub fn new(settings: SheddingSettings) -> Shedding {
        Shedding { settings, high_since: None, is_shedding: false, looked_at: None, full_until: None }
    }

    /// Changes the settings from the next look on.
    pub fn set(&mut self, settings: SheddingSettings) {
        self.settings = settings;
    }

    /// The settings.
    pub fn settings(&self) -> &SheddingSettings {
        &self.settings
    }

    /// Returns how many clients to shed now: 0 within [`SheddingSettings::look`] after the last look. `clients`: counts
    /// the clients that could be shed; called only during an overload.
    pub fn look(&mut self, now: Time, load: f64, clients: impl FnOnce() -> u32) -> u32 {
        if self.looked_at.is_some_and(|at| now.since(at) < self.settings.look) {
            return 0;
        }
        self.looked_at = Some(now);
        if load < self.settings.below {
            (self.high_since, self.is_shedding) = (None, false);
        } else if load >= self.settings.above {
            let since = *self.high_since.get_or_insert(now);
            self.is_shedding |= now.since(since) >= self.settings.patience;
        } else if !self.is_shedding {
            self.high_since = None;
        }
        if !self.is_shedding {
            return 0;
        }
        let clients = clients();
        if clients == 0 {
            return 0;
        }
        self.full_until = Some(now + self.settings.hold);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of the number of clients; `as` saturates"
        )]
        let share = (f64::from(clients) * self.settings.share) as u32;
        share.max(1)
    }

    /// Whether replies to load queries should report *full*.
    pub fn is_full(&self, now: Time, load: f64) -> bool {
        load >= self.settings.above || self.is_shedding || self.full_until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::vec::Vec;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Number of clients shed in each second of this series of loads, of 1,000 clients each time.
    fn shed_each_second(loads: &[f64]) -> Vec<u32> {
        let mut shedding = Shedding::new(SheddingSettings::default());
        (0..).zip(loads).map(|(second, load)| shedding.look(at(second * 1000), *load, || 1000)).collect()
    }

    #[test]
    fn short_peak_sheds_no_clients() {
        assert_eq!(shed_each_second(&[0.5, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 0.5]), [0; 9]);
    }

    #[test]
    fn lasting_overload_sheds_step_by_step_until_the_lower_threshold() {
        let loads = [1.0, 1.0, 1.0, 1.0, 0.97, 0.94, 0.91, 0.88, 0.84, 0.84, 0.94, 0.99];
        assert_eq!(shed_each_second(&loads), [0, 0, 0, 30, 30, 30, 30, 30, 0, 0, 0, 0]);
    }

    #[test]
    fn looks_are_a_second_apart_and_shed_at_least_one_client() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        let shed: u32 = (0..5_000).step_by(10).map(|ms| shedding.look(at(ms), 1.0, || 3)).sum();
        assert_eq!(shed, 2, "one client should be shed at 3 s and one at 4 s");
        assert_eq!(shedding.look(at(6_000), 1.0, || 0), 0);
    }

    #[test]
    fn helper_reports_full_for_ten_seconds_after_shedding() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        assert!(
            shedding.is_full(at(0), 0.96) && !shedding.is_full(at(0), 0.94),
            "a helper should be full from a load of 0.95 on"
        );
        for second in 0..=3 {
            shedding.look(at(second * 1000), 1.0, || 100);
        }
        assert_eq!(shedding.look(at(4_000), 0.5, || 100), 0);
        assert!(shedding.is_full(at(12_999), 0.5), "`hold` should count from the last shedding");
        assert!(!shedding.is_full(at(13_000), 0.5), "a helper should accept clients again after ten seconds");
    }

    /// The load falls with each shed client to the level at which shedding ends, and stays there.
    #[test]
    fn shedding_does_not_oscillate() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        let (mut clients, mut shed) = (1200, Vec::new());
        for second in 0..60 {
            let load = (f64::from(clients) / 1000.0).min(1.0);
            let shed_now = shedding.look(at(second * 1000), load, || clients);
            clients -= shed_now;
            shed.push(shed_now);
        }
        // A step sheds 3 %, at most 26 of 876 clients, so the last one ends less than 30 below 850.
        assert!((820..850).contains(&clients), "shedding should stop below the threshold of 0.85: {clients}");
        let last = shed.iter().rposition(|shed_now| *shed_now > 0).unwrap();
        // 3 % of 1,200 clients are 36. From 1,200 to 850 it takes 12 steps, after the patience of 3 s.
        assert!(
            last < 20 && shed.iter().all(|shed_now| *shed_now <= 36),
            "shedding should end, with few clients at a time: {shed:?}"
        );
    }
}

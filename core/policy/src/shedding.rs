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
    pub until: f64,
    /// How long the load must have been too high before shedding begins.
    pub patience: Duration,
    /// Interval of looks, long enough for the effect of the last one to show.
    pub look: Duration,
    /// Share of the clients to shed at each look; at least one client.
    pub share: f64,
    /// Clients that connected within this time are not shed: they would only move from helper to helper.
    pub young: Duration,
    /// For this time after the last look that shed clients the helper reports *full*, so that they do not return at once.
    pub hold: Duration,
}

impl Default for SheddingSettings {
    fn default() -> SheddingSettings {
        SheddingSettings {
            above: 0.95,
            until: 0.85,
            patience: Duration::from_secs(3),
            look: Duration::from_secs(1),
            share: 0.03,
            young: Duration::from_secs(10),
            hold: Duration::from_secs(10),
        }
    }
}

/// Decides for one helper thread whether to shed, and how many clients.
#[derive(Clone, Debug)]
pub struct Shedding {
    settings: SheddingSettings,
    high_since: Option<Time>,
    sheds: bool,
    looked: Option<Time>,
    full_until: Option<Time>,
}

impl Shedding {
    /// A thread that does not shed yet.
    pub fn new(settings: SheddingSettings) -> Shedding {
        Shedding { settings, high_since: None, sheds: false, looked: None, full_until: None }
    }

    /// Changes the settings from the next look on.
    pub fn set(&mut self, settings: SheddingSettings) {
        self.settings = settings;
    }

    /// When to shed clients, and how fast.
    pub fn settings(&self) -> &SheddingSettings {
        &self.settings
    }

    /// Returns how many of `clients` to shed now. May be called often: calls within [`SheddingSettings::look`] return 0.
    pub fn look(&mut self, now: Time, load: f64, clients: u32) -> u32 {
        if self.looked.is_some_and(|looked| now.since(looked) < self.settings.look) {
            return 0;
        }
        self.looked = Some(now);
        if load < self.settings.until {
            (self.high_since, self.sheds) = (None, false);
        } else if load >= self.settings.above {
            let since = *self.high_since.get_or_insert(now);
            self.sheds |= now.since(since) >= self.settings.patience;
        } else if !self.sheds {
            self.high_since = None;
        }
        if !self.sheds || clients == 0 {
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

    /// Whether to answer *full* to clients that ask for the load.
    pub fn is_full(&self, now: Time, load: f64) -> bool {
        load >= self.settings.above || self.sheds || self.full_until.is_some_and(|until| now < until)
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

    /// How many of 1000 clients are shed at each second of this series of loads.
    fn course(loads: &[f64]) -> Vec<u32> {
        let mut shedding = Shedding::new(SheddingSettings::default());
        (0..).zip(loads).map(|(second, load)| shedding.look(at(second * 1000), *load, 1000)).collect()
    }

    #[test]
    fn a_peak_sheds_nobody() {
        assert_eq!(course(&[0.5, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 0.5]), [0; 9]);
    }

    #[test]
    fn what_lasts_is_shed_step_by_step_until_well_below() {
        let loads = [1.0, 1.0, 1.0, 1.0, 0.97, 0.94, 0.91, 0.88, 0.84, 0.84, 0.94, 0.99];
        assert_eq!(course(&loads), [0, 0, 0, 30, 30, 30, 30, 30, 0, 0, 0, 0]);
    }

    #[test]
    fn looks_are_a_second_apart_and_at_least_one_goes() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        let shed: u32 = (0..5_000).step_by(10).map(|ms| shedding.look(at(ms), 1.0, 3)).sum();
        assert_eq!(shed, 2, "at 3 s and 4 s");
        assert_eq!(shedding.look(at(6_000), 1.0, 0), 0, "nobody is there");
    }

    #[test]
    fn it_says_full_for_a_while_after_it_has_shed() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        assert!(shedding.is_full(at(0), 0.96) && !shedding.is_full(at(0), 0.94));
        for second in 0..=3 {
            shedding.look(at(second * 1000), 1.0, 100);
        }
        assert_eq!(shedding.look(at(4_000), 0.5, 100), 0);
        assert!(shedding.is_full(at(12_999), 0.5), "they shall not come back at once");
        assert!(!shedding.is_full(at(13_000), 0.5));
    }

    /// The load falls with the clients that are shed, to the level at which shedding ends, and stays there.
    #[test]
    fn it_does_not_swing() {
        let mut shedding = Shedding::new(SheddingSettings::default());
        let (mut clients, mut shed) = (1200, Vec::new());
        for second in 0..60 {
            let load = (f64::from(clients) / 1000.0).min(1.0);
            let gone = shedding.look(at(second * 1000), load, clients);
            clients -= gone;
            shed.push(gone);
        }
        assert!((820..850).contains(&clients), "{clients}");
        let last = shed.iter().rposition(|gone| *gone > 0).unwrap();
        assert!(last < 20 && shed.iter().all(|gone| *gone <= 36), "{shed:?}");
    }
}

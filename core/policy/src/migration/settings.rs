//! Settings of moves, and their bounds.

use core::ops::RangeInclusive;
use core::time::Duration;

use spillway_wire::load::LOAD_MAX;

use crate::activation::OutOfBounds;

/// When a server moves connections to other servers, and how carefully.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MigrationSettings {
    /// The rule that decides.
    pub policy: MovePolicy,
    /// What no rule may exceed.
    pub limits: MoveLimits,
    /// The queueing time that counts as a load of [`LOAD_MAX`]. 10 µs to 10 s, default 1 ms.
    pub queueing_full: Duration,
}

impl Default for MigrationSettings {
    fn default() -> MigrationSettings {
        MigrationSettings {
            policy: MovePolicy::Proactive(ProactiveSettings::default()),
            limits: MoveLimits::default(),
            queueing_full: Duration::from_millis(1),
        }
    }
}

/// A rule for moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MovePolicy {
    /// Above a threshold of its own load, a server moves one connection per look to the least loaded server (Capybara
    /// §3.3).
    Reactive(ReactiveSettings),
    /// A server compares its demand with the mean of all servers, and moves the few connections that make up the
    /// difference.
    Proactive(ProactiveSettings),
}

impl MovePolicy {
    /// The name in commands and settings.
    pub fn name(&self) -> &'static str {
        match self {
            MovePolicy::Reactive(_) => "reactive",
            MovePolicy::Proactive(_) => "proactive",
        }
    }
}

/// Settings of [`MovePolicy::Reactive`]. Loads are in millionths of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactiveSettings {
    /// Moves begin at this load. 10,000 to 1,000,000, default 850,000.
    pub load_start: u32,
    /// Moves end below this load. At most `load_start`, default 750,000.
    pub load_stop: u32,
}

impl Default for ReactiveSettings {
    fn default() -> ReactiveSettings {
        ReactiveSettings { load_start: 850_000, load_stop: 750_000 }
    }
}

/// Settings of [`MovePolicy::Proactive`]. Loads are in millionths of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProactiveSettings {
    /// Moves begin when the demand exceeds the mean of all servers by this. 10,000 to 1,000,000, default 250,000.
    pub excess_start: u32,
    /// Moves end when the demand exceeds the mean by less than this. At most `excess_start`, default 100,000.
    pub excess_stop: u32,
    /// Moves begin only if the demand, or the load, has reached this too. 10,000 to 1,000,000, default 900,000.
    pub load_start: u32,
    /// Moves bring the demand down to this, or to the mean if it is higher: below, queues are short whatever the other
    /// servers do. At most `load_start`, default 800,000.
    pub load_stop: u32,
}

impl Default for ProactiveSettings {
    fn default() -> ProactiveSettings {
        ProactiveSettings {
            excess_start: 250_000,
            excess_stop: 100_000,
            load_start: 900_000,
            load_stop: 800_000,
        }
    }
}

/// Limits of all rules for moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveLimits {
    /// Maximum number of moves in any second. 1 to 1,000,000, default 1,000.
    pub moves_per_s_max: u32,
    /// A connection that has arrived by a move, or whose move has failed, stays for this time. Up to 1 h, default
    /// 100 ms.
    pub stay_min: Duration,
    /// A connection does not return to the server from which it came within this time. Up to 1 h, default 1 s.
    pub return_min: Duration,
    /// Between two heartbeats of a server, at most this percentage of its free places are used, but at least one. 1 to
    /// 100, default 25.
    pub room_percent: u32,
    /// A server without a heartbeat for this time counts as silent: it gets no moves, and is not in the mean. 1 ms to 1 h,
    /// default 200 ms.
    pub silent_after: Duration,
}

impl Default for MoveLimits {
    fn default() -> MoveLimits {
        MoveLimits {
            moves_per_s_max: 1_000,
            stay_min: Duration::from_millis(100),
            return_min: Duration::from_secs(1),
            room_percent: 25,
            silent_after: Duration::from_millis(200),
        }
    }
}

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

impl MigrationSettings {
    /// Checks all settings.
    ///
    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), OutOfBounds> {
        let MoveLimits { moves_per_s_max, stay_min, return_min, room_percent, silent_after } = self.limits;
        check_rows(&[
            ("queueing_full", self.queueing_full, US * 10..=SECOND * 10, "10us to 10s"),
            ("stay_min", stay_min, Duration::ZERO..=HOUR, "up to 1h"),
            ("return_min", return_min, Duration::ZERO..=HOUR, "up to 1h"),
            ("silent_after", silent_after, MS..=HOUR, "1ms to 1h"),
        ])?;
        check_rows(&[
            ("moves_per_s_max", moves_per_s_max, 1..=1_000_000, "1 to 1,000,000"),
            ("room_percent", room_percent, 1..=100, "1 to 100"),
        ])?;
        match self.policy {
            MovePolicy::Reactive(ReactiveSettings { load_start, load_stop }) => check_rows(&[
                ("load_start", load_start, 10_000..=LOAD_MAX, "10,000 to 1,000,000"),
                ("load_stop", load_stop, 0..=load_start, "at most load_start"),
            ]),
            MovePolicy::Proactive(ProactiveSettings { excess_start, excess_stop, load_start, load_stop }) => {
                check_rows(&[
                    ("excess_start", excess_start, 10_000..=LOAD_MAX, "10,000 to 1,000,000"),
                    ("excess_stop", excess_stop, 0..=excess_start, "at most excess_start"),
                    ("load_start", load_start, 10_000..=LOAD_MAX, "10,000 to 1,000,000"),
                    ("load_stop", load_stop, 0..=load_start, "at most load_start"),
                ])
            }
        }
    }
}

type Row<T> = (&'static str, T, RangeInclusive<T>, &'static str);

fn check_rows<T: PartialOrd>(rows: &[Row<T>]) -> Result<(), OutOfBounds> {
    let outside = rows.iter().find(|(_, value, range, _)| !range.contains(value));
    outside.map_or(Ok(()), |(setting, _, _, bounds)| Err(OutOfBounds { setting, bounds }))
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::string::ToString;

    use super::*;

    #[test]
    fn every_policy_has_valid_defaults_and_errors_name_the_setting() {
        let with = |policy| MigrationSettings { policy, ..MigrationSettings::default() };
        let (proactive, reactive) = (ProactiveSettings::default(), ReactiveSettings::default());
        assert_eq!(with(MovePolicy::Proactive(proactive)).check(), Ok(()));
        assert_eq!(with(MovePolicy::Reactive(reactive)).check(), Ok(()));
        let error = |settings: MigrationSettings| settings.check().unwrap_err().to_string();
        let short = MigrationSettings { queueing_full: US, ..MigrationSettings::default() };
        assert_eq!(error(short), "queueing_full must be 10us to 10s");
        let limits = MoveLimits { room_percent: 0, ..MoveLimits::default() };
        let no_room = MigrationSettings { limits, ..MigrationSettings::default() };
        assert_eq!(error(no_room), "room_percent must be 1 to 100");
        let swapped = ReactiveSettings { load_start: 500_000, load_stop: 600_000 };
        assert_eq!(error(with(MovePolicy::Reactive(swapped))), "load_stop must be at most load_start");
    }
}

//! The keys of the policy for moves: its rule, thresholds and limits.
//!
//! ```toml
//! [moves]
//! policy = "proactive"
//!
//! [moves.thresholds]
//! load_start_percent = 90      # moves begin at this load
//! load_stop_percent = 80       # and end at this one
//! excess_start_percent = 25    # proactive: above the mean of all servers
//! excess_stop_percent = 10
//! queueing_full = "1ms"        # this queueing time counts as a load of 100 %
//!
//! [moves.limits]
//! moves_per_second = 1000
//! room_percent = 25            # of a target's free places, between two heartbeats
//! stay_min = "100ms"           # a connection stays after a move
//! return_min = "1s"            # and does not return before
//! ```

use std::time::Duration;

use serde::Deserialize;
use spillway_moves::{MovePolicy, PolicySettings, ProactiveSettings, ReactiveSettings};
use spillway_values::parse_duration;

/// One percent of a load or of an excess, in millionths of the capacity.
const PPM_PER_PERCENT: u32 = 10_000;

/// The values of `policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PolicyName {
    #[default]
    None,
    Reactive,
    Proactive,
}

/// The section `[moves.thresholds]`. Loads are in percent of the capacity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Thresholds {
    load_start_percent: Option<u32>,
    load_stop_percent: Option<u32>,
    excess_start_percent: Option<u32>,
    excess_stop_percent: Option<u32>,
    queueing_full: Option<String>,
}

/// The section `[moves.limits]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    moves_per_second: Option<u32>,
    room_percent: Option<u32>,
    stay_min: Option<String>,
    return_min: Option<String>,
}

impl PolicyName {
    /// The settings of the policy; `None` without one. Keys that are not given have their defaults.
    ///
    /// # Errors
    /// A value is out of its bounds, or a key is not one of this policy.
    pub(crate) fn settings(
        self,
        thresholds: &Thresholds,
        limits: &Limits,
    ) -> Result<Option<PolicySettings>, String> {
        let Thresholds {
            load_start_percent,
            load_stop_percent,
            excess_start_percent,
            excess_stop_percent,
            ..
        } = *thresholds;
        let start = percent("load_start_percent", load_start_percent)?;
        let stop = percent("load_stop_percent", load_stop_percent)?;
        let excess_start = percent("excess_start_percent", excess_start_percent)?;
        let excess_stop = percent("excess_stop_percent", excess_stop_percent)?;
        let policy = match self {
            PolicyName::None => return Ok(None),
            PolicyName::Reactive if excess_start.or(excess_stop).is_some() => {
                return Err(
                    "excess_start_percent and excess_stop_percent are for policy = \"proactive\"".into()
                );
            }
            PolicyName::Reactive => {
                let ReactiveSettings { load_start, load_stop } = ReactiveSettings::default();
                let load_start = start.unwrap_or(load_start);
                let load_stop = stop.unwrap_or(load_stop.min(load_start));
                MovePolicy::Reactive(ReactiveSettings { load_start, load_stop })
            }
            PolicyName::Proactive => {
                let defaults = ProactiveSettings::default();
                let load_start = start.unwrap_or(defaults.load_start);
                let excess_start = excess_start.unwrap_or(defaults.excess_start);
                MovePolicy::Proactive(ProactiveSettings {
                    load_start,
                    load_stop: stop.unwrap_or(defaults.load_stop.min(load_start)),
                    excess_start,
                    excess_stop: excess_stop.unwrap_or(defaults.excess_stop.min(excess_start)),
                })
            }
        };
        let mut settings = PolicySettings { policy, ..PolicySettings::default() };
        set_time(&mut settings.queueing_full, "queueing_full", thresholds.queueing_full.as_deref())?;
        set_time(&mut settings.limits.stay_min, "stay_min", limits.stay_min.as_deref())?;
        set_time(&mut settings.limits.return_min, "return_min", limits.return_min.as_deref())?;
        let all = &mut settings.limits;
        all.moves_per_s_max = limits.moves_per_second.unwrap_or(all.moves_per_s_max);
        all.room_percent = limits.room_percent.unwrap_or(all.room_percent);
        settings.check().map_err(|error| error.to_string())?;
        Ok(Some(settings))
    }
}

fn percent(key: &str, value: Option<u32>) -> Result<Option<u32>, String> {
    match value {
        Some(percent) if !(1..=100).contains(&percent) => Err(format!("{key} must be 1 to 100")),
        value => Ok(value.map(|percent| percent * PPM_PER_PERCENT)),
    }
}

fn set_time(time: &mut Duration, key: &str, text: Option<&str>) -> Result<(), String> {
    if let Some(text) = text {
        *time = parse_duration(text).map_err(|why| format!("{key}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(policy: PolicyName, thresholds: &str, limits: &str) -> Result<PolicySettings, String> {
        let (thresholds, limits) = (toml::from_str(thresholds).unwrap(), toml::from_str(limits).unwrap());
        policy.settings(&thresholds, &limits).map(Option::unwrap)
    }

    #[test]
    fn keys_that_are_not_given_have_their_defaults() {
        let defaults = PolicySettings::default();
        assert_eq!(settings(PolicyName::Proactive, "", ""), Ok(defaults));
        let own = settings(
            PolicyName::Reactive,
            "load_start_percent = 60\nqueueing_full = \"2ms\"",
            "moves_per_second = 7\nstay_min = \"1s\"",
        );
        let limits = spillway_moves::MoveLimits {
            moves_per_s_max: 7,
            stay_min: Duration::from_secs(1),
            ..defaults.limits
        };
        // The threshold at which moves end follows one that is lower than the default.
        let policy = MovePolicy::Reactive(ReactiveSettings { load_start: 600_000, load_stop: 600_000 });
        assert_eq!(own, Ok(PolicySettings { policy, limits, queueing_full: Duration::from_millis(2) }));
    }

    #[test]
    fn values_that_contradict_each_other_are_refused() {
        let why = |policy, thresholds, limits| settings(policy, thresholds, limits).unwrap_err();
        let swapped = "load_start_percent = 50\nload_stop_percent = 60";
        assert_eq!(why(PolicyName::Reactive, swapped, ""), "load_stop must be at most load_start");
        let excess = "excess_start_percent = 5";
        assert!(why(PolicyName::Reactive, excess, "").contains("are for policy = \"proactive\""));
        assert!(why(PolicyName::Proactive, "load_stop_percent = 0", "").contains("1 to 100"));
        assert!(why(PolicyName::Proactive, "queueing_full = \"soon\"", "").starts_with("queueing_full: "));
        assert!(why(PolicyName::Proactive, "", "moves_per_second = 0").contains("moves_per_s_max must be"));
    }
}

//! Planted faults: each switches off one limit, and the check of that limit must find it.

use std::time::Duration;

use spillway_policy::migration::{MigrationSettings, MovePolicy};

use super::checker::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// The limit on moves per second is ignored.
    Rush,
    /// Connections that have just arrived move on.
    Restless,
    /// Connections return at once to where they came from.
    Bounce,
    /// All free places of a target are used at once.
    Crowd,
    /// Moves begin with the load with which they end.
    Twitch,
    /// The override *off* is ignored.
    Deaf,
}

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [PlantedFault; 6] = [
        PlantedFault::Rush,
        PlantedFault::Restless,
        PlantedFault::Bounce,
        PlantedFault::Crowd,
        PlantedFault::Twitch,
        PlantedFault::Deaf,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::Rush => "rush",
            PlantedFault::Restless => "restless",
            PlantedFault::Bounce => "bounce",
            PlantedFault::Crowd => "crowd",
            PlantedFault::Twitch => "twitch",
            PlantedFault::Deaf => "deaf",
        }
    }

    /// The check that detects the fault.
    pub fn detecting_check(self) -> Check {
        match self {
            PlantedFault::Rush => Check::Pace,
            PlantedFault::Restless => Check::Stay,
            PlantedFault::Bounce => Check::Return,
            PlantedFault::Crowd => Check::Room,
            PlantedFault::Twitch => Check::Hysteresis,
            PlantedFault::Deaf => Check::Override,
        }
    }

    /// Changes a policy's settings by the fault.
    pub(super) fn change(self, settings: &mut MigrationSettings) {
        match self {
            PlantedFault::Rush => settings.limits.moves_per_s_max = 1_000_000,
            PlantedFault::Restless => settings.limits.stay_min = Duration::ZERO,
            PlantedFault::Bounce => settings.limits.return_min = Duration::ZERO,
            PlantedFault::Crowd => settings.limits.room_percent = 100,
            PlantedFault::Twitch => match &mut settings.policy {
                MovePolicy::Reactive(reactive) => reactive.load_start = reactive.load_stop,
                MovePolicy::Proactive(proactive) => proactive.excess_start = proactive.excess_stop,
            },
            PlantedFault::Deaf => {}
        }
    }
}

//! Planted faults: each is a mistake that a policy could make, and that a run must detect.

use super::checker::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// Every helped connection returns as soon as its process has no late requests.
    Flap,
    /// Neither latencies nor waiting times are reported to the policy, for any connection.
    Deaf,
    /// The limit on moves per second is ignored.
    Rush,
    /// For helped connections, no waiting times are reported to the policy, and all latencies are reported as low.
    Blind,
    /// A connection receives the same order twice.
    Twice,
    /// Failed trials of relief are not remembered.
    Forgetful,
    /// The server releases sessions as soon as latency is low, even if the load is high.
    HastyRelease,
    /// All processes move at once, without jitter and without a few sessions that move first.
    Herd,
}

impl PlantedFault {
    /// All planted faults.
    pub const ALL: [PlantedFault; 8] = [
        PlantedFault::Flap,
        PlantedFault::Deaf,
        PlantedFault::Rush,
        PlantedFault::Blind,
        PlantedFault::Twice,
        PlantedFault::Forgetful,
        PlantedFault::HastyRelease,
        PlantedFault::Herd,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            PlantedFault::Flap => "flap",
            PlantedFault::Deaf => "deaf",
            PlantedFault::Rush => "rush",
            PlantedFault::Blind => "blind",
            PlantedFault::Twice => "twice",
            PlantedFault::Forgetful => "forgetful",
            PlantedFault::HastyRelease => "hasty-release",
            PlantedFault::Herd => "herd",
        }
    }

    /// A seed with which the fault shows, found by `spillway-lab sim policy --seeds 60 --plant NAME`.
    pub fn seed(self) -> u64 {
        match self {
            PlantedFault::Rush | PlantedFault::Twice => 0,
            PlantedFault::Blind => 5,
            PlantedFault::Deaf => 9,
            PlantedFault::Flap | PlantedFault::HastyRelease => 13,
            PlantedFault::Forgetful => 20,
            PlantedFault::Herd => 34,
        }
    }

    /// The check that detects the fault.
    pub fn detecting_check(self) -> Check {
        match self {
            PlantedFault::Flap | PlantedFault::HastyRelease => Check::Switches,
            PlantedFault::Deaf => Check::Relief,
            PlantedFault::Rush => Check::Pace,
            PlantedFault::Blind => Check::Harm,
            PlantedFault::Twice => Check::Orders,
            PlantedFault::Forgetful => Check::Memory,
            PlantedFault::Herd => Check::Herd,
        }
    }
}

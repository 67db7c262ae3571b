//! Planted faults: each is a mistake that a policy could make, and that a run must detect.

use super::checker::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
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

impl Canary {
    /// All planted faults.
    pub const ALL: [Canary; 8] = [
        Canary::Flap,
        Canary::Deaf,
        Canary::Rush,
        Canary::Blind,
        Canary::Twice,
        Canary::Forgetful,
        Canary::HastyRelease,
        Canary::Herd,
    ];

    /// The name on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Canary::Flap => "flap",
            Canary::Deaf => "deaf",
            Canary::Rush => "rush",
            Canary::Blind => "blind",
            Canary::Twice => "twice",
            Canary::Forgetful => "forgetful",
            Canary::HastyRelease => "hasty-release",
            Canary::Herd => "herd",
        }
    }

    /// A seed with which the fault shows, found by `spillway-lab sim policy --seeds 60 --canary NAME`.
    pub fn seed(self) -> u64 {
        match self {
            Canary::Rush | Canary::Twice => 0,
            Canary::Blind => 5,
            Canary::Deaf => 9,
            Canary::Flap | Canary::HastyRelease => 13,
            Canary::Forgetful => 20,
            Canary::Herd => 34,
        }
    }

    /// The check that detects the fault.
    pub fn detecting_check(self) -> Check {
        match self {
            Canary::Flap | Canary::HastyRelease => Check::Switches,
            Canary::Deaf => Check::Relief,
            Canary::Rush => Check::Pace,
            Canary::Blind => Check::Harm,
            Canary::Twice => Check::Orders,
            Canary::Forgetful => Check::Memory,
            Canary::Herd => Check::Herd,
        }
    }
}

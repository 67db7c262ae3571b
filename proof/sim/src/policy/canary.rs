//! Planted faults: each is a mistake that a policy could make, and that a run must detect.

use super::books::Check;

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A helped connection returns after a second without late requests.
    Flap,
    /// Latencies are not reported to the policy.
    Deaf,
    /// The cap on moves is not kept.
    Rush,
    /// Latencies of helped connections are reported as low.
    Blind,
    /// A member gets an order twice.
    Twice,
    /// Failed attempts are not remembered.
    Forgetful,
    /// The server releases sessions as soon as latency is low, whatever the load.
    HastyRelease,
    /// All processes move at once: no jitter, no canaries.
    Herd,
}

impl Canary {
    /// All canaries.
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

    /// A seed at which the fault shows, found by `spillway-lab sim policy --seeds 60 --canary NAME`.
    pub fn shows_at(self) -> u64 {
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
    pub fn seen_by(self) -> Check {
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

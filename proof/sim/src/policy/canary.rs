//! Planted faults: each is a mistake that a policy could make, and that a run must find.

use super::books::Check;

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Whoever is helped and calm for a second returns.
    Flap,
    /// Latency is never looked at.
    Deaf,
    /// The cap on moves is not held.
    Rush,
    /// Help is taken to be of use, whatever it does.
    Blind,
    /// A member is told twice.
    Twice,
    /// Failures are not remembered.
    Forgetful,
    /// The server sends sessions back as soon as latency is low, whatever the load.
    HastyRelease,
    /// Everybody moves at once: no jitter, nobody goes first.
    Herd,
}

impl Canary {
    /// All of them.
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

    /// For command lines.
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

    /// A seed at which it shows, as was found by `spillway-lab sim policy --seeds 60 --canary NAME`.
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

    /// The check that sees it.
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

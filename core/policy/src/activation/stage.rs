//! The stages of a group, from direct to helped.

use core::time::Duration;

use spillway_transport::Time;

use super::member::Carrier;

/// A group's stage; `transitions.rs` has the transitions. In addition, the operator's override leads from any stage to
/// *helped* or *direct*, the server's *drain* to *direct*, and a long calm from *helped* to *direct*.
///
/// ```text
///            late            ┌─ no canaries ──▶ others first ─┐ still late
///  direct ─────────▶ jitter ─┤                                ▼
///    ▲ ▲                     └─▶ canaries ─▶ comparing ────▶ spread ─▶ moving ─▶ trial ─▶ helped ◀─▶ doubting
///    │ │                                        │              │         │         │        │            │
///    │ └────── worse, not better or calm again ─┴──────────────┴─────────┴─────────┘        │            │
///    └──────────────────────────────────── worse than before, none helped, direct is better ┴────────────┘
/// ```
///
/// Not drawn: *direct* leads to *helped* when all members are helped already; *jitter* to *spread* if `canary_percent`
/// is 100; *others first* to *direct* when the group is no longer late, or earlier attempts have failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// The group watches its latency; a few members may be helped.
    Direct,
    /// Late: a random wait before the first move.
    Jitter { until: Time },
    /// Late, but by chance this group sends no canaries: it waits for other groups' canaries.
    OthersFirst { until: Time },
    /// Canaries are moving. The comparison begins when all have arrived, or at `until`.
    Canaries { until: Time },
    /// Canaries are compared with the others. `latest`: how long to wait at most for the first canary to arrive.
    Comparing { until: Time, latest: Time },
    /// A random wait before the rest moves.
    Spread { until: Time },
    /// The rest moves.
    Moving,
    /// All members have moved: their latency is compared with that before the move. `level`: the median when the trial
    /// was last prolonged.
    Trial { until: Time, prolonged: u32, level: Option<Duration> },
    /// The group is helped: help is a cure, cannot be judged, or was requested by the operator or the server.
    Helped,
    /// A few members have returned to the server, and are compared with the helped ones.
    Doubting { until: Time },
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Direct => "direct",
            Stage::Jitter { .. } | Stage::OthersFirst { .. } => "late",
            Stage::Canaries { .. } | Stage::Comparing { .. } | Stage::Spread { .. } => "comparing",
            Stage::Moving => "moving",
            Stage::Trial { .. } => "trial",
            Stage::Helped => "helped",
            Stage::Doubting { .. } => "doubting",
        }
    }

    pub fn until(self) -> Option<Time> {
        match self {
            Stage::Jitter { until }
            | Stage::OthersFirst { until }
            | Stage::Canaries { until }
            | Stage::Comparing { until, .. }
            | Stage::Spread { until }
            | Stage::Trial { until, .. }
            | Stage::Doubting { until } => Some(until),
            Stage::Direct | Stage::Moving | Stage::Helped => None,
        }
    }

    /// Whether the whole group is helped, or moving to helpers.
    pub fn is_for_all(self) -> bool {
        matches!(self, Stage::Moving | Stage::Trial { .. } | Stage::Helped | Stage::Doubting { .. })
    }

    /// The carrier whose latency counts in this stage.
    pub fn side(self) -> Carrier {
        if self.is_for_all() { Carrier::Helped } else { Carrier::Direct }
    }

    /// Whether help was called and is not known yet to be a cure.
    pub fn is_on_trial(self) -> bool {
        !matches!(self, Stage::Direct | Stage::Helped | Stage::Doubting { .. })
    }
}

/// The group's measurements before it was helped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub p99: Option<Duration>,
    /// The latency at the highest quantile for which there were enough samples.
    pub high: Option<Duration>,
    /// Replies while the group was late, and the time over which they were counted; `None` if not measured.
    pub replies: Option<(u64, Duration)>,
    /// Replies in a window when help was called.
    pub per_window: u64,
}

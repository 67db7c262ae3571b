//! The stages of a group's course.

use core::time::Duration;

use spillway_transport::Time;

use super::member::Carrier;

/// What the group is about. Where a stage leads is in `course.rs`, in one function; besides, the operator's override leads from
/// anywhere to *helped* or *direct*, the server's *drain* to *direct*, and a long calm from *helped* to *direct*.
///
/// ```text
///            late            ┌─ none of ours ─▶ others first ─┐ still late
///  direct ─────────▶ jitter ─┤                                ▼
///    ▲ ▲                     └─▶ canaries ─▶ comparing ────▶ spread ─▶ moving ─▶ trial ─▶ helped ◀─▶ doubting
///    │ │                                        │              │         │         │        │            │
///    │ └────── worse, no better, or calm again ─┴──────────────┴─────────┴─────────┘        │            │
///    └──────────────────────────────────── worse than before, nobody left, direct is better ┴────────────┘
/// ```
///
/// Not drawn: *direct* leads to *helped* when all are helped already; *jitter* to *spread* where all are canaries; *others first*
/// to *direct* when it is late no more, or earlier attempts have failed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Watching; some may be helped.
    Direct,
    /// Late: a random time before the first move.
    Jitter { until: Time },
    /// Late, and none of this group goes first.
    OthersFirst { until: Time },
    /// A few have been sent. The comparison begins when they have arrived, or at `until`.
    Canaries { until: Time },
    /// They are compared with the others.
    Comparing { until: Time, latest: Time },
    /// A random time before the rest moves.
    Spread { until: Time },
    /// The rest moves.
    Moving,
    /// All have moved: is it better than before?
    Trial { until: Time, prolonged: u32, level: Option<Duration> },
    /// It is.
    Helped,
    /// A few have returned, and are compared with those that are helped.
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

    /// The whole group is helped, or on its way.
    pub fn is_for_all(self) -> bool {
        matches!(self, Stage::Moving | Stage::Trial { .. } | Stage::Helped | Stage::Doubting { .. })
    }

    /// Whose latency counts now.
    pub fn side(self) -> Carrier {
        if self.is_for_all() { Carrier::Helped } else { Carrier::Direct }
    }

    /// Help has been called, and is not known to be of use.
    pub fn is_on_trial(self) -> bool {
        !matches!(self, Stage::Direct | Stage::Helped | Stage::Doubting { .. })
    }
}

/// What the group looked like before it was helped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub p99: Option<Duration>,
    pub high: Option<Duration>,
    /// Replies while it was late, and the time they took; nothing if that was not measured.
    pub replies: Option<(u64, Duration)>,
    /// Replies in a window, when help was called.
    pub per_window: u64,
}

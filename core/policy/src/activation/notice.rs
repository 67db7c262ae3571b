//! Notices for the log: one for each decision, with its reason and figures.

use core::fmt;
use core::time::Duration;

use super::member::Carrier;
use crate::relief_override::Override;

/// Measurements of a group of connections at the time of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// p99 of replies and late outstanding requests; `None` without either.
    pub p99: Option<Duration>,
    /// Median of the same latencies.
    pub p50: Option<Duration>,
    /// Replies in the window.
    pub replies: u64,
    /// Replies in the window that were later than the SLA.
    pub late: u64,
    /// Requests without a reply that have waited for longer than the SLA: the oldest of each connection. A request that
    /// has waited for the whole window counts as several.
    pub waiting: u64,
    /// The window's length.
    pub within: Duration,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.p99 {
            Some(p99) => write!(f, "p99 {p99:.1?}")?,
            None => write!(f, "no replies")?,
        }
        let Figures { replies, late, waiting, within, .. } = self;
        write!(f, ", {late} of {replies} replies late in {within:?}, {waiting} late without a reply")
    }
}

/// Why a group gives help up for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOff {
    /// The canaries were slower than the others.
    Worse {
        /// The quantile of the comparison, per mille: the highest for which there were enough samples.
        permille: u32,
        /// Latency of the helped members at this quantile.
        helped: Option<Duration>,
        /// Latency of the direct members at this quantile, over the same time.
        direct: Option<Duration>,
    },
    /// The canaries were not faster, after an earlier move of all members was no cure.
    NotBetter {
        /// See [`BackOff::Worse`].
        permille: u32,
        /// See [`BackOff::Worse`].
        helped: Option<Duration>,
        /// See [`BackOff::Worse`].
        direct: Option<Duration>,
    },
    /// All had moved and were as late as before: batching does not cure the cause.
    NoCure {
        /// p99 before the move.
        before: Option<Duration>,
        /// p99 after the move.
        after: Option<Duration>,
    },
    /// The server sent connections back while they were late.
    ServerRefuses,
}

impl BackOff {
    /// The name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            BackOff::Worse { .. } => "worse",
            BackOff::NotBetter { .. } => "not_better",
            BackOff::NoCure { .. } => "no_cure",
            BackOff::ServerRefuses => "server_refuses",
        }
    }
}

struct LatencyOrNone(Option<Duration>);

impl fmt::Display for LatencyOrNone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time:.1?}"),
            None => f.write_str("no replies"),
        }
    }
}

impl fmt::Display for BackOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (relation, permille, helped, direct) = match *self {
            BackOff::Worse { permille, helped, direct } => ("slower", permille, helped, direct),
            BackOff::NotBetter { permille, helped, direct } => ("not faster", permille, helped, direct),
            BackOff::NoCure { before, after } => {
                let (before, after) = (LatencyOrNone(before), LatencyOrNone(after));
                return write!(f, "help was no cure: p99 {before} before, {after} after");
            }
            BackOff::ServerRefuses => return f.write_str("the server sent late connections back"),
        };
        let (percent, tenth) = (permille / 10, permille % 10);
        let (helped, direct) = (LatencyOrNone(helped), LatencyOrNone(direct));
        write!(f, "canaries were {relation}: p{percent}.{tenth} {helped} helped, {direct} direct")
    }
}

/// Why help ended, other than by a [`BackOff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleasedBy {
    /// The server sent *drain*.
    Server,
    /// The group was calm with little load for this time.
    Calm(Duration),
    /// Direct members were within the SLA and helped ones were not.
    Doubt {
        /// Latency of helped members at the quantile of the comparison.
        helped: Option<Duration>,
        /// Latency of direct members at the same quantile.
        direct: Option<Duration>,
    },
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Late: a few connections move first.
    CanariesMove {
        /// Connections that move first.
        canaries: u32,
        /// Connections of the group.
        members: u32,
        /// The figures of the look.
        figures: Figures,
    },
    /// Late: this group is too small and by chance has no canaries, so it waits for those of other groups.
    OthersFirst {
        /// Connections of the group.
        members: u32,
        /// The figures of the look.
        figures: Figures,
    },
    /// Calm again before the rest moved: the others stay direct.
    CalmAgain {
        /// Connections that are helped.
        helped: u32,
        /// Connections of the group.
        members: u32,
    },
    /// Still late: the rest moves.
    RestMoves {
        /// Connections that move.
        moving: u32,
        /// Connections of the group.
        members: u32,
        /// The figures of the look.
        figures: Figures,
    },
    /// Help was a cure: the group stays helped.
    Cured {
        /// p99 before the move.
        before: Option<Duration>,
        /// p99 after the move.
        after: Option<Duration>,
        /// Replies a second before the move.
        replies_per_s_before: u64,
        /// Replies a second after the move.
        replies_per_s_after: u64,
    },
    /// All members return, and the next attempt waits.
    BacksOff {
        /// The cause.
        why: BackOff,
        /// Connections that return.
        returning: u32,
        /// Minimum time to the next attempt.
        lasts: Duration,
        /// Remembered consecutive failures.
        failures: u32,
    },
    /// Late, but no helper is known or accepts connections: the group stays direct.
    NoHelpers {
        /// Time to the next attempt; `None` while no helper is known.
        retry_in: Option<Duration>,
    },
    /// Help ends: connections return to the server.
    Released {
        /// The cause.
        by: ReleasedBy,
        /// Connections that were helped.
        helped: u32,
    },
    /// Helped and late: a few connections return, to compare.
    ComparesWithDirect {
        /// Connections that return.
        sent: u32,
        /// Connections that were helped.
        helped: u32,
        /// The figures of the look.
        figures: Figures,
    },
    /// The server requests that its direct connections move to helpers.
    ServerRequestsHelp,
    /// The operator's override has changed.
    Override {
        /// The override in force.
        manual_override: Override,
        /// How long the override holds; `None` without limit.
        lasts: Option<Duration>,
        /// Connections that move for it.
        moving: u32,
    },
}

impl Notice {
    /// The name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Notice::CanariesMove { .. } => "canaries_move",
            Notice::OthersFirst { .. } => "others_first",
            Notice::CalmAgain { .. } => "calm_again",
            Notice::RestMoves { .. } => "rest_moves",
            Notice::Cured { .. } => "cured",
            Notice::BacksOff { .. } => "backs_off",
            Notice::NoHelpers { .. } => "no_helpers",
            Notice::Released { .. } => "released",
            Notice::ComparesWithDirect { .. } => "doubts",
            Notice::ServerRequestsHelp => "server_asks",
            Notice::Override { .. } => "override",
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Notice::CanariesMove { canaries, members, figures } => {
                write!(f, "late: {canaries} of {members} connections move to helpers first; {figures}")
            }
            Notice::OthersFirst { members, figures } => {
                write!(
                    f,
                    "late: waiting for canaries of other groups before these {members} connections move; {figures}"
                )
            }
            Notice::CalmAgain { helped, members } => {
                write!(f, "calm again with {helped} of {members} connections helped: the others stay direct")
            }
            Notice::RestMoves { moving, members, figures } => {
                write!(f, "still late: {moving} of {members} connections move to helpers; {figures}")
            }
            Notice::Cured { before, after, replies_per_s_before, replies_per_s_after } => {
                let (before, after) = (LatencyOrNone(before), LatencyOrNone(after));
                write!(f, "help was a cure: p99 {before} before, {after} after; ")?;
                write!(f, "{replies_per_s_before} replies/s before, {replies_per_s_after} after")
            }
            Notice::BacksOff { why, returning, lasts, failures } => {
                write!(f, "{why}; {returning} connections return to the server, ")?;
                write!(f, "next attempt in {lasts:.0?} at the earliest (consecutive failures: {failures})")
            }
            Notice::NoHelpers { retry_in: Some(retry_in) } => {
                write!(f, "late, but no helper accepts connections; next attempt in {retry_in:.1?}")
            }
            Notice::NoHelpers { retry_in: None } => write!(f, "no helper is known: connections stay direct"),
            Notice::Released { by: ReleasedBy::Server, helped } => {
                write!(
                    f,
                    "the server needs no help any more and sends connections back; {helped} are helped now"
                )
            }
            Notice::Released { by: ReleasedBy::Calm(lasted), helped } => {
                write!(f, "calm with little load for {lasted:.0?}: {helped} connections return to the server")
            }
            Notice::Released { by: ReleasedBy::Doubt { helped: at_helpers, direct }, helped } => {
                let (at_helpers, direct) = (LatencyOrNone(at_helpers), LatencyOrNone(direct));
                write!(f, "late at helpers ({at_helpers}) and not at the server ({direct}): ")?;
                write!(f, "{helped} connections return to the server")
            }
            Notice::ComparesWithDirect { sent, helped, figures } => {
                write!(
                    f,
                    "late at helpers: {sent} of {helped} connections return to the server, to compare; {figures}"
                )
            }
            Notice::ServerRequestsHelp => f.write_str("the server sends direct connections to helpers"),
            Notice::Override { manual_override: relief_override, lasts, moving } => {
                write!(f, "override: {relief_override}")?;
                if let Some(lasts) = lasts {
                    write!(f, " for {lasts:.0?}")?;
                }
                write!(f, "; {moving} connections move")
            }
        }
    }
}

/// Counters since the start; each only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Moves of the whole group to helpers.
    pub activations: u64,
    /// Times that canaries moved first.
    pub canaries: u64,
    /// Times that help was given up: see [`BackOff`].
    pub back_offs: u64,
    /// Times that help was found to be a cure.
    pub cures: u64,
    /// Times that a few members returned to see whether direct is better.
    pub doubts: u64,
    /// Times that help ended for other reasons: see [`ReleasedBy`].
    pub releases: u64,
    /// Overrides that the operator set.
    pub overrides: u64,
    /// Orders to move to a helper.
    pub orders_to_helpers: u64,
    /// Orders to return to the server.
    pub orders_to_server: u64,
    /// Orders that failed.
    pub orders_failed: u64,
    /// Orders that were carried out.
    pub orders_done: u64,
    /// Requests that clients gave up, and late requests of connections that left.
    pub gave_up: u64,
    /// Notices dropped because they were not polled in time.
    pub notices_dropped: u64,
}

impl Counters {
    pub(super) fn count_order(&mut self, wanted: Carrier) {
        match wanted {
            Carrier::Helped => self.orders_to_helpers += 1,
            Carrier::Direct => self.orders_to_server += 1,
        }
    }
}

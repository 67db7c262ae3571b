//! What deserves a line in the log: one for each decision, with its reason and figures.

use core::fmt;
use core::time::Duration;

use super::member::Carrier;
use crate::word::Word;

/// What a group of connections looked like when something was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// p99 of replies and of what still waits; nothing if there was nothing.
    pub p99: Option<Duration>,
    /// The median of the same.
    pub p50: Option<Duration>,
    /// Replies in the window.
    pub replies: u64,
    /// Of those, later than the SLA.
    pub late: u64,
    /// Requests without a reply that have waited for longer than the SLA, one for each connection at most.
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

/// Why help is given up for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackOff {
    /// The few that moved first were slower than the others.
    Worse {
        /// The quantile that so few could be compared at, per mille.
        permille: u32,
        /// Of those that were helped.
        helped: Option<Duration>,
        /// Of the others, over the same time.
        direct: Option<Duration>,
    },
    /// They were not faster, and all had moved in vain before.
    NotBetter {
        /// As above.
        permille: u32,
        /// As above.
        helped: Option<Duration>,
        /// As above.
        direct: Option<Duration>,
    },
    /// All had moved, and were as late as before: batching does not mend what is slow.
    NoCure {
        /// Before they moved.
        before: Option<Duration>,
        /// And after.
        after: Option<Duration>,
    },
    /// The server sent them back while they were late.
    ServerRefuses,
}

impl BackOff {
    /// Its name in logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            BackOff::Worse { .. } => "worse",
            BackOff::NotBetter { .. } => "not_better",
            BackOff::NoCure { .. } => "no_cure",
            BackOff::ServerRefuses => "server_refuses",
        }
    }
}

/// A duration that may be missing.
struct Maybe(Option<Duration>);

impl fmt::Display for Maybe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time:.1?}"),
            None => f.write_str("no replies"),
        }
    }
}

impl fmt::Display for BackOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, permille, helped, direct) = match *self {
            BackOff::Worse { permille, helped, direct } => ("slower", permille, helped, direct),
            BackOff::NotBetter { permille, helped, direct } => ("not faster", permille, helped, direct),
            BackOff::NoCure { before, after } => {
                let (before, after) = (Maybe(before), Maybe(after));
                return write!(f, "help was no cure: p99 {before} before, {after} after");
            }
            BackOff::ServerRefuses => return f.write_str("the server sent late connections back"),
        };
        let (percent, tenth) = (permille / 10, permille % 10);
        let (helped, direct) = (Maybe(helped), Maybe(direct));
        write!(f, "those that moved first were {word}: p{percent}.{tenth} {helped} helped, {direct} direct")
    }
}

/// Who ends help when all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleasedBy {
    /// The server, which drains.
    Server,
    /// Nobody needs it: calm with little load for so long.
    Calm(Duration),
    /// Direct is better now: a few were sent back to see.
    Doubt {
        /// Latency of those that were helped, at the quantile that so few can be compared at.
        helped: Option<Duration>,
        /// And of the few.
        direct: Option<Duration>,
    },
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Late; a few move first.
    CanariesMove {
        /// So many,
        canaries: u32,
        /// of so many connections.
        members: u32,
        /// What was seen.
        figures: Figures,
    },
    /// Late; others may move first, by chance, for this group is too small to send a few.
    OthersFirst {
        /// Connections.
        members: u32,
        /// What was seen.
        figures: Figures,
    },
    /// Calm again when those that moved first were compared: the others stay direct.
    CalmAgain {
        /// So many are helped.
        helped: u32,
        /// Of so many connections.
        members: u32,
    },
    /// The others move.
    RestMoves {
        /// So many,
        moving: u32,
        /// of so many connections.
        members: u32,
        /// What was seen.
        figures: Figures,
    },
    /// Help was of use: the group stays.
    Cured {
        /// p99 before they moved.
        before: Option<Duration>,
        /// And after.
        after: Option<Duration>,
        /// Replies a second before.
        replies_per_s_before: u64,
        /// And after.
        replies_per_s_after: u64,
    },
    /// All come back, and none moves for a while.
    BacksOff {
        /// Why.
        why: BackOff,
        /// So many return.
        returning: u32,
        /// The next attempt is not sooner.
        lasts: Duration,
        /// Failures in a row that are remembered.
        failures: u32,
    },
    /// Late, but no helper is there or takes anybody: direct.
    NoHelpers {
        /// Try again after.
        retry_in: Option<Duration>,
    },
    /// Help ends: back to the server.
    Released {
        /// By whom.
        by: ReleasedBy,
        /// So many were helped.
        helped: u32,
    },
    /// Helped and late: a few return, to see whether direct is better now.
    Doubts {
        /// So many,
        sent: u32,
        /// of so many that were helped.
        helped: u32,
        /// What was seen.
        figures: Figures,
    },
    /// The server asks for connections on its own port to be helped.
    ServerAsks,
    /// The operator's word holds from now on.
    Word {
        /// The word.
        word: Word,
        /// For a time; for ever.
        lasts: Option<Duration>,
        /// So many move for it.
        moving: u32,
    },
}

impl Notice {
    /// Its name in logs and metrics.
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
            Notice::Doubts { .. } => "doubts",
            Notice::ServerAsks => "server_asks",
            Notice::Word { .. } => "word",
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
                write!(f, "late: others may move to helpers first, before these {members}; {figures}")
            }
            Notice::CalmAgain { helped, members } => {
                write!(f, "calm again with {helped} of {members} connections helped: the others stay direct")
            }
            Notice::RestMoves { moving, members, figures } => {
                write!(f, "late still: {moving} of {members} connections move to helpers; {figures}")
            }
            Notice::Cured { before, after, replies_per_s_before, replies_per_s_after } => {
                let (before, after) = (Maybe(before), Maybe(after));
                write!(f, "help was of use: p99 {before} before, {after} after; ")?;
                write!(f, "{replies_per_s_before} replies/s before, {replies_per_s_after} after")
            }
            Notice::BacksOff { why, returning, lasts, failures } => {
                write!(f, "{why}; {returning} connections return to the server, ")?;
                write!(f, "no other attempt within {lasts:.0?} (failures in a row: {failures})")
            }
            Notice::NoHelpers { retry_in: Some(retry_in) } => {
                write!(f, "late, but no helper takes connections; asking again in {retry_in:.1?}")
            }
            Notice::NoHelpers { retry_in: None } => write!(f, "no helper is known: connections stay direct"),
            Notice::Released { by: ReleasedBy::Server, helped } => {
                write!(
                    f,
                    "the server needs no help any more: it sends {helped} connections back, each in its time"
                )
            }
            Notice::Released { by: ReleasedBy::Calm(lasted), helped } => {
                write!(f, "calm with little load for {lasted:.0?}: {helped} connections return to the server")
            }
            Notice::Released { by: ReleasedBy::Doubt { helped: at_helpers, direct }, helped } => {
                let (at_helpers, direct) = (Maybe(at_helpers), Maybe(direct));
                write!(f, "late at helpers ({at_helpers}) and not at the server ({direct}): ")?;
                write!(f, "{helped} connections return to it")
            }
            Notice::Doubts { sent, helped, figures } => {
                write!(
                    f,
                    "late at helpers: {sent} of {helped} connections return to the server, to compare; {figures}"
                )
            }
            Notice::ServerAsks => f.write_str("the server asks for connections to be helped"),
            Notice::Word { word, lasts, moving } => {
                write!(f, "the operator's word: {word}")?;
                if let Some(lasts) = lasts {
                    write!(f, " for {lasts:.0?}")?;
                }
                write!(f, "; {moving} connections move")
            }
        }
    }
}

/// What has happened since the beginning; each only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Times that the whole group was moved to helpers.
    pub activations: u64,
    /// Times that a few were sent first.
    pub canaries: u64,
    /// Times that help was given up as of no use.
    pub back_offs: u64,
    /// Times that help was found to be of use.
    pub cures: u64,
    /// Times that some were sent back, to see whether direct is better.
    pub doubts: u64,
    /// Times that help ended because all was well.
    pub releases: u64,
    /// Words of the operator's.
    pub words: u64,
    /// Orders to go to a helper.
    pub orders_to_helpers: u64,
    /// Orders to return to the server.
    pub orders_to_server: u64,
    /// Orders that came to nothing.
    pub orders_failed: u64,
    /// Orders that were carried out.
    pub orders_done: u64,
    /// Requests whose clients left before a reply, after longer than the SLA.
    pub gave_up: u64,
    /// Notices that nobody fetched in time.
    pub notices_dropped: u64,
}

impl Counters {
    pub(super) fn ordered(&mut self, wanted: Carrier) {
        match wanted {
            Carrier::Helped => self.orders_to_helpers += 1,
            Carrier::Direct => self.orders_to_server += 1,
        }
    }
}

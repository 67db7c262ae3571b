//! Tail loss probes (RFC 8985 §7): when nothing is heard for two round trips, the last segment, or a new one, is sent
//! before the retransmission timeout, so that its acknowledgement tells what is missing.

use core::time::Duration;

use super::scoreboard::Scoreboard;
use crate::seq::Seq;

/// How long a peer may delay the acknowledgement of a single segment (RFC 8985 §7.2).
const ACK_DELAY_MAX: Duration = Duration::from_millis(200);

/// What both hosts may take besides, as Linux has it: paths can be shorter than a timer's tick.
const SLACK: Duration = Duration::from_millis(2);

/// Before a round trip was measured (RFC 8985 §7.2).
const INITIAL: Duration = Duration::from_secs(1);

/// A probe that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// What was sent, then, ended here.
    pub end: Seq,
    /// It was no new data.
    pub is_repeated: bool,
}

/// What became of the probe by an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    /// Nothing was lost, or the probe was new data.
    Done,
    /// The probe repaired a loss that nothing else would tell of (§7.4).
    Repaired,
}

impl Probe {
    /// §7.4.2.
    pub(super) fn fate(&self, una: Seq, is_duplicate: bool, dsack: Option<(Seq, Seq)>) -> Fate {
        if una < self.end {
            Fate::Open
        } else if !self.is_repeated || dsack.is_some_and(|(from, to)| from < self.end && self.end <= to) {
            Fate::Done
        } else if una > self.end {
            Fate::Repaired
        } else if is_duplicate {
            Fate::Done
        } else {
            Fate::Open
        }
    }
}

/// How long after the last segment or acknowledgement a probe is due.
pub(super) fn timeout(smoothed: Option<Duration>, scoreboard: &Scoreboard) -> Duration {
    let Some(smoothed) = smoothed else { return INITIAL };
    let delay = if scoreboard.segments.len() == 1 { ACK_DELAY_MAX } else { SLACK };
    2 * smoothed + delay
}

//! Tail loss probes (RFC 8985 §7): when nothing is heard for two round trips, the last segment, or a new one, is sent
//! before the retransmission timeout, so that its acknowledgement tells what is missing.

use crate::seq::Seq;

/// How long a peer may delay the acknowledgement of a single segment (RFC 8985 §7.2): 200 ms.
const ACK_DELAY_NS_MAX: u64 = 200_000_000;

/// What both hosts may take besides, as Linux has it, 2 ms: paths can be shorter than a timer's tick.
const SLACK_NS: u64 = 2_000_000;

/// Before a round trip was measured (RFC 8985 §7.2): 1 s.
const INITIAL_NS: u64 = 1_000_000_000;

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

/// How long after the last segment or acknowledgement a probe is due, in nanoseconds.
pub(super) fn timeout_ns(smoothed_ns: u64, segments: usize) -> u64 {
    if smoothed_ns == 0 {
        return INITIAL_NS;
    }
    2 * smoothed_ns + if segments == 1 { ACK_DELAY_NS_MAX } else { SLACK_NS }
}

//! Tail loss probes (RFC 8985 §7): after two round trips without an acknowledgement, the last segment, or a new one, is
//! sent before the retransmission timeout, so that its acknowledgement shows what is missing.

use crate::seq::Seq;

/// The delay that a peer may add to the acknowledgement of a single segment (RFC 8985 §7.2): 200 ms.
const ACK_DELAY_NS_MAX: u64 = 200_000_000;

/// Slack for delays in both hosts, 2 ms as in Linux: paths can be shorter than a timer's tick.
const SLACK_NS: u64 = 2_000_000;

/// The probe timeout before a round trip was measured (RFC 8985 §7.2): 1 s.
const INITIAL_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// SND.NXT after the probe was sent.
    pub end: Seq,
    /// The probe repeated a segment instead of sending new data.
    pub is_repeated: bool,
}

/// What an acknowledgement shows about the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is not known yet whether anything was lost.
    Open,
    /// Nothing was lost, or the probe was new data.
    Done,
    /// The probe repaired a loss that nothing else would reveal (§7.4).
    Repaired,
}

impl Probe {
    /// Evaluates an acknowledgement (§7.4.2).
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

/// The time from the last segment or acknowledgement to the probe, in nanoseconds.
pub(super) fn timeout_ns(smoothed_ns: u64, segments: usize) -> u64 {
    if smoothed_ns == 0 {
        return INITIAL_NS;
    }
    2 * smoothed_ns + if segments == 1 { ACK_DELAY_NS_MAX } else { SLACK_NS }
}

//! Undoes the reaction to a spurious loss: segments or their acknowledgements were only late.

use core::time::Duration;

use spillway_transport::Time;

use super::congestion::Congestion;
use super::scoreboard::{Delivered, Scoreboard};
use super::{Ack, Phase, Recovery};
use crate::seq::Seq;

/// Error of round trips according to timestamps: two ticks of the usual millisecond.
const TIMESTAMP_ERROR: Duration = Duration::from_millis(2);

/// The state before a recovery, and the retransmissions of that recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub congestion: Congestion,
    /// The range in flight when the recovery began.
    pub from: Seq,
    pub to: Seq,
    /// Number of retransmissions that the peer has not reported as needless.
    pub open: u32,
    /// Send time of the first retransmission.
    pub first_at: Option<Time>,
}

impl Undo {
    /// Retransmissions of an earlier recovery that are in flight count as this recovery's: otherwise their
    /// acknowledgements would look like those of first transmissions.
    pub(super) fn new(congestion: Congestion, scoreboard: &Scoreboard) -> Undo {
        let retransmitted = scoreboard.segments.iter().filter(|segment| segment.retransmitted);
        let (open, first_at) = retransmitted.fold((0_u32, None), |(open, first_at), segment| {
            (open + 1, first_at.into_iter().chain([segment.sent_at]).min())
        });
        Undo { congestion, from: scoreboard.una(), to: scoreboard.nxt(), open, first_at }
    }

    pub(super) fn on_retransmitted(&mut self, now: Time) {
        self.open = self.open.saturating_add(1);
        self.first_at.get_or_insert(now);
    }
}

impl Recovery {
    /// Counts D-SACKs, and returns whether the present recovery, or the last one, was spurious:
    /// - the echoed timestamp is older than the first retransmission (Eifel, RFC 3522);
    /// - each retransmission was received twice (RFC 2883, RFC 3708);
    /// - after a timeout, a segment arrived that was sent once, before the timeout (F-RTO with SACK, RFC 5682 §3.1; one
    ///   such acknowledgement is enough, as in Linux).
    pub(super) fn detect_spurious(
        &mut self,
        now: Time,
        ack: &Ack<'_>,
        bytes: u64,
        delivered: &Delivered,
        is_probe_over: bool,
    ) -> bool {
        if ack.dsack.is_some() {
            self.counters.duplicates = self.counters.duplicates.saturating_add(1);
        }
        let Some(undo) = &mut self.undo else { return false };
        if self.phase != Phase::Open && bytes > 0 {
            let is_older = |(rtt, first_at)| rtt > now.since(first_at) + TIMESTAMP_ERROR;
            if ack.rtt.zip(undo.first_at).is_some_and(is_older) {
                return true;
            }
        }
        if self.phase == Phase::Loss && self.has_sack && delivered.original {
            return true;
        }
        let is_of_recovery = |(from, to): &(Seq, Seq)| from < to && undo.from < *to && *to <= undo.to;
        if !is_probe_over
            && undo.open > 0
            && let Some((from, to)) = ack.dsack.filter(is_of_recovery)
        {
            // One D-SACK may report several adjacent segments: their number is computed from the bytes, as in Linux.
            let segments = (to - from.max(undo.from)).div_ceil(u64::from(self.mss));
            undo.open = undo.open.saturating_sub(u32::try_from(segments).unwrap_or(u32::MAX));
            return undo.open == 0;
        }
        false
    }

    pub(super) fn undo(&mut self) {
        let Some(undo) = self.undo.take() else {
            debug_assert!(false, "a spurious recovery should have a state to restore");
            return;
        };
        let present = self.congestion.window;
        self.congestion = undo.congestion;
        let window = &mut self.congestion.window;
        window.mss = present.mss;
        window.cwnd = window.cwnd.max(present.cwnd).min(self.limits.window_max(self.mss));
        window.ssthresh = window.ssthresh.max(present.ssthresh);
        if self.phase != Phase::Open {
            self.scoreboard.unmark_all();
        }
        (self.phase, self.backoffs) = (Phase::Open, 0);
        (self.duplicated, self.duplicates) = (0, 0);
        self.counters.undone = self.counters.undone.saturating_add(1);
    }
}

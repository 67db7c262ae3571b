//! The retransmission timeout (RFC 6298 §5) and the time of tail loss probes.

use alloc::boxed::Box;

use spillway_transport::Time;

use super::probe::{self, Probe};
use super::undo::Undo;
use super::{NEVER, Phase, Recovery, TimeoutOutcome};
use crate::seq::Seq;

/// More would change nothing.
const BACKOFFS_MAX: u32 = 32;

impl Recovery {
    /// When to call [`Recovery::handle_timeout`]: always something while anything is outstanding.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        Some(self.wakes_at()).filter(|at| *at < NEVER)
    }

    /// The same; the end of time when nothing is outstanding.
    #[inline]
    pub(crate) fn wakes_at(&self) -> Time {
        self.rto_at.min(self.probe_at).min(self.reorder_at)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) -> TimeoutOutcome {
        if self.in_flight() == 0 || self.poll_timeout().is_none_or(|at| now < at) {
            return TimeoutOutcome::Nothing;
        }
        if self.reorder_at <= now {
            return if self.on_overdue(now) { TimeoutOutcome::Overdue } else { TimeoutOutcome::Nothing };
        }
        if self.probe_at <= self.rto_at {
            self.probe_at = NEVER;
            self.rto_at = after(now, self.rtt.rto_ns(self.backoffs)); // RFC 8985 §7.3
            (self.probe_wanted, self.is_quiet) = (Some(self.nxt()), false);
            return TimeoutOutcome::Probe;
        }
        self.retransmit_all();
        self.rto_at = after(now, self.rtt.rto_ns(self.backoffs));
        TimeoutOutcome::Retransmit
    }

    /// RFC 6298 §5.4 to §5.6, RFC 5681 §3.1.
    fn retransmit_all(&mut self) {
        // Lost by the same timeout once more: the threshold stays (RFC 5681 §3.1, after equation 4).
        if self.timeouts == 0 {
            self.undo = Some(Box::new(Undo::new(self.congestion, &self.scoreboard)));
            if self.is_handshake {
                self.congestion.window.cwnd = u64::from(self.mss); // no data was lost (RFC 5681 §3.1)
            } else {
                if self.phase == Phase::Recovery {
                    // The window of a recovery follows what is thought to be in the network; the threshold is what it aims at.
                    self.congestion.window.cwnd = self.ssthresh().min(self.limits.window_max(self.mss));
                }
                self.congestion.on_timeout(self.in_flight().min(self.cwnd()));
            }
        }
        self.congestion.window.cwnd = u64::from(self.mss);
        self.scoreboard.mark_all_lost();
        (self.phase, self.recovery_point) = (Phase::Loss, self.nxt());
        (self.duplicated, self.duplicates) = (0, 0);
        self.threshold = super::THRESHOLD_MIN;
        self.timeouts = self.timeouts.saturating_add(1);
        self.backoffs = (self.backoffs + 1).min(BACKOFFS_MAX);
        (self.probe_at, self.probe_wanted, self.probe) = (NEVER, None, None);
        (self.reorder_at, self.is_quiet) = (NEVER, false);
        self.counters.timeouts = self.counters.timeouts.saturating_add(1);
    }

    /// Whether a tail loss probe is to be sent: a new segment, whatever the window's room, or the last one again.
    pub fn wants_probe(&self) -> bool {
        self.probe_wanted.is_some()
    }

    /// What to send as a probe when there is nothing new.
    pub fn last_segment(&self) -> Option<(Seq, Seq)> {
        self.scoreboard.last(self.mss)
    }

    /// The probe was sent, after [`Recovery::on_sent`] or [`Recovery::on_retransmitted`]; or there was none to send.
    pub fn on_probe(&mut self, now: Time) {
        let Some(nxt) = self.probe_wanted.take() else { return };
        self.probe = Some(Probe { end: self.nxt(), is_repeated: self.nxt() == nxt });
        self.probe_at = NEVER;
        self.rto_at = after(now, self.rtt.rto_ns(self.backoffs));
        self.counters.probes = self.counters.probes.saturating_add(1);
    }

    /// RFC 8985 §7.2: at most when the timeout would be.
    pub(super) fn arm_probe(&mut self, now: Time) {
        let is_due = self.limits.tail_loss_probe && self.has_sack && (self.is_quiet || self.may_probe());
        self.probe_at = if is_due {
            let segments = self.scoreboard.segments.len();
            after(now, probe::timeout_ns(self.rtt.smoothed_ns(), segments)).min(self.rto_at)
        } else {
            NEVER
        };
    }

    fn may_probe(&self) -> bool {
        // In a recovery, too, unlike RFC 8985: Linux answers a retransmission with a single acknowledgement, for it
        // compresses the SACKs before, and without that one nothing would be heard until the timeout.
        let may_be_silent = match self.phase {
            Phase::Open => self.scoreboard.sacked() == 0,
            Phase::Recovery => true,
            Phase::Loss => false,
        };
        may_be_silent && self.probe.is_none() && self.probe_wanted.is_none() && !self.is_handshake
    }
}

/// So many nanoseconds later.
pub(super) fn after(now: Time, ns: u64) -> Time {
    Time(now.0.saturating_add(ns))
}

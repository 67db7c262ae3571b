//! The retransmission timeout (RFC 6298 §5) and the timer of tail loss probes.

use alloc::boxed::Box;

use spillway_transport::Time;

use super::probe::{self, Probe};
use super::undo::Undo;
use super::{Phase, Recovery};
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

/// Bound of backoffs; more would not change the timeout, which has reached its maximum.
const BACKOFFS_MAX: u32 = 32;

impl Recovery {
    /// Returns the expired timer to handle now. Handle one at a time: the segments that it causes are sent before the
    /// next timer is handled.
    #[must_use]
    pub fn first_expired(now: Time, timers: &Timers) -> Option<Timer> {
        // Undoing a reduction may have set the timeout to a time before the probe.
        let is_timeout_first = timers.is_before(Timer::Retransmission, Timer::Probe);
        let next = if is_timeout_first { Timer::Retransmission } else { Timer::Probe };
        [Timer::Reordering, next, Timer::Retransmission]
            .into_iter()
            .find(|timer| timers.is_expired(*timer, now))
    }

    /// [`Timer::Probe`] has expired: a tail loss probe must be sent.
    pub fn on_probe_due(&mut self, now: Time, timers: &mut Timers) {
        debug_assert!(
            self.in_flight() > 0,
            "the timer should have stopped, because all bytes are acknowledged"
        );
        timers.stop(Timer::Probe);
        self.arm_timeout(now, timers); // RFC 8985 §7.3
        (self.probe_wanted, self.is_quiet) = (Some(self.nxt()), false);
    }

    /// [`Timer::Retransmission`] has expired: marks all segments lost. The caller decides whether to give the peer up
    /// instead: see [`Recovery::timeouts`] and [`Recovery::last_progress_at`].
    pub fn on_timeout(&mut self, now: Time, timers: &mut Timers) {
        debug_assert!(
            self.in_flight() > 0,
            "the timer should have stopped, because all bytes are acknowledged"
        );
        self.retransmit_all();
        timers.stop(Timer::Probe);
        timers.stop(Timer::Reordering);
        self.arm_timeout(now, timers);
    }

    #[inline]
    pub(super) fn arm_timeout(&self, now: Time, timers: &mut Timers) {
        timers.set(Timer::Retransmission, after(now, self.rtt.rto_ns(self.backoffs)));
    }

    /// The reaction to a timeout (RFC 6298 §5.4 to §5.6, RFC 5681 §3.1).
    fn retransmit_all(&mut self) {
        // After a further timeout of the same segment the threshold stays (RFC 5681 §3.1, after equation 4).
        if self.timeouts == 0 {
            self.undo = Some(Box::new(Undo::new(self.congestion, &self.scoreboard)));
            if self.is_handshake {
                self.congestion.window.cwnd = u64::from(self.mss); // a lost SYN is not lost data (RFC 5681 §3.1)
            } else {
                if self.phase == Phase::Recovery {
                    // In recovery the window follows the bytes in the network, and aims at the threshold.
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
        (self.probe_wanted, self.probe, self.is_quiet) = (None, None, false);
        self.counters.timeouts = self.counters.timeouts.saturating_add(1);
    }

    /// Whether a tail loss probe must be sent: a new segment regardless of the window, or else the last one again.
    pub fn wants_probe(&self) -> bool {
        self.probe_wanted.is_some()
    }

    /// The range to send as a probe if there are no new bytes.
    pub fn last_segment(&self) -> Option<(Seq, Seq)> {
        self.scoreboard.last(self.mss)
    }

    /// Records the probe, after [`Recovery::on_sent`] or [`Recovery::on_retransmitted`]. No effect if no probe was due.
    pub fn on_probe(&mut self, now: Time, timers: &mut Timers) {
        let Some(nxt) = self.probe_wanted.take() else { return };
        self.probe = Some(Probe { end: self.nxt(), is_repeated: self.nxt() == nxt });
        timers.stop(Timer::Probe);
        self.arm_timeout(now, timers);
        self.counters.probes = self.counters.probes.saturating_add(1);
    }

    /// Sets the probe timer, to the time of the timeout at the latest (RFC 8985 §7.2).
    #[inline]
    pub(super) fn arm_probe(&self, now: Time, timers: &mut Timers) {
        let is_due = self.limits.tail_loss_probe && self.has_sack && (self.is_quiet || self.may_probe());
        if !is_due {
            return timers.stop(Timer::Probe);
        }
        let segments = self.scoreboard.segments.len();
        let at = after(now, probe::timeout_ns(self.rtt.smoothed_ns(), segments));
        timers.set(Timer::Probe, timers.get(Timer::Retransmission).map_or(at, |timeout| at.min(timeout)));
    }

    fn may_probe(&self) -> bool {
        // In recovery, too, unlike RFC 8985: Linux compresses SACKs and answers a retransmission with a single
        // acknowledgement; if that one is lost, nothing arrives until the timeout.
        let may_be_silent = match self.phase {
            Phase::Open => self.scoreboard.sacked() == 0,
            Phase::Recovery => true,
            Phase::Loss => false,
        };
        may_be_silent && self.probe.is_none() && self.probe_wanted.is_none() && !self.is_handshake
    }
}

pub(super) fn after(now: Time, ns: u64) -> Time {
    Time(now.0.saturating_add(ns))
}

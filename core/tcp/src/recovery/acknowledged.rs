//! Handling of acknowledgements.

use core::time::Duration;

use spillway_transport::Time;

use super::congestion::THRESHOLD_INITIAL;
use super::congestion::hystart::{CONSERVATIVE_DIVISOR, Pace};
use super::rtt::nanos;
use super::scoreboard::Delivered;
use super::{Ack, Acked, Phase, Recovery};
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

impl Recovery {
    /// Handles an acceptable acknowledgement (RFC 9293 §3.10.7.4).
    pub fn on_ack(&mut self, now: Time, ack: &Ack<'_>, timers: &mut Timers) -> Acked {
        let is_plain = self.is_quiet
            && ack.una > self.una()
            && ack.una <= self.nxt()
            && ack.sack.is_empty()
            && ack.dsack.is_none()
            && ack.has_sack == self.has_sack;
        if !is_plain {
            return self.on_other_ack(now, ack, timers);
        }
        let bytes = ack.una - self.una();
        self.on_plain_ack(now, ack.una, ack.peer_window, || ack.rtt, timers);
        Acked { bytes, delivered: bytes, is_recovered: false, is_undone: false }
    }

    /// Sets the peer's window. For segments that acknowledge no new bytes.
    pub(crate) fn set_peer_window(&mut self, bytes: u64) {
        self.peer_window = bytes;
    }

    /// The fast path for a [quiet](Self::is_quiet) connection: handles the acknowledgement of everything up to `una`.
    #[inline]
    pub(crate) fn on_plain_ack(
        &mut self,
        now: Time,
        una: Seq,
        peer_window: u64,
        echoed: impl FnOnce() -> Option<Duration>,
        timers: &mut Timers,
    ) {
        let before = self.una();
        let sent_at = self.scoreboard.acknowledge_plain(una);
        self.peer_window = peer_window;
        let rtt_ns = match sent_at {
            Some(sent_at) => now.0.saturating_sub(sent_at.0),
            None => timestamp_rtt_ns(echoed()),
        };
        self.take_sample(rtt_ns);
        (self.timeouts, self.progress_at) = (0, now);
        self.grow(now, una - before, false, before < self.limited_to, rtt_ns);
        if self.in_flight() == 0 {
            timers.stop(Timer::Retransmission);
            timers.stop(Timer::Probe);
        } else {
            self.arm_timeout(now, timers);
            self.arm_probe(now, timers);
        }
    }

    #[inline(never)]
    fn on_other_ack(&mut self, now: Time, ack: &Ack<'_>, timers: &mut Timers) -> Acked {
        self.is_quiet = false;
        let before = self.una();
        let una = if (before..=self.nxt()).contains(&ack.una) { ack.una } else { before };
        let bytes = una - before;
        self.peer_window = ack.peer_window;
        self.set_has_sack(ack.has_sack);

        let ambiguous_after = Time(now.0.saturating_sub(self.rtt.smallest().map_or(0, nanos)));
        let highest_sacked = self.scoreboard.highest_sacked();
        let mut delivered = Delivered { ambiguous_after, highest_sacked, ..Delivered::default() };
        if bytes > 0 {
            self.scoreboard.acknowledge(una, self.mss, &mut delivered);
        }
        if self.has_sack && !ack.sack.is_empty() {
            self.scoreboard.sack(ack.sack, &mut delivered);
        }
        let is_syn = self.is_handshake && bytes > 0;
        let mut rtt_ns = 0;
        if bytes > 0 {
            // With a D-SACK the echoed timestamp is that of the first copy, whose acknowledgement may have been lost.
            let echoed = ack.rtt.filter(|_| ack.dsack.is_none());
            rtt_ns = self.on_progress(now, echoed, &delivered);
        }
        let mut acked = Acked { bytes, ..Acked::default() };
        let (phase, ssthresh) = (self.phase, self.ssthresh());
        if self.has_loss_signals(ack) {
            self.on_loss_signals(now, ack, bytes, &mut delivered, &mut acked);
        }
        acked.delivered = delivered.bytes;
        let is_reduced =
            phase == Phase::Recovery || self.phase == Phase::Recovery || self.ssthresh() < ssthresh;
        if bytes > 0 && !is_syn && !is_reduced {
            let is_loss = phase == Phase::Loss && !acked.is_undone;
            self.grow(now, bytes, is_loss, before < self.limited_to, rtt_ns);
        }
        self.arm(now, bytes > 0, delivered.bytes > 0, timers);
        self.is_quiet = self.phase == Phase::Open
            && self.scoreboard.is_plain()
            && self.duplicates == 0
            && self.probe.is_none()
            && self.probe_wanted.is_none()
            && self.backoffs == 0
            && !self.is_handshake;
        acked
    }

    /// Whether segments are missing, or the acknowledgement may indicate a loss.
    fn has_loss_signals(&self, ack: &Ack<'_>) -> bool {
        self.phase != Phase::Open
            || self.scoreboard.sacked() > 0
            || self.scoreboard.lost() > 0
            || self.duplicates > 0
            || self.probe.is_some()
            || ack.is_duplicate
            || ack.dsack.is_some()
    }

    /// Records whether the peer supports SACK, which is known only after the handshake.
    fn set_has_sack(&mut self, has_sack: bool) {
        if self.has_sack != has_sack {
            self.has_sack = has_sack;
            self.scoreboard.forget_sacked();
            (self.duplicated, self.duplicates) = (0, 0);
        }
    }

    /// New bytes were acknowledged: measures a round trip if possible, and returns it in nanoseconds, or 0. The round
    /// trip of a segment sent twice cannot be measured without timestamps (Karn; RFC 6298 §3); the timeout then stays
    /// backed off (§5).
    fn on_progress(&mut self, now: Time, echoed: Option<Duration>, delivered: &Delivered) -> u64 {
        let sent_at = delivered.sent_at.filter(|_| !delivered.repeated);
        let rtt_ns = sent_at.map_or(timestamp_rtt_ns(echoed), |sent_at| now.0.saturating_sub(sent_at.0));
        if self.take_sample(rtt_ns) {
            self.backoffs = 0;
        } else if self.is_handshake && delivered.repeated {
            self.rtt.raise_after_syn_timeout();
            self.backoffs = 0;
        }
        (self.timeouts, self.progress_at, self.is_handshake) = (0, now, false);
        rtt_ns
    }

    /// Adds a measured round trip to the estimates. Returns whether one was measured: 0 means that none was, or that
    /// the clock has not advanced.
    fn take_sample(&mut self, rtt_ns: u64) -> bool {
        if rtt_ns > 0 {
            self.rtt.sample(rtt_ns);
        }
        rtt_ns > 0
    }

    /// Grows the congestion window if it was the limit (RFC 9438 §5.8), or after a timeout; in slow start also if more
    /// than half of it was used in this round. `is_loss`: the phase is [`Phase::Loss`].
    fn grow(&mut self, now: Time, mut bytes: u64, is_loss: bool, was_limit: bool, rtt_ns: u64) {
        let window = self.congestion.window;
        let is_slow_start = window.cwnd < window.ssthresh;
        if was_limit || is_loss || (is_slow_start && self.used > window.cwnd / 2) {
            if is_slow_start && window.ssthresh == THRESHOLD_INITIAL && self.limits.hystart {
                match self.hystart.on_ack(self.una(), self.nxt(), rtt_ns) {
                    Pace::Usual => {}
                    Pace::Conservative => bytes /= CONSERVATIVE_DIVISOR,
                    Pace::Over => self.congestion.window.ssthresh = window.cwnd,
                }
            }
            let slow_start_max = if is_loss { window.mss } else { u64::MAX };
            let rtt = self.rtt.smoothed().unwrap_or_default();
            let window_max = self.limits.window_max(self.mss);
            self.congestion.on_ack(now, bytes, slow_start_max, rtt, window_max);
        } else {
            self.congestion.on_unlimited(now);
        }
    }

    /// Sets the timers after an acknowledgement (RFC 6298 §5.2 and §5.3; RFC 8985 §7.2).
    fn arm(&mut self, now: Time, is_progress: bool, is_delivery: bool, timers: &mut Timers) {
        if self.in_flight() == 0 {
            self.probe_wanted = None;
            timers.stop(Timer::Reordering);
            timers.stop(Timer::Probe);
            timers.stop(Timer::Retransmission);
        } else if is_progress || is_delivery {
            if is_progress {
                self.arm_timeout(now, timers);
            }
            self.probe_wanted = None;
            self.arm_probe(now, timers);
            self.arm_reordering(now, timers);
        }
    }
}

/// Tick of timestamps, 1 ms. Shorter round trips count as 1 ms, because they would otherwise be 0.
const TIMESTAMP_NS: u64 = 1_000_000;

/// The round trip according to timestamps, in nanoseconds; 0 for none. Less exact than one computed from send times.
fn timestamp_rtt_ns(echoed: Option<Duration>) -> u64 {
    echoed.map_or(0, |rtt| nanos(rtt).max(TIMESTAMP_NS))
}

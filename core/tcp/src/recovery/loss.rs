//! Loss detection, fast retransmit and recovery with SACK (RFC 6675) and without (RFC 6582). In recovery the window
//! shrinks in proportion to the bytes that arrive (RFC 9937).

use alloc::boxed::Box;
use core::time::Duration;

use spillway_transport::Time;

use super::probe::Fate;
use super::rtt::nanos;
use super::scoreboard::Delivered;
use super::undo::Undo;
use super::{Ack, Acked, Phase, Recovery, THRESHOLD_MIN};
use crate::seq::Seq;
use crate::timer::{Timer, Timers};

pub(super) const THRESHOLD_MAX: u32 = 128;

/// Minimum time until [`Timer::Reordering`] expires: most hosts' timers are not finer, and delays within a host are not
/// reordering.
const REORDERING_TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Proportional rate reduction (RFC 9937 §6), in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reduction {
    /// Bytes in flight when the recovery began: RecoverFS.
    pub flight: u64,
    /// Bytes delivered since the recovery began.
    pub delivered: u64,
    /// Bytes sent since the recovery began.
    pub sent: u64,
    /// End of the highest retransmission of this recovery (RFC 6675's HighRxt).
    pub high_rxt: Seq,
    /// The last segment was retransmitted (RFC 6675's RescueRxt).
    pub is_rescued: bool,
}

impl Recovery {
    /// Handles an acknowledgement that arrives while segments are missing, or that indicates a loss.
    pub(super) fn on_loss_signals(
        &mut self,
        now: Time,
        ack: &Ack<'_>,
        bytes: u64,
        delivered: &mut Delivered,
        acked: &mut Acked,
    ) {
        if delivered.latest > self.latest {
            (self.latest, self.latest_rtt) = (delivered.latest, now.since(delivered.latest.0));
        }
        self.expect_reordering(delivered.reordering.saturating_add(1));
        if delivered.reordering > 0 {
            self.reordering.set_seen();
        }
        if !self.has_sack {
            self.count_duplicates(ack.is_duplicate, bytes, delivered);
        }
        let is_probe_over = self.on_probe_fate(ack);
        self.reordering.on_ack(self.una(), self.nxt(), ack.dsack.is_some() && !is_probe_over);
        if self.detect_spurious(now, ack, bytes, delivered, is_probe_over) {
            if self.phase != Phase::Loss {
                self.reordering.set_seen();
                self.expect_reordering(
                    (2 * self.threshold).max(delivered.reordering_repeated.saturating_add(1)),
                );
            }
            self.undo();
            acked.is_undone = true;
            return;
        }
        if self.phase != Phase::Open && self.una() >= self.recovery_point {
            acked.is_recovered = true;
            self.end_recovery();
            if self.scoreboard.lost() > 0 {
                // Segments that were sent during the recovery are lost: the next recovery begins.
                self.begin_recovery(now, bytes, delivered);
                return;
            }
        }
        match self.phase {
            Phase::Open => {
                if self.detect_loss(now) {
                    self.begin_recovery(now, bytes, delivered);
                }
            }
            Phase::Recovery => {
                let newly_lost = self.find_lost(now, bytes > 0);
                self.reduce(delivered.bytes, bytes > 0 && newly_lost == 0);
            }
            Phase::Loss => {
                self.find_lost(now, false);
            }
        }
    }

    /// Without SACK each duplicate indicates that one segment has arrived. An acknowledgement of new bytes covers such
    /// segments, which must not be counted again (RFC 6582 §3.2, step 3).
    fn count_duplicates(&mut self, is_duplicate: bool, bytes: u64, delivered: &mut Delivered) {
        let mss = u64::from(self.mss);
        if bytes > 0 {
            let counted = match self.phase {
                Phase::Recovery => self.duplicated.min(bytes.saturating_sub(mss)),
                Phase::Open | Phase::Loss => self.duplicated,
            };
            self.duplicated -= counted;
            self.duplicates = 0;
            delivered.bytes = delivered.bytes.saturating_sub(counted);
        } else if is_duplicate && self.phase != Phase::Loss {
            let step = self.scoreboard.pipe().saturating_sub(self.duplicated).min(mss);
            self.duplicated += step;
            self.duplicates = self.duplicates.saturating_add(1);
            delivered.bytes += step;
        }
        self.duplicated = self.duplicated.min(self.scoreboard.pipe());
    }

    /// Whether the acknowledgement answers the probe. A loss that the probe repaired reduces the window (RFC 8985
    /// §7.4.2).
    fn on_probe_fate(&mut self, ack: &Ack<'_>) -> bool {
        let Some(probe) = self.probe else { return false };
        let fate = probe.fate(self.una(), ack.is_duplicate, ack.dsack);
        if fate == Fate::Open && self.phase == Phase::Open {
            return false;
        }
        self.probe = None;
        if fate == Fate::Repaired && self.phase == Phase::Open {
            self.congestion.on_loss(self.cwnd());
            self.congestion.window.cwnd = self.ssthresh();
        }
        fate != Fate::Open
    }

    /// Marks lost segments, and returns whether to begin a recovery: with SACK if anything is lost; without
    /// SACK after three duplicates that acknowledge more than the last recovery covered (RFC 6582 §3.2, step
    /// 2).
    fn detect_loss(&mut self, now: Time) -> bool {
        if self.has_sack {
            self.find_lost(now, false) > 0
        } else {
            self.duplicates >= THRESHOLD_MIN && self.una() > self.recovery_point
        }
    }

    /// Marks lost segments, and returns the bytes newly marked. `is_partial`: new bytes were acknowledged in a
    /// recovery.
    fn find_lost(&mut self, now: Time, is_partial: bool) -> u64 {
        if !self.has_sack {
            // A partial acknowledgement ends where the next hole begins (RFC 6582 §3.2, step 3, partial).
            return if is_partial { self.scoreboard.mark_first_lost() } else { 0 };
        }
        // With few segments in flight, the threshold is the number of segments after the first, but at least three.
        let others = u32::try_from(self.scoreboard.segments.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let threshold = self.threshold.min(others.max(THRESHOLD_MIN));
        self.scoreboard.mark_lost(threshold, self.mss) + self.find_overdue(now)
    }

    /// Raises the threshold, because segments arrived this far out of order without a loss (see RFC 4653).
    fn expect_reordering(&mut self, segments: u32) {
        self.threshold = self.threshold.max(segments.min(THRESHOLD_MAX));
    }

    /// How long to wait for a segment that may be out of order: a quarter of the shortest round trip, longer after
    /// reordering or needless retransmissions, at most a round trip. Zero if no segment ever arrived out of order, once
    /// there is enough evidence of a loss (RFC 8985 §6.2).
    fn reordering_window(&self) -> Duration {
        let has_evidence = self.phase != Phase::Open || self.scoreboard.sacked_segments() >= THRESHOLD_MIN;
        if has_evidence && !self.reordering.is_seen() {
            return Duration::ZERO;
        }
        let smoothed = self.rtt.smoothed().unwrap_or_default();
        let quarter = self.rtt.smallest().unwrap_or(smoothed) / 4;
        let by_segments = quarter * self.threshold / THRESHOLD_MIN;
        by_segments.max(quarter.saturating_mul(self.reordering.quarters())).min(smoothed)
    }

    /// Marks segments lost that were sent before the `latest` transmission, and early enough to have arrived as well.
    fn find_overdue(&mut self, now: Time) -> u64 {
        let slack = self.latest_rtt + self.reordering_window();
        self.scoreboard.mark_older_lost(Time(now.0.saturating_sub(nanos(slack))), self.latest)
    }

    /// Sets the timer for segments that become overdue without a further acknowledgement (RFC 8985 §6.2, step 5).
    pub(super) fn arm_reordering(&self, now: Time, timers: &mut Timers) {
        let may_be_overdue = self.has_sack && (self.scoreboard.sacked() > 0 || self.scoreboard.lost() > 0);
        let oldest = if may_be_overdue { self.scoreboard.oldest_awaited(self.latest) } else { None };
        match oldest {
            Some(oldest) => {
                let at = oldest + self.latest_rtt + self.reordering_window();
                timers.set(Timer::Reordering, at.max(now + REORDERING_TIMEOUT_MIN));
            }
            None => timers.stop(Timer::Reordering),
        }
    }

    /// [`Timer::Reordering`] has expired: marks segments lost that were sent before one that has arrived. Returns
    /// whether any was marked.
    pub fn on_overdue(&mut self, now: Time, timers: &mut Timers) -> bool {
        let newly_lost = self.find_overdue(now);
        match self.phase {
            Phase::Open if newly_lost > 0 => self.begin_recovery(now, 0, &Delivered::default()),
            Phase::Recovery if newly_lost > 0 => self.set_window(0, true),
            _ => {}
        }
        self.arm_reordering(now, timers);
        newly_lost > 0
    }

    /// `acknowledged`: bytes covered by the acknowledgement that revealed the loss. They count as in flight, because
    /// one acknowledgement for many segments may cover most of the window and reveal a hole in it (RFC 5681 §3.1 means
    /// duplicate acknowledgements, which cover no new bytes).
    fn begin_recovery(&mut self, now: Time, acknowledged: u64, delivered: &Delivered) {
        self.undo = Some(Box::new(Undo::new(self.congestion, &self.scoreboard)));
        self.congestion.on_loss((self.in_flight() + acknowledged).min(self.cwnd()));
        (self.phase, self.recovery_point) = (Phase::Recovery, self.nxt());
        if self.has_sack {
            self.find_overdue(now); // the reordering window may be shorter in recovery
        } else {
            self.scoreboard.mark_first_lost();
        }
        let arrived = self.scoreboard.sacked() + self.duplicated;
        let flight = self.in_flight().saturating_sub(arrived) + delivered.bytes;
        self.reduction = Reduction { flight, high_rxt: self.una(), ..Reduction::default() };
        self.counters.fast_recoveries = self.counters.fast_recoveries.saturating_add(1);
        self.reduce(delivered.bytes, false);
    }

    /// Sets the window in recovery after bytes have arrived (RFC 9937 §6.2). `is_safe`: SafeACK of this RFC,
    /// with which a segment more than has arrived may be sent.
    fn reduce(&mut self, arrived: u64, is_safe: bool) {
        self.duplicated = self.duplicated.min(self.scoreboard.pipe()); // lost bytes have left `pipe`
        if arrived == 0 && self.reduction.sent > 0 {
            return;
        }
        self.reduction.delivered = self.reduction.delivered.saturating_add(arrived);
        self.set_window(arrived, is_safe);
    }

    /// Sets the window so that the bytes sent stay in proportion to the bytes that have arrived since the recovery
    /// began. If the timer has found losses without an acknowledgement, this avoids retransmitting them in one burst.
    fn set_window(&mut self, arrived: u64, is_safe: bool) {
        let (pipe, ssthresh, mss) = (self.pipe(), self.ssthresh(), u64::from(self.mss));
        let reduction = &self.reduction;
        let mut count = if pipe > ssthresh {
            let share = u128::from(reduction.delivered) * u128::from(ssthresh);
            let share = share.div_ceil(u128::from(reduction.flight.max(1)));
            u64::try_from(share).unwrap_or(u64::MAX).saturating_sub(reduction.sent)
        } else {
            let limit = reduction.delivered.saturating_sub(reduction.sent).max(arrived);
            (limit + if is_safe { mss } else { 0 }).min(ssthresh - pipe)
        };
        // The fast retransmit is sent at once, and so is the next hole without SACK (RFC 6582 §3.2, step 3).
        if reduction.sent == 0 || (!self.has_sack && self.scoreboard.has_lost_to_send()) {
            count = count.max(mss);
        }
        let window_max = self.limits.window_max(self.mss);
        self.congestion.window.cwnd = pipe.saturating_add(count).clamp(mss, window_max);
    }

    /// Ends the recovery: all bytes in flight at its beginning have arrived.
    fn end_recovery(&mut self) {
        self.reordering.on_recovered();
        if self.phase == Phase::Recovery {
            self.congestion.window.cwnd = self.ssthresh().min(self.limits.window_max(self.mss));
        }
        self.phase = Phase::Open;
        (self.duplicated, self.duplicates) = (0, 0);
    }
}

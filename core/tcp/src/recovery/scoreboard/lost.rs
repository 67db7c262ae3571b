//! Marks lost segments, and finds ranges to retransmit.

use spillway_transport::Time;

use super::Scoreboard;
use crate::seq::Seq;

/// Maximum number of segments examined to find the first missing one.
const EXAMINED_MAX: usize = 64;

impl Scoreboard {
    /// Marks a segment as lost if at least `threshold` segments above it are SACKed, or more SACKed bytes are above it
    /// than `threshold - 1` full segments have (RFC 6675 §4, IsLost). Returns the bytes newly marked.
    pub(in crate::recovery) fn mark_lost(&mut self, threshold: u32, mss: u32) -> u64 {
        if self.sacked == 0 {
            return 0;
        }
        let bytes_min = u64::from(threshold.saturating_sub(1)) * u64::from(mss);
        let (mut segments, mut bytes, mut newly_lost) = (0_u32, 0_u64, 0);
        let mut below = self.lost_below;
        let is_enough = |segments: u32, bytes: u64| segments >= threshold || bytes > bytes_min;
        for index in (0..=self.index_of(self.highest_sacked - 1)).rev() {
            let Some(&segment) = self.segments.get(index) else {
                debug_assert!(false, "SACKed bytes should be bytes in flight");
                continue;
            };
            if segment.end <= self.lost_below {
                break;
            }
            if segment.sacked {
                let start = self.start_of(index);
                segments += 1;
                bytes += segment.end - start;
                if is_enough(segments, bytes) {
                    below = below.max(start); // everything below is marked: later calls stop here
                }
            } else if is_enough(segments, bytes) {
                newly_lost += self.mark(index);
            }
        }
        self.lost_below = below;
        newly_lost
    }

    /// Marks segments as lost that have not arrived and were sent by `until` and before `latest`, which has arrived
    /// (RFC 8985 §6.2). Returns the bytes newly marked.
    pub(in crate::recovery) fn mark_older_lost(&mut self, until: Time, latest: (Time, Seq)) -> u64 {
        let (mut newly_lost, mut all_marked) = (0, true);
        for index in self.index_of(self.lost_below)..self.segments.len() {
            let segment = self.segments[index];
            let is_overdue = segment.sent_at <= until && (segment.sent_at, segment.end) < latest;
            if !is_overdue && segment.transmissions == 1 && !segment.sacked {
                break; // the following segments were sent later
            }
            if is_overdue && !segment.sacked {
                newly_lost += self.mark(index);
            }
            all_marked &= is_overdue || segment.sacked || segment.lost;
            if all_marked {
                self.lost_below = segment.end;
            }
        }
        newly_lost + self.mark_retransmissions_lost(until, latest)
    }

    /// The earliest send time, before `latest`, of a retransmission in flight or of the first segment that is
    /// neither SACKed nor lost. The search is bounded.
    pub(in crate::recovery) fn oldest_awaited(&self, latest: (Time, Seq)) -> Option<Time> {
        let from = self.index_of(self.lost_below.max(self.una));
        let mut examined = self.segments.range(from..).take(EXAMINED_MAX);
        let missing = examined.find(|segment| !segment.sacked && !segment.lost);
        let missing =
            missing.filter(|segment| (segment.sent_at, segment.end) < latest).map(|segment| segment.sent_at);
        let retransmission = (self.retransmitted > 0 && self.retransmitted_first < latest.0)
            .then_some(self.retransmitted_first);
        missing.into_iter().chain(retransmission).min()
    }

    pub(in crate::recovery) fn mark_first_lost(&mut self) -> u64 {
        if self.segments.is_empty() { 0 } else { self.mark(0) }
    }

    /// Marks segments longer than `mss` as lost, unless they are SACKed.
    pub(in crate::recovery) fn mark_longer_lost(&mut self, mss: u32) {
        for index in 0..self.segments.len() {
            if self.segments[index].end - self.start_of(index) > u64::from(mss) {
                self.mark(index);
            }
        }
    }

    /// After a timeout: everything is lost, and the peer may have discarded what it had SACKed (RFC 2018 §8).
    pub(in crate::recovery) fn mark_all_lost(&mut self) {
        self.forget_sacked();
        for segment in &mut self.segments {
            (segment.lost, segment.retransmitted) = (true, false);
        }
        (self.lost, self.retransmitted) = (self.in_flight(), 0);
        (self.next_lost_from, self.lost_below, self.timeout_point) = (self.una, self.nxt, self.nxt);
        self.retransmitted_first = Time(u64::MAX);
    }

    /// Removes the marks of lost segments: they were only late.
    pub(in crate::recovery) fn unmark_all(&mut self) {
        for segment in &mut self.segments {
            (segment.lost, segment.retransmitted) = (false, false);
        }
        (self.lost, self.retransmitted) = (0, 0);
        (self.next_lost_from, self.lost_below) = (Seq::MAX, self.una);
        self.retransmitted_first = Time(u64::MAX);
    }

    /// Marks retransmissions as lost that have not arrived and were sent by `until` and before `latest`.
    fn mark_retransmissions_lost(&mut self, until: Time, latest: (Time, Seq)) -> u64 {
        if self.retransmitted == 0 || self.retransmitted_first > until.min(latest.0) {
            return 0;
        }
        let (mut newly_lost, mut first) = (0, Time(u64::MAX));
        for index in 0..self.segments.len() {
            let start = self.start_of(index);
            let segment = &mut self.segments[index];
            if !segment.retransmitted {
                continue;
            }
            if segment.sent_at <= until && (segment.sent_at, segment.end) < latest {
                segment.retransmitted = false;
                newly_lost += segment.end - start;
                self.next_lost_from = self.next_lost_from.min(start);
            } else {
                first = first.min(segment.sent_at);
            }
        }
        self.retransmitted -= newly_lost;
        self.retransmitted_first = first;
        newly_lost
    }

    /// The first lost segment that is to be retransmitted, at most `mss` bytes of it.
    pub(in crate::recovery) fn next_lost(&self, mss: u32) -> Option<(Seq, Seq)> {
        if self.lost == self.retransmitted {
            return None;
        }
        let from = self.index_of(self.next_lost_from.max(self.una));
        let index = (from..self.segments.len()).find(|&index| {
            let segment = self.segments[index];
            segment.lost && !segment.retransmitted
        })?;
        let start = self.start_of(index);
        Some((start, self.segments[index].end.min(start + u64::from(mss))))
    }

    /// The first segment from `from` on that is neither SACKed nor lost and ends by `below`, at most `mss` bytes of it.
    pub(in crate::recovery) fn next_missing(&self, from: Seq, below: Seq, mss: u32) -> Option<(Seq, Seq)> {
        let from = self.index_of(from.max(self.una));
        let index = (from..self.segments.len())
            .take_while(|&index| self.segments[index].end <= below)
            .find(|&index| !self.segments[index].sacked && !self.segments[index].lost)?;
        let start = self.start_of(index);
        Some((start, self.segments[index].end.min(start + u64::from(mss))))
    }

    /// The last segment, or its last `mss` bytes.
    pub(in crate::recovery) fn last(&self, mss: u32) -> Option<(Seq, Seq)> {
        let last = self.segments.len().checked_sub(1)?;
        Some((self.start_of(last).max(self.nxt.saturating_sub(u64::from(mss))), self.nxt))
    }

    /// Records a retransmission. `as_lost`: also marks the bytes as lost, unless they are SACKed.
    pub(in crate::recovery) fn resend(&mut self, now: Time, from: Seq, to: Seq, as_lost: bool) {
        let (from, to) = (from.max(self.una), to.min(self.nxt));
        if from >= to {
            return;
        }
        let mut index = self.index_of(from);
        if self.start_of(index) < from && self.divide(index, from) {
            index += 1;
        }
        while index < self.segments.len() && self.start_of(index) < to {
            if self.segments[index].end > to {
                self.divide(index, to);
            }
            if as_lost {
                self.mark(index);
            }
            let length = self.segments[index].end - self.start_of(index);
            let segment = &mut self.segments[index];
            segment.transmissions = segment.transmissions.saturating_add(1);
            segment.sent_at = now;
            if segment.lost {
                self.retransmitted += if segment.retransmitted { 0 } else { length };
                segment.retransmitted = true;
                self.retransmitted_first = self.retransmitted_first.min(now);
            }
            let end = segment.end;
            self.repeated_to = self.repeated_to.max(end);
            if self.next_lost_from >= from && self.next_lost_from < end {
                self.next_lost_from = end;
            }
            index += 1;
        }
    }

    /// Marks a segment as lost unless it is SACKed or lost already; returns the bytes newly marked.
    fn mark(&mut self, index: usize) -> u64 {
        let start = self.start_of(index);
        let segment = &mut self.segments[index];
        if segment.sacked || segment.lost {
            return 0;
        }
        segment.lost = true;
        let length = segment.end - start;
        self.lost += length;
        self.next_lost_from = self.next_lost_from.min(start);
        length
    }

    pub(super) fn unmark(&mut self, index: usize) {
        let length = self.segments[index].end - self.start_of(index);
        let segment = &mut self.segments[index];
        self.sacked -= if segment.sacked { length } else { 0 };
        self.sacked_segments -= u32::from(segment.sacked);
        self.lost -= if segment.lost { length } else { 0 };
        self.retransmitted -= if segment.retransmitted { length } else { 0 };
        (segment.sacked, segment.lost, segment.retransmitted) = (false, false, false);
    }
}

//! What was sent and is not acknowledged: a ring of segments, each with what is known of its fate.
//!
//! Follows RFC 6675 in what it counts. The sums are kept as segments change, so that asking costs nothing.

use alloc::collections::VecDeque;

use spillway_transport::Time;

use crate::seq::Seq;

/// Segments of one connection in all, at most.
pub(super) const SEGMENTS_MAX: usize = 4096;

/// From so many on, what is sent extends the last segment, so that there is room for dividing others.
const SEGMENTS_SENT_MAX: usize = SEGMENTS_MAX - 512;

/// An empty ring keeps room for so many.
const SEGMENTS_KEPT: usize = 64;

/// SACK blocks of the last acknowledgement that are remembered: as many as a segment without timestamps carries.
const BLOCKS_KEPT: usize = 4;

/// One segment, from where the one before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub end: Seq,
    /// For the last time.
    pub sent_at: Time,
    pub transmissions: u8,
    /// The peer told that it has it.
    pub sacked: bool,
    /// The peer told so before a timeout; it may since have dropped it (RFC 2018 §8).
    pub was_sacked: bool,
    pub lost: bool,
    /// After it was found lost.
    pub retransmitted: bool,
}

/// What one acknowledgement told about segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delivered {
    /// Bytes that were not known to have arrived.
    pub bytes: u64,
    /// When the first segment acknowledged was sent, if this can be told (Karn).
    pub sent_at: Option<Time>,
    /// Whether anything acknowledged was sent more than once.
    pub repeated: bool,
    /// Whether anything arrived that was sent before the last timeout and not again, and was not SACKed before.
    pub original: bool,
    /// When the last sent of what arrived was sent.
    pub latest: Time,
    /// By how many segments the latest was late.
    pub reordering: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    una: Seq,
    nxt: Seq,
    pub(super) segments: VecDeque<Segment>,
    sacked: u64,
    lost: u64,
    /// Of the lost ones' bytes.
    retransmitted: u64,
    highest_sacked: Seq,
    /// All below that is not SACKed is marked as lost.
    lost_below: Seq,
    /// No lost segment that is not on the way again begins below.
    next_lost_from: Seq,
    /// No retransmission that is on the way was sent earlier.
    retransmitted_first: Time,
    /// Where what was sent before the last timeout ends.
    timeout_point: Seq,
    blocks: [(Seq, Seq); BLOCKS_KEPT],
}

impl Scoreboard {
    pub(super) fn new(first: Seq) -> Scoreboard {
        Scoreboard {
            una: first,
            nxt: first,
            segments: VecDeque::new(),
            sacked: 0,
            lost: 0,
            retransmitted: 0,
            highest_sacked: first,
            lost_below: first,
            next_lost_from: Seq::MAX,
            retransmitted_first: Time(u64::MAX),
            timeout_point: first,
            blocks: [(0, 0); BLOCKS_KEPT],
        }
    }

    /// From segments in order, the first beginning at `una`; `None` when they are not in order or too many.
    pub(super) fn from_segments(una: Seq, segments: VecDeque<Segment>) -> Option<Scoreboard> {
        let mut scoreboard = Scoreboard::new(una);
        if segments.len() > SEGMENTS_MAX {
            return None;
        }
        for segment in &segments {
            let length = segment.end.checked_sub(scoreboard.nxt).filter(|&length| length > 0)?;
            let is_possible = segment.transmissions > 0
                && !(segment.sacked && segment.lost)
                && (segment.lost || !segment.retransmitted);
            if !is_possible {
                return None;
            }
            if segment.sacked {
                scoreboard.sacked += length;
                scoreboard.highest_sacked = segment.end;
            }
            if segment.lost {
                scoreboard.lost += length;
            }
            if segment.retransmitted {
                scoreboard.retransmitted += length;
                scoreboard.retransmitted_first = scoreboard.retransmitted_first.min(segment.sent_at);
            } else if segment.lost {
                scoreboard.next_lost_from = scoreboard.next_lost_from.min(scoreboard.nxt);
            }
            scoreboard.nxt = segment.end;
        }
        scoreboard.segments = segments;
        Some(scoreboard)
    }

    pub(super) fn una(&self) -> Seq {
        self.una
    }

    pub(super) fn nxt(&self) -> Seq {
        self.nxt
    }

    /// Sent and not cumulatively acknowledged, in bytes: RFC 5681's FlightSize.
    pub(super) fn in_flight(&self) -> u64 {
        self.nxt - self.una
    }

    /// What is thought to be in the network, in bytes (RFC 6675 §4).
    pub(super) fn pipe(&self) -> u64 {
        self.in_flight() - self.sacked - (self.lost - self.retransmitted)
    }

    pub(super) fn sacked(&self) -> u64 {
        self.sacked
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether anything lost is not on the way again.
    pub(super) fn has_lost_to_send(&self) -> bool {
        self.lost > self.retransmitted
    }

    pub(super) fn highest_sacked(&self) -> Seq {
        self.highest_sacked
    }

    /// New bytes were sent.
    pub(super) fn send(&mut self, now: Time, to: Seq) {
        if self.segments.len() >= SEGMENTS_SENT_MAX
            && let Some(last) = self.segments.back_mut()
            && !(last.sacked || last.lost || last.transmissions > 1)
        {
            (last.end, last.sent_at) = (to, now);
        } else if self.segments.len() < SEGMENTS_MAX {
            let (sacked, was_sacked, lost, retransmitted) = (false, false, false, false);
            let segment =
                Segment { end: to, sent_at: now, transmissions: 1, sacked, was_sacked, lost, retransmitted };
            self.segments.push_back(segment);
        } else if let Some(last) = self.segments.len().checked_sub(1) {
            // Full to the brim, and the last is marked: the new bytes share its fate, without its marks.
            self.unmark(last);
            let last = &mut self.segments[last];
            (last.end, last.sent_at, last.transmissions) = (to, now, 2);
        }
        self.nxt = to;
    }

    /// All below `una` has arrived; `una` is within what is on the way.
    pub(super) fn acknowledge(&mut self, una: Seq, mss: u32, delivered: &mut Delivered) {
        while let Some(&segment) = self.segments.front() {
            let end = segment.end.min(una);
            let length = end - self.una;
            if length == 0 {
                break;
            }
            if segment.sacked {
                self.sacked -= length;
            } else {
                delivered.bytes += length;
                if segment.lost {
                    self.lost -= length;
                    self.retransmitted -= if segment.retransmitted { length } else { 0 };
                }
            }
            self.una = end;
            if segment.end > end {
                self.forget_retransmission_of_part(mss);
                break;
            }
            if !segment.sacked {
                self.arrived(0, segment, delivered);
            }
            if segment.transmissions > 1 {
                delivered.repeated = true;
            }
            self.segments.pop_front();
        }
        if self.segments.is_empty() && self.segments.capacity() > SEGMENTS_KEPT {
            self.segments.shrink_to(SEGMENTS_KEPT);
        }
    }

    /// The first segment is acknowledged in part. One that could not be divided counts as on the way again as a whole
    /// when only its first part was: the rest is lost again.
    fn forget_retransmission_of_part(&mut self, mss: u32) {
        let una = self.una;
        let Some(first) = self.segments.front_mut() else { return };
        let length = first.end - una;
        if first.retransmitted && length > u64::from(mss) {
            first.retransmitted = false;
            self.retransmitted -= length;
            self.next_lost_from = self.next_lost_from.min(una);
        }
    }

    /// What a segment that has arrived tells.
    fn arrived(&self, index: usize, segment: Segment, delivered: &mut Delivered) {
        if segment.transmissions > 1 {
            delivered.repeated = true;
            return;
        }
        delivered.latest = delivered.latest.max(segment.sent_at);
        if !segment.was_sacked {
            delivered.original |= segment.end <= self.timeout_point;
            if delivered.sent_at.is_none() {
                delivered.sent_at = Some(segment.sent_at);
            }
            if segment.end < self.highest_sacked {
                let late = self.index_of(self.highest_sacked - 1).saturating_sub(index);
                delivered.reordering = delivered.reordering.max(u32::try_from(late).unwrap_or(u32::MAX));
            }
        }
    }

    /// The peer has these bytes. What is not within what is on the way is ignored (RFC 2018 §4 allows nonsense only by
    /// mistake).
    pub(super) fn sack(&mut self, blocks: &[(Seq, Seq)], delivered: &mut Delivered) {
        let mut kept = [(0, 0); BLOCKS_KEPT];
        for (index, &(from, to)) in blocks.iter().take(BLOCKS_KEPT).enumerate() {
            if from >= to || to > self.nxt || to <= self.una {
                continue;
            }
            let from = from.max(self.una);
            kept[index] = (from, to);
            // Most of a block was in the one before: only what was added is gone through.
            let within =
                self.blocks.iter().filter(|block| block.0 < block.1 && from <= block.0 && block.1 <= to);
            match within.max_by_key(|block| block.1 - block.0).copied() {
                Some(known) => {
                    self.sack_range(from, known.0, delivered);
                    self.sack_range(known.1, to, delivered);
                }
                None => self.sack_range(from, to, delivered),
            }
        }
        self.blocks = kept;
    }

    fn sack_range(&mut self, from: Seq, to: Seq, delivered: &mut Delivered) {
        let (from, highest) = (from.max(self.una), self.highest_sacked);
        if from >= to {
            return;
        }
        let mut index = self.index_of(from);
        while let Some(&segment) = self.segments.get(index) {
            let start = self.start_of(index);
            if start >= to {
                break;
            }
            let is_whole = start >= from && segment.end <= to;
            if segment.sacked || (!is_whole && !self.divide(index, if start < from { from } else { to })) {
                index += 1;
                continue;
            }
            if !is_whole {
                // Divided: this part once more, or the part after it.
                index += usize::from(start < from);
                continue;
            }
            self.unmark(index);
            self.arrived(index, segment, delivered);
            let segment = &mut self.segments[index];
            segment.sacked = true;
            self.sacked += segment.end - start;
            delivered.bytes += segment.end - start;
            self.highest_sacked = self.highest_sacked.max(segment.end);
            index += 1;
        }
        debug_assert!(self.highest_sacked >= highest);
    }

    /// Marks as lost what lies below so many SACKed segments, or so many bytes less one segment of them (RFC 6675 §4,
    /// IsLost). Returns the bytes newly found lost.
    pub(super) fn mark_lost(&mut self, threshold: u32, mss: u32) -> u64 {
        if self.sacked == 0 {
            return 0;
        }
        let bytes_min = u64::from(threshold.saturating_sub(1)) * u64::from(mss);
        let (mut segments, mut bytes, mut newly) = (0_u32, 0_u64, 0);
        let mut below = self.lost_below;
        for index in (0..=self.index_of(self.highest_sacked - 1)).rev() {
            let Some(&segment) = self.segments.get(index) else { continue };
            if segment.end <= self.lost_below {
                break;
            }
            if segment.sacked {
                segments += 1;
                bytes += segment.end - self.start_of(index);
            } else if segments >= threshold || bytes > bytes_min {
                below = below.max(segment.end);
                newly += self.mark(index);
            }
        }
        self.lost_below = below;
        newly
    }

    /// Marks the first segment as lost.
    pub(super) fn mark_first_lost(&mut self) -> u64 {
        if self.segments.is_empty() { 0 } else { self.mark(0) }
    }

    /// Marks as lost what is longer than this and not SACKed.
    pub(super) fn mark_longer_lost(&mut self, mss: u32) {
        for index in 0..self.segments.len() {
            if self.segments[index].end - self.start_of(index) > u64::from(mss) {
                self.mark(index);
            }
        }
    }

    /// A timeout: all is lost, and what the peer told that it has it may have dropped (RFC 2018 §8).
    pub(super) fn mark_all_lost(&mut self) {
        self.forget_sacked();
        for segment in &mut self.segments {
            (segment.lost, segment.retransmitted) = (true, false);
        }
        (self.lost, self.retransmitted) = (self.in_flight(), 0);
        (self.next_lost_from, self.lost_below, self.timeout_point) = (self.una, self.nxt, self.nxt);
        self.retransmitted_first = Time(u64::MAX);
    }

    /// Nothing counts as SACKed any more.
    pub(super) fn forget_sacked(&mut self) {
        for segment in &mut self.segments {
            segment.was_sacked |= segment.sacked;
            segment.sacked = false;
        }
        (self.sacked, self.highest_sacked) = (0, self.una);
        self.blocks = [(0, 0); BLOCKS_KEPT];
    }

    /// Nothing counts as lost any more: it was late.
    pub(super) fn unmark_all(&mut self) {
        for segment in &mut self.segments {
            (segment.lost, segment.retransmitted) = (false, false);
        }
        (self.lost, self.retransmitted) = (0, 0);
        (self.next_lost_from, self.lost_below) = (Seq::MAX, self.una);
        self.retransmitted_first = Time(u64::MAX);
    }

    /// Marks as lost again what was sent again before `before` and is still missing.
    pub(super) fn mark_retransmissions_lost(&mut self, before: Time) -> u64 {
        if self.retransmitted == 0 || self.retransmitted_first >= before {
            return 0;
        }
        let (mut newly, mut first) = (0, Time(u64::MAX));
        for index in 0..self.segments.len() {
            let start = self.start_of(index);
            let segment = &mut self.segments[index];
            if !segment.retransmitted {
                continue;
            }
            if segment.sent_at < before {
                segment.retransmitted = false;
                newly += segment.end - start;
                self.next_lost_from = self.next_lost_from.min(start);
            } else {
                first = first.min(segment.sent_at);
            }
        }
        self.retransmitted -= newly;
        self.retransmitted_first = first;
        newly
    }

    /// The first lost segment that is not on the way again, at most so long.
    pub(super) fn next_lost(&self, mss: u32) -> Option<(Seq, Seq)> {
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

    /// The first segment from `from` on that is neither SACKed nor lost and ends below `below`, at most so long.
    pub(super) fn next_missing(&self, from: Seq, below: Seq, mss: u32) -> Option<(Seq, Seq)> {
        let from = self.index_of(from.max(self.una));
        let index = (from..self.segments.len())
            .take_while(|&index| self.segments[index].end <= below)
            .find(|&index| !self.segments[index].sacked && !self.segments[index].lost)?;
        let start = self.start_of(index);
        Some((start, self.segments[index].end.min(start + u64::from(mss))))
    }

    /// The last segment, or its last part of such a length.
    pub(super) fn last(&self, mss: u32) -> Option<(Seq, Seq)> {
        let last = self.segments.len().checked_sub(1)?;
        Some((self.start_of(last).max(self.nxt.saturating_sub(u64::from(mss))), self.nxt))
    }

    /// These bytes were sent again; with `as_lost` because they are thought lost, if they are not marked so already.
    pub(super) fn resend(&mut self, now: Time, from: Seq, to: Seq, as_lost: bool) {
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
            if self.next_lost_from >= from && self.next_lost_from < end {
                self.next_lost_from = end;
            }
            index += 1;
        }
    }

    /// Marks one as lost that is neither SACKed nor lost; returns its bytes.
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

    fn unmark(&mut self, index: usize) {
        let length = self.segments[index].end - self.start_of(index);
        let segment = &mut self.segments[index];
        self.sacked -= if segment.sacked { length } else { 0 };
        self.lost -= if segment.lost { length } else { 0 };
        self.retransmitted -= if segment.retransmitted { length } else { 0 };
        (segment.sacked, segment.lost, segment.retransmitted) = (false, false, false);
    }

    /// Makes two of one; whether there was room for that.
    fn divide(&mut self, index: usize, at: Seq) -> bool {
        if self.segments.len() >= SEGMENTS_MAX {
            return false;
        }
        let first = Segment { end: at, ..self.segments[index] };
        self.segments.insert(index, first);
        true
    }

    /// The segment that has this byte.
    fn index_of(&self, seq: Seq) -> usize {
        self.segments.partition_point(|segment| segment.end <= seq)
    }

    fn start_of(&self, index: usize) -> Seq {
        match index.checked_sub(1) {
            Some(before) => self.segments[before].end,
            None => self.una,
        }
    }
}

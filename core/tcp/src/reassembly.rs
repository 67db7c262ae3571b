//! Bytes that arrived out of order (RFC 9293 §3.10.7.4).
//!
//! Holds contiguous ranges beyond RCV.NXT. Of bytes that arrive twice the first copy is kept. A range is held until its
//! bytes are taken, because SACK has reported it: Linux waits for a retransmission timeout after reneging. If
//! there is no room, new bytes are refused, and the peer retransmits them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::narrow::in_memory;
use crate::seq::Seq;

pub const RANGES_MAX: usize = 64;

/// The out-of-order bytes of one direction of a connection. Allocates nothing while empty, and otherwise at most about
/// twice the memory of the held bytes.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    /// Sorted, with a gap between any two.
    ranges: Vec<Range>,
}

#[derive(Clone, Debug)]
struct Range {
    from: Seq,
    /// Never empty.
    bytes: VecDeque<u8>,
    /// Order of the last change: larger for ranges that changed later.
    changed: u64,
}

/// The effect of a segment's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Bytes held that were not held before.
    pub new: usize,
    /// The first part of the segment that was already held: for D-SACK (RFC 2883 §4).
    pub duplicate: Option<(Seq, Seq)>,
    /// There was no room for the bytes: nothing has changed.
    pub refused: bool,
}

impl Range {
    fn until(&self) -> Seq {
        self.from + self.bytes.len() as u64
    }
}

impl Reassembly {
    pub fn new() -> Reassembly {
        Reassembly::default()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.bytes.len()).sum()
    }

    #[cfg(test)]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The sequence number after the last byte held.
    #[cfg(test)]
    pub fn until(&self) -> Option<Seq> {
        self.ranges.last().map(Range::until)
    }

    /// The sequence number of the first byte held.
    pub fn first(&self) -> Option<Seq> {
        self.ranges.first().map(|range| range.from)
    }

    /// Whether any byte at or after `seq` is held.
    pub fn reaches_beyond(&self, seq: Seq) -> bool {
        self.ranges.last().is_some_and(|range| range.until() > seq)
    }

    /// The range that holds this byte.
    pub fn block_around(&self, seq: Seq) -> Option<(Seq, Seq)> {
        let holds = |range: &&Range| range.from <= seq && seq < range.until();
        self.ranges.iter().find(holds).map(|range| (range.from, range.until()))
    }

    /// The end of the bytes that are contiguous from `from` on; `from` itself if that byte is missing.
    pub fn contiguous_until(&self, from: Seq) -> Seq {
        self.block_around(from).map_or(from, |(_, until)| until)
    }

    /// Keeps a segment's bytes, which are all beyond RCV.NXT, if the total of held bytes stays within `bytes_max`.
    pub fn insert(&mut self, from: Seq, bytes: &[u8], bytes_max: usize) -> Inserted {
        let Some(until) = from.checked_add(bytes.len() as u64).filter(|until| *until > from) else {
            return Inserted { refused: !bytes.is_empty(), ..Inserted::default() };
        };
        // Ranges `first..end` overlap or touch the segment and become one range with it.
        let first = self.ranges.partition_point(|range| range.until() < from);
        let end = self.ranges.partition_point(|range| range.from <= until);
        let overlap = |range: &Range| (range.from.max(from), range.until().min(until));
        let held = self.ranges[first..end].iter().map(overlap).filter(|(from, until)| from < until);
        let duplicate = held.clone().next();
        let held_bytes: u64 = held.map(|(from, until)| until - from).sum();
        let new = bytes.len() - in_memory(held_bytes);
        let is_one_too_many = first == end && self.ranges.len() >= RANGES_MAX;
        if new > 0 && (is_one_too_many || self.bytes() + new > bytes_max) {
            return Inserted { new: 0, duplicate, refused: true };
        }
        self.merge(first, end, from, bytes);
        Inserted { new, duplicate, refused: false }
    }

    /// Merges a segment with the ranges `first..end`, which overlap or touch it.
    fn merge(&mut self, first: usize, end: usize, from: Seq, bytes: &[u8]) {
        let changed = 1 + self.ranges.iter().map(|range| range.changed).max().unwrap_or(0);
        if first == end {
            let bytes = bytes.to_vec().into();
            self.ranges.insert(first, Range { from, bytes, changed });
            return;
        }
        let until = from + bytes.len() as u64;
        let part = |start: Seq, end: Seq| &bytes[in_memory(start - from)..in_memory(end - from)];
        let mut others = self.ranges.drain(first + 1..end).collect::<Vec<_>>().into_iter();
        let merged = &mut self.ranges[first];
        merged.changed = changed;
        if from < merged.from {
            for byte in part(from, merged.from.min(until)).iter().rev() {
                merged.bytes.push_front(*byte);
            }
            merged.from = from;
        }
        loop {
            let other = others.next();
            let gap_until = other.as_ref().map_or(until, |range| range.from);
            if merged.until() < gap_until {
                merged.bytes.extend(part(merged.until(), gap_until));
            }
            let Some(mut other) = other else { break };
            merged.bytes.append(&mut other.bytes);
        }
    }

    /// Takes the bytes that are contiguous from `from`, which is RCV.NXT, up to `until`; later bytes are kept. Bytes
    /// before `from` have been received in another segment, and are dropped.
    pub fn take(&mut self, from: Seq, until: Seq) -> Option<Vec<u8>> {
        self.drop_before(from);
        let first = self.ranges.first_mut().filter(|range| range.from == from && from < until)?;
        if until >= first.until() {
            let range = self.ranges.remove(0);
            self.free_if_empty();
            return Some(range.bytes.into());
        }
        let rest = first.bytes.split_off(in_memory(until - from));
        first.from = until;
        Some(core::mem::replace(&mut first.bytes, rest).into())
    }

    /// Drops bytes before `seq`, which have been received in another segment.
    pub fn drop_before(&mut self, seq: Seq) {
        if self.ranges.first().is_none_or(|range| range.from >= seq) {
            return;
        }
        self.ranges.retain(|range| range.until() > seq);
        if let Some(first) = self.ranges.first_mut().filter(|range| range.from < seq) {
            first.bytes.drain(..in_memory(seq - first.from));
            first.from = seq;
        }
        self.free_if_empty();
    }

    fn free_if_empty(&mut self) {
        if self.ranges.is_empty() {
            self.ranges = Vec::new();
        }
    }

    /// Writes the ranges to report by SACK, as many as `out` has room for, and returns their number: first the range
    /// that changed last, then the one that changed before it (RFC 2018 §4).
    pub fn blocks(&self, out: &mut [(Seq, Seq)]) -> usize {
        let (mut count, mut before) = (0, u64::MAX);
        for block in out {
            let older = self.ranges.iter().filter(|range| range.changed < before);
            let Some(range) = older.max_by_key(|range| range.changed) else { break };
            *block = (range.from, range.until());
            before = range.changed;
            count += 1;
        }
        count
    }

    /// All held bytes, a piece for each range. Ranges that changed earlier come first, so that [`Reassembly::import`]
    /// restores the order of [`Reassembly::blocks`].
    pub fn into_pieces(mut self) -> impl Iterator<Item = (Seq, Vec<u8>)> {
        self.ranges.sort_unstable_by_key(|range| range.changed);
        self.ranges.into_iter().map(|range| (range.from, range.bytes.into()))
    }

    /// Restores exported pieces; `next` is RCV.NXT. `None` if the pieces exceed `bytes_max`, overlap, or are not beyond
    /// `next`.
    pub fn import<B: AsRef<[u8]>>(
        next: Seq,
        pieces: impl IntoIterator<Item = (Seq, B)>,
        bytes_max: usize,
    ) -> Option<Reassembly> {
        let mut held = Reassembly::new();
        let mut total = 0;
        for (from, bytes) in pieces {
            let bytes = bytes.as_ref();
            total += bytes.len();
            let inserted = held.insert(from, bytes, bytes_max);
            if from <= next || inserted.duplicate.is_some() || inserted.refused {
                return None;
            }
        }
        debug_assert_eq!(held.bytes(), total, "all pieces should be held, each once");
        Some(held)
    }
}

#[cfg(test)]
mod tests;

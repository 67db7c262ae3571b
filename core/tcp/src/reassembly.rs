//! Bytes that came out of order (RFC 9293 §3.10.7.4).
//!
//! Contiguous ranges beyond RCV.NXT. Of what comes twice the bytes that came first are kept. What is held stays until it is
//! taken: the peer was told of it by SACK, and Linux goes through a timeout when that is taken back. Where there is no room,
//! what comes is refused, and comes again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::narrow::in_memory;
use crate::seq::Seq;

/// Ranges that are held, at most.
pub const RANGES_MAX: usize = 64;

/// What one direction of a connection holds. Without an allocation while that is nothing; at most about twice the bytes
/// that it holds otherwise.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    /// In order, with something missing between any two.
    ranges: Vec<Range>,
}

#[derive(Clone, Debug)]
struct Range {
    from: Seq,
    /// Never empty.
    bytes: VecDeque<u8>,
    /// Larger than of those that changed before.
    changed: u64,
}

/// What became of a segment's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Bytes that were not held before, and are now.
    pub new: usize,
    /// The first part of the segment that was held already: for D-SACK (RFC 2883 §4).
    pub duplicate: Option<(Seq, Seq)>,
    /// There was no room: nothing has changed.
    pub refused: bool,
}

impl Range {
    fn until(&self) -> Seq {
        self.from + self.bytes.len() as u64
    }
}

impl Reassembly {
    /// Empty.
    pub fn new() -> Reassembly {
        Reassembly::default()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many bytes are held.
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.bytes.len()).sum()
    }

    /// How many ranges, each contiguous.
    #[cfg(test)]
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Behind the last byte that is held.
    #[cfg(test)]
    pub fn until(&self) -> Option<Seq> {
        self.ranges.last().map(Range::until)
    }

    /// Where the first range begins.
    pub fn first(&self) -> Option<Seq> {
        self.ranges.first().map(|range| range.from)
    }

    /// Whether anything from `seq` on is held.
    pub fn reaches_beyond(&self, seq: Seq) -> bool {
        self.ranges.last().is_some_and(|range| range.until() > seq)
    }

    /// The range that holds this byte.
    pub fn block_around(&self, seq: Seq) -> Option<(Seq, Seq)> {
        let holds = |range: &&Range| range.from <= seq && seq < range.until();
        self.ranges.iter().find(holds).map(|range| (range.from, range.until()))
    }

    /// Behind the bytes that are contiguous from `from` on: `from` itself where that is missing.
    pub fn contiguous_until(&self, from: Seq) -> Seq {
        self.block_around(from).map_or(from, |(_, until)| until)
    }

    /// Keeps the bytes of a segment, of which none is due yet. There may be `bytes_max` in all.
    pub fn insert(&mut self, from: Seq, bytes: &[u8], bytes_max: usize) -> Inserted {
        let Some(until) = from.checked_add(bytes.len() as u64).filter(|until| *until > from) else {
            return Inserted { refused: !bytes.is_empty(), ..Inserted::default() };
        };
        // Those that overlap it or touch it will be one with it.
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

    /// Puts a segment and the ranges `first..end`, which overlap it or touch it, together.
    fn merge(&mut self, first: usize, end: usize, from: Seq, bytes: &[u8]) {
        let changed = 1 + self.ranges.iter().map(|range| range.changed).max().unwrap_or(0);
        if first == end {
            let bytes = bytes.iter().copied().collect();
            self.ranges.insert(first, Range { from, bytes, changed });
            return;
        }
        let until = from + bytes.len() as u64;
        let part = |from_: Seq, until_: Seq| &bytes[in_memory(from_ - from)..in_memory(until_ - from)];
        let mut others = self.ranges.drain(first + 1..end).collect::<Vec<_>>().into_iter();
        let whole = &mut self.ranges[first];
        whole.changed = changed;
        if from < whole.from {
            for byte in part(from, whole.from.min(until)).iter().rev() {
                whole.bytes.push_front(*byte);
            }
            whole.from = from;
        }
        loop {
            let other = others.next();
            let gap_until = other.as_ref().map_or(until, |range| range.from);
            if whole.until() < gap_until {
                whole.bytes.extend(part(whole.until(), gap_until));
            }
            let Some(mut other) = other else { break };
            whole.bytes.append(&mut other.bytes);
        }
    }

    /// The bytes that are contiguous from exactly `from`, which is RCV.NXT, cut at `until`; what follows stays. What
    /// lies before `from` has come by another way and is dropped.
    pub fn take(&mut self, from: Seq, until: Seq) -> Option<Vec<u8>> {
        self.drop_before(from);
        let first = self.ranges.first_mut().filter(|range| range.from == from && from < until)?;
        if until >= first.until() {
            let range = self.ranges.remove(0);
            self.forget_if_empty();
            return Some(range.bytes.into());
        }
        let rest = first.bytes.split_off(in_memory(until - from));
        first.from = until;
        Some(core::mem::replace(&mut first.bytes, rest).into())
    }

    /// What lies before `seq` has come by another way.
    pub fn drop_before(&mut self, seq: Seq) {
        if self.ranges.first().is_none_or(|range| range.from >= seq) {
            return;
        }
        self.ranges.retain(|range| range.until() > seq);
        if let Some(first) = self.ranges.first_mut().filter(|range| range.from < seq) {
            first.bytes.drain(..in_memory(seq - first.from));
            first.from = seq;
        }
        self.forget_if_empty();
    }

    fn forget_if_empty(&mut self) {
        if self.ranges.is_empty() {
            self.ranges = Vec::new();
        }
    }

    /// The ranges for SACK, as many as there is room for: the one that the latest segment belongs to first, then the one
    /// before that (RFC 2018 §4). How many.
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

    /// All that is held, in pieces: that which changed first is first, so that [`Reassembly::import`] restores the order
    /// of [`Reassembly::blocks`].
    pub fn export(&self) -> impl Iterator<Item = (Seq, &[u8])> {
        let mut ranges: Vec<_> = self.ranges.iter().collect();
        ranges.sort_unstable_by_key(|range| range.changed);
        let pieces = ranges.into_iter().flat_map(|range| {
            let (head, tail) = range.bytes.as_slices();
            [(range.from, head), (range.from + head.len() as u64, tail)]
        });
        pieces.filter(|(_, bytes)| !bytes.is_empty())
    }

    /// What was exported, beyond `next`, which is RCV.NXT. `None` when it is too much, overlaps, or is due already.
    pub fn import<'a>(
        next: Seq,
        pieces: impl IntoIterator<Item = (Seq, &'a [u8])>,
        bytes_max: usize,
    ) -> Option<Reassembly> {
        let mut held = Reassembly::new();
        let mut bytes_in_all = 0;
        for (from, bytes) in pieces {
            bytes_in_all += bytes.len();
            let inserted = held.insert(from, bytes, bytes_max);
            if from <= next || inserted.duplicate.is_some() || inserted.refused {
                return None;
            }
        }
        debug_assert_eq!(held.bytes(), bytes_in_all, "all pieces are held, each once");
        Some(held)
    }
}

#[cfg(test)]
mod tests;

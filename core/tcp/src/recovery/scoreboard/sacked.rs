//! Marks segments that the peer has reported by SACK.

use super::{BLOCKS_KEPT, Delivered, Scoreboard};
use crate::seq::Seq;

impl Scoreboard {
    /// Marks the bytes of SACK blocks. Ignores blocks that are not within the bytes in flight: a correct peer sends no
    /// such blocks (RFC 2018 §4).
    pub(in crate::recovery) fn sack(&mut self, blocks: &[(Seq, Seq)], delivered: &mut Delivered) {
        let mut kept = [(0, 0); BLOCKS_KEPT];
        for (index, &(from, to)) in blocks.iter().take(BLOCKS_KEPT).enumerate() {
            if from >= to || to > self.nxt || from <= self.una {
                continue; // a block that holds SND.UNA contradicts the acknowledgement
            }
            kept[index] = (from, to);
            // Most of a block was usually in the previous acknowledgement: only the added bytes are processed.
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
                // The segment was divided: continue with the part that is within the block.
                index += usize::from(start < from);
                continue;
            }
            self.unmark(index);
            self.on_arrival(index, segment, delivered);
            let segment = &mut self.segments[index];
            segment.sacked = true;
            self.sacked += segment.end - start;
            self.sacked_segments += 1;
            delivered.bytes += segment.end - start;
            self.highest_sacked = self.highest_sacked.max(segment.end);
            index += 1;
        }
        debug_assert!(self.highest_sacked >= highest, "`highest_sacked` should not decrease");
    }

    /// Removes all SACK marks, and remembers which segments had one.
    pub(in crate::recovery) fn forget_sacked(&mut self) {
        for segment in &mut self.segments {
            segment.was_sacked |= segment.sacked;
            segment.sacked = false;
        }
        (self.sacked, self.sacked_segments) = (0, 0);
        (self.highest_sacked, self.repeated_to) = (self.una, self.nxt);
        self.lost_below = self.una;
        self.blocks = [(0, 0); BLOCKS_KEPT];
    }
}

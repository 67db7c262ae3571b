//! Duplicates that are to be reported by D-SACK (RFC 2883).

use crate::seq::Seq;

/// Maximum number of unreported ranges. More in one turn are rare, and reporting them is optional.
const RANGES_MAX: usize = 4;

/// Ranges that arrived twice. An acknowledgement reports one of them, and each is reported once. A new range never
/// replaces an unreported one: a peer undoes a needless reduction of its congestion window only if all its
/// retransmissions were reported.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    ranges: [(Seq, Seq); RANGES_MAX],
    count: u8,
}

impl Duplicates {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a range that arrived again, or merges it with the last range if they touch. The peer computes the number of
    /// segments from the bytes of a range.
    pub(super) fn add(&mut self, from: Seq, to: Seq) {
        let count = usize::from(self.count);
        if let Some(last) = self.ranges[..count].last_mut()
            && from <= last.1
            && last.0 <= to
        {
            *last = (last.0.min(from), last.1.max(to));
        } else if count < RANGES_MAX {
            self.ranges[count] = (from, to);
            self.count += 1;
        }
    }

    /// The first range that may be reported: below `acknowledged`, or beyond `received`, the end of all bytes in order.
    /// Bytes between the two are held back by the gate, and must not be reported as received.
    pub(super) fn next(&self, acknowledged: Seq, received: Seq) -> Option<(Seq, Seq)> {
        let count = usize::from(self.count);
        let may_be_reported = |range: &&(Seq, Seq)| range.1 <= acknowledged || range.0 > received;
        self.ranges[..count].iter().find(may_be_reported).copied()
    }

    pub(super) fn remove_reported(&mut self, range: (Seq, Seq)) {
        let count = usize::from(self.count);
        if let Some(at) = self.ranges[..count].iter().position(|held| *held == range) {
            self.ranges.copy_within(at + 1..count, at);
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duplicate_is_reported_once_in_order() {
        let mut duplicates = Duplicates::default();
        assert!(duplicates.is_empty() && duplicates.next(100, 100).is_none(), "no duplicate should be left");
        duplicates.add(10, 20);
        duplicates.add(40, 50);
        duplicates.add(50, 60);
        assert_eq!(duplicates.next(100, 100), Some((10, 20)));
        duplicates.remove_reported((10, 20));
        assert_eq!(duplicates.next(100, 100), Some((40, 60)), "adjacent ranges should be merged");
        duplicates.remove_reported((40, 60));
        assert!(duplicates.is_empty(), "no duplicate should be left");
    }

    #[test]
    fn duplicates_behind_a_gate_are_not_reported() {
        let mut duplicates = Duplicates::default();
        duplicates.add(10, 20);
        assert_eq!(duplicates.next(15, 30), None);
        duplicates.add(40, 50);
        assert_eq!(
            duplicates.next(15, 30),
            Some((40, 50)),
            "the gate should not hold back a range beyond a gap"
        );
        assert_eq!(duplicates.next(20, 30), Some((10, 20)));
    }

    #[test]
    fn the_number_of_duplicates_is_bounded() {
        let mut duplicates = Duplicates::default();
        for at in 0..10 {
            duplicates.add(100 * at, 100 * at + 10);
        }
        let mut reported = 0;
        while let Some(range) = duplicates.next(9999, 9999) {
            duplicates.remove_reported(range);
            reported += 1;
        }
        assert_eq!(
            (reported, duplicates.is_empty()),
            (RANGES_MAX, true),
            "no more ranges than the bound should be reported"
        );
    }
}

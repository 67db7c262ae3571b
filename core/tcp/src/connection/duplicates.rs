//! Duplicates that wait to be reported by D-SACK (RFC 2883).

use crate::seq::Seq;

/// Maximum number of waiting ranges. More in one turn are rare, and reporting them is optional.
const RANGES_MAX: usize = 4;

/// Ranges that arrived twice. An acknowledgement reports one of them, and each is reported once. A peer undoes a needless
/// reduction of its window if all its retransmissions were reported, so no range replaces another one.
#[derive(Debug, Default)]
pub(super) struct Duplicates {
    ranges: [(Seq, Seq); RANGES_MAX],
    many: u8,
}

impl Duplicates {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.many == 0
    }

    /// Adds a range that arrived again, and merges it with the last one if they touch: the peer counts the segments in it.
    pub(super) fn add(&mut self, from: Seq, to: Seq) {
        let many = usize::from(self.many);
        if let Some(last) = self.ranges[..many].last_mut()
            && from <= last.1
            && last.0 <= to
        {
            *last = (last.0.min(from), last.1.max(to));
        } else if many < RANGES_MAX {
            self.ranges[many] = (from, to);
            self.many += 1;
        }
    }

    /// The first range that may be reported: below what is acknowledged, or beyond all bytes in order. Bytes between the two
    /// are behind the gate, and the peer must not learn that they arrived.
    pub(super) fn next(&self, acknowledged: Seq, received: Seq) -> Option<(Seq, Seq)> {
        let many = usize::from(self.many);
        let may_be_told = |range: &&(Seq, Seq)| range.1 <= acknowledged || range.0 > received;
        self.ranges[..many].iter().find(may_be_told).copied()
    }

    /// Removes a range that was reported.
    pub(super) fn told(&mut self, range: (Seq, Seq)) {
        let many = usize::from(self.many);
        if let Some(at) = self.ranges[..many].iter().position(|one| *one == range) {
            self.ranges.copy_within(at + 1..many, at);
            self.many -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_in_order() {
        let mut duplicates = Duplicates::default();
        assert!(duplicates.is_empty() && duplicates.next(100, 100).is_none());
        duplicates.add(10, 20);
        duplicates.add(40, 50);
        duplicates.add(50, 60);
        assert_eq!(duplicates.next(100, 100), Some((10, 20)));
        duplicates.told((10, 20));
        assert_eq!(duplicates.next(100, 100), Some((40, 60)), "neighbours are one");
        duplicates.told((40, 60));
        assert!(duplicates.is_empty());
    }

    #[test]
    fn what_waits_at_a_gate_is_not_told() {
        let mut duplicates = Duplicates::default();
        duplicates.add(10, 20);
        assert_eq!(duplicates.next(15, 30), None);
        duplicates.add(40, 50);
        assert_eq!(duplicates.next(15, 30), Some((40, 50)), "beyond a gap: no gate holds that back");
        assert_eq!(duplicates.next(20, 30), Some((10, 20)));
    }

    #[test]
    fn there_is_room_for_few() {
        let mut duplicates = Duplicates::default();
        for at in 0..10 {
            duplicates.add(100 * at, 100 * at + 10);
        }
        let mut told = 0;
        while let Some(range) = duplicates.next(9999, 9999) {
            duplicates.told(range);
            told += 1;
        }
        assert_eq!((told, duplicates.is_empty()), (RANGES_MAX, true));
    }
}

//! Consistency checks for tests.

use super::Scoreboard;

impl Scoreboard {
    /// Checks the sums against the segments, and the positions at which searches begin.
    pub(in crate::recovery) fn check(&self) {
        let (mut start, mut sacked, mut lost, mut retransmitted) = (self.una, 0, 0, 0);
        let sacked_segments = self.segments.iter().filter(|segment| segment.sacked).count();
        assert_eq!(sacked_segments, self.sacked_segments as usize);
        for segment in &self.segments {
            assert!(segment.end > start && segment.transmissions > 0);
            assert!(!(segment.sacked && segment.lost) && (segment.lost || !segment.retransmitted));
            let length = segment.end - start;
            sacked += if segment.sacked { length } else { 0 };
            lost += if segment.lost { length } else { 0 };
            retransmitted += if segment.retransmitted { length } else { 0 };
            if segment.lost && !segment.retransmitted {
                assert!(
                    start >= self.next_lost_from.max(self.una),
                    "a lost segment should not lie before the start of the search"
                );
            }
            assert!(
                segment.sacked || segment.lost || segment.end > self.lost_below,
                "a segment below `lost_below` should be SACKed or lost"
            );
            if segment.retransmitted {
                assert!(segment.sent_at >= self.retransmitted_first);
            }
            if segment.sacked {
                assert!(segment.end <= self.highest_sacked);
            }
            start = segment.end;
        }
        assert_eq!(
            (start, sacked, lost, retransmitted),
            (self.nxt, self.sacked, self.lost, self.retransmitted)
        );
    }
}

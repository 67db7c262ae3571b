//! Ends the first slow start before it causes the loss of a whole window (HyStart++, RFC 9406).
//!
//! When the shortest round trip of a round has grown, a queue has formed: the window grows slowly for up to five
//! rounds, and then slow start ends. Differences from the RFC: the growth per acknowledgement has no limit L, because
//! peers acknowledge 64 KiB at once; rounds in which the window is not the limit are ignored.

use crate::seq::Seq;

/// Growth of the round trip that indicates a queue: an eighth, but within these bounds in nanoseconds (§4.3).
const GROWTH_NS_BOUNDS: (u64, u64) = (4_000_000, 16_000_000);
const GROWTH_DIVISOR: u64 = 8;

/// Number of round trips that must be measured in a round (§4.3, N_RTT_SAMPLE).
const SAMPLES_MIN: u8 = 8;

/// Divisor of the window's growth in conservative slow start (§4.3, CSS_GROWTH_DIVISOR).
pub const CONSERVATIVE_DIVISOR: u64 = 4;

/// Rounds of conservative slow start (§4.3, CSS_ROUNDS).
const CONSERVATIVE_ROUNDS: u8 = 5;

/// Marks a round trip that was not measured.
const UNMEASURED: u64 = u64::MAX;

/// How the window grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// As in slow start.
    Usual,
    /// Divided by [`CONSERVATIVE_DIVISOR`].
    Conservative,
    /// Slow start ends.
    Over,
}

/// The state of HyStart++.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HyStart {
    /// The round ends when this number is acknowledged. 0: the next acknowledgement sets it to SND.NXT.
    round_end: Seq,
    /// The shortest round trips of this round and the one before, in nanoseconds.
    shortest_ns: u64,
    shortest_before_ns: u64,
    /// Number of round trips measured in this round.
    samples: u8,
    /// Rounds of conservative slow start so far, and the round trip that began it; `None` in usual slow start.
    conservative: Option<(u8, u64)>,
}

impl Default for HyStart {
    fn default() -> HyStart {
        HyStart {
            round_end: 0,
            shortest_ns: UNMEASURED,
            shortest_before_ns: UNMEASURED,
            samples: 0,
            conservative: None,
        }
    }
}

impl HyStart {
    /// Handles an acknowledgement up to `una` in slow start; `rtt_ns` is 0 if no round trip was measured.
    pub fn on_ack(&mut self, una: Seq, nxt: Seq, rtt_ns: u64) -> Pace {
        if rtt_ns > 0 {
            self.shortest_ns = self.shortest_ns.min(rtt_ns);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES_MIN {
            self.detect_queue();
        }
        if self.round_end == 0 {
            self.round_end = nxt;
        }
        if una >= self.round_end {
            self.round_end = if una < nxt { nxt } else { 0 };
            (self.shortest_before_ns, self.shortest_ns, self.samples) = (self.shortest_ns, UNMEASURED, 0);
            if let Some((rounds, _)) = &mut self.conservative {
                *rounds += 1;
                if *rounds >= CONSERVATIVE_ROUNDS {
                    *self = HyStart::default();
                    return Pace::Over;
                }
            }
        }
        if self.conservative.is_some() { Pace::Conservative } else { Pace::Usual }
    }

    /// Begins or ends conservative slow start, once the round has enough samples.
    fn detect_queue(&mut self) {
        match self.conservative {
            // The round trip has shrunk again: there was no queue.
            Some((_, start_ns)) if self.shortest_ns < start_ns => self.conservative = None,
            Some(_) => {}
            None if self.shortest_before_ns < UNMEASURED => {
                let growth =
                    (self.shortest_before_ns / GROWTH_DIVISOR).clamp(GROWTH_NS_BOUNDS.0, GROWTH_NS_BOUNDS.1);
                if self.shortest_ns >= self.shortest_before_ns.saturating_add(growth) {
                    self.conservative = Some((0, self.shortest_ns));
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const MS: u64 = 1_000_000;

    /// One round of `count` acknowledgements of one byte with this round trip; returns the last pace.
    fn round(hystart: &mut HyStart, una: &mut Seq, count: u64, rtt_ms: u64) -> Pace {
        let nxt = *una + 2 * count;
        let mut pace = Pace::Usual;
        for _ in 0..count {
            *una += 1;
            pace = hystart.on_ack(*una, nxt, rtt_ms * MS);
        }
        pace
    }

    #[test]
    fn a_round_trip_grown_by_an_eighth_ends_slow_start_after_five_conservative_rounds() {
        let (mut hystart, mut una) = (HyStart::default(), 1);
        assert_eq!(round(&mut hystart, &mut una, 20, 100), Pace::Usual);
        assert_eq!(
            round(&mut hystart, &mut una, 20, 112),
            Pace::Usual,
            "12 ms should not count as growth: an eighth of 100 ms is more"
        );
        let mut paces = Vec::new();
        for _ in 0..400 {
            una += 1;
            paces.push(hystart.on_ack(una, una + 20, 130 * MS));
        }
        let first =
            paces.iter().position(|pace| *pace == Pace::Conservative).expect("conservative slow start");
        let over = paces.iter().position(|pace| *pace == Pace::Over).expect("the end of slow start");
        assert!(
            first < 30 && over - first > 4 * 20 && over - first <= 5 * 21,
            "five conservative rounds should end slow start, not {first} to {over}"
        );
        assert!(
            paces[first..over].iter().all(|pace| *pace == Pace::Conservative),
            "all rounds after the growth should be conservative"
        );
    }

    #[test]
    fn on_short_paths_the_round_trip_must_grow_by_four_milliseconds() {
        for (growth_ms, pace) in [(3, Pace::Usual), (5, Pace::Conservative)] {
            let (mut hystart, mut una) = (HyStart::default(), 1);
            round(&mut hystart, &mut una, 20, 1);
            round(&mut hystart, &mut una, 20, 1);
            round(&mut hystart, &mut una, 20, 1 + growth_ms);
            let observed = round(&mut hystart, &mut una, 10, 1 + growth_ms);
            assert_eq!(observed, pace, "the pace should fit a growth of {growth_ms} ms");
        }
    }

    #[test]
    fn a_round_trip_that_shrinks_again_resumes_slow_start() {
        let (mut hystart, mut una) = (HyStart::default(), 1);
        round(&mut hystart, &mut una, 20, 20);
        round(&mut hystart, &mut una, 20, 20);
        assert_eq!(round(&mut hystart, &mut una, 30, 30), Pace::Conservative);
        assert_eq!(round(&mut hystart, &mut una, 40, 20), Pace::Usual);
    }

    #[test]
    fn a_round_with_few_samples_does_not_end_slow_start() {
        let (mut hystart, mut una) = (HyStart::default(), 1);
        for rtt_ms in [20, 20, 90, 200] {
            assert_eq!(round(&mut hystart, &mut una, 3, rtt_ms), Pace::Usual);
        }
    }
}

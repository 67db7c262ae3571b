//! Sequence numbers of control messages.

use spillway_transport::Time;

/// Takes numbers from the clock, so that they also increase from one run of a server to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sequences {
    last: u64,
}

impl Sequences {
    pub(crate) fn next(&mut self, now: Time) -> u64 {
        self.last = now.as_nanos().max(self.last + 1);
        self.last
    }

    /// All later numbers are above this one, which the switch has seen.
    pub(crate) fn skip_to(&mut self, seen: u64) {
        self.last = self.last.max(seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_increase_with_and_without_the_clock() {
        let mut sequences = Sequences::default();
        assert_eq!([sequences.next(Time(5)), sequences.next(Time(5)), sequences.next(Time(3))], [5, 6, 7]);
        assert_eq!(sequences.next(Time(100)), 100);
        sequences.skip_to(200);
        sequences.skip_to(50);
        assert_eq!(sequences.next(Time(101)), 201);
    }
}

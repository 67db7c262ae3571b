//! The parts of a state that have arrived.

use alloc::vec;
use alloc::vec::Vec;

use spillway_wire::Chunks;
use spillway_wire::handoff::{Part, Received};

use crate::budget::{Budget, Share};

/// An incomplete state.
#[derive(Debug)]
pub(crate) struct Receiving {
    /// The bytes up to the end of the last part that has arrived. Places of missing parts are filled with zeros.
    bytes: Vec<u8>,
    /// Length of the state, in bytes.
    total: usize,
    /// Whether each part has arrived.
    has: Vec<bool>,
    /// Number of the first part that is missing.
    through: usize,
    missing: usize,
    _share: Share,
}

impl Receiving {
    /// Begins to receive the state to which `part` belongs. Returns `None` if the budget has no room for the state.
    pub(crate) fn new(part: &Part<'_>, budget: &Budget) -> Option<Receiving> {
        let mut share = budget.share();
        share.grow(part.total()).then(|| Receiving {
            bytes: Vec::with_capacity(part.total()),
            total: part.total(),
            has: vec![false; part.parts()],
            through: 0,
            missing: part.parts(),
            _share: share,
        })
    }

    /// Stores a part. A part that has arrived before, or that belongs to a state of another length, changes nothing.
    /// Returns whether the part was new.
    pub(crate) fn store(&mut self, part: &Part<'_>) -> bool {
        let number = usize::from(part.number());
        let is_new = part.total() == self.total && self.has.get(number) == Some(&false);
        if is_new {
            let (start, bytes) = (part.offset(), part.bytes());
            if start < self.bytes.len() {
                self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
            } else {
                self.bytes.resize(start, 0);
                self.bytes.extend_from_slice(bytes);
            }
            self.has[number] = true;
            self.missing -= 1;
            while self.has.get(self.through) == Some(&true) {
                self.through += 1;
            }
        }
        is_new
    }

    /// The set of parts that the target acknowledges.
    pub(crate) fn received(&self) -> Received {
        let bit = |at: usize| u64::from(self.has.get(self.through + 1 + at) == Some(&true)) << at;
        Received { through: number_of(self.through), beyond: (0..64).map(bit).sum() }
    }

    /// The number of parts, if all have arrived.
    pub(crate) fn complete_parts(&self) -> Option<u16> {
        (self.missing == 0).then(|| number_of(self.has.len()))
    }

    /// The state, in the buffer in which its parts have been stored.
    pub(crate) fn into_state(self) -> Chunks {
        debug_assert!(self.missing == 0, "an incomplete state is never used");
        self.bytes.into()
    }
}

fn number_of(part: usize) -> u16 {
    debug_assert!(u16::try_from(part).is_ok(), "a state has at most 65,535 parts");
    u16::try_from(part).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use spillway_wire::handoff::PART_BYTES;

    use super::*;

    fn state() -> Vec<u8> {
        (0..3 * PART_BYTES + 5).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn parts_in_any_order_make_the_state_and_repeated_ones_do_not_count_twice() {
        let (state, budget) = (state(), Budget::new(1 << 20));
        let part = |number| Part::of(&state, number).unwrap();
        let mut receiving = Receiving::new(&part(2), &budget).unwrap();
        assert!(receiving.store(&part(2)));
        assert_eq!(receiving.received(), Received { through: 0, beyond: 0b10 });
        assert!(!receiving.store(&part(2)) && receiving.store(&part(0)) && !receiving.store(&part(0)));
        assert_eq!(receiving.received(), Received { through: 1, beyond: 0b1 });
        assert_eq!(receiving.complete_parts(), None, "two of four parts are here, although four arrived");
        assert!(receiving.store(&part(3)) && receiving.store(&part(1)));
        assert_eq!(receiving.received(), Received { through: 4, beyond: 0 });
        assert_eq!(receiving.complete_parts(), Some(4));
        assert_eq!(receiving.into_state().to_vec(), state);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_part_of_another_state_changes_nothing() {
        let (state, budget) = (state(), Budget::new(1 << 20));
        let mut receiving = Receiving::new(&Part::of(&state, 0).unwrap(), &budget).unwrap();
        assert!(!receiving.store(&Part::of(&state[..PART_BYTES + 1], 0).unwrap()));
        assert_eq!(receiving.received(), Received::default());
    }

    #[test]
    fn a_state_beyond_the_budget_is_not_begun() {
        let (state, budget) = (state(), Budget::new(5_000));
        let first = Receiving::new(&Part::of(&state, 0).unwrap(), &budget);
        assert!(first.is_some() && Receiving::new(&Part::of(&state, 0).unwrap(), &budget).is_none());
    }
}

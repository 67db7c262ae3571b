//! The parts of a state that is to be sent.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use spillway_wire::Chunks;
use spillway_wire::handoff::{Body, Part, parts_of};

/// A state, and the messages that carry its parts. An empty state is one message, *lent*.
#[derive(Debug)]
pub(crate) struct Parts {
    state: Chunks,
    count: u16,
    /// A copy of the last part whose bytes were in several chunks.
    joined: Vec<u8>,
}

impl Parts {
    /// `None` if the state has too many parts.
    pub(crate) fn new(state: Chunks) -> Option<Parts> {
        let count = u16::try_from(parts_of(state.len()).max(1)).ok()?;
        Some(Parts { state, count, joined: Vec::new() })
    }

    pub(crate) fn state(&self) -> &Chunks {
        &self.state
    }

    /// The number of messages.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// The message that carries a part. A part that is in one chunk of the state is not copied.
    pub(crate) fn body(&mut self, number: u16) -> Option<Body<'_>> {
        let total = self.state.len();
        if total == 0 {
            return Some(Body::Lent);
        }
        let bytes = match self.state.get(Part::place(total, number)?)? {
            Cow::Borrowed(bytes) => bytes,
            Cow::Owned(bytes) => {
                self.joined = bytes;
                &self.joined
            }
        };
        Part::at(total, number, bytes).map(Body::State)
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::Bytes;
    use spillway_wire::handoff::PART_BYTES;

    use super::*;

    #[test]
    fn parts_of_a_state_in_several_chunks_make_the_state() {
        let bytes: Vec<u8> = (0..5 * PART_BYTES + 7).map(|at| (at % 251) as u8).collect();
        let state: Chunks = bytes.chunks(2 * PART_BYTES - 3).map(Bytes::copy_from_slice).collect();
        let mut parts = Parts::new(state).unwrap();
        assert_eq!(parts.count(), 6);
        for number in 0..6 {
            assert_eq!(parts.body(number), Part::of(&bytes, number).map(Body::State));
        }
        assert_eq!(parts.body(6), None);
    }

    #[test]
    fn an_empty_state_is_one_message() {
        let mut parts = Parts::new(Chunks::new()).unwrap();
        assert_eq!((parts.count(), parts.body(0)), (1, Some(Body::Lent)));
    }

    #[test]
    fn a_state_has_at_most_65_535_parts() {
        let chunk = Bytes::from(alloc::vec![0; 1 << 20]);
        let state = |mebibytes: usize| core::iter::repeat_n(chunk.clone(), mebibytes).collect::<Chunks>();
        assert!(Parts::new(state(74)).is_some() && Parts::new(state(76)).is_none());
    }
}

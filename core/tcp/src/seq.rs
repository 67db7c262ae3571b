//! Sequence numbers that do not wrap.
//!
//! On the wire a sequence number has 32 bits and wraps (RFC 9293 §3.4). Inside the stack it is *extended* to 64 bits,
//! so that all other code compares plain integers. Only this file does arithmetic modulo 2^32.

use crate::narrow::low_half;

/// An extended sequence number. Each direction begins at [`FIRST`], whatever its initial sequence number is.
pub type Seq = u64;

/// Extended sequence number of the SYN. The first byte of the stream follows it. Starting at 2^32 keeps segments that
/// are slightly older than the SYN from underflowing.
pub const FIRST: Seq = 1 << 32;

/// A sequence number as an exported connection state stores it: relative to the SYN, which is 0.
pub(crate) fn since_syn(seq: Seq) -> u64 {
    seq.saturating_sub(FIRST)
}

/// The inverse of [`since_syn`].
pub(crate) fn extended(since_syn: u64) -> Seq {
    since_syn.saturating_add(FIRST)
}

/// Maps extended sequence numbers of one direction to those on the wire, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(u32);

impl Base {
    /// For a stream whose SYN has this sequence number on the wire.
    pub fn new(initial: u32) -> Base {
        Base(initial)
    }

    /// The initial sequence number.
    pub fn initial(self) -> u32 {
        self.0
    }

    /// The sequence number on the wire.
    #[inline]
    pub fn on_wire(self, seq: Seq) -> u32 {
        low_half(seq).wrapping_add(self.0)
    }

    /// The extended number nearest to `near` (at most 2^31 away) whose wire form is `on_wire`.
    #[inline]
    pub fn expand(self, on_wire: u32, near: Seq) -> Seq {
        let distance = on_wire.wrapping_sub(self.on_wire(near)).cast_signed();
        near.saturating_add_signed(i64::from(distance))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_syn_is_the_initial_sequence_number() {
        let base = Base::new(u32::MAX);
        assert_eq!(base.on_wire(FIRST), u32::MAX);
        assert_eq!(base.on_wire(FIRST + 1), 0, "the wire form should wrap");
        assert_eq!(base.expand(5, FIRST + 1), FIRST + 6);
        assert_eq!(base.expand(u32::MAX - 9, FIRST), FIRST - 9);
    }

    proptest! {
        #[test]
        fn expand_inverts_on_wire_for_nearby_numbers(
            initial: u32, near in FIRST..1 << 60, distance in -(1_i64 << 31)..1 << 31,
        ) {
            let (base, seq) = (Base::new(initial), near.saturating_add_signed(distance));
            prop_assert_eq!(base.expand(base.on_wire(seq), near), seq);
        }
    }
}

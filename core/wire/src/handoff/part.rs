//! Numbered parts of something that is longer than a datagram: a connection's state, or a frame.

use alloc::vec::Vec;
use core::ops::Range;

use super::{HandoffError, Kind, PART_BYTES, field};

/// A part. All parts but the last have [`PART_BYTES`] bytes, so the number of a part determines where its bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    total: u32,
    number: u16,
    bytes: &'a [u8],
}

/// The number of parts of a whole of `total` bytes.
pub const fn parts_of(total: usize) -> usize {
    total.div_ceil(PART_BYTES)
}

impl<'a> Part<'a> {
    /// Part `number` of `whole`. `None` if `whole` has no part with this number, or more than `u16::MAX` parts.
    pub fn of(whole: &'a [u8], number: u16) -> Option<Part<'a>> {
        Part::at(whole.len(), number, &whole[Part::place(whole.len(), number)?])
    }

    /// Part `number` of a whole of `total` bytes, which has these bytes at the part's place. `None` if a part with this number
    /// has another length.
    pub fn at(total: usize, number: u16, bytes: &'a [u8]) -> Option<Part<'a>> {
        let part = Part { total: u32::try_from(total).ok()?, number, bytes };
        let fits = parts_of(total) <= usize::from(u16::MAX);
        (fits && part.length() == Some(bytes.len())).then_some(part)
    }

    /// Where the bytes of part `number` are in a whole of `total` bytes; `None` if there is no such part.
    pub fn place(total: usize, number: u16) -> Option<Range<usize>> {
        let start = usize::from(number) * PART_BYTES;
        (start < total).then(|| start..total.min(start + PART_BYTES))
    }

    /// How many bytes a part with this number has; `None` if there is no such part.
    fn length(&self) -> Option<usize> {
        Part::place(self.total(), self.number).map(|place| place.len())
    }

    /// Length of the whole, in bytes.
    pub const fn total(&self) -> usize {
        self.total as usize
    }

    /// Number of the part, from 0 on.
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Number of parts of the whole.
    pub const fn parts(&self) -> usize {
        parts_of(self.total as usize)
    }

    /// Where the part's bytes begin in the whole.
    pub const fn offset(&self) -> usize {
        self.number as usize * PART_BYTES
    }

    /// The part's bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.total.to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(self.bytes);
    }

    /// Parses a part that fills `bytes`, of a whole of at most `total_max` bytes.
    pub(super) fn parse(bytes: &'a [u8], kind: Kind, total_max: usize) -> Result<Part<'a>, HandoffError> {
        let (head, bytes) =
            bytes.split_first_chunk::<{ field::PART_HEAD_BYTES }>().ok_or(HandoffError::Truncated(kind))?;
        let &[t0, t1, t2, t3, n0, n1, r0, r1] = head;
        if [r0, r1] != [0; 2] {
            return Err(HandoffError::Reserved);
        }
        let part =
            Part { total: u32::from_be_bytes([t0, t1, t2, t3]), number: u16::from_be_bytes([n0, n1]), bytes };
        if part.total == 0 || part.total() > total_max {
            return Err(HandoffError::Total(part.total));
        }
        if part.length() != Some(bytes.len()) {
            return Err(HandoffError::Part);
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn a_whole_is_the_sequence_of_its_parts() {
        for length in [1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let whole: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut joined = Vec::new();
            for number in 0..parts_of(length) {
                let part = Part::of(&whole, number as u16).unwrap();
                assert_eq!(Part::at(length, number as u16, part.bytes()), Some(part));
                assert_eq!(Part::at(length, number as u16, &part.bytes()[1..]), None, "a byte is missing");
                assert_eq!((part.offset(), part.total()), (joined.len(), length));
                joined.extend_from_slice(part.bytes());
                let mut bytes = Vec::new();
                part.emit(&mut bytes);
                assert_eq!(Part::parse(&bytes, Kind::State, length), Ok(part));
                let too_long = Part::parse(&bytes, Kind::State, length - 1);
                assert_eq!(too_long, Err(HandoffError::Total(length as u32)));
            }
            assert_eq!(joined, whole);
            assert_eq!(Part::of(&whole, parts_of(length) as u16), None, "a part beyond the last");
        }
        assert_eq!(Part::of(&[], 0), None, "nothing has no parts");
        assert_eq!(
            Part::of(&vec![0; (usize::from(u16::MAX) + 1) * PART_BYTES], 0),
            None,
            "numbers have 16 bits"
        );
    }

    #[test]
    fn a_part_of_another_length_or_number_is_rejected() {
        let whole = vec![7; PART_BYTES + 10];
        let mut last = Vec::new();
        Part::of(&whole, 1).unwrap().emit(&mut last);
        let parse = |bytes: &[u8]| Part::parse(bytes, Kind::State, 1 << 20).unwrap_err();
        assert_eq!(parse(&last[..7]), HandoffError::Truncated(Kind::State));
        assert_eq!(parse(&last[..last.len() - 1]), HandoffError::Part);
        last[5] = 0;
        assert_eq!(parse(&last), HandoffError::Part, "only the last part is short");
        last[5] = 2;
        assert_eq!(parse(&last), HandoffError::Part, "the whole has two parts");
        last[7] = 1;
        assert_eq!(parse(&last), HandoffError::Reserved);
        last[..8].fill(0);
        assert_eq!(parse(&last), HandoffError::Total(0));
    }
}

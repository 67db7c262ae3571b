//! Bytes in chunks that are shared instead of copied.

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use bytes::Bytes;

/// A sequence of bytes in chunks. A clone or a part of it refers to the same memory, which stays allocated as long as
/// one of them exists. Two sequences are equal if their bytes are equal, however these are divided into chunks.
#[derive(Clone, Default)]
pub struct Chunks {
    /// No chunk is empty.
    chunks: Vec<Bytes>,
    len: usize,
}

impl Chunks {
    /// No bytes.
    pub const fn new() -> Chunks {
        Chunks { chunks: Vec::new(), len: 0 }
    }

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunks in order; no chunk is empty.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// Appends bytes without copying them.
    pub fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.len += bytes.len();
            self.chunks.push(bytes);
        }
    }

    /// Appends the chunks of `other`, which share their memory.
    pub fn append(&mut self, other: &Chunks) {
        self.chunks.extend_from_slice(&other.chunks);
        self.len += other.len;
    }

    /// A part of the bytes, which shares their memory; `None` if it ends beyond the last byte.
    pub fn slice(&self, range: Range<usize>) -> Option<Chunks> {
        let mut part = Chunks::new();
        self.pieces(range)?.for_each(|(chunk, within)| part.push(chunk.slice(within)));
        Some(part)
    }

    /// A part of the bytes in one chunk. Copies them only if they are in several chunks; `None` if the part ends beyond
    /// the last byte.
    pub fn joined(&self, range: Range<usize>) -> Option<Bytes> {
        let part = self.slice(range)?;
        Some(match part.chunks.as_slice() {
            [] => Bytes::new(),
            [chunk] => chunk.clone(),
            _ => part.to_vec().into(),
        })
    }

    /// A part of the bytes: borrowed if it is in one chunk, and otherwise copied. `None` if it ends beyond the last byte.
    pub fn get(&self, range: Range<usize>) -> Option<Cow<'_, [u8]>> {
        let mut pieces = self.pieces(range)?;
        let Some((chunk, within)) = pieces.next() else { return Some(Cow::Borrowed(&[])) };
        let first = &chunk[within];
        let mut copied = Vec::new();
        for (chunk, within) in pieces {
            if copied.is_empty() {
                copied.extend_from_slice(first);
            }
            copied.extend_from_slice(&chunk[within]);
        }
        Some(if copied.is_empty() { Cow::Borrowed(first) } else { Cow::Owned(copied) })
    }

    /// The contiguous slices of a part, in order; `None` if it ends beyond the last byte.
    pub fn slices(&self, range: Range<usize>) -> Option<impl Iterator<Item = &[u8]>> {
        Some(self.pieces(range)?.map(|(chunk, within)| &chunk[within]))
    }

    /// Appends a copy of a part to `out`; `false`, and no change, if the part ends beyond the last byte.
    pub fn copy_to(&self, range: Range<usize>, out: &mut Vec<u8>) -> bool {
        let Some(slices) = self.slices(range) else { return false };
        slices.for_each(|slice| out.extend_from_slice(slice));
        true
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
        all
    }

    /// The chunks that contain bytes of `range`, each with the range inside of the chunk.
    fn pieces(&self, range: Range<usize>) -> Option<impl Iterator<Item = (&Bytes, Range<usize>)>> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        let mut begins = 0;
        let placed = self.chunks.iter().map(move |chunk| {
            let at = begins;
            begins += chunk.len();
            (at, chunk)
        });
        Some(
            placed
                .skip_while(move |(at, chunk)| at + chunk.len() <= range.start)
                .take_while(move |(at, _)| *at < range.end)
                .map(move |(at, chunk)| {
                    (chunk, range.start.max(at) - at..range.end.min(at + chunk.len()) - at)
                }),
        )
    }
}

impl From<Bytes> for Chunks {
    fn from(bytes: Bytes) -> Chunks {
        let mut chunks = Chunks::new();
        chunks.push(bytes);
        chunks
    }
}

/// Copies the bytes.
impl From<&[u8]> for Chunks {
    fn from(bytes: &[u8]) -> Chunks {
        Bytes::copy_from_slice(bytes).into()
    }
}

impl From<Vec<u8>> for Chunks {
    fn from(bytes: Vec<u8>) -> Chunks {
        Bytes::from(bytes).into()
    }
}

impl FromIterator<Bytes> for Chunks {
    fn from_iter<I: IntoIterator<Item = Bytes>>(chunks: I) -> Chunks {
        let mut all = Chunks::new();
        chunks.into_iter().for_each(|chunk| all.push(chunk));
        all
    }
}

impl PartialEq for Chunks {
    fn eq(&self, other: &Chunks) -> bool {
        if self.len != other.len {
            return false;
        }
        let (mut ours, mut theirs) = (self.chunks.iter(), other.chunks.iter());
        let (mut left, mut right): (&[u8], &[u8]) = (&[], &[]);
        loop {
            if left.is_empty() {
                let Some(chunk) = ours.next() else { return true };
                left = chunk;
            }
            if right.is_empty() {
                let Some(chunk) = theirs.next() else { return true };
                right = chunk;
            }
            let count = left.len().min(right.len());
            let ((head, rest), (other_head, other_rest)) = (left.split_at(count), right.split_at(count));
            if head != other_head {
                return false;
            }
            (left, right) = (rest, other_rest);
        }
    }
}

impl Eq for Chunks {}

impl fmt::Debug for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.chunks.iter().flatten()).finish()
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use proptest::prelude::*;

    use super::*;

    fn chunks_of(bytes: &[u8], lengths: &[usize]) -> Chunks {
        let mut rest = bytes;
        let mut all: Chunks = lengths
            .iter()
            .map(|length| {
                let (head, tail) = rest.split_at((*length).min(rest.len()));
                rest = tail;
                Bytes::copy_from_slice(head)
            })
            .collect();
        all.push(Bytes::copy_from_slice(rest));
        all
    }

    #[test]
    fn a_part_shares_the_memory() {
        let whole = Chunks::from(Vec::from(*b"abcdef"));
        let part = whole.slice(2..4).unwrap();
        assert_eq!(part.to_vec(), b"cd");
        assert!(core::ptr::eq(part.chunks()[0].as_ptr(), whole.chunks()[0][2..].as_ptr()));
        assert_eq!(format!("{part:?}"), "[99, 100]");
    }

    proptest! {
        #[test]
        fn parts_are_those_of_the_whole_however_it_is_divided(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            lengths in prop::collection::vec(0_usize..50, 0..8),
            others in prop::collection::vec(0_usize..50, 0..8),
            (start, end) in (0_usize..220, 0_usize..220),
        ) {
            let whole = chunks_of(&bytes, &lengths);
            prop_assert_eq!(whole.len(), bytes.len());
            prop_assert_eq!(&whole, &chunks_of(&bytes, &others));
            let expected = if start <= end { bytes.get(start..end) } else { None };
            prop_assert_eq!(whole.slice(start..end).map(|part| part.to_vec()), expected.map(<[u8]>::to_vec));
            let joined = whole.joined(start..end);
            prop_assert_eq!(joined.as_deref(), expected);
            let got = whole.get(start..end);
            prop_assert_eq!(got.as_deref(), expected);
            let mut copied = Vec::new();
            prop_assert_eq!(whole.copy_to(start..end, &mut copied), expected.is_some());
            prop_assert_eq!(&copied[..], expected.unwrap_or_default());
        }

        #[test]
        fn another_byte_makes_another_sequence(
            bytes in prop::collection::vec(any::<u8>(), 1..200),
            lengths in prop::collection::vec(0_usize..50, 0..8),
            at in any::<prop::sample::Index>(),
        ) {
            let mut other = bytes.clone();
            other[at.index(bytes.len())] ^= 1;
            prop_assert_ne!(chunks_of(&bytes, &lengths), chunks_of(&other, &lengths));
            prop_assert_ne!(chunks_of(&bytes, &lengths), chunks_of(&bytes[1..], &lengths));
        }
    }
}

//! The Internet checksum (RFC 1071), and its incremental update (RFC 1624).
//!
//! One's complement sums do not depend on the byte order (RFC 1071 §2 (B)): bytes are added in native byte order, eight
//! at a time, and only the result is converted to network order.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Bytes added in one step, in four independent sums so that the CPU can add in parallel.
const BLOCK_BYTES: usize = 32;

/// A one's complement sum in progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Adds these bytes. An odd length is padded with a zero byte, so only the last call may have an odd length.
    #[must_use]
    pub fn add_bytes(self, bytes: &[u8]) -> Sum {
        let mut sum = self.0;
        let (blocks, mut rest) = bytes.as_chunks::<BLOCK_BYTES>();
        if !blocks.is_empty() {
            let mut lanes = [sum, 0, 0, 0];
            for block in blocks {
                for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                    *lane = add(*lane, u64::from_ne_bytes(*word));
                }
            }
            sum = add(add(lanes[0], lanes[1]), add(lanes[2], lanes[3]));
        }
        if let Some((words, after)) = rest.split_first_chunk::<16>() {
            let both = u128::from_ne_bytes(*words);
            #[expect(clippy::cast_possible_truncation, reason = "each cast keeps one half")]
            let (low, high) = (both as u64, (both >> 64) as u64);
            sum = add(sum, low);
            (sum, rest) = (add(sum, high), after);
        }
        if let Some((word, after)) = rest.split_first_chunk::<8>() {
            (sum, rest) = (add(sum, u64::from_ne_bytes(*word)), after);
        }
        if let Some((word, after)) = rest.split_first_chunk::<4>() {
            (sum, rest) = (add(sum, u64::from(u32::from_ne_bytes(*word))), after);
        }
        if let Some((word, after)) = rest.split_first_chunk::<2>() {
            (sum, rest) = (add(sum, u64::from(u16::from_ne_bytes(*word))), after);
        }
        if let [last] = rest {
            sum = add(sum, u64::from(u16::from_ne_bytes([*last, 0])));
        }
        Sum(sum)
    }

    /// Adds a header of a constant length, which must be a multiple of four bytes.
    #[inline]
    #[must_use]
    pub fn add_array<const N: usize>(self, bytes: &[u8; N]) -> Sum {
        const { assert!(N.is_multiple_of(4)) };
        let words = bytes.as_chunks::<4>().0;
        Sum(words.iter().fold(self.0, |sum, word| add(sum, u64::from(u32::from_ne_bytes(*word)))))
    }

    /// Adds a number in network order.
    #[must_use]
    pub fn add_u16(self, number: u16) -> Sum {
        Sum(add(self.0, u64::from(number.to_be())))
    }

    /// Adds a number in network order.
    #[must_use]
    pub fn add_u32(self, number: u32) -> Sum {
        Sum(add(self.0, u64::from(number.to_be())))
    }

    /// The checksum: the complement of the sum. It is 0 for bytes that include their correct checksum.
    pub fn finish(self) -> u16 {
        u16::from_be(!fold(self.0))
    }
}

/// The sum of the IPv4 pseudo-header for `bytes` of an upper layer's header and payload (RFC 9293 §3.1).
pub fn pseudo_v4(source: Ipv4Addr, target: Ipv4Addr, protocol: u8, bytes: u32) -> Sum {
    Sum::ZERO.add_u32(source.to_bits()).add_u32(target.to_bits()).add_u16(u16::from(protocol)).add_u32(bytes)
}

/// The sum of the IPv6 pseudo-header for `bytes` of an upper layer's header and payload (RFC 8200 §8.1).
pub fn pseudo_v6(source: Ipv6Addr, target: Ipv6Addr, protocol: u8, bytes: u32) -> Sum {
    Sum::ZERO
        .add_bytes(&source.octets())
        .add_bytes(&target.octets())
        .add_u16(u16::from(protocol))
        .add_u32(bytes)
}

/// Updates a checksum after one field has changed (RFC 1624, equation 3).
pub fn adjust_u16(check: u16, from: u16, to: u16) -> u16 {
    !fold(u64::from(!check) + u64::from(!from) + u64::from(to))
}

/// Updates a checksum after one field of four bytes, at an even offset, has changed.
pub fn adjust_u32(check: u16, from: u32, to: u32) -> u16 {
    !fold(u64::from(!check) + u64::from(!from) + u64::from(to))
}

/// Adds with end-around carry. Adding the carry cannot overflow again.
#[inline]
fn add(sum: u64, word: u64) -> u64 {
    let (sum, carry) = sum.overflowing_add(word);
    sum.wrapping_add(u64::from(carry))
}

/// Folds 64 bits to 16.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "16 bits are left, as the sum before was at most 0x10000"
)]
fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff); // 33 bits
    let sum = (sum >> 16) + (sum & 0xffff); // 18 bits
    let sum = (sum >> 16) + (sum & 0xffff); // 17 bits
    ((sum >> 16) + (sum & 0xffff)) as u16
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// The simple algorithm of RFC 1071 §4.1, word by word.
    fn reference_checksum(bytes: &[u8]) -> u16 {
        let mut sum = 0_u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_gives_its_checksum() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::ZERO.add_bytes(&bytes).finish(), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_gives_equation_3s_checksum() {
        // §4: a field changes from 0x5555 to 0x3285, the checksum was 0xdd2f. Equation 2 gives 0xffff, 3 gives 0x0000.
        assert_eq!(adjust_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
        assert_eq!(adjust_u32(0xdd2f, 0x5555_0000, 0x3285_0000), 0x0000);
    }

    #[test]
    fn the_largest_sums_and_carries_are_correct() {
        for length in [0, 1, 2, 31, 32, 33, 63, 64, 65, 65_535, 65_536] {
            let ones = alloc::vec![0xff; length];
            assert_eq!(
                Sum::ZERO.add_bytes(&ones).finish(),
                reference_checksum(&ones),
                "{length} bytes of ones should have the reference checksum"
            );
        }
        for sum in [0, 1, u64::MAX, u64::MAX - 1, 0xffff_ffff, 0x1_ffff_ffff, 0xffff_0000_0000_0001] {
            assert_eq!(
                u16::from_be(!fold(sum)),
                reference_checksum(&sum.to_ne_bytes()),
                "the folded sum {sum:#x} should equal the reference checksum"
            );
        }
    }

    #[test]
    fn pseudo_header_sums_equal_the_sums_of_their_bytes() {
        let (source, target) = (Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(198, 51, 100, 1));
        let bytes = [192, 0, 2, 7, 198, 51, 100, 1, 0, 6, 0x01, 0x23];
        assert_eq!(pseudo_v4(source, target, 6, 0x123).finish(), reference_checksum(&bytes));
        let (source, target) = ("2001:db8::7", "2001:db8::ffff:1");
        let (source, target): (Ipv6Addr, Ipv6Addr) = (source.parse().unwrap(), target.parse().unwrap());
        let mut bytes = [source.octets(), target.octets()].concat();
        bytes.extend([0, 1, 0x23, 0x45, 0, 0, 0, 58]);
        assert_eq!(pseudo_v6(source, target, 58, 0x12345).finish(), reference_checksum(&bytes));
    }

    proptest! {
        #[test]
        fn sums_equal_the_reference_for_any_length_and_alignment(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), skipped in 0..8_usize, even in 0..50_usize,
        ) {
            let bytes = &bytes[skipped.min(bytes.len())..];
            prop_assert_eq!(Sum::ZERO.add_bytes(bytes).finish(), reference_checksum(bytes));
            let (head, tail) = bytes.split_at((2 * even).min(bytes.len() & !1));
            if let Some(header) = bytes.first_chunk::<20>() {
                prop_assert_eq!(Sum::ZERO.add_array(header).finish(), reference_checksum(header));
            }
            prop_assert_eq!(Sum::ZERO.add_bytes(head).add_bytes(tail).finish(), reference_checksum(bytes));
        }

        #[test]
        fn sums_of_numbers_equal_the_sums_of_their_bytes(a: u16, b: u32, c: u16) {
            let mut bytes = Vec::from(a.to_be_bytes());
            bytes.extend(b.to_be_bytes());
            bytes.extend(c.to_be_bytes());
            prop_assert_eq!(Sum::ZERO.add_u16(a).add_u32(b).add_u16(c).finish(), reference_checksum(&bytes));
        }

        #[test]
        fn an_adjusted_checksum_equals_a_recomputed_one(words: [u16; 8], new_u16: u16, new_u32: u32) {
            // RFC 1624 §3 assumes that not all words are zero, which is true of headers.
            prop_assume!(words[2..].iter().any(|word| *word != 0));
            let sum = |words: &[u16]| words.iter().fold(Sum::ZERO, |sum, word| sum.add_u16(*word)).finish();
            let mut changed = words;
            changed[0] = new_u16;
            prop_assert_eq!(adjust_u16(sum(&words), words[0], new_u16), sum(&changed));
            let old_u32 = u32::from(words[0]) << 16 | u32::from(words[1]);
            (changed[0], changed[1]) = ((new_u32 >> 16) as u16, new_u32 as u16);
            prop_assert_eq!(adjust_u32(sum(&words), old_u32, new_u32), sum(&changed));
        }
    }
}

//! Narrowing conversions, each with a defined result for a number that does not fit.

/// The low 32 bits: for clocks and numbers that wrap, and for hashes of which 32 bits are enough.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "only the low half is returned")]
pub(crate) fn low_half(number: u64) -> u32 {
    number as u32
}

/// A number of bytes in memory, which always fits. A larger number is clamped.
#[inline]
pub(crate) fn in_memory(bytes: u64) -> usize {
    debug_assert!(usize::try_from(bytes).is_ok(), "{bytes} bytes exceed the address space");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A length within one packet. A larger length is clamped.
#[inline]
pub(crate) fn in_packet(bytes: usize) -> u16 {
    debug_assert!(u16::try_from(bytes).is_ok(), "{bytes} bytes exceed the length of a packet");
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// A value for a 16-bit field. A larger value is clamped.
#[inline]
pub(crate) fn in_field(value: u64) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_half_drops_the_high_bits() {
        assert_eq!(low_half(0x1_2345_6789), 0x2345_6789);
    }

    #[test]
    fn a_value_too_large_for_a_field_is_clamped() {
        assert_eq!([0, 65_535, 65_536, u64::MAX].map(in_field), [0, 65_535, 65_535, 65_535]);
    }
}

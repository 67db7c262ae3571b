//! Narrowing conversions. Each has a name and defines what happens to a number that does not fit.

/// The low 32 bits: for clocks and numbers that wrap, and for hashes of which 32 bits are enough.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the caller wants only the low half")]
pub(crate) fn low_half(number: u64) -> u32 {
    number as u32
}

/// A number of bytes that are in memory, so it fits. A larger number is clamped.
#[inline]
pub(crate) fn in_memory(bytes: u64) -> usize {
    debug_assert!(usize::try_from(bytes).is_ok(), "more bytes than memory can hold: {bytes}");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// A length within one packet. A larger length is clamped.
#[inline]
pub(crate) fn in_packet(bytes: usize) -> u16 {
    debug_assert!(u16::try_from(bytes).is_ok(), "longer than a packet: {bytes}");
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
    fn what_wraps_keeps_its_low_half() {
        assert_eq!(low_half(0x1_2345_6789), 0x2345_6789);
    }

    #[test]
    fn what_does_not_fit_a_field_counts_as_the_largest() {
        assert_eq!([0, 65_535, 65_536, u64::MAX].map(in_field), [0, 65_535, 65_535, 65_535]);
    }
}

//! A fixed pattern of bytes, each of which depends only on its offset in the stream. The pattern is computed once, so that
//! checking a received byte costs one comparison with memory.

use std::sync::LazyLock;

/// A prime: no chunk, segment or window is a multiple of it, so lost, repeated or moved bytes differ from the pattern.
const PERIOD: usize = 100_003;
/// Length of the slices that [`slice_from`] returns.
const RUN_BYTES: usize = 64 * 1024;

/// One period and the first [`RUN_BYTES`] of the next one.
static BYTES: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let period: Vec<u8> = (0..PERIOD as u64).map(byte).collect();
    period.iter().copied().cycle().take(PERIOD + RUN_BYTES).collect()
});

/// The highest byte of SplitMix64's hash of `offset`.
fn byte(offset: u64) -> u8 {
    let z = offset.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 56) as u8
}

/// The next [`RUN_BYTES`] of the pattern from an offset on.
pub fn slice_from(offset: u64) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize; // below the period
    &BYTES[start..start + RUN_BYTES]
}

pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    let mut offset = offset;
    bytes.chunks(RUN_BYTES).all(|chunk| {
        let right = chunk == &slice_from(offset)[..chunk.len()];
        offset += chunk.len() as u64;
        right
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_and_shifted_bytes_differ_from_the_pattern() {
        let mut bytes: Vec<u8> =
            slice_from(7).iter().chain(slice_from(7 + RUN_BYTES as u64)).copied().collect();
        assert!(is_right(7, &bytes));
        for index in [0, 1000, RUN_BYTES, bytes.len() - 1] {
            bytes[index] ^= 1;
            assert!(!is_right(7, &bytes));
            bytes[index] ^= 1;
        }
        for shift in (1..PERIOD as u64).step_by(7).chain([1448, 65_536, 131_072]) {
            assert!(!is_right(7 + shift, &bytes), "shifted by {shift} bytes");
        }
    }
}

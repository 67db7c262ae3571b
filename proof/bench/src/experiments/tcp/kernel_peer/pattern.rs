//! Bytes that both ends of a connection know beforehand, so that every byte can be compared at the cost of reading it.

use std::sync::LazyLock;

/// A prime: no chunk, segment or window is a multiple of it, so what is lost, repeated or moved is seen.
const PERIOD: usize = 100_003;
/// At most so many bytes are compared or lent at once.
const RUN_BYTES: usize = 64 * 1024;

/// One period, and as many bytes of the next one as are lent at once.
static BYTES: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let period: Vec<u8> = (0..PERIOD as u64).map(byte).collect();
    period.iter().copied().cycle().take(PERIOD + RUN_BYTES).collect()
});

/// A byte of SplitMix64's hash of its place.
fn byte(place: u64) -> u8 {
    let z = place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 56) as u8 // the highest eight bits
}

/// The bytes of a stream from this offset on, as many as can be lent at once.
pub fn from(offset: u64) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize; // below the period
    &BYTES[start..start + RUN_BYTES]
}

/// Whether a stream has these bytes at this offset.
pub fn is_right(offset: u64, bytes: &[u8]) -> bool {
    let mut offset = offset;
    bytes.chunks(RUN_BYTES).all(|chunk| {
        let right = chunk == &from(offset)[..chunk.len()];
        offset += chunk.len() as u64;
        right
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_seen() {
        let mut bytes: Vec<u8> = from(7).iter().chain(from(7 + RUN_BYTES as u64)).copied().collect();
        assert!(is_right(7, &bytes));
        for place in [0, 1000, RUN_BYTES, bytes.len() - 1] {
            bytes[place] ^= 1;
            assert!(!is_right(7, &bytes));
            bytes[place] ^= 1;
        }
        for shift in (1..PERIOD as u64).step_by(7).chain([1448, 65_536, 131_072]) {
            assert!(!is_right(7 + shift, &bytes), "bytes lost, or twice: {shift}");
        }
    }
}

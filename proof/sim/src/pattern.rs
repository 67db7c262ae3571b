//! The bytes of every stream: a function of the stream's token and the offset, so that a lost, repeated, reordered or
//! altered byte is detected.

use crate::rng::mix;

/// Identifies a stream.
pub type Token = u64;

/// Length of the token at the beginning of a request stream.
pub const TOKEN_BYTES: u64 = 8;

/// Eight bytes of a request stream, at offset `8 * index`; the first eight are the token.
pub fn request_word(token: Token, index: u64) -> u64 {
    if index == 0 { token } else { word(token, index) }
}

/// Eight bytes of a reply stream, at offset `8 * index`.
pub fn reply_word(token: Token, index: u64) -> u64 {
    word(!token, index)
}

fn word(key: u64, index: u64) -> u64 {
    mix(key ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// `length` bytes of a stream from offset `from`.
pub fn bytes_of(word: impl Fn(Token, u64) -> u64, token: Token, from: u64, length: u64) -> Vec<u8> {
    let (first, last) = (from / 8, (from + length).div_ceil(8));
    let mut bytes = Vec::with_capacity(((last - first) * 8) as usize); // fits: at most the length of one send
    for index in first..last {
        bytes.extend_from_slice(&word(token, index).to_le_bytes());
    }
    let skipped = (from % 8) as usize;
    bytes.drain(..skipped.min(bytes.len()));
    bytes.truncate(length as usize);
    bytes
}

/// Stream offset of the first byte of `bytes` that is wrong, if any; `bytes` begin at stream offset `from`.
pub fn first_wrong(word: impl Fn(Token, u64) -> u64, token: Token, from: u64, bytes: &[u8]) -> Option<u64> {
    let right = bytes_of(word, token, from, bytes.len() as u64);
    if right == bytes {
        return None;
    }
    (from..).zip(right.iter().zip(bytes)).find(|(_, (right, got))| right != got).map(|(offset, _)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_range_equal_that_range_of_the_stream() {
        let stream = bytes_of(request_word, 7, 0, 100);
        assert_eq!(&stream[..8], &7_u64.to_le_bytes());
        for from in 0..100 {
            for to in from..=100 {
                let range = bytes_of(request_word, 7, from as u64, (to - from) as u64);
                assert_eq!(range, &stream[from..to]);
                assert_eq!(first_wrong(request_word, 7, from as u64, &range), None);
            }
        }
        let mut altered = stream[11..40].to_vec();
        altered[9] ^= 1;
        assert_eq!(first_wrong(request_word, 7, 11, &altered), Some(20));
    }

    #[test]
    fn bytes_differ_between_streams_and_between_directions() {
        assert_ne!(bytes_of(request_word, 7, 8, 100), bytes_of(request_word, 8, 8, 100));
        assert_ne!(bytes_of(request_word, 7, 8, 100), bytes_of(reply_word, 7, 8, 100));
        assert_ne!(bytes_of(reply_word, 7, 0, 100), bytes_of(reply_word, 7, 8, 100));
    }
}

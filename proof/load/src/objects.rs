//! Objects of given sizes, whose bytes server and client derive from the request's target.
//!
//! `/NAME?bytes=N` names an object of N bytes. Its bytes are those of one pattern, which repeats from a place that a hash of
//! the target determines. The server sends parts of the pattern without building the object; the client compares with the
//! same parts, so a lost, repeated or altered byte and an object of another target are detected.

use std::sync::LazyLock;

use spillway_parts::Random;

/// Size of the largest object.
pub const BYTES_MAX: u32 = 4 << 20;
/// Length of the pattern: a prime, so that a part that is missing or repeated by a usual buffer size does not match.
const PATTERN_BYTES: u32 = 65_521;
const PATTERN_SEED: u64 = 0x0B1E_C75E_ED00_0001;
/// Separates an object's name from its size.
const SIZE: &str = "?bytes=";

static PATTERN: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut random = Random::new(PATTERN_SEED);
    (0..PATTERN_BYTES).map(|_| random.word().to_le_bytes()[0]).collect()
});

/// The size that a target names; `None` if the target does not name an object. Sizes above [`BYTES_MAX`] and those that are
/// not numbers are an error.
pub fn size_in(target: &str) -> Option<Result<u32, BadSize>> {
    let (_, size) = target.split_once(SIZE)?;
    let digits = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = size.parse().ok().filter(|bytes| digits && *bytes <= BYTES_MAX);
    Some(bytes.ok_or(BadSize))
}

/// A target names an object of a size that no server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSize;

/// Appends the part of a target that names the size.
pub(crate) fn push_size(bytes: u32, target: &mut Vec<u8>) {
    target.extend_from_slice(SIZE.as_bytes());
    target.extend_from_slice(bytes.to_string().as_bytes());
}

/// The bytes of an object that are not sent, or not compared, yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Offset in the pattern.
    at: u32,
    left: u32,
}

impl Rest {
    /// All bytes of the object that a target names.
    pub fn of(target: &[u8], bytes: u32) -> Rest {
        let hash = target.chunks(8).fold(0, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            Random::new(hash ^ u64::from_le_bytes(word)).word()
        });
        let at = u32::try_from(hash % u64::from(PATTERN_BYTES)).unwrap_or_default();
        Rest { at, left: bytes }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.left as usize
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// The first of the bytes, as many as the pattern has in one piece: empty only if none are left.
    pub fn first_part(&self) -> &'static [u8] {
        let pattern: &'static [u8] = &PATTERN;
        let part = &pattern[self.at as usize..];
        &part[..part.len().min(self.len())]
    }

    /// Drops the first `count` bytes, at most all of them.
    pub fn advance(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.left);
        self.left -= count;
        // The remainder is below the length of the pattern.
        self.at = ((u64::from(self.at) + u64::from(count)) % u64::from(PATTERN_BYTES)) as u32;
    }

    /// Whether `bytes` are the first of the bytes, and not more than those left; then drops them.
    pub fn take(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let part = self.first_part();
            let count = part.len().min(bytes.len());
            if count == 0 || bytes[..count] != part[..count] {
                return false;
            }
            self.advance(count);
            bytes = &bytes[count..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(target: &str, bytes: u32, step: usize) -> Vec<u8> {
        let (mut rest, mut all) = (Rest::of(target.as_bytes(), bytes), Vec::new());
        while !rest.is_empty() {
            let part = rest.first_part();
            let count = part.len().min(step);
            all.extend_from_slice(&part[..count]);
            rest.advance(count);
        }
        all
    }

    #[test]
    fn sizes_are_read_from_targets_and_bounded() {
        let sizes = ["/a", "/a?bytes=0", "/a?b&bytes=1", "/a?bytes=4194304"].map(size_in);
        assert_eq!(sizes, [None, Some(Ok(0)), None, Some(Ok(BYTES_MAX))]);
        for bad in
            ["/a?bytes=", "/a?bytes=+1", "/a?bytes=4194305", "/a?bytes=99999999999", "/a?bytes=1?bytes=1"]
        {
            assert_eq!(size_in(bad), Some(Err(BadSize)), "{bad}");
        }
        let mut target = b"/name".to_vec();
        push_size(256, &mut target);
        assert_eq!(size_in(std::str::from_utf8(&target).unwrap()), Some(Ok(256)));
    }

    #[test]
    fn an_object_has_the_same_bytes_in_parts_of_any_size_and_each_altered_or_missing_byte_is_detected() {
        let size = 3 * PATTERN_BYTES + 7;
        let whole = bytes_of("/a", size, usize::MAX);
        assert_eq!(whole.len(), size as usize);
        for step in [1_000, 1_448, 65_536] {
            assert!(bytes_of("/a", size, step) == whole, "parts of {step} bytes");
        }
        let accepts = |parts: &[&[u8]]| {
            let mut rest = Rest::of(b"/a", size);
            parts.iter().all(|part| rest.take(part)) && rest.is_empty()
        };
        assert!(accepts(&[&whole]) && accepts(&[&whole[..9], &[], &whole[9..]]));
        for at in [0, 1, 65_520, 65_521, whole.len() - 1] {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            assert!(!accepts(&[&altered]), "byte {at} altered");
            assert!(!accepts(&[&whole[..at], &whole[at + 1..]]), "byte {at} missing");
        }
        for lost in [1_448, 4_096, 16_384, 65_536] {
            assert!(
                !Rest::of(b"/a", size).take(&[&whole[..100], &whole[100 + lost..]].concat()),
                "{lost} lost"
            );
        }
        assert!(!accepts(&[&whole, b"x"]), "a byte too many");
    }

    #[test]
    fn objects_of_other_targets_differ() {
        let starts: std::collections::BTreeSet<Vec<u8>> =
            (0..100).map(|number| bytes_of(&format!("/{number}?bytes=16"), 16, 16)).collect();
        assert_eq!(starts.len(), 100);
    }
}

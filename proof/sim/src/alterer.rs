//! An attacker on the path of links: flips bits, leaves bytes out, reorders them, repeats them or replays older ones.

use crate::rng::Rng;
use crate::socket::HostId;

/// Maximum number of bytes after an altered byte that a reader may accept before its link must fail: a record is
/// decrypted as a whole, and the preamble of a link is shorter.
pub(crate) const UNNOTICED_BYTES_MAX: u64 = spillway_wire::record::RECORD_BYTES_MAX as u64 + 64;

/// Alters the segments to and from one host, but not their lengths: these must fit TCP's sequence numbers.
pub(crate) struct Alterer {
    host: HostId,
    rng: Rng,
    /// Each segment is altered with probability 1 / `one_in`.
    one_in: u64,
    /// An earlier segment of any link, as it was sent; kept for replays.
    earlier_segment: Vec<u8>,
    has_stopped: bool,
    pub(crate) altered: u64,
}

impl Alterer {
    pub(crate) fn new(host: HostId, mut rng: Rng) -> Alterer {
        let one_in = rng.log_uniform(10, 1_000);
        Alterer { host, rng, one_in, earlier_segment: Vec::new(), has_stopped: false, altered: 0 }
    }

    pub(crate) fn begin_calm_phase(&mut self) {
        self.has_stopped = true;
    }

    /// May alter `bytes`, in place. Returns the offset of the first byte that differs.
    pub(crate) fn pass(&mut self, source: HostId, target: HostId, bytes: &mut [u8]) -> Option<usize> {
        if self.has_stopped || (source != self.host && target != self.host) || bytes.is_empty() {
            return None;
        }
        let sent = bytes.to_owned();
        if self.rng.chance(1, self.one_in) {
            self.alter(bytes);
        }
        let first_altered = sent.iter().zip(bytes.iter()).position(|(before, after)| before != after);
        self.altered += u64::from(first_altered.is_some());
        if self.rng.chance(1, 4) {
            self.earlier_segment = sent;
        }
        first_altered
    }

    fn alter(&mut self, bytes: &mut [u8]) {
        let length = bytes.len();
        let offset = self.rng.below(length as u64) as usize;
        match self.rng.below(5) {
            0 => bytes[offset] ^= 1 << self.rng.below(8),
            // The parts before and after the offset are swapped.
            1 => bytes.rotate_left(offset),
            // A byte is missing; an invented last byte keeps the length.
            2 => {
                bytes.copy_within(offset + 1.., offset);
                bytes[length - 1] ^= 0x55;
            }
            // The first part is repeated, and overwrites the bytes that followed it.
            3 => {
                let part = offset.min(length - offset);
                bytes.copy_within(..part, offset);
            }
            // The beginning of an earlier segment is replayed.
            _ => {
                let part = length.min(self.earlier_segment.len());
                bytes[..part].copy_from_slice(&self.earlier_segment[..part]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alterer_returns_the_first_altered_offset_and_leaves_other_hosts_alone() {
        let mut alterer = Alterer::new(0, Rng::new(1));
        for round in 0..100_000_u32 {
            let sent: Vec<u8> = (0..1 + round % 50).map(|n| (n * 7 + round) as u8).collect();
            let mut bytes = sent.clone();
            assert_eq!(alterer.pass(1, 2, &mut bytes), None);
            assert_eq!(bytes, sent);
            let first_altered = alterer.pass(1, 0, &mut bytes);
            assert_eq!(bytes.len(), sent.len());
            assert_eq!(first_altered, (0..sent.len()).find(|offset| sent[*offset] != bytes[*offset]));
        }
        assert!(alterer.altered > 50);
        alterer.begin_calm_phase();
        assert_eq!(alterer.pass(0, 1, &mut [1; 100]), None);
    }
}

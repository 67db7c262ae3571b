//! An attacker on the path of links: flips bits, leaves bytes out, reorders them, repeats them or replays older ones.

use crate::rng::Rng;
use crate::socket::HostId;

/// Bytes of a stream behind an altered byte that a reader may take before it must fail: a record is opened as a
/// whole, and the preamble of a link is shorter.
pub(crate) const UNNOTICED_BYTES_MAX: u64 = spillway_wire::record::RECORD_BYTES_MAX as u64 + 64;

/// Alters the segments to and from one host. Lengths stay: a real attacker can correct TCP's sequence numbers, too.
pub(crate) struct Alterer {
    host: HostId,
    rng: Rng,
    /// One segment in `every` is altered, on average.
    every: u64,
    /// A segment that passed earlier, on any link, for replay.
    earlier: Vec<u8>,
    is_over: bool,
    /// Segments altered so far.
    pub(crate) altered: u64,
}

impl Alterer {
    pub(crate) fn new(host: HostId, mut rng: Rng) -> Alterer {
        let every = rng.scale(10, 1_000);
        Alterer { host, rng, every, earlier: Vec::new(), is_over: false, altered: 0 }
    }

    pub(crate) fn calm_down(&mut self) {
        self.is_over = true;
    }

    /// May alter `bytes`, in place. Returns the offset of the first byte that differs.
    pub(crate) fn pass(&mut self, source: HostId, target: HostId, bytes: &mut [u8]) -> Option<usize> {
        if self.is_over || (source != self.host && target != self.host) || bytes.is_empty() {
            return None;
        }
        let sent = bytes.to_owned();
        if self.rng.chance(1, self.every) {
            self.alter(bytes);
        }
        let first = sent.iter().zip(bytes.iter()).position(|(sent, now)| sent != now);
        self.altered += u64::from(first.is_some());
        if self.rng.chance(1, 4) {
            self.earlier = sent;
        }
        first
    }

    fn alter(&mut self, bytes: &mut [u8]) {
        let length = bytes.len();
        let at = self.rng.below(length as u64) as usize;
        match self.rng.below(5) {
            0 => bytes[at] ^= 1 << self.rng.below(8),
            // Two parts change places.
            1 => bytes.rotate_left(at),
            // A byte is left out; the length stays, so the last byte is made up.
            2 => {
                bytes.copy_within(at + 1.., at);
                bytes[length - 1] ^= 0x55;
            }
            // A part is repeated in the place of what followed it.
            3 => {
                let part = at.min(length - at);
                bytes.copy_within(..part, at);
            }
            // Replay.
            _ => {
                let part = length.min(self.earlier.len());
                bytes[..part].copy_from_slice(&self.earlier[..part]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_offsets_are_returned_and_paths_of_other_hosts_are_untouched() {
        let mut alterer = Alterer::new(0, Rng::new(1));
        for round in 0..100_000_u32 {
            let sent: Vec<u8> = (0..1 + round % 50).map(|n| (n * 7 + round) as u8).collect();
            let mut bytes = sent.clone();
            assert_eq!(alterer.pass(1, 2, &mut bytes), None);
            assert_eq!(bytes, sent);
            let first = alterer.pass(1, 0, &mut bytes);
            assert_eq!(bytes.len(), sent.len());
            assert_eq!(first, (0..sent.len()).find(|at| sent[*at] != bytes[*at]));
        }
        assert!(alterer.altered > 50);
        alterer.calm_down();
        assert_eq!(alterer.pass(0, 1, &mut [1; 100]), None);
    }
}

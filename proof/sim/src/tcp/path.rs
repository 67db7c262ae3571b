//! One direction between two hosts: loss, delay, reordering, copies and damage of frames.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::Time;

use crate::rng::Rng;

/// Parts per million.
const ALL: u64 = 1_000_000;
/// Bound of the old frames kept for replays.
const KEPT_MAX: usize = 64;
/// The Ethernet header is not covered by a checksum here (the frame's checksum belongs to the card): bits are flipped
/// behind it.
const ETHERNET_BYTES: usize = 14;
/// Version and header length stay: a wrong length would make the header checksum cover other bytes, and be right once
/// in 65,536 times.
const FIRST_ALTERED: usize = ETHERNET_BYTES + 1;
const IPV4_BYTES: usize = 20;
/// Preamble, gap and checksum, which take time on the wire.
const OVERHEAD_BYTES: u64 = 24;

/// The behaviour of a path. Fields with `_ppm` are parts per million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Minimum delay.
    pub delay_ns: u64,
    /// Maximum additional delay, without reordering.
    pub jitter_ns: u64,
    /// Lost frames.
    pub loss_ppm: u64,
    /// Frames that arrive twice.
    pub duplicate_ppm: u64,
    /// Frames that may arrive after later ones.
    pub reorder_ppm: u64,
    /// Maximum additional delay of such a frame.
    pub reorder_ns_max: u64,
    /// Frames in which one or two bits are flipped.
    pub corrupt_ppm: u64,
    /// Frames after which an old frame is replayed.
    pub replay_ppm: u64,
    /// Bits per second; 0: no limit.
    pub bits_per_s: u64,
    /// Bound of the queue before the rate limit; frames beyond it are lost.
    pub queue_bytes_max: u64,
}

impl Conditions {
    /// Only a delay.
    pub const fn clear(delay: Duration) -> Conditions {
        Conditions {
            delay_ns: delay.as_nanos() as u64, // a delay of a network
            jitter_ns: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            reorder_ns_max: 0,
            corrupt_ppm: 0,
            replay_ppm: 0,
            bits_per_s: 0,
            queue_bytes_max: u64::MAX,
        }
    }

    /// The same path without loss, damage, reordering and jitter.
    pub fn calm(self) -> Conditions {
        let clear = Conditions::clear(Duration::from_nanos(self.delay_ns));
        Conditions { bits_per_s: self.bits_per_s, queue_bytes_max: self.queue_bytes_max, ..clear }
    }
}

/// A frame that will arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time of the arrival.
    pub at: Time,
    /// The frame's bytes, perhaps damaged.
    pub frame: Vec<u8>,
    /// The frame differs from the sent one, so that a checksum must fail.
    pub is_corrupt: bool,
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Path {
    /// The present behaviour; may be changed while frames are under way.
    pub conditions: Conditions,
    /// All frames are lost.
    pub is_cut: bool,
    rng: Rng,
    /// When the last frame has passed the rate limit.
    free_at: Time,
    /// Latest arrival of a frame that was not reordered.
    last_at: Time,
    kept: VecDeque<Vec<u8>>,
    /// Frames lost, for any reason.
    pub lost: u64,
    /// Frames lost because the queue was full.
    pub overflowed: u64,
}

impl Path {
    /// An idle path.
    pub fn new(conditions: Conditions, rng: Rng) -> Path {
        Path {
            conditions,
            is_cut: false,
            rng,
            free_at: Time::ZERO,
            last_at: Time::ZERO,
            kept: VecDeque::new(),
            lost: 0,
            overflowed: 0,
        }
    }

    fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.rng.chance(ppm, ALL)
    }

    /// Sends a frame: calls `arrive` for each copy that will arrive, at most three times.
    pub fn send(&mut self, now: Time, frame: &[u8], mut arrive: impl FnMut(Arrival)) {
        let conditions = self.conditions;
        let Some(left_at) = self.leave(now, frame.len() as u64) else {
            self.overflowed += 1;
            self.lost += 1;
            return;
        };
        if self.is_cut || self.happens(conditions.loss_ppm) {
            self.lost += 1;
            return;
        }
        let mut at =
            left_at + Duration::from_nanos(conditions.delay_ns + self.rng.range(0, conditions.jitter_ns));
        if self.happens(conditions.reorder_ppm) {
            at = at + Duration::from_nanos(self.rng.range(0, conditions.reorder_ns_max));
        } else {
            at = at.max(self.last_at);
            self.last_at = at;
        }
        let mut sent = Arrival { at, frame: frame.to_vec(), is_corrupt: false };
        if self.happens(conditions.duplicate_ppm) {
            let at = at + Duration::from_nanos(self.rng.range(0, conditions.delay_ns));
            arrive(Arrival { at, ..sent.clone() });
        }
        if self.happens(conditions.replay_ppm) && !self.kept.is_empty() {
            let old = self.rng.below(self.kept.len() as u64) as usize; // below its length
            let at = at + Duration::from_nanos(self.rng.scale(1, 1_000_000_000));
            arrive(Arrival { at, frame: self.kept[old].clone(), is_corrupt: false });
        }
        if conditions.replay_ppm > 0 && self.rng.chance(1, 8) {
            if self.kept.len() >= KEPT_MAX {
                self.kept.pop_front();
            }
            self.kept.push_back(frame.to_vec());
        }
        if self.happens(conditions.corrupt_ppm) {
            sent.is_corrupt = corrupt(&mut self.rng, &mut sent.frame);
        }
        arrive(sent);
    }

    /// When the frame has passed the rate limit, behind the queued ones; `None` if the queue is full.
    fn leave(&mut self, now: Time, bytes: u64) -> Option<Time> {
        let conditions = self.conditions;
        if conditions.bits_per_s == 0 {
            return Some(now);
        }
        let ns_of = |bytes: u64| u128::from(bytes) * 8_000_000_000 / u128::from(conditions.bits_per_s);
        let backlog = u128::from(self.free_at.since(now).as_nanos() as u64); // of a bounded queue
        if backlog > ns_of(conditions.queue_bytes_max) {
            return None;
        }
        let takes = Duration::from_nanos(ns_of(bytes + OVERHEAD_BYTES) as u64); // of one frame
        self.free_at = self.free_at.max(now) + takes;
        Some(self.free_at)
    }
}

/// Flips one or two bits of an IPv4 packet. Returns false if the frame has none. The checksums cannot stay right: two
/// flips in the same column of 16-bit words could cancel out, and are avoided.
pub fn corrupt(rng: &mut Rng, frame: &mut [u8]) -> bool {
    if frame.len() <= ETHERNET_BYTES + IPV4_BYTES || frame[12..14] != [8, 0] {
        return false;
    }
    let header_bits = (FIRST_ALTERED as u64 * 8, (ETHERNET_BYTES + IPV4_BYTES) as u64 * 8);
    let segment_bits = (header_bits.1, frame.len() as u64 * 8);
    // Both bits are covered by the same checksum.
    let (low, end) = if rng.chance(1, 4) { header_bits } else { segment_bits };
    let first = rng.range(low, end - 1);
    flip(frame, first);
    let second = rng.range(low, end - 1);
    if rng.chance(1, 2) && second % 16 != first % 16 {
        flip(frame, second);
    }
    true
}

fn flip(frame: &mut [u8], bit: u64) {
    frame[(bit / 8) as usize] ^= 1 << (bit % 8); // within the frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn path(conditions: Conditions) -> Path {
        Path::new(conditions, Rng::new(3))
    }

    fn clear() -> Conditions {
        Conditions::clear(Duration::from_millis(5))
    }

    fn sent(path: &mut Path, now: u64, frame: &[u8]) -> Vec<Arrival> {
        let mut all = Vec::new();
        path.send(Time(now), frame, |arrival| all.push(arrival));
        all
    }

    #[test]
    fn a_clear_path_only_delays() {
        let mut path = path(clear());
        for n in 0..100_u8 {
            let arrivals = sent(&mut path, u64::from(n), &[n; 60]);
            assert_eq!(arrivals.len(), 1);
            assert_eq!((arrivals[0].at, &arrivals[0].frame[..]), (Time(u64::from(n) + 5 * MS), &[n; 60][..]));
        }
    }

    #[test]
    fn rates_are_as_configured() {
        let conditions = Conditions {
            loss_ppm: 100_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 200_000,
            reorder_ns_max: 9 * MS,
            ..clear()
        };
        let mut path = path(conditions);
        let (mut arrivals, mut late) = (0, 0);
        for n in 0..10_000 {
            let all = sent(&mut path, n * 20 * MS, &[0; 60]);
            arrivals += all.len();
            late += all.iter().filter(|one| one.at > Time(n * 20 * MS + 5 * MS)).count();
        }
        assert!((900..1100).contains(&path.lost), "{}", path.lost);
        assert!((9_300..9_600).contains(&arrivals), "{arrivals}");
        assert!((1_900..2_500).contains(&late), "{late}");
    }

    #[test]
    fn a_narrow_path_takes_its_time_and_its_queue_is_bounded() {
        let conditions = Conditions { bits_per_s: 8_000_000, queue_bytes_max: 10_000, ..clear() };
        let mut path = path(conditions);
        let ats: Vec<_> = (0..20).flat_map(|_| sent(&mut path, 0, &[0; 976])).map(|one| one.at.0).collect();
        // A byte takes a microsecond.
        assert_eq!(ats, (1..=11).map(|n| n * MS + 5 * MS).collect::<Vec<_>>());
        assert_eq!(path.overflowed, 9);
        assert_eq!(sent(&mut path, 100 * MS, &[0; 976])[0].at, Time(106 * MS), "idle time is not saved up");
    }

    #[test]
    fn nothing_gets_through_a_path_that_is_cut() {
        let mut path = path(clear());
        path.is_cut = true;
        assert!(sent(&mut path, 0, &[0; 60]).is_empty());
        path.is_cut = false;
        assert_eq!(sent(&mut path, 0, &[0; 60]).len(), 1);
    }

    #[test]
    fn old_frames_come_again_unaltered() {
        let mut path = path(Conditions { replay_ppm: 300_000, ..clear() });
        let mut old = 0;
        for n in 0..200_u8 {
            for arrival in sent(&mut path, u64::from(n) * MS, &[n; 60]) {
                assert_eq!(arrival.frame, vec![arrival.frame[0]; 60]);
                old += usize::from(arrival.frame[0] != n);
            }
        }
        assert!((30..90).contains(&old), "{old}");
    }
}

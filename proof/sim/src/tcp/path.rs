//! One direction between two hosts: what happens to frames on their way.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::Time;

use crate::rng::Rng;

/// Of a million.
const ALL: u64 = 1_000_000;
/// Old frames that are kept, to be said again.
const KEPT_MAX: usize = 64;
/// An Ethernet header has no checksum of its own here (the one behind the frame is the card's): bits are turned over
/// behind it.
const ETHERNET_BYTES: usize = 14;
/// Version and header length: were the length altered, the header's checksum would be that of other bytes, and right
/// once in 65,536 times.
const FIRST_ALTERED: usize = ETHERNET_BYTES + 1;
const IPV4_BYTES: usize = 20;
/// Preamble, gap and checksum, which take time on the wire.
const OVERHEAD_BYTES: u64 = 24;

/// How a path treats frames. Parts of a million where it is `_ppm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Time on the way, at least.
    pub delay_ns: u64,
    /// Further time, any up to this, without overtaking.
    pub jitter_ns: u64,
    /// Frames that are lost,
    pub loss_ppm: u64,
    /// that come twice,
    pub duplicate_ppm: u64,
    /// that come later than those behind them,
    pub reorder_ppm: u64,
    /// by so much at most;
    pub reorder_ns_max: u64,
    /// in which one or two bits are turned over.
    pub corrupt_ppm: u64,
    /// How often some frame of before comes again.
    pub replay_ppm: u64,
    /// Bits a second. 0: as many as there are.
    pub bits_per_s: u64,
    /// Bytes that wait for their turn; what is more is lost.
    pub queue_bytes_max: u64,
}

impl Conditions {
    /// Nothing but a delay.
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

    /// The same way on a good day: what was lost, altered or out of order is not any more.
    pub fn calm(self) -> Conditions {
        let clear = Conditions::clear(Duration::from_nanos(self.delay_ns));
        Conditions { bits_per_s: self.bits_per_s, queue_bytes_max: self.queue_bytes_max, ..clear }
    }
}

/// A frame that will arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at: Time,
    /// What.
    pub frame: Vec<u8>,
    /// Whether it is not what was sent, and a checksum must show it.
    pub is_corrupt: bool,
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Path {
    /// Today's.
    pub conditions: Conditions,
    /// Nothing gets through.
    pub is_cut: bool,
    rng: Rng,
    /// When the last frame that was sent has left.
    free_at: Time,
    /// Nobody overtakes who is not made to.
    last_at: Time,
    kept: VecDeque<Vec<u8>>,
    /// Frames lost, for whatever reason.
    pub lost: u64,
    /// Of those, because too many waited.
    pub overflowed: u64,
}

impl Path {
    /// A path on which nothing has been sent.
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

    /// A frame is sent: what arrives of it, and when. Nothing, or up to three.
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

    /// When the frame has left, behind those that wait. `None`: too many wait.
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

/// Turns over one or two bits of an IPv4 packet with TCP or the like in it. Whether it did: never so that the checksums
/// stay right, which they do when two bits of one column change places.
pub fn corrupt(rng: &mut Rng, frame: &mut [u8]) -> bool {
    if frame.len() <= ETHERNET_BYTES + IPV4_BYTES || frame[12..14] != [8, 0] {
        return false;
    }
    let header_bits = (FIRST_ALTERED as u64 * 8, (ETHERNET_BYTES + IPV4_BYTES) as u64 * 8);
    let segment_bits = (header_bits.1, frame.len() as u64 * 8);
    // Both in what one checksum is of.
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
    fn shares_are_as_told() {
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

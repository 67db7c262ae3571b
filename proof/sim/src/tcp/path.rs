//! One direction between two hosts: loss, delay, reordering, copies and damage of frames.

use std::collections::VecDeque;
use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::{ethernet, ipv6};

use crate::rng::Rng;

const MILLION: u64 = 1_000_000;
const OLD_FRAMES_MAX: usize = 64;
/// Bits are flipped only after the Ethernet header, which no simulated checksum covers.
const ETHERNET_BYTES: usize = 14;
/// Version and header length are not altered: with a wrong length the header checksum would cover other
/// bytes, and be right by chance once in 65,536 times.
const FIRST_ALTERED: usize = ETHERNET_BYTES + 1;
const IPV4_BYTES: usize = 20;
/// Preamble (8), gap (12) and checksum (4) of a frame, which take time on the wire.
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
    /// Frames that may arrive after frames that were sent later.
    pub reorder_ppm: u64,
    /// Maximum additional delay of a reordered frame.
    pub reorder_ns_max: u64,
    /// Frames in which one or two bits are flipped.
    pub corrupt_ppm: u64,
    /// Frames after which an old frame is replayed.
    pub replay_ppm: u64,
    /// Bits per second; 0: no limit.
    pub bits_per_s: u64,
    /// Maximum length of the queue before the rate limit; further frames are lost.
    pub queue_bytes_max: u64,
}

impl Conditions {
    /// A path that only delays frames.
    pub const fn clear(delay: Duration) -> Conditions {
        Conditions {
            delay_ns: delay.as_nanos() as u64, // fits: a delay of a network
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

    /// The same delay, rate and queue, without loss, damage, reordering and jitter.
    pub fn without_faults(self) -> Conditions {
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
    /// Whether bits were flipped, which a checksum must detect.
    pub is_corrupt: bool,
}

/// One direction between two hosts.
#[derive(Debug)]
pub struct Path {
    /// The present behaviour; may change while frames are on the path.
    pub conditions: Conditions,
    /// Whether all frames are lost.
    pub is_cut: bool,
    rng: Rng,
    /// Time at which all frames sent so far have passed the rate limit.
    free_at: Time,
    /// Latest arrival of a frame that was not reordered.
    last_at: Time,
    old_frames: VecDeque<Vec<u8>>,
    /// Number of frames lost, for any reason.
    pub lost: u64,
    /// Number of frames lost because the queue was full.
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
            old_frames: VecDeque::new(),
            lost: 0,
            overflowed: 0,
        }
    }

    fn happens(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.rng.chance(ppm, MILLION)
    }

    /// Sends a frame: calls `arrive` for each copy that will arrive, at most three times.
    pub fn send(&mut self, now: Time, frame: &[u8], mut arrive: impl FnMut(Arrival)) {
        let conditions = self.conditions;
        let Some(left_at) = self.leave_queue(now, frame.len() as u64) else {
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
        if self.happens(conditions.replay_ppm) && !self.old_frames.is_empty() {
            let old = self.rng.below(self.old_frames.len() as u64) as usize; // fits: an index
            let at = at + Duration::from_nanos(self.rng.log_uniform(1, 1_000_000_000));
            arrive(Arrival { at, frame: self.old_frames[old].clone(), is_corrupt: false });
        }
        if conditions.replay_ppm > 0 && self.rng.chance(1, 8) {
            if self.old_frames.len() >= OLD_FRAMES_MAX {
                self.old_frames.pop_front();
            }
            self.old_frames.push_back(frame.to_vec());
        }
        if self.happens(conditions.corrupt_ppm) {
            sent.is_corrupt = corrupt(&mut self.rng, &mut sent.frame);
        }
        arrive(sent);
    }

    /// Time at which the frame has passed the rate limit, after the queued frames; `None` if the queue is full.
    fn leave_queue(&mut self, now: Time, bytes: u64) -> Option<Time> {
        let conditions = self.conditions;
        if conditions.bits_per_s == 0 {
            return Some(now);
        }
        let ns_of = |bytes: u64| u128::from(bytes) * 8_000_000_000 / u128::from(conditions.bits_per_s);
        let backlog = u128::from(self.free_at.since(now).as_nanos() as u64); // fits: the queue is bounded
        if backlog > ns_of(conditions.queue_bytes_max) {
            return None;
        }
        let transmission_time = Duration::from_nanos(ns_of(bytes + OVERHEAD_BYTES) as u64); // fits: one frame
        self.free_at = self.free_at.max(now) + transmission_time;
        Some(self.free_at)
    }
}

/// Flips one or two bits of an IP packet; returns false if the frame has none. A checksum always detects
/// this: two flips in the same column of 16-bit words could cancel out, and are avoided. An IPv6 header has no checksum, so
/// that only the segment behind it is damaged.
pub fn corrupt(rng: &mut Rng, frame: &mut [u8]) -> bool {
    let Some(kind) = frame.get(12..14) else { return false };
    let is_ipv4 = *kind == ethernet::KIND_IPV4.to_be_bytes();
    let ip_bytes = if is_ipv4 { IPV4_BYTES } else { ipv6::HEADER_BYTES };
    if !is_ipv4 && *kind != ethernet::KIND_IPV6.to_be_bytes() || frame.len() <= ETHERNET_BYTES + ip_bytes {
        return false;
    }
    let header_bits = (FIRST_ALTERED as u64 * 8, (ETHERNET_BYTES + ip_bytes) as u64 * 8);
    // No checksum covers bytes after the packet.
    let word = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let packet_bytes = if is_ipv4 { word(16) } else { ipv6::HEADER_BYTES + word(18) };
    let end = frame.len().min(ETHERNET_BYTES + packet_bytes).max(ETHERNET_BYTES + ip_bytes + 1);
    let segment_bits = (header_bits.1, end as u64 * 8);
    // Both bits are covered by the same checksum.
    let (low, end) = if rng.chance(1, 4) && is_ipv4 { header_bits } else { segment_bits };
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

    fn send(path: &mut Path, now: u64, frame: &[u8]) -> Vec<Arrival> {
        let mut all = Vec::new();
        path.send(Time(now), frame, |arrival| all.push(arrival));
        all
    }

    #[test]
    fn clear_path_only_delays_frames() {
        let mut path = path(clear());
        for n in 0..100_u8 {
            let arrivals = send(&mut path, u64::from(n), &[n; 60]);
            assert_eq!(arrivals.len(), 1);
            assert_eq!((arrivals[0].at, &arrivals[0].frame[..]), (Time(u64::from(n) + 5 * MS), &[n; 60][..]));
        }
    }

    #[test]
    fn loss_duplication_and_reordering_have_the_configured_rates() {
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
            let all = send(&mut path, n * 20 * MS, &[0; 60]);
            arrivals += all.len();
            late += all.iter().filter(|arrival| arrival.at > Time(n * 20 * MS + 5 * MS)).count();
        }
        assert!((900..1100).contains(&path.lost), "{}", path.lost);
        assert!((9_300..9_600).contains(&arrivals), "{arrivals}");
        assert!((1_900..2_500).contains(&late), "{late}");
    }

    #[test]
    fn rate_limit_delays_frames_and_bounds_the_queue() {
        let conditions = Conditions { bits_per_s: 8_000_000, queue_bytes_max: 10_000, ..clear() };
        let mut path = path(conditions);
        let arrival_times: Vec<_> =
            (0..20).flat_map(|_| send(&mut path, 0, &[0; 976])).map(|arrival| arrival.at.0).collect();
        // At 8 Mbit/s, a frame of 976 bytes and 24 bytes of overhead takes 1 ms.
        assert_eq!(arrival_times, (1..=11).map(|n| n * MS + 5 * MS).collect::<Vec<_>>());
        assert_eq!(path.overflowed, 9);
        assert_eq!(
            send(&mut path, 100 * MS, &[0; 976])[0].at,
            Time(106 * MS),
            "idle time should not allow a later burst"
        );
    }

    #[test]
    fn cut_path_loses_every_frame() {
        let mut path = path(clear());
        path.is_cut = true;
        assert!(send(&mut path, 0, &[0; 60]).is_empty());
        path.is_cut = false;
        assert_eq!(send(&mut path, 0, &[0; 60]).len(), 1);
    }

    #[test]
    fn replayed_frames_are_unaltered() {
        let mut path = path(Conditions { replay_ppm: 300_000, ..clear() });
        let mut old = 0;
        for n in 0..200_u8 {
            for arrival in send(&mut path, u64::from(n) * MS, &[n; 60]) {
                assert_eq!(arrival.frame, vec![arrival.frame[0]; 60]);
                old += usize::from(arrival.frame[0] != n);
            }
        }
        assert!((30..90).contains(&old), "{old}");
    }
}

//! Injects faults by a seed into another device's frames: loss, duplication, reordering and flipped bits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use spillway_parts::Random;

use crate::device::{Device, FRAME_BYTES_MAX, send};

/// Maximum frames held back in one direction. While the maximum is held, other frames pass in order.
const HELD_MAX: usize = 64;

/// The faults to inject. Shares are from 0 to 1 and apply to each frame in each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultsOptions {
    /// The same seed and frames give the same faults.
    pub seed: u64,
    /// Share of frames that are lost.
    pub loss: f64,
    /// Share of frames that arrive twice.
    pub duplication: f64,
    /// Share of frames that are held back until up to [`reordering_frames`](Self::reordering_frames) later ones have passed.
    pub reordering: f64,
    /// Maximum number of frames that overtake a held frame. When the device waits, all held frames arrive.
    pub reordering_frames: usize,
    /// Share of frames in which one bit after the Ethernet header is flipped.
    pub corruption: f64,
}

/// Numbers of injected faults, for both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faulted {
    /// Frames in total, with and without faults.
    pub seen: u64,
    /// Frames lost.
    pub lost: u64,
    /// Frames duplicated.
    pub duplicated: u64,
    /// Frames held back.
    pub reordered: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
}

/// A device that injects faults into the frames of another device.
#[derive(Debug)]
pub struct Faults<D> {
    device: D,
    options: FaultsOptions,
    faulted: Faulted,
    inward: Direction,
    outward: Direction,
    /// The frame that [`Device::receive`] lends, unless it is lent by the inner device.
    received: Box<[u8]>,
    slot: Box<[u8]>,
    /// Whether the inner device has lent the present slot, whose frame then has no faults.
    is_slot_lent: bool,
}

impl<D: Device> Faults<D> {
    /// Injects faults into the frames of `device`.
    pub fn new(device: D, options: FaultsOptions) -> Faults<D> {
        let (inward, outward) = (Direction::new(options.seed, 1), Direction::new(options.seed, 2));
        Faults {
            device,
            options,
            faulted: Faulted::default(),
            inward,
            outward,
            received: Box::default(),
            slot: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            is_slot_lent: false,
        }
    }

    /// Numbers of injected faults so far.
    pub fn faulted(&self) -> Faulted {
        self.faulted
    }

    /// Changes the faults of later frames. Frames that are held back stay so.
    pub fn set_options(&mut self, options: FaultsOptions) {
        self.options = options;
    }

    /// Returns the inner device. Frames that are held back are lost.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Number of frames that are held back, in both directions.
    pub fn held(&self) -> usize {
        self.inward.held.len() + self.outward.held.len()
    }

    /// Sends the passed frames on the inner device. Returns `false` if it did not accept one.
    fn send_passed(&mut self) -> io::Result<bool> {
        let mut all_sent = true;
        while let Some(frame) = self.outward.passed.pop_front() {
            all_sent &= send(&mut self.device, &frame)?;
        }
        Ok(all_sent)
    }
}

impl<D: Device> Device for Faults<D> {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            if let Some(frame) = self.inward.passed.pop_front() {
                self.received = frame;
                return Ok(Some(&self.received));
            }
            if self.inward.is_clear(&self.options) {
                let frame = self.device.receive()?;
                self.faulted.seen += u64::from(frame.is_some());
                return Ok(frame);
            }
            let Some(frame) = self.device.receive()? else { return Ok(None) };
            self.inward.pass(frame, &self.options, &mut self.faulted);
        }
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        self.is_slot_lent = self.outward.is_clear(&self.options);
        if self.is_slot_lent { self.device.transmit() } else { Ok(Some(&mut self.slot)) }
    }

    /// Returns `true` for a frame that a fault has dropped, as for a sent one.
    fn commit(&mut self, length: usize) -> io::Result<bool> {
        if self.is_slot_lent {
            self.faulted.seen += 1;
            return self.device.commit(length);
        }
        self.outward.pass(&self.slot[..length], &self.options, &mut self.faulted);
        self.send_passed()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.device.flush()
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        self.outward.release();
        self.send_passed()?;
        self.inward.release();
        if self.inward.passed.is_empty() { self.device.wait(timeout, wakes) } else { Ok(false) }
    }
}

#[derive(Debug)]
struct Direction {
    random: Random,
    passed: VecDeque<Box<[u8]>>,
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    frame: Box<[u8]>,
    /// Number of frames that still pass before this one.
    frames: usize,
}

impl Direction {
    fn new(seed: u64, number: u64) -> Direction {
        let random = Random::new(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(number));
        Direction { random, passed: VecDeque::new(), held: Vec::new() }
    }

    fn pass(&mut self, frame: &[u8], options: &FaultsOptions, faulted: &mut Faulted) {
        faulted.seen += 1;
        // The number of draws is constant, so that changing one share does not change the other faults.
        let [loss, duplication, reordering, corruption] =
            [options.loss, options.duplication, options.reordering, options.corruption]
                .map(|share| self.random.unit() < share);
        let (bit, behind) = (self.random.word(), self.random.word());
        if loss {
            faulted.lost += 1;
        } else {
            let mut frame: Box<[u8]> = frame[..frame.len().min(FRAME_BYTES_MAX)].into();
            faulted.corrupted += u64::from(corruption && flip(&mut frame, bit));
            if duplication {
                faulted.duplicated += 1;
                self.passed.push_back(frame.clone());
            }
            if reordering && options.reordering_frames > 0 && self.held.len() < HELD_MAX {
                faulted.reordered += 1;
                let frames = 1 + (behind % options.reordering_frames as u64) as usize; // at most `reordering_frames`
                // One more, because the loop below counts this frame, too.
                self.held.push(Held { frame, frames: frames + 1 });
            } else {
                self.passed.push_back(frame);
            }
        }
        for held in &mut self.held {
            held.frames -= 1;
        }
        self.passed.extend(self.held.extract_if(.., |held| held.frames == 0).map(|held| held.frame));
    }

    /// Whether the next frame passes unchanged and no other frame precedes it: then it need not be copied.
    fn is_clear(&self, options: &FaultsOptions) -> bool {
        let shares = [options.loss, options.duplication, options.reordering, options.corruption];
        shares == [0.0; 4] && self.held.is_empty() && self.passed.is_empty()
    }

    fn release(&mut self) {
        self.passed.extend(self.held.drain(..).map(|held| held.frame));
    }
}

/// Flips one bit after the Ethernet header, where checksums can detect it. Returns `false` for a frame without payload.
fn flip(frame: &mut [u8], bit: u64) -> bool {
    let Some(packet) = frame.get_mut(14..).filter(|packet| !packet.is_empty()) else { return false };
    let bits = packet.len() as u64 * 8;
    let bit = (bit % bits) as usize; // fits: a frame has fewer than 2^20 bits
    packet[bit / 8] ^= 1 << (bit % 8);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ring;

    /// Passes numbered frames through faults. Returns each arrived number and whether a bit was flipped.
    fn through(options: FaultsOptions, frames: u16, inward: bool) -> (Vec<(u16, bool)>, Faulted) {
        let (near, mut far) = Ring::pair(2 * usize::from(frames));
        let mut faults = Faults::new(near, options);
        for number in 0..frames {
            let [high, low] = number.to_be_bytes();
            let mut frame = [0x55; 64];
            (frame[0], frame[1]) = (high, low);
            let sender: &mut dyn Device = if inward { &mut far } else { &mut faults };
            assert!(send(sender, &frame).unwrap());
        }
        let mut arrived = Vec::new();
        for _ in 0..2 {
            let receiver: &mut dyn Device = if inward { &mut faults } else { &mut far };
            while let Some(frame) = receiver.receive().unwrap() {
                assert_eq!(frame.len(), 64);
                let is_flipped = frame[14..].iter().any(|byte| *byte != 0x55);
                arrived.push((u16::from_be_bytes([frame[0], frame[1]]), is_flipped));
            }
            faults.wait(None, &[]).unwrap();
        }
        (arrived, faults.faulted())
    }

    #[test]
    fn without_faults_all_frames_arrive_in_order() {
        for inward in [false, true] {
            let (arrived, faulted) = through(FaultsOptions::default(), 100, inward);
            assert_eq!(arrived, (0..100).map(|number| (number, false)).collect::<Vec<_>>());
            assert_eq!(faulted, Faulted { seen: 100, ..Faulted::default() });
        }
    }

    #[test]
    fn each_fault_has_its_share() {
        let all = FaultsOptions {
            seed: 7,
            loss: 0.1,
            duplication: 0.05,
            reordering: 0.2,
            reordering_frames: 4,
            corruption: 0.03,
        };
        for inward in [false, true] {
            let (arrived, faulted) = through(all, 10_000, inward);
            assert_eq!(through(all, 10_000, inward), (arrived.clone(), faulted), "the seed is everything");
            assert_eq!(arrived.len() as u64, 10_000 - faulted.lost + faulted.duplicated);
            for (count, share) in [
                (faulted.lost, 1000),
                (faulted.duplicated, 450),
                (faulted.reordered, 1800),
                (faulted.corrupted, 270),
            ] {
                assert!(count.abs_diff(share) < share / 4, "{faulted:?}");
            }
            let flipped = arrived.iter().filter(|(_, is_flipped)| *is_flipped).count() as u64;
            assert!(flipped >= faulted.corrupted, "what was duplicated has its flipped bit twice");
        }
    }

    #[test]
    fn frames_are_held_back_by_at_most_reordering_frames() {
        let options = FaultsOptions { reordering: 0.3, reordering_frames: 3, ..FaultsOptions::default() };
        let (arrived, faulted) = through(options, 1000, false);
        let mut sorted = arrived.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).map(|number| (number, false)).collect::<Vec<_>>(), "none is lost");
        assert!(arrived != sorted && faulted.reordered > 200, "{faulted:?}");
        for (place, (number, _)) in arrived.iter().enumerate() {
            assert!(usize::from(*number).abs_diff(place) <= 2 * 3, "{number} arrived as {place}");
        }
    }
}

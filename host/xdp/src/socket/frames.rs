//! Free frames, and a check that each frame is in one place.
//!
//! The first half of the frames receives, the second half sends. A frame is with the kernel (in one of the
//! four rings or in the driver), lent to the caller, or free. Debug builds count them.

use super::address_of;
use crate::frame_bytes::FRAME_BYTES;

#[derive(Debug)]
pub(super) struct Frames {
    /// Number of frames of each half.
    half: u32,
    /// Free frames for sending, as a stack: the last one returned is still in the CPU's cache.
    free: Vec<u64>,
    #[cfg(debug_assertions)]
    with_kernel: Vec<bool>,
    /// Number of frames of each half that are with the kernel.
    #[cfg(debug_assertions)]
    kernels: [u32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotWithKernel {
    address: u64,
}

impl std::fmt::Display for NotWithKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the kernel returned a frame at {}, which it did not have", self.address)
    }
}

impl std::error::Error for NotWithKernel {}

impl Frames {
    /// All frames of the receiving half are with the kernel, all others are free.
    pub(super) fn new(half: u32) -> Frames {
        Frames {
            half,
            free: (half..2 * half).rev().map(address_of).collect(),
            #[cfg(debug_assertions)]
            with_kernel: (0..2 * half).map(|frame| frame < half).collect(),
            #[cfg(debug_assertions)]
            kernels: [half, 0],
        }
    }

    /// Checks the number of frames of each half. `lent`, `slots`: received and sent ones that the caller has.
    #[cfg_attr(
        not(debug_assertions),
        expect(unused_variables, reason = "only builds with debug assertions count")
    )]
    pub(super) fn check_count(&self, lent: u32, slots: u32) {
        #[cfg(debug_assertions)]
        {
            let free = self.free.len() as u32; // at most half
            let counted = [self.kernels[0] + lent, self.kernels[1] + free + slots];
            debug_assert_eq!(counted, [self.half; 2], "each frame is in one place");
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    pub(super) fn allocate(&mut self) -> Option<u64> {
        self.free.pop()
    }

    /// Records that the kernel gets a frame.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "only the check uses it"))]
    pub(super) fn give(&mut self, address: u64) {
        #[cfg(debug_assertions)]
        {
            let was_with_kernel = std::mem::replace(&mut self.with_kernel[frame_of(address) as usize], true);
            debug_assert!(!was_with_kernel, "a frame is in one place: {address}");
            self.kernels[usize::from(frame_of(address) >= u64::from(self.half))] += 1;
        }
    }

    /// Takes a received frame from the kernel. `address`: the packet's. Returns that of the frame's first
    /// byte.
    pub(super) fn take(&mut self, address: u64) -> Result<u64, NotWithKernel> {
        self.returned(address, 0)
    }

    pub(super) fn free(&mut self, address: u64) -> Result<(), NotWithKernel> {
        let address = self.returned(address, self.half)?;
        self.free.push(address);
        Ok(())
    }

    /// Checks that `address` is in the half that begins with frame `first`. Returns its frame's address.
    fn returned(&mut self, address: u64, first: u32) -> Result<u64, NotWithKernel> {
        let frame = frame_of(address);
        if !(u64::from(first)..u64::from(first + self.half)).contains(&frame) {
            return Err(NotWithKernel { address });
        }
        #[cfg(debug_assertions)]
        if !std::mem::replace(&mut self.with_kernel[frame as usize], false) {
            return Err(NotWithKernel { address });
        }
        #[cfg(debug_assertions)]
        {
            self.kernels[usize::from(first > 0)] -= 1;
        }
        Ok(frame * FRAME_BYTES as u64)
    }
}

fn frame_of(address: u64) -> u64 {
    address / FRAME_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_for_sending_return_in_any_order() {
        let mut frames = Frames::new(2);
        let (first, second) = (frames.allocate().unwrap(), frames.allocate().unwrap());
        assert_eq!((frames.allocate(), frames.is_empty()), (None, true));
        frames.give(first);
        frames.give(second);
        frames.free(second).unwrap();
        frames.free(first).unwrap();
        assert_eq!([frames.allocate(), frames.allocate()], [Some(first), Some(second)]);
    }

    #[test]
    fn all_frames_are_accounted_for_wherever_they_are() {
        let mut frames = Frames::new(2);
        frames.check_count(0, 0);
        let received = frames.take(0).unwrap();
        let slot = frames.allocate().unwrap();
        frames.check_count(1, 1);
        frames.give(received);
        frames.give(slot);
        frames.check_count(0, 0);
        frames.free(slot).unwrap();
        frames.check_count(0, 0);
        if cfg!(debug_assertions) {
            frames.allocate().unwrap();
            let lost = std::panic::catch_unwind(|| frames.check_count(0, 0));
            assert!(lost.is_err(), "a frame that is nowhere");
        }
    }

    #[test]
    fn a_received_packet_may_begin_anywhere_in_its_frame() {
        let mut frames = Frames::new(2);
        assert_eq!(frames.take(2048 + 256), Ok(2048));
        frames.give(2048);
        assert_eq!(frames.take(2048), Ok(2048));
    }

    #[test]
    fn frames_that_the_kernel_does_not_have_are_refused() {
        let mut frames = Frames::new(2);
        assert!(frames.take(2 * 2048).is_err(), "a frame for sending was received");
        assert!(frames.free(0).is_err(), "a frame for receiving was sent");
        assert!(frames.take(4 * 2048).is_err(), "outside the memory");
        if cfg!(debug_assertions) {
            frames.take(0).unwrap();
            assert!(frames.take(0).is_err(), "received twice");
        }
    }
}

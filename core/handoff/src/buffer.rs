//! Frames of a flow that arrive before the flow's connection.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::budget::{Budget, Share};

/// Maximum number of frames of one flow.
const FRAMES_MAX: usize = 256;
/// Maximum total length of one flow's frames, in bytes.
const BYTES_MAX: usize = 1 << 20;

/// Frames in order of arrival. Frames beyond the limits are dropped; TCP retransmits their bytes.
#[derive(Debug)]
pub(crate) struct HeldFrames {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    share: Share,
}

impl HeldFrames {
    /// `budget` bounds the frames of all flows together.
    pub(crate) fn new(budget: &Budget) -> HeldFrames {
        HeldFrames { frames: VecDeque::new(), bytes: 0, share: budget.share() }
    }

    /// Keeps a frame. Returns false, and drops the frame, if a limit is reached.
    pub(crate) fn push(&mut self, frame: &[u8]) -> bool {
        let has_room = self.frames.len() < FRAMES_MAX
            && self.bytes + frame.len() <= BYTES_MAX
            && self.share.grow(frame.len());
        if has_room {
            self.bytes += frame.len();
            self.frames.push_back(frame.to_vec());
        }
        has_room
    }

    /// Removes and returns all frames.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        self.bytes = 0;
        self.share.clear();
        core::mem::take(&mut self.frames).into()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn frames_keep_their_order_and_have_a_bound() {
        let budget = Budget::new(10 << 20);
        let mut held = HeldFrames::new(&budget);
        for n in 0..FRAMES_MAX {
            assert!(held.push(&[n as u8; 60]));
        }
        assert!(!held.push(&[0; 60]));
        let frames = held.take();
        assert_eq!((frames.len(), budget.used()), (FRAMES_MAX, 0));
        assert!(frames.iter().enumerate().all(|(n, frame)| frame[0] == n as u8));
        let large = vec![0; BYTES_MAX / 2];
        assert!(held.push(&large) && held.push(&large) && !held.push(&[0]));
    }

    #[test]
    fn frames_of_all_flows_are_bounded_together() {
        let budget = Budget::new(100);
        let (mut a, mut b) = (HeldFrames::new(&budget), HeldFrames::new(&budget));
        assert!(a.push(&[0; 60]) && !b.push(&[0; 60]) && b.push(&[0; 40]));
        drop(a);
        assert!(b.push(&[0; 60]));
    }
}

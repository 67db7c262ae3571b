//! Frames of a flow that arrive at the target of a move before the connection does.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

const FRAMES_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;

/// A received frame, and whether its path has damaged it.
pub type Held = (Vec<u8>, bool);

/// Frames in order of arrival. Further ones are dropped, and TCP sends their bytes again.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldFrames {
    frames: VecDeque<Held>,
    bytes: usize,
}

impl HeldFrames {
    /// Keeps a frame. Returns false if there is no room for it.
    pub(crate) fn push(&mut self, frame: &[u8], is_damaged: bool) -> bool {
        let has_room = self.frames.len() < FRAMES_MAX && self.bytes + frame.len() <= BYTES_MAX;
        if has_room {
            self.bytes += frame.len();
            self.frames.push_back((frame.to_vec(), is_damaged));
        }
        has_room
    }

    pub(crate) fn take(&mut self) -> Vec<Held> {
        self.bytes = 0;
        core::mem::take(&mut self.frames).into()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn frames_keep_their_order_and_have_a_bound() {
        let mut held = HeldFrames::default();
        for n in 0..FRAMES_MAX {
            assert!(held.push(&[n as u8; 60], n == 3));
        }
        assert!(!held.push(&[0; 60], false));
        let frames = held.take();
        assert_eq!(frames.len(), FRAMES_MAX);
        assert!(
            frames
                .iter()
                .enumerate()
                .all(|(n, (frame, damaged))| frame[0] == n as u8 && *damaged == (n == 3))
        );
        let large = vec![0; BYTES_MAX / 2];
        assert!(held.push(&large, false) && held.push(&large, false) && !held.push(&[0], false));
    }
}

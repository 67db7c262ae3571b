//! A cable in memory: two queues of frames. For tests, and for experiments without the cost of a real device.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use crate::device::{Device, Stop};

/// Maximum bytes of a frame: an Ethernet header, and a packet at an MTU of 9,000.
const FRAME_BYTES: usize = 14 + 9_000;

/// One end of the cable. Both ends belong to one thread, so [`wait`](Device::wait) returns at once.
#[derive(Debug)]
pub struct Ring {
    from: Rc<RefCell<Queue>>,
    to: Rc<RefCell<Queue>>,
}

impl Ring {
    /// Both ends of a cable that holds up to `frames` frames in each direction.
    pub fn pair(frames: usize) -> (Ring, Ring) {
        let queue = || Rc::new(RefCell::new(Queue::new(frames)));
        let (there, back) = (queue(), queue());
        (Ring { from: Rc::clone(&back), to: Rc::clone(&there) }, Ring { from: there, to: back })
    }

    /// Number of received frames that wait in this end's queue.
    pub fn waiting(&self) -> usize {
        self.from.borrow().count
    }
}

impl Device for Ring {
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.from.borrow_mut().pop(buffer))
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        Ok(self.to.borrow_mut().push(frame))
    }

    /// Returns at once: no frame can arrive while this thread waits.
    fn wait(&mut self, _timeout: Option<Duration>, _stop: &Stop) -> io::Result<()> {
        Ok(())
    }
}

/// A bounded first-in first-out queue with preallocated slots.
#[derive(Debug)]
struct Queue {
    slots: Box<[Slot]>,
    first: usize,
    count: usize,
}

#[derive(Debug)]
struct Slot {
    bytes: Box<[u8]>,
    length: usize,
}

impl Queue {
    fn new(frames: usize) -> Queue {
        let slot = || Slot { bytes: vec![0; FRAME_BYTES].into_boxed_slice(), length: 0 };
        Queue { slots: (0..frames).map(|_| slot()).collect(), first: 0, count: 0 }
    }

    /// Returns `false` if the queue is full or the frame is longer than a slot.
    fn push(&mut self, frame: &[u8]) -> bool {
        if self.count == self.slots.len() || frame.len() > FRAME_BYTES {
            return false;
        }
        let at = (self.first + self.count) % self.slots.len();
        let slot = &mut self.slots[at];
        slot.bytes[..frame.len()].copy_from_slice(frame);
        slot.length = frame.len();
        self.count += 1;
        true
    }

    /// Moves the first frame to `buffer`, cut to its length.
    fn pop(&mut self, buffer: &mut [u8]) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let slot = &self.slots[self.first];
        let length = slot.length.min(buffer.len());
        buffer[..length].copy_from_slice(&slot.bytes[..length]);
        self.first = (self.first + 1) % self.slots.len();
        self.count -= 1;
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_keep_their_order_up_to_the_bound() {
        let (mut near, mut far) = Ring::pair(3);
        let mut buffer = [0; 64];
        for round in 0..5_u8 {
            for number in 0..3 {
                assert!(near.send(&[round, number]).unwrap());
            }
            assert!(!near.send(&[9]).unwrap(), "full");
            assert_eq!((far.waiting(), near.waiting()), (3, 0));
            for number in 0..3 {
                assert_eq!(far.recv(&mut buffer).unwrap(), Some(2));
                assert_eq!(buffer[..2], [round, number]);
            }
            assert_eq!(far.recv(&mut buffer).unwrap(), None);
        }
        assert!(far.send(&[0; FRAME_BYTES]).unwrap() && !far.send(&[0; FRAME_BYTES + 1]).unwrap());
        assert_eq!(near.recv(&mut buffer).unwrap(), Some(64), "cut to the buffer");
        let (mut none, _far) = Ring::pair(0);
        assert!(!none.send(&[1]).unwrap());
    }
}

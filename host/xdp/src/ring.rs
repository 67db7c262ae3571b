//! A cable in memory: two queues of frames, for tests and for experiments without the cost of a real device.

use std::cell::RefCell;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use crate::device::Device;

/// Maximum bytes of a frame: an Ethernet header, and a packet at an MTU of 9,000.
const FRAME_BYTES: usize = 14 + 9_000;

/// One end of the cable. Both ends belong to one thread, so [`wait`](Device::wait) returns at once. Frames
/// are not copied: an end exchanges its own slots with those of the queues.
#[derive(Debug)]
pub struct Ring {
    from: Rc<RefCell<Queue>>,
    to: Rc<RefCell<Queue>>,
    received: Slot,
    slot: Slot,
}

impl Ring {
    /// Both ends of a cable that can hold `frames` frames in each direction.
    pub fn pair(frames: usize) -> (Ring, Ring) {
        let queue = || Rc::new(RefCell::new(Queue::new(frames)));
        let (there, back) = (queue(), queue());
        (Ring::new(Rc::clone(&back), Rc::clone(&there)), Ring::new(there, back))
    }

    fn new(from: Rc<RefCell<Queue>>, to: Rc<RefCell<Queue>>) -> Ring {
        Ring { from, to, received: Slot::new(), slot: Slot::new() }
    }

    /// Number of frames in this end's receive queue.
    pub fn waiting(&self) -> usize {
        self.from.borrow().count
    }
}

impl Device for Ring {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        let is_received = self.from.borrow_mut().pop(&mut self.received);
        Ok(is_received.then(|| &self.received.bytes[..self.received.length]))
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        Ok(Some(&mut self.slot.bytes))
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        self.slot.length = length;
        Ok(self.to.borrow_mut().push(&mut self.slot))
    }

    /// Does nothing: [`commit`](Self::commit) has sent the frames.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns at once: no frame can arrive while this thread waits.
    fn wait(&mut self, _timeout: Option<Duration>, _wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        Ok(false)
    }
}

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

impl Slot {
    fn new() -> Slot {
        Slot { bytes: vec![0; FRAME_BYTES].into_boxed_slice(), length: 0 }
    }
}

impl Queue {
    fn new(frames: usize) -> Queue {
        Queue { slots: (0..frames).map(|_| Slot::new()).collect(), first: 0, count: 0 }
    }

    /// Exchanges `frame` with the next free slot. Returns `false` if the queue is full.
    fn push(&mut self, frame: &mut Slot) -> bool {
        if self.count == self.slots.len() {
            return false;
        }
        let at = (self.first + self.count) % self.slots.len();
        std::mem::swap(&mut self.slots[at], frame);
        self.count += 1;
        true
    }

    /// Exchanges the first frame with `slot`. Returns `false` if the queue is empty.
    fn pop(&mut self, slot: &mut Slot) -> bool {
        if self.count == 0 {
            return false;
        }
        std::mem::swap(&mut self.slots[self.first], slot);
        self.first = (self.first + 1) % self.slots.len();
        self.count -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send;

    #[test]
    fn frames_keep_their_order_up_to_the_bound() {
        let (mut near, mut far) = Ring::pair(3);
        for round in 0..5_u8 {
            for number in 0..3 {
                assert!(send(&mut near, &[round, number]).unwrap());
            }
            assert!(!send(&mut near, &[9]).unwrap(), "full");
            assert_eq!((far.waiting(), near.waiting()), (3, 0));
            for number in 0..3 {
                assert_eq!(far.receive().unwrap(), Some(&[round, number][..]));
            }
            assert_eq!(far.receive().unwrap(), None);
        }
        assert!(send(&mut far, &[0; FRAME_BYTES]).unwrap());
        assert!(!send(&mut far, &[0; FRAME_BYTES + 1]).unwrap(), "longer than a slot");
        let (mut no_room, _far) = Ring::pair(0);
        assert!(!send(&mut no_room, &[1]).unwrap());
    }
}

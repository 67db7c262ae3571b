//! Paths: how far a frame goes through the engine before it is answered.

use std::collections::VecDeque;

use spillway_transport::Time;
use spillway_xdp::{Crossing, Endpoint};

/// The longest frame of a client: headers with timestamps, and a message.
const FRAME_BYTES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    /// Each frame is sent back as it is, with both ends exchanged.
    Driver,
    /// [`Path::Driver`], and a copy of each frame crosses to another thread.
    Crossing,
    /// The stack acknowledges each request, and its application answers with the same bytes.
    Stack,
    /// The relay passes requests to a server in batches, and its replies to the clients.
    Relay,
}

impl Path {
    pub fn name(self) -> &'static str {
        match self {
            Path::Driver => "driver",
            Path::Crossing => "driver and crossing",
            Path::Stack => "driver and stack",
            Path::Relay => "driver, stack and relay",
        }
    }
}

/// Exchanges source and target of an IPv4 frame with ports: Ethernet addresses, IP addresses and ports. Both checksums stay
/// valid, because they are sums.
pub(super) fn exchange_ends(frame: &mut [u8]) {
    const ENDS: [(usize, usize, usize); 3] = [(0, 6, 6), (26, 30, 4), (34, 36, 2)];
    if frame.len() < 38 {
        return;
    }
    for (first, second, length) in ENDS {
        let (head, tail) = frame.split_at_mut(second);
        head[first..first + length].swap_with_slice(&mut tail[..length]);
    }
}

/// Sends each frame back in the same turn. Copies each frame twice, because the device lends a received frame only until
/// the next one.
#[derive(Default)]
pub(super) struct Reflect {
    waiting: VecDeque<([u8; FRAME_BYTES_MAX], usize)>,
}

impl Endpoint for Reflect {
    fn begin_turn(&mut self, _now: Time) {}

    fn deliver(&mut self, _now: Time, frame: &[u8]) {
        // Longer frames are not from clients.
        if frame.len() <= FRAME_BYTES_MAX {
            let mut copy = [0; FRAME_BYTES_MAX];
            copy[..frame.len()].copy_from_slice(frame);
            self.waiting.push_back((copy, frame.len()));
        }
    }

    fn end_turn(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, slot: &mut [u8]) -> Option<usize> {
        let (mut frame, length) = self.waiting.pop_front()?;
        exchange_ends(&mut frame[..length]);
        slot[..length].copy_from_slice(&frame[..length]);
        Some(length)
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

/// [`Reflect`], and a copy of each frame for the thread to which [`Crossing`] assigns its port.
pub(super) struct ReflectAndCross {
    pub reflect: Reflect,
    pub crossing: Crossing,
}

impl Endpoint for ReflectAndCross {
    fn begin_turn(&mut self, now: Time) {
        self.reflect.begin_turn(now);
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        self.crossing.pass(frame);
        self.reflect.deliver(now, frame);
    }

    fn end_turn(&mut self, now: Time) {
        self.reflect.end_turn(now);
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        self.reflect.poll_transmit(now, slot)
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

#[cfg(test)]
mod tests {
    use spillway_xdp::{Device, Driver, Ring, send};

    use super::*;
    use crate::experiments::common::script::{CLIENT_MAC, Client, PORT, STACK_MAC, port_of, target_of};

    #[test]
    fn a_reflected_frame_goes_back_to_its_sender() {
        let mut client = Client::new(3);
        let mut frame = [0; FRAME_BYTES_MAX];
        let length = client.message(&mut frame);
        let frame = &frame[..length];
        assert_eq!((target_of(frame), port_of(frame)), (Some(STACK_MAC), Some(PORT)));
        let (near, mut far) = Ring::pair(4);
        assert!(send(&mut far, frame).unwrap());
        assert!(send(&mut far, &[9; FRAME_BYTES_MAX + 1]).unwrap(), "not a client's");
        let mut driver = Driver::new(near);
        driver.turn(Time(1), &mut Reflect::default()).unwrap();
        let mut back = far.receive().unwrap().unwrap().to_vec();
        assert_eq!((target_of(&back), port_of(&back)), (Some(CLIENT_MAC), Some(client.port())));
        exchange_ends(&mut back);
        assert_eq!(back, frame);
        assert_eq!(far.receive().unwrap(), None);
        exchange_ends(&mut [0; 37]);
    }
}

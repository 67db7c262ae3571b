//! Frames that arrive on another queue than that of their connection's stack.
//!
//! The interface's hash chooses the queue on which a connection's frames arrive. Each stack opens connections from
//! ports of its own, so a frame's target port identifies its stack; a bounded queue takes the frame to that stack's
//! thread.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use spillway_transport::Time;
use spillway_xdp::Endpoint;

use crate::Error;
use crate::worker::{wake, wake_fd};

/// Maximum of frames that wait for one thread. Further frames are dropped, and their senders retransmit them.
const FRAMES_MAX: usize = 4096;

/// One thread's end of the queues between threads.
#[derive(Debug)]
pub(super) struct Forwarding {
    own: usize,
    arriving: Receiver<Vec<u8>>,
    /// Eventfd that is readable when a frame may have arrived.
    arrived: Arc<OwnedFd>,
    /// The sending ends of all threads' queues, by the thread's number.
    peers: Vec<Peer>,
}

#[derive(Clone, Debug)]
struct Peer {
    ports: RangeInclusive<u16>,
    frames: SyncSender<Vec<u8>>,
    arrived: Arc<OwnedFd>,
    /// Frames were sent in this turn.
    must_wake: bool,
}

impl Forwarding {
    /// Connects threads whose stacks have these ports. Returns each thread's end.
    pub(super) fn between(ports: &[RangeInclusive<u16>]) -> Result<Vec<Forwarding>, Error> {
        let mut peers = Vec::with_capacity(ports.len());
        let mut ends = Vec::with_capacity(ports.len());
        for ports in ports {
            let (frames, arriving) = sync_channel(FRAMES_MAX);
            let arrived = Arc::new(wake_fd()?);
            peers.push(Peer { ports: ports.clone(), frames, arrived: arrived.clone(), must_wake: false });
            ends.push((arriving, arrived));
        }
        let end = |(own, (arriving, arrived))| Forwarding { own, arriving, arrived, peers: peers.clone() };
        Ok(ends.into_iter().enumerate().map(end).collect())
    }

    /// Sends the frame if its target port is another thread's. Returns false for all other frames.
    fn forward(&mut self, frame: &[u8]) -> bool {
        let Some(port) = target_port(frame) else { return false };
        let found = self.peers.iter_mut().enumerate().find(|(_, peer)| peer.ports.contains(&port));
        match found {
            Some((thread, peer)) if thread != self.own => {
                // A full queue drops the frame, as a full ring would.
                peer.must_wake |= peer.frames.try_send(frame.to_vec()).is_ok();
                true
            }
            _ => false,
        }
    }

    /// Resets the eventfd. Call it after each wait, before the turn that takes the frames.
    pub(super) fn waited(&self) {
        // Fails if the wait ended for another reason.
        let _ = rustix::io::read(&self.arrived, &mut [0_u8; 8]);
    }

    fn wake_peers(&mut self) {
        for peer in &mut self.peers {
            if std::mem::take(&mut peer.must_wake) {
                wake(&peer.arrived);
            }
        }
    }
}

impl AsFd for Forwarding {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }
}

/// An endpoint that forwards the frames of other threads.
pub(super) struct Forwarded<'a, E> {
    pub(super) endpoint: &'a mut E,
    pub(super) forwarding: Option<&'a mut Forwarding>,
}

impl<E: Endpoint> Endpoint for Forwarded<'_, E> {
    fn begin_turn(&mut self, now: Time) {
        self.endpoint.begin_turn(now);
        let Some(forwarding) = &mut self.forwarding else { return };
        for frame in forwarding.arriving.try_iter().take(FRAMES_MAX) {
            self.endpoint.deliver(now, &frame);
        }
    }

    fn deliver(&mut self, now: Time, frame: &[u8]) {
        let is_forwarded = self.forwarding.as_mut().is_some_and(|forwarding| forwarding.forward(frame));
        if !is_forwarded {
            self.endpoint.deliver(now, frame);
        }
    }

    fn end_turn(&mut self, now: Time) {
        self.endpoint.end_turn(now);
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.wake_peers();
        }
    }

    fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        self.endpoint.poll_transmit(now, slot)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.endpoint.poll_timeout()
    }
}

/// The target port of an IPv4 frame without a VLAN tag; `None` for other frames.
fn target_port(frame: &[u8]) -> Option<u16> {
    let kind = frame.get(12..14)?;
    let version_and_words = *frame.get(14)?;
    if kind != [0x08, 0x00] || version_and_words >> 4 != 4 {
        return None;
    }
    let at = 14 + usize::from(version_and_words & 0x0f) * 4 + 2;
    frame.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Kept(Vec<Vec<u8>>);

    impl Endpoint for Kept {
        fn begin_turn(&mut self, _now: Time) {}

        fn deliver(&mut self, _now: Time, frame: &[u8]) {
            self.0.push(frame.to_vec());
        }

        fn end_turn(&mut self, _now: Time) {}

        fn poll_transmit(&mut self, _now: Time, _slot: &mut [u8]) -> Option<usize> {
            None
        }

        fn poll_timeout(&self) -> Option<Time> {
            None
        }
    }

    fn frame(options_words: u8, port: u16) -> Vec<u8> {
        let mut frame = vec![0; 14 + usize::from(5 + options_words) * 4 + 20];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45 + options_words;
        let at = 14 + usize::from(5 + options_words) * 4 + 2;
        frame[at..at + 2].copy_from_slice(&port.to_be_bytes());
        frame
    }

    #[test]
    fn a_frame_reaches_the_thread_that_has_its_port() {
        let mut ends = Forwarding::between(&[1000..=1999, 2000..=2999]).unwrap();
        let (mut second, mut first) = (ends.pop().unwrap(), ends.pop().unwrap());
        let (mut at_first, mut at_second) = (Kept::default(), Kept::default());
        let frames = [frame(0, 1000), frame(3, 2000), frame(0, 3000), vec![0; 20], vec![]];
        let mut endpoint = Forwarded { endpoint: &mut at_first, forwarding: Some(&mut first) };
        frames.iter().for_each(|frame| endpoint.deliver(Time::ZERO, frame));
        endpoint.end_turn(Time::ZERO);
        Forwarded { endpoint: &mut at_second, forwarding: Some(&mut second) }.begin_turn(Time::ZERO);
        assert_eq!(at_second.0, [frames[1].clone()]);
        assert_eq!(at_first.0, [0, 2, 3, 4].map(|at: usize| frames[at].clone()));
    }

    #[test]
    fn frames_beyond_the_bound_are_dropped() {
        let mut ends = Forwarding::between(&[1..=1, 2..=2]).unwrap();
        let (mut second, mut first) = (ends.pop().unwrap(), ends.pop().unwrap());
        let frame = frame(0, 2);
        for _ in 0..FRAMES_MAX + 10 {
            assert!(first.forward(&frame));
        }
        let mut kept = Kept::default();
        Forwarded { endpoint: &mut kept, forwarding: Some(&mut second) }.begin_turn(Time::ZERO);
        assert_eq!(kept.0.len(), FRAMES_MAX);
    }
}

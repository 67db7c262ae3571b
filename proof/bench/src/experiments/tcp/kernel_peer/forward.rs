//! A cable between two TAP interfaces: forwards frames in both directions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use spillway_transport::Time;
use spillway_xdp::{Device, Endpoint, Tap, send};

/// An interface whose `wait` also returns when a second interface has a frame.
#[derive(Debug)]
pub struct PairedTap {
    tap: Tap,
    other: OwnedFd,
}

impl PairedTap {
    /// Reads and writes `tap`, and waits for both. Fails if the descriptor of `other` cannot be duplicated.
    pub fn new(tap: Tap, other: &Tap) -> io::Result<PairedTap> {
        let other = other.as_fd().try_clone_to_owned()?;
        Ok(PairedTap { tap, other })
    }

    pub fn into_tap(self) -> Tap {
        self.tap
    }
}

impl Device for PairedTap {
    fn receive(&mut self) -> io::Result<Option<&[u8]>> {
        self.tap.receive()
    }

    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>> {
        self.tap.transmit()
    }

    fn commit(&mut self, length: usize) -> io::Result<bool> {
        self.tap.commit(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tap.flush()
    }

    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool> {
        let all: Vec<_> = std::iter::once(self.other.as_fd()).chain(wakes.iter().copied()).collect();
        self.tap.wait(timeout, &all)
    }
}

/// The second interface of the cable, as the endpoint of the first.
#[derive(Debug)]
pub struct Forward {
    tap: Tap,
    error: Option<io::Error>,
}

impl Forward {
    pub fn new(tap: Tap) -> Forward {
        Forward { tap, error: None }
    }

    /// The interface, or the error that stopped forwarding.
    pub fn into_tap(self) -> io::Result<Tap> {
        self.error.map_or(Ok(self.tap), Err)
    }
}

impl Endpoint for Forward {
    fn begin_turn(&mut self, _now: Time) {}

    fn deliver(&mut self, _now: Time, frame: &[u8]) {
        if let Err(error) = send(&mut self.tap, frame) {
            self.error = Some(error);
        }
    }

    fn end_turn(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, slot: &mut [u8]) -> Option<usize> {
        match self.tap.receive() {
            Ok(frame) => {
                let frame = frame?;
                slot.get_mut(..frame.len())?.copy_from_slice(frame);
                Some(frame.len())
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

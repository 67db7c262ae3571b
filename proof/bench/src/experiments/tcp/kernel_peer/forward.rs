//! A cable between two TAP interfaces: forwards frames in both directions.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use spillway_transport::Time;
use spillway_xdp::{Device, Endpoint, Stop, Tap};

/// An interface whose `wait` also wakes up for frames of a second one.
#[derive(Debug)]
pub struct Watching {
    tap: Tap,
    other: OwnedFd,
}

impl Watching {
    /// Reads and writes `tap`, and waits for both. Fails if the descriptor of `other` cannot be duplicated.
    pub fn new(tap: Tap, other: &Tap) -> io::Result<Watching> {
        let other = other.as_fd().try_clone_to_owned()?;
        Ok(Watching { tap, other })
    }

    pub fn into_tap(self) -> Tap {
        self.tap
    }
}

impl Device for Watching {
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.tap.recv(buffer)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        self.tap.send(frame)
    }

    fn wait(&mut self, timeout: Option<Duration>, stop: &Stop) -> io::Result<()> {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        let mut fds = [
            PollFd::from_borrowed_fd(self.tap.as_fd(), PollFlags::IN),
            PollFd::new(&self.other, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let failed = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        if fds[..2].iter().any(|fd| fd.revents().intersects(failed)) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "a TAP interface was removed"));
        }
        Ok(())
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
        if let Err(error) = self.tap.send(frame) {
            self.error = Some(error);
        }
    }

    fn end_turn(&mut self, _now: Time) {}

    fn poll_transmit(&mut self, _now: Time, slot: &mut [u8]) -> Option<usize> {
        self.tap.recv(slot).unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }
}

//! What carries frames, and how a loop over it is ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Bytes of the longest frame: an Ethernet header, and the largest IP packet.
pub const FRAME_BYTES_MAX: usize = 14 + 65_535;

/// Takes and gives Ethernet frames. Neither call blocks.
pub trait Device {
    /// The next frame that came, into `buffer`, and its length. `None`: there is none at the moment.
    ///
    /// # Errors
    /// The device is gone.
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame. `false`: there was no room, and it is lost, as it may be in any network.
    ///
    /// # Errors
    /// The device is gone.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Waits until a frame may be there, `timeout` has passed, or `stop` is set; may return early. `None` is for ever.
    ///
    /// # Errors
    /// The device is gone.
    fn wait(&mut self, timeout: Option<Duration>, stop: &Stop) -> io::Result<()>;
}

/// Ends a loop from another thread. Clones are the same.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    is_set: AtomicBool,
    /// Readable once it is set.
    wakes: OwnedFd,
}

impl Stop {
    /// One that is not set.
    ///
    /// # Errors
    /// This process has no descriptors left.
    pub fn new() -> io::Result<Stop> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop(Arc::new(Inner { is_set: AtomicBool::new(false), wakes })))
    }

    /// The loop ends after its turn.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        // Fails only at its limit, and then it is readable.
        let _ = rustix::io::write(&self.0.wakes, &1_u64.to_ne_bytes());
    }

    /// Whether it was set.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wakes.as_fd()
    }
}

//! Devices that carry frames, and the flag that ends a loop over one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

/// Maximum bytes of a frame: an Ethernet header, and the largest IP packet.
pub const FRAME_BYTES_MAX: usize = 14 + 65_535;

/// Sends and receives Ethernet frames. [`send`](Self::send) and [`recv`](Self::recv) do not block.
pub trait Device {
    /// Writes the next received frame into `buffer` and returns its length; `None` if no frame is waiting.
    ///
    /// # Errors
    /// The device has failed.
    fn recv(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends a frame. Returns `false` if the device does not accept it: the frame is lost.
    ///
    /// # Errors
    /// The device has failed.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool>;

    /// Waits until a frame may have arrived, `timeout` has passed, or `stop` is set; `None` is no timeout. May return early.
    ///
    /// # Errors
    /// The device has failed.
    fn wait(&mut self, timeout: Option<Duration>, stop: &Stop) -> io::Result<()>;
}

/// Ends a loop from another thread. Clones share one flag.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    is_set: AtomicBool,
    /// An eventfd, readable once the flag is set.
    wakes: OwnedFd,
}

impl Stop {
    /// A flag that is not set.
    ///
    /// # Errors
    /// The process has no file descriptors left.
    pub fn new() -> io::Result<Stop> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop(Arc::new(Inner { is_set: AtomicBool::new(false), wakes })))
    }

    /// Ends the loop after its present turn.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Release);
        // Fails only if the counter is at its maximum; then the descriptor is readable, too.
        let _ = rustix::io::write(&self.0.wakes, &1_u64.to_ne_bytes());
    }

    /// Whether the flag is set.
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wakes.as_fd()
    }
}

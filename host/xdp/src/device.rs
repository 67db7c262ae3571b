//! Devices that carry frames, and a flag that ends a device's loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Maximum bytes of a frame: an Ethernet header and the largest IP packet.
pub const FRAME_BYTES_MAX: usize = 14 + 65_535;

/// Sends and receives Ethernet frames. A device lends its own memory, so that frames need not be copied. Only
/// [`wait`](Self::wait) blocks.
pub trait Device {
    /// The next received frame, valid until the next call; `None` if no frame waits.
    ///
    /// # Errors
    /// The device has failed.
    fn receive(&mut self) -> io::Result<Option<&[u8]>>;

    /// A slot for the next frame to send; `None` if the device has no room at present. Further calls return
    /// the same slot until it is [committed](Self::commit).
    ///
    /// # Errors
    /// The device has failed.
    fn transmit(&mut self) -> io::Result<Option<&mut [u8]>>;

    /// Sends the first `length` bytes of the slot of [`transmit`](Self::transmit), at the latest with the
    /// next [`flush`](Self::flush). Returns `false` if the device does not accept the frame.
    ///
    /// # Errors
    /// The device has failed.
    fn commit(&mut self, length: usize) -> io::Result<bool>;

    /// Sends all committed frames. Call it at the end of each turn.
    ///
    /// # Errors
    /// The device has failed.
    fn flush(&mut self) -> io::Result<()>;

    /// Waits until a frame may have arrived, `timeout` has passed (`None`: without limit), or one of `wakes`
    /// is readable. If [`transmit`](Self::transmit) found no room, waits only until there may be room. May
    /// return early. Returns whether one of `wakes` is readable.
    ///
    /// # Errors
    /// The device has failed.
    fn wait(&mut self, timeout: Option<Duration>, wakes: &[BorrowedFd<'_>]) -> io::Result<bool>;
}

pub(crate) struct Polled {
    /// Events of the device's own descriptors.
    pub events: PollFlags,
    /// Whether one of `wakes` is readable.
    pub is_woken: bool,
}

/// Waits until one of the descriptors `own` or `wakes` is readable or `timeout` has passed.
pub(crate) fn poll_with(
    own: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    wakes: &[BorrowedFd<'_>],
) -> io::Result<Polled> {
    let timeout = timeout.map(|duration| Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    });
    let mut fds: Vec<PollFd<'_>> =
        own.iter().chain(wakes).map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {
            let (own, wakes) = fds.split_at(own.len());
            let events = own.iter().fold(PollFlags::empty(), |all, fd| all | fd.revents());
            Ok(Polled { events, is_woken: wakes.iter().any(|fd| !fd.revents().is_empty()) })
        }
        Err(Errno::INTR) => Ok(Polled { events: PollFlags::empty(), is_woken: false }),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies a frame into a device and sends it. Returns `false` if the device has no room: the
/// frame is lost.
///
/// # Errors
/// The device has failed.
pub fn send(device: &mut (impl Device + ?Sized), frame: &[u8]) -> io::Result<bool> {
    let Some(slot) = device.transmit()?.and_then(|slot| slot.get_mut(..frame.len())) else {
        return Ok(false);
    };
    slot.copy_from_slice(frame);
    let is_accepted = device.commit(frame.len())?;
    device.flush()?;
    Ok(is_accepted)
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
    /// Creates a flag that is not set.
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
        // Fails only if the counter is at its maximum: then the descriptor is readable anyway.
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

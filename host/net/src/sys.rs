//! The few system calls that need more than a safe wrapper.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub use libc::epoll_event as EpollEvent;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An epoll set that waits with nanosecond timeouts.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    has_pwait2: bool,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { fd: epoll::create(CreateFlags::CLOEXEC)?, has_pwait2: true })
    }

    /// For tests: behaves as on a kernel without `epoll_pwait2`.
    #[cfg(test)]
    fn without_pwait2() -> io::Result<Epoll> {
        Ok(Epoll { has_pwait2: false, ..Epoll::new()? })
    }

    /// Watches a descriptor.
    ///
    /// # Errors
    /// It cannot be watched, or is already.
    pub fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token), flags)?)
    }

    /// Watches it no more.
    pub fn remove(&self, fd: impl AsFd) {
        // Fails only where nothing is registered, which is what we want.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits for events, at most for `timeout`; none waits for ever. `events` has what came, up to its capacity, and
    /// nothing after a signal.
    ///
    /// # Errors
    /// It is no epoll set, which is never so.
    pub fn wait(&mut self, events: &mut Vec<EpollEvent>, timeout: Option<Duration>) -> io::Result<()> {
        events.clear();
        let timeout = timeout.map(timespec);
        match self.wait_once(events, timeout.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            result => result,
        }
    }

    fn wait_once(&mut self, events: &mut Vec<EpollEvent>, timeout: Option<&Timespec>) -> io::Result<()> {
        if self.has_pwait2 {
            match epoll_pwait2(self.fd.as_raw_fd(), events, timeout) {
                // Old kernels lack the call (5.11 has it); old container filters answer EPERM.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.has_pwait2 = false;
                }
                result => return result,
            }
        }
        // `ppoll` has nanoseconds and an epoll set can be polled: one call more, but no rounding to milliseconds.
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout)?;
        epoll_take(self.fd.as_raw_fd(), events)
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn epoll_pwait2(fd: RawFd, events: &mut Vec<EpollEvent>, timeout: Option<&Timespec>) -> io::Result<()> {
    let timeout = timeout.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
    let spare = events.spare_capacity_mut();
    let room = i32::try_from(spare.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most `room` events into memory that `spare` owns; the timeout lives through the
    // call and the signal mask may be null.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            fd,
            spare.as_mut_ptr(),
            room,
            timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has initialized the first `count` elements, and `count` is within the capacity.
    unsafe { events.set_len(count) };
    Ok(())
}

/// Takes the events that are there.
fn epoll_take(fd: RawFd, events: &mut Vec<EpollEvent>) -> io::Result<()> {
    let spare = events.spare_capacity_mut();
    let room = i32::try_from(spare.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most `room` events into memory that `spare` owns.
    let count = unsafe { libc::epoll_wait(fd, spare.as_mut_ptr().cast(), room, 0) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has initialized the first `count` elements, and `count` is within the capacity.
    unsafe { events.set_len(count) };
    Ok(())
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Bytes that the peer's TCP has not acknowledged yet, our end of the stream counted as one (SIOCOUTQ).
pub fn unacknowledged(fd: &OwnedFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ, the same number as SIOCOUTQ, writes one int to where the argument points.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Established connections that wait at a listening socket to be accepted.
pub fn unaccepted(listener: &OwnedFd) -> io::Result<u32> {
    // SAFETY: it consists of integers, for which zeroes are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `size` bytes, the size of `info`, and to `size` how many they were; both live
    // through the call.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    // Of a listening socket, this field is the length of its queue.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(info.tcpi_unacked) }
}

/// Sets an option of a socket that is an int.
pub fn set_int(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the kernel reads `size` bytes, which are those of `value`; it lives through the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn waits_for_less_than_a_millisecond_with_and_without_pwait2() {
        for mut epoll in [Epoll::new().unwrap(), Epoll::without_pwait2().unwrap()] {
            let mut events = Vec::with_capacity(4);
            let waits = 50;
            let start = Instant::now();
            for _ in 0..waits {
                epoll.wait(&mut events, Some(Duration::from_micros(100))).unwrap();
                assert!(events.is_empty());
            }
            assert!(start.elapsed() >= Duration::from_micros(100) * waits, "woke too early");
        }
    }

    #[test]
    fn tells_events_with_their_tokens() {
        for mut epoll in [Epoll::new().unwrap(), Epoll::without_pwait2().unwrap()] {
            let ready = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            let silent = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            epoll.add(&ready, 1 << 40, EventFlags::IN).unwrap();
            epoll.add(&silent, 2, EventFlags::IN).unwrap();
            let mut events = Vec::with_capacity(4);
            epoll.wait(&mut events, None).unwrap();
            let tokens: Vec<u64> = events.iter().map(|event| event.u64).collect();
            assert_eq!(tokens, [1 << 40]);
            epoll.remove(&ready);
            epoll.remove(&ready);
            epoll.wait(&mut events, Some(Duration::ZERO)).unwrap();
            assert!(events.is_empty());
        }
    }
}

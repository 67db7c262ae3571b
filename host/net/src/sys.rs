//! System calls for which no safe wrapper exists.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

pub use libc::epoll_event as EpollEvent;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An epoll set with timeouts in nanoseconds.
#[derive(Debug)]
pub struct Epoll {
    fd: OwnedFd,
    has_pwait2: bool,
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// The host has no file descriptors left.
    pub fn new() -> io::Result<Epoll> {
        Ok(Epoll { fd: epoll::create(CreateFlags::CLOEXEC)?, has_pwait2: true })
    }

    /// An empty set that behaves as on a kernel without `epoll_pwait2`.
    #[cfg(test)]
    fn without_pwait2() -> io::Result<Epoll> {
        Ok(Epoll { has_pwait2: false, ..Epoll::new()? })
    }

    /// Adds a descriptor to the set. Its events carry `token`.
    ///
    /// # Errors
    /// The descriptor cannot be watched, or is in the set already.
    pub fn add(&self, fd: impl AsFd, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.fd, fd, EventData::new_u64(token), flags)?)
    }

    /// Removes a descriptor from the set.
    pub fn remove(&self, fd: impl AsFd) {
        // Fails only if the descriptor is not in the set.
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits for events, at most for `timeout`; `None` waits without limit. Replaces the content of `events`, up to its
    /// capacity. A signal ends the wait without events.
    ///
    /// # Errors
    /// `events` has no capacity. Other errors do not occur, because the descriptor is always an epoll set.
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
                // Kernels before 5.11 lack the call; system call filters of old container runtimes return EPERM.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    self.has_pwait2 = false;
                }
                result => return result,
            }
        }
        // An epoll set can be polled, and `ppoll` takes nanoseconds: one more call, but no rounding to milliseconds.
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], timeout)?;
        epoll_fetch(self.fd.as_raw_fd(), events)
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
    // SAFETY: the kernel writes at most `room` events into memory that `spare` owns; the timeout outlives the call, and
    // the signal mask may be null.
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

/// Fetches waiting events without blocking.
fn epoll_fetch(fd: RawFd, events: &mut Vec<EpollEvent>) -> io::Result<()> {
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

/// Bytes that the peer's TCP has not acknowledged, including one for this end's FIN (SIOCOUTQ).
pub fn unacknowledged(fd: &OwnedFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (the same number as SIOCOUTQ) writes one int to the argument's address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Number of established connections that wait at a listening socket to be accepted.
pub fn unaccepted(listener: &OwnedFd) -> io::Result<u32> {
    // SAFETY: `tcp_info` consists of integers, for which all-zero bytes are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `size` bytes, the size of `info`, and their number to `size`; both outlive the
    // call.
    let result = unsafe {
        libc::getsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut size,
        )
    };
    // For a listening socket, this field is the length of its accept queue.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(info.tcpi_unacked) }
}

/// Sets a socket option of type int.
pub fn set_int(fd: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the kernel reads `size` bytes, the size of `value`, which outlives the call.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets a socket be bound at an address that this host does not have.
pub fn allow_free_bind(fd: &OwnedFd) -> io::Result<()> {
    // For IPv6 sockets, too (`inet_can_nonlocal_bind` of the kernel).
    set_int(fd, libc::IPPROTO_IP, libc::IP_FREEBIND, 1)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn timeouts_below_a_millisecond_are_kept_with_and_without_pwait2() {
        for mut epoll in [Epoll::new().unwrap(), Epoll::without_pwait2().unwrap()] {
            let mut events = Vec::with_capacity(4);
            let waits = 50;
            let start = Instant::now();
            for _ in 0..waits {
                epoll.wait(&mut events, Some(Duration::from_micros(100))).unwrap();
                assert!(events.is_empty());
            }
            assert!(start.elapsed() >= Duration::from_micros(100) * waits, "no wait should end early");
        }
    }

    #[test]
    fn events_carry_their_tokens() {
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

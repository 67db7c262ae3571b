//! `poll` with virtual connections among real descriptors.

use core::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

use crate::connections::{self, ERR, HUP, IN, OUT, RDHUP};
use crate::ready::Wakes;
use crate::{links, real, sys, threads};

/// How long one wait in the kernel lasts at most while virtual connections are polled: another thread may
/// receive for them.
const SLICE_MS: c_int = 5;

/// How the application calls it.
#[derive(Clone, Copy)]
pub enum Wait {
    /// `poll`; milliseconds, negative for ever.
    Plain(c_int),
    /// `ppoll`; null for ever.
    Masked(*const timespec, *const sigset_t),
}

/// `poll` and `ppoll`. Whatever this thread has put off is sent first: it may sleep here.
///
/// # Safety
/// As of the C functions.
pub unsafe fn poll(descriptors: *mut pollfd, count: nfds_t, how: Wait) -> c_int {
    if threads::has_deferred() && crate::fork::is_owner() {
        let before = sys::errno();
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        wakes.send();
        sys::set_errno(before);
    }
    let length = usize::try_from(count).unwrap_or(usize::MAX);
    let any_virtual = !descriptors.is_null()
        && length < crate::table::DESCRIPTORS_MAX
        // SAFETY: the caller vouches for `count` descriptors.
        && unsafe { core::slice::from_raw_parts(descriptors, length) }
            .iter()
            .any(|one| connections::of_descriptor(one.fd).is_some());
    // SAFETY: as of the C functions.
    unsafe {
        if !any_virtual {
            return match how {
                Wait::Plain(ms) => real::poll(descriptors, count, ms),
                Wait::Masked(time, mask) => real::ppoll(descriptors, count, time, mask),
            };
        }
        poll_mixed(core::slice::from_raw_parts_mut(descriptors, length), how)
    }
}

unsafe fn poll_mixed(descriptors: &mut [pollfd], how: Wait) -> c_int {
    let timeout = match how {
        Wait::Plain(ms) => u64::try_from(ms).ok().map(Duration::from_millis),
        // SAFETY: the caller vouches for the pointer.
        Wait::Masked(time, _) => unsafe { time.as_ref() }.map(|time| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds)
                .saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0)))
        }),
    };
    let began = sys::now();
    loop {
        let ready = descriptors.iter().any(|one| revents(one) != Some(0) && revents(one).is_some());
        let left = timeout.map(|timeout| timeout.saturating_sub(sys::now().since(began)));
        let slice = match left {
            _ if ready => 0,
            Some(left) => c_int::try_from(left.as_millis()).unwrap_or(SLICE_MS).min(SLICE_MS),
            None => SLICE_MS,
        };
        // In the kernel's copy, a link's socket stands for the virtual connection.
        let mut kernel: Vec<pollfd> = descriptors.iter().map(for_kernel).collect();
        // SAFETY: the descriptors are the vector.
        let outcome = unsafe { real::poll(kernel.as_mut_ptr(), kernel.len() as nfds_t, slice) };
        if outcome < 0 {
            return outcome;
        }
        let mut wakes = Wakes::default();
        for (one, seen) in descriptors.iter_mut().zip(&kernel) {
            match connections::of_descriptor(one.fd) {
                None => one.revents = seen.revents,
                Some(connection) => {
                    if seen.revents != 0 {
                        links::attend(connection, &mut wakes);
                    }
                    one.revents = revents(one).unwrap_or(0);
                }
            }
        }
        wakes.send();
        let count = descriptors.iter().filter(|one| one.revents != 0).count();
        if count > 0 || left == Some(Duration::ZERO) {
            return c_int::try_from(count).unwrap_or(c_int::MAX);
        }
    }
}

fn for_kernel(one: &pollfd) -> pollfd {
    match connections::of_descriptor(one.fd) {
        None => pollfd { revents: 0, ..*one },
        Some(connection) => {
            let (fd, wants_out) = links::socket_of(connection);
            let events = libc::POLLIN | if wants_out { libc::POLLOUT } else { 0 };
            pollfd { fd, events, revents: 0 }
        }
    }
}

/// What a virtual connection has to report; `None` for a real descriptor.
fn revents(one: &pollfd) -> Option<i16> {
    let connection = connections::of_descriptor(one.fd)?;
    // The numbers of poll and epoll are the same for these.
    let state = connection.source.state() & (IN | OUT | ERR | HUP | RDHUP);
    let wanted = u32::from(one.events as u16) | ERR | HUP;
    Some((state & wanted) as i16)
}

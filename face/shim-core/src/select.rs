//! `select` and `pselect`, implemented with `poll`.

use core::time::Duration;

use libc::{c_int, fd_set, pollfd, sigset_t, timespec, timeval};

use crate::poll::{any_virtual, flush, poll_mixed};
use crate::{fork, prepared, real, sys, table};

/// For each of `select`'s sets: the events to poll for, and the events that make a descriptor ready.
const EVENTS: [(i16, i16); 3] = [
    (libc::POLLIN | libc::POLLRDNORM, libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR),
    (libc::POLLOUT | libc::POLLWRNORM, libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR),
    (libc::POLLPRI, libc::POLLPRI),
];

/// The function that the application has called, with its timeout.
#[derive(Clone, Copy)]
pub enum Wait {
    /// `select`, which stores the remaining time in the timeout; null for no timeout.
    Plain(*mut timeval),
    /// `pselect`; null for no timeout.
    Masked(*const timespec, *const sigset_t),
}

/// `select` and `pselect`. First sends this thread's deferred replies, because the thread may sleep here.
///
/// # Safety
/// Same as for the C functions.
pub unsafe fn select(count: c_int, sets: [*mut fd_set; 3], how: Wait) -> c_int {
    flush();
    let mut descriptors = match prepared::is_configured() && fork::is_owner() {
        // SAFETY: the caller vouches for the sets, which hold `count` descriptors.
        true => unsafe { from_sets(count, sets) },
        false => Vec::new(),
    };
    if !any_virtual(&descriptors) {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe {
            match how {
                Wait::Plain(time) => real::select(count, sets[0], sets[1], sets[2], time),
                Wait::Masked(time, mask) => real::pselect(count, sets[0], sets[1], sets[2], time, mask),
            }
        };
    }
    let before = sys::errno();
    let (timeout, mask) = match how {
        // SAFETY: the caller vouches for the pointer.
        Wait::Plain(time) => (unsafe { time.as_ref() }.map(of_timeval), core::ptr::null()),
        // SAFETY: as above.
        Wait::Masked(time, mask) => (unsafe { time.as_ref() }.map(sys::duration), mask),
    };
    let began = sys::now();
    let outcome = poll_mixed(&mut descriptors, timeout, mask);
    if let (Wait::Plain(time), Some(timeout)) = (how, timeout) {
        let left = timeout.saturating_sub(sys::now().since(began));
        // SAFETY: there is a timeout, so the pointer is valid. Linux also writes to it.
        unsafe {
            *time = timeval {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_usec: i64::from(left.subsec_micros()),
            };
        }
    }
    let has_invalid = descriptors.iter().any(|descriptor| descriptor.revents & libc::POLLNVAL != 0);
    let outcome = outcome.and_then(|_| match has_invalid {
        true => Err(libc::EBADF),
        // SAFETY: the caller vouches for the sets.
        false => Ok(unsafe { to_sets(&descriptors, sets) }),
    });
    sys::result(before, outcome)
}

fn of_timeval(time: &timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds.saturating_add(Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)))
}

/// The word of a set that has a descriptor's bit, and the bit. Programs may allocate sets larger than `fd_set`.
unsafe fn word(set: *mut fd_set, fd: c_int) -> (*mut u64, u64) {
    // SAFETY: the caller vouches that the set reaches that far.
    (unsafe { set.cast::<u64>().add(fd as usize / 64) }, 1 << (fd % 64))
}

/// The descriptors in the sets, with the events to poll for.
unsafe fn from_sets(count: c_int, sets: [*mut fd_set; 3]) -> Vec<pollfd> {
    let mut descriptors = Vec::new();
    let count = count.clamp(0, table::DESCRIPTORS_MAX as c_int);
    for first in (0..count).step_by(64) {
        // SAFETY: the caller vouches for the sets' words up to `count`.
        let words = sets.map(|set| if set.is_null() { 0 } else { unsafe { *word(set, first).0 } });
        let mut rest = words[0] | words[1] | words[2];
        while rest != 0 {
            let (bit, fd) = (rest & rest.wrapping_neg(), first + rest.trailing_zeros() as c_int);
            rest &= rest - 1;
            if fd >= count {
                break;
            }
            let events = words.iter().zip(EVENTS).filter(|(word, _)| **word & bit != 0);
            let events = events.fold(0, |events, (_, (polled, _))| events | polled);
            descriptors.push(pollfd { fd, events, revents: 0 });
        }
    }
    descriptors
}

/// Clears the bits of descriptors that are not ready. Returns the number of bits left.
unsafe fn to_sets(descriptors: &[pollfd], sets: [*mut fd_set; 3]) -> c_int {
    let mut count = 0;
    for descriptor in descriptors {
        for (set, (polled, ready)) in sets.into_iter().zip(EVENTS).filter(|(set, _)| !set.is_null()) {
            if descriptor.events & polled == 0 {
                continue;
            }
            // SAFETY: the caller vouches for the set.
            unsafe {
                let (word, bit) = word(set, descriptor.fd);
                if descriptor.revents & ready != 0 {
                    count += 1;
                } else {
                    *word &= !bit;
                }
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_poll_descriptors_convert_both_ways() {
        let mut read = [0u64; 16];
        let mut write = [0u64; 16];
        (read[0], read[15]) = (1 << 5, 1 << 63);
        write[0] = 1 << 5 | 1 << 6;
        let sets = [read.as_mut_ptr().cast(), write.as_mut_ptr().cast(), core::ptr::null_mut()];
        // SAFETY: the sets have 1024 bits.
        let mut descriptors = unsafe { from_sets(1024, sets) };
        let numbers: Vec<c_int> = descriptors.iter().map(|descriptor| descriptor.fd).collect();
        assert_eq!(numbers, [5, 6, 1023]);
        assert_eq!(descriptors[0].events & (libc::POLLIN | libc::POLLOUT), libc::POLLIN | libc::POLLOUT);
        descriptors[0].revents = libc::POLLIN;
        descriptors[2].revents = libc::POLLHUP;
        // SAFETY: as above.
        assert_eq!(unsafe { to_sets(&descriptors, sets) }, 2);
        assert_eq!((read[0], read[15], write[0]), (1 << 5, 1 << 63, 0));
    }
}

//! `poll` and `ppoll` with virtual connections among real descriptors.

use core::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

use crate::blocked::Blocked;
use crate::connections::{self, Connection, ERR, HUP};
use crate::sys::{self, Errno};
use crate::wakes::Wakes;
use crate::{links, port, prepared, real, table, threads};

/// The function that the application called.
#[derive(Clone, Copy)]
pub enum Wait {
    /// `poll`; milliseconds, negative for ever.
    Plain(c_int),
    /// `ppoll`; null for ever.
    Masked(*const timespec, *const sigset_t),
}

/// `poll` and `ppoll`. First sends what this thread has deferred, because it may sleep here.
///
/// # Safety
/// Same as for the C functions.
pub unsafe fn poll(descriptors: *mut pollfd, count: nfds_t, how: Wait) -> c_int {
    flush();
    let length = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: same as for the C functions.
    unsafe {
        if !descriptors.is_null() && length < table::DESCRIPTORS_MAX {
            let descriptors = core::slice::from_raw_parts_mut(descriptors, length);
            if is_ours(descriptors) {
                let before = sys::errno();
                let (timeout, mask) = how.parts();
                let ready = poll_mixed(descriptors, timeout, mask);
                return sys::result(before, ready.map(|ready| c_int::try_from(ready).unwrap_or(c_int::MAX)));
            }
        }
        match how {
            Wait::Plain(ms) => real::poll(descriptors, count, ms),
            Wait::Masked(time, mask) => real::ppoll(descriptors, count, time, mask),
        }
    }
}

impl Wait {
    /// # Safety
    /// A pointer to a time is null or valid.
    unsafe fn parts(self) -> (Option<Duration>, *const sigset_t) {
        match self {
            Wait::Plain(ms) => (u64::try_from(ms).ok().map(Duration::from_millis), core::ptr::null()),
            // SAFETY: the caller vouches for the pointer.
            Wait::Masked(time, mask) => (unsafe { time.as_ref() }.map(sys::duration), mask),
        }
    }
}

/// Sends what this thread has deferred.
pub(crate) fn flush() {
    if threads::has_deferred() && crate::fork::is_owner() {
        let before = sys::errno();
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        links::settle(&mut wakes);
        sys::set_errno(before);
    }
}

/// Whether any of these is virtual, or a listener for helped clients. Opens the link port for such a listener.
pub(crate) fn is_ours(descriptors: &[pollfd]) -> bool {
    if prepared::is_wanted() {
        for one in descriptors.iter().filter(|one| one.fd >= 0) {
            port::listener_awaited(one.fd);
        }
    }
    descriptors.iter().any(|one| !table::is_real(one.fd) && connections::of_pollable(one.fd).is_some())
}

/// Waits and fills in the answers. Returns the number of descriptors with events.
pub(crate) fn poll_mixed(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let virtuals: Vec<Option<&'static Connection>> =
        descriptors.iter().map(|one| connections::of_pollable(one.fd)).collect();
    // A loop over many clients sends its replies together; a thread that serves one client must not defer its replies.
    let is_loop = virtuals.iter().flatten().nth(1).is_some();
    if is_loop {
        threads::runs_loop();
    }
    // The kernel skips virtual connections, which have a negative number in its copy.
    let kernels = |(one, of): (&pollfd, &Option<&Connection>)| match (of, table::entry(one.fd)) {
        (Some(_), table::Entry::Connection(_)) => pollfd { fd: -1, ..*one },
        _ => pollfd { revents: 0, ..*one },
    };
    let mut kernel: Vec<pollfd> = descriptors.iter().zip(&virtuals).map(kernels).collect();
    let began = sys::now();
    let mut blocked: Option<Blocked> = None;
    loop {
        let is_ready = descriptors.iter().zip(&virtuals).any(|(one, of)| revents(one, *of) != 0);
        let left = timeout.map(|timeout| timeout.saturating_sub(sys::now().since(began)));
        let may_wait = !is_ready && left != Some(Duration::ZERO);
        match &mut blocked {
            // Check once more, because changes wake this thread from here on.
            None if may_wait => {
                blocked = Some(Blocked::new(virtuals.iter().flatten().copied().collect()));
                continue;
            }
            Some(blocked) if may_wait => blocked.sleep(&mut kernel, left, mask)?,
            // Real descriptors, and the next batch, get their turn even if virtual ones are always ready.
            _ => Blocked::passing().sleep(&mut kernel, Some(Duration::ZERO), mask)?,
        }
        let mut ready = 0;
        for ((one, of), seen) in descriptors.iter_mut().zip(&virtuals).zip(&kernel) {
            one.revents = seen.revents | revents(one, *of);
            ready += usize::from(one.revents != 0);
        }
        if ready > 0 || left == Some(Duration::ZERO) {
            return Ok(ready);
        }
    }
}

/// The events that a virtual connection, or a listener's stand-in, has to report.
fn revents(one: &pollfd, of: Option<&Connection>) -> i16 {
    // poll and epoll have the same numbers for these events.
    let wanted = u32::from(one.events as u16) | ERR | HUP;
    of.map_or(0, |connection| (connection.source.own_state() & wanted) as i16)
}

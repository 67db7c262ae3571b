//! `poll` and `ppoll` with virtual connections among real descriptors.

use core::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

use crate::blocked::Blocked;
use crate::connections::{self, Connection};
use crate::readiness::{ERR, HUP};
use crate::sys::{self, Errno};
use crate::wakes::Wakes;
use crate::{links, port, prepared, real, table, threads};

/// The function that the application has called, with its timeout.
#[derive(Clone, Copy)]
pub enum Wait {
    /// `poll`; milliseconds, negative for no timeout.
    Plain(c_int),
    /// `ppoll`; null for no timeout.
    Masked(*const timespec, *const sigset_t),
}

/// `poll` and `ppoll`. First sends this thread's deferred replies, because the thread may sleep here.
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
            if any_virtual(descriptors) {
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
    /// The pointer to the timeout is null or valid.
    unsafe fn parts(self) -> (Option<Duration>, *const sigset_t) {
        match self {
            Wait::Plain(ms) => (u64::try_from(ms).ok().map(Duration::from_millis), core::ptr::null()),
            // SAFETY: the caller vouches for the pointer.
            Wait::Masked(time, mask) => (unsafe { time.as_ref() }.map(sys::duration), mask),
        }
    }
}

/// Sends this thread's deferred replies.
pub(crate) fn flush() {
    if threads::has_deferred() && crate::fork::is_owner() {
        let before = sys::errno();
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        links::run_deferred(&mut wakes);
        sys::set_errno(before);
    }
}

/// Whether any descriptor is virtual, or a listener for helped clients. Opens the link port for such a listener.
pub(crate) fn any_virtual(descriptors: &[pollfd]) -> bool {
    if prepared::is_link_port_pending() {
        for descriptor in descriptors.iter().filter(|descriptor| descriptor.fd >= 0) {
            port::open_for_awaited(descriptor.fd);
        }
    }
    descriptors
        .iter()
        .any(|descriptor| !table::is_real(descriptor.fd) && connections::of_pollable(descriptor.fd).is_some())
}

/// Waits and sets `revents` of each descriptor. Returns the number of descriptors with events.
pub(crate) fn poll_mixed(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let virtuals: Vec<Option<&'static Connection>> =
        descriptors.iter().map(|descriptor| connections::of_pollable(descriptor.fd)).collect();
    // A loop over many clients defers its replies to send them together; a thread with one client must send at once.
    let has_several = virtuals.iter().flatten().nth(1).is_some();
    if has_several {
        threads::set_runs_event_loop();
    }
    // In the kernel's copy, virtual connections have a negative number: the kernel skips these entries.
    let for_kernel = |(descriptor, connection): (&pollfd, &Option<&Connection>)| match (
        connection,
        table::entry(descriptor.fd),
    ) {
        (Some(_), table::Entry::Connection(_)) => pollfd { fd: -1, ..*descriptor },
        _ => pollfd { revents: 0, ..*descriptor },
    };
    let mut kernel: Vec<pollfd> = descriptors.iter().zip(&virtuals).map(for_kernel).collect();
    let began = sys::now();
    let mut blocked: Option<Blocked> = None;
    loop {
        let is_ready = descriptors
            .iter()
            .zip(&virtuals)
            .any(|(descriptor, connection)| revents(descriptor, *connection) != 0);
        let left = timeout.map(|timeout| timeout.saturating_sub(sys::now().since(began)));
        let may_wait = !is_ready && left != Some(Duration::ZERO);
        match &mut blocked {
            // From here on a change wakes this thread: check once more for changes before that.
            None if may_wait => {
                blocked = Some(Blocked::new(virtuals.iter().flatten().copied().collect()));
                continue;
            }
            Some(blocked) if may_wait => blocked.sleep(&mut kernel, left, mask)?,
            // Also polls real descriptors and links when virtual connections are always ready.
            _ => Blocked::without_waiting().sleep(&mut kernel, Some(Duration::ZERO), mask)?,
        }
        let mut ready = 0;
        for ((descriptor, connection), seen) in descriptors.iter_mut().zip(&virtuals).zip(&kernel) {
            descriptor.revents = seen.revents | revents(descriptor, *connection);
            ready += usize::from(descriptor.revents != 0);
        }
        if ready > 0 || left == Some(Duration::ZERO) {
            return Ok(ready);
        }
    }
}

/// The events to report of a virtual connection or a listener's stand-in.
fn revents(descriptor: &pollfd, connection: Option<&Connection>) -> i16 {
    // poll and epoll use the same numbers for these events.
    let wanted = u32::from(descriptor.events as u16) | ERR | HUP;
    connection.map_or(0, |connection| (connection.readiness.own_state() & wanted) as i16)
}

//! `poll` and `ppoll` with virtual connections among real descriptors.

use core::time::Duration;

use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

use crate::blocked::Blocked;
use crate::connections::{self, Connection, ERR, HUP};
use crate::sys::{self, Errno};
use crate::wakes::Wakes;
use crate::{links, port, prepared, real, table, threads};

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
    flush();
    let length = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: as of the C functions.
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

/// Sends what this thread has put off.
pub(crate) fn flush() {
    if threads::has_deferred() && crate::fork::is_owner() {
        let before = sys::errno();
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        links::settle(&mut wakes);
        sys::set_errno(before);
    }
}

/// Whether any of these is virtual, or a listener that helped clients may come by. Opens the link port for such a
/// one.
pub(crate) fn is_ours(descriptors: &[pollfd]) -> bool {
    if prepared::is_wanted() {
        for one in descriptors.iter().filter(|one| one.fd >= 0) {
            port::listener_awaited(one.fd);
        }
    }
    descriptors.iter().any(|one| !table::is_real(one.fd) && connections::of_pollable(one.fd).is_some())
}

/// The answers filled in: how many are not empty.
pub(crate) fn poll_mixed(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Result<usize, Errno> {
    let virtuals: Vec<Option<&'static Connection>> =
        descriptors.iter().map(|one| connections::of_pollable(one.fd)).collect();
    // Replies of a loop over many clients go together; a thread that looks after one must not keep its back.
    let is_loop = virtuals.iter().flatten().nth(1).is_some();
    if is_loop {
        threads::runs_loop();
    }
    // In the kernel's copy, virtual ones are passed over.
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
            // Look once more, now that changes are told.
            None if may_wait => {
                blocked = Some(Blocked::new(virtuals.iter().flatten().copied().collect()));
                continue;
            }
            Some(blocked) if may_wait => blocked.sleep(&mut kernel, left, mask)?,
            // Real descriptors, and the next batch, also have their turn when virtual ones are always ready.
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

/// What a virtual connection, or what stands for a listener, has to report.
fn revents(one: &pollfd, of: Option<&Connection>) -> i16 {
    // The numbers of poll and epoll are the same for these.
    let wanted = u32::from(one.events as u16) | ERR | HUP;
    of.map_or(0, |connection| (connection.source.own_state() & wanted) as i16)
}

//! Epoll with virtual connections.
//!
//! While virtual connections are ready, waiting costs no system call. The kernel is still polled every few calls, and
//! when the last poll was too long ago, so that direct connections and new batches wait for microseconds only.

use core::sync::atomic::Ordering;
use core::time::Duration;

use libc::{c_int, epoll_event, sigset_t, timespec};
use spillway_transport::Time;

use crate::connections::{self, Connection};
use crate::epoll_set::{self, Set};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{fork, links, listeners, memberships, orders, port, prepared, real, sys, threads, upkeep};

/// The function that the application has called, with its timeout.
#[derive(Clone, Copy)]
pub enum Wait {
    /// `epoll_wait`; milliseconds, negative for no timeout.
    Plain(c_int),
    /// `epoll_pwait`.
    Masked(c_int, *const sigset_t),
    /// `epoll_pwait2`; null for no timeout.
    Precise(*const timespec, *const sigset_t),
}

impl Wait {
    /// The timeout; `None` without one.
    ///
    /// # Safety
    /// The pointer to the timeout is null or valid.
    unsafe fn timeout(self) -> Option<Duration> {
        match self {
            Wait::Plain(ms) | Wait::Masked(ms, _) => u64::try_from(ms).ok().map(Duration::from_millis),
            // SAFETY: the caller vouches for the pointer.
            Wait::Precise(time, _) => unsafe { time.as_ref() }.map(sys::duration),
        }
    }

    /// libc's own function, with the application's timeout.
    ///
    /// # Safety
    /// Same as for the C function.
    unsafe fn real(self, fd: c_int, events: *mut epoll_event, max: c_int) -> c_int {
        // SAFETY: the caller vouches for all arguments.
        unsafe {
            match self {
                Wait::Plain(ms) => real::epoll_wait(fd, events, max, ms),
                Wait::Masked(ms, mask) => real::epoll_pwait(fd, events, max, ms, mask),
                Wait::Precise(time, mask) => real::epoll_pwait2(fd, events, max, time, mask),
            }
        }
    }

    /// libc's own function, with another timeout; functions with a timeout in milliseconds get it rounded up.
    ///
    /// # Safety
    /// Same as for the C function.
    unsafe fn real_for(self, fd: c_int, events: &mut [epoll_event], timeout: Option<Duration>) -> c_int {
        let max = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        let events = events.as_mut_ptr();
        let ms = timeout
            .map_or(-1, |left| c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
        // SAFETY: the events are the slice; the caller vouches for the mask.
        unsafe {
            match self {
                Wait::Plain(_) => real::epoll_wait(fd, events, max, ms),
                Wait::Masked(_, mask) => real::epoll_pwait(fd, events, max, ms, mask),
                Wait::Precise(_, mask) => {
                    let time = timeout.map(sys::timespec);
                    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
                    real::epoll_pwait2(fd, events, max, time, mask)
                }
            }
        }
    }
}

/// `epoll_create` and `epoll_create1`: records the set, except in a forked child.
pub fn record_set(fd: c_int) -> c_int {
    if fd >= 0 && prepared::is_configured() && fork::is_owner_process() {
        let errno = sys::errno();
        epoll_set::record_set(fd);
        sys::set_errno(errno);
    }
    fd
}

/// `epoll_wait`, `epoll_pwait` and `epoll_pwait2` on a set.
///
/// # Safety
/// Same as for the C functions.
pub unsafe fn wait(fd: c_int, events: *mut epoll_event, max: c_int, how: Wait) -> c_int {
    let set = match table::entry(fd) {
        Entry::Set(index) if fork::is_owner() => epoll_set::get(index),
        _ => None,
    };
    let room = usize::try_from(max).unwrap_or(0);
    let Some(set) = set.filter(|_| room > 0 && !events.is_null()) else {
        // SAFETY: passes the caller's arguments on unchanged.
        return unsafe { how.real(fd, events, max) };
    };
    threads::set_runs_event_loop();
    let errno = sys::errno();
    if !set.active.load(Ordering::Acquire) {
        // SAFETY: passes the caller's arguments on unchanged.
        let count = unsafe { how.real(fd, events, max) };
        if count <= 0 || !set.active.load(Ordering::Acquire) {
            return count;
        }
        // The set was activated during the wait: the events may include this library's descriptors.
        // SAFETY: the kernel filled the first `count`.
        let filled = unsafe { core::slice::from_raw_parts_mut(events, count as usize) };
        let mut wakes = Wakes::default();
        let kept = handle_library_events(set, filled, &mut wakes);
        links::run_deferred(&mut wakes);
        if kept > 0 {
            return kept as c_int;
        }
    }
    // SAFETY: the caller vouches for `max` events; `epoll_event` has no invalid bit patterns.
    let events = unsafe { core::slice::from_raw_parts_mut(events, room) };
    // SAFETY: same as for the C function.
    let count = unsafe { wait_active(set, fd, events, how) };
    if count >= 0 {
        sys::set_errno(errno);
    }
    count
}

unsafe fn wait_active(set: &Set, fd: c_int, events: &mut [epoll_event], how: Wait) -> c_int {
    let mut wakes = Wakes::default();
    // SAFETY: the caller vouches for the timeout's pointer.
    let timeout = unsafe { how.timeout() };
    let mut deadline: Option<Time> = None;
    let turns = &set.turns;
    let mut now = sys::now();
    turns.measure_application(now);
    loop {
        let mut count = 0;
        if set.has_ready() {
            if turns.is_poll_due(now) {
                links::flush_deferred(&mut wakes);
                // SAFETY: same as for the C function.
                let seen = unsafe { how.real_for(fd, events, Some(Duration::ZERO)) };
                count =
                    handle_library_events(set, &mut events[..usize::try_from(seen).unwrap_or(0)], &mut wakes);
                now = sys::now();
                if upkeep::is_due(now) {
                    upkeep::run(&mut wakes);
                }
                turns.record_poll(now);
            }
            count += report_ready(set, &mut events[count..], now, &mut wakes);
            if count > 0 {
                links::run_deferred(&mut wakes);
                return count as c_int;
            }
        }
        links::flush_deferred(&mut wakes);
        links::run_deferred(&mut wakes);
        let Some(left) = time_left(timeout, &mut deadline) else { return 0 };
        if !set.begin_sleep() {
            continue;
        }
        // SAFETY: same as for the C function.
        let seen = unsafe { how.real_for(fd, events, left) };
        set.end_sleep();
        if seen < 0 {
            return seen;
        }
        count = handle_library_events(set, &mut events[..seen as usize], &mut wakes);
        orders::carry_out();
        now = sys::now();
        if upkeep::is_due(now) {
            upkeep::run(&mut wakes);
        }
        turns.record_poll(now);
        count += report_ready(set, &mut events[count..], now, &mut wakes);
        if count > 0 {
            links::run_deferred(&mut wakes);
            return count as c_int;
        }
        if timeout == Some(Duration::ZERO) {
            links::flush_deferred(&mut wakes);
            links::run_deferred(&mut wakes);
            return 0;
        }
    }
}

fn report_ready(set: &Set, events: &mut [epoll_event], now: Time, wakes: &mut Wakes) -> usize {
    let count = set.collect(events, set.turns.limit(now), wakes);
    set.turns.record_returned(count, now);
    count
}

/// `None` when the application's timeout is over; otherwise the timeout for the kernel.
fn time_left(timeout: Option<Duration>, deadline: &mut Option<Time>) -> Option<Option<Duration>> {
    let left = match timeout {
        None => None,
        Some(Duration::ZERO) => Some(Duration::ZERO),
        Some(timeout) => {
            let now = sys::now();
            match deadline {
                None => {
                    *deadline = Some(now + timeout);
                    Some(timeout)
                }
                Some(deadline) if *deadline <= now => return None,
                Some(deadline) => Some(*deadline - now),
            }
        }
    };
    Some(upkeep::due_within().into_iter().chain(left).min())
}

/// Handles the events of the library's own set, and timed work.
pub(crate) fn receive(set: &Set, wakes: &mut Wakes) {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    let seen = sys::epoll_ready(set.fd.load(Ordering::Relaxed), &mut events).unwrap_or(0);
    handle_library_events(set, &mut events[..seen], wakes);
    orders::carry_out();
    if upkeep::is_due(sys::now()) {
        upkeep::run(wakes);
    }
}

/// Handles the events of this library's descriptors, moves the application's to the front, and returns their number.
fn handle_library_events(set: &Set, events: &mut [epoll_event], wakes: &mut Wakes) -> usize {
    let mut kept = 0;
    for position in 0..events.len() {
        let event = events[position];
        let data = event.u64;
        match Tag::of(data) {
            None => {
                events[kept] = event;
                kept += 1;
            }
            Some(Tag::Wake) => set.record_wake_seen(),
            Some(Tag::Port) => port::handle_ready(set, wakes),
            Some(Tag::Control) => orders::handle_ready(),
            Some(Tag::Link(index)) => links::handle_ready(index, set, event.events, wakes),
        }
    }
    kept
}

/// `epoll_ctl` where the set or the descriptor is recorded.
///
/// # Safety
/// Same as for the C function.
pub unsafe fn control(fd: c_int, operation: c_int, member: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller vouches for the pointer, which is null or valid.
    let (events, data) = unsafe { event.as_ref() }.map_or((0, 0), |event| (event.events, event.u64));
    let set = match table::entry(fd) {
        Entry::Set(index) if fork::is_owner() => epoll_set::get(index),
        _ => None,
    };
    let errno = sys::errno();
    let outcome = match (set, table::entry(member)) {
        (Some(set), Entry::Connection(index)) => connections::get(index)
            .map(|connection| control_virtual(set, operation, connection, events, data)),
        (Some(_), Entry::Library) => Some(Err(libc::EBADF)),
        _ => None,
    };
    if let Some(outcome) = outcome {
        return sys::result(errno, outcome.map(|()| 0));
    }
    // SAFETY: passes the caller's arguments on unchanged.
    let result = unsafe { real::epoll_ctl(fd, operation, member, event) };
    if let (0, Some(set)) = (result, set) {
        control_stand_in(set, operation, member, events, data);
        sys::set_errno(errno);
    }
    result
}

fn control_virtual(
    set: &Set,
    operation: c_int,
    connection: &'static Connection,
    events: u32,
    data: u64,
) -> Result<(), sys::Errno> {
    let mut wakes = Wakes::default();
    let result = match operation {
        libc::EPOLL_CTL_ADD => memberships::add(set, connection, events, data, &mut wakes),
        libc::EPOLL_CTL_MOD => memberships::modify(set, connection, events, data, &mut wakes),
        libc::EPOLL_CTL_DEL => memberships::remove(set, connection),
        _ => Err(libc::EINVAL),
    };
    if operation == libc::EPOLL_CTL_ADD && result.is_ok() {
        links::adopt(connection, set);
    }
    links::run_deferred(&mut wakes);
    result
}

/// Applies the application's call on its listener to the listener's stand-in in the ready list.
fn control_stand_in(set: &Set, operation: c_int, member: c_int, events: u32, data: u64) {
    let stand_in = match operation {
        libc::EPOLL_CTL_ADD => listeners::stand_in_or_record(member),
        _ => listeners::stand_in_of(member),
    };
    let Some(stand_in) = stand_in else { return };
    let mut wakes = Wakes::default();
    match operation {
        libc::EPOLL_CTL_ADD => {
            port::open_for_polled(member, set);
            if listeners::is_served(member) {
                let _ = memberships::add(set, stand_in, events, data, &mut wakes);
            }
        }
        libc::EPOLL_CTL_MOD => drop(memberships::modify(set, stand_in, events, data, &mut wakes)),
        _ => drop(memberships::remove(set, stand_in)),
    }
    links::run_deferred(&mut wakes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_the_timeout_and_ends_at_the_deadline() {
        let mut deadline = None;
        assert_eq!(time_left(None, &mut deadline), Some(None));
        assert_eq!(time_left(Some(Duration::ZERO), &mut deadline), Some(Some(Duration::ZERO)));
        assert_eq!(
            time_left(Some(Duration::from_nanos(1)), &mut deadline).flatten(),
            Some(Duration::from_nanos(1))
        );
        deadline = Some(Time(1));
        assert_eq!(time_left(Some(Duration::from_secs(9)), &mut deadline), None);
    }
}

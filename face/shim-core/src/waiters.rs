//! Wakes the threads that wait for virtual connections outside epoll ([`crate::blocked`]).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};
use std::sync::Mutex;

use libc::c_int;

use crate::connections::Connection;
use crate::table::{self, Entry};
use crate::wakes::Wakes;
use crate::{lock, sys};

/// Maximum number of threads that can be woken. Further threads check at growing intervals: see `blocked`.
const WAITERS_MAX: usize = 0xfffe;

/// Value of `Connection::waiters` when more than two threads wait. Other values hold the numbers of up to two slots.
pub(crate) const MANY: u32 = u32::MAX;

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { slots: Vec::new(), free: Vec::new() });

struct Registry {
    slots: Vec<&'static Slot>,
    free: Vec<u32>,
}

/// The event counter that wakes one blocked thread.
pub(crate) struct Slot {
    index: u32,
    fd: AtomicI32,
    in_use: AtomicBool,
    /// Whether `fd` was written to, and not read since.
    woken: AtomicBool,
    /// If the thread waits for one connection only: its index plus one; otherwise 0.
    only: AtomicU32,
}

impl Slot {
    /// A number that no other slot has at this time; never 0.
    pub(crate) fn number(&self) -> u32 {
        self.index + 1
    }

    /// The event counter that is written to wake the thread.
    pub(crate) fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Relaxed)
    }

    /// From now on a change of these connections wakes the thread. Check them again after this call.
    pub(crate) fn begin(&self, waits_for: &[&'static Connection]) {
        let only = match waits_for {
            [connection] => connection.index + 1,
            _ => 0,
        };
        self.only.store(only, Ordering::SeqCst);
        for connection in waits_for {
            register(connection, self.number());
        }
        // Pairs with the fence in `notify_all`: this thread sees the change, or `notify_all` sees this thread.
        fence(Ordering::SeqCst);
    }

    /// Call after the thread has slept. `was_written`: another thread has written the event counter, so it must be
    /// read.
    pub(crate) fn after_sleep(&self, was_written: bool) {
        if was_written {
            sys::drain(self.descriptor());
        }
        self.woken.store(false, Ordering::SeqCst);
    }

    /// Ends the thread's wait. The event counter stays open, because another thread may be about to write it.
    pub(crate) fn end(&self, waits_for: &[&'static Connection]) {
        for connection in waits_for {
            unregister(connection, self.number());
        }
        self.in_use.store(false, Ordering::SeqCst);
        lock(&REGISTRY).free.push(self.index);
    }

    #[cfg(test)]
    pub(crate) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::SeqCst)
    }
}

/// Wakes any one of the blocked threads.
pub(crate) fn wake_any(wakes: &mut Wakes) {
    let slot = lock(&REGISTRY).slots.iter().find(|slot| slot.in_use.load(Ordering::SeqCst)).copied();
    if let Some(slot) = slot {
        wake_slot(slot, wakes);
    }
}

/// Wakes the threads that are blocked on a connection.
#[inline]
pub(crate) fn wake(connection: &Connection, wakes: &mut Wakes) {
    let waiters = connection.waiters.load(Ordering::SeqCst);
    if waiters != 0 {
        wake_waiters(connection, waiters, wakes);
    }
}

#[cold]
fn wake_waiters(connection: &Connection, waiters: u32, wakes: &mut Wakes) {
    let registry = lock(&REGISTRY);
    if waiters == MANY {
        for slot in &registry.slots {
            let only = slot.only.load(Ordering::SeqCst);
            if slot.in_use.load(Ordering::SeqCst) && (only == 0 || only == connection.index + 1) {
                wake_slot(slot, wakes);
            }
        }
        return;
    }
    for half in [waiters & 0xffff, waiters >> 16] {
        if let Some(slot) = half.checked_sub(1).and_then(|index| registry.slots.get(index as usize)) {
            wake_slot(slot, wakes);
        }
    }
}

fn wake_slot(slot: &Slot, wakes: &mut Wakes) {
    if !slot.woken.swap(true, Ordering::SeqCst) {
        wakes.push(slot.fd.load(Ordering::Relaxed));
    }
}

fn register(connection: &Connection, slot: u32) {
    let add = |waiters: u32| match (waiters & 0xffff, waiters >> 16) {
        _ if waiters == MANY => None,
        (0, _) => Some(waiters | slot),
        (_, 0) => Some(waiters | slot << 16),
        _ => Some(MANY),
    };
    let _ = connection.waiters.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
}

/// [`MANY`] stays: after more than two threads have waited, each wake-up searches all slots until the connection's end.
fn unregister(connection: &Connection, slot: u32) {
    let remove = |waiters: u32| match (waiters & 0xffff, waiters >> 16) {
        _ if waiters == MANY => None,
        (low, _) if low == slot => Some(waiters & !0xffff),
        (_, high) if high == slot => Some(waiters & 0xffff),
        _ => None,
    };
    let _ = connection.waiters.fetch_update(Ordering::SeqCst, Ordering::SeqCst, remove);
}

/// A slot to wake the calling thread, until [`Slot::end`]; `None` if too many threads wait.
pub(crate) fn take() -> Option<&'static Slot> {
    let mut registry = lock(&REGISTRY);
    let slot = match registry.free.pop() {
        Some(index) => *registry.slots.get(index as usize)?,
        None if registry.slots.len() < WAITERS_MAX => {
            let slot: &'static Slot = Box::leak(Box::new(Slot {
                index: registry.slots.len() as u32,
                fd: AtomicI32::new(-1),
                in_use: AtomicBool::new(false),
                woken: AtomicBool::new(false),
                only: AtomicU32::new(0),
            }));
            registry.slots.push(slot);
            slot
        }
        None => return None,
    };
    if slot.fd.load(Ordering::Relaxed) < 0 {
        match sys::eventfd() {
            Ok(fd) => {
                table::record(fd, Entry::Library);
                slot.fd.store(fd, Ordering::Relaxed);
            }
            Err(_) => {
                registry.free.push(slot.index);
                return None;
            }
        }
    }
    slot.woken.store(false, Ordering::SeqCst);
    slot.in_use.store(true, Ordering::SeqCst);
    Some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections;

    #[test]
    fn one_of_two_waiters_can_be_unregistered() {
        let connection = connections::take().unwrap();
        register(connection, 7);
        register(connection, 9);
        unregister(connection, 7);
        assert_eq!(connection.waiters.load(Ordering::SeqCst), 9 << 16);
        unregister(connection, 9);
        assert_eq!(connection.waiters.load(Ordering::SeqCst), 0);
        connections::give_back(connection);
    }
}

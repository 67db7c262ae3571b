//! Threads that wait for virtual connections outside epoll: blocked in `read`, `write` or `accept`, or in `poll`
//! and `select`.
//!
//! Each sleeps in the kernel on its own real descriptors and an event counter that is written when one of its
//! virtual connections changes. One of them, the leader, also receives for all from the links that no epoll set of
//! the application's has. A leader that goes wakes another, which takes its place.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};
use core::time::Duration;
use std::sync::Mutex;

use libc::{c_int, pollfd, sigset_t};

use crate::connections::Connection;
use crate::ready::{Set, Wakes};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{epoll, links, lock, port};

/// Threads blocked at once. Those beyond look for themselves, every few milliseconds.
const WAITERS_MAX: usize = 0xfffe;

/// In `Connection::waiters`, which holds two slots plus one: more than two threads wait.
const MANY: u32 = u32::MAX;

/// Links in epoll sets of the application's are received from by its loops. In case none does, a blocked thread
/// looks itself, after this time first, then after twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_secs(1);

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { slots: Vec::new(), free: Vec::new() });

struct Registry {
    slots: Vec<&'static Slot>,
    free: Vec<u32>,
}

struct Slot {
    index: u32,
    fd: AtomicI32,
    in_use: AtomicBool,
    /// Written to already and not yet read.
    woken: AtomicBool,
    /// The one connection that it waits for: its index plus one; 0 when there are several.
    only: AtomicU32,
}

/// A blocked call, from its first look to its return.
pub(crate) struct Blocked {
    waits_for: Vec<&'static Connection>,
    slot: Option<&'static Slot>,
    leads: Option<&'static Set>,
    look: Duration,
}

impl Blocked {
    /// Registers the calling thread: from now on a change of these connections wakes it. Look at them once more
    /// after this.
    pub(crate) fn new(waits_for: Vec<&'static Connection>) -> Blocked {
        let slot = take_slot();
        if let Some(slot) = slot {
            let only = match waits_for.as_slice() {
                [one] => one.index + 1,
                _ => 0,
            };
            slot.only.store(only, Ordering::SeqCst);
            for connection in &waits_for {
                register(connection, slot.index + 1);
            }
            // Pairs with the one in `notify_all`: we see its change, or it sees us.
            fence(Ordering::SeqCst);
        }
        Blocked { waits_for, slot, leads: None, look: FIRST_LOOK }
    }

    /// For a call that does not wait, but receives if nobody else does.
    pub(crate) fn passing() -> Blocked {
        Blocked { waits_for: Vec::new(), slot: None, leads: None, look: FIRST_LOOK }
    }

    /// Sleeps until one of `descriptors`, whose answers are filled in, or one of the connections may have changed,
    /// or the time is over; for less, and in vain, now and then.
    pub(crate) fn sleep(
        &mut self,
        descriptors: &mut Vec<pollfd>,
        limit: Option<Duration>,
        mask: *const sigset_t,
    ) -> Result<(), Errno> {
        let mut wakes = Wakes::default();
        links::flush_deferred(&mut wakes);
        wakes.send();
        let count = descriptors.len();
        self.leads = self.leads.or_else(|| lead(self.slot));
        let mut limit = limit;
        let mut shorten = |to: Duration| limit = Some(limit.map_or(to, |limit| limit.min(to)));
        if let Some(set) = self.leads {
            descriptors.push(watched(set.fd.load(Ordering::Relaxed), libc::POLLIN));
            if let Some(within) = links::look_within() {
                shorten(within);
            }
        }
        let lead_end = descriptors.len();
        let orphans = links::outside(&self.waits_for, port::own_set());
        if orphans.any || self.slot.is_none() {
            shorten(self.look);
            self.look = (self.look * 2).min(LAST_LOOK);
        }
        for &(_, fd, interest) in &orphans.unattended {
            let of = |wanted: bool, event| if wanted { event } else { 0 };
            descriptors
                .push(watched(fd, of(interest.input, libc::POLLIN) | of(interest.room, libc::POLLOUT)));
        }
        if let Some(slot) = self.slot {
            descriptors.push(watched(slot.fd.load(Ordering::Relaxed), libc::POLLIN));
        }
        let outcome = sys::poll(descriptors, limit, mask);
        if let Some(slot) = self.slot {
            if descriptors.last().is_some_and(|last| last.revents != 0) {
                sys::drain(slot.fd.load(Ordering::Relaxed));
            }
            slot.woken.store(false, Ordering::SeqCst);
        }
        if let Some(set) = self.leads
            && (descriptors[lead_end - 1].revents != 0 || links::need_looks(sys::now()))
        {
            epoll::receive(set, &mut wakes);
        }
        for (&(link, ..), seen) in orphans.unattended.iter().zip(&descriptors[lead_end..]) {
            if seen.revents != 0 {
                links::attend(link, &mut wakes);
            }
        }
        if orphans.any && outcome == Ok(0) {
            links::attend_all(&self.waits_for, &mut wakes);
        }
        wakes.send();
        descriptors.truncate(count);
        outcome.map(drop)
    }
}

fn watched(fd: c_int, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(set) = self.leads {
            set.leader.store(0, Ordering::SeqCst);
        }
        if let Some(slot) = self.slot {
            for connection in &self.waits_for {
                unregister(connection, slot.index + 1);
            }
            give_back(slot);
        }
        // Somebody has to lead: also when whoever was woken for that goes without having done so.
        if (self.leads.is_some() || self.slot.is_some())
            && port::own_set().is_some_and(|set| set.leader.load(Ordering::SeqCst) == 0)
        {
            let heir = lock(&REGISTRY).slots.iter().find(|slot| slot.in_use.load(Ordering::SeqCst)).copied();
            if let Some(heir) = heir {
                let mut wakes = Wakes::default();
                wake_slot(heir, &mut wakes);
                wakes.send();
            }
        }
    }
}

/// Becomes the one that receives from the links in our own set, if there is such a set and nobody does.
fn lead(slot: Option<&Slot>) -> Option<&'static Set> {
    let set = port::own_set()?;
    let me = slot.map_or(MANY, |slot| slot.index + 1);
    set.leader.compare_exchange(0, me, Ordering::SeqCst, Ordering::Relaxed).ok().map(|_| set)
}

/// Wakes those who are blocked for a connection's sake.
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

/// Where many have waited, they are looked for among all until the connection's end.
fn unregister(connection: &Connection, slot: u32) {
    let remove = |waiters: u32| match (waiters & 0xffff, waiters >> 16) {
        _ if waiters == MANY => None,
        (low, _) if low == slot => Some(waiters & !0xffff),
        (_, high) if high == slot => Some(waiters & 0xffff),
        _ => None,
    };
    let _ = connection.waiters.fetch_update(Ordering::SeqCst, Ordering::SeqCst, remove);
}

fn take_slot() -> Option<&'static Slot> {
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
                table::note(fd, Entry::Own);
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

/// Its event counter stays open for the next: somebody may be about to write to it.
fn give_back(slot: &'static Slot) {
    slot.in_use.store(false, Ordering::SeqCst);
    lock(&REGISTRY).free.push(slot.index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{self, IN};
    use crate::source;

    #[test]
    fn a_change_wakes_those_who_wait_for_it_and_nobody_else() {
        let (one, other) = (connections::take().unwrap(), connections::take().unwrap());
        let mut sleepers: Vec<Blocked> = (0..4).map(|_| Blocked::new(vec![one])).collect();
        let stranger = Blocked::new(vec![other]);
        assert_eq!(one.waiters.load(Ordering::SeqCst), MANY);
        assert!(one.deliver(b"x"));
        let mut wakes = Wakes::default();
        source::notify(one, &mut wakes);
        wakes.send();
        for sleeper in &mut sleepers {
            // Without a wake-up this would last an hour.
            sleeper.sleep(&mut Vec::new(), Some(Duration::from_secs(3600)), core::ptr::null()).unwrap();
        }
        assert_eq!(one.source.own_state() & IN, IN);
        assert!(!stranger.slot.unwrap().woken.load(Ordering::SeqCst));
        drop((sleepers, stranger));
        assert_eq!(other.waiters.load(Ordering::SeqCst), 0);
        connections::give_back(one);
        connections::give_back(other);
    }

    #[test]
    fn two_waiters_are_told_apart() {
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

//! Readiness of connections, and the epoll sets and blocked threads that wait for it.
//!
//! A connection is usually in one epoll set: that membership is part of the connection. Each further one is an
//! *alias*: an entry of its own in the table of connections, which is in one set and reports the readiness of the
//! connection that it stands for.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use crate::connections::{self, Connection, ERR, HUP, OUT};
use crate::lock;
use crate::ready::{self, Members, Set};
use crate::sys::Errno;
use crate::waiters;
use crate::wakes::Wakes;

/// Most epoll sets that one connection may be in.
const MEMBERSHIPS_MAX: usize = 64;

/// Held while memberships begin and end, so that two threads that add one connection to two sets use different places.
static MEMBERSHIPS: Mutex<()> = Mutex::new(());

/// Readiness, and the membership in one set. Part of a [`Connection`].
#[repr(C)]
pub(crate) struct Source {
    /// Epoll's bits of the receiving side, and of the end of a connection. Written under the connection's lock (for a
    /// listener's stand-in: the accept queue's).
    receiving: AtomicU32,
    /// Epoll's bits for sending; 0 while sending is not possible. Written under the link's lock.
    sending: AtomicU32,
    /// The set that the place is in, 0 for none. Changes under that set's lock.
    set: AtomicU32,
    /// Number of the membership: entries of a ready list with another ticket belong to an earlier one.
    ticket: AtomicU32,
    /// For an alias: the index of the connection that it stands for, plus one.
    stands_for: AtomicU32,
    /// The first alias, or for an alias the next one: its index plus one.
    alias: AtomicU32,
    /// Guarded by the lock of the set that `set` names.
    member: UnsafeCell<Member>,
}

// SAFETY: `member` is touched only with the lock of the set held that `set` names (see there).
unsafe impl Sync for Source {}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Member {
    /// The events that the application asked for; 0 once EPOLLONESHOT has fired.
    pub(crate) events: u32,
    pub(crate) queued: bool,
    pub(crate) data: u64,
}

impl Source {
    pub(crate) const fn new() -> Source {
        Source {
            receiving: AtomicU32::new(0),
            sending: AtomicU32::new(OUT),
            set: AtomicU32::new(0),
            ticket: AtomicU32::new(0),
            stands_for: AtomicU32::new(0),
            alias: AtomicU32::new(0),
            member: UnsafeCell::new(Member { events: 0, queued: false, data: 0 }),
        }
    }

    /// Resets readiness for the next use of the place, to which nothing refers yet.
    pub(crate) fn renew(&self) {
        self.receiving.store(0, Ordering::Relaxed);
        self.sending.store(OUT, Ordering::Relaxed);
        self.stands_for.store(0, Ordering::Relaxed);
        self.alias.store(0, Ordering::Relaxed);
    }

    /// All readiness bits; not for an alias.
    #[inline]
    pub(crate) fn own_state(&self) -> u32 {
        self.receiving.load(Ordering::Acquire) | self.sending.load(Ordering::Acquire)
    }

    /// Sets bits of the receiving side, under the lock that guards them; [`notify`] informs the sets.
    pub(crate) fn raise(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears bits of the receiving side, under the lock that guards them.
    pub(crate) fn lower(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Sets whether sending is possible, under the link's lock; [`notify`] informs the sets.
    pub(crate) fn can_send(&self, yes: bool) {
        self.sending.store(if yes { OUT } else { 0 }, Ordering::Release);
    }

    /// The set that this place is in, 0 for none.
    #[inline]
    pub(crate) fn set(&self) -> u32 {
        self.set.load(Ordering::SeqCst)
    }

    /// Whether the connection is in any set.
    pub(crate) fn is_in_a_set(&self) -> bool {
        self.set() != 0 || self.alias.load(Ordering::SeqCst) != 0
    }

    #[inline]
    pub(crate) fn ticket(&self) -> u32 {
        self.ticket.load(Ordering::SeqCst)
    }

    /// The events that a member asked for, and errors, that are present now.
    #[inline]
    pub(crate) fn events_to_report(&self, member: &Member) -> u32 {
        let state = match self.stands_for.load(Ordering::Relaxed) {
            0 => self.own_state(),
            index => connections::get(index - 1).map_or(0, |connection| connection.source.own_state()),
        };
        if member.events == 0 { 0 } else { state & (member.events | ERR | HUP) }
    }

    /// # Safety
    /// The lock of the set that [`set`](Self::set) names is held for the life of the reference, and no other
    /// reference is alive.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "guarded by the set's lock, which the caller holds")]
    pub(crate) unsafe fn member(&self) -> &mut Member {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.member.get() }
    }

    /// Begins a membership. The set's lock is held, and the place is in no set.
    pub(crate) fn begin(&self, set: u32, events: u32, data: u64) {
        // SAFETY: the place is in no set; from the store below on, the set's lock, which is held, guards it.
        unsafe { *self.member.get() = Member { events: events | ERR | HUP, queued: false, data } };
        self.set.store(set, Ordering::SeqCst);
        // Pairs with the fence in `notify_all`: at least one of the two threads sees what the other has stored.
        fence(Ordering::SeqCst);
    }

    /// Ends a membership. The set's lock is held.
    pub(crate) fn end(&self) {
        self.ticket.fetch_add(1, Ordering::SeqCst);
        self.set.store(0, Ordering::SeqCst);
    }
}

/// A connection and its aliases.
fn places(connection: &'static Connection) -> impl Iterator<Item = &'static Connection> {
    let mut next = Some(connection);
    // Bounded, because an alias that is given back meanwhile may already have another use.
    core::iter::from_fn(move || {
        let place = next?;
        next = place.source.alias.load(Ordering::SeqCst).checked_sub(1).and_then(connections::get);
        Some(place)
    })
    .take(MEMBERSHIPS_MAX)
}

/// The place of a connection's membership in this set.
pub(crate) fn membership(connection: &'static Connection, set: u32) -> Option<&'static Connection> {
    places(connection).find(|place| place.source.set() == set)
}

/// Puts a connection into a set: EEXIST if it is in the set, ENOSPC if it is in too many.
pub(crate) fn join(
    set: &Set,
    connection: &'static Connection,
    events: u32,
    data: u64,
    wakes: &mut Wakes,
) -> Result<(), Errno> {
    set.activate()?;
    let _memberships = lock(&MEMBERSHIPS);
    if membership(connection, set.index).is_some() {
        return Err(libc::EEXIST);
    }
    let place = match membership(connection, 0) {
        Some(place) => place,
        None => {
            if places(connection).count() == MEMBERSHIPS_MAX {
                return Err(libc::ENOSPC);
            }
            let alias = connections::take().ok_or(libc::ENOSPC)?;
            alias.source.stands_for.store(connection.index + 1, Ordering::SeqCst);
            let head = connection.source.alias.load(Ordering::SeqCst);
            alias.source.alias.store(head, Ordering::SeqCst);
            connection.source.alias.store(alias.index + 1, Ordering::SeqCst);
            alias
        }
    };
    set.begin(place, events, data, wakes);
    Ok(())
}

/// Takes a closed connection out of all sets.
pub(crate) fn forget(connection: &'static Connection) {
    let _memberships = lock(&MEMBERSHIPS);
    let all: Vec<&'static Connection> = places(connection).collect();
    connection.source.alias.store(0, Ordering::SeqCst);
    for place in all {
        if let Some(set) = ready::get(place.source.set()) {
            let _ = set.end(place);
        }
        if place.index != connection.index {
            connections::give_back(place);
        }
    }
}

/// Informs a connection's sets, and threads that are blocked on it, that its readiness bits were raised.
pub(crate) fn notify(connection: &'static Connection, wakes: &mut Wakes) {
    notify_all(core::iter::once(connection), wakes);
}

/// Like [`notify`], for all connections with data in one batch: consecutive ones of a set share its lock.
pub(crate) fn notify_all(raised: impl Iterator<Item = &'static Connection>, wakes: &mut Wakes) {
    // The bits are visible before the set is read: a thread that puts the connection into a set meanwhile sees the
    // bits, or this thread sees the set.
    fence(Ordering::SeqCst);
    let mut held: Option<(&Set, MutexGuard<'_, Members>)> = None;
    for connection in raised {
        tell(connection, &mut held, wakes);
        if connection.source.alias.load(Ordering::SeqCst) != 0 {
            for alias in places(connection).skip(1) {
                tell(alias, &mut held, wakes);
            }
        }
        waiters::wake(connection, wakes);
    }
}

/// Informs the set of one membership; `held` is the set informed last, locked.
#[inline]
fn tell(
    place: &'static Connection,
    held: &mut Option<(&'static Set, MutexGuard<'static, Members>)>,
    wakes: &mut Wakes,
) {
    let index = place.source.set();
    if held.as_ref().is_none_or(|(set, _)| set.index != index) {
        drop(held.take()); // first: two sets are never locked at once
        *held = ready::get(index).map(|set| (set, set.members()));
    }
    if let Some((set, members)) = held
        && place.source.set() == set.index
    {
        set.queue(members, place, wakes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_in_many_sets_is_bounded_and_comes_out_of_all() {
        let connection = connections::take().unwrap();
        let sets: Vec<&Set> = (0..MEMBERSHIPS_MAX + 1)
            .map(|_| {
                let fd = crate::sys::epoll_create().unwrap();
                ready::created(fd);
                let crate::table::Entry::Set(index) = crate::table::entry(fd) else { panic!("a set") };
                ready::get(index).unwrap()
            })
            .collect();
        let mut wakes = Wakes::default();
        let (last, first) = sets.split_last().unwrap();
        for (data, set) in first.iter().enumerate() {
            assert_eq!(join(set, connection, libc::EPOLLIN as u32, data as u64, &mut wakes), Ok(()));
            assert_eq!(join(set, connection, 0, 0, &mut wakes), Err(libc::EEXIST));
        }
        assert_eq!(join(last, connection, 0, 0, &mut wakes), Err(libc::ENOSPC));
        assert!(connection.deliver(b"x"));
        notify(connection, &mut wakes);
        for (data, set) in first.iter().enumerate() {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            assert_eq!(set.collect(&mut events, 4, &mut wakes), 1);
            let event = events[0];
            assert_eq!((event.events, event.u64), (libc::EPOLLIN as u32, data as u64));
        }
        forget(connection);
        assert!(first.iter().all(|set| membership(connection, set.index).is_none()));
        connections::give_back(connection);
        for set in sets {
            let fd = set.fd.load(Ordering::Relaxed);
            ready::closed(set);
            crate::table::note(fd, crate::table::Entry::Real);
            crate::sys::close(fd);
        }
    }
}

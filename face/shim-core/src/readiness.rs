//! Readiness of connections, and the epoll sets and blocked threads that wait for it.
//!
//! A connection has room for its membership in one epoll set, and most connections are in one set only. Each further
//! membership takes an *alias*: a slot in the table of connections that reports the first connection's readiness.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use crate::connections::{self, Connection, ERR, HUP, OUT};
use crate::epoll_set::{self, Members, Set};
use crate::lock;
use crate::sys::Errno;
use crate::waiters;
use crate::wakes::Wakes;

/// Maximum number of epoll sets that one connection may be in.
const MEMBERSHIPS_MAX: usize = 64;

/// Held while memberships begin and end, so that two threads that add one connection to two sets use different aliases.
static MEMBERSHIPS: Mutex<()> = Mutex::new(());

/// Readiness, and the membership in one set. Part of a [`Connection`].
#[repr(C)]
pub(crate) struct Readiness {
    /// Epoll's bits for receiving and for the end of a connection. Written with the connection's lock held; for a
    /// listener's stand-in, with the accept queue's lock held.
    receiving: AtomicU32,
    /// Epoll's bits for sending; 0 while sending is not possible. Written with the link's lock held.
    sending: AtomicU32,
    /// Index of the set that holds this membership, 0 for none. Changes with that set's lock held.
    set: AtomicU32,
    /// Number of this membership: an entry of a ready list with another ticket belongs to an earlier membership.
    ticket: AtomicU32,
    /// For an alias: the index of the connection that it stands for, plus one.
    stands_for: AtomicU32,
    /// The first alias, or for an alias the next one: its index plus one.
    alias: AtomicU32,
    /// Guarded by the lock of the set that `set` names.
    member: UnsafeCell<Member>,
}

// SAFETY: `member` is accessed only with the lock of the set that `set` names: see `Readiness::member`.
unsafe impl Sync for Readiness {}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Member {
    /// The events that the application asked for; 0 once EPOLLONESHOT has fired.
    pub(crate) events: u32,
    pub(crate) queued: bool,
    pub(crate) data: u64,
}

impl Readiness {
    pub(crate) const fn new() -> Readiness {
        Readiness {
            receiving: AtomicU32::new(0),
            sending: AtomicU32::new(OUT),
            set: AtomicU32::new(0),
            ticket: AtomicU32::new(0),
            stands_for: AtomicU32::new(0),
            alias: AtomicU32::new(0),
            member: UnsafeCell::new(Member { events: 0, queued: false, data: 0 }),
        }
    }

    /// Resets readiness for the slot's next use. Call before anything refers to the slot.
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

    /// Sets receiving bits, with the lock that guards them held. Call [`notify`] afterwards.
    pub(crate) fn raise(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears receiving bits, with the lock that guards them held.
    pub(crate) fn lower(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Sets whether sending is possible, with the link's lock held. Call [`notify`] afterwards.
    pub(crate) fn set_can_send(&self, can_send: bool) {
        self.sending.store(if can_send { OUT } else { 0 }, Ordering::Release);
    }

    /// Index of the set that holds this membership, 0 for none.
    #[inline]
    pub(crate) fn set(&self) -> u32 {
        self.set.load(Ordering::SeqCst)
    }

    /// Whether the connection, or an alias of it, is in any set.
    pub(crate) fn is_in_a_set(&self) -> bool {
        self.set() != 0 || self.alias.load(Ordering::SeqCst) != 0
    }

    #[inline]
    pub(crate) fn ticket(&self) -> u32 {
        self.ticket.load(Ordering::SeqCst)
    }

    /// The events to report now: those that the application asked for, errors and hang-ups.
    #[inline]
    pub(crate) fn events_to_report(&self, member: &Member) -> u32 {
        let state = match self.stands_for.load(Ordering::Relaxed) {
            0 => self.own_state(),
            index => connections::get(index - 1).map_or(0, |connection| connection.readiness.own_state()),
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

    /// Begins a membership. Call with the set's lock held, and only while this is in no set.
    pub(crate) fn begin_membership(&self, set: u32, events: u32, data: u64) {
        // SAFETY: no set holds this membership yet; from the store below on, the set's lock guards it, which is held.
        unsafe { *self.member.get() = Member { events: events | ERR | HUP, queued: false, data } };
        self.set.store(set, Ordering::SeqCst);
        // Pairs with the fence in `notify_all`: at least one of the two threads sees what the other has stored.
        fence(Ordering::SeqCst);
    }

    /// Ends a membership. Call with the set's lock held.
    pub(crate) fn end_membership(&self) {
        self.ticket.fetch_add(1, Ordering::SeqCst);
        self.set.store(0, Ordering::SeqCst);
    }
}

/// A connection and its aliases.
fn with_aliases(connection: &'static Connection) -> impl Iterator<Item = &'static Connection> {
    let mut next = Some(connection);
    // Bounded, because another thread may have freed an alias, and its slot may be in use for another connection.
    core::iter::from_fn(move || {
        let alias_or_self = next?;
        next = alias_or_self.readiness.alias.load(Ordering::SeqCst).checked_sub(1).and_then(connections::get);
        Some(alias_or_self)
    })
    .take(MEMBERSHIPS_MAX)
}

/// The connection or alias whose membership is in this set.
pub(crate) fn membership(connection: &'static Connection, set: u32) -> Option<&'static Connection> {
    with_aliases(connection).find(|alias_or_self| alias_or_self.readiness.set() == set)
}

/// Adds a connection to a set. EEXIST if the set already holds it, ENOSPC if too many sets do.
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
    let alias_or_self = match membership(connection, 0) {
        Some(alias_or_self) => alias_or_self,
        None => {
            if with_aliases(connection).count() == MEMBERSHIPS_MAX {
                return Err(libc::ENOSPC);
            }
            let alias = connections::take().ok_or(libc::ENOSPC)?;
            alias.readiness.stands_for.store(connection.index + 1, Ordering::SeqCst);
            let head = connection.readiness.alias.load(Ordering::SeqCst);
            alias.readiness.alias.store(head, Ordering::SeqCst);
            connection.readiness.alias.store(alias.index + 1, Ordering::SeqCst);
            alias
        }
    };
    set.begin_membership(alias_or_self, events, data, wakes);
    Ok(())
}

/// Removes a closed connection from all sets.
pub(crate) fn leave_all_sets(connection: &'static Connection) {
    let _memberships = lock(&MEMBERSHIPS);
    let all: Vec<&'static Connection> = with_aliases(connection).collect();
    connection.readiness.alias.store(0, Ordering::SeqCst);
    for alias_or_self in all {
        if let Some(set) = epoll_set::get(alias_or_self.readiness.set()) {
            let _ = set.end_membership(alias_or_self);
        }
        if alias_or_self.index != connection.index {
            connections::give_back(alias_or_self);
        }
    }
}

/// Informs a connection's sets, and the threads that are blocked on it, that readiness bits were set.
pub(crate) fn notify(connection: &'static Connection, wakes: &mut Wakes) {
    notify_all(core::iter::once(connection), wakes);
}

/// Like [`notify`], for all connections with data in one batch: consecutive connections of one set share its lock.
pub(crate) fn notify_all(raised: impl Iterator<Item = &'static Connection>, wakes: &mut Wakes) {
    // Makes the bits visible before the set is read. A thread that adds the connection to a set at this time sees the
    // bits, or this thread sees the set.
    fence(Ordering::SeqCst);
    let mut held: Option<(&Set, MutexGuard<'_, Members>)> = None;
    for connection in raised {
        queue_in_set(connection, &mut held, wakes);
        if connection.readiness.alias.load(Ordering::SeqCst) != 0 {
            for alias in with_aliases(connection).skip(1) {
                queue_in_set(alias, &mut held, wakes);
            }
        }
        waiters::wake(connection, wakes);
    }
}

/// Queues one membership in its set; `held` is the set used last, with its lock.
#[inline]
fn queue_in_set(
    alias_or_self: &'static Connection,
    held: &mut Option<(&'static Set, MutexGuard<'static, Members>)>,
    wakes: &mut Wakes,
) {
    let index = alias_or_self.readiness.set();
    if held.as_ref().is_none_or(|(set, _)| set.index != index) {
        drop(held.take()); // before the next lock: two sets are never locked at once
        *held = epoll_set::get(index).map(|set| (set, set.members()));
    }
    if let Some((set, members)) = held
        && alias_or_self.readiness.set() == set.index
    {
        set.queue(members, alias_or_self, wakes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_bounded_and_end_with_the_connection() {
        let connection = connections::take().unwrap();
        let sets: Vec<&Set> = (0..MEMBERSHIPS_MAX + 1)
            .map(|_| {
                let fd = crate::sys::epoll_create().unwrap();
                epoll_set::record_set(fd);
                let crate::table::Entry::Set(index) = crate::table::entry(fd) else {
                    panic!("the descriptor should be an epoll set")
                };
                epoll_set::get(index).unwrap()
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
        leave_all_sets(connection);
        assert!(first.iter().all(|set| membership(connection, set.index).is_none()));
        connections::give_back(connection);
        for set in sets {
            let fd = set.fd.load(Ordering::Relaxed);
            epoll_set::free_set(set);
            crate::table::record(fd, crate::table::Entry::Real);
            crate::sys::close(fd);
        }
    }
}

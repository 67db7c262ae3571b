//! Readiness of one connection, and its membership in one epoll set.
//!
//! A connection has room for its membership in one epoll set, and most connections are in one set only. Each further
//! membership takes an *alias*: a slot in the table of connections that reports the first connection's readiness.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering, fence};

/// Readiness as epoll reports it. As in the kernel, `EPOLLRDNORM` and `EPOLLWRNORM` come with `EPOLLIN` and `EPOLLOUT`.
pub(crate) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub(crate) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// Readiness, and the membership in one set. Part of a [`Connection`](crate::connections::Connection).
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

    /// Sets receiving bits, with the lock that guards them held. Call [`notify`](crate::notify::notify) afterwards.
    pub(crate) fn raise(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears receiving bits, with the lock that guards them held.
    pub(crate) fn lower(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Sets whether sending is possible, with the link's lock held. Call [`notify`](crate::notify::notify) afterwards.
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
        self.set() != 0 || self.next_alias().is_some()
    }

    #[inline]
    pub(crate) fn ticket(&self) -> u32 {
        self.ticket.load(Ordering::SeqCst)
    }

    /// For an alias: the index of the connection that it stands for.
    #[inline]
    pub(crate) fn stands_for(&self) -> Option<u32> {
        self.stands_for.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Index of the first alias, or for an alias of the next one.
    #[inline]
    pub(crate) fn next_alias(&self) -> Option<u32> {
        self.alias.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Makes another slot the first alias of this connection. Each slot is given with its index.
    pub(crate) fn add_alias(&self, own_index: u32, (alias, index): (&Readiness, u32)) {
        alias.stands_for.store(own_index + 1, Ordering::SeqCst);
        alias.alias.store(self.alias.load(Ordering::SeqCst), Ordering::SeqCst);
        self.alias.store(index + 1, Ordering::SeqCst);
    }

    /// Call before the aliases are freed.
    pub(crate) fn forget_aliases(&self) {
        self.alias.store(0, Ordering::SeqCst);
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

//! Epoll sets: which virtual connections are in them, and which of those are ready.
//!
//! A ready list holds candidates: whether one is ready is decided when it is taken off, from the state it has then.
//! Level-triggered ones that were reported go to its end, and are dropped when they come up again with nothing to
//! report. The kernel does the same.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, epoll_event};

use crate::connections::{self, Connection, ERR, HUP};
use crate::links;
use crate::lock;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};

/// Epoll sets at once. Those beyond serve real descriptors only.
const SETS_MAX: usize = 1024;

/// Virtual events that one call returns at most, so that the next look at the kernel is not far.
const EVENTS_PER_CALL_MAX: usize = 128;

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

static SETS: [AtomicPtr<Set>; SETS_MAX] = [const { AtomicPtr::new(null_mut()) }; SETS_MAX];
static FREE: Mutex<Free> = Mutex::new(Free { free: Vec::new(), made: 1 });

struct Free {
    free: Vec<u32>,
    /// Index 0 stands for no set.
    made: usize,
}

/// What is ready, and which set wants to know. Part of a [`Connection`].
#[repr(C)]
pub(crate) struct Source {
    /// What epoll reports of the receiving side, and what ends a connection. Written under the connection's lock
    /// (of a listener's stand-in: the accept queue's).
    receiving: AtomicU32,
    /// Whether sending is possible. Written under the link's lock.
    sending: AtomicU32,
    /// The set that it is in, 0 for none. Changes under that set's lock.
    set: AtomicU32,
    /// Entries of a ready list with another ticket are of an earlier membership.
    ticket: AtomicU32,
    /// Guarded by the lock of the set that `set` names.
    member: UnsafeCell<Member>,
}

// SAFETY: `member` is touched only with the lock of the set held that `set` names (see there).
unsafe impl Sync for Source {}

#[derive(Clone, Copy)]
#[repr(C)]
struct Member {
    /// As the application asked; 0 once EPOLLONESHOT has fired.
    events: u32,
    data: u64,
    queued: bool,
}

impl Source {
    pub(crate) const fn new() -> Source {
        Source {
            receiving: AtomicU32::new(0),
            sending: AtomicU32::new(connections::OUT),
            set: AtomicU32::new(0),
            ticket: AtomicU32::new(0),
            member: UnsafeCell::new(Member { events: 0, data: 0, queued: false }),
        }
    }

    /// Ready for its next life; nobody knows it.
    pub(crate) fn renew(&self) {
        self.receiving.store(0, Ordering::Relaxed);
        self.sending.store(connections::OUT, Ordering::Relaxed);
    }

    /// All readiness bits.
    pub(crate) fn state(&self) -> u32 {
        self.receiving.load(Ordering::Acquire) | self.sending.load(Ordering::Acquire)
    }

    /// Sets bits of the receiving side, under the lock that guards them; [`notify`] tells the set.
    pub(crate) fn raise(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears bits of the receiving side, under the lock that guards them.
    pub(crate) fn lower(&self, bits: u32) {
        self.receiving.store(self.receiving.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Whether sending is possible, under the link's lock; [`notify`] tells the set.
    pub(crate) fn can_send(&self, yes: bool) {
        self.sending.store(if yes { connections::OUT } else { 0 }, Ordering::Release);
    }

    /// The set that it is in, 0 for none.
    pub(crate) fn set(&self) -> u32 {
        self.set.load(Ordering::SeqCst)
    }

    fn wanted(&self, member: &Member) -> u32 {
        if member.events == 0 { 0 } else { self.state() & (member.events | ERR | HUP) }
    }
}

/// One epoll set of the application.
pub(crate) struct Set {
    pub(crate) index: u32,
    pub(crate) fd: AtomicI32,
    /// It holds, or held, something virtual or of ours: waiting on it is our business.
    pub(crate) active: AtomicBool,
    wake_fd: AtomicI32,
    /// Length of the ready list, so that an empty one is seen without the lock.
    ready_count: AtomicUsize,
    /// Calls since the last look at the kernel, and when that was, in nanoseconds.
    pub(crate) calls: AtomicU32,
    pub(crate) looked_at: AtomicU64,
    /// Lent to whoever receives from a link of this set.
    buffer: Mutex<Option<Box<[u8]>>>,
    inner: Mutex<Inner>,
}

struct Inner {
    ready: VecDeque<(u32, u32)>,
    /// Members, for the bound of `ready`.
    members: usize,
    /// Threads inside the kernel's wait.
    sleeping: u32,
    /// The sleepers have been woken already.
    woken: bool,
}

/// Sets to wake once no lock is held.
#[derive(Default)]
pub(crate) struct Wakes(Vec<c_int>);

impl Wakes {
    /// One write for each sleeping set.
    pub(crate) fn send(&mut self) {
        for fd in self.0.drain(..) {
            let _ = sys::write(fd, &1u64.to_ne_bytes());
        }
    }
}

impl Set {
    /// Makes the set ours to wait on: from now on it can be woken.
    pub(crate) fn activate(&self) -> Result<(), Errno> {
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let inner = lock(&self.inner);
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let wake = self.wake_descriptor()?;
        // Edge-triggered: it never has to be read.
        let events = libc::EPOLLIN as u32 | EDGE;
        let tag = crate::epoll::Tag::Wake.value();
        sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, wake, events, tag)?;
        self.active.store(true, Ordering::Release);
        drop(inner);
        // Threads that wait by the plain path come round to ours.
        let _ = sys::write(wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Made with the set, so that a server out of descriptors can still be woken, and kept for the next set in this
    /// place: another thread may be about to write to it.
    fn wake_descriptor(&self) -> Result<c_int, Errno> {
        let kept = self.wake_fd.load(Ordering::Acquire);
        if kept >= 0 {
            return Ok(kept);
        }
        let wake = sys::eventfd()?;
        table::note(wake, Entry::Own);
        self.wake_fd.store(wake, Ordering::Release);
        Ok(wake)
    }

    /// Puts a connection or listener in, as EPOLL_CTL_ADD.
    pub(crate) fn add(
        &self,
        connection: &Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) -> Result<(), Errno> {
        self.activate()?;
        let mut inner = lock(&self.inner);
        let source = &connection.source;
        if source.set() != 0 {
            let here = source.set() == self.index;
            if !here {
                crate::log::line(format_args!(
                    "a helped connection cannot be in two epoll sets: the second was refused"
                ));
            }
            return Err(if here { libc::EEXIST } else { libc::EPERM });
        }
        // SAFETY: it is in no set; this set's lock is held, and the store below makes this lock its guard.
        unsafe { *source.member.get() = Member { events: events | ERR | HUP, data, queued: false } };
        source.set.store(self.index, Ordering::SeqCst);
        // Pairs with the one in `notify_all`: one of the two sees what the other has stored.
        fence(Ordering::SeqCst);
        inner.members += 1;
        self.queue(&mut inner, connection, wakes);
        Ok(())
    }

    /// As EPOLL_CTL_MOD.
    pub(crate) fn modify(
        &self,
        connection: &Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) -> Result<(), Errno> {
        let mut inner = lock(&self.inner);
        if connection.source.set() != self.index {
            return Err(libc::ENOENT);
        }
        // SAFETY: it is in this set, whose lock is held.
        let member = unsafe { &mut *connection.source.member.get() };
        (member.events, member.data) = (events | ERR | HUP, data);
        self.queue(&mut inner, connection, wakes);
        Ok(())
    }

    /// As EPOLL_CTL_DEL, also when a member is closed.
    pub(crate) fn remove(&self, connection: &Connection) -> Result<(), Errno> {
        let mut inner = lock(&self.inner);
        if connection.source.set() != self.index {
            return Err(libc::ENOENT);
        }
        connection.source.ticket.fetch_add(1, Ordering::SeqCst);
        connection.source.set.store(0, Ordering::SeqCst);
        inner.members = inner.members.saturating_sub(1);
        if inner.ready.len() > 2 * inner.members + 1024 {
            let current = |&(index, ticket): &(u32, u32)| {
                connections::get(index).is_some_and(|connection| {
                    connection.source.set() == self.index
                        && connection.source.ticket.load(Ordering::SeqCst) == ticket
                })
            };
            inner.ready.retain(current);
            self.ready_count.store(inner.ready.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Appends a member to the ready list if it is ready and not there.
    fn queue(&self, inner: &mut Inner, connection: &Connection, wakes: &mut Wakes) {
        let source = &connection.source;
        // SAFETY: callers hold this set's lock and know that the connection is in this set.
        let member = unsafe { &mut *source.member.get() };
        if member.queued || source.wanted(member) == 0 {
            return;
        }
        member.queued = true;
        inner.ready.push_back((connection.index, source.ticket.load(Ordering::SeqCst)));
        self.ready_count.store(inner.ready.len(), Ordering::Release);
        if inner.sleeping > 0 && !inner.woken {
            inner.woken = true;
            wakes.0.push(self.wake_fd.load(Ordering::Relaxed));
        }
    }

    /// Whether the ready list has anything to look at.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) > 0
    }

    /// Reports ready members into `events` and returns how many.
    pub(crate) fn collect(&self, events: &mut [epoll_event]) -> usize {
        if events.is_empty() || !self.has_ready() {
            return 0;
        }
        let mut inner = lock(&self.inner);
        let limit = events.len().min(EVENTS_PER_CALL_MAX);
        let mut count = 0;
        for _ in 0..inner.ready.len() {
            if count == limit {
                break;
            }
            let Some((index, ticket)) = inner.ready.pop_front() else { break };
            let Some(connection) = connections::get(index) else { continue };
            let source = &connection.source;
            if source.set() != self.index || source.ticket.load(Ordering::SeqCst) != ticket {
                continue;
            }
            // SAFETY: it is in this set, whose lock is held.
            let member = unsafe { &mut *source.member.get() };
            let wanted = source.wanted(member);
            if wanted == 0 {
                member.queued = false;
                continue;
            }
            events[count] = epoll_event { events: wanted, u64: member.data };
            count += 1;
            if member.events & (EDGE | ONCE) == 0 {
                inner.ready.push_back((index, ticket));
                continue;
            }
            member.queued = false;
            if member.events & ONCE != 0 {
                member.events = 0;
            }
        }
        self.ready_count.store(inner.ready.len(), Ordering::Release);
        count
    }

    /// Before waiting in the kernel: `false` when something is ready, so that nobody may sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut inner = lock(&self.inner);
        if !inner.ready.is_empty() {
            return false;
        }
        inner.sleeping += 1;
        true
    }

    /// After [`fall_asleep`](Self::fall_asleep) and the wait.
    pub(crate) fn wake_up(&self) {
        let mut inner = lock(&self.inner);
        inner.sleeping = inner.sleeping.saturating_sub(1);
        inner.woken = false;
    }

    /// A buffer to receive into; hand it back with [`return_buffer`](Self::return_buffer).
    pub(crate) fn borrow_buffer(&self) -> Box<[u8]> {
        lock(&self.buffer).take().unwrap_or_else(|| vec![0; links::RECEIVE_BYTES].into_boxed_slice())
    }

    pub(crate) fn return_buffer(&self, buffer: Box<[u8]>) {
        *lock(&self.buffer) = Some(buffer);
    }
}

/// Tells a connection's set that its readiness bits were raised.
pub(crate) fn notify(connection: &Connection, wakes: &mut Wakes) {
    notify_all(core::iter::once(connection), wakes);
}

/// As [`notify`], for all that came in one batch: consecutive ones of a set share its lock.
pub(crate) fn notify_all<'a>(raised: impl Iterator<Item = &'a Connection>, wakes: &mut Wakes) {
    // The bits are visible before the set is looked for: whoever puts the connection into a set meanwhile sees
    // them, or we see the set.
    fence(Ordering::SeqCst);
    let mut held: Option<(&Set, MutexGuard<'_, Inner>)> = None;
    for connection in raised {
        let index = connection.source.set();
        if held.as_ref().is_none_or(|(set, _)| set.index != index) {
            drop(held.take()); // before the next is taken: never two at once
            held = get(index).map(|set| (set, lock(&set.inner)));
        }
        if let Some((set, inner)) = &mut held
            && connection.source.set() == set.index
        {
            set.queue(inner, connection, wakes);
        }
    }
}

/// Takes a connection out of whatever set it is in.
pub(crate) fn forget(connection: &Connection) {
    if let Some(set) = get(connection.source.set()) {
        let _ = set.remove(connection);
    }
}

/// The set with this index.
pub(crate) fn get(index: u32) -> Option<&'static Set> {
    let set = SETS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a set is made once and never freed; all access is shared.
    (!set.is_null()).then(|| unsafe { &*set })
}

/// The application made an epoll set.
pub(crate) fn created(fd: c_int) {
    let mut free = lock(&FREE);
    let index = match free.free.pop() {
        Some(index) => index,
        None if free.made < SETS_MAX => {
            let index = free.made as u32;
            free.made += 1;
            let set = Set {
                index,
                fd: AtomicI32::new(-1),
                active: AtomicBool::new(false),
                wake_fd: AtomicI32::new(-1),
                ready_count: AtomicUsize::new(0),
                calls: AtomicU32::new(0),
                looked_at: AtomicU64::new(0),
                buffer: Mutex::new(None),
                inner: Mutex::new(Inner { ready: VecDeque::new(), members: 0, sleeping: 0, woken: false }),
            };
            SETS[index as usize].store(Box::into_raw(Box::new(set)), Ordering::Release);
            index
        }
        None => return,
    };
    drop(free);
    if let Some(set) = get(index) {
        set.fd.store(fd, Ordering::Release);
        let _ = set.wake_descriptor();
        if !table::note(fd, Entry::Set(index)) {
            lock(&FREE).free.push(index);
        }
    }
}

/// The application closes an epoll set.
pub(crate) fn closed(set: &Set) {
    if set.active.swap(false, Ordering::AcqRel) {
        for member in connections::all() {
            let _ = set.remove(member);
        }
        let mut inner = lock(&set.inner);
        inner.ready = VecDeque::new();
        (inner.members, inner.woken) = (0, false);
        set.ready_count.store(0, Ordering::Release);
        *lock(&set.buffer) = None;
    }
    set.fd.store(-1, Ordering::Release);
    lock(&FREE).free.push(set.index);
}

//! Epoll sets: which virtual connections are in them, and which of those are ready.
//!
//! A ready list holds candidates: when an entry is taken off the list, its state at that time decides whether it is
//! reported. A level-triggered member that was reported goes to the end of the list; when it comes to the front again
//! and is no longer ready, it leaves the list. The kernel does the same.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, epoll_event};
use spillway_batch::Scratch;

use crate::connections::{self, Connection};
use crate::fairness::Turns;
use crate::lock;
use crate::readiness::{ERR, HUP, Member};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;

/// Maximum number of epoll sets tracked at the same time. Further sets report real descriptors only.
const SETS_MAX: usize = 1024;

/// Bytes that one call receives at most: more than a batch, so that one call receives several waiting batches.
const RECEIVE_BYTES: usize = 128 * 1024;

const EDGE: u32 = libc::EPOLLET as u32;
pub(crate) const ONCE: u32 = libc::EPOLLONESHOT as u32;
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

static SETS: [AtomicPtr<Set>; SETS_MAX] = [const { AtomicPtr::new(null_mut()) }; SETS_MAX];
static SLOTS: Mutex<Slots> = Mutex::new(Slots { free: Vec::new(), used: 1 });

/// The slots of [`SETS`].
struct Slots {
    /// Indexes of slots whose set was closed.
    free: Vec<u32>,
    /// Number of slots ever used. Index 0 means "no set".
    used: usize,
}

/// One epoll set of the application.
pub(crate) struct Set {
    pub(crate) index: u32,
    pub(crate) fd: AtomicI32,
    /// Whether this library handles waits on the set: from [`activate`](Self::activate) until the set is closed.
    pub(crate) active: AtomicBool,
    wake_fd: AtomicI32,
    /// Length of the ready list, to detect an empty list without the lock.
    ready_count: AtomicUsize,
    /// Decides between polling the kernel and reporting from the ready list.
    pub(crate) turns: Turns,
    /// In the library's own set: the `Slot::number` of the thread that receives for all blocked threads; 0 for none.
    pub(crate) leader: AtomicU32,
    /// A thread borrows the buffers while it receives from a link of this set.
    buffer: Mutex<Option<Box<Buffers>>>,
    /// Number of descriptors that refer to the set.
    descriptor_count: AtomicU32,
    inner: Mutex<Members>,
}

/// The ready list of a set, and the threads that wait for the set.
pub(crate) struct Members {
    /// Index of a connection, and the ticket of its membership.
    ready: VecDeque<(u32, u32)>,
    /// Number of all members, which bounds `ready`.
    count: usize,
    /// Number of threads that wait in the kernel.
    sleeping: u32,
    /// Whether the set was woken, and no thread has noticed it yet.
    woken: bool,
}

/// Buffers into which a link's bytes are received and decrypted.
pub(crate) struct Buffers {
    pub(crate) received: Box<[u8]>,
    pub(crate) scratch: Scratch,
}

impl Default for Buffers {
    fn default() -> Buffers {
        Buffers { received: vec![0; RECEIVE_BYTES].into_boxed_slice(), scratch: Scratch::new() }
    }
}

impl Set {
    /// Makes this library handle waits on the set. From then on, the set can be woken.
    pub(crate) fn activate(&self) -> Result<(), Errno> {
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let members = lock(&self.inner);
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let wake = self.wake_descriptor()?;
        // Edge-triggered, so the counter never has to be read.
        let events = libc::EPOLLIN as u32 | EDGE;
        let tag = Tag::Wake.value();
        sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, wake, events, tag)?;
        self.active.store(true, Ordering::Release);
        drop(members);
        // Wakes the threads that wait inside libc's `epoll_wait`: they continue in this library's `epoll_wait`.
        let _ = sys::write(wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// The event counter that wakes the set. Created with the set, so that a server that runs out of descriptors can
    /// still be woken. Stays open for the slot's next set, because another thread may be about to write to it.
    fn wake_descriptor(&self) -> Result<c_int, Errno> {
        let kept = self.wake_fd.load(Ordering::Acquire);
        if kept >= 0 {
            return Ok(kept);
        }
        let wake = sys::eventfd()?;
        table::record(wake, Entry::Library);
        self.wake_fd.store(wake, Ordering::Release);
        Ok(wake)
    }

    /// Adds a connection, an alias or a listener's stand-in that is in no set.
    pub(crate) fn begin_membership(
        &self,
        connection: &'static Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) {
        let mut members = lock(&self.inner);
        connection.readiness.begin_membership(self.index, events, data);
        members.count += 1;
        self.queue(&mut members, connection, wakes);
    }

    /// Changes the membership of a connection, an alias or a listener's stand-in.
    pub(crate) fn modify_membership(
        &self,
        connection: &Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) -> Result<(), Errno> {
        let mut members = lock(&self.inner);
        if connection.readiness.set() != self.index {
            return Err(libc::ENOENT);
        }
        // SAFETY: the connection is in this set, whose lock is held.
        let member = unsafe { connection.readiness.member() };
        if (member.events | events) & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        (member.events, member.data) = (events | ERR | HUP, data);
        self.queue(&mut members, connection, wakes);
        Ok(())
    }

    /// Ends a membership.
    pub(crate) fn end_membership(&self, connection: &Connection) -> Result<(), Errno> {
        let mut members = lock(&self.inner);
        if connection.readiness.set() != self.index {
            return Err(libc::ENOENT);
        }
        connection.readiness.end_membership();
        members.count = members.count.saturating_sub(1);
        if members.ready.len() > 2 * members.count + 1024 {
            let current = |&(index, ticket): &(u32, u32)| {
                connections::get(index).is_some_and(|connection| {
                    connection.readiness.set() == self.index && connection.readiness.ticket() == ticket
                })
            };
            members.ready.retain(current);
            self.ready_count.store(members.ready.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Locks the members, for [`queue`](Self::queue).
    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.inner)
    }

    /// Appends a member of this set to the ready list if it is ready and not in the list.
    #[inline]
    pub(crate) fn queue(&self, members: &mut Members, connection: &Connection, wakes: &mut Wakes) {
        let readiness = &connection.readiness;
        // SAFETY: callers hold this set's lock, and pass a connection that is in this set.
        let member = unsafe { readiness.member() };
        if member.queued || events_to_report(connection, member) == 0 {
            return;
        }
        member.queued = true;
        members.ready.push_back((connection.index, readiness.ticket()));
        self.ready_count.store(members.ready.len(), Ordering::Release);
        self.wake_one(members, wakes);
    }

    /// Wakes one of the threads that wait in the kernel, unless the set was woken already.
    fn wake_one(&self, members: &mut Members, wakes: &mut Wakes) {
        if members.sleeping > 0 && !members.woken {
            members.woken = true;
            wakes.push(self.wake_fd.load(Ordering::Relaxed));
        }
    }

    /// Records that a thread has noticed the wake-up. The next change wakes the set again.
    pub(crate) fn record_wake_seen(&self) {
        lock(&self.inner).woken = false;
    }

    /// Whether the ready list has candidates.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) > 0
    }

    /// Whether a thread waits in the kernel for this set. It will receive from the links when bytes arrive.
    pub(crate) fn has_sleeper(&self) -> bool {
        lock(&self.inner).sleeping > 0
    }

    /// Reports at most `limit` ready members into `events` and returns their number. If members are left, wakes a
    /// sleeping thread for them, because the calling thread may be busy for long.
    pub(crate) fn collect(&self, events: &mut [epoll_event], limit: usize, wakes: &mut Wakes) -> usize {
        if events.is_empty() || !self.has_ready() {
            return 0;
        }
        let mut members = lock(&self.inner);
        let limit = events.len().min(limit);
        let mut count = 0;
        for _ in 0..members.ready.len() {
            if count == limit {
                self.wake_one(&mut members, wakes);
                break;
            }
            let Some((index, ticket)) = members.ready.pop_front() else { break };
            let Some(connection) = connections::get(index) else { continue };
            let readiness = &connection.readiness;
            if readiness.set() != self.index || readiness.ticket() != ticket {
                continue;
            }
            // SAFETY: the connection is in this set, whose lock is held.
            let member = unsafe { readiness.member() };
            let ready_events = events_to_report(connection, member);
            if ready_events == 0 {
                member.queued = false;
                continue;
            }
            events[count] = epoll_event { events: ready_events, u64: member.data };
            count += 1;
            if member.events & (EDGE | ONCE) == 0 {
                members.ready.push_back((index, ticket));
                continue;
            }
            member.queued = false;
            if member.events & ONCE != 0 {
                member.events = 0;
            }
        }
        self.ready_count.store(members.ready.len(), Ordering::Release);
        count
    }

    /// Call before a wait in the kernel. `false`: a member may be ready, so the thread must not sleep.
    pub(crate) fn begin_sleep(&self) -> bool {
        let mut members = lock(&self.inner);
        if !members.ready.is_empty() {
            return false;
        }
        members.sleeping += 1;
        true
    }

    /// Call after [`begin_sleep`](Self::begin_sleep) and the wait.
    pub(crate) fn end_sleep(&self) {
        let mut members = lock(&self.inner);
        members.sleeping = members.sleeping.saturating_sub(1);
    }

    /// A buffer to receive into; hand it back with [`return_buffer`](Self::return_buffer).
    pub(crate) fn borrow_buffer(&self) -> Box<Buffers> {
        lock(&self.buffer).take().unwrap_or_default()
    }

    pub(crate) fn return_buffer(&self, buffer: Box<Buffers>) {
        *lock(&self.buffer) = Some(buffer);
    }
}

/// The events to report now: those that the application asked for, errors and hang-ups.
#[inline]
fn events_to_report(connection: &Connection, member: &Member) -> u32 {
    let state = match connection.readiness.stands_for() {
        None => connection.readiness.own_state(),
        Some(index) => connections::get(index).map_or(0, |connection| connection.readiness.own_state()),
    };
    if member.events == 0 { 0 } else { state & (member.events | ERR | HUP) }
}

pub(crate) fn get(index: u32) -> Option<&'static Set> {
    let set = SETS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a set is allocated once and never freed; all access is shared.
    (!set.is_null()).then(|| unsafe { &*set })
}

/// Records an epoll set that the application has created.
pub(crate) fn record_set(fd: c_int) {
    let Some(set) = allocate() else { return };
    set.fd.store(fd, Ordering::Release);
    set.descriptor_count.store(1, Ordering::Relaxed);
    let _ = set.wake_descriptor();
    if !table::record(fd, Entry::Set(set.index)) {
        lock(&SLOTS).free.push(set.index);
    }
}

/// Creates a set of this library, for links that are in no set of the application.
pub(crate) fn create_library_set() -> Result<&'static Set, Errno> {
    let fd = sys::epoll_create()?;
    let Some(set) = allocate() else {
        sys::close(fd);
        return Err(libc::ENOSPC);
    };
    table::record(fd, Entry::Library);
    set.fd.store(fd, Ordering::Release);
    Ok(set)
}

/// A set in a free slot; `None` if [`SETS_MAX`] sets are in use.
fn allocate() -> Option<&'static Set> {
    let mut slots = lock(&SLOTS);
    if let Some(index) = slots.free.pop() {
        return get(index);
    }
    if slots.used >= SETS_MAX {
        return None;
    }
    let index = slots.used as u32;
    slots.used += 1;
    let set = Set {
        index,
        fd: AtomicI32::new(-1),
        active: AtomicBool::new(false),
        wake_fd: AtomicI32::new(-1),
        ready_count: AtomicUsize::new(0),
        turns: Turns::new(),
        leader: AtomicU32::new(0),
        buffer: Mutex::new(None),
        descriptor_count: AtomicU32::new(0),
        inner: Mutex::new(Members { ready: VecDeque::new(), count: 0, sleeping: 0, woken: false }),
    };
    SETS[index as usize].store(Box::into_raw(Box::new(set)), Ordering::Release);
    get(index)
}

/// Records another descriptor of the set.
pub(crate) fn record_added_descriptor(set: &Set, fd: c_int) {
    if table::record(fd, Entry::Set(set.index)) {
        set.descriptor_count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Records that a descriptor of the set is closed. Returns whether it was the last; if not, another one becomes
/// `set.fd`.
pub(crate) fn record_closed_descriptor(set: &Set, fd: c_int) -> bool {
    if set.descriptor_count.fetch_sub(1, Ordering::AcqRel) <= 1 {
        return true;
    }
    if set.fd.load(Ordering::Acquire) == fd {
        let other = table::other_descriptor(Entry::Set(set.index), fd);
        set.fd.store(other.unwrap_or(-1), Ordering::Release);
    }
    false
}

/// Ends all memberships of a set that the application closes, and frees its slot.
pub(crate) fn free_set(set: &'static Set) {
    if set.active.swap(false, Ordering::AcqRel) {
        for connection in connections::all() {
            let _ = set.end_membership(connection);
        }
        let mut members = lock(&set.inner);
        members.ready = VecDeque::new();
        (members.count, members.woken) = (0, false);
        set.ready_count.store(0, Ordering::Release);
        *lock(&set.buffer) = None;
    }
    set.fd.store(-1, Ordering::Release);
    lock(&SLOTS).free.push(set.index);
}

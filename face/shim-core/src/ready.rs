//! Epoll sets: which virtual connections are in them, and which of those are ready.
//!
//! A ready list holds candidates: whether one is ready is decided when it is taken off, from the state it has then.
//! Level-triggered ones that were reported go to its end, and are dropped when they come up again with nothing to
//! report. The kernel does the same.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, epoll_event};
use spillway_batch::Scratch;

use crate::connections::{self, Connection, ERR, HUP};
use crate::lock;
use crate::source;
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::turns::Turns;
use crate::wakes::Wakes;

/// Epoll sets at once. Those beyond serve real descriptors only.
const SETS_MAX: usize = 1024;

/// Bytes received at once. A batch is smaller; a backlog is not, and costs fewer calls this way.
const RECEIVE_BYTES: usize = 128 * 1024;

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

static SETS: [AtomicPtr<Set>; SETS_MAX] = [const { AtomicPtr::new(null_mut()) }; SETS_MAX];
static FREE: Mutex<Free> = Mutex::new(Free { free: Vec::new(), made: 1 });

struct Free {
    free: Vec<u32>,
    /// Index 0 stands for no set.
    made: usize,
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
    /// Whose turn it is: the kernel's or the ready list's.
    pub(crate) turns: Turns,
    /// The waiter that receives for everybody, of a set that is not the application's; its slot plus one.
    pub(crate) leader: AtomicU32,
    /// Lent to whoever receives from a link of this set.
    buffer: Mutex<Option<Box<Buffers>>>,
    /// Descriptors that name it.
    references: AtomicU32,
    inner: Mutex<Members>,
}

/// The members of a set that may be ready.
pub(crate) struct Members {
    ready: VecDeque<(u32, u32)>,
    /// All members, for the bound of `ready`.
    count: usize,
    /// Threads inside the kernel's wait.
    sleeping: u32,
    /// A wake-up is under way, and no thread has seen it yet.
    woken: bool,
}

/// What links' bytes are received into and opened in.
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
    /// Makes the set ours to wait on: from now on it can be woken.
    pub(crate) fn activate(&self) -> Result<(), Errno> {
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let members = lock(&self.inner);
        if self.active.load(Ordering::Acquire) {
            return Ok(());
        }
        let wake = self.wake_descriptor()?;
        // Edge-triggered: it never has to be read.
        let events = libc::EPOLLIN as u32 | EDGE;
        let tag = Tag::Wake.value();
        sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, wake, events, tag)?;
        self.active.store(true, Ordering::Release);
        drop(members);
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
        connection: &'static Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) -> Result<(), Errno> {
        if events & EXCLUSIVE != 0 && events & (ONCE | libc::EPOLLRDHUP as u32 | libc::EPOLLPRI as u32) != 0 {
            return Err(libc::EINVAL);
        }
        source::join(self, connection, events, data, wakes)
    }

    /// Begins a membership at a place that no set has.
    pub(crate) fn begin(&self, place: &'static Connection, events: u32, data: u64, wakes: &mut Wakes) {
        let mut members = lock(&self.inner);
        place.source.begin(self.index, events, data);
        members.count += 1;
        self.queue(&mut members, place, wakes);
    }

    /// As EPOLL_CTL_MOD.
    pub(crate) fn modify(
        &self,
        connection: &'static Connection,
        events: u32,
        data: u64,
        wakes: &mut Wakes,
    ) -> Result<(), Errno> {
        let place = source::membership(connection, self.index).ok_or(libc::ENOENT)?;
        let mut members = lock(&self.inner);
        if place.source.set() != self.index {
            return Err(libc::ENOENT);
        }
        // SAFETY: it is in this set, whose lock is held.
        let member = unsafe { place.source.member() };
        if (member.events | events) & EXCLUSIVE != 0 {
            return Err(libc::EINVAL);
        }
        (member.events, member.data) = (events | ERR | HUP, data);
        self.queue(&mut members, place, wakes);
        Ok(())
    }

    /// As EPOLL_CTL_DEL.
    pub(crate) fn remove(&self, connection: &'static Connection) -> Result<(), Errno> {
        self.end(source::membership(connection, self.index).ok_or(libc::ENOENT)?)
    }

    /// Ends a membership.
    pub(crate) fn end(&self, place: &Connection) -> Result<(), Errno> {
        let mut members = lock(&self.inner);
        if place.source.set() != self.index {
            return Err(libc::ENOENT);
        }
        place.source.end();
        members.count = members.count.saturating_sub(1);
        if members.ready.len() > 2 * members.count + 1024 {
            let current = |&(index, ticket): &(u32, u32)| {
                connections::get(index).is_some_and(|connection| {
                    connection.source.set() == self.index && connection.source.ticket() == ticket
                })
            };
            members.ready.retain(current);
            self.ready_count.store(members.ready.len(), Ordering::Release);
        }
        Ok(())
    }

    /// For [`queue`](Self::queue).
    pub(crate) fn members(&self) -> MutexGuard<'_, Members> {
        lock(&self.inner)
    }

    /// Appends a member of this set to the ready list if it is ready and not there.
    #[inline]
    pub(crate) fn queue(&self, members: &mut Members, place: &Connection, wakes: &mut Wakes) {
        let source = &place.source;
        // SAFETY: callers hold this set's lock and know that the place is in this set.
        let member = unsafe { source.member() };
        if member.queued || source.wanted(member) == 0 {
            return;
        }
        member.queued = true;
        members.ready.push_back((place.index, source.ticket()));
        self.ready_count.store(members.ready.len(), Ordering::Release);
        self.wake_one(members, wakes);
    }

    /// Wakes one of the threads inside the kernel's wait, unless one is about to be.
    fn wake_one(&self, members: &mut Members, wakes: &mut Wakes) {
        if members.sleeping > 0 && !members.woken {
            members.woken = true;
            wakes.push(self.wake_fd.load(Ordering::Relaxed));
        }
    }

    /// A thread has seen the wake-up, asleep or not: the next change needs another.
    pub(crate) fn wake_seen(&self) {
        lock(&self.inner).woken = false;
    }

    /// Whether the ready list has anything to look at.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready_count.load(Ordering::Acquire) > 0
    }

    /// Whether a thread waits in the kernel for this set, so that it will receive.
    pub(crate) fn has_sleeper(&self) -> bool {
        lock(&self.inner).sleeping > 0
    }

    /// Reports at most `limit` ready members into `events` and returns how many. Those left over are for another
    /// thread, if one sleeps: this one may be busy for long.
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
            let Some(place) = connections::get(index) else { continue };
            let source = &place.source;
            if source.set() != self.index || source.ticket() != ticket {
                continue;
            }
            // SAFETY: it is in this set, whose lock is held.
            let member = unsafe { source.member() };
            let wanted = source.wanted(member);
            if wanted == 0 {
                member.queued = false;
                continue;
            }
            events[count] = epoll_event { events: wanted, u64: member.data };
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

    /// Before waiting in the kernel: `false` when something is ready, so that nobody may sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        let mut members = lock(&self.inner);
        if !members.ready.is_empty() {
            return false;
        }
        members.sleeping += 1;
        true
    }

    /// After [`fall_asleep`](Self::fall_asleep) and the wait.
    pub(crate) fn wake_up(&self) {
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

/// The set with this index.
pub(crate) fn get(index: u32) -> Option<&'static Set> {
    let set = SETS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a set is made once and never freed; all access is shared.
    (!set.is_null()).then(|| unsafe { &*set })
}

/// The application made an epoll set.
pub(crate) fn created(fd: c_int) {
    let Some(set) = place() else { return };
    set.fd.store(fd, Ordering::Release);
    set.references.store(1, Ordering::Relaxed);
    let _ = set.wake_descriptor();
    if !table::note(fd, Entry::Set(set.index)) {
        lock(&FREE).free.push(set.index);
    }
}

/// A set of our own, in which links wait that no set of the application's has.
pub(crate) fn own() -> Result<&'static Set, Errno> {
    let fd = sys::epoll_create()?;
    let Some(set) = place() else {
        sys::close(fd);
        return Err(libc::ENOSPC);
    };
    table::note(fd, Entry::Own);
    set.fd.store(fd, Ordering::Release);
    Ok(set)
}

fn place() -> Option<&'static Set> {
    let mut free = lock(&FREE);
    if let Some(index) = free.free.pop() {
        return get(index);
    }
    if free.made >= SETS_MAX {
        return None;
    }
    let index = free.made as u32;
    free.made += 1;
    let set = Set {
        index,
        fd: AtomicI32::new(-1),
        active: AtomicBool::new(false),
        wake_fd: AtomicI32::new(-1),
        ready_count: AtomicUsize::new(0),
        turns: Turns::new(),
        leader: AtomicU32::new(0),
        buffer: Mutex::new(None),
        references: AtomicU32::new(0),
        inner: Mutex::new(Members { ready: VecDeque::new(), count: 0, sleeping: 0, woken: false }),
    };
    SETS[index as usize].store(Box::into_raw(Box::new(set)), Ordering::Release);
    get(index)
}

/// One more descriptor names the set.
pub(crate) fn named_too(set: &Set, fd: c_int) {
    if table::note(fd, Entry::Set(set.index)) {
        set.references.fetch_add(1, Ordering::Relaxed);
    }
}

/// A descriptor of the set is closed: whether it was the last. Of those left, one is used by ourselves.
pub(crate) fn unnamed(set: &Set, fd: c_int) -> bool {
    if set.references.fetch_sub(1, Ordering::AcqRel) <= 1 {
        return true;
    }
    if set.fd.load(Ordering::Acquire) == fd {
        let other = table::others(Entry::Set(set.index), fd);
        set.fd.store(other.unwrap_or(-1), Ordering::Release);
    }
    false
}

/// The application closes an epoll set.
pub(crate) fn closed(set: &'static Set) {
    if set.active.swap(false, Ordering::AcqRel) {
        for place in connections::all() {
            let _ = set.end(place);
        }
        let mut members = lock(&set.inner);
        members.ready = VecDeque::new();
        (members.count, members.woken) = (0, false);
        set.ready_count.store(0, Ordering::Release);
        *lock(&set.buffer) = None;
    }
    set.fd.store(-1, Ordering::Release);
    lock(&FREE).free.push(set.index);
}

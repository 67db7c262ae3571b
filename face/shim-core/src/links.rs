//! Links: real sockets whose batches are virtual connections, one lock each.

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use spillway_batch::{CloseReason, Id, Info, RefuseReason, ServerLink};
use spillway_transport::Time;

use crate::connections::{Connection, OUT};
use crate::epoll::Tag;
use crate::link::{Inner, Lost, interest};
use crate::ready::{self, Set, Wakes};
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{lock, log, switch, threads};

/// Bytes received at once. A batch is smaller; a backlog is not, and costs fewer calls this way.
pub(crate) const RECEIVE_BYTES: usize = 128 * 1024;

/// Replies that reach this size go at once, whoever else is still to answer.
const FLUSH_BYTES: usize = 64 * 1024;

/// Links at once: helpers' and library clients'.
const LINKS_MAX: usize = 4096;

static LINKS: [AtomicPtr<Link>; LINKS_MAX] = [const { AtomicPtr::new(null_mut()) }; LINKS_MAX];
static FREE: Mutex<Free> = Mutex::new(Free { free: Vec::new(), made: 0 });

/// Links whose peers have not authenticated yet, at once: strangers must not use up the server's descriptors.
const HANDSHAKES_MAX: u32 = 128;

/// The link of a connection that came by none.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// Links whose peers have not authenticated yet.
static HANDSHAKES: AtomicU32 = AtomicU32::new(0);
/// When those were last looked at, in nanoseconds.
static EXPIRED_AT: AtomicU64 = AtomicU64::new(0);
/// How often they are.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(100);

struct Free {
    free: Vec<u32>,
    made: usize,
}

/// One link. Its place is reused when it ends, never freed.
pub(crate) struct Link {
    index: u32,
    inner: Mutex<Inner>,
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

/// A link's socket was accepted in the set that the link port is in.
pub(crate) fn opened(fd: c_int, peer: SocketAddr, local: SocketAddr, end: ServerLink, set: &Set) {
    if HANDSHAKES.load(Ordering::Relaxed) >= HANDSHAKES_MAX {
        status::count(Counter::LinkStrangers);
        log::knock(format_args!("link of {peer} refused: {HANDSHAKES_MAX} others have yet to authenticate"));
        sys::close(fd);
        return;
    }
    let Some(link) = place() else {
        status::count(Counter::LinkFull);
        log::line(format_args!("link of {peer} refused: {LINKS_MAX} links are open already"));
        sys::close(fd);
        return;
    };
    let mut inner = link.lock();
    if !table::note(fd, Entry::Own)
        || sys::epoll_ctl(
            set.fd.load(Ordering::Relaxed),
            libc::EPOLL_CTL_ADD,
            fd,
            interest(false),
            Tag::Link(link.index).value(),
        )
        .is_err()
    {
        status::count(Counter::LinkDescriptors);
        log::line(format_args!("link of {peer} refused: its socket cannot be watched"));
        table::note(fd, Entry::Real);
        sys::close(fd);
        lock(&FREE).free.push(link.index);
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    *inner = Inner::begun(link.index, fd, end, (peer, local), set.index);
    HANDSHAKES.fetch_add(1, Ordering::Relaxed);
    status::link_began(link.index, peer);
}

fn place() -> Option<&'static Link> {
    let mut free = lock(&FREE);
    if let Some(index) = free.free.pop() {
        return get(index);
    }
    if free.made >= LINKS_MAX {
        return None;
    }
    let index = free.made as u32;
    free.made += 1;
    let link = Link { index, inner: Mutex::new(Inner::vacant(index)) };
    LINKS[index as usize].store(Box::into_raw(Box::new(link)), Ordering::Release);
    get(index)
}

fn get(index: u32) -> Option<&'static Link> {
    let link = LINKS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a link is made once and never freed; all access is shared.
    (!link.is_null()).then(|| unsafe { &*link })
}

fn all() -> impl Iterator<Item = &'static Link> {
    let made = lock(&FREE).made as u32;
    (0..made).filter_map(get)
}

/// Epoll says that a link's socket is ready.
pub(crate) fn ready(index: u32, set: &Set, events: u32, wakes: &mut Wakes) {
    let Some(link) = get(index) else { return };
    let mut inner = link.lock();
    if events & OUT != 0 {
        inner.flush_or_lose(wakes);
    }
    if events & !OUT != 0 {
        let mut buffer = set.borrow_buffer();
        inner.receive_or_lose(&mut buffer, wakes);
        set.return_buffer(buffer);
    }
}

/// A blocked thread looks after a link, because nobody else may.
pub(crate) fn attend(index: u32, wakes: &mut Wakes) {
    let Some(link) = get(index) else { return };
    let mut inner = link.lock();
    let Some(set) = ready::get(inner.set) else { return };
    inner.flush_or_lose(wakes);
    let mut buffer = set.borrow_buffer();
    inner.receive_or_lose(&mut buffer, wakes);
    set.return_buffer(buffer);
    inner.flush_or_lose(wakes);
}

/// As [`attend`], for all links of these connections.
pub(crate) fn attend_all(connections: &[&'static Connection], wakes: &mut Wakes) {
    for index in of_all(connections) {
        attend(index, wakes);
    }
}

/// Links that some connections came by and that are in another set than `own`.
#[derive(Default)]
pub(crate) struct Outside {
    pub(crate) any: bool,
    /// Those that no thread waits for in its epoll set: index, socket, and whether it waits for room to send.
    pub(crate) unattended: Vec<(u32, c_int, bool)>,
}

pub(crate) fn outside(connections: &[&'static Connection], own: Option<&Set>) -> Outside {
    let mut outside = Outside::default();
    for index in of_all(connections) {
        let Some(link) = get(index) else { continue };
        let (set, fd, wants_out) = {
            let inner = link.lock();
            (inner.set, inner.fd, inner.wants_out)
        };
        if fd < 0 || own.is_some_and(|own| own.index == set) {
            continue;
        }
        outside.any = true;
        if ready::get(set).is_some_and(|set| !set.has_sleeper()) {
            outside.unattended.push((index, fd, wants_out));
        }
    }
    outside
}

fn of_all(connections: &[&'static Connection]) -> Vec<u32> {
    let of = |connection: &&Connection| connection.link.load(Ordering::Relaxed);
    let mut links: Vec<u32> = connections.iter().map(of).filter(|&link| link != NO_LINK).collect();
    links.sort_unstable();
    links.dedup();
    links
}

/// Sends what this thread has put off.
pub(crate) fn flush_deferred(wakes: &mut Wakes) {
    while let Some(index) = threads::take_deferred() {
        if let Some(link) = get(index) {
            link.lock().flush_or_lose(wakes);
        }
    }
}

/// Sends replies on a connection: the length taken, or EAGAIN.
///
/// # Safety
/// `parts` describe readable memory.
pub(crate) unsafe fn send(
    fd: c_int,
    connection: &Connection,
    parts: &[libc::iovec],
    wakes: &mut Wakes,
) -> Result<usize, Errno> {
    if connection.finished.load(Ordering::Acquire) || connection.closed_by_peer.load(Ordering::Acquire) {
        return Err(libc::EPIPE);
    }
    let link = get(connection.link.load(Ordering::Relaxed)).ok_or(libc::EPIPE)?;
    let mut inner = link.lock();
    if !connection.is_named(fd) {
        return Err(libc::EBADF); // closed by another thread; it may be another client's by now
    }
    let (id, end) = inner.of(connection).ok_or(libc::EPIPE)?;
    let mut gathered = [MaybeUninit::uninit(); GATHER_BYTES];
    let gathered = match parts {
        [_] => None, // in one piece already
        // SAFETY: the caller vouches for the parts.
        parts => unsafe { gather(parts, &mut gathered) },
    };
    let (taken, wanted) = match gathered {
        Some(reply) => (end.compose(id, reply), reply.len()),
        // SAFETY: as above.
        None => unsafe { compose_parts(end, id, parts) },
    };
    if taken < wanted {
        // Before anything is flushed: room that comes with it raises the bit again.
        connection.source.can_send(false);
    }
    let pending = end.pending();
    if pending >= FLUSH_BYTES {
        inner.flush_or_lose(wakes);
    } else {
        inner.send_soon(wakes);
    }
    if taken == 0 && wanted > 0 { Err(libc::EAGAIN) } else { Ok(taken) }
}

/// Replies up to this size are gathered before they are composed: a server writes a small one in several parts, and
/// each costs more to compose than to copy.
const GATHER_BYTES: usize = 512;

/// The parts' bytes in one piece, if they are few.
///
/// # Safety
/// `parts` describe readable memory.
unsafe fn gather<'a>(
    parts: &[libc::iovec],
    gathered: &'a mut [MaybeUninit<u8>; GATHER_BYTES],
) -> Option<&'a [u8]> {
    let mut length = 0usize;
    for part in parts {
        let room = gathered.get_mut(length..length.checked_add(part.iov_len)?)?;
        if !room.is_empty() {
            // SAFETY: the caller vouches for the part; the room has just its length.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    part.iov_base.cast::<u8>(),
                    room.as_mut_ptr().cast(),
                    part.iov_len,
                )
            };
        }
        length += part.iov_len;
    }
    // SAFETY: each of these bytes was copied from a part.
    Some(unsafe { core::slice::from_raw_parts(gathered.as_ptr().cast(), length) })
}

/// Composes part after part, as far as there is room: bytes taken, and bytes tried.
///
/// # Safety
/// `parts` describe readable memory.
unsafe fn compose_parts(end: &mut ServerLink, id: Id, parts: &[libc::iovec]) -> (usize, usize) {
    let (mut taken, mut wanted) = (0, 0);
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the caller vouches for the part.
        let bytes = unsafe { core::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        let more = end.compose(id, bytes);
        (taken, wanted) = (taken + more, wanted + bytes.len());
        if more < bytes.len() {
            break;
        }
    }
    (taken, wanted)
}

/// The application has read bytes.
pub(crate) fn consumed(connection: &Connection, bytes: usize, wakes: &mut Wakes) {
    with(connection, wakes, |end, id| end.consumed(id, bytes));
}

/// The application sends no more.
pub(crate) fn finish(connection: &Connection, wakes: &mut Wakes) {
    with(connection, wakes, |end, id| end.finish(id));
}

/// The application has accepted the connection.
pub(crate) fn accept(connection: &Connection, wakes: &mut Wakes) {
    with(connection, wakes, |end, id| end.accept(id));
}

/// Nobody will accept the connection: it has been taken out of the queue.
pub(crate) fn refuse(connection: &Connection, wakes: &mut Wakes) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, _)) = inner.of(connection) else { return };
    inner.refuse(id, RefuseReason::Unavailable);
    status::connection_ended(connection);
    inner.name(id, None);
    inner.send_soon(wakes);
}

/// The application has closed the connection: no delivery can meet it after this.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, end)) = inner.of(connection) else { return };
    end.close(id, if abort { CloseReason::Reset } else { CloseReason::Normal });
    status::connection_ended(connection);
    inner.name(id, None);
    inner.send_soon(wakes);
}

/// A peer has authenticated, or went before it did.
pub(crate) fn authenticated_or_gone() {
    HANDSHAKES.fetch_sub(1, Ordering::Relaxed);
}

/// A link's place is free.
pub(crate) fn give_back(index: u32) {
    lock(&FREE).free.push(index);
}

fn with(connection: &Connection, wakes: &mut Wakes, act: impl FnOnce(&mut ServerLink, Id)) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    if let Some((id, end)) = inner.of(connection) {
        act(end, id);
        inner.send_soon(wakes);
    }
}

/// A set holds a connection of the link: its threads receive from the link from now on, unless others do already.
pub(crate) fn adopt(connection: &Connection, set: &Set) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    if inner.of(connection).is_some() && !inner.adopted {
        inner.adopted = true;
        inner.move_to(set);
    }
}

/// A set is closed: its links move to `home`, where they were accepted, or end if that is gone too.
pub(crate) fn leave(set: &Set, home: Option<&Set>, wakes: &mut Wakes) {
    for link in all() {
        let mut inner = link.lock();
        if inner.end.is_some() && inner.set == set.index {
            inner.adopted = false;
            match home {
                Some(home) => inner.move_to(home),
                None => inner.lose(Lost::Unserved, wakes),
            }
        }
    }
}

/// Whether somebody has yet to authenticate, or to go, so that a wait must not be long.
pub(crate) fn need_looks() -> bool {
    HANDSHAKES.load(Ordering::Relaxed) > 0 || switch::is_draining()
}

/// Asks the peers of all links to move their connections away: how many links that are.
pub(crate) fn drain(within_ms: u32, wakes: &mut Wakes) -> usize {
    let mut count = 0;
    for link in all() {
        let mut inner = link.lock();
        if let Some(end) = inner.end.as_mut().filter(|end| end.is_established()) {
            end.drain(within_ms);
            inner.flush_or_lose(wakes);
            count += 1;
        }
    }
    count
}

/// Ends links that carry nothing, or all of them: how many are left.
pub(crate) fn end_drained(all_of_them: bool, wakes: &mut Wakes) -> usize {
    let mut left = 0;
    for link in all() {
        let mut inner = link.lock();
        let Some(end) = &inner.end else { continue };
        if all_of_them || end.connections() == 0 {
            inner.lose(Lost::SwitchedOff, wakes);
        } else {
            left += 1;
        }
    }
    left
}

/// Tells what each virtual connection that the application has not closed is doing.
pub(crate) fn each_connection(mut tell: impl FnMut(u32, Info)) {
    all().for_each(|link| link.lock().each_connection(&mut tell));
}

/// Ends links whose peers did not authenticate in time, or whose time is over.
pub(crate) fn expire(wakes: &mut Wakes) {
    let now = sys::now();
    if now.since(Time(EXPIRED_AT.load(Ordering::Relaxed))) < EXPIRY_INTERVAL {
        return;
    }
    EXPIRED_AT.store(now.as_nanos(), Ordering::Relaxed);
    for link in all() {
        let mut inner = link.lock();
        if let Some(end) = &mut inner.end
            && let Err(error) = end.handle_timeout(now)
        {
            inner.lose(Lost::Broken(error), wakes);
        }
    }
    switch::end_links(wakes);
}

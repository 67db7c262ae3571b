//! Links: real sockets that carry the batches of virtual connections. Each has a lock.

mod moves;

use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use spillway_batch::{CloseReason, Id, Info, RefuseReason, ServerLink};
use spillway_transport::Time;

use crate::carrier_name::{CarrierName, Name};
use crate::connections::{Connection, NO_LINK, OUT};
use crate::io_vectors::put;
use crate::link::{Inner, Interest, Lost, Named};
use crate::link_places::{self, Place};
use crate::patience::Patience;
use crate::ready::{self, Set};
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{handshakes, lock, log, sessions, threads};

pub(crate) use moves::{Traffic, say_all, traffic};

/// Most links at once, of helpers and library clients.
const LINKS_MAX: usize = 4096;

static LINKS: [AtomicPtr<Link>; LINKS_MAX] = [const { AtomicPtr::new(null_mut()) }; LINKS_MAX];

/// Serial number of the next link.
static SERIAL: AtomicU64 = AtomicU64::new(0);
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

/// Begins a link whose socket was accepted; `set` is the set that the link port is in.
pub(crate) fn opened(
    fd: c_int,
    peer: SocketAddr,
    local: SocketAddr,
    end: ServerLink,
    set: &Set,
    wakes: &mut Wakes,
) {
    let Some(link) = place() else {
        status::count(Counter::LinkFull);
        log::line(format_args!("link of {peer} refused: {LINKS_MAX} links are open already"));
        sys::end_socket(fd);
        return;
    };
    let mut inner = link.lock();
    if !table::note(fd, Entry::Own)
        || sys::epoll_ctl(
            set.fd.load(Ordering::Relaxed),
            libc::EPOLL_CTL_ADD,
            fd,
            Interest::INPUT.events(),
            Tag::Link(link.index).value(),
        )
        .is_err()
    {
        status::count(Counter::LinkDescriptors);
        log::line(format_args!("link of {peer} refused: its socket cannot be watched"));
        table::note(fd, Entry::Real);
        sys::end_socket(fd);
        link_places::give_back(link.index);
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    // Keep-alive: a host that lost power closes nothing, and the sessions that it carried would wait for ever.
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    for (option, value) in [(libc::TCP_KEEPIDLE, 30), (libc::TCP_KEEPINTVL, 10), (libc::TCP_KEEPCNT, 3)] {
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, option, value);
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    *inner = Inner::begun((link.index, serial), fd, end, (peer, local), set.index);
    status::link_began(link.index, peer);
    let victim = handshakes::begin(peer.ip(), (link.index, serial));
    // A peer with a key names it in its first packet, and is distinguished from silent strangers before the next link
    // is accepted.
    let mut buffer = set.borrow_buffer();
    inner.receive_or_lose(&mut buffer, wakes);
    set.return_buffer(buffer);
    drop(inner);
    if let Some((index, serial)) = victim {
        evict(index, serial, wakes);
    }
}

fn evict(index: u32, serial: u64, wakes: &mut Wakes) {
    let Some(link) = get(index) else { return };
    let mut inner = link.lock();
    if inner.is_newcomer(serial) {
        inner.lose(Lost::Evicted, wakes);
    }
}

fn place() -> Option<&'static Link> {
    match link_places::take(LINKS_MAX)? {
        Place::Used(index) => get(index),
        Place::New(index) => {
            let link = Link { index, inner: Mutex::new(Inner::vacant(index)) };
            LINKS[index as usize].store(Box::into_raw(Box::new(link)), Ordering::Release);
            get(index)
        }
    }
}

fn get(index: u32) -> Option<&'static Link> {
    let link = LINKS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a link is made once and never freed; all access is shared.
    (!link.is_null()).then(|| unsafe { &*link })
}

fn all() -> impl Iterator<Item = &'static Link> {
    (0..link_places::made()).filter_map(get)
}

/// Flushes and receives. Called when epoll reports a link's socket.
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

/// Flushes and receives in a blocked thread, because no other thread may serve the link.
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

/// Like [`attend`], for all links of these connections.
pub(crate) fn attend_all(connections: &[&'static Connection], wakes: &mut Wakes) {
    for index in of_all(connections) {
        attend(index, wakes);
    }
}

/// Links of some connections that are in another set than `own`.
#[derive(Default)]
pub(crate) struct Outside {
    pub(crate) any: bool,
    /// Links for whose epoll set no thread waits: index, socket, and the events that it is watched for.
    pub(crate) unattended: Vec<(u32, c_int, Interest)>,
}

pub(crate) fn outside(connections: &[&'static Connection], own: Option<&Set>) -> Outside {
    let mut outside = Outside::default();
    for index in of_all(connections) {
        let Some(link) = get(index) else { continue };
        let (set, fd, watched) = {
            let inner = link.lock();
            (inner.set, inner.fd, inner.watched)
        };
        if fd < 0 || own.is_some_and(|own| own.index == set) {
            continue;
        }
        outside.any = true;
        if ready::get(set).is_some_and(|set| !set.has_sleeper()) {
            outside.unattended.push((index, fd, watched));
        }
    }
    outside
}

fn of_all(connections: &[&'static Connection]) -> Vec<u32> {
    let mut links: Vec<u32> = connections.iter().filter_map(|connection| link_of(connection)).collect();
    links.sort_unstable();
    links.dedup();
    links
}

/// The link that carries a connection now.
fn link_of(connection: &Connection) -> Option<u32> {
    if sessions::is_carried(connection) {
        return sessions::link_of(connection);
    }
    Some(connection.link.load(Ordering::Relaxed)).filter(|&link| link != NO_LINK)
}

/// Sends what this thread has deferred.
pub(crate) fn flush_deferred(wakes: &mut Wakes) {
    while let Some(index) = threads::take_deferred() {
        if let Some(link) = get(index) {
            link.lock().flush_or_lose(wakes);
        }
    }
}

/// Sends replies on a connection. Returns the length taken, or EAGAIN.
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
    if sessions::is_carried(connection) {
        // SAFETY: the caller vouches for the parts.
        return unsafe { sessions::send(fd, connection, parts, wakes) };
    }
    let link = get(connection.link.load(Ordering::Relaxed)).ok_or(libc::EPIPE)?;
    let mut inner = link.lock();
    if !connection.has_descriptor(fd) {
        return Err(libc::EBADF); // closed by another thread; the place may be another client's
    }
    let (id, end) = inner.of(connection).ok_or(libc::EPIPE)?;
    // SAFETY: the caller vouches for the parts.
    let (taken, wanted) = unsafe { put(parts, |bytes| end.compose(id, bytes)) };
    if taken < wanted {
        // Before the flush: room that comes with it sets the bit again.
        connection.source.can_send(false);
    }
    inner.send_in_time(wakes);
    if taken == 0 && wanted > 0 { Err(libc::EAGAIN) } else { Ok(taken) }
}

/// The application has read bytes.
pub(crate) fn consumed(connection: &Connection, bytes: usize, wakes: &mut Wakes) {
    if sessions::is_carried(connection) {
        return sessions::consumed(connection, bytes, wakes);
    }
    with(connection, wakes, |end, id| {
        let outcome = end.consumed(id, bytes);
        debug_assert_eq!(outcome, Ok(()), "what the application reads was received");
    });
}

/// The application sends no more.
pub(crate) fn finish(connection: &Connection, wakes: &mut Wakes) {
    if sessions::is_carried(connection) {
        return sessions::finish(connection, wakes);
    }
    with(connection, wakes, |end, id| end.finish(id));
}

/// The application has accepted the connection.
pub(crate) fn accept(connection: &Connection, wakes: &mut Wakes) {
    if sessions::is_carried(connection) {
        return sessions::accept(connection, wakes);
    }
    with(connection, wakes, |end, id| end.accept(id));
}

/// Refuses a connection that was taken out of the accept queue.
pub(crate) fn refuse(connection: &Connection, wakes: &mut Wakes) {
    if sessions::is_carried(connection) {
        return sessions::refuse(connection, wakes);
    }
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, _)) = inner.of(connection) else { return };
    inner.refuse(id, RefuseReason::Unavailable);
    status::connection_ended(connection);
    inner.name(id, Named::Nobody);
    inner.send_soon(wakes);
}

/// The application has closed the connection: nothing is delivered to it after this.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    if sessions::is_carried(connection) {
        return sessions::close(connection, abort, wakes);
    }
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, end)) = inner.of(connection) else { return };
    end.close(id, if abort { CloseReason::Reset } else { CloseReason::Normal });
    status::connection_ended(connection);
    inner.name(id, Named::Nobody);
    inner.send_soon(wakes);
}

fn with(connection: &Connection, wakes: &mut Wakes, act: impl FnOnce(&mut ServerLink, Id)) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    if let Some((id, end)) = inner.of(connection) {
        act(end, id);
        inner.send_soon(wakes);
    }
}

/// A set holds a connection of the link: its threads receive from the link from now on, unless another set's do.
pub(crate) fn adopt(connection: &Connection, set: &Set) {
    let Some(link) = link_of(connection).and_then(get) else { return };
    let mut inner = link.lock();
    if sessions::is_carried(connection) || inner.of(connection).is_some() {
        inner.adopt(set);
    }
}

// For sessions; called with no lock held.

/// Acts on a session's carrier, unless it carries another session, or none, by now.
fn on_carrier(
    (link, id): CarrierName,
    name: Name,
    wakes: &mut Wakes,
    act: impl FnOnce(&mut Inner, Id, &mut Wakes),
) {
    let Some(link) = get(link) else { return };
    let mut inner = link.lock();
    if inner.named(id) == Named::Session(name) {
        act(&mut inner, id, wakes);
        inner.send_in_time(wakes);
    }
}

/// Gives a carrier what its session has to send.
pub(crate) fn carry(carrier: CarrierName, name: Name, wakes: &mut Wakes) {
    on_carrier(carrier, name, wakes, |inner, id, _| inner.carry(id, name));
}

/// The application has accepted a session: tells its client, by this carrier.
pub(crate) fn accept_carrier(carrier: CarrierName, name: Name, wakes: &mut Wakes) {
    on_carrier(carrier, name, wakes, |inner, id, _| {
        inner.accept(id);
        inner.send_away(id);
    });
}

/// Refuses a session that was taken out of the accept queue.
pub(crate) fn refuse_carrier(carrier: CarrierName, name: Name, reason: RefuseReason, wakes: &mut Wakes) {
    on_carrier(carrier, name, wakes, |inner, id, _| {
        inner.name(id, Named::Nobody);
        inner.refuse(id, reason);
    });
}

/// Closes a carrier that no longer carries its session.
fn leave_carrier(carrier: CarrierName, name: Name, wakes: &mut Wakes) {
    on_carrier(carrier, name, wakes, |inner, id, wakes| {
        // The place may be another link's by now, and carry the same session again.
        if !sessions::is_carried_by(name, carrier) {
            inner.leave(id);
            // Sent at once: the calling thread may be about to sleep.
            inner.flush_or_lose(wakes);
        }
    });
}

/// A set is closed: moves its links to `home`, where they were accepted, or ends them if that is closed, too.
pub(crate) fn leave(set: &Set, home: Option<&Set>, wakes: &mut Wakes) {
    for link in all() {
        let mut inner = link.lock();
        if inner.end.is_some() && inner.set == set.index {
            inner.adopted = false;
            match home {
                Some(home) => inner.move_to(home),
                None => {
                    // Most servers do this on their way to `exit`. No new link can come, so clients that wait for the
                    // server would wait in vain.
                    inner.end_with_loop(wakes);
                }
            }
        }
    }
}

/// Asks the peers of all links to move their connections away. Returns the number of links.
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

/// Ends links that carry nothing, or all of them. Returns how many are left.
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

/// Closes all links, because the process ends. A link whose lock another thread holds for too long ends with the process.
pub(crate) fn end_all(patience: &Patience) {
    // Not by `all`, which waits for a lock without limit.
    for link in (0..LINKS_MAX as u32).filter_map(get) {
        if let Some(mut inner) = patience.lock(&link.inner) {
            inner.end_with_process(patience);
        }
    }
}

/// Calls `tell` with the traffic of each virtual connection that the application has not closed.
pub(crate) fn each_connection(mut tell: impl FnMut(u32, Info)) {
    all().for_each(|link| link.lock().each_connection(&mut tell));
    sessions::each_connection(&mut tell);
}

/// Ends links whose peers did not authenticate, or send the rest of a record, in time, and resumes paused reading.
pub(crate) fn handle_timeouts(now: Time, wakes: &mut Wakes) {
    for link in all() {
        link.lock().handle_timeout(now, wakes);
    }
}

/// Does the work that was left until no lock is held: closes carriers without their session, and wakes sleeping sets.
#[inline]
pub(crate) fn settle(wakes: &mut Wakes) {
    if !wakes.is_empty() {
        settle_all(wakes);
    }
}

#[cold]
fn settle_all(wakes: &mut Wakes) {
    while let Some((carrier, name)) = wakes.poll_left() {
        leave_carrier(carrier, name, wakes);
    }
    wakes.write();
}

//! Links: real sockets that carry the batches of virtual connections. Each has a lock.

mod moves;

use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use spillway_batch::{CloseReason, Id, Info, RefuseReason, ServerLink};
use spillway_transport::Time;

use crate::carrier_name::{CarrierName, SessionName};
use crate::connections::{Connection, NO_LINK};
use crate::epoll_set::{self, Set};
use crate::io_vectors::put;
use crate::link::{Inner, Interest, Lost, Referent};
use crate::link_slots::{self, Slot};
use crate::lock_deadline::LockDeadline;
use crate::readiness::OUT;
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{handshakes, lock, log, sessions, threads};

pub(crate) use moves::{Traffic, send_orders, traffic};

/// Maximum number of links of helpers and library clients at the same time.
const LINKS_MAX: usize = 4096;

static LINKS: [AtomicPtr<Link>; LINKS_MAX] = [const { AtomicPtr::new(null_mut()) }; LINKS_MAX];

/// Serial number of the next link.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// One link, or a vacant slot for another link. Slots are never freed.
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
pub(crate) fn begin_link(
    fd: c_int,
    peer: SocketAddr,
    local: SocketAddr,
    endpoint: ServerLink,
    set: &Set,
    wakes: &mut Wakes,
) {
    let Some(link) = take_slot() else {
        status::count(Counter::LinkFull);
        log::line(format_args!("link of {peer} refused: {LINKS_MAX} links are open already"));
        sys::end_socket(fd);
        return;
    };
    let mut inner = link.lock();
    if !table::record(fd, Entry::Library)
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
        table::record(fd, Entry::Real);
        sys::end_socket(fd);
        link_slots::give_back(link.index);
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    // Keep-alive: without it, a link to a host that lost power, and the sessions on it, would never end.
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    for (option, value) in [(libc::TCP_KEEPIDLE, 30), (libc::TCP_KEEPINTVL, 10), (libc::TCP_KEEPCNT, 3)] {
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, option, value);
    }
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    *inner = Inner::new((link.index, serial), fd, endpoint, (peer, local), set.index);
    status::link_began(link.index, peer);
    let victim = handshakes::begin(peer.ip(), (link.index, serial));
    // A peer with a key names the key in its first packet. Receive that now: otherwise the next link may evict this
    // one.
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

fn take_slot() -> Option<&'static Link> {
    match link_slots::take(LINKS_MAX)? {
        Slot::Reused(index) => get(index),
        Slot::New(index) => {
            let link = Link { index, inner: Mutex::new(Inner::vacant(index)) };
            LINKS[index as usize].store(Box::into_raw(Box::new(link)), Ordering::Release);
            get(index)
        }
    }
}

fn get(index: u32) -> Option<&'static Link> {
    let link = LINKS.get(index as usize)?.load(Ordering::Acquire);
    // SAFETY: a link is allocated once and never freed; all access is shared.
    (!link.is_null()).then(|| unsafe { &*link })
}

fn all() -> impl Iterator<Item = &'static Link> {
    (0..link_slots::used_count()).filter_map(get)
}

/// Flushes and receives. Called when epoll reports a link's socket.
pub(crate) fn handle_ready(index: u32, set: &Set, events: u32, wakes: &mut Wakes) {
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

/// Flushes and receives in a blocked thread, in case no event loop serves the link.
pub(crate) fn attend(index: u32, wakes: &mut Wakes) {
    let Some(link) = get(index) else { return };
    let mut inner = link.lock();
    let Some(set) = epoll_set::get(inner.socket.set()) else { return };
    inner.flush_or_lose(wakes);
    let mut buffer = set.borrow_buffer();
    inner.receive_or_lose(&mut buffer, wakes);
    set.return_buffer(buffer);
    inner.flush_or_lose(wakes);
}

/// Like [`attend`], for all links of these connections.
pub(crate) fn attend_all(connections: &[&'static Connection], wakes: &mut Wakes) {
    for index in links_of(connections) {
        attend(index, wakes);
    }
}

/// Links that are not in the library's own epoll set.
#[derive(Default)]
pub(crate) struct Outside {
    /// Whether there is any such link.
    pub(crate) any: bool,
    /// Those whose set has no waiting thread: index, socket, and the events that the socket is watched for.
    pub(crate) unattended: Vec<(u32, c_int, Interest)>,
}

/// The links of these connections that are not in the library's own set.
pub(crate) fn links_outside(connections: &[&'static Connection], library_set: Option<&Set>) -> Outside {
    let mut outside = Outside::default();
    for index in links_of(connections) {
        let Some(link) = get(index) else { continue };
        let (set, fd, watched) = {
            let inner = link.lock();
            (inner.socket.set(), inner.socket.descriptor(), inner.socket.interest())
        };
        if fd < 0 || library_set.is_some_and(|library_set| library_set.index == set) {
            continue;
        }
        outside.any = true;
        if epoll_set::get(set).is_some_and(|set| !set.has_sleeper()) {
            outside.unattended.push((index, fd, watched));
        }
    }
    outside
}

fn links_of(connections: &[&'static Connection]) -> Vec<u32> {
    let mut links: Vec<u32> = connections.iter().filter_map(|connection| link_of(connection)).collect();
    links.sort_unstable();
    links.dedup();
    links
}

/// The link that carries a connection now.
fn link_of(connection: &Connection) -> Option<u32> {
    if sessions::belongs_to_session(connection) {
        return sessions::link_of(connection);
    }
    Some(connection.link.load(Ordering::Relaxed)).filter(|&link| link != NO_LINK)
}

/// Sends the replies that this thread has deferred.
pub(crate) fn flush_deferred(wakes: &mut Wakes) {
    while let Some(index) = threads::take_deferred() {
        if let Some(link) = get(index) {
            link.lock().flush_or_lose(wakes);
        }
    }
}

/// Sends replies on a connection. Returns the number of bytes accepted, or EAGAIN.
///
/// # Safety
/// `parts` describe readable memory.
pub(crate) unsafe fn send(
    fd: c_int,
    connection: &Connection,
    parts: &[libc::iovec],
    wakes: &mut Wakes,
) -> Result<usize, Errno> {
    if connection.finished.load(Ordering::Acquire) || connection.is_closed_by_client.load(Ordering::Acquire) {
        return Err(libc::EPIPE);
    }
    if sessions::belongs_to_session(connection) {
        // SAFETY: the caller vouches for the parts.
        return unsafe { sessions::send(fd, connection, parts, wakes) };
    }
    let link = get(connection.link.load(Ordering::Relaxed)).ok_or(libc::EPIPE)?;
    let mut inner = link.lock();
    if !connection.has_descriptor(fd) {
        return Err(libc::EBADF); // closed by another thread; another client may use the slot
    }
    let (id, endpoint) = inner.endpoint_of(connection).ok_or(libc::EPIPE)?;
    // SAFETY: the caller vouches for the parts.
    let (accepted, wanted) = unsafe { put(parts, |bytes| endpoint.compose(id, bytes)) };
    if accepted < wanted {
        // Before the flush, which sets the bit again if it makes room.
        connection.readiness.set_can_send(false);
    }
    inner.send_soon_unless_large(wakes);
    if accepted == 0 && wanted > 0 { Err(libc::EAGAIN) } else { Ok(accepted) }
}

/// Called when the application has read bytes: grants the client credit for more.
pub(crate) fn consumed(connection: &Connection, bytes: usize, wakes: &mut Wakes) {
    if sessions::belongs_to_session(connection) {
        return sessions::consumed(connection, bytes, wakes);
    }
    with(connection, wakes, |endpoint, id| {
        let outcome = endpoint.consumed(id, bytes);
        debug_assert_eq!(outcome, Ok(()), "the application should read only received bytes");
    });
}

/// The application sends no more.
pub(crate) fn finish(connection: &Connection, wakes: &mut Wakes) {
    if sessions::belongs_to_session(connection) {
        return sessions::finish(connection, wakes);
    }
    with(connection, wakes, |endpoint, id| endpoint.finish(id));
}

/// The application has accepted the connection.
pub(crate) fn accept(connection: &Connection, wakes: &mut Wakes) {
    if sessions::belongs_to_session(connection) {
        return sessions::accept(connection, wakes);
    }
    with(connection, wakes, |endpoint, id| endpoint.accept(id));
}

/// Refuses a connection that was removed from the accept queue.
pub(crate) fn refuse(connection: &Connection, wakes: &mut Wakes) {
    if sessions::belongs_to_session(connection) {
        return sessions::refuse(connection, wakes);
    }
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, _)) = inner.endpoint_of(connection) else { return };
    inner.refuse(id, RefuseReason::Unavailable);
    status::connection_ended(connection);
    inner.set_referent(id, Referent::Nothing);
    inner.send_soon(wakes);
}

/// The application has closed the connection, which receives nothing after this.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    if sessions::belongs_to_session(connection) {
        return sessions::close(connection, abort, wakes);
    }
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, endpoint)) = inner.endpoint_of(connection) else { return };
    endpoint.close(id, if abort { CloseReason::Reset } else { CloseReason::Normal });
    status::connection_ended(connection);
    inner.set_referent(id, Referent::Nothing);
    inner.send_soon(wakes);
}

fn with(connection: &Connection, wakes: &mut Wakes, act: impl FnOnce(&mut ServerLink, Id)) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    if let Some((id, endpoint)) = inner.endpoint_of(connection) {
        act(endpoint, id);
        inner.send_soon(wakes);
    }
}

/// `connection` was added to `set`: the threads of `set` receive from the connection's link, unless another set has
/// adopted the link.
pub(crate) fn adopt(connection: &Connection, set: &Set) {
    let Some(link) = link_of(connection).and_then(get) else { return };
    let mut inner = link.lock();
    if sessions::belongs_to_session(connection) || inner.endpoint_of(connection).is_some() {
        inner.socket.adopt(set);
    }
}

// Calls from sessions, with no lock held.

/// Calls `act` on a session's carrier, if it still carries this session.
fn with_carrier(
    (link, id): CarrierName,
    name: SessionName,
    wakes: &mut Wakes,
    act: impl FnOnce(&mut Inner, Id, &mut Wakes),
) {
    let Some(link) = get(link) else { return };
    let mut inner = link.lock();
    if inner.referent(id) == Referent::Session(name) {
        act(&mut inner, id, wakes);
        inner.send_soon_unless_large(wakes);
    }
}

/// Gives a carrier the bytes that its session has to send.
pub(crate) fn carry(carrier: CarrierName, name: SessionName, wakes: &mut Wakes) {
    with_carrier(carrier, name, wakes, |inner, id, _| inner.carry(id, name));
}

/// The application has accepted a session: informs its client over this carrier.
pub(crate) fn accept_carrier(carrier: CarrierName, name: SessionName, wakes: &mut Wakes) {
    with_carrier(carrier, name, wakes, |inner, id, _| {
        inner.accept(id);
        inner.send_override_drain(id);
    });
}

/// Refuses a session that was removed from the accept queue.
pub(crate) fn refuse_carrier(
    carrier: CarrierName,
    name: SessionName,
    reason: RefuseReason,
    wakes: &mut Wakes,
) {
    with_carrier(carrier, name, wakes, |inner, id, _| {
        inner.set_referent(id, Referent::Nothing);
        inner.refuse(id, reason);
    });
}

/// Closes a carrier that no longer carries its session.
fn leave_carrier(carrier: CarrierName, name: SessionName, wakes: &mut Wakes) {
    with_carrier(carrier, name, wakes, |inner, id, wakes| {
        // Another link may use the slot by now, and carry the same session again.
        if !sessions::is_carried_by(name, carrier) {
            inner.leave(id);
            // Sent at once: the calling thread may be about to sleep.
            inner.flush_or_lose(wakes);
        }
    });
}

/// The application closes `set`: moves its links to the link port's set, or ends them if that is closed, too.
pub(crate) fn leave_set(set: &Set, port_set: Option<&Set>, wakes: &mut Wakes) {
    for link in all() {
        let mut inner = link.lock();
        if inner.endpoint.is_some() && inner.socket.set() == set.index {
            // Without the link port's set, the link's sessions could never resume.
            if !inner.socket.return_to(port_set) {
                inner.end_with_loop(wakes);
            }
        }
    }
}

/// Sends *drain* on all established links, so that the peers move their connections. Returns the number of links.
pub(crate) fn drain(within_ms: u32, wakes: &mut Wakes) -> usize {
    let mut count = 0;
    for link in all() {
        let mut inner = link.lock();
        if let Some(endpoint) = inner.endpoint.as_mut().filter(|endpoint| endpoint.is_established()) {
            endpoint.drain(within_ms);
            inner.flush_or_lose(wakes);
            count += 1;
        }
    }
    count
}

/// Ends links without connections; with `also_in_use`, all links. Returns the number of links left.
pub(crate) fn end_drained(also_in_use: bool, wakes: &mut Wakes) -> usize {
    let mut left = 0;
    for link in all() {
        let mut inner = link.lock();
        let Some(endpoint) = &inner.endpoint else { continue };
        if also_in_use || endpoint.connections() == 0 {
            inner.lose(Lost::SwitchedOff, wakes);
        } else {
            left += 1;
        }
    }
    left
}

/// Closes all links, because the process ends. A link whose lock cannot be taken before the deadline is left to the
/// kernel, which closes it with the process.
pub(crate) fn end_all(lock_deadline: &LockDeadline) {
    // `all` is not used here, because it waits for a lock without limit.
    for link in (0..LINKS_MAX as u32).filter_map(get) {
        if let Some(mut inner) = lock_deadline.lock(&link.inner) {
            inner.end_with_process(lock_deadline);
        }
    }
}

/// Calls `report` with the traffic of each virtual connection that the application has not closed.
pub(crate) fn each_connection(mut report: impl FnMut(u32, Info)) {
    all().for_each(|link| link.lock().each_connection(&mut report));
    sessions::each_connection(&mut report);
}

/// Ends links whose authentication, or the rest of a record, is overdue, and resumes paused reading on others.
pub(crate) fn handle_timeouts(now: Time, wakes: &mut Wakes) {
    for link in all() {
        link.lock().handle_timeout(now, wakes);
    }
}

/// Does the work that was deferred until no lock is held: closes carriers whose session has left, and wakes sleeping
/// epoll sets.
#[inline]
pub(crate) fn run_deferred(wakes: &mut Wakes) {
    if !wakes.is_empty() {
        run_all_deferred(wakes);
    }
}

#[cold]
fn run_all_deferred(wakes: &mut Wakes) {
    while let Some((carrier, name)) = wakes.poll_left_carrier() {
        leave_carrier(carrier, name, wakes);
    }
    wakes.write();
}

//! Links: real sockets whose batches are virtual connections, one lock each.

use core::mem::MaybeUninit;
use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard};

use libc::c_int;
use spillway_batch::{CloseReason, Id, LinkError, RefuseReason, Role, ServerEvent, ServerLink};
use spillway_transport::{Chunk, Time};

use crate::connections::{self, Connection, OUT};
use crate::epoll::Tag;
use crate::listeners::{self, Offer};
use crate::log::{self, Reason};
use crate::ready::{self, Set, Wakes, notify, notify_all};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::{lock, threads};

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

pub(crate) struct Inner {
    index: u32,
    fd: c_int,
    /// `None` while the place is free.
    end: Option<Box<ServerLink>>,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    /// By id: the connection's index plus one, 0 for none.
    connections: Vec<u32>,
    /// The epoll set whose threads receive from it.
    set: u32,
    /// That set holds one of its connections; at first it is the one that the link port is in.
    adopted: bool,
    established: bool,
    /// A batch of which the socket took only a part.
    sending: Chunk,
    /// The socket is full and epoll tells when it is not.
    wants_out: bool,
    /// Connections with data in the batch at hand, whose sets are told at its end. Kept for its allocation.
    raised: Vec<u32>,
}

/// Why a link is gone.
enum Lost {
    Ended,
    Unserved,
    Socket(Errno),
    Broken(LinkError),
}

impl core::fmt::Display for Lost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lost::Ended => f.write_str("closed by the peer"),
            Lost::Unserved => f.write_str("the server closed its event loop"),
            Lost::Socket(error) => Reason(*error).fmt(f),
            Lost::Broken(error) => error.fmt(f),
        }
    }
}

impl Link {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

/// A link's socket was accepted in the set that the link port is in.
pub(crate) fn opened(fd: c_int, peer: SocketAddr, local: SocketAddr, end: ServerLink, set: &Set) {
    if HANDSHAKES.load(Ordering::Relaxed) >= HANDSHAKES_MAX {
        log::knock(format_args!("link of {peer} refused: {HANDSHAKES_MAX} others have yet to authenticate"));
        sys::close(fd);
        return;
    }
    let Some(link) = place() else {
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
        log::line(format_args!("link of {peer} refused: its socket cannot be watched"));
        table::note(fd, Entry::Real);
        sys::close(fd);
        lock(&FREE).free.push(link.index);
        return;
    }
    let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    *inner = Inner {
        fd,
        end: Some(Box::new(end)),
        peer: Some(peer),
        local: Some(local),
        set: set.index,
        ..Inner::vacant(link.index)
    };
    HANDSHAKES.fetch_add(1, Ordering::Relaxed);
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

/// A thread that is blocked in a call for this connection's sake looks after its link. The caller has waited for
/// the socket.
pub(crate) fn attend(connection: &Connection, wakes: &mut Wakes) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    inner.flush_or_lose(wakes);
    let mut buffer = vec![0; RECEIVE_BYTES];
    inner.receive_or_lose(&mut buffer, wakes);
    inner.flush_or_lose(wakes);
}

/// The socket of a connection's link, and whether it waits for room to send; -1 when the link is gone.
pub(crate) fn socket_of(connection: &Connection) -> (c_int, bool) {
    match get(connection.link.load(Ordering::Relaxed)) {
        None => (-1, false),
        Some(link) => {
            let inner = link.lock();
            (inner.fd, inner.wants_out)
        }
    }
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
    connection: &Connection,
    parts: &[libc::iovec],
    wakes: &mut Wakes,
) -> Result<usize, Errno> {
    if connection.finished.load(Ordering::Acquire) || connection.closed_by_peer.load(Ordering::Acquire) {
        return Err(libc::EPIPE);
    }
    let link = get(connection.link.load(Ordering::Relaxed)).ok_or(libc::EPIPE)?;
    let mut inner = link.lock();
    let (id, end) = inner.of(connection).ok_or(libc::EPIPE)?;
    let mut gathered = [MaybeUninit::uninit(); GATHER_BYTES];
    // SAFETY: the caller vouches for the parts.
    let (taken, wanted) = match unsafe { gather(parts, &mut gathered) } {
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
    inner.name(id, None);
    inner.send_soon(wakes);
}

/// The application has closed the connection: no delivery can meet it after this.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    let Some(link) = get(connection.link.load(Ordering::Relaxed)) else { return };
    let mut inner = link.lock();
    let Some((id, end)) = inner.of(connection) else { return };
    end.close(id, if abort { CloseReason::Reset } else { CloseReason::Normal });
    inner.name(id, None);
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

/// Whether somebody has yet to authenticate, so that a wait must not be long.
pub(crate) fn has_handshakes() -> bool {
    HANDSHAKES.load(Ordering::Relaxed) > 0
}

/// Ends links whose peers did not authenticate in time.
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
}

fn interest(out: bool) -> u32 {
    libc::EPOLLIN as u32 | if out { libc::EPOLLOUT as u32 } else { 0 }
}

impl Inner {
    fn vacant(index: u32) -> Inner {
        Inner {
            index,
            fd: -1,
            end: None,
            peer: None,
            local: None,
            connections: Vec::new(),
            set: 0,
            adopted: false,
            established: false,
            sending: Chunk::default(),
            wants_out: false,
            raised: Vec::new(),
        }
    }

    /// The id of a connection, if it is still one of this link's.
    fn of(&mut self, connection: &Connection) -> Option<(Id, &mut ServerLink)> {
        let id = connection.id.load(Ordering::Relaxed);
        let named = *self.connections.get(id as usize)?;
        let end = self.end.as_deref_mut()?;
        (named == connection.index + 1).then_some((Id(id), end))
    }

    fn named(&self, id: Id) -> Option<&'static Connection> {
        connections::get(self.connections.get(id.0 as usize)?.checked_sub(1)?)
    }

    fn name(&mut self, id: Id, connection: Option<&Connection>) {
        let index = id.0 as usize; // the link end keeps ids below its limit
        if self.connections.len() <= index {
            self.connections.resize(index + 1, 0);
        }
        self.connections[index] = connection.map_or(0, |connection| connection.index + 1);
    }

    /// Puts sending off until the thread's ready list is empty, if it has one.
    fn send_soon(&mut self, wakes: &mut Wakes) {
        if self.end.as_ref().is_some_and(|end| end.pending() > 0) && !threads::defer(self.index) {
            self.flush_or_lose(wakes);
        }
    }

    fn flush_or_lose(&mut self, wakes: &mut Wakes) {
        if let Err(lost) = self.flush(wakes) {
            self.lose(lost, wakes);
        }
    }

    /// Sends until nothing is left or the socket is full.
    fn flush(&mut self, wakes: &mut Wakes) -> Result<(), Lost> {
        let Some(end) = &mut self.end else { return Ok(()) };
        let full = loop {
            if self.sending.is_empty() {
                end.recycle(core::mem::take(&mut self.sending));
                match end.flush(sys::now()) {
                    Some(batch) => self.sending = batch,
                    None => break false,
                }
            }
            match sys::send(self.fd, self.sending.as_slice()) {
                Ok(sent) => self.sending.advance(sent),
                Err(libc::EAGAIN) => break true,
                Err(libc::EINTR) => {}
                Err(error) => return Err(Lost::Socket(error)),
            }
        };
        if full != self.wants_out {
            self.wants_out = full;
            self.control(libc::EPOLL_CTL_MOD);
        }
        self.announce_room(wakes);
        Ok(())
    }

    fn announce_room(&mut self, wakes: &mut Wakes) {
        while let Some(id) = self.end.as_mut().and_then(|end| end.poll_room()) {
            if let Some(connection) = self.named(id) {
                connection.source.can_send(true);
                notify(connection, wakes);
            }
        }
    }

    fn receive_or_lose(&mut self, buffer: &mut [u8], wakes: &mut Wakes) {
        match self.receive(buffer, wakes) {
            Ok(()) => self.send_soon(wakes),
            Err(lost) => self.lose(lost, wakes),
        }
    }

    /// One receive: what is left makes epoll report the socket again.
    fn receive(&mut self, buffer: &mut [u8], wakes: &mut Wakes) -> Result<(), Lost> {
        if self.end.is_none() {
            return Ok(());
        }
        let length = match sys::receive(self.fd, buffer) {
            Ok(0) => return Err(Lost::Ended),
            Ok(length) => length,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(error) => return Err(Lost::Socket(error)),
        };
        let now = sys::now();
        let mut input = &buffer[..length];
        let outcome = loop {
            let Some(end) = &mut self.end else { break Ok(()) };
            match end.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle(event, wakes),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Lost::Broken(error)),
            }
        };
        notify_all(self.raised.iter().filter_map(|&index| connections::get(index)), wakes);
        self.raised.clear();
        self.announce_room(wakes);
        outcome
    }

    fn handle(&mut self, event: ServerEvent<'_>, wakes: &mut Wakes) {
        match event {
            ServerEvent::Data { id, bytes } => {
                if let Some(connection) = self.named(id) {
                    if connection.deliver(bytes) {
                        self.raised.push(connection.index);
                    } else if let Some(end) = &mut self.end {
                        end.consumed(id, bytes.len());
                    }
                }
            }
            ServerEvent::Connect { id, client, .. } => self.connect(id, client, wakes),
            ServerEvent::Finished { id } => {
                if let Some(connection) = self.named(id) {
                    connection.end();
                    notify(connection, wakes);
                }
            }
            ServerEvent::Closed { id, reason } => self.hear_close(id, reason, wakes),
            ServerEvent::Established { role, key } => {
                self.established = true;
                HANDSHAKES.fetch_sub(1, Ordering::Relaxed);
                if let (Role::Helper, Some(peer)) = (role, self.peer) {
                    log::line(format_args!("link with the {role} at {peer}, key {key}"));
                }
            }
            ServerEvent::Forbidden { client, why } => {
                if let Some(peer) = self.peer {
                    log::line(format_args!("client {client} through {peer} refused: {why}"));
                }
            }
            ServerEvent::Drain { deadline_ms } => {
                if let Some(peer) = self.peer {
                    log::line(format_args!("the peer at {peer} goes away within {deadline_ms} ms"));
                }
            }
        }
    }

    fn connect(&mut self, id: Id, client: SocketAddr, wakes: &mut Wakes) {
        let Some(connection) = connections::take() else { return self.refuse(id, RefuseReason::Full) };
        connection.link.store(self.index, Ordering::Relaxed);
        connection.id.store(id.0, Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(client), self.local);
        }
        match listeners::offer(connection, wakes) {
            Offer::Queued => self.name(id, Some(connection)),
            Offer::Refused(reason) => {
                connections::give_back(connection);
                self.refuse(id, reason);
            }
        }
    }

    fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if let Some(end) = &mut self.end {
            end.refuse(id, reason);
        }
    }

    fn hear_close(&mut self, id: Id, reason: CloseReason, wakes: &mut Wakes) {
        let Some(connection) = self.named(id) else { return };
        if listeners::withdraw(connection) {
            // Nobody has seen it yet.
            self.name(id, None);
            if let Some(end) = &mut self.end {
                end.close(id, CloseReason::Normal);
            }
            connections::give_back(connection);
            return;
        }
        connection.hear_close(reason != CloseReason::Normal);
        notify(connection, wakes);
    }

    /// Tells epoll about the socket in the set that it belongs to.
    fn control(&self, operation: c_int) -> bool {
        let Some(set) = ready::get(self.set) else { return false };
        let (fd, tag) = (set.fd.load(Ordering::Relaxed), Tag::Link(self.index).value());
        sys::epoll_ctl(fd, operation, self.fd, interest(self.wants_out), tag).is_ok()
    }

    fn move_to(&mut self, set: &Set) {
        if self.set == set.index || set.activate().is_err() {
            return;
        }
        self.control(libc::EPOLL_CTL_DEL);
        let before = core::mem::replace(&mut self.set, set.index);
        if !self.control(libc::EPOLL_CTL_ADD) {
            self.set = before;
            self.control(libc::EPOLL_CTL_ADD);
        }
    }

    /// The link is gone, and with it all its connections.
    fn lose(&mut self, lost: Lost, wakes: &mut Wakes) {
        let Some(mut end) = self.end.take() else { return };
        if let (Lost::Broken(_), true) = (&lost, self.sending.is_empty())
            && let Some(last) = end.flush(sys::now())
        {
            let _ = sys::send(self.fd, last.as_slice()); // tells the peer why, if it gets there
        }
        if !self.established {
            HANDSHAKES.fetch_sub(1, Ordering::Relaxed);
        }
        let held: Vec<&'static Connection> =
            self.connections.iter().filter_map(|named| connections::get(named.checked_sub(1)?)).collect();
        if let Some(peer) = self.peer {
            // A library client that goes is no news.
            if !self.established {
                log::knock(format_args!("link of {peer} refused: {lost}"));
            } else if !matches!(lost, Lost::Ended) || !held.is_empty() {
                let count = held.len();
                log::line(format_args!("link of {peer} lost, with {count} connections: {lost}"));
            }
        }
        // Explicitly: a forked child may hold the same socket, and keep it in the set.
        self.control(libc::EPOLL_CTL_DEL);
        table::note(self.fd, Entry::Real);
        sys::close(self.fd);
        *self = Inner::vacant(self.index);
        for connection in held {
            if listeners::withdraw(connection) {
                connections::give_back(connection);
            } else {
                connection.hear_close(true);
                notify(connection, wakes);
            }
        }
        lock(&FREE).free.push(self.index);
    }
}

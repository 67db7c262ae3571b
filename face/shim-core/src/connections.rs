//! Virtual connections, as the application's side sees them.
//!
//! They live in chunks that are never freed. A thread that races with `close` may find the place reused by another
//! connection, but never reads freed memory.

use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, iovec};

use crate::lock;
use crate::option_values::Options;
use crate::source::Source;
use crate::sys::Errno;
use crate::table::{self, Entry};

/// Value of [`Connection::link`] for a connection that belongs to no link.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// Readiness as epoll reports it. `EPOLLRDNORM` and `EPOLLWRNORM` are reported with `EPOLLIN` and `EPOLLOUT`, as the kernel
/// does.
pub(crate) const IN: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
pub(crate) const OUT: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// Maximum number of connections at the same time, over all links.
const CONNECTIONS_MAX: usize = CHUNKS * CHUNK;
const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

/// An empty receive buffer keeps at most this capacity, so that idle connections cost little.
const IDLE_BUFFER_BYTES: usize = 4 * 1024;

/// Consumed bytes are reported to the link in portions of this size, because that takes the link's lock.
pub(crate) const REPORT_BYTES: u32 = 16 * 1024;

static CONNECTIONS: [AtomicPtr<[Connection; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), made: 0 });

struct Pool {
    free: Vec<u32>,
    made: usize,
}

/// One virtual connection. Without a link, it is an alias (one more place in an epoll set for another connection) or the
/// stand-in for a listening socket in a ready list.
///
/// The fields that each request uses come first, in two cache lines: readiness in one, bytes in the other.
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) source: Source,
    pub(crate) index: u32,
    /// The connection's link, and its id on that link. Both are constant until the application closes the connection.
    pub(crate) link: AtomicU32,
    pub(crate) id: AtomicU32,
    /// Threads that are blocked on it: see `waiters`.
    pub(crate) waiters: AtomicU32,
    /// Status flags as F_GETFL returns them, including O_NONBLOCK.
    pub(crate) status: AtomicI32,
    /// The client has closed: nothing can be sent any more.
    pub(crate) closed_by_peer: AtomicBool,
    /// `shutdown` for writing was called.
    pub(crate) finished: AtomicBool,
    inner: Mutex<Inner>,
}

#[repr(C)]
pub(crate) struct Inner {
    received: Vec<u8>,
    /// Length of the part of `received` that the application has read.
    read_bytes: usize,
    /// Bytes read and not yet reported to the link.
    unreported: u32,
    /// Nothing follows the received bytes.
    pub(crate) ended: bool,
    /// The next read fails with ECONNRESET, once.
    pub(crate) reset: bool,
    /// `shutdown` for reading was called.
    pub(crate) read_shut_down: bool,
    /// Close with a reset (SO_LINGER with a time of zero).
    pub(crate) abort: bool,
    /// Number of descriptors that refer to it.
    pub(crate) references: u32,
    pub(crate) client: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// Socket options that were set on it or are inherited from its listener.
    pub(crate) options: Options,
}

/// Variants of a read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reading {
    /// The bytes stay in the buffer (MSG_PEEK).
    pub(crate) peek: bool,
    /// The bytes are dropped, not copied (MSG_TRUNC).
    pub(crate) discard: bool,
}

/// The outcome of a read.
pub(crate) struct Read {
    pub(crate) bytes: usize,
    /// Bytes to report to the link as consumed.
    pub(crate) report: usize,
}

impl Connection {
    fn new(index: u32) -> Connection {
        Connection {
            index,
            source: Source::new(),
            link: AtomicU32::new(NO_LINK),
            id: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            status: AtomicI32::new(libc::O_RDWR),
            closed_by_peer: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Appends bytes from the client. The link has checked them against the window, which bounds the buffer. `false`:
    /// the application reads no more, so the bytes are dropped.
    pub(crate) fn deliver(&self, bytes: &[u8]) -> bool {
        let mut inner = self.lock();
        if inner.read_shut_down || inner.ended {
            return false;
        }
        inner.make_room(bytes.len());
        inner.received.extend_from_slice(bytes);
        self.source.raise(IN);
        true
    }

    /// Records that the client sends no more.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        self.source.raise(IN | RDHUP | self.hup_bits(true));
    }

    /// Records that the client has closed, or that its link is lost. Call with the link's lock held.
    pub(crate) fn closed_by_client(&self, reset: bool) {
        self.source.can_send(true);
        let mut inner = self.lock();
        inner.ended = true;
        inner.reset |= reset;
        self.closed_by_peer.store(true, Ordering::Release);
        self.source.raise(IN | RDHUP | if reset { ERR | HUP } else { self.hup_bits(true) });
    }

    /// Drops the bytes that the application has not read.
    pub(crate) fn discard(&self) {
        let mut inner = self.lock();
        (inner.received, inner.read_bytes) = (Vec::new(), 0);
    }

    /// HUP if both directions have ended; `receiving_ended`: the receiving one has.
    fn hup_bits(&self, receiving_ended: bool) -> u32 {
        if receiving_ended && self.finished.load(Ordering::Relaxed) { HUP } else { 0 }
    }

    /// Like `shutdown` on a socket. Returns whether this call is the first to end sending: the caller then sends *finish* on the
    /// link.
    pub(crate) fn shut_down(&self, reading: bool, writing: bool) -> bool {
        let mut inner = self.lock();
        if reading {
            inner.read_shut_down = true;
            self.source.raise(IN | RDHUP);
        }
        let first = writing && !self.finished.swap(true, Ordering::AcqRel);
        let ended = inner.ended || inner.read_shut_down;
        self.source.raise(self.hup_bits(ended));
        first
    }

    /// Copies received bytes out. `Err(EAGAIN)` if none have arrived, `Err(EBADF)` if `fd` no longer refers to the
    /// connection: another thread has closed it, and the place may be another client's.
    ///
    /// # Safety
    /// `parts` describe writable memory.
    #[inline]
    pub(crate) unsafe fn read(&self, fd: c_int, parts: &[iovec], how: Reading) -> Result<Read, Errno> {
        // Without IN there are no bytes, no end and no reset. This is a common case that needs no lock: most servers read until
        // EAGAIN.
        if self.source.own_state() & IN == 0 {
            return Err(libc::EAGAIN);
        }
        let mut inner = self.lock();
        if !self.has_descriptor(fd) {
            return Err(libc::EBADF);
        }
        // SAFETY: the caller vouches for the parts.
        unsafe { inner.read(&self.source, parts, how) }
    }

    /// Whether the descriptor refers to this connection. Does not change while the connection's lock is held.
    pub(crate) fn has_descriptor(&self, fd: c_int) -> bool {
        table::entry(fd) == Entry::Connection(self.index)
    }

    /// Whether calls on it must not block.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    pub(crate) fn set_nonblocking(&self, yes: bool) {
        let bit = libc::O_NONBLOCK;
        if yes {
            self.status.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.status.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Bytes received and not read: FIONREAD.
    pub(crate) fn readable_bytes(&self) -> usize {
        let inner = self.lock();
        inner.received.len() - inner.read_bytes
    }

    /// Resets the place for its next use.
    fn renew(&self) {
        *self.lock() = Inner::new();
        self.source.renew();
        self.waiters.store(0, Ordering::Relaxed);
        self.status.store(libc::O_RDWR, Ordering::Relaxed);
        self.closed_by_peer.store(false, Ordering::Relaxed);
        self.finished.store(false, Ordering::Relaxed);
        self.link.store(NO_LINK, Ordering::Relaxed);
        self.id.store(0, Ordering::Relaxed);
    }
}

impl Inner {
    fn new() -> Inner {
        Inner {
            received: Vec::new(),
            read_bytes: 0,
            ended: false,
            reset: false,
            read_shut_down: false,
            abort: false,
            references: 0,
            unreported: 0,
            client: None,
            local: None,
            options: Options::default(),
        }
    }

    /// # Safety
    /// `parts` describe writable memory.
    unsafe fn read(&mut self, source: &Source, parts: &[iovec], how: Reading) -> Result<Read, Errno> {
        if self.received.len() == self.read_bytes {
            if core::mem::take(&mut self.reset) {
                return Err(libc::ECONNRESET);
            }
            if self.ended || self.read_shut_down {
                return Ok(Read { bytes: 0, report: 0 });
            }
            return Err(libc::EAGAIN);
        }
        let mut bytes = 0;
        for part in parts {
            let rest = &self.received[self.read_bytes + bytes..];
            let count = rest.len().min(part.iov_len);
            if !how.discard {
                // SAFETY: the caller vouches for the part; `count` is within both.
                unsafe { core::ptr::copy_nonoverlapping(rest.as_ptr(), part.iov_base.cast(), count) };
            }
            bytes += count;
        }
        if how.peek {
            return Ok(Read { bytes, report: 0 });
        }
        self.read_bytes += bytes;
        if self.read_bytes == self.received.len() {
            self.read_bytes = 0;
            if self.received.capacity() > IDLE_BUFFER_BYTES {
                self.received = Vec::new();
            } else {
                self.received.clear();
            }
            if !self.ended && !self.read_shut_down {
                source.lower(IN);
            }
        }
        self.unreported += bytes as u32; // fits: the credit window bounds both numbers
        let report = if self.unreported >= REPORT_BYTES { core::mem::take(&mut self.unreported) } else { 0 };
        Ok(Read { bytes, report: report as usize })
    }

    /// Moves unread bytes to the front rather than growing the buffer.
    fn make_room(&mut self, bytes: usize) {
        if self.read_bytes > 0 && self.received.capacity() - self.received.len() < bytes {
            self.received.drain(..self.read_bytes);
            self.read_bytes = 0;
        }
    }
}

/// A fresh connection to which nothing refers yet; `None` if there are too many.
pub(crate) fn take() -> Option<&'static Connection> {
    let mut pool = lock(&POOL);
    if pool.free.is_empty() {
        if pool.made >= CONNECTIONS_MAX {
            return None;
        }
        let base = pool.made as u32;
        let chunk: Vec<Connection> = (base..base + CHUNK as u32).map(Connection::new).collect();
        let Ok(chunk) = <Box<[Connection; CHUNK]>>::try_from(chunk.into_boxed_slice()) else { return None };
        CONNECTIONS[pool.made / CHUNK].store(Box::into_raw(chunk), Ordering::Release);
        pool.made += CHUNK;
        // Low indexes first: they share cache lines with those in use.
        pool.free.extend((base..base + CHUNK as u32).rev());
    }
    let index = pool.free.pop()?;
    drop(pool);
    let connection = get(index)?;
    connection.renew();
    Some(connection)
}

/// Frees a connection to which nothing refers any more.
pub(crate) fn give_back(connection: &Connection) {
    {
        let mut inner = connection.lock();
        // A thread may still ask for readable bytes: `read_bytes` never exceeds what was received.
        (inner.received, inner.read_bytes, inner.options) = (Vec::new(), 0, Options::default());
    }
    lock(&POOL).free.push(connection.index);
}

pub(crate) fn get(index: u32) -> Option<&'static Connection> {
    let index = index as usize;
    let chunk = CONNECTIONS.get(index / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: a chunk is made once and never freed; all access is shared.
    (!chunk.is_null()).then(|| unsafe { &(&*chunk)[index % CHUNK] })
}

/// All places ever made, used or free.
pub(crate) fn all() -> impl Iterator<Item = &'static Connection> {
    let made = lock(&POOL).made as u32;
    (0..made).filter_map(get)
}

/// The virtual connection of this process that a descriptor refers to.
pub(crate) fn of_descriptor(fd: c_int) -> Option<&'static Connection> {
    match table::entry(fd) {
        Entry::Connection(index) if crate::fork::is_owner() => get(index),
        Entry::Connection(_) => {
            crate::fork::log_use_by_child();
            None
        }
        _ => None,
    }
}

/// The object behind a descriptor whose readiness this library tracks: a virtual connection, or the stand-in for the
/// accept queue of a listening socket.
pub(crate) fn of_pollable(fd: c_int) -> Option<&'static Connection> {
    match table::entry(fd) {
        Entry::Connection(index) | Entry::Listener(index) if crate::fork::is_owner() => get(index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the connection a descriptor number that this process does not use.
    fn named(connection: &Connection) -> c_int {
        let fd = 1_000_000 + connection.index as c_int;
        assert!(table::note(fd, Entry::Connection(connection.index)));
        fd
    }

    fn read(connection: &Connection, count: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; count];
        let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: the part is the vector.
        let read = unsafe { connection.read(named(connection), &[part], Reading::default()) }?;
        bytes.truncate(read.bytes);
        Ok(bytes)
    }

    #[test]
    fn a_connection_stays_readable_after_its_end() {
        let connection = take().unwrap();
        assert_eq!(read(connection, 4), Err(libc::EAGAIN));
        assert!(connection.deliver(b"abcdef"));
        assert_eq!(connection.source.own_state() & IN, IN);
        assert_eq!(read(connection, 4).unwrap(), b"abcd");
        assert_eq!(connection.source.own_state() & IN, IN, "two bytes are left");
        assert_eq!(read(connection, 4).unwrap(), b"ef");
        assert_eq!(connection.source.own_state() & IN, 0);
        connection.end();
        assert_eq!(connection.source.own_state() & (IN | RDHUP), IN | RDHUP);
        assert_eq!(read(connection, 4).unwrap(), b"");
        assert_eq!(connection.source.own_state() & (IN | RDHUP), IN | RDHUP);
        give_back(connection);
    }

    #[test]
    fn a_reset_is_reported_once_after_the_received_bytes() {
        let connection = take().unwrap();
        assert!(connection.deliver(b"x"));
        connection.closed_by_client(true);
        assert_eq!(read(connection, 4).unwrap(), b"x");
        assert_eq!(read(connection, 4), Err(libc::ECONNRESET));
        assert_eq!(read(connection, 4).unwrap(), b"");
        assert_eq!(connection.source.own_state() & (ERR | HUP), ERR | HUP);
        give_back(connection);
    }

    #[test]
    fn consumption_is_reported_in_portions_and_large_buffers_are_given_back() {
        let connection = take().unwrap();
        let portion = REPORT_BYTES as usize;
        assert!(connection.deliver(&vec![7; portion + 5]));
        let mut bytes = vec![0; portion - 1];
        let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let fd = named(connection);
        // SAFETY: the part is the vector.
        let read = || unsafe { connection.read(fd, &[part], Reading::default()) };
        let reports: Vec<usize> = (0..2).map(|_| read().unwrap().report).collect();
        assert_eq!(reports, [0, portion + 5]);
        assert_eq!(connection.lock().received.capacity(), 0);
        give_back(connection);
    }

    /// A slow reader must not take the bytes of the next client in the same place.
    #[test]
    fn a_reader_that_lost_its_descriptor_takes_nothing_from_the_next_client() {
        let connection = take().unwrap();
        let fd = named(connection);
        assert!(connection.deliver(b"next client's"));
        table::note(fd, Entry::Real);
        let mut byte = 0u8;
        let part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: the part is the byte.
        let read = unsafe { connection.read(fd, &[part], Reading::default()) };
        assert_eq!(read.err(), Some(libc::EBADF));
        assert_eq!(connection.readable_bytes(), 13);
        give_back(connection);
    }
}

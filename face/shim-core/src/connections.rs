//! Virtual connections, as the application's side sees them.
//!
//! They live in chunks that are never freed. A thread that races with `close` may find the slot reused by another
//! connection, but never reads freed memory.

use core::net::SocketAddr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, iovec};

use crate::lock;
use crate::option_values::Options;
use crate::readiness::{ERR, HUP, IN, RDHUP, Readiness};
use crate::sys::Errno;
use crate::table::{self, Entry};

/// Value of [`Connection::link`] for a connection that belongs to no link.
pub(crate) const NO_LINK: u32 = u32::MAX;

/// Maximum number of connections at the same time, over all links.
const CONNECTIONS_MAX: usize = CHUNKS * CHUNK;
const CHUNK: usize = 256;
const CHUNKS: usize = 4096;

/// An empty receive buffer keeps at most this capacity, so that idle connections cost little.
const IDLE_BUFFER_BYTES: usize = 4 * 1024;

/// Consumed bytes are reported to the link in portions of this size, because each report takes the link's lock.
pub(crate) const REPORT_BYTES: u32 = 16 * 1024;

static CONNECTIONS: [AtomicPtr<[Connection; CHUNK]>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
static POOL: Mutex<Pool> = Mutex::new(Pool { free: Vec::new(), allocated: 0 });

struct Pool {
    /// Indexes of free slots.
    free: Vec<u32>,
    allocated: usize,
}

/// One virtual connection. Without a link, the slot is an alias (a further epoll membership of another connection) or
/// the stand-in for a listening socket in a ready list.
///
/// The fields that every request uses come first, in two cache lines: readiness in one, received bytes in the other.
#[repr(C, align(64))]
pub(crate) struct Connection {
    pub(crate) readiness: Readiness,
    pub(crate) index: u32,
    /// The connection's link, and its id on that link; for a session, its shard and slot. Both are constant until the
    /// application closes the connection.
    pub(crate) link: AtomicU32,
    pub(crate) id: AtomicU32,
    /// The threads that are blocked on this connection, as the module `waiters` encodes them.
    pub(crate) waiters: AtomicU32,
    /// Status flags as F_GETFL returns them, including O_NONBLOCK.
    pub(crate) status: AtomicI32,
    /// The client has closed the connection, so sending fails.
    pub(crate) is_closed_by_client: AtomicBool,
    /// The application has called `shutdown` for writing.
    pub(crate) finished: AtomicBool,
    inner: Mutex<Inner>,
}

#[repr(C)]
pub(crate) struct Inner {
    received: Vec<u8>,
    /// Length of the part of `received` that the application has read.
    read_bytes: usize,
    /// Bytes that the application has read, and that were not yet reported to the link.
    unreported: u32,
    /// The client has finished sending: `received` holds its last bytes.
    pub(crate) ended: bool,
    /// The next read fails with ECONNRESET, once.
    pub(crate) reset: bool,
    /// The application has called `shutdown` for reading.
    pub(crate) read_shut_down: bool,
    /// The application's `close` sends a reset (SO_LINGER with a time of zero).
    pub(crate) abort: bool,
    /// Number of descriptors that refer to this connection.
    pub(crate) descriptor_count: u32,
    pub(crate) client: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// Socket options that the application has set, or that the listener passes on.
    pub(crate) options: Options,
}

/// How to read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadOptions {
    /// Leave the bytes in the buffer (MSG_PEEK).
    pub(crate) peek: bool,
    /// Drop the bytes instead of copying them (MSG_TRUNC).
    pub(crate) discard: bool,
}

/// The outcome of a read.
pub(crate) struct ReadOutcome {
    pub(crate) bytes: usize,
    /// Consumed bytes to report to the link now; 0 after a peek, and until [`REPORT_BYTES`] are consumed.
    pub(crate) consumed_to_report: usize,
}

impl Connection {
    fn new(index: u32) -> Connection {
        Connection {
            index,
            readiness: Readiness::new(),
            link: AtomicU32::new(NO_LINK),
            id: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            status: AtomicI32::new(libc::O_RDWR),
            is_closed_by_client: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            inner: Mutex::new(Inner::new()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Appends bytes from the client. The link has checked them against the credit, which bounds the buffer. `false`:
    /// the bytes were dropped, because the application has shut down reading.
    pub(crate) fn deliver(&self, bytes: &[u8]) -> bool {
        let mut inner = self.lock();
        if inner.read_shut_down || inner.ended {
            return false;
        }
        inner.make_room(bytes.len());
        inner.received.extend_from_slice(bytes);
        self.readiness.raise(IN);
        true
    }

    /// Records that the client has finished sending.
    pub(crate) fn note_client_finished(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        self.readiness.raise(IN | RDHUP | self.hup_bits(true));
    }

    /// Records that the client has closed, or that its link is lost. Call with the link's lock held.
    pub(crate) fn note_client_closed(&self, reset: bool) {
        self.readiness.set_can_send(true);
        let mut inner = self.lock();
        inner.ended = true;
        inner.reset |= reset;
        self.is_closed_by_client.store(true, Ordering::Release);
        self.readiness.raise(IN | RDHUP | if reset { ERR | HUP } else { self.hup_bits(true) });
    }

    /// Drops the bytes that the application has not read.
    pub(crate) fn discard(&self) {
        let mut inner = self.lock();
        (inner.received, inner.read_bytes) = (Vec::new(), 0);
    }

    /// HUP if both directions have ended. `receiving_ended`: whether the receiving direction has.
    fn hup_bits(&self, receiving_ended: bool) -> u32 {
        if receiving_ended && self.finished.load(Ordering::Relaxed) { HUP } else { 0 }
    }

    /// Like `shutdown` on a socket. Returns whether the caller must send *finish* on the link.
    pub(crate) fn shut_down(&self, reading: bool, writing: bool) -> bool {
        let mut inner = self.lock();
        if reading {
            inner.read_shut_down = true;
            self.readiness.raise(IN | RDHUP);
        }
        let first = writing && !self.finished.swap(true, Ordering::AcqRel);
        let ended = inner.ended || inner.read_shut_down;
        self.readiness.raise(self.hup_bits(ended));
        first
    }

    /// Copies received bytes into `parts`. EAGAIN if no bytes have arrived. EBADF if `fd` no longer refers to the
    /// connection: another thread has closed it, and another client may use the slot.
    ///
    /// # Safety
    /// `parts` describe writable memory.
    #[inline]
    pub(crate) unsafe fn read(
        &self,
        fd: c_int,
        parts: &[iovec],
        how: ReadOptions,
    ) -> Result<ReadOutcome, Errno> {
        // A read that finds nothing, which is common, takes no lock: IN is set while there are bytes, an end
        // or a reset to read.
        if self.readiness.own_state() & IN == 0 {
            return Err(libc::EAGAIN);
        }
        let mut inner = self.lock();
        if !self.has_descriptor(fd) {
            return Err(libc::EBADF);
        }
        // SAFETY: the caller vouches for the parts.
        unsafe { inner.read(&self.readiness, parts, how) }
    }

    /// Whether the descriptor refers to this connection. The answer stays valid while the connection's lock is held.
    pub(crate) fn has_descriptor(&self, fd: c_int) -> bool {
        table::entry(fd) == Entry::Connection(self.index)
    }

    /// Whether the application has made the connection non-blocking.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK != 0
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        let bit = libc::O_NONBLOCK;
        if is_nonblocking {
            self.status.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.status.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Number of received bytes that the application has not read: FIONREAD.
    pub(crate) fn readable_bytes(&self) -> usize {
        let inner = self.lock();
        inner.received.len() - inner.read_bytes
    }

    /// Resets the slot for its next use.
    fn renew(&self) {
        *self.lock() = Inner::new();
        self.readiness.renew();
        self.waiters.store(0, Ordering::Relaxed);
        self.status.store(libc::O_RDWR, Ordering::Relaxed);
        self.is_closed_by_client.store(false, Ordering::Relaxed);
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
            descriptor_count: 0,
            unreported: 0,
            client: None,
            local: None,
            options: Options::default(),
        }
    }

    /// # Safety
    /// `parts` describe writable memory.
    unsafe fn read(
        &mut self,
        readiness: &Readiness,
        parts: &[iovec],
        how: ReadOptions,
    ) -> Result<ReadOutcome, Errno> {
        if self.received.len() == self.read_bytes {
            if core::mem::take(&mut self.reset) {
                return Err(libc::ECONNRESET);
            }
            if self.ended || self.read_shut_down {
                return Ok(ReadOutcome { bytes: 0, consumed_to_report: 0 });
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
            return Ok(ReadOutcome { bytes, consumed_to_report: 0 });
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
                readiness.lower(IN);
            }
        }
        self.unreported += bytes as u32; // fits: the credit window bounds both numbers
        let consumed_to_report =
            if self.unreported >= REPORT_BYTES { core::mem::take(&mut self.unreported) as usize } else { 0 };
        Ok(ReadOutcome { bytes, consumed_to_report })
    }

    /// Moves unread bytes to the front of the buffer if that avoids an allocation.
    fn make_room(&mut self, bytes: usize) {
        if self.read_bytes > 0 && self.received.capacity() - self.received.len() < bytes {
            self.received.drain(..self.read_bytes);
            self.read_bytes = 0;
        }
    }
}

/// Takes a free slot and resets it; `None` if [`CONNECTIONS_MAX`] slots are in use.
pub(crate) fn take() -> Option<&'static Connection> {
    let mut pool = lock(&POOL);
    if pool.free.is_empty() {
        if pool.allocated >= CONNECTIONS_MAX {
            return None;
        }
        let base = pool.allocated as u32;
        let chunk: Vec<Connection> = (base..base + CHUNK as u32).map(Connection::new).collect();
        let Ok(chunk) = <Box<[Connection; CHUNK]>>::try_from(chunk.into_boxed_slice()) else { return None };
        CONNECTIONS[pool.allocated / CHUNK].store(Box::into_raw(chunk), Ordering::Release);
        pool.allocated += CHUNK;
        // Low indexes are taken first, so that slots in use stay close together.
        pool.free.extend((base..base + CHUNK as u32).rev());
    }
    let index = pool.free.pop()?;
    drop(pool);
    let connection = get(index)?;
    connection.renew();
    Some(connection)
}

/// Frees a slot. Call when nothing refers to the connection any more.
pub(crate) fn give_back(connection: &Connection) {
    {
        let mut inner = connection.lock();
        // A thread with a stale reference may still call `readable_bytes`: keep `read_bytes` within `received`.
        (inner.received, inner.read_bytes, inner.options) = (Vec::new(), 0, Options::default());
    }
    lock(&POOL).free.push(connection.index);
}

pub(crate) fn get(index: u32) -> Option<&'static Connection> {
    let index = index as usize;
    let chunk = CONNECTIONS.get(index / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: a chunk is allocated once and never freed; all access is shared.
    (!chunk.is_null()).then(|| unsafe { &(&*chunk)[index % CHUNK] })
}

/// All slots ever allocated, used or free.
pub(crate) fn all() -> impl Iterator<Item = &'static Connection> {
    let allocated = lock(&POOL).allocated as u32;
    (0..allocated).filter_map(get)
}

/// The virtual connection that a descriptor refers to; `None` in a forked child.
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
    fn descriptor_of(connection: &Connection) -> c_int {
        let fd = 1_000_000 + connection.index as c_int;
        assert!(table::record(fd, Entry::Connection(connection.index)));
        fd
    }

    fn read(connection: &Connection, count: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; count];
        let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: count };
        // SAFETY: the part is the vector.
        let read = unsafe { connection.read(descriptor_of(connection), &[part], ReadOptions::default()) }?;
        bytes.truncate(read.bytes);
        Ok(bytes)
    }

    #[test]
    fn connection_stays_readable_after_the_client_finishes() {
        let connection = take().unwrap();
        assert_eq!(read(connection, 4), Err(libc::EAGAIN));
        assert!(connection.deliver(b"abcdef"));
        assert_eq!(connection.readiness.own_state() & IN, IN);
        assert_eq!(read(connection, 4).unwrap(), b"abcd");
        assert_eq!(
            connection.readiness.own_state() & IN,
            IN,
            "the connection should be readable: two bytes are left"
        );
        assert_eq!(read(connection, 4).unwrap(), b"ef");
        assert_eq!(connection.readiness.own_state() & IN, 0);
        connection.note_client_finished();
        assert_eq!(connection.readiness.own_state() & (IN | RDHUP), IN | RDHUP);
        assert_eq!(read(connection, 4).unwrap(), b"");
        assert_eq!(connection.readiness.own_state() & (IN | RDHUP), IN | RDHUP);
        give_back(connection);
    }

    #[test]
    fn reset_is_reported_once_after_the_received_bytes() {
        let connection = take().unwrap();
        assert!(connection.deliver(b"x"));
        connection.note_client_closed(true);
        assert_eq!(read(connection, 4).unwrap(), b"x");
        assert_eq!(read(connection, 4), Err(libc::ECONNRESET));
        assert_eq!(read(connection, 4).unwrap(), b"");
        assert_eq!(connection.readiness.own_state() & (ERR | HUP), ERR | HUP);
        give_back(connection);
    }

    #[test]
    fn consumed_bytes_are_reported_in_portions_and_an_empty_large_buffer_is_freed() {
        let connection = take().unwrap();
        let portion = REPORT_BYTES as usize;
        assert!(connection.deliver(&vec![7; portion + 5]));
        let mut bytes = vec![0; portion - 1];
        let part = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let fd = descriptor_of(connection);
        // SAFETY: the part is the vector.
        let read = || unsafe { connection.read(fd, &[part], ReadOptions::default()) };
        let reports: Vec<usize> = (0..2).map(|_| read().unwrap().consumed_to_report).collect();
        assert_eq!(reports, [0, portion + 5]);
        assert_eq!(connection.lock().received.capacity(), 0);
        give_back(connection);
    }

    /// A thread whose descriptor was closed meanwhile must not read the bytes of the slot's next client.
    #[test]
    fn read_with_a_closed_descriptor_fails_and_leaves_the_next_clients_bytes() {
        let connection = take().unwrap();
        let fd = descriptor_of(connection);
        assert!(connection.deliver(b"next client's"));
        table::record(fd, Entry::Real);
        let mut byte = 0u8;
        let part = iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: the part is the byte.
        let read = unsafe { connection.read(fd, &[part], ReadOptions::default()) };
        assert_eq!(read.err(), Some(libc::EBADF));
        assert_eq!(connection.readable_bytes(), 13);
        give_back(connection);
    }
}

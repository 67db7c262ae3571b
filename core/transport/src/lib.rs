//! The boundary between a protocol and whatever carries its bytes.
//!
//! A protocol implements [`Application`]; kernel sockets, a user-level stack or a simulator implement
//! [`Transport`]. Data is pushed in as [`Event`]s, commands go out through the transport. Neither side reads a
//! clock: `now` is always a parameter.
//!
//! # Contract
//! A driver (the code that owns both) keeps these promises, which the conformance tests check:
//!
//! 1. Every connection's first event is [`Event::Opened`] or [`Event::Lost`]; nothing follows `Lost`.
//! 2. At most as many bytes are delivered as were [granted](Transport::grant). A new connection has no grant.
//! 3. [`Event::Finished`] comes after the last byte and needs no grant. The other direction stays open.
//! 4. [`Transport::send`] takes between 0 and [`Transport::room`] bytes. After it took fewer than it was
//!    offered, [`Event::Room`] follows when there is room again, as it does where it is [wanted](Transport::want_room).
//! 5. After [`Transport::finish`], bytes already taken are still delivered. When both directions have finished
//!    and everything was delivered, the connection is freed and `Lost(Closed)` tells so.
//! 6. After [`Transport::abort`], no further event of this connection arrives, `Lost` included.
//! 7. A stale [`Conn`] (freed, slot reused) is ignored by every method.
//! 8. [`Application::end_of_turn`] follows each group of events; [`Application::handle_timeout`] comes at or
//!    after the instant given by [`Application::poll_timeout`], which is asked after every turn.
//! 9. Methods of [`Transport`] never call back into the application.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

extern crate alloc;

mod chunk;
#[cfg(feature = "conformance")]
pub mod conformance;
mod time;
mod unsent;

use core::net::SocketAddr;

pub use chunk::Chunk;
pub use time::Time;
pub use unsent::Unsent;

/// A connection of a transport. Slots are reused; the generation tells their users apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn {
    /// Index into the transport's table: small and dense, so an application may index its own table by it.
    pub slot: u32,
    /// Changes each time the slot is reused.
    pub generation: u32,
}

/// What a transport tells an application about one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The connection is established: accepted by a listener, or a `connect` of ours succeeded.
    Opened {
        /// The other end's address.
        peer: SocketAddr,
        /// Index into the configured listeners; `None` for connections we opened.
        listener: Option<u16>,
    },
    /// In-order bytes, lent from the driver's buffer for the duration of the call.
    Data {
        /// Stream offset after these bytes.
        end: u64,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// Our bytes up to this stream offset were acknowledged by the peer's TCP. Told only for connections on
    /// which [`Transport::watch_acknowledged`] is on; kernel sockets tell at most every 20 ms.
    Acknowledged {
        /// Stream offset.
        through: u64,
    },
    /// `send` has room again after it took less than it was offered.
    Room,
    /// The peer sends no more bytes; we may.
    Finished,
    /// The connection is gone, its slot is free.
    Lost(LostReason),
}

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// Both directions finished and everything was delivered.
    Closed,
    /// The peer reset it.
    Reset,
    /// A `connect` of ours was refused.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// Another error of the host, such as an unreachable network.
    Failed,
}

/// A table of the transport is full, or the host is out of descriptors or ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("no room for another connection: raise the connection or descriptor limit")
    }
}

impl core::error::Error for Full {}

/// What a transport, or its host, had no more of when it refused peers at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// Places in the transport's table of connections.
    Connections,
    /// File descriptors.
    Descriptors,
    /// The host's memory, or its places to watch connections.
    Memory,
}

/// Commands from an application to what carries its bytes.
pub trait Transport {
    /// Starts opening a connection. `Opened` or `Lost` tells how it ended.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full>;

    /// Whether a listener takes new connections. While closed, peers are refused by the host itself.
    /// All listeners start closed.
    fn set_listening(&mut self, listener: u16, open: bool);

    /// How many bytes `send` would take now.
    fn room(&self, conn: Conn) -> usize;

    /// Takes a prefix of `bytes` for transmission and returns its length. What is taken within one turn leaves
    /// together at the end of the turn.
    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize;

    /// Asks for [`Event::Room`] although nothing was refused: once some of what is [queued](Self::queued) has gone. Where
    /// nothing is queued there may be none.
    fn want_room(&mut self, conn: Conn);

    /// Takes a whole chunk without copying it, or gives it back when there is no room for all of it.
    /// An empty transport takes a chunk of any length, so a chunk larger than the buffer cannot get stuck.
    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk>;

    /// A spent buffer for reuse, if there is one. Applications fill it and give it to `send_chunk`.
    fn spent_chunk(&mut self) -> Option<Chunk>;

    /// Bytes handed to the transport that have not left it yet.
    fn queued(&self, conn: Conn) -> usize;

    /// Bytes of memory that hold what is [queued](Self::queued) for a connection: the capacity of its buffers.
    fn held(&self, conn: Conn) -> usize {
        self.queued(conn)
    }

    /// Bytes of memory that hold what is queued for all connections together. 0 where buffers are of a fixed size
    /// and not counted here.
    fn held_by_all(&self) -> usize {
        0
    }

    /// Allows `bytes` more to be delivered. Grants add up.
    fn grant(&mut self, conn: Conn, bytes: u32);

    /// Opens an acknowledgement gate up to a stream offset; no effect where there is none.
    fn release(&mut self, conn: Conn, through: u64);

    /// Turns `Acknowledged` events of a connection on or off; off at first.
    fn watch_acknowledged(&mut self, conn: Conn, on: bool);

    /// We send no more bytes.
    fn finish(&mut self, conn: Conn);

    /// Ends the connection at once; what was not delivered is lost and the peer is told (RST).
    fn abort(&mut self, conn: Conn);
}

/// A protocol over many connections, without I/O.
pub trait Application {
    /// One event of one connection.
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T);
    /// The instant given by `poll_timeout` has come.
    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T);
    /// So many peers of a listener were refused before they became connections. For counting only: nothing can be
    /// done about them.
    fn handle_refused(&mut self, _listener: u16, _limit: HostLimit, _peers: u64) {}
    /// A datagram has come to the address of a listener, whether that is open or not. What is written into `answer`,
    /// which is as long as the question, goes back to where it came from: so many bytes, none for 0.
    fn handle_question(
        &mut self,
        _now: Time,
        _listener: u16,
        _from: SocketAddr,
        _question: &[u8],
        _answer: &mut [u8],
    ) -> usize {
        0
    }
    /// All events that were there at once have been handled: the moment to send what was gathered.
    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T);
    /// When `handle_timeout` wants to be called next. Ask again after each turn.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;
}

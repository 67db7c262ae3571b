//! The boundary between a protocol and the transport that carries its bytes.
//!
//! A protocol implements [`Application`]; kernel sockets, a user-level stack or a simulator implement [`Transport`].
//! The transport passes [`Event`]s to the application, which sends commands through the transport. Neither side reads a
//! clock: `now` is always a parameter.
//!
//! # Contract
//! A driver (the code that owns application and transport) keeps these promises, which the conformance scenarios check:
//!
//! 1. Every connection's first event is [`Event::Opened`] or [`Event::Lost`]; nothing follows `Lost`.
//! 2. The driver delivers at most the [granted](Transport::grant) number of bytes. A new connection has no grant.
//! 3. [`Event::Finished`] comes after the last byte and needs no grant. The other direction stays open.
//! 4. [`Transport::send`] takes the bytes for which there is [room](Transport::room). [`Event::Room`] follows when
//!    there is room again after `send` took fewer bytes than it was offered, or after [`Transport::want_room`].
//! 5. After [`Transport::finish`], bytes already taken are still delivered. When both directions have finished
//!    and everything was delivered, the connection is freed with `Lost(Closed)`.
//! 6. After [`Transport::abort`], no further event of this connection arrives, `Lost` included.
//! 7. Every method ignores a stale [`Conn`] (connection freed, slot perhaps reused).
//! 8. [`Application::end_of_turn`] follows each group of events; [`Application::handle_timeout`] is called at or after
//!    the instant of [`Application::poll_timeout`], which is called after every turn.
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

/// A connection of a transport. Slots are reused with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn {
    /// Index into the transport's table: small and dense, so an application may use it as an index too.
    pub slot: u32,
    /// Changes each time the slot is reused.
    pub generation: u32,
}

/// An event of one connection, from a transport to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The connection is established: accepted by a listener, or opened by `connect`.
    Opened {
        /// The other end's address.
        peer: SocketAddr,
        /// Index into the configured listeners; `None` after `connect`.
        listener: Option<u16>,
    },
    /// In-order bytes, borrowed from the driver's buffer for the duration of the call.
    Data {
        /// Stream offset after these bytes.
        end: u64,
        /// The bytes, never empty.
        bytes: &'a [u8],
    },
    /// The peer's TCP has acknowledged sent bytes up to this stream offset. Only for connections with
    /// [`Transport::watch_acknowledged`] on; kernel sockets report it at most every 20 ms.
    Acknowledged {
        /// Stream offset.
        through: u64,
    },
    /// There is room again after `send` took fewer bytes than it was offered, or after [`Transport::want_room`].
    Room,
    /// The peer has finished its sending direction; ours stays open.
    Finished,
    /// The connection has ended, and its slot is free.
    Lost(LostReason),
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// Both directions finished and everything was delivered.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The target refused a `connect`.
    Refused,
    /// The peer did not answer in time.
    TimedOut,
    /// Another error, such as an unreachable network.
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

/// The exhausted resource because of which a listener's peers were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostLimit {
    /// Places in the transport's table of connections.
    Connections,
    /// File descriptors.
    Descriptors,
    /// The host's memory, or its limit on watched descriptors.
    Memory,
}

/// Commands from an application to a transport.
pub trait Transport {
    /// Starts opening a connection. The result is `Opened` or `Lost`.
    fn connect(&mut self, now: Time, target: SocketAddr) -> Result<Conn, Full>;

    /// Opens or closes a listener; all are closed at first. The host refuses connections to a closed listener.
    fn set_listening(&mut self, listener: u16, open: bool);

    /// Number of bytes that `send` would take now. This reserves nothing: it shrinks when other connections use what they share
    /// with this one, such as a link.
    fn room(&self, conn: Conn) -> usize;

    /// Takes a prefix of `bytes` for transmission and returns its length. Bytes taken within one turn leave together at
    /// its end.
    fn send(&mut self, conn: Conn, bytes: &[u8]) -> usize;

    /// Requests [`Event::Room`] when some [queued](Self::queued) bytes have left. No effect if none are queued.
    fn want_room(&mut self, conn: Conn);

    /// Takes a whole chunk without copying it, or returns it when there is no room for all of it. A connection with
    /// nothing queued takes a chunk of any length, so that no chunk is too large to be sent.
    fn send_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<(), Chunk>;

    /// Sends as much of a chunk as there is room for, without copying it if all of it is taken. `Ok`: everything is taken, and
    /// the chunk can be reused if it was copied. `Err`: what was not taken; offer it again at [`Event::Room`].
    fn offer_chunk(&mut self, conn: Conn, chunk: Chunk) -> Result<Option<Chunk>, Chunk> {
        let Err(mut chunk) = self.send_chunk(conn, chunk) else { return Ok(None) };
        let taken = self.send(conn, chunk.as_slice());
        chunk.advance(taken);
        if chunk.is_empty() { Ok(Some(chunk)) } else { Err(chunk) }
    }

    /// An empty buffer for reuse with `send_chunk`, if the transport has one.
    fn take_recycled_chunk(&mut self) -> Option<Chunk>;

    /// Number of bytes that the transport has taken and not yet sent.
    fn queued(&self, conn: Conn) -> usize;

    /// Bytes of memory that hold a connection's [queued](Self::queued) data: the capacity of the buffers.
    fn held(&self, conn: Conn) -> usize {
        self.queued(conn)
    }

    /// Bytes of memory that hold the queued data of all connections; 0 if the transport's buffers have a fixed size.
    fn held_by_all(&self) -> usize {
        0
    }

    /// Permits the transport to deliver `bytes` more bytes. Grants add up.
    fn grant(&mut self, conn: Conn, bytes: u32);

    /// Permits TCP to acknowledge received bytes up to a stream offset; no effect without an acknowledgement gate.
    fn release(&mut self, conn: Conn, through: u64);

    /// Turns `Acknowledged` events of a connection on or off; initially off.
    fn watch_acknowledged(&mut self, conn: Conn, on: bool);

    /// Ends the sending direction after the bytes that were taken already; later sends take nothing.
    fn finish(&mut self, conn: Conn);

    /// Ends the connection at once with a reset (RST); undelivered bytes are lost.
    fn abort(&mut self, conn: Conn);
}

/// A protocol over many connections, without I/O.
pub trait Application {
    /// Handles one event of one connection.
    fn handle<T: Transport>(&mut self, now: Time, conn: Conn, event: Event<'_>, out: &mut T);
    /// Called at or after the instant of `poll_timeout`.
    fn handle_timeout<T: Transport>(&mut self, now: Time, out: &mut T);
    /// Called after `peers` peers of a listener were refused before they became connections.
    fn handle_refused(&mut self, _listener: u16, _limit: HostLimit, _peers: u64) {}
    /// Handles a load query, a datagram that arrived at the address of a listener, open or closed. Writes a reply
    /// into `reply`, which is as long as the query, and returns the reply's length in bytes; 0 sends nothing.
    fn handle_datagram(
        &mut self,
        _now: Time,
        _listener: u16,
        _from: SocketAddr,
        _query: &[u8],
        _reply: &mut [u8],
    ) -> usize {
        0
    }
    /// Called when all waiting events are handled: send the gathered output.
    fn end_of_turn<T: Transport>(&mut self, now: Time, out: &mut T);
    /// When to call `handle_timeout` next. Call again after each turn.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;
}

//! The TCP that a server stands on: the user-level stack, or another one, such as the kernel's.

use alloc::vec::Vec;
use core::fmt::Debug;
use core::net::SocketAddr;

use spillway_tcp::{Delivery, ImportError, Importable, Stack, StackEvent};
use spillway_transport::{Conn, Time, Transport};
use spillway_wire::handoff::Reason;
use spillway_wire::state::ConnectionState;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionEnds {
    /// This server's end: its place of the service.
    pub local: SocketAddr,
    /// The client.
    pub peer: SocketAddr,
}

/// A TCP whose connections a [`Server`](crate::Server) exports and imports.
///
/// The functions with a default are for a TCP whose packets do not all pass the server, such as the kernel's: it holds the
/// packets of connections that are to come, and keeps an exported connection until its move has ended.
pub trait Tcp: Transport {
    /// A connection whose state was checked.
    type Checked: Debug;

    /// Whether the server must announce connections that are to come: [`hold_packets`](Self::hold_packets).
    const HOLDS_PACKETS: bool = false;

    /// Maximum number of connections, without half-open ones.
    fn connections_max(&self) -> usize;

    /// The number of connections, without half-open ones: those have places of their own, and may be forged.
    fn established(&self) -> usize;

    /// Maximum number of bytes that a connection of this server queues.
    fn queue_bytes_max(&self) -> usize;

    /// Keeps this number of places free for connections that are to come, or may come back.
    fn keep_places(&mut self, places: usize);

    /// Handles a received frame, with its Ethernet header.
    fn handle_frame(&mut self, now: Time, frame: &[u8]) -> Option<Delivery>;

    /// The next event.
    fn poll_event(&mut self) -> Option<(Conn, StackEvent)>;

    /// When to call [`handle_timeout`](Self::handle_timeout).
    fn poll_timeout(&self) -> Option<Time>;

    /// Does what is due.
    fn handle_timeout(&mut self, now: Time);

    /// Removes a connection without sending a segment, and returns its state. `None`: it cannot be exported, and continues.
    fn export(&mut self, now: Time, conn: Conn) -> Option<ConnectionState>;

    /// Ends a connection without sending a segment. Returns false if it has ended already.
    fn discard(&mut self, now: Time, conn: Conn) -> bool {
        self.export(now, conn).is_some()
    }

    /// Checks whether a connection can be imported.
    ///
    /// # Errors
    /// It cannot, for this reason.
    fn check(&mut self, now: Time, state: &ConnectionState) -> Result<Self::Checked, Reason>;

    /// Imports a connection. `None`: this is not possible any more.
    fn import(&mut self, now: Time, checked: Self::Checked) -> Option<Conn>;

    /// Continues a connection that was exported here, because it has not moved.
    fn take_back(&mut self, now: Time, state: &ConnectionState) -> Option<Conn> {
        let checked = self.check(now, state).ok()?;
        self.import(now, checked)
    }

    /// The move of an exported connection has ended: another server has it, or it is lost.
    fn give_up(&mut self, now: Time, ends: ConnectionEnds) {
        let _ = (now, ends);
    }

    /// An exported connection has ended elsewhere, or is lost: its segments are answered by resets from now on.
    fn end_exported(&mut self, now: Time, ends: ConnectionEnds);

    /// Whether segments of a connection that has ended for the application may still leave: then
    /// [`poll_gone`](Self::poll_gone) returns it later.
    fn lingers(&mut self, conn: Conn) -> bool {
        let _ = conn;
        false
    }

    /// The next connection that lingered, and of which no segment leaves any more.
    fn poll_gone(&mut self) -> Option<ConnectionEnds> {
        None
    }

    /// Holds the packets of a connection that is to come.
    ///
    /// # Errors
    /// This is not possible, for this reason: the connection does not come.
    fn hold_packets(&mut self, now: Time, ends: ConnectionEnds) -> Result<(), Reason> {
        let _ = (now, ends);
        Ok(())
    }

    /// Gives the packets that were held to the connection, which is here now, and holds no more.
    fn release_packets(&mut self, now: Time, ends: ConnectionEnds) {
        let _ = (now, ends);
    }

    /// The connection does not come. Returns the frames that were held, and holds no more.
    fn forget_packets(&mut self, now: Time, ends: ConnectionEnds) -> Vec<Vec<u8>> {
        let _ = (now, ends);
        Vec::new()
    }

    /// The next frame for a connection that another server has, from its client: it goes on to that server.
    fn poll_stray(&mut self, now: Time) -> Option<Vec<u8>> {
        let _ = now;
        None
    }
}

impl Tcp for Stack {
    type Checked = Importable;

    fn connections_max(&self) -> usize {
        let settings = self.settings();
        settings.connections_max.saturating_sub(settings.half_open_max) as usize
    }

    fn established(&self) -> usize {
        self.connections().saturating_sub(self.half_open_connections())
    }

    fn queue_bytes_max(&self) -> usize {
        self.settings().send_buffer_bytes
    }

    fn keep_places(&mut self, places: usize) {
        Stack::keep_places(self, places);
    }

    fn handle_frame(&mut self, now: Time, frame: &[u8]) -> Option<Delivery> {
        Stack::handle_frame(self, now, frame)
    }

    fn poll_event(&mut self) -> Option<(Conn, StackEvent)> {
        Stack::poll_event(self)
    }

    fn poll_timeout(&self) -> Option<Time> {
        Stack::poll_timeout(self)
    }

    fn handle_timeout(&mut self, now: Time) {
        Stack::handle_timeout(self, now);
    }

    fn export(&mut self, now: Time, conn: Conn) -> Option<ConnectionState> {
        Stack::export(self, now, conn).ok()
    }

    fn check(&mut self, now: Time, state: &ConnectionState) -> Result<Importable, Reason> {
        self.check_import(now, state).map_err(|error| match error {
            ImportError::Full => Reason::NoRoom,
            ImportError::Family => Reason::Family,
            ImportError::TooMuch(_) => Reason::TooLarge,
            ImportError::Present | ImportError::Contradiction(_) => Reason::Invalid,
        })
    }

    fn import(&mut self, now: Time, checked: Importable) -> Option<Conn> {
        self.import_checked(now, checked).ok()
    }

    fn end_exported(&mut self, now: Time, ends: ConnectionEnds) {
        if let Some(flow) = spillway_tcp::Flow::new(ends.local, ends.peer) {
            Stack::end_exported(self, now, flow);
        }
    }
}

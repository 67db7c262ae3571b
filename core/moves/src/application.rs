//! What an application adds so that its connections can move.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::{Application, Conn, Time, Transport};
use spillway_wire::state::Attachment;

/// A connection that has come from another server, or has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The client.
    pub peer: SocketAddr,
    /// Index of the service's listener.
    pub listener: Option<u16>,
    /// What [`Movable::leave`] has returned at the other server.
    pub attachment: Option<&'a Attachment>,
    /// The connection was exported here, and comes back because the move has failed.
    pub is_return: bool,
}

/// The load of an application whose requests wait for something else than the server's thread, such as a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLoad {
    /// The share of the time for which the application was busy, in millionths.
    pub busy: u32,
    /// Mean time that requests waited before their execution began.
    pub queueing: Duration,
}

impl OwnLoad {
    /// The larger of two loads, each figure for itself.
    pub fn max(self, other: OwnLoad) -> OwnLoad {
        OwnLoad { busy: self.busy.max(other.busy), queueing: self.queueing.max(other.queueing) }
    }
}

/// An application whose connections move between servers. Each server runs the same application.
pub trait Movable: Application {
    /// Whether the connection may leave now: no request is incomplete or in execution, or the application has marked a safe
    /// point inside of one. Bytes that TCP has acknowledged and that the application has not answered would be lost
    /// otherwise, except those in the attachment.
    fn is_at_safe_point(&self, conn: Conn) -> bool;

    /// The connection leaves this server: returns what the other server's application needs to continue. No further
    /// event of this connection arrives. Grants and queued bytes move with the connection.
    fn leave(&mut self, now: Time, conn: Conn) -> Option<Attachment>;

    /// Whether this application can continue a connection with an attachment of this protocol. If not, the connection is
    /// refused and stays at the other server.
    fn knows_protocol(&self, protocol: &str) -> bool {
        let _ = protocol;
        false
    }

    /// The application's own load since the last call, which counts if it is larger than that of the server's thread. By
    /// default the thread is the only bottleneck.
    fn own_load(&mut self, now: Time) -> OwnLoad {
        let _ = now;
        OwnLoad::default()
    }

    /// A connection has come from another server, or has come back. It has its grants and its queued bytes; the first
    /// event follows.
    fn on_migrated<T: Transport>(&mut self, now: Time, conn: Conn, arrival: &Arrival<'_>, out: &mut T);
}

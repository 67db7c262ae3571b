//! What an application adds so that its connections can move.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_handoff::{HandedRequest, RequestOutcome};
use spillway_transport::{Application, Conn, Time, Transport};
use spillway_wire::state::Attachment;
use spillway_wire::switch::{Flow, ServerId};

use crate::orders::OrderResult;

/// A connection that has come from another server, or has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The client.
    pub peer: SocketAddr,
    /// Index of the service's listener.
    pub listener: Option<u16>,
    /// What [`Movable::leave`] has returned at the other server.
    pub attachment: Option<&'a Attachment>,
    /// The request that has come with the connection, if it was handed off. With the purpose
    /// [`Serve`](spillway_handoff::Purpose::Serve) or [`NotServed`](spillway_handoff::Purpose::NotServed) this server is to
    /// serve it. For a connection that comes back it is the request with which it had come here before; whether the move of a
    /// request has failed follows: [`RequestEvent::Stays`].
    pub request: Option<HandedRequest>,
    /// The connection was exported here, and comes back because the move has failed.
    pub is_return: bool,
}

/// What the application wants for the request of a connection (Prism §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCommand {
    /// Moves the request, with its connection, to this server, which serves it. The application is not asked for a safe
    /// point: [`Movable::leave`] attaches the request, and what the client has sent after it.
    HandOff(ServerId),
    /// Returns a request of another server to it, with the connection.
    Return {
        /// Otherwise the request was not executed, not even in part.
        is_served: bool,
    },
    /// A request that came with its connection was served here: its origin learns it, and the connection stays. The next
    /// request of the connection is this server's own.
    Served,
}

/// What the application learns about requests that it has handed off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEvent {
    /// The request, and its connection, are here: no other server has executed it.
    Stays {
        /// The connection, whose bytes and attachment are here again if it was exported. It may have ended meanwhile.
        conn: Conn,
        /// Why it has not moved.
        why: OrderResult,
    },
    /// A request of this server has ended elsewhere.
    Ended {
        /// The flow of its connection.
        flow: Flow,
        /// Its number at this server.
        number: u64,
        /// How it ended.
        outcome: RequestOutcome,
    },
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

    /// Whether this application serves requests that other servers have read. If not, a connection that moves with one is
    /// refused and stays at the other server.
    fn serves_requests(&self) -> bool {
        false
    }

    /// The next command about the request of a connection that is here.
    fn poll_request_command(&mut self, now: Time) -> Option<(Conn, RequestCommand)> {
        let _ = now;
        None
    }

    /// Something has become of a request that was handed off.
    fn on_request<T: Transport>(&mut self, now: Time, event: RequestEvent, out: &mut T) {
        let _ = (now, event, out);
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

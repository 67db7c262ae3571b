//! Snapshots of a relay's state and counters.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{Batches, KeyId, LinkCounters};
use spillway_wire::load::LoadReport;

use crate::counters::ServiceCounters;

/// State and counters of a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Services in the order of their indexes, without those that were removed and have ended.
    pub services: Vec<ServiceStatus>,
    /// Clients of all services.
    pub clients: u32,
    /// Bytes of memory for waiting bytes in the relay, its links and the transport.
    pub buffered_bytes: usize,
    /// Memory is scarce: clients that do not read are paused.
    pub memory_is_scarce: bool,
    /// Number of times that a client was paused, since the start.
    pub paused: u64,
    /// The relay drains.
    pub draining: bool,
    /// The load, as in replies to load queries.
    pub load: LoadReport,
    /// Notices that were dropped because the host did not take them in time.
    pub notices_dropped: u64,
}

/// State and counters of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// The configured name.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// The service's listeners are open.
    pub listening: bool,
    /// The operator's override.
    pub relief: spillway_policy::CurrentOverride,
    /// Outcomes of the clients since the service's drain began. `None`: the service does not drain.
    pub drained: Option<Drained>,
    /// The service is no longer configured, and ends with its last client.
    pub removed: bool,
    /// The service's links, replaced ones included.
    pub links: Vec<LinkStatus>,
    /// Plain clients connected now.
    pub plain_clients: u32,
    /// Library clients connected now.
    pub library_clients: u32,
    /// Counters since the start.
    pub counters: ServiceCounters,
    /// Traffic of all links since the start, closed ones included.
    pub traffic: LinkCounters,
    /// Sizes and delays of the batches to the server since the start.
    pub batches: Batches,
}

impl ServiceStatus {
    /// Data messages per batch to the server, on average since the start.
    pub fn messages_per_batch(&self) -> f64 {
        self.traffic.messages_sent as f64 / self.traffic.batches_sent.max(1) as f64
    }
}

/// State of one link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// State of the link.
    pub state: LinkState,
    /// Virtual connections that have not ended on both sides.
    pub connections: u32,
    /// Bytes of batches that the transport has not taken.
    pub pending_bytes: usize,
    /// The link was replaced: it accepts clients only until its successor is up.
    pub replaced: bool,
    /// The key of the open link. `None`: the link is not open.
    pub key: Option<KeyId>,
    /// The link's batches are encrypted.
    pub encrypted: bool,
}

/// Outcomes of a draining service's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Library clients that left.
    pub moved: u64,
    /// Plain clients whose connections were closed by the client or the server.
    pub left: u64,
    /// Clients that were reset or refused by the server, or reset because their link was lost or at the deadline.
    pub failed: u64,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Waits for the next attempt to connect.
    Waiting,
    /// Connects or authenticates.
    Connecting,
    /// Accepts clients.
    Up,
    /// Carries its clients and accepts no new ones: the server drains it, or another link has replaced it.
    Draining,
    /// Closed, because the service or the relay has drained.
    Closed,
}

/// State of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// The client's address, as the server sees it.
    pub client: SocketAddr,
    /// The load balancer in front of the client.
    pub via: Option<SocketAddr>,
    /// Type and state of the client.
    pub kind: ClientKind,
    /// When the client's connection was accepted.
    pub since: spillway_transport::Time,
    /// Bytes of requests.
    pub bytes_in: u64,
    /// Bytes of replies.
    pub bytes_out: u64,
    /// Bytes that wait in the relay, in both directions.
    pub buffered: usize,
    /// Beginning of the present stall, in which the client is granted nothing to send.
    pub stalled_since: Option<spillway_transport::Time>,
}

impl ClientStatus {
    pub(crate) fn new(client: SocketAddr, kind: ClientKind, since: spillway_transport::Time) -> ClientStatus {
        ClientStatus {
            client,
            via: None,
            kind,
            since,
            bytes_in: 0,
            bytes_out: 0,
            buffered: 0,
            stalled_since: None,
        }
    }
}

/// Type and state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Plain client.
    Plain,
    /// Library client, with or without a virtual connection.
    Library,
    /// Connection of a load balancer whose PROXY header is not complete.
    AwaitingHeader,
    /// Client whose server has closed, and which has not received all replies.
    Lingering,
}

//! What the relay has done and is doing, for the helper's status line.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_batch::{Batches, KeyId, LinkCounters};
use spillway_wire::load::Load;

use crate::counters::ServiceCounters;

/// A snapshot of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// In the order of the configuration.
    pub services: Vec<ServiceStatus>,
    /// Clients of all services.
    pub clients: u32,
    /// Bytes of memory that hold what waits for and from clients, in the relay, its links and the transport.
    pub buffered_bytes: usize,
    /// Memory is scarce: clients that do not read are paused.
    pub memory_is_scarce: bool,
    /// Clients that were paused because memory was scarce and they did not read, since the start.
    pub paused: u64,
    /// The relay is going away.
    pub draining: bool,
    /// As clients that ask are told.
    pub load: Load,
    /// Notices that were dropped because the host did not take them in time.
    pub notices_dropped: u64,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// As configured.
    pub name: String,
    /// The server's link port.
    pub server: SocketAddr,
    /// Whether clients are taken.
    pub listening: bool,
    /// The operator's override on it.
    pub relief: spillway_policy::CurrentOverride,
    /// It takes no more clients: what has become of those it had.
    pub drained: Option<Drained>,
    /// It is no longer configured, and goes with its last client.
    pub removed: bool,
    /// Its links.
    pub links: Vec<LinkStatus>,
    /// Plain clients connected now.
    pub raw_clients: u32,
    /// Library clients connected now.
    pub library_clients: u32,
    /// Since the start.
    pub counters: ServiceCounters,
    /// What its links have carried since the start, those lost since included.
    pub traffic: LinkCounters,
    /// What batches to the server were like since the start.
    pub batches: Batches,
}

impl ServiceStatus {
    /// Data messages per batch to the server, on average since the start.
    pub fn messages_per_batch(&self) -> f64 {
        self.traffic.messages_sent as f64 / self.traffic.batches_sent.max(1) as f64
    }
}

/// One link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// What it does.
    pub state: LinkState,
    /// Virtual connections that have not ended on both sides.
    pub connections: u32,
    /// Bytes gathered that the transport has not taken.
    pub pending_bytes: usize,
    /// It was replaced by a new one: it takes clients only until that is up.
    pub replaced: bool,
    /// The key that it was opened with, while it is open.
    pub key: Option<KeyId>,
    /// Its batches are encrypted.
    pub encrypted: bool,
}

/// What became of a draining service's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Library clients that went elsewhere by themselves.
    pub moved: u64,
    /// Plain clients whose connections ended by themselves.
    pub left: u64,
    /// Clients that were reset: by the deadline, or because their link was lost.
    pub failed: u64,
}

/// What a link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Waits before it connects.
    Waiting,
    /// Connects, or authenticates.
    Connecting,
    /// Carries clients.
    Up,
    /// Carries its clients, and gets no more: the server asked for it, or another link has replaced it.
    Draining,
    /// Closed, because the relay goes away.
    Closed,
}

/// One virtual connection, or a client that is about to get one or to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientStatus {
    /// The client's address, as the server sees it.
    pub client: SocketAddr,
    /// The load balancer that it came through.
    pub via: Option<SocketAddr>,
    /// What it is.
    pub kind: ClientKind,
    /// When its connection, or its link, was taken.
    pub since: spillway_transport::Time,
    /// Bytes of its requests.
    pub bytes_in: u64,
    /// Bytes of replies to it.
    pub bytes_out: u64,
    /// Bytes that wait here, in both directions.
    pub buffered: usize,
    /// Since when it may send nothing.
    pub stalled_since: Option<spillway_transport::Time>,
}

impl ClientStatus {
    /// A client that has sent and received nothing.
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

/// What a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// Plain.
    Raw,
    /// Library, with a virtual connection or without.
    Library,
    /// Behind a load balancer that has not yet said who it is.
    Announcing,
    /// The server has closed; it takes what is left for it.
    Leaving,
}

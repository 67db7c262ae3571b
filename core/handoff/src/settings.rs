//! Settings of an agent.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::{Key, SwitchKey};
use spillway_wire::handoff::Run;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, ServerId};

use crate::migration::MoveTimes;

/// Settings of an agent.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This server's id at the switch.
    pub id: ServerId,
    /// The key that this server shares with the switch.
    pub key: SwitchKey,
    /// The key that all servers of the services have.
    pub peers_key: Key,
    /// This run of the server: a random number that differs from those of earlier runs.
    pub run: Run,
    /// The Ethernet address of this server.
    pub mac: Mac,
    /// The services whose connections this server has or imports; at least one. Heartbeats name the first.
    pub services: Vec<Service>,
    /// All servers of these services; this server may be among them.
    pub peers: Vec<Peer>,
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// The switch's setting `owner_timeout`: a server without heartbeats for this time loses its flows.
    pub owner_timeout: Duration,
    /// Times of moves.
    pub times: MoveTimes,
    /// Time from the end of a connection to the release of its flow: the stack may have to retransmit the last segments.
    pub time_wait: Duration,
    /// Bounds on moves and on the memory that they use.
    pub limits: Limits,
}

impl Settings {
    /// The server with this Ethernet address.
    pub(crate) fn server_with(&self, mac: Mac) -> Option<ServerId> {
        self.peers.iter().find(|peer| peer.mac == mac).map(|peer| peer.id)
    }

    /// The Ethernet address of a server.
    pub(crate) fn mac_of(&self, server: ServerId) -> Option<Mac> {
        self.peers.iter().find(|peer| peer.id == server).map(|peer| peer.mac)
    }
}

/// A service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// The address and port to which clients connect.
    pub endpoint: Endpoint,
    /// Where this server has connections of the service.
    pub place: Endpoint,
    /// The server to which flows without an entry belong.
    pub original: ServerId,
}

/// Another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The server's id at the switch.
    pub id: ServerId,
    /// The server's Ethernet address.
    pub mac: Mac,
}

/// Bounds on moves and on the memory that they use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of moves from this server, and of moves to it, at the same time.
    pub moves_max: usize,
    /// Maximum total length of the frames that wait for their connections, in bytes; all moves together.
    pub held_bytes_max: usize,
    /// Maximum total length of incomplete states, in bytes; all moves together.
    pub state_bytes_max: usize,
    /// Maximum number of packets that this server forwards to other servers in a second.
    pub forwards_per_s: u32,
    /// Maximum number of requests of this server that other servers have at the same time.
    pub requests_max: usize,
    /// How often a request may be handed off. Returns do not count.
    pub hops_max: u8,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            moves_max: 1024,
            held_bytes_max: 64 << 20,
            state_bytes_max: 64 << 20,
            forwards_per_s: 100_000,
            requests_max: 65_536,
            hops_max: 4,
        }
    }
}

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
    /// This server.
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
    /// The switch's timeout of owners.
    pub owner_timeout: Duration,
    /// Times of moves.
    pub times: MoveTimes,
    /// Time from the end of a connection to the release of its flow: the stack may have to retransmit the last segments.
    pub time_wait: Duration,
    /// Bounds of what moves use.
    pub limits: Limits,
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
    /// The server.
    pub id: ServerId,
    /// Its Ethernet address.
    pub mac: Mac,
}

/// Bounds of what moves use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Moves from this server, and moves to this server, at the same time.
    pub moves_max: usize,
    /// Bytes of frames that wait for their connections, of all moves together.
    pub held_bytes_max: usize,
    /// Bytes of incomplete states, of all moves together.
    pub state_bytes_max: usize,
    /// Packets that this server forwards to other servers in a second.
    pub forwards_per_s: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            moves_max: 1024,
            held_bytes_max: 64 << 20,
            state_bytes_max: 64 << 20,
            forwards_per_s: 100_000,
        }
    }
}

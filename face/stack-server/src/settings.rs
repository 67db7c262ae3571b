//! Settings of an engine.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::{Key, SwitchKey};
use spillway_moves::PolicySettings;
use spillway_rules::config::Mode;
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::ServerId;

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The interface, which the stack shares with the kernel. One thread serves all of its queues.
    pub interface: String,
    /// The service's name, in orders and in the status.
    pub name: String,
    /// The address and port to which clients connect.
    pub service: SocketAddr,
    /// Maximum number of connections. Default 65,536.
    pub connections_max: u32,
    /// Settings of moves; `None`: no connection moves.
    pub moves: Option<MoveSettings>,
    /// The address of the link port: listener 1 of the application, which must be a
    /// [`Linked`](spillway_links::Linked). `None`: helpers cannot connect.
    pub link: Option<SocketAddr>,
}

impl EngineSettings {
    /// Settings of a server whose connections do not move, with defaults.
    pub fn new(interface: &str, service: SocketAddr) -> EngineSettings {
        EngineSettings {
            interface: interface.to_owned(),
            name: "service".to_owned(),
            service,
            connections_max: 65_536,
            moves: None,
            link: None,
        }
    }
}

/// Settings of moves.
#[derive(Clone, Debug)]
pub struct MoveSettings {
    /// The switch's address and port for control messages: an entry of `control` in its configuration.
    pub switch: SocketAddr,
    /// The key that this server shares with the switch.
    pub key: SwitchKey,
    /// The key that all servers of the service share: it seals what they send to each other.
    pub peers_key: Key,
    /// All servers of the service. The one with the interface's Ethernet address is this server.
    pub peers: Vec<PeerServer>,
    /// The switch's `owner_timeout`. Heartbeats leave ten times in it, and with a policy at least every 10 ms.
    pub owner_timeout: Duration,
    /// The mode of the switch. In host mode replies pass no switch: this server sends them under the service's address.
    pub mode: Mode,
    /// The policy by which the server decides to move connections, with its limits; `None`: only orders move them.
    pub policy: Option<PolicySettings>,
    /// What measurements of moves need.
    pub measuring: Measuring,
}

/// Settings for measurements of moves. By default nothing is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measuring {
    /// The times of the steps of this number of moves are kept, the last ones that have ended; 0: of none. See
    /// [`Request::MoveSteps`](crate::Request::MoveSteps).
    pub moves: usize,
    /// The server's thread stops for this time after each export, as if exports took longer.
    pub export_pause: Duration,
}

/// A server of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerServer {
    /// Its name, in orders and in the status.
    pub name: String,
    /// Its `id` in the switch's configuration.
    pub id: ServerId,
    /// The address and port at which it receives datagrams of the switch and of other servers.
    pub address: SocketAddr,
    /// The Ethernet address of its interface.
    pub mac: Mac,
    /// The address and port at which it has connections of the service. The server at the service's own address is the
    /// original owner of all connections.
    pub place: SocketAddr,
}

//! What the clients of an experiment are: where they connect, how many they are, and which requests they send.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use spillway_load::config::ProtocolKind;

use super::engine::Engine;
use super::order::Order;

/// Width of the generators' bins, in ms. Relief times have the same resolution.
pub const BIN_MS: u64 = crate::relief::GRID_MS;

/// The link ports that the clients' sessions may use, and how the sessions choose among them.
#[derive(Clone, Debug)]
pub struct Routes {
    /// Link ports of helpers.
    pub helpers: Vec<SocketAddr>,
    /// True: all sessions start on the first helper, and the other helpers are standbys. False: sessions are
    /// spread over all helpers.
    pub standby: bool,
    /// The server's own link port. Sessions use it after all helpers have failed, always if `helpers` is empty, and
    /// at first if `sessions_per_process` is set.
    pub link: Option<SocketAddr>,
    /// Number of sessions in each simulated client process. If set, sessions start at the server, and a
    /// policy in each process moves its sessions to helpers and back.
    pub sessions_per_process: Option<u32>,
    /// File with the clients' key.
    pub key: PathBuf,
}

/// Configuration of all clients.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The server's ordinary port.
    pub server: SocketAddr,
    /// Link ports of the helpers over which [`Order::ToHelper`] spreads plain connections, and the file with
    /// the clients' key.
    pub helpers: Option<(Vec<SocketAddr>, PathBuf)>,
    /// If set, connections are sessions with these routes.
    pub sessions: Option<Routes>,
    /// Number of helpers that a session asks for their load when it chooses a helper; `None` for the generator's
    /// default.
    pub helpers_asked: Option<usize>,
    /// Threads of each generator.
    pub threads: u32,
    /// Connections over all hosts.
    pub connections: u32,
    /// Number of keys in the server.
    pub keys: u32,
    /// Whether the first generator sets all keys before the run. False if the server already has the keys.
    pub fill: bool,
    /// Seed of keys, values and the times at which requests are due.
    pub seed: u64,
    /// Initial rate in requests a second, over all hosts.
    pub rate_per_s: f64,
    /// Time from time zero to the last request; `None`: clients send until
    /// [`Generators::finish`](super::Generators::finish).
    pub duration: Option<Duration>,
    /// Orders, each with its time since time zero; rates are over all hosts.
    pub schedule: Vec<(Duration, Order)>,
    /// Replies that take longer than this count as late.
    pub sla: Duration,
    /// Time between the starts of two connections' moves, over all hosts.
    pub pace: Duration,
}

/// The requests that clients send, and the engine that sends them.
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// The clients' protocol.
    pub protocol: ProtocolKind,
    /// Length of a value, in bytes. Keys have 32 bytes.
    pub value_size: usize,
    /// Size of the objects that HTTP requests name; `None`: they name none.
    pub object_size: Option<u32>,
    /// Share of gets, 0 to 1; all other requests are sets.
    pub get_ratio: f64,
    /// Closed loop: each connection sends its next request when it has received a reply, and the rate is
    /// ignored.
    pub closed: bool,
    /// Open loop with equal intervals between requests; false: exponentially distributed intervals.
    pub constant: bool,
    /// Width of the generators' bins, in ms; must divide 1,000.
    pub bin_ms: u64,
    /// The transport of the connections.
    pub engine: Engine,
    /// Exponent of Zipf's law, by which the connections differ in their rates; `None`: all have the same rate.
    pub skew: Option<f64>,
}

impl Default for Traffic {
    /// The paper's traffic: GETs of 64 B values from memcached, in an open loop.
    fn default() -> Traffic {
        Traffic {
            protocol: ProtocolKind::Memcached,
            value_size: 64,
            object_size: None,
            get_ratio: 1.0,
            closed: false,
            constant: false,
            bin_ms: BIN_MS,
            engine: Engine::Sockets,
            skew: None,
        }
    }
}

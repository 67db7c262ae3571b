//! The behaviour of clients, and the settings of their sessions.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_session::{CarrierTimeouts, Pace, SessionSettings, StreamLimits};

use crate::rng::Rng;

/// A timeout that is longer than any run.
const NEVER: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientBehaviour {
    pub(crate) clients_max: usize,
    /// Clients, of a thousand, that reset their session early.
    pub(crate) early_ends_per_1000: u64,
    /// Clients, of a thousand, that close in order as soon as they have written all bytes, without waiting for replies.
    pub(crate) early_closes_per_1000: u64,
    /// Bounds of each end of a session.
    pub(crate) limits: StreamLimits,
    /// Longest timeout for a silent carrier.
    pub(crate) patience_max: Duration,
    /// A client's turns, of a thousand, in which it moves without a reason.
    pub(crate) random_moves_per_1000: u64,
    /// Maximum number of bytes that a client writes.
    pub(crate) bytes_max: u64,
    /// A quarter of the clients give their session up when no carrier has worked for 0.1 to 30 s.
    pub(crate) some_give_up: bool,
}

impl ClientBehaviour {
    pub(crate) fn settings(&self, server: SocketAddr, rng: &mut Rng) -> SessionSettings {
        let timeout_ns_max = self.patience_max.as_nanos() as u64; // fits: less than a minute
        let ceiling = rng.log_uniform(500_000, timeout_ns_max);
        let gives_up = self.some_give_up && rng.chance(1, 4);
        let window = rng.log_uniform(1_000_000, 1_000_000_000);
        let draw = |rng: &mut Rng, low, high| Duration::from_nanos(rng.log_uniform(low, high));
        SessionSettings {
            stream: self.limits,
            carrier_timeouts: CarrierTimeouts {
                floor: draw(rng, 200_000, ceiling),
                ceiling: Duration::from_nanos(ceiling),
                idle: draw(rng, 500_000, 5_000_000_000),
            },
            attach_timeout: draw(rng, 500_000, timeout_ns_max),
            give_up_after: if gives_up { draw(rng, 100_000_000, 30_000_000_000) } else { NEVER },
            refused_timeout: draw(rng, 1_000_000, 2_000_000_000),
            server_port: rng.chance(3, 4).then_some(server),
            pace: Pace { window: Duration::from_nanos(window), window_max: draw(rng, window, 8_000_000_000) },
        }
    }
}

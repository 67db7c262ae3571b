//! How clients behave, and the settings of their sessions.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_session::{Pace, Patience, SessionSettings, StreamLimits};

use crate::rng::Rng;

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1_000_000);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientBehaviour {
    /// Clients at a time.
    pub(crate) clients_max: usize,
    /// Clients, of a thousand, that reset their session early.
    pub(crate) early_ends_in_1000: u64,
    /// Clients, of a thousand, that close in order as soon as they have written all, and await no reply.
    pub(crate) early_closes_in_1000: u64,
    /// Bounds of each end of a session.
    pub(crate) limits: StreamLimits,
    /// Longest timeout without a sign of life from the carrier.
    pub(crate) patience_max: Duration,
    /// Turns of a client, of a thousand, at which it moves without a reason.
    pub(crate) random_moves_in_1000: u64,
    /// Maximum that a client writes, bytes.
    pub(crate) bytes_max: u64,
    /// Some clients give their session up when no carrier has worked for a while.
    pub(crate) some_give_up: bool,
}

impl ClientBehaviour {
    pub(crate) fn settings(&self, server: SocketAddr, rng: &mut Rng) -> SessionSettings {
        let longest = self.patience_max.as_nanos() as u64; // less than a minute
        let ceiling = rng.scale(500_000, longest);
        let gives_up = self.some_give_up && rng.chance(1, 4);
        let window = rng.scale(1_000_000, 1_000_000_000);
        let up_to = |rng: &mut Rng, low, high| Duration::from_nanos(rng.scale(low, high));
        SessionSettings {
            stream: self.limits,
            patience: Patience {
                floor: up_to(rng, 200_000, ceiling),
                ceiling: Duration::from_nanos(ceiling),
                idle: up_to(rng, 500_000, 5_000_000_000),
            },
            attach_timeout: up_to(rng, 500_000, longest),
            give_up_after: if gives_up { up_to(rng, 100_000_000, 30_000_000_000) } else { NEVER },
            refused_patience: up_to(rng, 1_000_000, 2_000_000_000),
            server_port: rng.chance(3, 4).then_some(server),
            pace: Pace {
                window: Duration::from_nanos(window),
                window_max: up_to(rng, window, 8_000_000_000),
            },
        }
    }
}

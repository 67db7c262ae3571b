//! How clients behave, and the settings that their sessions are drawn with.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_session::{Pace, Patience, SessionSettings, StreamLimits};

use crate::rng::Rng;

/// Longer than any run: a client with this patience does not give its session up.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// At a time.
    pub(crate) clients_max: usize,
    /// Of a thousand, how many reset their session early.
    pub(crate) rude_in_1000: u64,
    /// Of a thousand, how many close in order as soon as they have written all, and await no reply.
    pub(crate) hasty_in_1000: u64,
    /// Of each end of a session.
    pub(crate) limits: StreamLimits,
    /// The longest that a client waits for a sign of life.
    pub(crate) patience_max: Duration,
    /// Of a thousand turns of a client, how many make it move for no reason.
    pub(crate) whims_in_1000: u64,
    /// The most that a client writes, bytes.
    pub(crate) bytes_max: u64,
    /// Some clients give their session up when nothing has carried it for a while.
    pub(crate) some_give_up: bool,
}

impl Manners {
    /// Of one more session.
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

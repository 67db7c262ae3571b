//! How the simulated network behaves.

use crate::rng::Rng;

/// Delays, sizes and bounds of the simulated network.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Bounds of a segment's travel time, nanoseconds.
    pub delay_ns: (u64, u64),
    /// Longest segment, bytes.
    pub segment_bytes_max: u64,
    /// Longest piece of data in one event, bytes.
    pub piece_bytes_max: u64,
    /// Receive buffer of one connection, bytes.
    pub window_bytes: u64,
    /// Send queue of one connection, bytes.
    pub queue_bytes_max: usize,
    /// Maximum of connections of one host.
    pub connections_max: usize,
    /// Maximum time between an arrival and the host's turn, nanoseconds; later arrivals in that time share the turn.
    pub turn_delay_ns: u64,
    /// Connection attempts, of a thousand, that find the host's tables full.
    pub full_in_1000: u64,
}

impl Weather {
    /// Draws the network's behaviour. `calm`: no attempt finds a host's tables full.
    pub(crate) fn drawn(rng: &mut Rng, calm: bool) -> Weather {
        let low = rng.scale(1_000, 200_000);
        let queue_most = rng.pick(&[2_000, 256 * 1024]);
        Weather {
            delay_ns: (low, low + rng.scale(1_000, 2_000_000)),
            segment_bytes_max: rng.scale(20, 64 * 1024),
            piece_bytes_max: rng.scale(20, 64 * 1024),
            window_bytes: rng.scale(500, 64 * 1024),
            queue_bytes_max: rng.scale(200, queue_most) as usize,
            connections_max: 5_000,
            turn_delay_ns: rng.scale(1_000, 300_000),
            full_in_1000: if calm { 0 } else { rng.pick(&[0, 0, 20]) },
        }
    }

    /// Short delays and long segments; no attempt finds a host's tables full.
    pub fn calm() -> Weather {
        Weather {
            delay_ns: (20_000, 100_000),
            segment_bytes_max: 16_000,
            piece_bytes_max: 64_000,
            window_bytes: 64 * 1024,
            queue_bytes_max: 256 << 10,
            connections_max: 10_000,
            turn_delay_ns: 20_000,
            full_in_1000: 0,
        }
    }
}

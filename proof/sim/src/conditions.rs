//! The conditions of the simulated network.

use crate::rng::Rng;

/// Delays, sizes and bounds of the simulated network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkConditions {
    /// Minimum and maximum one-way delay of a segment, nanoseconds.
    pub delay_ns: (u64, u64),
    /// Longest segment, bytes.
    pub segment_bytes_max: u64,
    /// Maximum data in one event, bytes.
    pub event_bytes_max: u64,
    /// Receive buffer of one connection, bytes.
    pub window_bytes: u64,
    /// Send queue of one connection, bytes.
    pub queue_bytes_max: usize,
    /// Maximum number of connections of one host.
    pub connections_max: usize,
    /// Maximum time between an arrival and the host's turn, nanoseconds; arrivals in this time share the turn.
    pub turn_delay_ns: u64,
    /// Connection attempts, of a thousand, that fail because the host's tables are full.
    pub full_per_1000: u64,
}

impl NetworkConditions {
    /// Draws the conditions. `is_mild`: no connection attempt fails because of full tables.
    pub(crate) fn draw(rng: &mut Rng, is_mild: bool) -> NetworkConditions {
        let delay_ns_min = rng.log_uniform(1_000, 200_000);
        let queue_bytes_max = rng.pick(&[2_000, 256 * 1024]);
        NetworkConditions {
            delay_ns: (delay_ns_min, delay_ns_min + rng.log_uniform(1_000, 2_000_000)),
            segment_bytes_max: rng.log_uniform(20, 64 * 1024),
            event_bytes_max: rng.log_uniform(20, 64 * 1024),
            window_bytes: rng.log_uniform(500, 64 * 1024),
            queue_bytes_max: rng.log_uniform(200, queue_bytes_max) as usize,
            connections_max: 5_000,
            turn_delay_ns: rng.log_uniform(1_000, 300_000),
            full_per_1000: if is_mild { 0 } else { rng.pick(&[0, 0, 20]) },
        }
    }

    /// Short delays and long segments; no connection attempt fails because of full tables.
    pub fn mild() -> NetworkConditions {
        NetworkConditions {
            delay_ns: (20_000, 100_000),
            segment_bytes_max: 16_000,
            event_bytes_max: 64_000,
            window_bytes: 64 * 1024,
            queue_bytes_max: 256 << 10,
            connections_max: 10_000,
            turn_delay_ns: 20_000,
            full_per_1000: 0,
        }
    }
}

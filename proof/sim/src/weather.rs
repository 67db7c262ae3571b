//! How the simulated network behaves.

use crate::rng::Rng;

/// How the network behaves.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Bounds of a segment's travel time, nanoseconds.
    pub delay_ns: (u64, u64),
    /// Longest segment, bytes.
    pub segment_bytes_max: u64,
    /// Longest piece of data in one event, bytes.
    pub piece_bytes_max: u64,
    /// Bytes that a host holds for an application that does not read, of one connection.
    pub window_bytes: u64,
    /// Bytes that a connection takes before it has no room.
    pub queue_bytes_max: usize,
    /// Connections of one host.
    pub connections_max: usize,
    /// A host begins its turn at most this long after something arrived, nanoseconds: what arrives meanwhile
    /// belongs to the same turn.
    pub turn_delay_ns: u64,
    /// Of a thousand connects, how many find the host's tables full.
    pub full_in_1000: u64,
}

impl Weather {
    /// Of any kind. `calm`: nobody finds a host's tables full.
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

    /// Everything quick and whole.
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

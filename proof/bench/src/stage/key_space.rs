//! The keys that clients request and that servers hold.

use std::net::SocketAddr;

use spillway_load::Config;
use spillway_load::protocol::store::Space;

/// Number of keys in each key space of a server.
pub const KEYS: u32 = 2_000;

/// The key space that clients with this seed use, with values of 64 B.
pub(crate) fn space_of(seed: u64) -> Space {
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Config { seed, value_size: 64, ..Config::new(nowhere) }.space()
}

/// The key space with values of `value_size` bytes. Clients that also write (`written`) and clients that only
/// read have different keys, so that writes do not change the values that readers expect.
pub fn space(value_size: usize, written: bool) -> Space {
    let seed = seed(value_size, written);
    let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
    Config { seed, value_size, ..Config::new(nowhere) }.space()
}

/// The seed that determines the keys: different for each value size, and for reading and writing.
pub(super) fn seed(value_size: usize, written: bool) -> u64 {
    2 * value_size as u64 + u64::from(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_keys_differ_from_keys_that_are_only_read() {
        let key = |space: &Space| {
            let mut key = Vec::new();
            space.push_key(7, &mut key);
            key
        };
        assert_ne!(key(&space(64, false)), key(&space(64, true)));
        assert_ne!(key(&space(64, false)), key(&space(1024, false)));
        assert_eq!(space(64, false).value_size, 64);
    }
}

//! A keyed hash for maps, so that peers cannot provoke collisions.

use core::net::{Ipv4Addr, SocketAddr};

use foldhash::quality::FixedState;

use crate::isn::{Key, Purpose};

/// Keyed hash for maps whose keys peers choose. Fast instead of cryptographic, because it runs for each segment: no
/// hash is ever sent, so peers cannot find colliding addresses and ports, and the maps are bounded.
pub(crate) type Keyed = FixedState;

/// A map hash seeded from the secret key.
pub(crate) fn keyed(key: Key) -> Keyed {
    let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    FixedState::with_seed(key.hash(Purpose::Map, unspecified, unspecified, 0))
}

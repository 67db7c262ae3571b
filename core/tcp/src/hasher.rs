//! Hash maps whose collisions nobody outside can choose.

use core::net::{Ipv4Addr, SocketAddr};

use foldhash::quality::FixedState;

use crate::isn::{Key, Purpose};

/// Keyed hashes for maps that peers have a say in. Quick rather than strong, as they are asked for each segment: peers
/// see none of them, so they do not learn which addresses and ports collide, and maps are bounded.
pub(crate) type Keyed = FixedState;

/// Of a secret key.
pub(crate) fn keyed(key: Key) -> Keyed {
    let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    FixedState::with_seed(key.hash(Purpose::Map, nobody, nobody, 0))
}

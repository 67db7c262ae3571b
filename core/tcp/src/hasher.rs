//! Hash maps in which peers cannot provoke collisions.

use core::net::{Ipv4Addr, SocketAddr};

use foldhash::quality::FixedState;

use crate::isn::{Key, Purpose};

/// Keyed hash for maps whose keys peers choose. A fast hash instead of a strong one, because each segment needs it: peers
/// never see a hash, so they cannot learn which addresses and ports collide, and the maps are bounded.
pub(crate) type Keyed = FixedState;

/// A hash seeded from the secret key.
pub(crate) fn keyed(key: Key) -> Keyed {
    let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    FixedState::with_seed(key.hash(Purpose::Map, nobody, nobody, 0))
}

//! The two ends of a connection.

use core::hash::{Hash, Hasher};
use core::net::SocketAddrV4;

/// What tells a connection from all others: our address and port, and the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Ours.
    pub local: SocketAddrV4,
    /// Theirs.
    pub peer: SocketAddrV4,
}

impl Hash for Flow {
    /// In one piece: it is looked up for each segment.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let addresses = u64::from(self.local.ip().to_bits()) << 32 | u64::from(self.peer.ip().to_bits());
        let ports = u64::from(self.local.port()) << 16 | u64::from(self.peer.port());
        state.write_u64(addresses);
        state.write_u64(ports);
    }
}

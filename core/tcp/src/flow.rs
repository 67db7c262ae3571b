//! The two ends of a connection.

use core::hash::{Hash, Hasher};
use core::net::SocketAddrV4;

/// Identifies a connection: the local and the peer's address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// This end's address and port.
    pub local: SocketAddrV4,
    /// The peer's address and port.
    pub peer: SocketAddrV4,
}

impl Hash for Flow {
    /// Two writes of whole words instead of one per field, because each received segment hashes a flow.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let addresses = u64::from(self.local.ip().to_bits()) << 32 | u64::from(self.peer.ip().to_bits());
        let ports = u64::from(self.local.port()) << 16 | u64::from(self.peer.port());
        state.write_u64(addresses);
        state.write_u64(ports);
    }
}

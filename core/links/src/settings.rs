//! What a link port accepts.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::SocketAddr;

use spillway_batch::{LinkRandomness, ServerConfig};

use crate::notice::LinkNotice;

/// Settings of a link port.
pub struct LinkSettings {
    /// Index of the link port's listener.
    pub listener: u16,
    /// The link port's address, which a helper must not state as that of a client.
    pub address: SocketAddr,
    /// Accepted keys, client addresses, and the bounds of each link.
    pub config: Arc<ServerConfig>,
    /// Maximum number of links. Beyond it a new link replaces one that has not authenticated, or is reset.
    pub links_max: usize,
    /// Maximum number of helped clients of all links together. Further ones are refused.
    pub clients_max: usize,
    /// Maximum number of bytes of helped clients that wait because the application does not read them. A client whose bytes
    /// would exceed it is reset.
    pub waiting_bytes_max: usize,
    /// Called for each handshake, which needs random bytes. If the system has none (`None`), the link is reset.
    pub randomness: Box<dyn FnMut() -> Option<LinkRandomness> + Send>,
    /// Called with each notice. Must not block.
    pub notices: Box<dyn FnMut(LinkNotice) + Send>,
}

impl core::fmt::Debug for LinkSettings {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("LinkSettings")
            .field("listener", &self.listener)
            .field("address", &self.address)
            .field("links_max", &self.links_max)
            .finish_non_exhaustive()
    }
}

//! Changes of a running stack's limits, and what a driver must know to change its addresses.

use core::net::SocketAddr;

use super::Stack;
use crate::settings::KeepAlive;

impl Stack {
    /// Sets [`Settings::connections_max`](crate::Settings::connections_max) and
    /// [`Settings::connect_reserve`](crate::Settings::connect_reserve). Connections beyond the limits stay.
    pub fn set_connections_max(&mut self, connections: u32, connect_reserve: u32) {
        self.settings.connections_max = connections;
        self.settings.connect_reserve = connect_reserve;
        self.table.set_max(connections);
    }

    /// Sets [`Settings::keep_alive`](crate::Settings::keep_alive), for each connection from its next segment on.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.settings.keep_alive = keep_alive;
    }

    /// Whether a connection, established or not, has this local address and port. Examines all connections.
    pub fn has_connections_at(&self, local: SocketAddr) -> bool {
        self.table.iter().any(|connection| connection.flow.local() == local)
    }
}

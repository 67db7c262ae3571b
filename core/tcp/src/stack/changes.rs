//! Operations on a running stack: its driver changes the stack's limits, aborts connections before it shuts down, and
//! checks whether an address is still in use.

use alloc::vec::Vec;
use core::net::SocketAddr;

use spillway_transport::{Conn, Transport};

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

    /// Keeps this number of places in the table free for connections that will be [imported](Self::import). Peers that
    /// connect, and [`connect`](Transport::connect), get no place if fewer would be left; an import takes any free place.
    /// Initially 0.
    pub fn keep_places(&mut self, places: usize) {
        self.kept_places = places;
    }

    /// Sets [`Settings::keep_alive`](crate::Settings::keep_alive), for each connection from its next segment on.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        self.settings.keep_alive = keep_alive;
    }

    /// Aborts up to `count` connections on which this end has not finished sending, for a driver that shuts down. Returns
    /// their number. `count` is at most 1,024, and the resets must be sent before the next call, because the queue of
    /// resets holds 1,024 and drops more. A connection on which this end has finished sending (its FIN is sent or queued)
    /// stays: a reset could make the peer discard the last bytes.
    pub fn abort_unfinished(&mut self, count: usize) -> usize {
        let unfinished = self.table.iter().filter(|connection| !connection.has_finished());
        let conns: Vec<Conn> = unfinished.take(count).map(|connection| connection.conn).collect();
        conns.iter().for_each(|conn| self.abort(*conn));
        conns.len()
    }

    /// Whether a connection, established or not, has this local address and port. Examines all connections.
    pub fn has_connections_at(&self, local: SocketAddr) -> bool {
        self.table.iter().any(|connection| connection.flow.local() == local)
    }
}

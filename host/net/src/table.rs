//! The table of connections.

use spillway_parts::Slots;
use spillway_transport::Conn;

use crate::connection::Connection;

/// A bounded table. The slot freed last is used next, so slots stay dense. Generations are never 0, which epoll tokens
/// use for other descriptors.
#[derive(Debug)]
pub struct Table(Slots<Connection>);

impl Table {
    /// An empty table for at most `limit` connections.
    pub fn new(limit: usize) -> Table {
        Table(Slots::new(limit))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Changes the limit. Existing connections remain.
    pub fn set_limit(&mut self, limit: usize) {
        self.0.set_max(limit);
    }

    pub fn is_full(&self) -> bool {
        self.next().is_none()
    }

    /// The key that the next `insert` will return; `None` if the table is full.
    pub fn next(&self) -> Option<Conn> {
        self.0.next_key().map(Conn::from)
    }

    /// Adds a connection; `None` if the table is full.
    pub fn insert(&mut self, connection: Connection) -> Option<Conn> {
        self.0.insert(connection).map(Conn::from)
    }

    /// The keys of all connections.
    pub fn conns(&self) -> Vec<Conn> {
        self.0.iter().map(|(key, _)| key.into()).collect()
    }

    /// The connection of a key, unless the key is stale.
    pub fn get_mut(&mut self, conn: Conn) -> Option<&mut Connection> {
        self.0.get_mut(conn)
    }

    /// Like [`get_mut`](Self::get_mut), for shared access.
    pub fn get(&self, conn: Conn) -> Option<&Connection> {
        self.0.get(conn)
    }

    pub fn remove(&mut self, conn: Conn) -> Option<Connection> {
        self.0.remove(conn)
    }
}

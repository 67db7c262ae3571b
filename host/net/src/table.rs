//! Connections by slot.

use spillway_parts::Slots;
use spillway_transport::Conn;

use crate::connection::Connection;

/// Bounded; the slot freed last is used next, so slots stay dense. No generation is 0, which marks what is not a connection,
/// such as a listener.
#[derive(Debug)]
pub struct Table(Slots<Connection>);

impl Table {
    /// An empty table for at most `limit` connections.
    pub fn new(limit: usize) -> Table {
        Table(Slots::new(limit))
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Bounds it anew. Connections that are there stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.0.set_max(limit);
    }

    /// Whether there is no room for another one.
    pub fn is_full(&self) -> bool {
        self.next().is_none()
    }

    /// The connection that the next `insert` will make; `None` when the table is full.
    pub fn next(&self) -> Option<Conn> {
        self.0.next_key().map(Conn::from)
    }

    /// Adds a connection, unless the table is full.
    pub fn insert(&mut self, connection: Connection) -> Option<Conn> {
        self.0.insert(connection).map(Conn::from)
    }

    /// The connection, unless it is stale.
    pub fn find(&mut self, conn: Conn) -> Option<&mut Connection> {
        self.0.get_mut(conn)
    }

    /// The connection, unless it is stale, to look at.
    pub fn look(&self, conn: Conn) -> Option<&Connection> {
        self.0.get(conn)
    }

    /// Takes a connection out; its slot is free for another one.
    pub fn remove(&mut self, conn: Conn) -> Option<Connection> {
        self.0.remove(conn)
    }
}

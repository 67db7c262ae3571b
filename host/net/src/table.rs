//! Connections by slot, with generations.

use spillway_transport::Conn;

use crate::connection::Connection;

/// Bounded; the slot freed last is used next, so slots stay dense.
#[derive(Debug)]
pub struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: usize,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

impl Table {
    /// An empty table for at most `limit` connections.
    pub fn new(limit: usize) -> Table {
        Table { slots: Vec::new(), free: Vec::new(), limit: limit.min(u32::MAX as usize - 1) }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Bounds it anew. Connections that are there stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(u32::MAX as usize - 1);
    }

    /// Whether there is no room for another one.
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// The connection that the next `insert` will make.
    pub fn next(&self) -> Conn {
        match self.free.last() {
            Some(&slot) => Conn { slot, generation: self.slots[slot as usize].generation },
            None => Conn { slot: self.slots.len() as u32, generation: 1 },
        }
    }

    /// Adds a connection. The caller has asked `is_full`.
    pub fn insert(&mut self, connection: Connection) -> Conn {
        let conn = self.next();
        match self.free.pop() {
            Some(slot) => self.slots[slot as usize].connection = Some(connection),
            None => self.slots.push(Slot { generation: conn.generation, connection: Some(connection) }),
        }
        conn
    }

    /// The connection, unless it is stale.
    pub fn find(&mut self, conn: Conn) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(conn.slot as usize)?;
        if slot.generation == conn.generation { slot.connection.as_mut() } else { None }
    }

    /// The connection, unless it is stale, to look at.
    pub fn look(&self, conn: Conn) -> Option<&Connection> {
        let slot = self.slots.get(conn.slot as usize)?;
        if slot.generation == conn.generation { slot.connection.as_ref() } else { None }
    }

    /// Takes a connection out; its slot is free for another one.
    pub fn remove(&mut self, conn: Conn) -> Option<Connection> {
        let slot = self.slots.get_mut(conn.slot as usize)?;
        if slot.generation != conn.generation {
            return None;
        }
        let connection = slot.connection.take()?;
        // Generation 0 marks what is not a connection, such as a listener.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(conn.slot);
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn connection() -> Connection {
        Connection::opened(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
    }

    #[test]
    fn bounded_dense_and_never_confuses_generations() {
        let mut table = Table::new(2);
        let first = table.insert(connection());
        let second = table.insert(connection());
        assert!(table.is_full());
        assert!(table.remove(first).is_some());
        assert!(table.remove(first).is_none() && table.find(first).is_none() && table.look(first).is_none());
        assert!(!table.is_full());
        let expected = table.next();
        let third = table.insert(connection());
        assert_eq!(third, expected);
        assert_eq!((third.slot, table.len()), (first.slot, 2));
        assert_ne!(third, first);
        assert!(table.look(third).is_some() && table.look(second).is_some());
        assert!(table.look(Conn { slot: 9, generation: 1 }).is_none());
    }

    #[test]
    fn a_generation_that_wraps_skips_zero() {
        let mut table = Table::new(1);
        let conn = table.insert(connection());
        table.slots[0].generation = u32::MAX;
        assert!(table.remove(Conn { generation: u32::MAX, ..conn }).is_some());
        assert_eq!(table.next().generation, 1);
    }
}

//! Connections by slot and by flow.

use alloc::boxed::Box;

use hashbrown::HashMap;
use spillway_parts::Slots;
use spillway_transport::Conn;

use crate::connection::Connection;
use crate::flow::Flow;
use crate::hasher::{Keyed, keyed};
use crate::isn::Key;

#[derive(Debug)]
pub(super) struct Table {
    slots: Slots<Box<Connection>>,
    flows: HashMap<Flow, u32, Keyed>,
    /// Flow of the last segment: consecutive segments often belong to one flow (packet trains, Jain and Routhier 1986).
    last: Option<(Flow, u32)>,
}

impl Table {
    pub(super) fn new(connections_max: u32, key: Key) -> Table {
        let flows = HashMap::with_hasher(keyed(key));
        Table { slots: Slots::new(connections_max as usize), flows, last: None }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The id of the next connection, if there is room for one.
    pub(super) fn next(&self) -> Option<Conn> {
        self.slots.next_key().map(Conn::from)
    }

    /// Adds a connection with the id that [`next`](Self::next) returned.
    pub(super) fn add(&mut self, connection: Box<Connection>) {
        let (flow, conn) = (connection.flow, connection.conn);
        let added = self.slots.insert(connection);
        debug_assert_eq!(added.map(Conn::from), Some(conn), "the id should be the one that `next` returned");
        self.last = None;
        self.flows.insert(flow, conn.slot);
    }

    /// Sets the maximum number of connections. Present ones beyond it stay.
    pub(super) fn set_max(&mut self, connections_max: u32) {
        self.slots.set_max(connections_max as usize);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().map(|(_, connection)| connection.as_ref())
    }

    pub(super) fn get(&self, conn: Conn) -> Option<&Connection> {
        self.slots.get(conn).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, conn: Conn) -> Option<&mut Connection> {
        self.slots.get_mut(conn).map(Box::as_mut)
    }

    /// The connection in this slot, of any generation.
    pub(super) fn at(&self, slot: u32) -> Option<&Connection> {
        self.slots.entry_in(slot).map(|(_, connection)| connection.as_ref())
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.entry_in_mut(slot).map(|(_, connection)| connection.as_mut())
    }

    pub(super) fn find(&mut self, flow: &Flow) -> Option<Conn> {
        let slot = match self.last {
            Some((last, slot)) if last == *flow => slot,
            _ => {
                let slot = *self.flows.get(flow)?;
                self.last = Some((*flow, slot));
                slot
            }
        };
        self.at(slot).map(|connection| connection.conn)
    }

    /// Removes a flow if it belongs to this connection; returns whether it did.
    pub(super) fn forget_flow(&mut self, flow: Flow, conn: Conn) -> bool {
        let is_same = self.flows.get(&flow) == Some(&conn.slot);
        if is_same {
            self.last = None;
            self.flows.remove(&flow);
        }
        is_same
    }

    /// Removes a connection; its slot may be used again.
    pub(super) fn free(&mut self, conn: Conn) {
        let Some(connection) = self.slots.remove(conn) else {
            debug_assert!(false, "the connection should be in the table");
            return;
        };
        self.forget_flow(connection.flow, conn);
    }
}

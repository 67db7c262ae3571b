//! Connections by slot, and by flow.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashMap;
use spillway_transport::Conn;

use crate::connection::Connection;
use crate::flow::Flow;
use crate::hasher::{Keyed, keyed};
use crate::isn::Key;

#[derive(Debug)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// Slots are reused, the last freed first, so that they stay small and dense.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    flows: HashMap<Flow, u32, Keyed>,
    /// Whose segment came last: segments come in trains (Jain and Routhier 1986).
    last: Option<(Flow, u32)>,
    connections_max: u32,
}

impl Table {
    pub(super) fn new(connections_max: u32, key: Key) -> Table {
        let flows = HashMap::with_hasher(keyed(key));
        Table { slots: Vec::new(), free: Vec::new(), flows, last: None, connections_max }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The name of the next connection, if there is room for one.
    pub(super) fn next(&self) -> Option<Conn> {
        if let Some(slot) = self.free.last() {
            return Some(Conn { slot: *slot, generation: self.slots[*slot as usize].generation });
        }
        let slot = u32::try_from(self.slots.len()).ok().filter(|slot| *slot < self.connections_max)?;
        Some(Conn { slot, generation: 0 })
    }

    /// Adds a connection under the name that [`next`](Self::next) gave.
    pub(super) fn add(&mut self, connection: Box<Connection>) {
        let conn = connection.conn;
        self.last = None;
        self.flows.insert(connection.flow, conn.slot);
        if self.free.last() == Some(&conn.slot) {
            self.free.pop();
            self.slots[conn.slot as usize].connection = Some(connection);
        } else {
            debug_assert_eq!(self.slots.len(), conn.slot as usize, "names are given out in order");
            self.slots.push(Slot { generation: conn.generation, connection: Some(connection) });
        }
    }

    pub(super) fn get(&self, conn: Conn) -> Option<&Connection> {
        let slot = self.slots.get(conn.slot as usize).filter(|slot| slot.generation == conn.generation)?;
        slot.connection.as_deref()
    }

    pub(super) fn get_mut(&mut self, conn: Conn) -> Option<&mut Connection> {
        let slot =
            self.slots.get_mut(conn.slot as usize).filter(|slot| slot.generation == conn.generation)?;
        slot.connection.as_deref_mut()
    }

    /// Whoever has this slot now.
    pub(super) fn at(&self, slot: u32) -> Option<&Connection> {
        self.slots.get(slot as usize)?.connection.as_deref()
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> Option<&mut Connection> {
        self.slots.get_mut(slot as usize)?.connection.as_deref_mut()
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

    /// Segments of this flow are not this connection's any more. Whether they were.
    pub(super) fn forget_flow(&mut self, flow: Flow, conn: Conn) -> bool {
        let is_its = self.flows.get(&flow) == Some(&conn.slot);
        if is_its {
            self.last = None;
            self.flows.remove(&flow);
        }
        is_its
    }

    /// The slot of a connection that is in the table may be used again.
    pub(super) fn free(&mut self, conn: Conn) {
        let slot = self.slots.get_mut(conn.slot as usize).filter(|slot| slot.generation == conn.generation);
        let Some((slot, connection)) =
            slot.and_then(|slot| slot.connection.take().map(|taken| (slot, taken)))
        else {
            debug_assert!(false, "the caller has just looked this connection up");
            return;
        };
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(conn.slot);
        self.forget_flow(connection.flow, conn);
    }
}

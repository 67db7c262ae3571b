//! Connections by slot and by flow.

use alloc::boxed::Box;

use core::hash::BuildHasher;

use hashbrown::HashTable;
use spillway_parts::Slots;
use spillway_transport::Conn;

use crate::connection::Connection;
use crate::flow::Flow;
use crate::hasher::{Keyed, keyed};
use crate::isn::Key;

#[derive(Debug)]
pub(super) struct Table {
    slots: Slots<Box<Connection>>,
    /// Slots by flow. The flow itself is stored only in its connection, which is accessed next in any case: with flows,
    /// whose addresses may be IPv6, the table would be four times as large.
    flows: HashTable<Place>,
    hasher: Keyed,
    /// Slot of the last segment's connection, if its flow is in `flows`: consecutive segments often belong to one flow
    /// (packet trains, Jain and Routhier 1986).
    last: Option<u32>,
    /// Number of connections that this end has opened.
    opened: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u64,
    slot: u32,
}

impl Table {
    pub(super) fn new(connections_max: u32, key: Key) -> Table {
        Table {
            slots: Slots::new(connections_max as usize),
            flows: HashTable::new(),
            hasher: keyed(key),
            last: None,
            opened: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of connections that this end has opened.
    pub(super) fn opened(&self) -> usize {
        self.opened
    }

    /// The id that the next added connection gets; `None` if the table is full.
    pub(super) fn next(&self) -> Option<Conn> {
        self.slots.next_key().map(Conn::from)
    }

    /// Adds a connection with the id that [`next`](Self::next) returned.
    pub(super) fn add(&mut self, connection: Box<Connection>) {
        let (flow, conn) = (connection.flow, connection.conn);
        debug_assert!(self.slot_of(&flow).is_none(), "a flow should have one connection");
        self.opened += usize::from(connection.listener.is_none());
        let added = self.slots.insert(connection);
        debug_assert_eq!(added.map(Conn::from), Some(conn), "the id should be the one that `next` returned");
        self.add_flow(flow, conn);
    }

    fn add_flow(&mut self, flow: Flow, conn: Conn) {
        self.last = None;
        let place = Place { hash: self.hasher.hash_one(flow), slot: conn.slot };
        self.flows.insert_unique(place.hash, place, |place| place.hash);
    }

    /// Gives a connection another flow, which no connection has.
    pub(super) fn change_flow(&mut self, conn: Conn, flow: Flow) {
        debug_assert!(self.slot_of(&flow).is_none(), "a flow should have one connection");
        let Some(connection) = self.get_mut(conn) else {
            debug_assert!(false, "the connection should be in the table");
            return;
        };
        let old = core::mem::replace(&mut connection.flow, flow);
        self.forget_flow(old, conn);
        self.add_flow(flow, conn);
    }

    #[inline]
    fn slot_of(&self, flow: &Flow) -> Option<u32> {
        let hash = self.hasher.hash_one(flow);
        let is_same = |place: &Place| {
            place.hash == hash && self.at(place.slot).is_some_and(|connection| connection.flow == *flow)
        };
        self.flows.find(hash, is_same).map(|place| place.slot)
    }

    /// Sets the maximum number of connections. Connections beyond it stay.
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

    #[inline]
    pub(super) fn find(&mut self, flow: &Flow) -> Option<Conn> {
        if let Some(connection) = self.last.and_then(|slot| self.at(slot))
            && connection.flow == *flow
        {
            return Some(connection.conn);
        }
        let slot = self.slot_of(flow)?;
        self.last = Some(slot);
        self.at(slot).map(|connection| connection.conn)
    }

    /// Removes a flow if it belongs to this connection; returns whether it did.
    pub(super) fn forget_flow(&mut self, flow: Flow, conn: Conn) -> bool {
        let hash = self.hasher.hash_one(flow);
        let Ok(place) = self.flows.find_entry(hash, |place| place.hash == hash && place.slot == conn.slot)
        else {
            return false;
        };
        self.last = None;
        place.remove();
        true
    }

    /// Removes a connection; its slot may be used again.
    pub(super) fn free(&mut self, conn: Conn) -> Option<Box<Connection>> {
        let removed = self.slots.remove(conn);
        debug_assert!(removed.is_some(), "the connection should be in the table");
        let connection = removed?;
        self.opened -= usize::from(connection.listener.is_none());
        self.forget_flow(connection.flow, conn);
        Some(connection)
    }
}

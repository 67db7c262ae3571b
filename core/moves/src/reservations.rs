//! Places in the stack's table that are reserved for connections which are not in it.

use alloc::collections::{BTreeMap, BTreeSet};

use spillway_wire::switch::{Flow, ServerId};

use crate::connections::ComingConnection;

/// A connection whose state was checked, until this server owns the flow.
#[derive(Debug)]
pub(crate) struct Checked<C> {
    /// The server that the connection comes from.
    pub(crate) source: Option<ServerId>,
    /// Its queues share the memory of the agent's copy of the state.
    pub(crate) connection: ComingConnection<C>,
}

/// Connections that the stack does not have at present, and for each of which it must have room later: those that come from
/// other servers, and those that have left and may come back. Clients that connect in the meantime must not take their places.
/// The agent's limit of moves bounds both.
#[derive(Debug)]
pub(crate) struct Reservations<C> {
    /// From the check of the state until this server owns the flow or has refused it.
    coming: BTreeMap<Flow, Checked<C>>,
    /// From the export until the move has ended.
    away: BTreeSet<Flow>,
}

impl<C> Default for Reservations<C> {
    fn default() -> Reservations<C> {
        Reservations { coming: BTreeMap::new(), away: BTreeSet::new() }
    }
}

impl<C> Reservations<C> {
    /// The number of reserved places.
    pub(crate) fn len(&self) -> usize {
        self.coming.len() + self.away.len()
    }

    /// The stack can import a connection that comes from another server.
    pub(crate) fn add_coming(&mut self, flow: Flow, checked: Checked<C>) {
        self.coming.insert(flow, checked);
    }

    /// A connection is imported now, or this server has refused it.
    pub(crate) fn end_coming(&mut self, flow: &Flow) -> Option<Checked<C>> {
        self.coming.remove(flow)
    }

    /// A connection was exported, and may come back.
    pub(crate) fn add_away(&mut self, flow: Flow) {
        self.away.insert(flow);
    }

    /// A connection that was exported is imported again now, or its move has ended.
    pub(crate) fn end_away(&mut self, flow: &Flow) {
        self.away.remove(flow);
    }
}

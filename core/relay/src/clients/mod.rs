//! The table of the transport's connections with their roles, the timers of clients, and the library clients with
//! pending output.

mod awaiting_header;
mod backlog;
mod client_type;
mod library;
mod lingering;
mod plain;
mod relayed;
mod reply_acks;
mod role;
mod window;

use alloc::vec::Vec;

use spillway_transport::{Conn, Time, Transport};

pub(crate) use awaiting_header::{AwaitingHeader, Header};
pub(crate) use client_type::ClientType;
pub(crate) use library::{HandleWhen, LibraryClient};
pub(crate) use lingering::Lingering;
pub(crate) use plain::{Arrival, PlainClient};
pub(crate) use relayed::{ControlAction, DataAction, RelayedConn, VirtualId};
pub(crate) use role::ConnRole;

use crate::config::Timeouts;
use crate::memory::{Holding, Memory};
use crate::timers::{Timer, Timers};

/// The roles of connections, by [`Conn::slot`]. The transport chooses the slots and keeps them small and dense, so
/// `spillway_parts::Slots` is not used.
#[derive(Debug)]
pub(crate) struct Clients {
    slots: Vec<Slot>,
    /// Number of slots whose role is a client.
    clients: u32,
    timers: Timers,
    /// Library clients with output for the end of the turn.
    dirty: Vec<Conn>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    role: ConnRole,
}

impl Clients {
    pub(crate) fn new(timeouts: &Timeouts) -> Clients {
        Clients { slots: Vec::new(), clients: 0, timers: Timers::new(timeouts), dirty: Vec::new() }
    }

    /// Number of clients, lingering ones included.
    pub(crate) fn count(&self) -> u32 {
        self.clients
    }

    pub(crate) fn get(&self, conn: Conn) -> Option<&ConnRole> {
        role(&self.slots, conn)
    }

    pub(crate) fn get_mut(&mut self, conn: Conn) -> Option<&mut ConnRole> {
        let slot = self.slots.get_mut(conn.slot as usize)?;
        (slot.generation == conn.generation).then_some(&mut slot.role)
    }

    pub(crate) fn plain(&self, conn: Conn) -> Option<&PlainClient> {
        match self.get(conn) {
            Some(ConnRole::Plain(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn plain_mut(&mut self, conn: Conn) -> Option<&mut PlainClient> {
        match self.get_mut(conn) {
            Some(ConnRole::Plain(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn library(&self, conn: Conn) -> Option<&LibraryClient> {
        match self.get(conn) {
            Some(ConnRole::Library(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn library_mut(&mut self, conn: Conn) -> Option<&mut LibraryClient> {
        match self.get_mut(conn) {
            Some(ConnRole::Library(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn lingering_mut(&mut self, conn: Conn) -> Option<&mut Lingering> {
        match self.get_mut(conn) {
            Some(ConnRole::Lingering(lingering)) => Some(lingering),
            _ => None,
        }
    }

    /// Sets a connection's role. The connection's slot must be free.
    pub(crate) fn put(&mut self, conn: Conn, role: ConnRole) {
        let index = conn.slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot { generation: 0, role: ConnRole::Free });
        }
        debug_assert!(
            matches!(self.slots[index].role, ConnRole::Free),
            "the slot's earlier connection should have been removed"
        );
        self.clients += u32::from(role.client_of().is_some());
        self.slots[index] = Slot { generation: conn.generation, role };
    }

    /// Removes a connection and returns its role.
    pub(crate) fn take(&mut self, conn: Conn) -> ConnRole {
        let role = self.get_mut(conn).map_or(ConnRole::Free, |role| core::mem::replace(role, ConnRole::Free));
        self.clients -= u32::from(role.client_of().is_some());
        role
    }

    /// Number of library clients that have authenticated. The cost grows with the number of clients.
    pub(crate) fn authenticated_library_clients(&self) -> u32 {
        let is_authenticated =
            |role: &ConnRole| matches!(role, ConnRole::Library(client) if client.is_established());
        self.iter().map(|(_, role)| u32::from(is_authenticated(role))).sum()
    }

    pub(crate) fn of_service(&self, service: u16) -> Vec<Conn> {
        let is_client = |role: &ConnRole| role.client_of().is_some_and(|(owner, _)| owner == service);
        self.iter_from(0).filter(|(_, role)| is_client(role)).map(|(conn, _)| conn).collect()
    }

    /// All clients, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Conn, &ConnRole)> + Clone + '_ {
        self.iter_from(0)
    }

    pub(crate) fn iter_from(&self, first: u32) -> impl Iterator<Item = (Conn, &ConnRole)> + Clone + '_ {
        let rest = self.slots.get(first as usize..).unwrap_or_default();
        (first..)
            .zip(rest)
            .filter(|(_, slot)| slot.role.client_of().is_some())
            .map(|(index, slot)| (Conn { slot: index, generation: slot.generation }, &slot.role))
    }

    /// The memory of each client with waiting bytes.
    pub(crate) fn holdings<T: Transport>(&mut self, now: Time, out: &T) -> Vec<Holding> {
        let slots = (0_u32..).zip(&mut self.slots);
        slots
            .filter_map(|(index, slot)| {
                slot.role.holding(now, Conn { slot: index, generation: slot.generation }, out)
            })
            .collect()
    }

    pub(crate) fn start(&mut self, timer: Timer, now: Time, conn: Conn) {
        let slots = &self.slots;
        let is_needed = |conn| role(slots, conn).is_some_and(|role| role.needs_timer(timer));
        self.timers.start(timer, now, conn, is_needed);
    }

    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.timers.poll_timeout()
    }

    /// Removes an expired timer of this kind. The client may have ended, or may not need the timer any more.
    pub(crate) fn pop_due(&mut self, timer: Timer, now: Time) -> Option<Conn> {
        self.timers.pop(timer, now)
    }

    /// Schedules the output of a library client for the end of the turn.
    pub(crate) fn mark_dirty(&mut self, conn: Conn, memory: &mut Memory) {
        if let Some(client) = self.library_mut(conn)
            && client.set_dirty(memory)
        {
            self.dirty.push(conn);
        }
    }

    /// The `nth` library client with output. Clients that are marked during an iteration are appended.
    pub(crate) fn dirty(&self, nth: usize) -> Option<Conn> {
        self.dirty.get(nth).copied()
    }

    /// Call this when the output of all [`dirty`](Self::dirty) clients was sent.
    pub(crate) fn clear_dirty(&mut self) {
        self.dirty.clear();
    }
}

fn role(slots: &[Slot], conn: Conn) -> Option<&ConnRole> {
    let slot = slots.get(conn.slot as usize)?;
    (slot.generation == conn.generation).then_some(&slot.role)
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;

    fn awaiting_header(service: u16) -> ConnRole {
        ConnRole::AwaitingHeader(Box::new(AwaitingHeader::new(
            Time(0),
            service,
            "10.0.0.9:5000".parse().unwrap(),
        )))
    }

    #[test]
    fn clients_are_counted_and_old_generations_are_not_found() {
        let mut clients = Clients::new(&Timeouts::default());
        let (first, second) = (Conn { slot: 0, generation: 1 }, Conn { slot: 2, generation: 1 });
        clients.put(first, ConnRole::Link(0));
        clients.put(second, awaiting_header(3));
        assert_eq!(
            (clients.count(), clients.of_service(3)),
            (1, [second].into()),
            "one client should be left"
        );
        assert!(
            clients.get(Conn { generation: 2, ..second }).is_none(),
            "another generation should not be found"
        );
        assert!(
            matches!(clients.take(Conn { generation: 2, ..second }), ConnRole::Free),
            "another generation should not be taken"
        );
        clients.take(first);
        clients.take(second);
        assert_eq!((clients.count(), clients.iter().count()), (0, 0), "no client should be left");
        let reused = Conn { generation: 2, ..second };
        clients.put(reused, awaiting_header(0));
        assert!(
            clients.get(second).is_none() && clients.get(reused).is_some(),
            "the reused slot should have its new client only"
        );
    }

    #[test]
    fn timers_of_removed_clients_expire_too() {
        let mut clients = Clients::new(&Timeouts::default());
        let conn = Conn { slot: 0, generation: 1 };
        clients.put(conn, awaiting_header(0));
        clients.start(Timer::ProxyHeader, Time(0), conn);
        let at = clients.poll_timeout().unwrap();
        assert_eq!(at, Time(0) + Timeouts::default().proxy_header);
        clients.take(conn);
        assert_eq!(clients.pop_due(Timer::ProxyHeader, at), Some(conn));
        assert_eq!(clients.poll_timeout(), None);
    }
}

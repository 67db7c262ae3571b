//! Clients' connections, and which connection belongs to a link: the table, how many clients there are, their timers, and
//! which of them have something to be sent at the end of the turn.

mod acknowledging;
mod announcing;
mod backlog;
mod holder;
mod leaving;
mod library;
mod passage;
mod raw;
mod sort;
mod window;

use alloc::vec::Vec;

use spillway_transport::{Conn, Time, Transport};

pub(crate) use announcing::{Announcing, Header};
pub(crate) use holder::Holder;
pub(crate) use leaving::Leaving;
pub(crate) use library::{LibraryClient, Received};
pub(crate) use passage::{Passage, Place, Request, Step};
pub(crate) use raw::{Arrival, RawClient};
pub(crate) use sort::Sort;

use crate::config::Timeouts;
use crate::memory::{Holding, Memory};
use crate::timers::{Timer, Timers};

/// Who uses which connection, by [`Conn::slot`]. The transport keeps slots small and dense, and chooses them: so this is not
/// `spillway_parts::Slots`.
#[derive(Debug)]
pub(crate) struct Clients {
    slots: Vec<Slot>,
    /// How many of them are clients.
    clients: u32,
    timers: Timers,
    /// Library clients that have something to be sent at the end of the turn.
    dirty: Vec<Conn>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    holder: Holder,
}

impl Clients {
    pub(crate) fn new(timeouts: &Timeouts) -> Clients {
        Clients { slots: Vec::new(), clients: 0, timers: Timers::new(timeouts), dirty: Vec::new() }
    }

    /// How many clients there are, those that only take what is left for them included.
    pub(crate) fn count(&self) -> u32 {
        self.clients
    }

    pub(crate) fn get(&self, conn: Conn) -> Option<&Holder> {
        holder(&self.slots, conn)
    }

    pub(crate) fn get_mut(&mut self, conn: Conn) -> Option<&mut Holder> {
        let slot = self.slots.get_mut(conn.slot as usize)?;
        (slot.generation == conn.generation).then_some(&mut slot.holder)
    }

    pub(crate) fn raw(&self, conn: Conn) -> Option<&RawClient> {
        match self.get(conn) {
            Some(Holder::Raw(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn raw_mut(&mut self, conn: Conn) -> Option<&mut RawClient> {
        match self.get_mut(conn) {
            Some(Holder::Raw(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn library(&self, conn: Conn) -> Option<&LibraryClient> {
        match self.get(conn) {
            Some(Holder::Library(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn library_mut(&mut self, conn: Conn) -> Option<&mut LibraryClient> {
        match self.get_mut(conn) {
            Some(Holder::Library(client)) => Some(client),
            _ => None,
        }
    }

    pub(crate) fn leaving_mut(&mut self, conn: Conn) -> Option<&mut Leaving> {
        match self.get_mut(conn) {
            Some(Holder::Leaving(leaving)) => Some(leaving),
            _ => None,
        }
    }

    /// A new user of a slot: the transport has freed it before.
    pub(crate) fn put(&mut self, conn: Conn, holder: Holder) {
        let index = conn.slot as usize;
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot { generation: 0, holder: Holder::Free });
        }
        debug_assert!(
            matches!(self.slots[index].holder, Holder::Free),
            "a slot is taken before it is used again"
        );
        self.clients += u32::from(holder.client_of().is_some());
        self.slots[index] = Slot { generation: conn.generation, holder };
    }

    /// The connection's use ends.
    pub(crate) fn take(&mut self, conn: Conn) -> Holder {
        let holder =
            self.get_mut(conn).map_or(Holder::Free, |holder| core::mem::replace(holder, Holder::Free));
        self.clients -= u32::from(holder.client_of().is_some());
        holder
    }

    /// The connections of all clients of a service.
    pub(crate) fn of_service(&self, service: u16) -> Vec<Conn> {
        let is_its = |holder: &Holder| holder.client_of().is_some_and(|(of, _)| of == service);
        self.iter_from(0).filter(|(_, holder)| is_its(holder)).map(|(conn, _)| conn).collect()
    }

    /// All clients, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Conn, &Holder)> + Clone + '_ {
        self.iter_from(0)
    }

    /// Those from this slot on.
    pub(crate) fn iter_from(&self, first: u32) -> impl Iterator<Item = (Conn, &Holder)> + Clone + '_ {
        let rest = self.slots.get(first as usize..).unwrap_or_default();
        (first..)
            .zip(rest)
            .filter(|(_, slot)| slot.holder.client_of().is_some())
            .map(|(index, slot)| (Conn { slot: index, generation: slot.generation }, &slot.holder))
    }

    /// The clients that hold any memory.
    pub(crate) fn holdings<T: Transport>(&mut self, now: Time, out: &T) -> Vec<Holding> {
        let slots = (0_u32..).zip(&mut self.slots);
        slots
            .filter_map(|(index, slot)| {
                slot.holder.holding(now, Conn { slot: index, generation: slot.generation }, out)
            })
            .collect()
    }

    /// Starts a timer of a client.
    pub(crate) fn start(&mut self, timer: Timer, now: Time, conn: Conn) {
        let slots = &self.slots;
        let is_wanted = |conn| holder(slots, conn).is_some_and(|holder| holder.waits_for(timer));
        self.timers.start(timer, now, conn, is_wanted);
    }

    /// When the next timer ends.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.timers.poll_timeout()
    }

    /// A client whose timer of this kind has ended; it may have no purpose any more.
    pub(crate) fn pop_due(&mut self, timer: Timer, now: Time) -> Option<Conn> {
        self.timers.pop(timer, now)
    }

    /// A library client has something to be sent at the end of the turn.
    pub(crate) fn mark_dirty(&mut self, conn: Conn, memory: &mut Memory) {
        if let Some(client) = self.library_mut(conn)
            && client.set_dirty(memory)
        {
            self.dirty.push(conn);
        }
    }

    /// Library clients that have something to be sent, by their place among them. New ones come behind.
    pub(crate) fn dirty(&self, nth: usize) -> Option<Conn> {
        self.dirty.get(nth).copied()
    }

    /// All of [`dirty`](Self::dirty) have had their turn.
    pub(crate) fn none_is_dirty(&mut self) {
        self.dirty.clear();
    }
}

fn holder(slots: &[Slot], conn: Conn) -> Option<&Holder> {
    let slot = slots.get(conn.slot as usize)?;
    (slot.generation == conn.generation).then_some(&slot.holder)
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;

    fn announcing(service: u16) -> Holder {
        Holder::Announcing(Box::new(Announcing::new(Time(0), service, "10.0.0.9:5000".parse().unwrap())))
    }

    #[test]
    fn clients_are_counted_and_an_old_generation_is_nobody() {
        let mut clients = Clients::new(&Timeouts::default());
        let (first, second) = (Conn { slot: 0, generation: 1 }, Conn { slot: 2, generation: 1 });
        clients.put(first, Holder::Link(0));
        clients.put(second, announcing(3));
        assert_eq!((clients.count(), clients.of_service(3)), (1, [second].into()));
        assert!(clients.get(Conn { generation: 2, ..second }).is_none());
        assert!(matches!(clients.take(Conn { generation: 2, ..second }), Holder::Free));
        clients.take(first);
        clients.take(second);
        assert_eq!((clients.count(), clients.iter().count()), (0, 0));
        let again = Conn { generation: 2, ..second };
        clients.put(again, announcing(0));
        assert!(clients.get(second).is_none() && clients.get(again).is_some());
    }

    #[test]
    fn timers_end_in_time_also_those_of_clients_that_have_gone() {
        let mut clients = Clients::new(&Timeouts::default());
        let conn = Conn { slot: 0, generation: 1 };
        clients.put(conn, announcing(0));
        clients.start(Timer::ProxyHeader, Time(0), conn);
        let at = clients.poll_timeout().unwrap();
        assert_eq!(at, Time(0) + Timeouts::default().proxy_header);
        clients.take(conn);
        assert_eq!(clients.pop_due(Timer::ProxyHeader, at), Some(conn));
        assert_eq!(clients.poll_timeout(), None);
    }
}

//! Helped clients: what the application has granted to each, and the bytes that wait for a grant.

use alloc::vec::Vec;

use spillway_batch::Id;
use spillway_transport::Conn;

/// The bit in the slot of a helped client's [`Conn`]. Connections of the transport have lower slots.
pub const HELPED_BIT: u32 = 1 << 31;

/// A helped client.
#[derive(Debug)]
pub(crate) struct Client {
    /// The link that carries it, and its number there.
    pub(crate) link: Conn,
    pub(crate) id: Id,
    /// Bytes that the application has granted and not received yet.
    pub(crate) granted: usize,
    /// Received bytes beyond the grants: at most the link's window. See [`Clients::keep`].
    input: Vec<u8>,
    /// Stream offset behind the bytes that the application has received.
    pub(crate) end: u64,
    /// The client has ended its direction; whether the application has learned it.
    pub(crate) finish: Finish,
    /// The application has ended its direction.
    pub(crate) is_finished_here: bool,
}

/// The end of the client's direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// More bytes may come.
    Open,
    /// It has come; bytes before it still wait for a grant.
    Waiting,
    /// The application has learned it.
    Delivered,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    client: Option<Client>,
}

/// All helped clients, by name.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Bytes of all clients that wait for a grant.
    waiting_bytes: usize,
}

impl Client {
    /// Whether bytes wait for a grant.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.input.is_empty()
    }
}

impl Clients {
    pub(crate) fn is_helped(conn: Conn) -> bool {
        conn.slot & HELPED_BIT != 0
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, link: Conn, id: Id) -> Option<Conn> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|index| *index < HELPED_BIT)?;
                self.slots.push(Slot::default());
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.client = Some(Client {
            link,
            id,
            granted: 0,
            input: Vec::new(),
            end: 0,
            finish: Finish::Open,
            is_finished_here: false,
        });
        Some(Conn { slot: index | HELPED_BIT, generation: slot.generation })
    }

    fn slot(&self, conn: Conn) -> Option<&Slot> {
        let slot = self.slots.get((conn.slot & !HELPED_BIT) as usize)?;
        (slot.generation == conn.generation).then_some(slot)
    }

    pub(crate) fn get(&self, conn: Conn) -> Option<&Client> {
        self.slot(conn)?.client.as_ref()
    }

    pub(crate) fn get_mut(&mut self, conn: Conn) -> Option<&mut Client> {
        let slot = self.slots.get_mut((conn.slot & !HELPED_BIT) as usize)?;
        slot.client.as_mut().filter(|_| slot.generation == conn.generation)
    }

    pub(crate) fn remove(&mut self, conn: Conn) -> Option<Client> {
        self.get(conn)?;
        let index = conn.slot & !HELPED_BIT;
        let slot = self.slots.get_mut(index as usize)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        let client = slot.client.take()?;
        self.waiting_bytes -= client.input.len();
        Some(client)
    }

    /// Keeps bytes until the application grants them. Returns `false`, and keeps none, if all clients together would have more
    /// than `bytes_max` waiting.
    #[must_use]
    pub(crate) fn keep(&mut self, conn: Conn, bytes: &[u8], bytes_max: usize) -> bool {
        let waiting_bytes = self.waiting_bytes.saturating_add(bytes.len());
        let Some(client) = self.get_mut(conn) else { return true };
        if waiting_bytes > bytes_max {
            return false;
        }
        client.input.extend_from_slice(bytes);
        self.waiting_bytes = waiting_bytes;
        true
    }

    /// Removes the bytes that wait and are granted now.
    pub(crate) fn take_granted(&mut self, conn: Conn) -> Option<Vec<u8>> {
        let client = self.get_mut(conn)?;
        let granted = client.granted.min(client.input.len());
        if granted == 0 {
            return None;
        }
        let taken = if granted == client.input.len() {
            core::mem::take(&mut client.input)
        } else {
            client.input.drain(..granted).collect()
        };
        self.waiting_bytes -= taken.len();
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ended_clients_are_stale() {
        let mut clients = Clients::default();
        let link = Conn { slot: 3, generation: 1 };
        let first = clients.insert(link, Id(1)).unwrap();
        assert!(Clients::is_helped(first) && !Clients::is_helped(link));
        assert_eq!(clients.get(first).map(|client| client.id), Some(Id(1)));
        assert!(clients.remove(first).is_some() && clients.remove(first).is_none());
        let second = clients.insert(link, Id(2)).unwrap();
        assert_eq!(second.slot, first.slot, "the slot is used again");
        assert!(clients.get(first).is_none() && clients.get_mut(first).is_none());
        assert_eq!(clients.get_mut(second).map(|client| client.id), Some(Id(2)));
    }
}

//! The numbers by which C knows its clients.

use std::collections::HashMap;
use std::ffi::c_void;

use spillway_server::Client;

/// Numbers of clients. A number has a slot and how often the slot was used before, so that one which is no longer good is
/// not another's for a long time; 0 is nobody's.
#[derive(Default)]
pub(super) struct Clients {
    slots: Vec<Slot>,
    free: Vec<u32>,
    numbers: HashMap<Client, u64>,
}

struct Slot {
    generation: u32,
    client: Option<Client>,
    context: Context,
    is_accepted: bool,
    /// Bytes that came and were not said to be consumed.
    unconsumed: usize,
}

impl Slot {
    fn new(generation: u32, client: Client) -> Slot {
        let context = Context(std::ptr::null_mut());
        Slot { generation, client: Some(client), context, is_accepted: false, unconsumed: 0 }
    }
}

/// The application's pointer, which is never followed here.
#[derive(Clone, Copy)]
pub(super) struct Context(pub(super) *mut c_void);

// SAFETY: it is a number to us.
unsafe impl Send for Context {}

impl Clients {
    /// A number for a new client. As many as the library has clients: its tables are bounded. `None` when the slots have run
    /// out.
    pub(super) fn add(&mut self, client: Client) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => {
                let place = &mut self.slots[slot as usize]; // it was in use before
                *place = Slot::new(place.generation.wrapping_add(1).max(1), client);
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot::new(1, client));
                slot
            }
        };
        let number = u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot);
        self.numbers.insert(client, number);
        Some(number)
    }

    /// The number of a client, and the application's pointer for it.
    pub(super) fn number(&self, client: Client) -> Option<(u64, *mut c_void)> {
        let number = *self.numbers.get(&client)?;
        Some((number, self.slot(number)?.context.0))
    }

    /// Whose number it is.
    pub(super) fn client(&self, number: u64) -> Option<Client> {
        self.slot(number)?.client
    }

    pub(super) fn set_context(&mut self, number: u64, context: Context) {
        if let Some(slot) = self.slot_mut(number) {
            slot.context = context;
        }
    }

    /// Whether it was not accepted before.
    pub(super) fn accept(&mut self, number: u64) -> bool {
        self.slot_mut(number).is_some_and(|slot| !std::mem::replace(&mut slot.is_accepted, true))
    }

    pub(super) fn is_accepted(&self, number: u64) -> bool {
        self.slot(number).is_some_and(|slot| slot.is_accepted)
    }

    /// So many bytes came.
    pub(super) fn received(&mut self, number: u64, length: usize) {
        if let Some(slot) = self.slot_mut(number) {
            slot.unconsumed += length;
        }
    }

    /// So many are dealt with. `false`: more than came.
    pub(super) fn consumed(&mut self, number: u64, length: usize) -> bool {
        let left = self.slot(number).and_then(|slot| slot.unconsumed.checked_sub(length));
        if let (Some(left), Some(slot)) = (left, self.slot_mut(number)) {
            slot.unconsumed = left;
        }
        left.is_some()
    }

    /// From now on the number is nobody's.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(client) = self.client(number) else { return };
        self.numbers.remove(&client);
        if let Some(slot) = place(number).and_then(|place| self.slots.get_mut(place)) {
            slot.client = None;
            self.free.push(number as u32); // the lower half is the slot
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(place(number)?)?;
        (u64::from(slot.generation) == number >> 32).then_some(slot)
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        let slot = self.slots.get(place(number)?)?;
        (u64::from(slot.generation) == number >> 32).then_some(slot)
    }
}

fn place(number: u64) -> Option<usize> {
    usize::try_from(number & u64::from(u32::MAX)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_has_ended_is_nobodys() {
        let mut clients = Clients::default();
        assert!(clients.client(0).is_none() && clients.client(1 << 32).is_none());
        clients.remove(u64::MAX);
        assert!(!clients.consumed(1 << 32, 0) && !clients.accept(1 << 32));
        assert_eq!(clients.len(), 0);
    }
}

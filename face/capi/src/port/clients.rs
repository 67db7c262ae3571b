//! Clients' numbers in C.

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasher, Hasher, RandomState};

use spillway_server::ClientId;

/// Numbers of clients. A number consists of a generation and a slot, so that it is reused only after 2^32 - 1 clients
/// in the same slot. 0 is never used.
#[derive(Default)]
pub(super) struct Clients {
    slots: Vec<Slot>,
    free: Vec<u32>,
    numbers: HashMap<ClientId, u64, BuildMixer>,
}

struct Slot {
    generation: u32,
    client: Option<ClientId>,
    context: Context,
    is_accepted: bool,
    /// Bytes that were received and not consumed.
    unconsumed: usize,
}

impl Slot {
    fn new(generation: u32, client: ClientId) -> Slot {
        let context = Context(std::ptr::null_mut());
        Slot { generation, client: Some(client), context, is_accepted: false, unconsumed: 0 }
    }
}

/// The application's pointer, which the library never follows.
#[derive(Clone, Copy)]
pub(super) struct Context(pub(super) *mut c_void);

// SAFETY: the library uses the pointer only as a number.
unsafe impl Send for Context {}

impl Clients {
    /// Adds a client, and returns its number. The bounded tables of links and sessions bound `slots`. `None` when no
    /// slot is left.
    pub(super) fn add(&mut self, client: ClientId) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => {
                let freed = &mut self.slots[slot as usize]; // an entry of `free` is an index of `slots`
                *freed = Slot::new(freed.generation.wrapping_add(1).max(1), client);
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
    pub(super) fn number(&self, client: ClientId) -> Option<(u64, *mut c_void)> {
        let number = *self.numbers.get(&client)?;
        Some((number, self.slot(number)?.context.0))
    }

    pub(super) fn client(&self, number: u64) -> Option<ClientId> {
        self.slot(number)?.client
    }

    pub(super) fn set_context(&mut self, number: u64, context: Context) {
        if let Some(slot) = self.slot_mut(number) {
            slot.context = context;
        }
    }

    /// Marks a client as accepted. Returns false for an unknown client, or one that was accepted before.
    pub(super) fn accept(&mut self, number: u64) -> bool {
        self.slot_mut(number).is_some_and(|slot| !std::mem::replace(&mut slot.is_accepted, true))
    }

    pub(super) fn is_accepted(&self, number: u64) -> bool {
        self.slot(number).is_some_and(|slot| slot.is_accepted)
    }

    pub(super) fn record_received(&mut self, number: u64, length: usize) {
        if let Some(slot) = self.slot_mut(number) {
            slot.unconsumed += length;
        }
    }

    /// Counts `length` consumed bytes. Returns false, and changes nothing, if that is more than were received.
    pub(super) fn record_consumed(&mut self, number: u64, length: usize) -> bool {
        let left = self.slot(number).and_then(|slot| slot.unconsumed.checked_sub(length));
        if let (Some(left), Some(slot)) = (left, self.slot_mut(number)) {
            slot.unconsumed = left;
        }
        left.is_some()
    }

    /// Forgets a client: its number is not valid any more.
    pub(super) fn remove(&mut self, number: u64) {
        let Some(client) = self.client(number) else { return };
        self.numbers.remove(&client);
        if let Some(slot) = index(number).and_then(|index| self.slots.get_mut(index)) {
            slot.client = None;
            self.free.push(number as u32); // the lower half is the slot
        }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    fn slot_mut(&mut self, number: u64) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index(number)?)?;
        (u64::from(slot.generation) == number >> 32).then_some(slot)
    }

    fn slot(&self, number: u64) -> Option<&Slot> {
        let slot = self.slots.get(index(number)?)?;
        (u64::from(slot.generation) == number >> 32).then_some(slot)
    }
}

fn index(number: u64) -> Option<usize> {
    usize::try_from(number & u64::from(u32::MAX)).ok()
}

struct BuildMixer(u64);

impl Default for BuildMixer {
    fn default() -> BuildMixer {
        BuildMixer(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for BuildMixer {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

/// Hashes clients by folded multiplications. Each message needs a look-up, and the standard hash costs about as much as
/// composing a reply. Collision attacks are possible only for peers with a key, which choose the ids.
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
        let product = u128::from(self.0 ^ word) * u128::from(ODD);
        self.0 = (product >> 64) as u64 ^ product as u64; // fold both halves
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.mix(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.mix(number);
    }

    fn write_isize(&mut self, number: isize) {
        self.mix(number.cast_unsigned() as u64); // an isize has 64 bits at most
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_find_no_client() {
        let mut clients = Clients::default();
        assert!(clients.client(0).is_none() && clients.client(1 << 32).is_none());
        clients.remove(u64::MAX);
        assert!(!clients.record_consumed(1 << 32, 0) && !clients.accept(1 << 32));
        assert_eq!(clients.len(), 0);
    }

    #[test]
    fn similar_ids_spread_over_the_hash_table() {
        let seeded = BuildMixer::default();
        let mut buckets: Vec<u64> =
            (0..65_536_u32).map(|id| seeded.hash_one((3_u32, 7_u32, id)) % 65_536).collect();
        buckets.sort_unstable();
        buckets.dedup();
        // A random function reaches 63 % of the buckets on average.
        assert!(
            buckets.len() > 38_000,
            "about 41,000 of 65,536 buckets should be used, not {}",
            buckets.len()
        );
    }
}

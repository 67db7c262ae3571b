use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::Conn;

/// Key of an entry: a slot, and the generation, which counts the uses of the slot. A table never reuses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    slot: u32,
    generation: u32,
}

impl SlotKey {
    /// A key of these numbers, with or without an entry in the table.
    #[inline]
    #[must_use]
    pub const fn new(slot: u32, generation: u32) -> SlotKey {
        SlotKey { slot, generation }
    }

    /// The slot: a small number that is reused, for use as an index into other tables.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// The number of this use of the slot, from 1. 0 is never assigned.
    #[inline]
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl From<Conn> for SlotKey {
    #[inline]
    fn from(conn: Conn) -> SlotKey {
        SlotKey { slot: conn.slot, generation: conn.generation }
    }
}

impl From<SlotKey> for Conn {
    #[inline]
    fn from(key: SlotKey) -> Conn {
        Conn { slot: key.slot, generation: key.generation }
    }
}

/// A bounded table. A key contains its slot, so a look-up is one index operation; the key of a removed entry finds
/// nothing. Keys are never reused: a slot stays empty after 2^32 − 1 uses, and a new slot replaces it. Methods take
/// constant time, except iterators and the growth of the table, which never shrinks.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    len: usize,
    max: usize,
    is_oldest_first: bool,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table for at most `max` entries. Reuses the slot freed last, so that the slots in use stay dense.
    pub const fn new(max: usize) -> Slots<T> {
        Slots { slots: Vec::new(), free: VecDeque::new(), len: 0, max, is_oldest_first: false }
    }

    /// As [`new`](Self::new), but reuses the slot freed first: for callers that keep slots without generations for a
    /// short time.
    pub const fn oldest_first(max: usize) -> Slots<T> {
        Slots { slots: Vec::new(), free: VecDeque::new(), len: 0, max, is_oldest_first: true }
    }

    /// Changes the bound. Entries beyond a lower bound stay.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key that the next [`insert`](Self::insert) will return; `None` when the table is full.
    #[must_use]
    pub fn next_key(&self) -> Option<SlotKey> {
        if self.len >= self.max {
            return None;
        }
        let reused = if self.is_oldest_first { self.free.front() } else { self.free.back() };
        match reused {
            Some(&slot) => Some(SlotKey { slot, generation: self.slots[slot as usize].generation }),
            None => Some(SlotKey { slot: u32::try_from(self.slots.len()).ok()?, generation: 1 }),
        }
    }

    /// Adds an entry. When the table is full, drops the entry and returns `None`.
    pub fn insert(&mut self, entry: T) -> Option<SlotKey> {
        let key = self.next_key()?;
        let reused = if self.is_oldest_first { self.free.pop_front() } else { self.free.pop_back() };
        match reused {
            Some(slot) => self.slots[slot as usize].entry = Some(entry),
            None => self.slots.push(Slot { generation: key.generation, entry: Some(entry) }),
        }
        self.len += 1;
        Some(key)
    }

    /// Removes an entry; `None` if its key is stale.
    pub fn remove(&mut self, key: impl Into<SlotKey>) -> Option<T> {
        let key = key.into();
        let slot = self.slots.get_mut(key.slot as usize)?;
        let entry = slot.entry.take_if(|_| slot.generation == key.generation)?;
        self.len -= 1;
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free.push_back(key.slot);
        }
        Some(entry)
    }

    /// The entry; `None` if its key is stale.
    #[inline]
    #[must_use]
    pub fn get(&self, key: impl Into<SlotKey>) -> Option<&T> {
        let key = key.into();
        let slot = self.slots.get(key.slot as usize)?;
        if slot.generation == key.generation { slot.entry.as_ref() } else { None }
    }

    /// The entry, to be changed; `None` if its key is stale.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, key: impl Into<SlotKey>) -> Option<&mut T> {
        let key = key.into();
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.generation == key.generation { slot.entry.as_mut() } else { None }
    }

    /// The present entry of a slot.
    #[inline]
    #[must_use]
    pub fn entry_in(&self, slot: u32) -> Option<(SlotKey, &T)> {
        let found = self.slots.get(slot as usize)?;
        Some((SlotKey { slot, generation: found.generation }, found.entry.as_ref()?))
    }

    /// The present entry of a slot, to be changed.
    #[inline]
    #[must_use]
    pub fn entry_in_mut(&mut self, slot: u32) -> Option<(SlotKey, &mut T)> {
        let found = self.slots.get_mut(slot as usize)?;
        Some((SlotKey { slot, generation: found.generation }, found.entry.as_mut()?))
    }

    /// All entries, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (SlotKey, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, found)| {
            Some((SlotKey { slot, generation: found.generation }, found.entry.as_ref()?))
        })
    }

    /// All entries, to be changed, in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotKey, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(slot, found)| {
            Some((SlotKey { slot, generation: found.generation }, found.entry.as_mut()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_in_the_chosen_order() {
        for (mut table, expected) in [(Slots::new(3), [1, 0]), (Slots::oldest_first(3), [0, 1])] {
            let keys: Vec<SlotKey> = (0..3).map(|n| table.insert(n).unwrap()).collect();
            assert_eq!(table.insert(3), None, "a full table should take no entry");
            table.remove(keys[0]);
            table.remove(keys[1]);
            let reused = [4, 5].map(|n| table.insert(n).unwrap());
            assert_eq!(
                (reused.map(SlotKey::slot), reused.map(SlotKey::generation)),
                (expected, [2, 2]),
                "each slot should be reused in order, with a new generation"
            );
        }
    }

    #[test]
    fn slot_with_the_last_generation_is_replaced() {
        let mut table = Slots::new(1);
        let first = table.insert('a').unwrap();
        table.slots[0].generation = u32::MAX;
        let last = SlotKey::new(0, u32::MAX);
        assert_eq!(table.get(first), None);
        assert_eq!((table.remove(last), table.len()), (Some('a'), 0));
        let next = table.insert('b').unwrap();
        assert_eq!((next, table.insert('c')), (SlotKey::new(1, 1), None), "the last slot should be full");
        assert_eq!(
            (table.get(last), table.entry_in(0), table.get(next)),
            (None, None, Some(&'b')),
            "only the new key should be found"
        );
    }

    #[test]
    fn entries_beyond_a_lower_bound_stay() {
        let mut table = Slots::new(2);
        let keys = [table.insert('a').unwrap(), table.insert('b').unwrap()];
        table.set_max(1);
        table.remove(keys[0]);
        assert_eq!((table.get(keys[1]), table.next_key()), (Some(&'b'), None));
        table.set_max(2);
        assert!(table.insert('c').is_some(), "a free slot should take an entry");
    }

    proptest::proptest! {
        #[test]
        fn table_behaves_as_a_list_of_all_keys_ever_assigned(
            steps in proptest::collection::vec((0..3_u8, 0..1_000_usize), 0..400),
            is_oldest_first: bool,
        ) {
            const MAX: usize = 20;
            let mut table = if is_oldest_first { Slots::oldest_first(MAX) } else { Slots::new(MAX) };
            let mut assigned: Vec<(SlotKey, Option<usize>)> = Vec::new();
            for (step, drawn) in steps {
                if step > 0 {
                    let expected = table.next_key();
                    let has_room = assigned.iter().flat_map(|(_, entry)| entry).count() < MAX;
                    let key = table.insert(drawn);
                    assert_eq!(
                        (key, key.is_some()), (expected, has_room),
                        "a key should be assigned while there is room"
                    );
                    if let Some(key) = key {
                        assert!(
                            assigned.iter().all(|(before, _)| *before != key),
                            "keys should not be reused"
                        );
                        assert!(
                            key.slot() < MAX as u32 && key.generation() > 0,
                            "a key should have a slot within the bound and a generation"
                        );
                        assigned.push((key, Some(drawn)));
                    }
                } else if !assigned.is_empty() {
                    let index = drawn % assigned.len();
                    let (key, entry) = &mut assigned[index];
                    assert_eq!(table.remove(*key), entry.take());
                }
                for (key, entry) in &assigned {
                    assert_eq!(table.get(*key), entry.as_ref());
                }
                assert_eq!(table.len(), table.iter().count());
            }
        }
    }
}

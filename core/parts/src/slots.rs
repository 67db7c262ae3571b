//! Entries in slots that are reused, under names that are not.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::Conn;

/// Names an entry of a table: a slot, and which of the slot's entries. Never reused by its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotKey {
    slot: u32,
    generation: u32,
}

impl SlotKey {
    /// The name that consists of these, which may be that of no entry.
    #[inline]
    #[must_use]
    pub const fn new(slot: u32, generation: u32) -> SlotKey {
        SlotKey { slot, generation }
    }

    /// The slot: small and dense, for tables beside this one. Reused.
    #[inline]
    #[must_use]
    pub const fn slot(self) -> u32 {
        self.slot
    }

    /// Which of the slot's entries: the first is 1. 0 is never given out.
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

/// A bounded table. An entry's name says its slot, so every look-up is one indexing; a name that has ended finds nothing.
///
/// Names never come again: a slot whose 2^32 − 1 generations are used up stays empty, and another slot is made in its stead.
/// All verbs take constant time, but for the iterators and the growth of the table, which never becomes smaller.
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
    /// A table without entries, for at most `max`. The slot that was freed last is used next, so that the slots in use stay
    /// close together.
    pub const fn new(max: usize) -> Slots<T> {
        Slots { slots: Vec::new(), free: VecDeque::new(), len: 0, max, is_oldest_first: false }
    }

    /// As [`new`](Self::new), but the slot that has been free for longest is used next: for callers that remember slots
    /// without generations for a moment.
    pub const fn oldest_first(max: usize) -> Slots<T> {
        Slots { slots: Vec::new(), free: VecDeque::new(), len: 0, max, is_oldest_first: true }
    }

    /// Changes the bound. Entries beyond it stay.
    pub fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The name of the entry that [`insert`](Self::insert) will make; `None` when the table is full.
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

    /// Adds an entry; `None`, and the entry is dropped, when the table is full.
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

    /// Takes an entry out; `None` when its name has ended.
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

    /// The entry, unless its name has ended.
    #[inline]
    #[must_use]
    pub fn get(&self, key: impl Into<SlotKey>) -> Option<&T> {
        let key = key.into();
        let slot = self.slots.get(key.slot as usize)?;
        if slot.generation == key.generation { slot.entry.as_ref() } else { None }
    }

    /// The entry, unless its name has ended.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, key: impl Into<SlotKey>) -> Option<&mut T> {
        let key = key.into();
        let slot = self.slots.get_mut(key.slot as usize)?;
        if slot.generation == key.generation { slot.entry.as_mut() } else { None }
    }

    /// The entry that has this slot now.
    #[inline]
    #[must_use]
    pub fn at(&self, slot: u32) -> Option<(SlotKey, &T)> {
        let place = self.slots.get(slot as usize)?;
        Some((SlotKey { slot, generation: place.generation }, place.entry.as_ref()?))
    }

    /// The entry that has this slot now.
    #[inline]
    #[must_use]
    pub fn at_mut(&mut self, slot: u32) -> Option<(SlotKey, &mut T)> {
        let place = self.slots.get_mut(slot as usize)?;
        Some((SlotKey { slot, generation: place.generation }, place.entry.as_mut()?))
    }

    /// All entries, in the order of their slots.
    pub fn iter(&self) -> impl Iterator<Item = (SlotKey, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| {
            Some((SlotKey { slot, generation: place.generation }, place.entry.as_ref()?))
        })
    }

    /// All entries, in the order of their slots.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotKey, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(slot, place)| {
            Some((SlotKey { slot, generation: place.generation }, place.entry.as_mut()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_slot_is_used_again() {
        for (mut table, expected) in [(Slots::new(3), [1, 0]), (Slots::oldest_first(3), [0, 1])] {
            let keys: Vec<SlotKey> = (0..3).map(|n| table.insert(n).unwrap()).collect();
            assert_eq!(table.insert(3), None, "the bound");
            table.remove(keys[0]);
            table.remove(keys[1]);
            let again = [4, 5].map(|n| table.insert(n).unwrap());
            assert_eq!((again.map(SlotKey::slot), again.map(SlotKey::generation)), (expected, [2, 2]));
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_replaced() {
        let mut table = Slots::new(1);
        let first = table.insert('a').unwrap();
        table.slots[0].generation = u32::MAX;
        let last = SlotKey::new(0, u32::MAX);
        assert_eq!(table.get(first), None);
        assert_eq!((table.remove(last), table.len()), (Some('a'), 0));
        let next = table.insert('b').unwrap();
        assert_eq!((next, table.insert('c')), (SlotKey::new(1, 1), None));
        assert_eq!((table.get(last), table.at(0), table.get(next)), (None, None, Some(&'b')));
    }

    #[test]
    fn entries_beyond_a_lower_bound_stay() {
        let mut table = Slots::new(2);
        let keys = [table.insert('a').unwrap(), table.insert('b').unwrap()];
        table.set_max(1);
        table.remove(keys[0]);
        assert_eq!((table.get(keys[1]), table.next_key()), (Some(&'b'), None));
        table.set_max(2);
        assert!(table.insert('c').is_some());
    }

    proptest::proptest! {
        #[test]
        fn as_a_list_of_all_names_that_there_ever_were(
            steps in proptest::collection::vec((0..3_u8, 0..1_000_usize), 0..400),
            is_oldest_first: bool,
        ) {
            const MAX: usize = 20;
            let mut table = if is_oldest_first { Slots::oldest_first(MAX) } else { Slots::new(MAX) };
            let mut named: Vec<(SlotKey, Option<usize>)> = Vec::new();
            for (step, drawn) in steps {
                if step > 0 {
                    let promised = table.next_key();
                    let key = table.insert(drawn);
                    assert_eq!((key, key.is_some()), (promised, named.iter().flat_map(|(_, entry)| entry).count() < MAX));
                    if let Some(key) = key {
                        assert!(named.iter().all(|(before, _)| *before != key), "names never come again");
                        assert!(key.slot() < MAX as u32 && key.generation() > 0);
                        named.push((key, Some(drawn)));
                    }
                } else if !named.is_empty() {
                    let place = drawn % named.len();
                    let (key, entry) = &mut named[place];
                    assert_eq!(table.remove(*key), entry.take());
                }
                for (key, entry) in &named {
                    assert_eq!(table.get(*key), entry.as_ref());
                }
                assert_eq!(table.len(), table.iter().count());
            }
        }
    }
}

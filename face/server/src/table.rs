//! A table of links with a bound.

use crate::event::LinkId;

/// Entries with slots that are reused.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    max: usize,
    /// Part of each entry's name.
    thread: u32,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Table<T> {
    pub(crate) fn new(thread: u32, max: usize) -> Table<T> {
        // Slots are told to the epoll set as numbers of 32 bits, of which one is the listener's and one the mailbox's.
        Table { slots: Vec::new(), free: Vec::new(), max: max.min(u32::MAX as usize - 2), thread }
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    fn index(&self, link: LinkId) -> Option<usize> {
        (link.thread == self.thread).then_some(link.slot as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// `None` when the table is full.
    pub(crate) fn insert(&mut self, entry: T) -> Option<LinkId> {
        if let Some(slot) = self.free.pop() {
            let place = &mut self.slots[slot as usize];
            place.entry = Some(entry);
            return Some(LinkId { thread: self.thread, slot, generation: place.generation });
        }
        if self.slots.len() >= self.max {
            return None;
        }
        let slot = self.slots.len() as u32; // below max, which fits
        self.slots.push(Slot { generation: 0, entry: Some(entry) });
        Some(LinkId { thread: self.thread, slot, generation: 0 })
    }

    pub(crate) fn remove(&mut self, link: LinkId) -> Option<T> {
        let index = self.index(link)?;
        let place = self.slots.get_mut(index)?;
        let entry = if place.generation == link.generation { place.entry.take() } else { None }?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(link.slot);
        Some(entry)
    }

    pub(crate) fn get(&self, link: LinkId) -> Option<&T> {
        let place = self.slots.get(self.index(link)?)?;
        if place.generation == link.generation { place.entry.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut T> {
        let index = self.index(link)?;
        let place = self.slots.get_mut(index)?;
        if place.generation == link.generation { place.entry.as_mut() } else { None }
    }

    /// Who is in a slot now.
    pub(crate) fn at(&self, slot: u32) -> Option<LinkId> {
        let place = self.slots.get(slot as usize)?;
        place.entry.as_ref().map(|_| LinkId { thread: self.thread, slot, generation: place.generation })
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = LinkId> + '_ {
        (0..self.slots.len() as u32).filter_map(|slot| self.at(slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_old_names_forgotten() {
        let mut table = Table::new(3, 2);
        let (a, b) = (table.insert('a').unwrap(), table.insert('b').unwrap());
        assert_eq!(table.insert('c'), None, "the bound");
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert('c').unwrap();
        assert_eq!(c.slot, a.slot);
        assert_eq!(table.get(a), None);
        assert_eq!((table.get(b), table.get(c)), (Some(&'b'), Some(&'c')));
        assert_eq!(table.get_mut(a), None);
        assert_eq!(table.ids().collect::<Vec<_>>(), [c, b]);
        assert_eq!(table.len(), 2);
        assert_eq!(table.at(5), None);
        assert_eq!(table.get(LinkId { thread: 4, ..c }), None, "another thread's");
    }
}

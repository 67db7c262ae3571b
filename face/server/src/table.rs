//! A bounded table of links.

use spillway_parts::{SlotKey, Slots};

use crate::event::LinkId;

/// A thread's entries. A [`LinkId`] contains the thread's number.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Slots<T>,
    thread: u32,
}

impl<T> Table<T> {
    pub(crate) fn new(thread: u32, max: usize) -> Table<T> {
        // Epoll data has 32 bits for an index; two indexes are the listener's and the mailbox's, see `watch`.
        Table { slots: Slots::new(max.min(u32::MAX as usize - 2)), thread }
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    fn id(&self, key: SlotKey) -> LinkId {
        LinkId { thread: self.thread, slot: key.slot(), generation: key.generation() }
    }

    fn key(&self, link: LinkId) -> Option<SlotKey> {
        (link.thread == self.thread).then_some(SlotKey::new(link.slot, link.generation))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// `None` when the table is full.
    pub(crate) fn insert(&mut self, entry: T) -> Option<LinkId> {
        self.slots.insert(entry).map(|key| self.id(key))
    }

    pub(crate) fn remove(&mut self, link: LinkId) -> Option<T> {
        self.slots.remove(self.key(link)?)
    }

    pub(crate) fn get(&self, link: LinkId) -> Option<&T> {
        self.slots.get(self.key(link)?)
    }

    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut T> {
        self.slots.get_mut(self.key(link)?)
    }

    /// The link that is in this slot now.
    pub(crate) fn at(&self, slot: u32) -> Option<LinkId> {
        self.slots.entry_in(slot).map(|(key, _)| self.id(key))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = LinkId> + '_ {
        self.slots.iter().map(|(key, _)| self.id(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_of_a_removed_link_does_not_find_the_new_one_in_its_slot() {
        let mut table = Table::new(3, 2);
        let (first, second) = (table.insert('a').unwrap(), table.insert('b').unwrap());
        assert_eq!(table.insert('c'), None, "a full table should take no entry");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert('c').unwrap();
        assert_eq!(third.slot, first.slot);
        assert_eq!(table.get(first), None);
        assert_eq!((table.get(second), table.get(third)), (Some(&'b'), Some(&'c')));
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.ids().collect::<Vec<_>>(), [third, second]);
        assert_eq!(table.len(), 2);
        assert_eq!(table.at(5), None);
        assert_eq!(
            table.get(LinkId { thread: 4, ..third }),
            None,
            "an id of another thread should find no entry"
        );
    }
}

//! A map from the virtual connections of this thread's links to values.

use spillway_batch::{Id, IdTable};

use crate::event::LinkId;

/// Each message needs a look-up, so a look-up is three indexings and no hash.
#[derive(Debug)]
pub(crate) struct ByConnection<T> {
    /// Indexed by [`LinkId::slot`].
    links: Vec<LinkValues<T>>,
}

#[derive(Debug)]
struct LinkValues<T> {
    /// Generation of the link whose values these are; 0 without values.
    generation: u32,
    values: IdTable<T>,
}

impl<T> Default for ByConnection<T> {
    fn default() -> ByConnection<T> {
        ByConnection { links: Vec::new() }
    }
}

impl<T> ByConnection<T> {
    /// Inserts a value. The first insertion for a new link drops the values of the link that had its slot before.
    pub(crate) fn insert(&mut self, link: LinkId, id: Id, value: T) {
        let slot = link.slot as usize;
        if self.links.len() <= slot {
            self.links.resize_with(slot + 1, || LinkValues { generation: 0, values: IdTable::new() });
        }
        let on_link = &mut self.links[slot];
        if on_link.generation != link.generation {
            *on_link = LinkValues { generation: link.generation, values: IdTable::new() };
        }
        on_link.values.insert(id, value);
    }

    #[inline]
    pub(crate) fn get(&self, link: LinkId, id: Id) -> Option<&T> {
        self.links
            .get(link.slot as usize)
            .filter(|on_link| on_link.generation == link.generation)?
            .values
            .get(id)
    }

    pub(crate) fn remove(&mut self, link: LinkId, id: Id) -> Option<T> {
        let on_link = self.links.get_mut(link.slot as usize)?;
        if on_link.generation == link.generation { on_link.values.remove(id) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(slot: u32, generation: u32) -> LinkId {
        LinkId { thread: 0, slot, generation }
    }

    #[test]
    fn new_link_in_a_slot_has_no_values_of_the_previous_link() {
        let mut map = ByConnection::default();
        assert_eq!(map.get(link(2, 1), Id(5)), None);
        map.insert(link(2, 1), Id(5), 'a');
        assert_eq!(map.get(link(2, 1), Id(5)), Some(&'a'));
        assert_eq!((map.get(link(2, 1), Id(6)), map.get(link(1, 1), Id(5))), (None, None));
        assert_eq!((map.get(link(2, 2), Id(5)).copied(), map.remove(link(2, 2), Id(5))), (None, None));
        map.insert(link(2, 2), Id(6), 'b');
        assert_eq!((map.get(link(2, 1), Id(5)).copied(), map.remove(link(2, 1), Id(5))), (None, None));
        assert_eq!((map.remove(link(2, 2), Id(6)), map.get(link(2, 2), Id(6))), (Some('b'), None));
    }
}

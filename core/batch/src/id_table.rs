//! A table of virtual connections by id whose memory depends on the number of open ids, not on the highest one.
//!
//! The peer chooses ids, so a single connection of id 65,536 must not cost a table of 65,536 entries. The table
//! consists of pages. Each page except the first exists only while one of its ids is open. A look-up takes two index
//! operations.

use alloc::boxed::Box;
use alloc::vec::Vec;

use spillway_wire::Id;

const PAGE_IDS: usize = 64;

#[derive(Clone, Debug)]
struct Page<T> {
    entries: [Option<T>; PAGE_IDS],
    open: usize,
}

impl<T> Page<T> {
    fn new() -> Box<Page<T>> {
        Box::new(Page { entries: [const { None }; PAGE_IDS], open: 0 })
    }
}

/// Values by [`Id`].
#[derive(Clone, Debug)]
pub struct IdTable<T> {
    /// The last element is always `Some`. Takes 8 bytes for each 64 ids up to the highest open one.
    pages: Vec<Option<Box<Page<T>>>>,
    len: usize,
}

impl<T> Default for IdTable<T> {
    fn default() -> IdTable<T> {
        IdTable::new()
    }
}

fn page_and_entry(id: Id) -> (usize, usize) {
    let index = id.0 as usize;
    (index / PAGE_IDS, index % PAGE_IDS)
}

impl<T> IdTable<T> {
    /// An empty table; allocates nothing.
    pub const fn new() -> IdTable<T> {
        IdTable { pages: Vec::new(), len: 0 }
    }

    /// Number of ids that have a value.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no id has a value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of an id.
    #[inline]
    pub fn get(&self, id: Id) -> Option<&T> {
        let (page, entry) = page_and_entry(id);
        self.pages.get(page)?.as_ref()?.entries[entry].as_ref()
    }

    /// The value of an id, mutable.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let (page, entry) = page_and_entry(id);
        self.pages.get_mut(page)?.as_mut()?.entries[entry].as_mut()
    }

    /// Sets a value and returns the previous one. Callers must bound ids: the table takes 8 bytes per 64 lower ids.
    pub fn insert(&mut self, id: Id, value: T) -> Option<T> {
        let (page, entry) = page_and_entry(id);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(Page::new);
        let before = page.entries[entry].replace(value);
        if before.is_none() {
            page.open += 1;
            self.len += 1;
        }
        before
    }

    /// Removes an id's value.
    pub fn remove(&mut self, id: Id) -> Option<T> {
        let (index, entry) = page_and_entry(id);
        let slot = self.pages.get_mut(index)?;
        let page = slot.as_mut()?;
        let value = page.entries[entry].take()?;
        page.open -= 1;
        self.len -= 1;
        // An empty page is freed, except the first: most links have few connections, and these open and close often.
        if page.open == 0 && index > 0 {
            *slot = None;
            while self.pages.last().is_some_and(Option::is_none) {
                self.pages.pop();
            }
            if self.pages.capacity() > 64 && self.pages.capacity() > 4 * self.pages.len() {
                self.pages.shrink_to(2 * self.pages.len());
            }
        }
        Some(value)
    }

    /// All ids that have a value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &T)> + '_ {
        let pages = (0_u32..).zip(&self.pages);
        pages.filter_map(|(number, page)| Some((number, page.as_deref()?))).flat_map(|(number, page)| {
            #[expect(clippy::cast_possible_truncation, reason = "PAGE_IDS is 64")]
            let first = number * PAGE_IDS as u32;
            (first..).zip(&page.entries).filter_map(|(id, entry)| Some((Id(id), entry.as_ref()?)))
        })
    }

    #[cfg(test)]
    fn allocated(&self) -> usize {
        let pages = self.pages.iter().flatten().count();
        self.pages.capacity() * size_of::<Option<Box<Page<T>>>>() + pages * size_of::<Page<T>>()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    #[test]
    fn memory_depends_on_the_number_of_open_ids() {
        let mut table: IdTable<[u8; 100]> = IdTable::new();
        assert_eq!(table.allocated(), 0);
        table.insert(Id(65_536), [0; 100]);
        assert!(
            table.allocated() < 20_000,
            "one id should cost one page and the list of 1,024 pages: {}",
            table.allocated()
        );
        table.remove(Id(65_536));
        assert!(table.allocated() < 1_000, "pages without open ids should be freed: {}", table.allocated());
        for id in 1..=65_536 {
            table.insert(Id(id), [0; 100]);
        }
        for id in 1..=65_536 {
            table.remove(Id(id));
        }
        assert!(table.is_empty(), "the table should be empty after all are removed");
        assert!(table.allocated() < 10_000, "only the first page should remain: {}", table.allocated());
    }

    proptest::proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((0_u8..3, 0_u32..400), 0..400)) {
            let (mut table, mut model) = (IdTable::new(), BTreeMap::new());
            for (turn, (step, id)) in (0_u32..).zip(steps) {
                match step {
                    0 | 1 => assert_eq!(table.insert(Id(id), turn), model.insert(id, turn)),
                    _ => assert_eq!(table.remove(Id(id)), model.remove(&id)),
                }
                assert_eq!(table.get(Id(id)), model.get(&id));
                assert_eq!(table.get_mut(Id(id)), model.get_mut(&id));
                assert_eq!(table.len(), model.len());
            }
            let entries: Vec<(u32, u32)> = table.iter().map(|(id, value)| (id.0, *value)).collect();
            assert_eq!(entries, model.into_iter().collect::<Vec<_>>());
        }
    }
}

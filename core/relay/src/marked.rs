//! A list whose turns process only items that may have changed or whose deadline has passed: a turn with a thousand
//! services, one of which is used, takes as long as a turn with one service. Mutable access marks an item.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::{Index, IndexMut};

use spillway_transport::Time;

pub(crate) trait Turns {
    /// When the item must be processed although nothing changed.
    fn deadline(&self) -> Option<Time>;

    /// Whether the item must be processed in the next turn, too.
    fn is_unfinished(&self) -> bool;

    /// Whether a turn before the deadline would do nothing. Used by assertions only.
    fn is_at_rest(&self) -> bool;
}

/// Items by index. An item is either marked, or its deadline is in `deadlines`.
#[derive(Debug)]
pub(crate) struct MarkedList<T> {
    entries: Vec<Entry<T>>,
    /// Indexes of marked items, without duplicates.
    marked: Vec<usize>,
    /// Deadlines of items that are not marked.
    deadlines: BTreeSet<(Time, usize)>,
    /// Spare buffer for the indexes of the next turn.
    spare: Vec<usize>,
    /// Number of accesses to items, for tests. Counted only where assertions are on.
    accesses: Cell<u64>,
}

#[derive(Debug)]
struct Entry<T> {
    item: T,
    is_marked: bool,
    /// The item's deadline in `MarkedList::deadlines`.
    deadline: Option<Time>,
}

impl<T> Default for MarkedList<T> {
    fn default() -> MarkedList<T> {
        MarkedList {
            entries: Vec::new(),
            marked: Vec::new(),
            deadlines: BTreeSet::new(),
            spare: Vec::new(),
            accesses: Cell::new(0),
        }
    }
}

impl<T> MarkedList<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an item and marks it.
    pub(crate) fn push(&mut self, item: T) {
        self.marked.push(self.entries.len());
        self.entries.push(Entry { item, is_marked: true, deadline: None });
    }

    /// All items. Not for use in a turn, because the cost grows with the number of items.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + '_ {
        self.entries.iter().map(|entry| {
            self.count_access();
            &entry.item
        })
    }

    /// Number of accesses to items. 0 where assertions are off.
    pub(crate) fn accesses(&self) -> u64 {
        self.accesses.get()
    }

    /// The index of the `nth` marked item. Items that are marked during an iteration are appended.
    pub(crate) fn marked(&self, nth: usize) -> Option<usize> {
        self.marked.get(nth).copied()
    }

    fn mark(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        if !core::mem::replace(&mut entry.is_marked, true) {
            if let Some(deadline) = entry.deadline.take() {
                self.deadlines.remove(&(deadline, index));
            }
            self.marked.push(index);
        }
    }

    fn count_access(&self) {
        if cfg!(debug_assertions) {
            self.accesses.set(self.accesses.get() + 1);
        }
    }
}

impl<T: Turns> MarkedList<T> {
    /// Marks the items whose deadline has passed, and sorts the marked items by index.
    pub(crate) fn mark_due(&mut self, now: Time) {
        while let Some((_, index)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.mark(index);
        }
        self.marked.sort_unstable();
    }

    /// Takes the marked items. Process each item, then call [`settle`](Self::settle) for it. Items that are marked
    /// meanwhile belong to the next turn.
    pub(crate) fn begin_turn(&mut self, now: Time) -> Vec<usize> {
        self.mark_due(now);
        core::mem::replace(&mut self.marked, core::mem::take(&mut self.spare))
    }

    /// Removes the mark of a processed item, unless the item needs the next turn too.
    pub(crate) fn settle(&mut self, index: usize) {
        self.count_access();
        let entry = &mut self.entries[index];
        entry.is_marked = entry.item.is_unfinished();
        if entry.is_marked {
            return self.marked.push(index);
        }
        entry.deadline = entry.item.deadline();
        self.deadlines.extend(entry.deadline.map(|deadline| (deadline, index)));
    }

    /// Call this when all items of [`begin_turn`](Self::begin_turn) are settled.
    pub(crate) fn end_turn(&mut self, mut settled: Vec<usize>) {
        settled.clear();
        self.spare = settled;
        self.check();
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let marked = self.marked.iter().filter_map(|index| self[*index].deadline());
        marked.chain(self.deadlines.first().map(|(at, _)| *at)).min()
    }

    /// Asserts that each item without a mark is at rest and has its current deadline in the table.
    fn check(&self) {
        if cfg!(debug_assertions) {
            for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_marked) {
                assert!(entry.item.is_at_rest(), "item {index} needs a turn and is not marked");
                assert_eq!(entry.deadline, entry.item.deadline(), "the deadline of item {index} is outdated");
            }
        }
    }
}

impl<T> Index<usize> for MarkedList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.count_access();
        &self.entries[index].item
    }
}

/// Mutable access marks the item.
impl<T> IndexMut<usize> for MarkedList<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.count_access();
        self.mark(index);
        &mut self.entries[index].item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct TestItem {
        deadline: Option<Time>,
        work: u32,
    }

    impl Turns for TestItem {
        fn deadline(&self) -> Option<Time> {
            self.deadline
        }

        fn is_unfinished(&self) -> bool {
            self.work > 0
        }

        fn is_at_rest(&self) -> bool {
            self.work == 0
        }
    }

    fn turn(list: &mut MarkedList<TestItem>, now: Time) -> Vec<usize> {
        let marked = list.begin_turn(now);
        for index in &marked {
            let item = &mut list[*index];
            item.deadline = item.deadline.filter(|at| *at > now);
            item.work = item.work.saturating_sub(1);
            list.settle(*index);
        }
        let processed = marked.clone();
        list.end_turn(marked);
        processed
    }

    fn settled_list() -> MarkedList<TestItem> {
        let mut list = MarkedList::default();
        (0..100).for_each(|_| list.push(TestItem::default()));
        assert_eq!(turn(&mut list, Time(0)).len(), 100, "new items should be marked");
        assert!(turn(&mut list, Time(0)).is_empty(), "the list should be settled");
        list
    }

    #[test]
    fn only_changed_items_have_a_turn() {
        let mut list = settled_list();
        assert_eq!(list[3].work, 0, "item 3 is only read, and should not be marked");
        list[7].work = 1;
        list[2].work = 2;
        assert_eq!(turn(&mut list, Time(1)), [2, 7]);
        assert_eq!(turn(&mut list, Time(1)), [2], "item 2 should need a second turn");
        list[7] = TestItem::default();
        let before = list.accesses();
        assert_eq!(turn(&mut list, Time(1)), [7]);
        assert_eq!(list.accesses() - before, 2);
    }

    #[test]
    fn next_deadline_is_exact_for_marked_and_unmarked_items() {
        let mut list = settled_list();
        let at = |ns| Some(Time(ns));
        list[5].deadline = at(50);
        list[6].deadline = at(60);
        assert_eq!(list.next_deadline(), at(50), "the deadline of a marked item should count");
        turn(&mut list, Time(1));
        assert_eq!(list.next_deadline(), at(50));
        list[5].deadline = at(70);
        assert_eq!(list.next_deadline(), at(60), "the old deadline of item 5 should not count");
        assert_eq!(turn(&mut list, Time(59)), [5]);
        assert_eq!(turn(&mut list, Time(60)), [6]);
        assert_eq!(list.next_deadline(), at(70));
        assert_eq!(turn(&mut list, Time(90)), [5]);
        assert_eq!(list.next_deadline(), None);
    }

    #[test]
    #[should_panic(expected = "item 9 needs a turn and is not marked")]
    fn change_without_a_mark_fails_the_check() {
        let mut list = settled_list();
        list.entries[9].item.work = 1;
        turn(&mut list, Time(0));
    }

    #[test]
    #[should_panic(expected = "the deadline of item 9 is outdated")]
    fn deadline_change_without_a_mark_fails_the_check() {
        let mut list = settled_list();
        list.entries[9].item.deadline = Some(Time(5));
        turn(&mut list, Time(0));
    }
}

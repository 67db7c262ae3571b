//! A list of which a turn looks only at items that may have changed, and at those whose time has come: with a thousand
//! services, of which one is used, a turn takes as long as with one service.
//!
//! Nobody has to think of marking: whoever gets an item to change it has marked it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::{Index, IndexMut};

use spillway_transport::Time;

/// An item that has turns.
pub(crate) trait Turns {
    /// When it needs a turn because of the clock.
    fn deadline(&self) -> Option<Time>;

    /// After a turn: it needs the next turn too, whenever that is.
    fn is_unfinished(&self) -> bool;

    /// Whether a turn without new events, before the deadline, would do nothing. Asked for assertions only.
    fn is_at_rest(&self) -> bool;
}

/// Items by index. Each is marked, or its deadline is in the table.
#[derive(Debug)]
pub(crate) struct MarkedList<T> {
    places: Vec<Place<T>>,
    /// Indexes of those that are marked, each once.
    marked: Vec<usize>,
    /// Of items that are not marked.
    deadlines: BTreeSet<(Time, usize)>,
    /// Those that have their turn, between turns an empty buffer.
    in_turn: Vec<usize>,
    /// How often any item was looked at: counted where assertions are on, for tests.
    looks: Cell<u64>,
}

#[derive(Debug)]
struct Place<T> {
    item: T,
    is_marked: bool,
    /// As in the table.
    deadline: Option<Time>,
}

impl<T> Default for MarkedList<T> {
    fn default() -> MarkedList<T> {
        MarkedList {
            places: Vec::new(),
            marked: Vec::new(),
            deadlines: BTreeSet::new(),
            in_turn: Vec::new(),
            looks: Cell::new(0),
        }
    }
}

impl<T> MarkedList<T> {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// A new item, which is marked.
    pub(crate) fn push(&mut self, item: T) {
        self.marked.push(self.places.len());
        self.places.push(Place { item, is_marked: true, deadline: None });
    }

    /// All items, which takes time for each.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + '_ {
        self.places.iter().map(|place| {
            self.look();
            &place.item
        })
    }

    /// How often any item was looked at. 0 where assertions are off.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// The index of a marked item, by its place among them. New ones come behind it.
    pub(crate) fn marked(&self, nth: usize) -> Option<usize> {
        self.marked.get(nth).copied()
    }

    fn mark(&mut self, index: usize) {
        let place = &mut self.places[index];
        if !core::mem::replace(&mut place.is_marked, true) {
            if let Some(deadline) = place.deadline.take() {
                self.deadlines.remove(&(deadline, index));
            }
            self.marked.push(index);
        }
    }

    fn look(&self) {
        if cfg!(debug_assertions) {
            self.looks.set(self.looks.get() + 1);
        }
    }
}

impl<T: Turns> MarkedList<T> {
    /// Marks those whose time has come. Those that are marked are in the order of their indexes then.
    pub(crate) fn mark_due(&mut self, now: Time) {
        while let Some((_, index)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            self.mark(index);
        }
        self.marked.sort_unstable();
    }

    /// The items that are marked, to be [settled](Self::settle) one by one. What is marked meanwhile has its turn next time.
    pub(crate) fn begin_turn(&mut self, now: Time) -> Vec<usize> {
        self.mark_due(now);
        core::mem::replace(&mut self.marked, core::mem::take(&mut self.in_turn))
    }

    /// An item has had its turn: it is marked no more, unless it needs the next one as well.
    pub(crate) fn settle(&mut self, index: usize) {
        self.look();
        let place = &mut self.places[index];
        place.is_marked = place.item.is_unfinished();
        if place.is_marked {
            return self.marked.push(index);
        }
        place.deadline = place.item.deadline();
        self.deadlines.extend(place.deadline.map(|deadline| (deadline, index)));
    }

    /// All of [`begin_turn`](Self::begin_turn) are settled.
    pub(crate) fn end_turn(&mut self, mut settled: Vec<usize>) {
        settled.clear();
        self.in_turn = settled;
        self.check();
    }

    /// When the next item needs a turn.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let marked = self.marked.iter().filter_map(|index| self[*index].deadline());
        marked.chain(self.deadlines.first().map(|(at, _)| *at)).min()
    }

    /// That nothing was forgotten.
    fn check(&self) {
        if cfg!(debug_assertions) {
            for (index, place) in self.places.iter().enumerate().filter(|(_, place)| !place.is_marked) {
                assert!(place.item.is_at_rest(), "item {index} needs a turn and is not marked");
                assert_eq!(place.deadline, place.item.deadline(), "deadline of item {index}");
            }
        }
    }
}

impl<T> Index<usize> for MarkedList<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.look();
        &self.places[index].item
    }
}

/// Marks the item.
impl<T> IndexMut<usize> for MarkedList<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.look();
        self.mark(index);
        &mut self.places[index].item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Thing {
        deadline: Option<Time>,
        work: u32,
    }

    impl Turns for Thing {
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

    fn turn(list: &mut MarkedList<Thing>, now: Time) -> Vec<usize> {
        let marked = list.begin_turn(now);
        for index in &marked {
            let thing = &mut list[*index];
            thing.deadline = thing.deadline.filter(|at| *at > now);
            thing.work = thing.work.saturating_sub(1);
            list.settle(*index);
        }
        let had = marked.clone();
        list.end_turn(marked);
        had
    }

    fn things() -> MarkedList<Thing> {
        let mut list = MarkedList::default();
        (0..100).for_each(|_| list.push(Thing::default()));
        assert_eq!(turn(&mut list, Time(0)).len(), 100, "new ones");
        assert!(turn(&mut list, Time(0)).is_empty());
        list
    }

    #[test]
    fn what_was_changed_has_a_turn_and_nothing_else() {
        let mut list = things();
        assert_eq!(list[3].work, 0, "looking at it is no change");
        list[7].work = 1;
        list[2].work = 2;
        assert_eq!(turn(&mut list, Time(1)), [2, 7]);
        assert_eq!(turn(&mut list, Time(1)), [2], "not finished");
        list[7] = Thing::default();
        let before = list.looks();
        assert_eq!(turn(&mut list, Time(1)), [7]);
        assert_eq!(list.looks() - before, 2);
    }

    #[test]
    fn deadlines_are_exact_whether_an_item_is_marked_or_not() {
        let mut list = things();
        let at = |ns| Some(Time(ns));
        list[5].deadline = at(50);
        list[6].deadline = at(60);
        assert_eq!(list.next_deadline(), at(50), "still marked");
        turn(&mut list, Time(1));
        assert_eq!(list.next_deadline(), at(50));
        list[5].deadline = at(70);
        assert_eq!(list.next_deadline(), at(60), "what was in the table is gone");
        assert_eq!(turn(&mut list, Time(59)), [5]);
        assert_eq!(turn(&mut list, Time(60)), [6]);
        assert_eq!(list.next_deadline(), at(70));
        assert_eq!(turn(&mut list, Time(90)), [5]);
        assert_eq!(list.next_deadline(), None);
    }

    #[test]
    #[should_panic(expected = "item 9 needs a turn and is not marked")]
    fn a_forgotten_mark_is_found() {
        let mut list = things();
        list.places[9].item.work = 1;
        turn(&mut list, Time(0));
    }

    #[test]
    #[should_panic(expected = "deadline of item 9")]
    fn a_deadline_that_was_changed_in_secret_is_found() {
        let mut list = things();
        list.places[9].item.deadline = Some(Time(5));
        turn(&mut list, Time(0));
    }
}

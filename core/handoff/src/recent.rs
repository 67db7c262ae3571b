//! A map from flows with a bound: a new entry displaces the oldest one.

use alloc::collections::{BTreeMap, VecDeque};

use spillway_wire::switch::Flow;

/// Places of the order that may be left over in addition to one for each entry. The order of few flows stays in the cache.
const PLACES_MIN: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Recent<V> {
    /// Each entry with the number under which it is queued in `order`.
    entries: BTreeMap<Flow, (u64, V)>,
    /// Oldest first. Some places are left over from removed entries and from those that were inserted again.
    order: VecDeque<(u64, Flow)>,
    entries_max: usize,
    inserted: u64,
}

impl<V> Recent<V> {
    pub(crate) fn new(entries_max: usize) -> Recent<V> {
        Recent { entries: BTreeMap::new(), order: VecDeque::new(), entries_max, inserted: 0 }
    }

    /// Adds an entry, or replaces it; it is the newest then. Returns the entry that it has displaced.
    pub(crate) fn insert(&mut self, flow: Flow, value: V) -> Option<V> {
        let mut displaced = None;
        self.inserted += 1;
        self.entries.insert(flow, (self.inserted, value));
        self.order.push_back((self.inserted, flow));
        while self.entries.len() > self.entries_max {
            let Some((number, oldest)) = self.order.pop_front() else { break };
            if self.is_queued(number, &oldest) {
                displaced = self.entries.remove(&oldest).map(|(_, value)| value);
            }
        }
        if self.order.len() > 2 * self.entries.len() + PLACES_MIN {
            let mut order = core::mem::take(&mut self.order);
            order.retain(|(number, flow)| self.is_queued(*number, flow));
            self.order = order;
        }
        displaced
    }

    /// Whether this place in the order is that of an entry.
    fn is_queued(&self, number: u64, flow: &Flow) -> bool {
        self.entries.get(flow).is_some_and(|(queued, _)| *queued == number)
    }

    pub(crate) fn get(&self, flow: &Flow) -> Option<&V> {
        self.entries.get(flow).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, flow: &Flow) -> Option<&mut V> {
        self.entries.get_mut(flow).map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|(_, value)| value)
    }

    pub(crate) fn remove(&mut self, flow: &Flow) {
        self.entries.remove(flow);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_flow::flow;

    #[test]
    fn the_oldest_entry_is_displaced() {
        let mut recent = Recent::new(3);
        for port in [9, 1, 5] {
            recent.insert(flow(port), port);
        }
        assert_eq!((recent.insert(flow(9), 90), recent.insert(flow(7), 7)), (None, Some(1)));
        assert_eq!(recent.get(&flow(1)), None, "flow 1 is the oldest; flow 9 was inserted again");
        assert_eq!((recent.get(&flow(9)), recent.get(&flow(5)), recent.len()), (Some(&90), Some(&5), 3));
    }

    #[test]
    fn removed_entries_leave_no_places_behind() {
        let mut recent = Recent::new(2);
        for round in 0..100 {
            recent.insert(flow(1), round);
            recent.remove(&flow(1));
        }
        recent.insert(flow(2), 2);
        assert!(recent.order.len() <= 2 + PLACES_MIN && recent.get(&flow(2)).is_some());
        assert_eq!(recent.get(&flow(1)), None);
    }
}

//! A table, for example of flows, some of whose values have a deadline. The first deadline is found without a look at all
//! values: a server may have imported many thousands of flows.

use alloc::collections::btree_map::{self, BTreeMap};
use alloc::collections::btree_set::BTreeSet;
use alloc::vec::Vec;
use core::ops::RangeBounds;

use spillway_transport::Time;

/// A value with a deadline.
pub(crate) trait Deadline {
    /// When something is due; `None`: nothing is.
    fn deadline(&self) -> Option<Time>;
}

/// Values by key, and their deadlines in order.
#[derive(Debug)]
pub(crate) struct Timed<K, V> {
    values: BTreeMap<K, V>,
    /// The deadline of each value that has one.
    deadlines: BTreeSet<(Time, K)>,
}

impl<K: Copy + Ord, V: Deadline> Timed<K, V> {
    pub(crate) fn new() -> Timed<K, V> {
        Timed { values: BTreeMap::new(), deadlines: BTreeSet::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.values.contains_key(key)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)
    }

    pub(crate) fn keys(&self) -> btree_map::Keys<'_, K, V> {
        self.values.keys()
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, K, V> {
        self.values.iter()
    }

    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> btree_map::Range<'_, K, V> {
        self.values.range(range)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let deadline = value.deadline();
        let earlier = self.values.insert(key, value);
        self.file(key, earlier.and_then(|earlier| earlier.deadline()), deadline);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        let earlier = self.values.remove(key);
        self.file(*key, earlier.and_then(|earlier| earlier.deadline()), None);
    }

    /// Alters the value of a key, if there is one. Returns what `alter` returns.
    pub(crate) fn update<R>(&mut self, key: &K, alter: impl FnOnce(&mut V) -> R) -> Option<R> {
        let value = self.values.get_mut(key)?;
        let earlier = value.deadline();
        let result = alter(value);
        let deadline = value.deadline();
        self.file(*key, earlier, deadline);
        Some(result)
    }

    /// Alters all values.
    pub(crate) fn update_all(&mut self, mut alter: impl FnMut(&mut V)) {
        self.deadlines.clear();
        for (key, value) in &mut self.values {
            alter(value);
            self.deadlines.extend(value.deadline().map(|at| (at, *key)));
        }
    }

    /// The first deadline.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The keys whose deadlines have come, the earliest first.
    pub(crate) fn due(&self, now: Time) -> Vec<K> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect()
    }

    /// The key with the earliest deadline, if that has come.
    pub(crate) fn first_due(&self, now: Time) -> Option<K> {
        self.deadlines.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    fn file(&mut self, key: K, earlier: Option<Time>, deadline: Option<Time>) {
        if earlier == deadline {
            return;
        }
        if let Some(at) = earlier {
            self.deadlines.remove(&(at, key));
        }
        self.deadlines.extend(deadline.map(|at| (at, key)));
    }

    /// The first deadline, found by a look at all values.
    #[cfg(test)]
    pub(crate) fn next_by_scan(&self) -> Option<Time> {
        self.values.values().filter_map(Deadline::deadline).min()
    }
}

#[cfg(test)]
mod tests {
    use spillway_wire::switch::Flow;

    use super::*;
    use crate::test_flow::flow;

    #[derive(Clone, Copy, Debug)]
    struct At(Option<Time>);

    impl Deadline for At {
        fn deadline(&self) -> Option<Time> {
            self.0
        }
    }

    #[test]
    fn the_index_equals_a_scan_after_any_operations() {
        let (mut timed, mut state) = (Timed::<Flow, At>::new(), 7_u64);
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut largest = 0;
        for _ in 0..20_000 {
            let at = At((random(3) > 0).then(|| Time(random(500))));
            let one = flow(1 + random(60) as u16);
            match random(100) {
                0 => timed.update_all(|value| *value = At(value.0.map(|at| Time(at.0 / 2)))),
                1..40 => timed.insert(one, at),
                40..70 => timed.remove(&one),
                _ => {
                    let is_here = timed.contains_key(&one);
                    assert_eq!(timed.update(&one, |value| *value = at).is_some(), is_here);
                }
            }
            largest = largest.max(timed.len());
            assert_eq!(timed.next_at(), timed.next_by_scan());
            let now = Time(random(500));
            let mut due = timed.due(now);
            due.sort_unstable();
            let is_due =
                |flow: &&Flow| timed.get(flow).is_some_and(|value| value.0.is_some_and(|at| at <= now));
            assert_eq!(due, timed.keys().filter(is_due).copied().collect::<Vec<_>>());
        }
        assert!(largest > 20, "at most {largest} flows at a time");
    }
}

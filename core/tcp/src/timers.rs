//! A hierarchical timing wheel (Varghese and Lauck 1987) with one deadline per connection.
//!
//! Eight levels of 64 places: a place of the lowest level is one tick wide, a place of each further level 64 times
//! wider. A deadline is filed at the level of the highest digit in which it differs from the present tick, and moves
//! down level by level as its time approaches. Deadlines in the present tick are sorted, exact to the nanosecond.
//!
//! A postponed deadline stays filed under its earlier time until that time, so that postponing costs one store. Nearly
//! every acknowledgement postpones a deadline.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use spillway_transport::Time;

/// A tick is 2^17 ns: 131 µs.
const TICK_BITS: u32 = 17;
const DIGIT_BITS: u32 = 6;
const PLACES: usize = 1 << DIGIT_BITS;
/// 17 + 8 × 6 bits cover more than the 64 bits of a time.
const LEVELS: usize = 8;
/// Maximum number of nodes that [`Wheel::next_at`] examines; with more nodes it returns a lower bound.
const EXAMINED_MAX: usize = 32;
/// Marks a node without a deadline.
const NEVER: u64 = u64::MAX;
const NONE: u32 = u32::MAX;

/// One deadline per key. Keys are small and dense, such as [`Conn::slot`](spillway_transport::Conn::slot): the wheel
/// needs 32 bytes for each number up to the highest key.
#[derive(Debug)]
pub struct Wheel {
    /// The present tick: all deadlines that are filed at a level are later.
    tick: u64,
    nodes: Vec<Node>,
    levels: [Level; LEVELS],
    /// Time and key of deadlines in the present tick or before it.
    due: BTreeSet<(u64, u32)>,
    armed: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The deadline; [`NEVER`] if there is none.
    at: u64,
    /// The time under which the node is filed, at most `at`.
    filed: u64,
    next: u32,
    previous: u32,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    Due,
    Level(u8, u8),
}

#[derive(Clone, Copy, Debug)]
struct Level {
    /// Bit set of the places that have nodes.
    used: u64,
    heads: [u32; PLACES],
}

const UNARMED: Node = Node { at: NEVER, filed: NEVER, next: NONE, previous: NONE, place: Place::Nowhere };
const EMPTY: Level = Level { used: 0, heads: [NONE; PLACES] };

impl Wheel {
    /// A wheel without deadlines.
    pub fn new(now: Time) -> Wheel {
        Wheel {
            tick: now.as_nanos() >> TICK_BITS,
            nodes: Vec::new(),
            levels: [EMPTY; LEVELS],
            due: BTreeSet::new(),
            armed: 0,
        }
    }

    /// The number of keys with a deadline.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Whether no key has a deadline.
    pub fn is_empty(&self) -> bool {
        self.armed == 0
    }

    /// The deadline of a key.
    pub fn deadline(&self, key: u32) -> Option<Time> {
        self.nodes.get(key as usize).filter(|node| node.at != NEVER).map(|node| Time(node.at))
    }

    /// Sets a key's deadline, which replaces its previous one. `Time(u64::MAX)` removes the deadline.
    #[inline]
    pub fn arm(&mut self, key: u32, at: Time) {
        // A postponed deadline stays filed under the earlier time.
        if let Some(node) = self.nodes.get_mut(key as usize)
            && node.place != Place::Nowhere
            && (node.filed..NEVER).contains(&at.as_nanos())
            && node.at != NEVER
        {
            node.at = at.as_nanos();
        } else {
            self.set_and_file(key, at);
        }
    }

    fn set_and_file(&mut self, key: u32, at: Time) {
        if at.as_nanos() == NEVER {
            return self.disarm(key);
        }
        if self.nodes.len() <= key as usize {
            self.nodes.resize(key as usize + 1, UNARMED);
        }
        let node = &mut self.nodes[key as usize];
        self.armed += usize::from(node.at == NEVER);
        node.at = at.as_nanos();
        if node.place != Place::Nowhere && node.filed <= node.at {
            return;
        }
        self.unfile(key);
        self.file(key);
    }

    /// Removes the key's deadline.
    pub fn disarm(&mut self, key: u32) {
        if let Some(node) = self.nodes.get_mut(key as usize) {
            self.armed -= usize::from(node.at != NEVER);
            node.at = NEVER;
        }
    }

    /// Removes a deadline that has expired and returns its key; earlier deadlines first, equal ones by key. Call it
    /// until it returns `None`.
    pub fn poll(&mut self, now: Time) -> Option<u32> {
        self.advance(now.as_nanos() >> TICK_BITS);
        while let Some(&(filed, key)) = self.due.first() {
            if filed > now.as_nanos() {
                return None;
            }
            self.due.pop_first();
            let node = &mut self.nodes[key as usize];
            node.place = Place::Nowhere;
            if node.at == filed {
                node.at = NEVER;
                self.armed -= 1;
                return Some(key);
            }
            self.file(key); // postponed
        }
        None
    }

    /// Whether [`Wheel::poll`] may return a key, or may move deadlines to a lower level.
    #[inline]
    pub fn may_be_due(&self, now: Time) -> bool {
        let tick = now.as_nanos() >> TICK_BITS;
        let first = || self.levels.iter().position(|level| level.used != 0);
        let is_near = |level: usize| self.first_tick(level, self.levels[level].used.trailing_zeros()) <= tick;
        !self.due.is_empty() || (self.tick < tick && first().is_some_and(is_near))
    }

    /// When to call [`Wheel::poll`] next: at the first deadline, or earlier if many deadlines were postponed, or if
    /// many distant ones are close together. Such an early call of `poll` only moves deadlines to lower levels.
    pub fn next_at(&self) -> Option<Time> {
        if self.armed == 0 {
            return None;
        }
        let mut search = Search { first: NEVER, budget: EXAMINED_MAX };
        for &(filed, key) in &self.due {
            if !search.must_continue(filed) {
                return Some(Time(search.first));
            }
            search.examine(self.nodes[key as usize].at);
        }
        for (level, places) in self.levels.iter().enumerate() {
            let mut used = places.used;
            while used != 0 {
                let place = used.trailing_zeros();
                used &= used - 1;
                let first_tick = self.first_tick(level, place) << TICK_BITS;
                let mut key = places.heads[place as usize];
                while key != NONE {
                    if !search.must_continue(first_tick) {
                        return Some(Time(search.first));
                    }
                    let node = &self.nodes[key as usize];
                    search.examine(node.at);
                    key = node.next;
                }
            }
        }
        (search.first != NEVER).then_some(Time(search.first))
    }

    /// The first tick of a place, in its next round.
    fn first_tick(&self, level: usize, place: u32) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "there are 8 levels")]
        let shift = level as u32 * DIGIT_BITS;
        let above = self.tick >> shift >> DIGIT_BITS << DIGIT_BITS;
        (above | u64::from(place)) << shift
    }

    /// Advances to `tick`: moves deadlines that are due by its end to `due`.
    fn advance(&mut self, tick: u64) {
        while self.tick < tick {
            // Places of a lower level begin before those of a higher one.
            let Some(level) = self.levels.iter().position(|level| level.used != 0) else { break };
            let place = self.levels[level].used.trailing_zeros();
            let first_tick = self.first_tick(level, place);
            if first_tick > tick {
                break;
            }
            self.tick = first_tick;
            let places = &mut self.levels[level];
            places.used &= places.used - 1;
            let mut key = core::mem::replace(&mut places.heads[place as usize], NONE);
            while key != NONE {
                let node = &mut self.nodes[key as usize];
                let next = node.next;
                node.place = Place::Nowhere;
                self.file(key);
                key = next;
            }
        }
        self.tick = self.tick.max(tick);
    }

    /// Files an unfiled node by its deadline, if it has one.
    fn file(&mut self, key: u32) {
        let node = &mut self.nodes[key as usize];
        node.filed = node.at;
        if node.at == NEVER {
            return;
        }
        let tick = node.at >> TICK_BITS;
        if tick <= self.tick {
            node.place = Place::Due;
            self.due.insert((node.at, key));
            return;
        }
        let level = (tick ^ self.tick).ilog2() / DIGIT_BITS;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "there are 8 levels, and a place is a digit of 6 bits"
        )]
        let (level_byte, place) = (level as u8, (tick >> (level * DIGIT_BITS)) as u8 % PLACES as u8);
        node.place = Place::Level(level_byte, place);
        let places = &mut self.levels[level as usize];
        let next = core::mem::replace(&mut places.heads[usize::from(place)], key);
        (node.next, node.previous) = (next, NONE);
        places.used |= 1 << place;
        if let Some(next) = self.nodes.get_mut(next as usize) {
            next.previous = key;
        }
    }

    /// Removes a node from the list or set in which it is filed.
    fn unfile(&mut self, key: u32) {
        let node = self.nodes[key as usize];
        self.nodes[key as usize].place = Place::Nowhere;
        match node.place {
            Place::Nowhere => {}
            Place::Due => {
                self.due.remove(&(node.filed, key));
            }
            Place::Level(level, place) => {
                if let Some(next) = self.nodes.get_mut(node.next as usize) {
                    next.previous = node.previous;
                }
                if let Some(previous) = self.nodes.get_mut(node.previous as usize) {
                    previous.next = node.next;
                    return;
                }
                let places = &mut self.levels[usize::from(level)];
                places.heads[usize::from(place)] = node.next;
                if node.next == NONE {
                    places.used &= !(1 << place);
                }
            }
        }
    }
}

/// The bounded search for the first deadline.
struct Search {
    first: u64,
    budget: usize,
}

impl Search {
    /// Whether nodes filed under `filed` or later may hold a deadline before `first`, and the budget allows to examine
    /// them. Without budget left, `filed` becomes the result, a lower bound.
    fn must_continue(&mut self, filed: u64) -> bool {
        if filed >= self.first {
            return false;
        }
        if self.budget == 0 {
            self.first = filed;
        }
        self.budget > 0
    }

    fn examine(&mut self, at: u64) {
        self.first = self.first.min(at);
        self.budget -= 1;
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;

    const TICK: u64 = 1 << TICK_BITS;

    fn poll_all(wheel: &mut Wheel, now: u64) -> Vec<u32> {
        core::iter::from_fn(|| wheel.poll(Time(now))).collect()
    }

    #[test]
    fn expired_deadlines_fire_in_order_of_time_then_key() {
        let mut wheel = Wheel::new(Time(5));
        for (key, at) in [(3, 900), (9, 100), (1, 900), (4, 3 * TICK), (0, 901)] {
            wheel.arm(key, Time(at));
        }
        assert_eq!((wheel.next_at(), wheel.len()), (Some(Time(100)), 5), "five deadlines should be armed");
        assert_eq!(poll_all(&mut wheel, 99), vec![]);
        assert_eq!(poll_all(&mut wheel, 900), vec![9, 1, 3]);
        assert_eq!(poll_all(&mut wheel, 3 * TICK - 1), vec![0]);
        assert_eq!(wheel.next_at(), Some(Time(3 * TICK)), "the time should be exact for a single deadline");
        assert_eq!(poll_all(&mut wheel, 3 * TICK), vec![4]);
        assert_eq!((wheel.next_at(), wheel.is_empty()), (None, true), "no deadline should be left");
    }

    #[test]
    fn a_postponed_deadline_fires_at_its_new_time() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.arm(0, Time(10 * TICK));
        wheel.arm(0, Time(5000 * TICK + 7));
        assert_eq!(
            wheel.next_at(),
            Some(Time(5000 * TICK + 7)),
            "the time should be exact while there are few nodes"
        );
        assert_eq!(poll_all(&mut wheel, 5000 * TICK + 6), vec![]);
        assert_eq!(poll_all(&mut wheel, 5000 * TICK + 7), vec![0]);
    }

    #[test]
    fn a_deadline_that_is_brought_forward_fires_at_its_new_time() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.arm(0, Time(5_000 * TICK));
        wheel.arm(1, Time(5_000 * TICK));
        wheel.arm(0, Time(70 * TICK));
        wheel.arm(0, Time(TICK + 1));
        assert_eq!(poll_all(&mut wheel, 4_999 * TICK), vec![0]);
        assert_eq!(poll_all(&mut wheel, 5_000 * TICK), vec![1]);
    }

    #[test]
    fn a_disarmed_key_does_not_fire_and_may_be_armed_again() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.arm(2, Time(70 * TICK));
        wheel.disarm(2);
        wheel.disarm(2);
        wheel.disarm(77);
        assert_eq!(
            (wheel.next_at(), wheel.deadline(2), wheel.len()),
            (None, None, 0),
            "no deadline should be left"
        );
        wheel.arm(2, Time(60 * TICK));
        assert_eq!(wheel.deadline(2), Some(Time(60 * TICK)));
        wheel.arm(2, Time(u64::MAX));
        assert_eq!(
            poll_all(&mut wheel, u64::MAX),
            vec![],
            "arming with the end of time should remove the deadline"
        );
    }

    #[test]
    fn past_deadlines_fire_at_once() {
        let mut wheel = Wheel::new(Time(500 * TICK));
        wheel.arm(1, Time(3));
        wheel.arm(0, Time(500 * TICK));
        assert_eq!(wheel.next_at(), Some(Time(3)));
        assert_eq!(poll_all(&mut wheel, 500 * TICK), vec![1, 0]);
        wheel.arm(1, Time(u64::MAX - 1));
        assert_eq!(poll_all(&mut wheel, u64::MAX - 2), vec![]);
        assert_eq!(poll_all(&mut wheel, u64::MAX - 1), vec![1], "the last possible deadline should fire");
    }

    #[test]
    fn many_close_deadlines_need_one_early_wake_up_per_level() {
        let mut wheel = Wheel::new(Time::ZERO);
        let at = 7200 * 1_000_000_000;
        for key in 0..10_000 {
            wheel.arm(key, Time(at + u64::from(key)));
        }
        let mut polls = 0;
        while let Some(next) = wheel.next_at().filter(|next| *next < Time(at)) {
            assert_eq!(wheel.poll(next), None);
            polls += 1;
        }
        assert!(polls <= LEVELS, "there should be at most one early poll per level, not {polls}");
        assert_eq!(wheel.next_at(), Some(Time(at)), "the time should now be exact");
        assert_eq!(poll_all(&mut wheel, at + 9_999), (0..10_000).collect::<Vec<_>>());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arm(u32, u64),
        Disarm(u32),
        Poll(u64),
    }

    /// Durations of all orders of magnitude, equally likely.
    fn span() -> impl Strategy<Value = u64> {
        (0_u32..50, any::<u64>()).prop_map(|(bits, number)| number % (1 << bits))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0_u32..50, span()).prop_map(|(key, after)| Step::Arm(key, after)),
            1 => (0_u32..50).prop_map(Step::Disarm),
            2 => span().prop_map(Step::Poll),
        ]
    }

    proptest! {
        #[test]
        fn the_wheel_agrees_with_a_sorted_map(begin in span(), steps in prop::collection::vec(step(), 1..300)) {
            let mut wheel = Wheel::new(Time(begin));
            let mut model = BTreeMap::<u32, u64>::new();
            let mut now = begin;
            for step in steps {
                match step {
                    Step::Arm(key, after) => {
                        let at = (now + after).saturating_sub(1000); // some deadlines are in the past
                        wheel.arm(key, Time(at));
                        model.insert(key, at);
                    }
                    Step::Disarm(key) => {
                        wheel.disarm(key);
                        model.remove(&key);
                    }
                    Step::Poll(after) => {
                        now += after;
                        let entries = model.iter().map(|(key, at)| (*at, *key));
                        let mut due: Vec<_> = entries.filter(|(at, _)| *at <= now).collect();
                        due.sort_unstable();
                        for (_, key) in &due {
                            assert!(model.remove(key).is_some(), "an expired timer should be in the model");
                        }
                        let keys: Vec<_> = due.into_iter().map(|(_, key)| key).collect();
                        prop_assert_eq!(poll_all(&mut wheel, now), keys);
                    }
                }
                let first = model.values().min().copied();
                prop_assert_eq!(wheel.len(), model.len());
                prop_assert_eq!(wheel.next_at().is_some(), first.is_some());
                prop_assert!(
                    wheel.next_at().is_none_or(|next| next.0 <= first.unwrap_or(0)),
                    "the wheel should not be later than the model"
                );
            }
        }

        #[test]
        fn polling_at_the_next_time_is_exact_and_makes_progress(
            deadlines in prop::collection::vec(span(), 1..200), postponed_by in span()
        ) {
            let mut wheel = Wheel::new(Time::ZERO);
            for (key, at) in (0..).zip(&deadlines) {
                wheel.arm(key, Time(*at));
                if key % 3 == 0 {
                    wheel.arm(key, Time(at + postponed_by));
                }
            }
            let mut wakes = 0;
            while let Some(next) = wheel.next_at() {
                while let Some(key) = wheel.poll(next) {
                    let at = deadlines[key as usize] + if key % 3 == 0 { postponed_by } else { 0 };
                    prop_assert_eq!(Time(at), next, "a key should fire at its deadline");
                }
                wakes += 1;
                prop_assert!(wakes <= deadlines.len() * (LEVELS + 2), "a wake-up should fire or move a key");
            }
        }
    }
}

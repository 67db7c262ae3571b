//! The list of helpers, computed from etcd's answers. No I/O, no clock.
//!
//! Two rules protect clients from failures of etcd. They keep helpers in the list rather than remove them: the address
//! of a helper that has ended costs clients little, because they query several helpers, but without working helpers in
//! the list clients have no relief.
//! - A helper that is missing from an answer, and whose removal was not seen, stays for a grace time: helpers register
//!   again, one after the other, in an etcd that has lost its data.
//! - If all helpers are removed, the last list stays for the grace time: when a cluster was cut off from the helpers,
//!   all their leases expire at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{Entry, HELPERS_MAX};

#[derive(Debug)]
pub(crate) struct HelperList {
    grace: Duration,
    all: BTreeMap<String, ListedHelper>,
    last: Vec<Entry>,
    empty_since: Option<Instant>,
}

#[derive(Debug)]
struct ListedHelper {
    entry: Entry,
    missing_since: Option<Instant>,
}

/// The list already has [`HELPERS_MAX`] helpers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl HelperList {
    pub(crate) fn new(grace: Duration) -> HelperList {
        HelperList { grace, all: BTreeMap::new(), last: Vec::new(), empty_since: None }
    }

    /// Updates the set of helpers to the names in an answer. Call [`put`](Self::put) for their entries
    /// afterwards; a helper whose entry is invalid keeps its last one. `removals_seen`: the previous answer
    /// is from the same history, so a name that disappeared was removed; if not, its helper counts as
    /// missing. Returns the number of newly missing helpers.
    pub(crate) fn update_names(
        &mut self,
        now: Instant,
        names: &BTreeSet<String>,
        removals_seen: bool,
    ) -> usize {
        let mut newly_missing = 0;
        self.all.retain(|name, helper| {
            if names.contains(name) {
                helper.missing_since = None;
            } else if helper.missing_since.is_none() {
                helper.missing_since = Some(now);
                newly_missing += usize::from(!removals_seen);
                return !removals_seen;
            }
            true
        });
        newly_missing
    }

    pub(crate) fn put(&mut self, entry: Entry) -> Result<(), Full> {
        let name = entry.name.clone().unwrap_or_default();
        if self.all.len() >= HELPERS_MAX && !self.all.contains_key(&name) {
            return Err(Full);
        }
        self.all.insert(name, ListedHelper { entry, missing_since: None });
        Ok(())
    }

    pub(crate) fn list(&mut self, now: Instant) -> Vec<Entry> {
        let grace = self.grace;
        self.all.retain(|_, helper| helper.missing_since.is_none_or(|since| now < since + grace));
        if !self.all.is_empty() {
            self.empty_since = None;
            self.last = self.all.values().map(|helper| helper.entry.clone()).collect();
        } else if now >= *self.empty_since.get_or_insert(now) + grace {
            self.last.clear();
        }
        self.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(15);

    struct Script {
        helpers: HelperList,
        start: Instant,
    }

    impl Script {
        fn new() -> Script {
            Script { helpers: HelperList::new(GRACE), start: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// Handles the first answer after a failure, with these names.
        fn first_answer(&mut self, seconds: u64, names: &[&str]) -> usize {
            self.answer(seconds, names, false)
        }

        /// Handles a further answer, with these names.
        fn next_answer(&mut self, seconds: u64, names: &[&str]) {
            assert_eq!(self.answer(seconds, names, true), 0);
        }

        fn answer(&mut self, seconds: u64, names: &[&str], removals_seen: bool) -> usize {
            let all = names.iter().map(|name| (*name).to_owned()).collect();
            let newly_missing = self.helpers.update_names(self.at(seconds), &all, removals_seen);
            names.iter().for_each(|name| self.put(name));
            newly_missing
        }

        fn put(&mut self, name: &str) {
            let entry = Entry { link: ([10, 0, 0, name.len() as u8], 1).into(), name: Some(name.into()) };
            self.helpers.put(entry).unwrap();
        }

        fn list(&mut self, seconds: u64) -> Vec<String> {
            let list = self.helpers.list(self.at(seconds));
            list.into_iter().filter_map(|entry| entry.name).collect()
        }
    }

    #[test]
    fn the_first_answer_is_used_even_if_it_is_empty() {
        let mut script = Script::new();
        assert_eq!(script.first_answer(0, &[]), 0);
        assert!(script.list(0).is_empty());
        script.put("a");
        assert_eq!(script.list(0), ["a"]);
    }

    #[test]
    fn missing_helpers_stay_for_the_grace_time_and_removed_ones_do_not() {
        let mut script = Script::new();
        script.first_answer(0, &["a", "bb", "ccc"]);
        assert_eq!(script.list(0), ["a", "bb", "ccc"]);
        assert_eq!(script.first_answer(1, &["bb"]), 2);
        assert_eq!(script.first_answer(2, &["bb"]), 0, "a and ccc should be counted as missing only once");
        assert_eq!(script.list(2), ["a", "bb", "ccc"]);
        script.next_answer(15, &["a"]);
        assert_eq!(
            script.list(15),
            ["a", "ccc"],
            "ccc, whose removal was not seen, should stay for the grace time"
        );
        assert_eq!(script.list(16), ["a"]);
    }

    #[test]
    fn helpers_stay_in_the_list_while_they_register_again() {
        let mut script = Script::new();
        script.first_answer(0, &["a", "bb"]);
        script.list(0);
        script.first_answer(1, &[]);
        script.put("a");
        assert_eq!(
            script.list(2),
            ["a", "bb"],
            "the list should not shrink to the helper that registered first"
        );
        script.put("bb");
        assert_eq!(script.list(99), ["a", "bb"]);
    }

    #[test]
    fn a_list_becomes_empty_only_after_the_grace_time() {
        let mut script = Script::new();
        script.first_answer(0, &["a", "bb"]);
        script.list(0);
        script.next_answer(1, &["bb"]);
        assert_eq!(script.list(1), ["bb"]);
        script.next_answer(2, &[]);
        assert_eq!(script.list(2), ["bb"]);
        script.next_answer(3, &["ccc"]);
        assert_eq!(script.list(3), ["ccc"]);
        script.next_answer(4, &[]);
        assert_eq!(script.list(4), ["ccc"]);
        assert_eq!(script.list(18), ["ccc"]);
        assert!(script.list(19).is_empty() && script.list(20).is_empty());
    }

    #[test]
    fn the_number_of_helpers_is_bounded() {
        let mut helpers = HelperList::new(GRACE);
        let entry = |n: usize| Entry { link: ([10, 0, 0, 1], 1).into(), name: Some(n.to_string()) };
        (0..HELPERS_MAX).for_each(|n| helpers.put(entry(n)).unwrap());
        assert_eq!(helpers.put(entry(HELPERS_MAX)), Err(Full));
        assert_eq!(helpers.put(entry(0)), Ok(()));
    }
}

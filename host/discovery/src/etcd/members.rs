//! The list of helpers, computed from etcd's answers. No I/O, no clock.
//!
//! Two rules protect clients from failures of etcd. The address of a helper that has ended costs clients little,
//! because they ask other helpers too; a list without working helpers costs them their relief:
//! - A helper that is missing from an answer without a seen removal stays for a grace time: helpers register again, one
//!   after the other, in an etcd that has lost its data.
//! - The list becomes empty only after it has been empty for the grace time, even if all helpers were removed: in a
//!   cluster that was cut off from the helpers all their leases expire at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{Entry, HELPERS_MAX};

#[derive(Debug)]
pub(crate) struct Members {
    grace: Duration,
    all: BTreeMap<String, Member>,
    last: Vec<Entry>,
    empty_since: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    entry: Entry,
    missing_since: Option<Instant>,
}

/// The list already has [`HELPERS_MAX`] helpers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Members {
    pub(crate) fn new(grace: Duration) -> Members {
        Members { grace, all: BTreeMap::new(), last: Vec::new(), empty_since: None }
    }

    /// Updates the set of helpers to the names in an answer. Their entries follow by [`put`](Self::put); a helper whose
    /// entry is invalid keeps its last one. `removals_seen`: the previous answer is from the same history, so a name
    /// that disappeared was removed. Otherwise the helper is missing. Returns how many helpers became missing.
    pub(crate) fn looked_up(&mut self, now: Instant, names: &BTreeSet<String>, removals_seen: bool) -> usize {
        let mut newly = 0;
        self.all.retain(|name, member| {
            if names.contains(name) {
                member.missing_since = None;
            } else if member.missing_since.is_none() {
                member.missing_since = Some(now);
                newly += usize::from(!removals_seen);
                return !removals_seen;
            }
            true
        });
        newly
    }

    pub(crate) fn put(&mut self, entry: Entry) -> Result<(), Full> {
        let name = entry.name.clone().unwrap_or_default();
        if self.all.len() >= HELPERS_MAX && !self.all.contains_key(&name) {
            return Err(Full);
        }
        self.all.insert(name, Member { entry, missing_since: None });
        Ok(())
    }

    pub(crate) fn list(&mut self, now: Instant) -> Vec<Entry> {
        let grace = self.grace;
        self.all.retain(|_, member| member.missing_since.is_none_or(|since| now < since + grace));
        if !self.all.is_empty() {
            self.empty_since = None;
            self.last = self.all.values().map(|member| member.entry.clone()).collect();
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

    struct Trial {
        members: Members,
        start: Instant,
    }

    impl Trial {
        fn new() -> Trial {
            Trial { members: Members::new(GRACE), start: Instant::now() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        /// The first answer after a failure holds these names.
        fn looked_up(&mut self, seconds: u64, names: &[&str]) -> usize {
            self.answered(seconds, names, false)
        }

        /// The next answer holds these names.
        fn followed(&mut self, seconds: u64, names: &[&str]) {
            assert_eq!(self.answered(seconds, names, true), 0);
        }

        fn answered(&mut self, seconds: u64, names: &[&str], removals_seen: bool) -> usize {
            let all = names.iter().map(|name| (*name).to_owned()).collect();
            let newly = self.members.looked_up(self.at(seconds), &all, removals_seen);
            names.iter().for_each(|name| self.put(name));
            newly
        }

        fn put(&mut self, name: &str) {
            let entry = Entry { link: ([10, 0, 0, name.len() as u8], 1).into(), name: Some(name.into()) };
            self.members.put(entry).unwrap();
        }

        fn list(&mut self, seconds: u64) -> Vec<String> {
            let list = self.members.list(self.at(seconds));
            list.into_iter().filter_map(|entry| entry.name).collect()
        }
    }

    #[test]
    fn the_first_answer_is_used_even_if_it_is_empty() {
        let mut trial = Trial::new();
        assert_eq!(trial.looked_up(0, &[]), 0);
        assert!(trial.list(0).is_empty());
        trial.put("a");
        assert_eq!(trial.list(0), ["a"]);
    }

    #[test]
    fn missing_helpers_stay_for_the_grace_time_and_removed_ones_do_not() {
        let mut trial = Trial::new();
        trial.looked_up(0, &["a", "bb", "ccc"]);
        assert_eq!(trial.list(0), ["a", "bb", "ccc"]);
        assert_eq!(trial.looked_up(1, &["bb"]), 2);
        assert_eq!(trial.looked_up(2, &["bb"]), 0, "they were missing before");
        assert_eq!(trial.list(2), ["a", "bb", "ccc"]);
        trial.followed(15, &["a"]);
        assert_eq!(trial.list(15), ["a", "ccc"], "ccc was missing already");
        assert_eq!(trial.list(16), ["a"]);
    }

    #[test]
    fn helpers_stay_in_the_list_while_they_register_again() {
        let mut trial = Trial::new();
        trial.looked_up(0, &["a", "bb"]);
        trial.list(0);
        trial.looked_up(1, &[]);
        trial.put("a");
        assert_eq!(trial.list(2), ["a", "bb"], "the list does not shrink to the first helper that is back");
        trial.put("bb");
        assert_eq!(trial.list(99), ["a", "bb"]);
    }

    #[test]
    fn a_list_becomes_empty_only_after_the_grace_time() {
        let mut trial = Trial::new();
        trial.looked_up(0, &["a", "bb"]);
        trial.list(0);
        trial.followed(1, &["bb"]);
        assert_eq!(trial.list(1), ["bb"]);
        trial.followed(2, &[]);
        assert_eq!(trial.list(2), ["bb"]);
        trial.followed(3, &["ccc"]);
        assert_eq!(trial.list(3), ["ccc"]);
        trial.followed(4, &[]);
        assert_eq!(trial.list(4), ["ccc"]);
        assert_eq!(trial.list(18), ["ccc"]);
        assert!(trial.list(19).is_empty() && trial.list(20).is_empty());
    }

    #[test]
    fn the_number_of_helpers_is_bounded() {
        let mut members = Members::new(GRACE);
        let entry = |n: usize| Entry { link: ([10, 0, 0, 1], 1).into(), name: Some(n.to_string()) };
        (0..HELPERS_MAX).for_each(|n| members.put(entry(n)).unwrap());
        assert_eq!(members.put(entry(HELPERS_MAX)), Err(Full));
        assert_eq!(members.put(entry(0)), Ok(()));
    }
}

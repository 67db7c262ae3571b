//! Which helpers are believed to be there, from what etcd says. No I/O, no clock.
//!
//! Two rules keep a directory's trouble away from clients, because the address of a helper that has gone costs them
//! little (they ask others, too), and a list without the helpers that serve costs them their relief:
//! - a helper that is missing from an answer, although its removal has not been seen, stays for a while: an etcd that
//!   has lost its data gets it back from the helpers, one after the other;
//! - a list does not become empty before it has been empty for a while, even when all are removed: a cluster that
//!   was cut off from the helpers lets all of them expire at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::{Entry, HELPERS_MAX};

/// Helpers by name.
#[derive(Debug)]
pub(crate) struct Members {
    grace: Duration,
    all: BTreeMap<String, Member>,
    /// The last list that was not empty.
    last: Vec<Entry>,
    empty_since: Option<Instant>,
}

#[derive(Debug)]
struct Member {
    entry: Entry,
    missing_since: Option<Instant>,
}

/// There is no room for another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Members {
    pub(crate) fn new(grace: Duration) -> Members {
        Members { grace, all: BTreeMap::new(), last: Vec::new(), empty_since: None }
    }

    /// All names that an answer has; their entries come by [`put`](Self::put), unless they make no sense: then what
    /// was known of them before stays. `removals_seen`: a helper that the last answer had and this one does not was
    /// removed. Otherwise it is missing; how many are now that were not before.
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

    /// Is there, or has changed.
    pub(crate) fn put(&mut self, entry: Entry) -> Result<(), Full> {
        let name = entry.name.clone().unwrap_or_default();
        if self.all.len() >= HELPERS_MAX && !self.all.contains_key(&name) {
            return Err(Full);
        }
        self.all.insert(name, Member { entry, missing_since: None });
        Ok(())
    }

    /// The list now.
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

        /// The first answer after a failure has these.
        fn looked_up(&mut self, seconds: u64, names: &[&str]) -> usize {
            self.answered(seconds, names, false)
        }

        /// The next answer has these.
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
    fn the_first_answer_is_believed_even_if_it_is_empty() {
        let mut trial = Trial::new();
        assert_eq!(trial.looked_up(0, &[]), 0);
        assert!(trial.list(0).is_empty());
        trial.put("a");
        assert_eq!(trial.list(0), ["a"]);
    }

    #[test]
    fn who_is_missing_stays_for_a_while_and_who_is_removed_does_not() {
        let mut trial = Trial::new();
        trial.looked_up(0, &["a", "bb", "ccc"]);
        assert_eq!(trial.list(0), ["a", "bb", "ccc"]);
        assert_eq!(trial.looked_up(1, &["bb"]), 2);
        assert_eq!(trial.looked_up(2, &["bb"]), 0, "it was known");
        assert_eq!(trial.list(2), ["a", "bb", "ccc"]);
        trial.followed(15, &["a"]);
        assert_eq!(trial.list(15), ["a", "ccc"], "missing since before");
        assert_eq!(trial.list(16), ["a"]);
    }

    #[test]
    fn an_etcd_that_has_lost_its_data_gets_it_back_from_the_helpers() {
        let mut trial = Trial::new();
        trial.looked_up(0, &["a", "bb"]);
        trial.list(0);
        trial.looked_up(1, &[]);
        trial.put("a");
        assert_eq!(trial.list(2), ["a", "bb"], "not all clients to the first helper that is back");
        trial.put("bb");
        assert_eq!(trial.list(99), ["a", "bb"]);
    }

    #[test]
    fn a_list_is_not_emptied_at_once_whatever_happens() {
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
    fn there_are_only_so_many() {
        let mut members = Members::new(GRACE);
        let entry = |n: usize| Entry { link: ([10, 0, 0, 1], 1).into(), name: Some(n.to_string()) };
        (0..HELPERS_MAX).for_each(|n| members.put(entry(n)).unwrap());
        assert_eq!(members.put(entry(HELPERS_MAX)), Err(Full));
        assert_eq!(members.put(entry(0)), Ok(()));
    }
}

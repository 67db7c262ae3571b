//! What random sequences have reached.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::message::view::MessageView;
use crate::message::{KINDS, STATUSES, name};
use crate::switch::{Outcome, VERDICTS, Verdict};

/// The statuses that answers to each kind can have, in the order of [`KINDS`].
const REACHABLE: [(&str, &[&str]); 9] = [
    ("prepare", &["stale", "full", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("prepared", &["stale", "no-entry", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("hold", &["ok", "stale", "no-entry", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("own", &["ok", "stale", "no-entry", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("release", &["ok", "stale", "no-entry", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("get", &["ok", "no-entry", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("heartbeat", &["ok", "forbidden", "unknown-version", "no-owner", "replayed"]),
    ("hello", &["ok", "forbidden", "unknown-version", "replayed"]),
    ("list", &["ok", "forbidden", "unknown-version", "no-owner", "replayed"]),
];

/// The statuses of relayed messages.
const RELAYED: [(&str, &[&str]); 2] = [("prepare", &["ok"]), ("prepared", &["ok", "full"])];

/// Verdicts that host mode does not have.
const GATEWAY_ONLY: [&str; 7] =
    ["switched", "routed", "flooded", "link-local", "same-port", "control-port", "announcement"];

/// Verdicts that only host mode has.
const HOST_ONLY: [&str; 4] = ["encapsulated", "decapsulated", "too-long-answered", "too-long"];

/// Verdicts that a mode does not have.
fn foreign(is_host: bool) -> &'static [&'static str] {
    if is_host { &GATEWAY_ONLY } else { &HOST_ONLY }
}

/// Kinds of control messages with the statuses that answers to them can have.
pub fn reachable_answers() -> BTreeSet<(u8, u8)> {
    let pairs =
        REACHABLE.iter().flat_map(|(kind, statuses)| statuses.iter().map(move |status| (kind, status)));
    pairs.map(|(kind, status)| (number(&KINDS, kind), number(&STATUSES, status))).collect()
}

/// How often verdicts, and kinds of control messages with statuses, have occurred.
#[derive(Clone, Debug, Default)]
pub struct RandomCoverage {
    verdicts: BTreeMap<Verdict, u64>,
    answers: BTreeMap<(u8, u8), u64>,
    relays: BTreeMap<(u8, u8), u64>,
}

impl RandomCoverage {
    pub(super) fn count(&mut self, outcome: &Outcome) {
        *self.verdicts.entry(outcome.verdict).or_insert(0) += 1;
        let map = match VERDICTS.get(outcome.verdict.0) {
            Some(&"answered") => &mut self.answers,
            Some(&"relayed") => &mut self.relays,
            _ => return,
        };
        if let Some(message) = MessageView::find_in(&outcome.frame) {
            *map.entry((message.kind(), message.status())).or_insert(0) += 1;
        }
    }

    /// Adds another sequence's numbers.
    pub fn add(&mut self, other: &RandomCoverage) {
        fn merge<K: Ord + Copy>(to: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(*key).or_insert(0) += count;
            }
        }
        merge(&mut self.verdicts, &other.verdicts);
        merge(&mut self.answers, &other.answers);
        merge(&mut self.relays, &other.relays);
    }

    /// Reachable verdicts and statuses that have not occurred.
    pub fn missing(&self, is_host: bool) -> Vec<String> {
        let mut missing: Vec<String> = VERDICTS
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.verdicts.contains_key(&Verdict(*index)))
            .filter(|(_, verdict)| !foreign(is_host).contains(verdict))
            .map(|(_, verdict)| (*verdict).to_owned())
            .collect();
        let lists = [("answer", &self.answers, &REACHABLE[..]), ("relay", &self.relays, &RELAYED[..])];
        for (what, found, reachable) in lists {
            for (kind, statuses) in reachable {
                for status in *statuses {
                    let pair = (number(&KINDS, kind), number(&STATUSES, status));
                    if !found.contains_key(&pair) {
                        missing.push(format!("{what} {status} to {kind}"));
                    }
                }
            }
        }
        missing
    }

    /// Verdicts that the mode does not have, and kinds with statuses that the list of reachable ones does not have.
    pub fn unexpected(&self, is_host: bool) -> Vec<String> {
        let is_foreign = |verdict: &&Verdict| foreign(is_host).contains(&VERDICTS[verdict.0]);
        let mut unexpected: Vec<String> =
            self.verdicts.keys().filter(is_foreign).map(|verdict| format!("{verdict:?}")).collect();
        let lists = [("answer", &self.answers, &REACHABLE[..]), ("relay", &self.relays, &RELAYED[..])];
        for (what, found, reachable) in lists {
            for (kind, status) in found.keys() {
                let (kind, status) = (name(&KINDS, *kind), name(&STATUSES, *status));
                let is_kind = KINDS.iter().any(|(other, _)| *other == kind);
                let is_listed =
                    reachable.iter().any(|(other, statuses)| *other == kind && statuses.contains(&&*status));
                if is_kind && !is_listed {
                    unexpected.push(format!("{what} {status} to {kind}"));
                }
            }
        }
        unexpected
    }

    /// All numbers as text.
    pub fn show(&self) -> String {
        let mut text = String::new();
        for (verdict, count) in &self.verdicts {
            let _ = writeln!(text, "{verdict:?}: {count}");
        }
        for (what, found) in [("answer", &self.answers), ("relay", &self.relays)] {
            for ((kind, status), count) in found {
                let (kind, status) = (name(&KINDS, *kind), name(&STATUSES, *status));
                let _ = writeln!(text, "{what} {status} to {kind}: {count}");
            }
        }
        text
    }
}

fn number(names: &[(&str, u8)], name: &str) -> u8 {
    names.iter().find(|(other, _)| *other == name).map_or(u8::MAX, |(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_lists_exist() {
        for (kind, statuses) in REACHABLE.iter().chain(&RELAYED) {
            assert_ne!(number(&KINDS, kind), u8::MAX, "{kind}");
            for status in *statuses {
                assert_ne!(number(&STATUSES, status), u8::MAX, "{status}");
            }
        }
        let nothing = RandomCoverage::default();
        let relayed: usize = RELAYED.iter().map(|(_, statuses)| statuses.len()).sum();
        let answers = reachable_answers().len() + relayed;
        for is_host in [false, true] {
            assert!(foreign(is_host).iter().all(|verdict| VERDICTS.contains(verdict)));
            let verdicts = VERDICTS.len() - foreign(is_host).len();
            assert_eq!(nothing.missing(is_host).len(), verdicts + answers);
        }
    }
}

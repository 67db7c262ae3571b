//! Which relayed messages have arrived: the path from the switch may repeat datagrams, and so may an attacker.
//!
//! A sender numbers all its messages by its clock, and only a few of them come here. So a window of neighbouring numbers, as the
//! switch has, would not remember enough.

use alloc::collections::{BTreeMap, BTreeSet};

use spillway_wire::switch::ServerId;

/// Maximum number of sequences that are remembered for each sender; lower ones then count as seen.
const REMEMBERED_MAX: usize = 1024;

/// The sequences of relayed messages, by sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relays(BTreeMap<ServerId, Received>);

#[derive(Clone, Debug, Default)]
struct Received {
    sequences: BTreeSet<u64>,
    /// All sequences up to this one count as seen.
    forgotten_through: u64,
}

impl Relays {
    /// Notes a message. Returns whether it has not arrived before.
    pub(crate) fn note(&mut self, sender: ServerId, sequence: u64) -> bool {
        let Received { sequences, forgotten_through } = self.0.entry(sender).or_default();
        if sequence <= *forgotten_through || !sequences.insert(sequence) {
            return false;
        }
        if sequences.len() > REMEMBERED_MAX {
            *forgotten_through = sequences.pop_first().unwrap_or_default();
        }
        true
    }

    /// The switch has begun a new epoch: relayed messages of earlier ones are ignored, whatever their sequences are.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_once_and_messages_may_overtake_each_other() {
        let (mut relays, a, b) = (Relays::default(), ServerId(1), ServerId(2));
        assert!(relays.note(a, 9) && relays.note(a, 7) && relays.note(b, 9));
        assert!(!relays.note(a, 9) && !relays.note(a, 7) && !relays.note(b, 9));
        assert!(relays.note(a, 8));
        relays.clear();
        assert!(relays.note(a, 9));
    }

    #[test]
    fn sequences_are_bounded_and_old_ones_count_as_seen() {
        let (mut relays, sender) = (Relays::default(), ServerId(1));
        let last = 2 * REMEMBERED_MAX as u64;
        assert!((1..=last).all(|sequence| relays.note(sender, 10 * sequence)));
        assert!((1..=last).all(|sequence| !relays.note(sender, 10 * sequence)));
        assert!(!relays.note(sender, 15) && relays.note(sender, 10 * last - 5));
        assert_eq!(relays.0[&sender].sequences.len(), REMEMBERED_MAX);
    }
}

//! What experiments in rounds have in common: who is next, what came of it, and what is told of it.

use std::fmt::Arguments;
use std::io::Write;

use crate::results::left_out;

/// Each of so many systems once in each round, as (round, system): whoever is first after a pause may be favoured, so it is
/// another one each time.
pub(crate) fn turns(rounds: usize, systems: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..systems).map(move |turn| (round, (turn + round) % systems)))
}

/// Tells about a measurement. Nobody reading is no reason to stop.
pub(crate) fn say(out: &mut dyn Write, words: Arguments<'_>) {
    let _ = writeln!(out, "{words}").and_then(|()| out.flush());
}

/// What is told behind a measurement that shows nothing.
pub(crate) fn spoilt_words(spoilt: Option<&str>) -> String {
    spoilt.map_or(String::new(), |why| format!(" (spoilt: {why})"))
}

/// What one system came to, a round each; `None` where nothing could be had.
#[derive(Clone, Debug)]
pub(crate) struct Rounds<T> {
    seen: Vec<Option<T>>,
    spoilt: Vec<String>,
}

impl<T> Rounds<T> {
    /// One round more, and why it shows nothing, if so.
    pub fn take(&mut self, (seen, spoilt): (T, Option<String>)) {
        self.seen.push(spoilt.is_none().then_some(seen));
        self.spoilt.extend(spoilt);
    }

    /// What a round saw; `None` as well where there was no such round.
    pub fn get(&self, round: usize) -> Option<&T> {
        self.seen.get(round)?.as_ref()
    }

    /// What the good rounds saw.
    pub fn good(&self) -> impl Iterator<Item = &T> {
        self.seen.iter().flatten()
    }

    /// A figure round by round, for comparisons.
    pub fn each(&self, value: impl Fn(&T) -> f64) -> Vec<Option<f64>> {
        self.seen.iter().map(|seen| seen.as_ref().map(&value)).collect()
    }

    /// What rows say of the others.
    pub fn left_out(&self) -> String {
        left_out(&self.spoilt, self.seen.len())
    }
}

impl<T> Default for Rounds<T> {
    fn default() -> Rounds<T> {
        Rounds { seen: Vec::new(), spoilt: Vec::new() }
    }
}

impl<T> FromIterator<Option<T>> for Rounds<T> {
    fn from_iter<I: IntoIterator<Item = Option<T>>>(seen: I) -> Rounds<T> {
        Rounds { seen: seen.into_iter().collect(), spoilt: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_turn_in_each_round_and_another_is_first() {
        assert_eq!(turns(2, 3).collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
        assert_eq!(turns(2, 0).count(), 0);
    }

    #[test]
    fn spoilt_rounds_keep_their_place_and_have_no_figure() {
        let mut rounds = Rounds::default();
        rounds.take((3.0, None));
        rounds.take((9.0, Some("a stall".into())));
        rounds.take((5.0, None));
        assert_eq!(rounds.each(|seen| *seen), [Some(3.0), None, Some(5.0)]);
        assert_eq!(rounds.good().copied().collect::<Vec<_>>(), [3.0, 5.0]);
        assert_eq!((rounds.get(1), rounds.get(2), rounds.get(3)), (None, Some(&5.0), None));
        assert!(rounds.left_out().starts_with("1 of 3"), "{}", rounds.left_out());
    }
}

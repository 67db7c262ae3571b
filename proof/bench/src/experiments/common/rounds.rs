//! Rounds of an experiment: their order, their results, and their output.

use std::fmt::Arguments;
use std::io::Write;

use crate::results::left_out;

/// All measurements in order, as (round, system). The first system rotates, because the first one after a pause may
/// have an advantage.
pub(crate) fn measurement_order(rounds: usize, systems: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..systems).map(move |turn| (round, (turn + round) % systems)))
}

/// Prints a line. Ignores errors, so that the experiment continues if its output is closed.
pub(crate) fn print_line(out: &mut dyn Write, line: Arguments<'_>) {
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The reason why a measurement is spoilt, in parentheses; empty for a valid one.
pub(crate) fn spoilt_suffix(spoilt: Option<&str>) -> String {
    spoilt.map_or(String::new(), |why| format!(" (spoilt: {why})"))
}

/// Results of one system by round; `None` for a spoilt round.
#[derive(Clone, Debug)]
pub(crate) struct Rounds<T> {
    results: Vec<Option<T>>,
    spoilt: Vec<String>,
}

impl<T> Rounds<T> {
    /// Adds a round, and the reason if it is spoilt.
    pub fn push(&mut self, (result, spoilt): (T, Option<String>)) {
        self.results.push(spoilt.is_none().then_some(result));
        self.spoilt.extend(spoilt);
    }

    /// Whether no round was measured, not even a spoilt one.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// Result of a round; `None` if it is spoilt or missing.
    pub fn get(&self, round: usize) -> Option<&T> {
        self.results.get(round)?.as_ref()
    }

    pub fn valid(&self) -> impl Iterator<Item = &T> {
        self.results.iter().flatten()
    }

    /// A figure of each round, to pair with another system's; `None` if the round was spoilt.
    pub fn each(&self, value: impl Fn(&T) -> f64) -> Vec<Option<f64>> {
        self.results.iter().map(|result| result.as_ref().map(&value)).collect()
    }

    pub fn left_out(&self) -> String {
        left_out(&self.spoilt, self.results.len())
    }
}

impl<T> Default for Rounds<T> {
    fn default() -> Rounds<T> {
        Rounds { results: Vec::new(), spoilt: Vec::new() }
    }
}

impl<T> FromIterator<Option<T>> for Rounds<T> {
    fn from_iter<I: IntoIterator<Item = Option<T>>>(results: I) -> Rounds<T> {
        Rounds { results: results.into_iter().collect(), spoilt: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_every_system_once_and_starts_with_the_next_one() {
        assert_eq!(
            measurement_order(2, 3).collect::<Vec<_>>(),
            [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]
        );
        assert_eq!(measurement_order(2, 0).count(), 0);
    }

    #[test]
    fn spoilt_rounds_keep_their_index_and_have_no_figure() {
        let mut rounds = Rounds::default();
        rounds.push((3.0, None));
        rounds.push((9.0, Some("a stall".into())));
        rounds.push((5.0, None));
        assert_eq!(rounds.each(|result| *result), [Some(3.0), None, Some(5.0)]);
        assert_eq!(rounds.valid().copied().collect::<Vec<_>>(), [3.0, 5.0]);
        assert_eq!((rounds.get(1), rounds.get(2), rounds.get(3)), (None, Some(&5.0), None));
        assert!(rounds.left_out().starts_with("1 of 3"), "{}", rounds.left_out());
    }
}

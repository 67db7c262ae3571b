//! The recorded steps of both ends of a move, joined.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use spillway_moves::Step;
use spillway_stack_server::{MoveStepTimes, step_name};

/// A move with its steps at both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct BothEnds<'a> {
    /// The server that the connection has left, by its place in the list of [`join`].
    pub source: usize,
    /// The server to which the connection has moved.
    pub target: usize,
    steps: [&'a BTreeMap<String, u64>; 2],
    pub client: SocketAddr,
}

impl BothEnds<'_> {
    /// The times of steps, in ns on the clock of both ends; `None` if one of them was not recorded.
    pub(super) fn times<const N: usize>(&self, steps: [Step; N]) -> Option<[u64; N]> {
        let [source, target] = self.steps;
        let mut times = [0; N];
        for (slot, step) in times.iter_mut().zip(steps) {
            let name = step_name(step);
            *slot = *source.get(name).or_else(|| target.get(name))?;
        }
        Some(times)
    }
}

/// Joins what each server has recorded, in the order of the sources' records. Moves of which one end is missing are left out.
pub(super) fn join(servers: &[Vec<MoveStepTimes>]) -> Vec<BothEnds<'_>> {
    let of = |is_source: bool| {
        let ends = servers
            .iter()
            .enumerate()
            .flat_map(|(server, ends)| ends.iter().map(move |end| (server, end)))
            .filter(move |(_, end)| end.is_source == is_source);
        ends.map(|(server, end)| ((end.client, end.generation), (server, &end.ns)))
    };
    let targets: BTreeMap<_, _> = of(false).collect();
    let mut seen = BTreeSet::new();
    of(true)
        .filter_map(|(key, (source, steps))| {
            let (target, others) = *targets.get(&key)?;
            seen.insert(key).then_some(BothEnds { source, target, steps: [steps, others], client: key.0 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(generation: u64, is_source: bool, step: Step, ns: u64) -> MoveStepTimes {
        let ns = [(step_name(step).to_owned(), ns)].into();
        MoveStepTimes { client: "10.0.0.1:5".parse().unwrap(), generation, is_source, ns }
    }

    #[test]
    fn ends_with_the_same_generation_are_joined_with_their_servers() {
        let first = vec![end(3, true, Step::Begin, 10), end(5, true, Step::Begin, 50)];
        let second = vec![end(4, true, Step::Begin, 30), end(3, false, Step::Import, 20)];
        let third = vec![end(4, false, Step::Import, 40), end(6, false, Step::Import, 60)];
        let servers = [first, second, third];
        let joined: Vec<_> = join(&servers)
            .iter()
            .map(|ends| (ends.source, ends.target, ends.times([Step::Begin, Step::Import]).unwrap()))
            .collect();
        assert_eq!(
            joined,
            [(0, 1, [10, 20]), (1, 2, [30, 40])],
            "each move once, in the order of the sources"
        );
        assert!(join(&servers)[0].times([Step::Export]).is_none(), "a step that was not recorded");
    }
}

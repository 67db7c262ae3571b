//! The lines of the paper's Table 1, and the steps of a hand-off between which they lie.

use spillway_moves::Step;
use spillway_stack_server::MoveStepTimes;

use crate::experiments::moves::ends;

/// All steps that the table uses, in the order of a hand-off without faults.
const STEPS: [Step; 11] = [
    Step::Begin,
    Step::SendPrepare,
    Step::ReceivePrepare,
    Step::SendPrepared,
    Step::ReceivePrepared,
    Step::Export,
    Step::SendState,
    Step::ReceiveState,
    Step::Checked,
    Step::Owned,
    Step::Import,
];

/// A part of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    /// The line of Table 1, or what the paper does not have.
    pub line: &'static str,
    pub from: Step,
    pub to: Step,
    /// The paper's value and what the line contains here.
    pub note: &'static str,
}

const fn interval(line: &'static str, from: Step, to: Step, note: &'static str) -> Interval {
    Interval { line, from, to, note }
}

/// The lines, which follow each other without a gap: their sum is the whole hand-off.
pub(super) const LINES: [Interval; 7] = [
    interval(
        "Block all traffic",
        Step::Begin,
        Step::ReceivePrepared,
        "paper 22 µs; here the target holds the client's packets, and the switch sends them there",
    ),
    interval(
        "none: frames leave",
        Step::ReceivePrepared,
        Step::Export,
        "what was sent before leaves first; not in the paper",
    ),
    interval(
        "Serialize TCP",
        Step::Export,
        Step::SendState,
        "paper 7 µs, and 2 µs for HTTP; the request is in it",
    ),
    interval("Hand-off", Step::SendState, Step::ReceiveState, "paper 21 µs"),
    interval(
        "Deserialize TCP",
        Step::ReceiveState,
        Step::Checked,
        "paper 11 µs; on the user-level stack the state is only checked here",
    ),
    interval("Modify rewrite rule", Step::Checked, Step::Owned, "paper 22 µs"),
    interval(
        "none: go live",
        Step::Owned,
        Step::Import,
        "the socket leaves repair mode, or the stack takes the state; in the paper's line Deserialize TCP",
    ),
];

/// The parts of the line *Block all traffic*.
pub(super) const PARTS_OF_BLOCK: [Interval; 4] = [
    interval("Block all traffic, in part", Step::Begin, Step::SendPrepare, "the source prepares its message"),
    interval(
        "Block all traffic, in part",
        Step::SendPrepare,
        Step::ReceivePrepare,
        "over the switch to the target",
    ),
    interval(
        "Block all traffic, in part",
        Step::ReceivePrepare,
        Step::SendPrepared,
        "the target holds the flow",
    ),
    interval(
        "Block all traffic, in part",
        Step::SendPrepared,
        Step::ReceivePrepared,
        "over the switch to the source",
    ),
];

/// A hand-off with all its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandOff {
    /// The server that the connection has left, and the one to which it has moved.
    pub servers: (usize, usize),
    /// In ns, in the order of [`STEPS`].
    times: [u64; STEPS.len()],
}

impl HandOff {
    /// From the decision to hand off to the live connection, in µs.
    pub(super) fn total_us(&self) -> f64 {
        self.between_us(Step::Begin, Step::Import)
    }

    /// From the hold at the target to the live connection, in µs: the client's packets wait.
    pub(super) fn blackout_us(&self) -> f64 {
        self.between_us(Step::SendPrepared, Step::Import)
    }

    pub(super) fn interval_us(&self, interval: &Interval) -> f64 {
        self.between_us(interval.from, interval.to)
    }

    fn between_us(&self, from: Step, to: Step) -> f64 {
        self.at(to).saturating_sub(self.at(from)) as f64 / 1000.0
    }

    fn at(&self, step: Step) -> u64 {
        STEPS.iter().position(|known| *known == step).map_or(0, |index| self.times[index])
    }
}

/// The hand-offs whose steps at both ends are known, in the order of their beginnings. `servers`: what each server has recorded.
pub(super) fn hand_offs(servers: &[Vec<MoveStepTimes>]) -> Vec<HandOff> {
    let mut all: Vec<HandOff> = ends::join(servers)
        .iter()
        .filter_map(|ends| Some(HandOff { servers: (ends.source, ends.target), times: ends.times(STEPS)? }))
        .collect();
    all.sort_unstable_by_key(|hand_off| hand_off.times[0]);
    all
}

/// The sums of both hand-offs of each cycle, in µs: from the server 0 to the server 1, and back with the next one.
pub(super) fn cycles_us(hand_offs: &[HandOff]) -> Vec<f64> {
    let is_cycle = |pair: &&[HandOff]| pair[0].servers == (0, 1) && pair[1].servers == (1, 0);
    let sum = |pair: &[HandOff]| pair[0].total_us() + pair[1].total_us();
    hand_offs.windows(2).filter(is_cycle).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use spillway_stack_server::step_name;

    use super::*;

    /// A hand-off with a step in each of these distances, in ns.
    fn ends(generation: u64, start: u64, distance: u64) -> [MoveStepTimes; 2] {
        let of_target = [
            Step::ReceivePrepare,
            Step::SendPrepared,
            Step::ReceiveState,
            Step::Checked,
            Step::Owned,
            Step::Import,
        ];
        [true, false].map(|is_source| {
            let steps = (0_u64..).zip(STEPS).filter(|(_, step)| of_target.contains(step) != is_source);
            let ns =
                steps.map(|(index, step)| (step_name(step).to_owned(), start + index * distance)).collect();
            MoveStepTimes { client: "10.0.0.1:5".parse().unwrap(), generation, is_source, ns }
        })
    }

    #[test]
    fn lines_add_up_to_the_whole_hand_off() {
        let [source, target] = ends(1, 5_000, 1_000);
        let all = hand_offs(&[vec![source], vec![target]]);
        assert_eq!(
            (all.len(), all[0].servers, all[0].total_us(), all[0].blackout_us()),
            (1, (0, 1), 10.0, 7.0)
        );
        let sum = |intervals: &[Interval]| {
            intervals.iter().map(|interval| all[0].interval_us(interval)).sum::<f64>()
        };
        assert_eq!((sum(&LINES), sum(&PARTS_OF_BLOCK)), (10.0, 4.0));
        let ordered = |intervals: &[Interval]| intervals.windows(2).all(|pair| pair[0].to == pair[1].from);
        assert!(ordered(&LINES) && ordered(&PARTS_OF_BLOCK), "without a gap");
    }

    #[test]
    fn cycles_are_two_hand_offs_that_follow_each_other() {
        let [a1, b1] = ends(1, 0, 1_000);
        let [b2, a2] = ends(2, 50_000, 2_000);
        // Back without the first half: the record of one is missing.
        let [b4, a4] = ends(4, 90_000, 1_000);
        let servers = [vec![a2, a4, a1], vec![b1, b2, b4]];
        let all = hand_offs(&servers);
        assert_eq!(all.iter().map(|hand_off| hand_off.servers).collect::<Vec<_>>(), [(0, 1), (1, 0), (1, 0)]);
        assert_eq!(cycles_us(&all), [30.0]);
    }
}

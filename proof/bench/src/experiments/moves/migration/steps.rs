//! The steps of moves from both of their ends, joined.

use std::net::SocketAddr;

use spillway_moves::Step;
use spillway_stack_server::MoveStepTimes;

use crate::experiments::moves::ends;

/// Capybara's events, in their order, and the export, from which on the connection has no server.
pub(super) const PHASES: [Step; 9] = [
    Step::Begin,
    Step::SendPrepare,
    Step::ReceivePrepare,
    Step::SendPrepared,
    Step::ReceivePrepared,
    Step::Export,
    Step::SendState,
    Step::ReceiveState,
    Step::Import,
];

/// A complete move: times in ns on one clock, in the order of [`PHASES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub client: SocketAddr,
    times: [u64; PHASES.len()],
}

impl Joined {
    /// From the order to the import, in µs.
    pub(super) fn end_to_end_us(&self) -> f64 {
        self.between_us(0, PHASES.len() - 1)
    }

    /// From the export to the import: neither server has the connection. In µs.
    pub(super) fn blackout_us(&self) -> f64 {
        self.between_us(index_of(Step::Export), index_of(Step::Import))
    }

    /// The time between a step of [`PHASES`] and the next one, in µs.
    pub(super) fn phase_us(&self, phase: usize) -> f64 {
        self.between_us(phase, phase + 1)
    }

    /// Beginning and end of the move, in ns.
    pub(super) fn span_ns(&self) -> (u64, u64) {
        (self.times[0], self.times[PHASES.len() - 1])
    }

    fn between_us(&self, from: usize, to: usize) -> f64 {
        self.times[to].saturating_sub(self.times[from]) as f64 / 1000.0
    }
}

fn index_of(step: Step) -> usize {
    PHASES.iter().position(|phase| *phase == step).unwrap_or(0)
}

/// Joins both ends of each move. Moves of which one end is missing, or that have not gone through all steps, are left out.
/// `servers`: what each server has recorded.
pub(super) fn join(servers: &[Vec<MoveStepTimes>]) -> Vec<Joined> {
    let complete =
        |ends: &ends::BothEnds<'_>| Some(Joined { client: ends.client, times: ends.times(PHASES)? });
    ends::join(servers).iter().filter_map(complete).collect()
}

#[cfg(test)]
mod tests {
    use spillway_stack_server::step_name;

    use super::*;

    fn end(generation: u64, is_source: bool, steps: &[(Step, u64)]) -> MoveStepTimes {
        let ns = steps.iter().map(|(step, ns)| (step_name(*step).to_owned(), *ns)).collect();
        MoveStepTimes { client: "10.0.0.1:5".parse().unwrap(), generation, is_source, ns }
    }

    #[test]
    fn both_ends_of_a_complete_move_are_joined() {
        let source = [
            (Step::Begin, 1_000),
            (Step::SendPrepare, 2_000),
            (Step::ReceivePrepared, 5_000),
            (Step::Export, 6_000),
            (Step::SendState, 7_000),
        ];
        let target = [
            (Step::ReceivePrepare, 3_000),
            (Step::SendPrepared, 4_000),
            (Step::ReceiveState, 8_000),
            (Step::Import, 19_000),
        ];
        let ends = [
            end(3, true, &source),
            end(3, false, &target),
            end(4, true, &source),
            end(5, true, &source[..3]),
            end(5, false, &target),
            end(6, false, &target),
        ];
        let joined = join(&[ends.into()]);
        assert_eq!(joined.len(), 1, "{joined:?}");
        assert_eq!((joined[0].end_to_end_us(), joined[0].blackout_us()), (18.0, 13.0));
        assert_eq!(
            (joined[0].phase_us(0), joined[0].phase_us(7), joined[0].span_ns()),
            (1.0, 11.0, (1_000, 19_000))
        );
    }
}

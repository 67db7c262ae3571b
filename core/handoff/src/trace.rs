//! Times of the steps of moves, for measurements. Off unless [`Agent::trace_moves`](crate::Agent::trace_moves) was called.
//!
//! The driver passes the time of a turn, in which several steps happen. A trace therefore reads a clock of its own at each
//! step. If both ends of a move read the same clock, their times can be compared.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_wire::switch::Flow;

use crate::recent::Recent;

/// Maximum number of moves under way, in each direction, whose steps are recorded. The oldest is forgotten.
const UNDER_WAY_MAX: usize = 2048;
/// Number of [`Step`]s.
const STEPS: usize = Step::ALL.len();

/// An end of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The server that the connection leaves.
    Source,
    /// The server that gets the connection.
    Target,
}

/// A step of a move, in the order of a move without faults. The names in capitals are those of Capybara's events (§4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Source, INIT_MIG: the move begins.
    Begin,
    /// Source, SEND_PREPARE_MIG: the first *prepare* is ready to be sent.
    SendPrepare,
    /// Target, RECV_PREPARE_MIG: *prepare* has arrived.
    ReceivePrepare,
    /// Target, SEND_PREPARE_MIG_ACK: the first *prepared* is ready to be sent.
    SendPrepared,
    /// Source, RECV_PREPARE_MIG_ACK: *prepared* has arrived.
    ReceivePrepared,
    /// Source: all frames have been sent, and the export of the connection begins.
    Export,
    /// Source, SEND_STATE: the connection was exported, and its state is ready to be sent.
    SendState,
    /// Target, RECV_STATE: the last part of the state has arrived.
    ReceiveState,
    /// Target: the driver has checked the state, and has restored the connection as far as it can before the target owns the
    /// flow.
    Checked,
    /// Target: the switch has confirmed *own*.
    Owned,
    /// Target, CONN_ACCEPTED: the connection was imported.
    Import,
    /// Source: *accepted* has arrived.
    ReceiveAccepted,
}

impl Step {
    /// All steps, in their order.
    pub const ALL: [Step; 12] = [
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
        Step::ReceiveAccepted,
    ];

    fn index(self) -> usize {
        self as usize
    }
}

/// The steps of one move at one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMove {
    /// The flow of the connection.
    pub flow: Flow,
    /// The generation of the move: the same at both ends. 0 if the source has not received *prepared*.
    pub generation: u64,
    /// This end.
    pub end: End,
    /// Times in the unit of the trace's clock.
    times: [Option<u64>; STEPS],
}

impl TracedMove {
    fn new(flow: Flow, generation: u64, end: End) -> TracedMove {
        TracedMove { flow, generation, end, times: [None; STEPS] }
    }

    /// When a step was taken here for the first time; `None` if it was not.
    pub fn at(&self, step: Step) -> Option<u64> {
        self.times[step.index()]
    }
}

/// The steps of moves under way, and of those that have ended.
#[derive(Debug)]
pub(crate) struct Trace {
    clock: fn() -> u64,
    sources: Recent<TracedMove>,
    targets: Recent<TracedMove>,
    ended: VecDeque<TracedMove>,
    ended_max: usize,
}

impl Trace {
    /// Keeps the last `ended_max` moves that have ended.
    pub(crate) fn new(clock: fn() -> u64, ended_max: usize) -> Trace {
        Trace {
            clock,
            sources: Recent::new(UNDER_WAY_MAX),
            targets: Recent::new(UNDER_WAY_MAX),
            ended: VecDeque::new(),
            ended_max,
        }
    }

    fn under_way(&mut self, end: End) -> &mut Recent<TracedMove> {
        match end {
            End::Source => &mut self.sources,
            End::Target => &mut self.targets,
        }
    }

    /// A move begins, with its first step.
    pub(crate) fn begin(&mut self, flow: Flow, generation: u64, end: End, step: Step) {
        self.under_way(end).insert(flow, TracedMove::new(flow, generation, end));
        self.record(&flow, end, step);
    }

    /// Records the time of a step, if it is taken for the first time.
    pub(crate) fn record(&mut self, flow: &Flow, end: End, step: Step) {
        let now = (self.clock)();
        if let Some(traced) = self.under_way(end).get_mut(flow) {
            traced.times[step.index()].get_or_insert(now);
        }
    }

    /// The generation of a move from this server is known.
    pub(crate) fn set_generation(&mut self, flow: &Flow, generation: u64) {
        if let Some(traced) = self.sources.get_mut(flow) {
            traced.generation = generation;
        }
    }

    /// A move has ended at this end. The last moves that have ended are kept.
    pub(crate) fn end(&mut self, flow: &Flow, end: End) {
        let under_way = self.under_way(end);
        let Some(traced) = under_way.get(flow).copied() else { return };
        under_way.remove(flow);
        if self.ended.len() >= self.ended_max {
            self.ended.pop_front();
        }
        self.ended.push_back(traced);
    }

    /// Removes and returns the moves that have ended, oldest first.
    pub(crate) fn take_ended(&mut self) -> Vec<TracedMove> {
        self.ended.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::test_flow::flow;

    #[test]
    fn steps_have_the_time_at_which_they_were_taken_first() {
        fn tick() -> u64 {
            static NOW: AtomicU64 = AtomicU64::new(0);
            NOW.fetch_add(10, Ordering::Relaxed)
        }
        let mut trace = Trace::new(tick, 4);
        trace.begin(flow(1), 0, End::Source, Step::Begin);
        trace.record(&flow(1), End::Source, Step::SendPrepare);
        trace.record(&flow(1), End::Source, Step::SendPrepare);
        trace.set_generation(&flow(1), 7);
        trace.record(&flow(1), End::Target, Step::Import);
        trace.end(&flow(1), End::Source);
        trace.end(&flow(1), End::Source);
        let ended = trace.take_ended();
        assert_eq!((ended.len(), ended[0].generation, ended[0].end), (1, 7, End::Source));
        let begin = ended[0].at(Step::Begin).unwrap();
        assert_eq!(ended[0].at(Step::SendPrepare), Some(begin + 10));
        assert_eq!(ended[0].at(Step::Import), None, "the other end's step");
        assert_eq!(trace.take_ended(), []);
    }

    #[test]
    fn moves_that_have_ended_are_bounded() {
        let mut trace = Trace::new(|| 0, 2);
        for number in 1..=3 {
            trace.begin(flow(number), 1, End::Target, Step::ReceivePrepare);
            trace.end(&flow(number), End::Target);
        }
        let flows: Vec<Flow> = trace.take_ended().iter().map(|traced| traced.flow).collect();
        assert_eq!(flows, [flow(2), flow(3)]);
    }
}

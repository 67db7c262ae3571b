//! Times of the steps of moves, if they are measured.

use alloc::vec::Vec;

use spillway_wire::switch::Flow;

use super::Agent;
use crate::trace::{End, Step, Trace, TracedMove};

impl Agent {
    /// From now on records the times of the steps of moves, and keeps those of the last `moves_max` moves that have ended.
    /// `clock` is read at each step.
    pub fn trace_moves(&mut self, clock: fn() -> u64, moves_max: usize) {
        self.trace = Some(Trace::new(clock, moves_max));
    }

    /// Removes and returns the traced moves that have ended, oldest first.
    pub fn take_traced(&mut self) -> Vec<TracedMove> {
        self.trace.as_mut().map(Trace::take_ended).unwrap_or_default()
    }

    /// The driver of the stack takes a step: [`Step::Export`] before it exports the connection of a move, [`Step::Import`]
    /// when it has imported one. Without a trace nothing happens.
    pub fn record_step(&mut self, flow: &Flow, step: Step) {
        match step {
            Step::Import => {
                self.trace_step(flow, End::Target, step);
                self.trace_end(flow, End::Target);
            }
            _ => self.trace_step(flow, End::Source, step),
        }
    }

    pub(super) fn trace_step(&mut self, flow: &Flow, end: End, step: Step) {
        if let Some(trace) = &mut self.trace {
            trace.record(flow, end, step);
        }
    }

    pub(super) fn trace_end(&mut self, flow: &Flow, end: End) {
        if let Some(trace) = &mut self.trace {
            trace.end(flow, end);
        }
    }
}

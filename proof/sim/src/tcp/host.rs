//! A host: one or more stacks, a program on them, a clock, and a bounded receive queue.

use std::collections::VecDeque;

use spillway_transport::{Application, Time, Transport};

use super::planted_fault::FaultyProgram;
use super::rack::Rack;
use crate::clock::Clock;

pub(crate) struct Host {
    pub(crate) rack: Rack,
    pub(crate) program: FaultyProgram,
    pub(crate) clock: Clock,
    receive_queue: VecDeque<(Vec<u8>, bool)>,
    receive_queue_max: usize,
    pub(crate) turn_due: bool,
    /// Time of the queued wake-up, in the world's time.
    pub(crate) armed: Option<Time>,
    pub(crate) paused_until: Time,
    damaged: u64,
    /// Frames dropped because the receive queue was full.
    pub(crate) overflowed: u64,
}

impl Host {
    pub(crate) fn new(
        mut rack: Rack,
        program: FaultyProgram,
        clock: Clock,
        receive_queue_max: usize,
    ) -> Host {
        rack.set_listening(0, true);
        rack.set_listening(1, true);
        Host {
            rack,
            program,
            clock,
            receive_queue: VecDeque::new(),
            receive_queue_max,
            turn_due: false,
            armed: None,
            paused_until: Time::ZERO,
            damaged: 0,
            overflowed: 0,
        }
    }

    /// Queues an arriving frame, or drops it if the receive queue is full.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>, is_damaged: bool) {
        if self.receive_queue.len() < self.receive_queue_max {
            self.receive_queue.push_back((frame, is_damaged));
        } else {
            self.overflowed += 1;
        }
    }

    /// Runs a turn: handles all received frames, then passes each output frame to `send`.
    pub(crate) fn turn(&mut self, now: Time, slot: &mut Vec<u8>, mut send: impl FnMut(&[u8])) {
        let now = self.clock.read(now);
        self.rack.begin_turn(&mut self.program, now);
        for (mut frame, is_damaged) in self.receive_queue.drain(..) {
            if is_damaged && !self.program.counts_as_undamaged() {
                self.damaged += 1;
            }
            self.rack.deliver(&mut self.program, now, &mut frame);
        }
        self.rack.end_turn(&mut self.program, now);
        self.rack.transmit(&mut self.program, now, slot, |program, frame| {
            program.alter_frame(frame);
            send(frame);
        });
    }

    /// Time of the next turn that a timer needs, on the world's clock.
    pub(crate) fn next_turn_at(&self) -> Option<Time> {
        let at = [self.rack.poll_timeout(), self.program.poll_timeout()].into_iter().flatten().min();
        at.map(|at| self.clock.when(at))
    }

    /// Describes a violation if the stacks have more connections than the program and the half-open bound.
    pub(crate) fn exceeded_bound(&self) -> Option<String> {
        let (all, known) = (self.rack.connections(), self.program.inner.open());
        let bound = self.rack.half_open_max();
        (all > known + bound).then(|| {
            format!(
                "a host has {all} connections, but its program {known}, and only {bound} may be half-open"
            )
        })
    }

    /// Checks that each damaged frame counted as malformed. `has_noise`: others may have been malformed, too.
    pub(crate) fn check(&self, has_noise: bool) -> Result<(), String> {
        let malformed = self.rack.sum(|counters| counters.frames_malformed);
        if malformed != self.damaged && !(has_noise && malformed > self.damaged) {
            return Err(format!(
                "damaged frames were taken: {malformed} of {} were counted as malformed",
                self.damaged
            ));
        }
        Ok(())
    }
}

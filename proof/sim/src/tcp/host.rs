//! A host: one or more stacks, a program on them, a clock, and a bounded receive queue.

use std::collections::VecDeque;

use spillway_transport::{Application, Time, Transport};

use super::canary::FaultyProgram;
use super::rack::Rack;
use crate::clock::Clock;

pub(crate) struct Host {
    pub(crate) rack: Rack,
    pub(crate) program: FaultyProgram,
    pub(crate) clock: Clock,
    inbox: VecDeque<(Vec<u8>, bool)>,
    inbox_max: usize,
    pub(crate) turn_due: bool,
    /// Time of the queued wake-up, in the world's time.
    pub(crate) armed: Option<Time>,
    /// No new turns before this time.
    pub(crate) paused_until: Time,
    damaged: u64,
    /// Frames dropped because the receive queue was full.
    pub(crate) overflowed: u64,
}

impl Host {
    pub(crate) fn new(mut rack: Rack, program: FaultyProgram, clock: Clock, inbox_max: usize) -> Host {
        rack.set_listening(0, true);
        rack.set_listening(1, true);
        Host {
            rack,
            program,
            clock,
            inbox: VecDeque::new(),
            inbox_max,
            turn_due: false,
            armed: None,
            paused_until: Time::ZERO,
            damaged: 0,
            overflowed: 0,
        }
    }

    /// A frame arrives; it is dropped if the receive queue is full.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>, is_damaged: bool) {
        if self.inbox.len() < self.inbox_max {
            self.inbox.push_back((frame, is_damaged));
        } else {
            self.overflowed += 1;
        }
    }

    /// Runs a turn: all received frames, then output through `sends`.
    pub(crate) fn turn(&mut self, now: Time, slot: &mut Vec<u8>, mut sends: impl FnMut(&[u8])) {
        let now = self.clock.read(now);
        self.rack.begin_turn(&mut self.program, now);
        for (mut frame, is_damaged) in self.inbox.drain(..) {
            if is_damaged && !self.program.conceals_damage() {
                self.damaged += 1;
            }
            self.rack.deliver(&mut self.program, now, &mut frame);
        }
        self.rack.end_turn(&mut self.program, now);
        self.rack.transmit(&mut self.program, now, slot, |program, frame| {
            program.alter_frame(frame);
            sends(frame);
        });
    }

    /// When the host needs a turn, in the world's time.
    pub(crate) fn wants_turn_at(&self) -> Option<Time> {
        let at = [self.rack.poll_timeout(), self.program.poll_timeout()].into_iter().flatten().min();
        at.map(|at| self.clock.when(at))
    }

    /// Describes a violation if the stacks hold more connections than the program knows of and half-open ones may be.
    pub(crate) fn beyond_bounds(&self) -> Option<String> {
        let (all, known) = (self.rack.connections(), self.program.inner.open());
        let bound = self.rack.half_open_max();
        (all > known + bound)
            .then(|| format!("{all} connections, its program knows {known}: {bound} may be half-open"))
    }

    /// Compares the stacks' counts of damaged frames. `has_noise`: some frames were malformed when they were sent.
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

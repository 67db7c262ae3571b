//! A host: one or more servers, a program on them, a clock, and a bounded receive queue for each server.

use spillway_transport::{Application, Time, Transport};

use super::planted_fault::FaultyProgram;
use super::rack::{Rack, Sent};
use crate::clock::Clock;

pub(crate) struct Host {
    pub(crate) rack: Rack,
    pub(crate) program: FaultyProgram,
    pub(crate) clock: Clock,
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
            receive_queue_max,
            turn_due: false,
            armed: None,
            paused_until: Time::ZERO,
            damaged: 0,
            overflowed: 0,
        }
    }

    /// Queues a frame that arrives at a server, or drops it if the receive queue is full.
    pub(crate) fn arrive(&mut self, server: usize, frame: Vec<u8>, is_damaged: bool) {
        if !self.rack.arrive(server, frame, is_damaged, self.receive_queue_max) {
            self.overflowed += 1;
        }
    }

    /// Runs a turn: handles everything that was received, then passes all output to `send`, with the server that sends it.
    pub(crate) fn turn(&mut self, now: Time, slot: &mut Vec<u8>, mut send: impl FnMut(usize, Sent<'_>)) {
        let now = self.clock.read(now);
        self.rack.begin_turn(&mut self.program, now);
        self.rack.deliver_all(&mut self.program, now);
        self.rack.end_turn(&mut self.program, now);
        for _ in 0..std::mem::take(&mut self.rack.damaged) {
            self.damaged += u64::from(!self.program.counts_as_undamaged());
        }
        self.rack.transmit(&mut self.program, now, slot, |program, server, mut sent| {
            if let Sent::Frame(frame) = &mut sent {
                program.alter_frame(frame);
            }
            send(server, sent);
        });
    }

    /// Time of the next turn that a timer needs, on the world's clock.
    pub(crate) fn next_turn_at(&self) -> Option<Time> {
        let at = [self.rack.poll_timeout(), self.program.poll_timeout()].into_iter().flatten().min();
        at.map(|at| self.clock.when(at))
    }

    /// Describes a violation if the stacks have more connections than the program and the half-open bound.
    pub(crate) fn exceeded_bound(&self) -> Option<String> {
        let (all, known) = (self.rack.connections(), self.program.inner.open().count());
        let bound = self.rack.half_open_max();
        (all > known + bound).then(|| {
            format!(
                "a host has {all} connections, but its program {known}, and only {bound} may be half-open"
            )
        })
    }

    /// Checks that each damaged frame counted as malformed. `has_noise`: other frames may have been malformed, too.
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

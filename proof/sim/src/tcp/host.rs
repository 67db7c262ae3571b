//! A host: one stack or several, a program on them, a clock, and a card with a queue.

use std::collections::VecDeque;

use spillway_transport::{Application, Time, Transport};

use super::canary::Meddled;
use super::rack::Rack;
use crate::clock::Clock;

pub(crate) struct Host {
    pub(crate) rack: Rack,
    pub(crate) meddled: Meddled,
    pub(crate) clock: Clock,
    inbox: VecDeque<(Vec<u8>, bool)>,
    inbox_max: usize,
    /// A turn is on the agenda.
    pub(crate) turn_due: bool,
    /// For when it is to be woken; then, or earlier, in the world's time.
    pub(crate) armed: Option<Time>,
    /// It does nothing until then.
    pub(crate) paused_until: Time,
    /// Damaged frames that the stack was given.
    damaged: u64,
    /// Frames for which there was no room.
    pub(crate) overflowed: u64,
}

impl Host {
    pub(crate) fn new(mut rack: Rack, meddled: Meddled, clock: Clock, inbox_max: usize) -> Host {
        rack.set_listening(0, true);
        rack.set_listening(1, true);
        Host {
            rack,
            meddled,
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

    /// A frame is at the card.
    pub(crate) fn arrive(&mut self, frame: Vec<u8>, is_damaged: bool) {
        if self.inbox.len() < self.inbox_max {
            self.inbox.push_back((frame, is_damaged));
        } else {
            self.overflowed += 1;
        }
    }

    /// All that is there, and what is to be sent.
    pub(crate) fn turn(&mut self, now: Time, slot: &mut Vec<u8>, mut sends: impl FnMut(&[u8])) {
        let now = self.clock.read(now);
        self.rack.begin_turn(&mut self.meddled, now);
        for (mut frame, is_damaged) in self.inbox.drain(..) {
            if is_damaged && !self.meddled.hides_damage() {
                self.damaged += 1;
            }
            self.rack.deliver(&mut self.meddled, now, &mut frame);
        }
        self.rack.end_turn(&mut self.meddled, now);
        self.rack.transmit(&mut self.meddled, now, slot, |meddled, frame| {
            meddled.meddle_with_frame(frame);
            sends(frame);
        });
    }

    /// When it wants a turn, in the world's time.
    pub(crate) fn wants_turn_at(&self) -> Option<Time> {
        let at = [self.rack.poll_timeout(), self.meddled.poll_timeout()].into_iter().flatten().min();
        at.map(|at| self.clock.when(at))
    }

    /// What is wrong with what it holds: beside the connections that its program knows there are few that are half-open.
    pub(crate) fn beyond_bounds(&self) -> Option<String> {
        let (all, known) = (self.rack.connections(), self.meddled.program.open());
        let bound = self.rack.half_open_max();
        (all > known + bound)
            .then(|| format!("{all} connections, its program knows {known}: {bound} may be half-open"))
    }

    /// What is wrong with its figures. `has_noise`: not only what was damaged on the way makes no sense.
    pub(crate) fn check(&self, has_noise: bool) -> Result<(), String> {
        let malformed = self.rack.sum(|counters| counters.frames_malformed);
        if malformed != self.damaged && !(has_noise && malformed > self.damaged) {
            return Err(format!(
                "{malformed} of {} damaged frames were taken for such: others are the damaged frames were taken",
                self.damaged
            ));
        }
        Ok(())
    }
}

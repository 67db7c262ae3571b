//! A host: a stack, a program on it, a clock, and a card with a queue.

use std::collections::VecDeque;

use spillway_tcp::{Settings, Stack, drive};
use spillway_transport::{Time, Transport};

use super::canary::Meddled;
use crate::clock::Clock;

pub(crate) struct Host {
    pub(crate) stack: Stack,
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
    pub(crate) fn new(
        now: Time,
        settings: Settings,
        meddled: Meddled,
        clock: Clock,
        inbox_max: usize,
    ) -> Host {
        let settings_error = "the plan keeps to the limits of settings";
        let mut stack = Stack::new(clock.read(now), settings).expect(settings_error);
        stack.set_listening(0, true);
        stack.set_listening(1, true);
        Host {
            stack,
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
        drive::begin_turn(&mut self.stack, &mut self.meddled, now);
        for (frame, is_damaged) in self.inbox.drain(..) {
            if is_damaged && !self.meddled.hides_damage() {
                self.damaged += 1;
            }
            drive::deliver(&mut self.stack, &mut self.meddled, now, &frame);
        }
        drive::end_turn(&mut self.stack, &mut self.meddled, now);
        slot.resize(self.stack.frame_bytes_max(), 0);
        while let Some(length) = self.stack.poll_transmit(now, slot) {
            let frame = &mut slot[..length];
            self.meddled.meddle_with_frame(frame);
            sends(frame);
        }
    }

    /// When it wants a turn, in the world's time.
    pub(crate) fn wants_turn_at(&self) -> Option<Time> {
        drive::poll_timeout(&self.stack, &self.meddled).map(|at| self.clock.when(at))
    }

    /// What is wrong with its figures.
    pub(crate) fn check(&self) -> Result<(), String> {
        let malformed = self.stack.counters().frames_malformed;
        if malformed != self.damaged {
            return Err(format!(
                "{malformed} of {} damaged frames were taken for such: others are the damaged frames were taken",
                self.damaged
            ));
        }
        Ok(())
    }
}

//! Which sessions have data or messages to send: now, or at a later time.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use spillway_transport::Time;

use crate::slots::SessionHandle;

/// The list of sessions that have data or messages to send, and the queue of acknowledgements that are due later. Each
/// slot is at most once in either.
#[derive(Debug, Default)]
pub(super) struct SendSchedule {
    /// Indexed by slot.
    states: Vec<SlotState>,
    /// Slots on the list. The last one is dirty; others may be clean again.
    dirty: VecDeque<u32>,
    /// The earliest first. All acknowledgements have the same delay, but one that is scheduled again, after
    /// an earlier one was sent with data, may be due before others. So a `spillway_parts::TimerQueue` does
    /// not fit: its timers end in the order in which they start.
    acknowledgements: BinaryHeap<Reverse<(Time, u32)>>,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    /// The slot's session.
    session: Option<SessionHandle>,
    is_dirty: bool,
    is_on_list: bool,
    is_in_queue: bool,
}

impl SendSchedule {
    /// The session has data or messages to send.
    pub(super) fn mark_dirty(&mut self, session: SessionHandle) {
        let state = self.slot_mut(session);
        state.is_dirty = true;
        if !core::mem::replace(&mut state.is_on_list, true) {
            self.dirty.push_back(session.slot());
        }
    }

    /// The session has nothing more to send, or is over.
    pub(super) fn mark_clean(&mut self, session: SessionHandle) {
        self.slot_mut(session).is_dirty = false;
        // Keeps the list short for drivers that transmit sessions one by one.
        while let Some(state) = self.dirty.back().and_then(|slot| self.states.get_mut(*slot as usize))
            && !state.is_dirty
        {
            state.is_on_list = false;
            self.dirty.pop_back();
        }
    }

    /// Takes a dirty session off the list and marks it as clean.
    pub(super) fn poll_dirty(&mut self) -> Option<SessionHandle> {
        while let Some(slot) = self.dirty.pop_front() {
            let state = &mut self.states[slot as usize];
            state.is_on_list = false;
            if core::mem::take(&mut state.is_dirty) {
                return state.session;
            }
        }
        None
    }

    /// Whether any session is dirty.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Schedules the session's acknowledgement at this time, unless one is scheduled already.
    pub(super) fn schedule_acknowledgement(&mut self, at: Time, session: SessionHandle) {
        if !core::mem::replace(&mut self.slot_mut(session).is_in_queue, true) {
            self.acknowledgements.push(Reverse((at, session.slot())));
        }
    }

    /// A session whose acknowledgement is due, or the new session in the slot of such a session.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<SessionHandle> {
        while self.next_due()? <= now {
            let Reverse((_, slot)) = self.acknowledgements.pop()?;
            let state = &mut self.states[slot as usize];
            state.is_in_queue = false;
            if state.session.is_some() {
                return state.session;
            }
        }
        None
    }

    /// The time of the next scheduled acknowledgement.
    pub(super) fn next_due(&self) -> Option<Time> {
        self.acknowledgements.peek().map(|Reverse((at, _))| *at)
    }

    fn slot_mut(&mut self, session: SessionHandle) -> &mut SlotState {
        let slot = session.slot() as usize;
        if self.states.len() <= slot {
            self.states.resize(slot + 1, SlotState::default());
        }
        let state = &mut self.states[slot];
        if state.session != Some(session) {
            (state.session, state.is_dirty) = (Some(session), false);
        }
        state
    }
}

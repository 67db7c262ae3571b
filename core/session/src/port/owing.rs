//! Which sessions have something to send: now, or at a later time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::Time;

use crate::slots::SessionHandle;

/// The list of sessions that have something to send, and the queue of acknowledgements that are due later. Each slot is
/// at most once in either.
#[derive(Debug, Default)]
pub(super) struct Owing {
    /// Indexed by slot.
    notes: Vec<Note>,
    /// Slots on the list. The last one is dirty; others may have been cleaned.
    dirty: VecDeque<u32>,
    /// In order of time, as all acknowledgements have the same delay. Not `spillway_parts::Delays`: each slot is queued at
    /// most once, so there are no stale entries to remove, and the caller knows the time and not the delay.
    late: VecDeque<(Time, u32)>,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// The slot's session.
    session: Option<SessionHandle>,
    is_dirty: bool,
    is_on_list: bool,
    is_in_queue: bool,
}

impl Owing {
    /// The session has something to send.
    pub(super) fn mark(&mut self, session: SessionHandle) {
        let note = self.note(session);
        note.is_dirty = true;
        if !core::mem::replace(&mut note.is_on_list, true) {
            self.dirty.push_back(session.slot());
        }
    }

    /// The session has nothing more to send, or is over.
    pub(super) fn clean(&mut self, session: SessionHandle) {
        self.note(session).is_dirty = false;
        // Keeps the list short for drivers that clean sessions one by one.
        while let Some(note) = self.dirty.back().and_then(|slot| self.notes.get_mut(*slot as usize))
            && !note.is_dirty
        {
            note.is_on_list = false;
            self.dirty.pop_back();
        }
    }

    /// Takes a marked session off the list; it is clean then.
    pub(super) fn poll_dirty(&mut self) -> Option<SessionHandle> {
        while let Some(slot) = self.dirty.pop_front() {
            let note = &mut self.notes[slot as usize];
            note.is_on_list = false;
            if core::mem::take(&mut note.is_dirty) {
                return note.session;
            }
        }
        None
    }

    /// Whether any session is marked.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Schedules the session's acknowledgement at this time, unless one is scheduled already.
    pub(super) fn owe(&mut self, at: Time, session: SessionHandle) {
        if !core::mem::replace(&mut self.note(session).is_in_queue, true) {
            self.late.push_back((at, session.slot()));
        }
    }

    /// A session whose time has come, or the new session in the slot of one whose time has come.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<SessionHandle> {
        while self.next()? <= now {
            let (_, slot) = self.late.pop_front()?;
            let note = &mut self.notes[slot as usize];
            note.is_in_queue = false;
            if note.session.is_some() {
                return note.session;
            }
        }
        None
    }

    /// The time of the next scheduled acknowledgement.
    pub(super) fn next(&self) -> Option<Time> {
        self.late.front().map(|(at, _)| *at)
    }

    fn note(&mut self, session: SessionHandle) -> &mut Note {
        let slot = session.slot() as usize;
        if self.notes.len() <= slot {
            self.notes.resize(slot + 1, Note::default());
        }
        let note = &mut self.notes[slot];
        if note.session != Some(session) {
            (note.session, note.is_dirty) = (Some(session), false);
        }
        note
    }
}

//! Which sessions have something for their carriers: now, or when time has passed.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use spillway_transport::Time;

use crate::slots::SessionHandle;

/// The list of sessions that have something for their carriers, and the queue of acknowledgements that are due later. Both
/// name slots, each at most once.
#[derive(Debug, Default)]
pub(super) struct Owing {
    /// By slot.
    notes: Vec<Note>,
    /// The last one is dirty; of others, some are clean by now.
    dirty: VecDeque<u32>,
    /// In order: acknowledgements have all the same delay. Not `spillway_parts::Delays`: each slot is in it at most once, so
    /// there is nothing to remove, and the caller knows the time and not the delay.
    late: VecDeque<(Time, u32)>,
}

/// What is noted of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Note {
    /// Which session has it.
    session: Option<SessionHandle>,
    is_dirty: bool,
    is_on_list: bool,
    is_in_queue: bool,
}

impl Owing {
    /// The session has something for its carrier.
    pub(super) fn mark(&mut self, session: SessionHandle) {
        let note = self.note(session);
        note.is_dirty = true;
        if !core::mem::replace(&mut note.is_on_list, true) {
            self.dirty.push_back(session.slot());
        }
    }

    /// The session's carrier has been given all, or the session is over.
    pub(super) fn clean(&mut self, session: SessionHandle) {
        self.note(session).is_dirty = false;
        // So that the list is short where the driver cleans sessions one by one.
        while let Some(note) = self.dirty.back().and_then(|slot| self.notes.get_mut(*slot as usize))
            && !note.is_dirty
        {
            note.is_on_list = false;
            self.dirty.pop_back();
        }
    }

    /// A session that was marked, which is clean after this.
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

    /// Whether a session is marked.
    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The session's client is to be told something at this time, unless that is noted already.
    pub(super) fn owe(&mut self, at: Time, session: SessionHandle) {
        if !core::mem::replace(&mut self.note(session).is_in_queue, true) {
            self.late.push_back((at, session.slot()));
        }
    }

    /// A session whose time has come; or that has the slot of one whose time has come.
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

    /// When the next one's time has come.
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

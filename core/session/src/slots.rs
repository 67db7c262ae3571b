//! Storage of a server's sessions in reused slots, with an index by id. Ended sessions are remembered for a while.

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use spillway_parts::{SlotKey, Slots};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

use crate::remembered_end::RememberedEnd;

/// Identifies a session in its table. Handles are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionHandle(SlotKey);

impl SessionHandle {
    /// The session's slot, an index for other tables: less than the bound on sessions. Slots are reused.
    pub fn slot(self) -> u32 {
        self.0.slot()
    }
}

/// An entry of [`SessionSlots`].
pub(crate) trait Identified {
    fn id(&self) -> SessionId;
}

/// The state of a session id.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdState {
    Live(SessionHandle),
    /// The session has ended. Its [`RememberedEnd`] exists if both ends had closed, and repeats the server's answer.
    Ended(Option<RememberedEnd>),
}

#[derive(Debug)]
pub(crate) struct SessionSlots<S> {
    sessions_max: usize,
    remembered_for: Duration,
    /// Reuses the slot that was freed first, because the application may hold slot numbers for a moment after an end.
    slots: Slots<S>,
    by_id: BTreeMap<SessionId, IdState>,
    /// Ended sessions and when to forget them, oldest first. They are remembered because a late *connect* must not
    /// begin a session again.
    ended: VecDeque<(Time, SessionId)>,
}

impl<S: Identified> SessionSlots<S> {
    pub(crate) fn new(sessions_max: usize, remembered_for: Duration) -> SessionSlots<S> {
        SessionSlots {
            sessions_max,
            remembered_for,
            slots: Slots::oldest_first(sessions_max),
            by_id: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    pub(crate) fn id_state(&self, id: SessionId) -> Option<IdState> {
        self.by_id.get(&id).copied()
    }

    /// Adds a session; the caller has checked that its id is unknown. `None` if the table is full.
    pub(crate) fn insert(&mut self, session: S) -> Option<SessionHandle> {
        let id = session.id();
        let handle = SessionHandle(self.slots.insert(session)?);
        self.by_id.insert(id, IdState::Live(handle));
        Some(handle)
    }

    pub(crate) fn get(&self, session: SessionHandle) -> Option<&S> {
        self.slots.get(session.0)
    }

    pub(crate) fn get_mut(&mut self, session: SessionHandle) -> Option<&mut S> {
        self.slots.get_mut(session.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionHandle, &S)> {
        self.slots.iter().map(|(key, session)| (SessionHandle(key), session))
    }

    /// The remembered end of a session that both ends had closed.
    pub(crate) fn remembered_end_mut(&mut self, id: SessionId) -> Option<&mut RememberedEnd> {
        match self.by_id.get_mut(&id)? {
            IdState::Ended(remembered_end) => remembered_end.as_mut(),
            IdState::Live(_) => None,
        }
    }

    /// Ends a session and remembers its id.
    pub(crate) fn end(&mut self, now: Time, session: SessionHandle, remembered_end: Option<RememberedEnd>) {
        if let Some(id) = self.remove(session) {
            self.by_id.insert(id, IdState::Ended(remembered_end));
            self.ended.push_back((now + self.remembered_for, id));
        }
    }

    /// Removes a session without remembering its id.
    pub(crate) fn withdraw(&mut self, session: SessionHandle) {
        if let Some(id) = self.remove(session) {
            self.by_id.remove(&id);
        }
    }

    /// Frees the session's slot. The entry in `by_id` stays.
    fn remove(&mut self, session: SessionHandle) -> Option<SessionId> {
        self.slots.remove(session.0).map(|entry| entry.id())
    }

    /// Forgets ended sessions after `remembered_for`, and the oldest ones beyond `sessions_max`.
    pub(crate) fn forget_ended(&mut self, now: Time) {
        while self.ended.len() > self.sessions_max
            || self.ended.front().is_some_and(|(until, _)| *until <= now)
        {
            if let Some((_, id)) = self.ended.pop_front() {
                self.by_id.remove(&id);
            }
        }
    }

    /// The number of sessions that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() - self.ended.len()
    }
}

//! Where a server's sessions are: in slots that are used again, by id, and remembered for a while after their end.

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use spillway_parts::{SlotKey, Slots};
use spillway_transport::Time;
use spillway_wire::session::SessionId;

use crate::last::Last;

/// Names a session in its table. Not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionHandle(SlotKey);

impl SessionHandle {
    /// Where it is, for tables beside this one: below the number of sessions that there may be. Reused.
    pub fn slot(self) -> u32 {
        self.0.slot()
    }
}

/// What is kept in a slot.
pub(crate) trait Identified {
    fn id(&self) -> SessionId;
}

/// Where the session of an id is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Here(SessionHandle),
    /// It has ended; with what to tell its client again, if both ends had closed it.
    Ended(Option<Last>),
}

#[derive(Debug)]
pub(crate) struct Places<S> {
    sessions_max: usize,
    remembered_for: Duration,
    /// The slot that was freed first is used first: the application may remember slots without their sessions for a moment.
    slots: Slots<S>,
    by_id: BTreeMap<SessionId, Place>,
    /// Sessions that have ended, oldest first: words of theirs that come late begin nothing.
    ended: VecDeque<(Time, SessionId)>,
}

impl<S: Identified> Places<S> {
    pub(crate) fn new(sessions_max: usize, remembered_for: Duration) -> Places<S> {
        Places {
            sessions_max,
            remembered_for,
            slots: Slots::oldest_first(sessions_max),
            by_id: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    pub(crate) fn place(&self, id: SessionId) -> Option<Place> {
        self.by_id.get(&id).copied()
    }

    /// The caller has checked that its id has no place. `None`: there are as many as there may be.
    pub(crate) fn insert(&mut self, session: S) -> Option<SessionHandle> {
        let id = session.id();
        let handle = SessionHandle(self.slots.insert(session)?);
        self.by_id.insert(id, Place::Here(handle));
        Some(handle)
    }

    pub(crate) fn get(&self, session: SessionHandle) -> Option<&S> {
        self.slots.get(session.0)
    }

    pub(crate) fn get_mut(&mut self, session: SessionHandle) -> Option<&mut S> {
        self.slots.get_mut(session.0)
    }

    /// All sessions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionHandle, &S)> {
        self.slots.iter().map(|(key, session)| (SessionHandle(key), session))
    }

    /// How a session ended, if it is remembered and both ends had closed it.
    pub(crate) fn last_mut(&mut self, id: SessionId) -> Option<&mut Last> {
        match self.by_id.get_mut(&id)? {
            Place::Ended(last) => last.as_mut(),
            Place::Here(_) => None,
        }
    }

    /// The session has ended, and is remembered.
    pub(crate) fn end(&mut self, now: Time, session: SessionHandle, last: Option<Last>) {
        if let Some(id) = self.remove(session) {
            self.by_id.insert(id, Place::Ended(last));
            self.ended.push_back((now + self.remembered_for, id));
        }
    }

    /// As if the session had never been.
    pub(crate) fn take_back(&mut self, session: SessionHandle) {
        if let Some(id) = self.remove(session) {
            self.by_id.remove(&id);
        }
    }

    /// Frees its slot. Its id stays in its place.
    fn remove(&mut self, session: SessionHandle) -> Option<SessionId> {
        self.slots.remove(session.0).map(|known| known.id())
    }

    /// Time goes on: sessions that ended long ago are forgotten, and as many as there may be sessions are remembered.
    pub(crate) fn forget(&mut self, now: Time) {
        while self.ended.len() > self.sessions_max
            || self.ended.front().is_some_and(|(until, _)| *until <= now)
        {
            if let Some((_, id)) = self.ended.pop_front() {
                self.by_id.remove(&id);
            }
        }
    }

    /// How many sessions there are. Those that have ended do not count.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len() - self.ended.len()
    }
}

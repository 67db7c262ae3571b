//! Where a server's sessions are: in slots that are used again, by id, and remembered for a while after their end.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::session::SessionId;

use crate::last::Last;

/// Names a session in its table. Not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionHandle {
    slot: u32,
    generation: u32,
}

impl SessionHandle {
    /// Where it is, for tables beside this one: below the number of sessions that there may be. Reused.
    pub fn slot(self) -> u32 {
        self.slot
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
pub(crate) struct Slots<S> {
    sessions_max: usize,
    remembered_for: Duration,
    slots: Vec<Slot<S>>,
    free: VecDeque<u32>,
    by_id: BTreeMap<SessionId, Place>,
    /// Sessions that have ended, oldest first: words of theirs that come late begin nothing.
    ended: VecDeque<(Time, SessionId)>,
}

#[derive(Debug)]
struct Slot<S> {
    generation: u32,
    session: Option<S>,
}

impl<S: Identified> Slots<S> {
    pub(crate) fn new(sessions_max: usize, remembered_for: Duration) -> Slots<S> {
        Slots {
            sessions_max,
            remembered_for,
            slots: Vec::new(),
            free: VecDeque::new(),
            by_id: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    pub(crate) fn place(&self, id: SessionId) -> Option<Place> {
        self.by_id.get(&id).copied()
    }

    /// The caller has checked that its id has no place. `None`: there are as many as there may be.
    pub(crate) fn insert(&mut self, session: S) -> Option<SessionHandle> {
        let slot = match self.free.pop_front() {
            Some(slot) => slot,
            None if self.slots.len() < self.sessions_max => {
                let slot = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(Slot { generation: 0, session: None });
                slot
            }
            None => return None,
        };
        let place = &mut self.slots[slot as usize];
        let handle = SessionHandle { slot, generation: place.generation };
        self.by_id.insert(session.id(), Place::Here(handle));
        place.session = Some(session);
        Some(handle)
    }

    pub(crate) fn get(&self, session: SessionHandle) -> Option<&S> {
        let place = self.slots.get(session.slot as usize)?;
        if place.generation == session.generation { place.session.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, session: SessionHandle) -> Option<&mut S> {
        let place = self.slots.get_mut(session.slot as usize)?;
        if place.generation == session.generation { place.session.as_mut() } else { None }
    }

    /// All sessions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionHandle, &S)> {
        (0_u32..).zip(&self.slots).filter_map(|(slot, place)| {
            let session = place.session.as_ref()?;
            Some((SessionHandle { slot, generation: place.generation }, session))
        })
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
        let place = self.slots.get_mut(session.slot as usize)?;
        if place.generation != session.generation {
            return None;
        }
        let known = place.session.take()?;
        // A slot whose generations are used up stays empty.
        if let Some(generation) = place.generation.checked_add(1) {
            place.generation = generation;
            self.free.push_back(session.slot);
        }
        Some(known.id())
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

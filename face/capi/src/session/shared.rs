//! The part of a `spw_session` that its `spw_relief` uses, too, possibly in another thread: the session itself, and its
//! events that wait for the application.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use spillway_client::Session;
use spillway_client::session::SessionEvent;

/// Maximum number of events that wait for `spw_next_event`. A further event replaces the oldest one.
const EVENTS_MAX: usize = 32;

/// Shared by the `spw_session` and its relief.
pub(crate) type SharedSession = Arc<Mutex<MovableSession>>;

/// A session that a relief may move.
pub(crate) struct MovableSession {
    pub(crate) session: Session,
    events: VecDeque<SessionEvent>,
}

impl MovableSession {
    pub(crate) fn shared(session: Session) -> SharedSession {
        Arc::new(Mutex::new(MovableSession { session, events: VecDeque::new() }))
    }

    /// Takes the session's next event, keeps it for the application, and returns it for the relief. Call it until `None`.
    pub(crate) fn take_event(&mut self) -> Option<&SessionEvent> {
        let event = self.session.poll_event()?;
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.events.back()
    }

    /// Removes the oldest event that waits for the application.
    pub(super) fn pop_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }
}

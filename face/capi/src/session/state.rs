//! The value behind a `spw_session`: a session, the numbers of its routes in C, its pending events, and the `spw_relief`
//! that moves the session, if any.

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spillway_client::session::{Gone, SessionEvent};
use spillway_client::{Session, SessionSettings};

use super::event::{spw_session_event, spw_session_event_kind};
use crate::relief::state::Membership;
use crate::settings::Routes;
use crate::status::{Fault, lock, stream_fault};
use crate::waiting::wait_for;

/// Maximum number of events that wait for `spw_next_event`. A further event replaces the oldest one.
const EVENTS_MAX: usize = 32;

/// The value of C's handle. It is locked because the functions of a `spw_relief`, possibly in another thread, move the
/// relief's sessions.
pub(crate) type SharedSession = Arc<Mutex<SessionState>>;

pub(crate) struct SessionState {
    pub(crate) session: Session,
    routes: Routes,
    relief: Option<Membership>,
    /// Set when the server has reported that it no longer knows the session.
    pub(super) gone: Option<Gone>,
    events: VecDeque<SessionEvent>,
    /// Texts of the last event, valid for C until the next call with this session.
    texts: EventTexts,
}

#[derive(Default)]
struct EventTexts {
    address: CString,
    why: CString,
}

impl SessionState {
    pub(super) fn open(routes: Routes, settings: SessionSettings) -> Result<SessionState, Fault> {
        let session = Session::open(Instant::now(), routes.targets(), settings)
            .map_err(|error| Fault::system("a session cannot be opened", &error))?;
        Ok(SessionState::new(session, routes, None))
    }

    /// The value of an open session. With a relief, `routes` are those of the relief.
    pub(crate) fn new(session: Session, routes: Routes, relief: Option<Membership>) -> SessionState {
        SessionState {
            session,
            routes,
            relief,
            gone: None,
            events: VecDeque::new(),
            texts: EventTexts::default(),
        }
    }

    pub(super) fn relief(&self) -> Option<&Membership> {
        self.relief.as_ref()
    }

    /// Fails if a relief chooses the session's route: then the application may not move the session.
    pub(super) fn check_has_no_relief(&self) -> Result<(), Fault> {
        match self.relief {
            None => Ok(()),
            Some(_) => Err(Fault::invalid(
                "this session's relief chooses its route: use spw_relief_override, or spw_relief_free and then spw_set_routes",
            )),
        }
    }

    pub(super) fn route_index(&self, route: u32) -> Result<usize, Fault> {
        self.routes.index(route)
    }

    pub(super) fn set_routes(&mut self, routes: Routes) -> Result<(), Fault> {
        if self.relief.as_ref().is_some_and(Membership::is_over) {
            self.relief = None;
        }
        self.check_has_no_relief()?;
        self.session.set_routes(routes.targets()).map_err(|error| stream_fault(&error))?;
        self.routes = routes;
        Ok(())
    }

    pub(super) fn route(&self, address: SocketAddr) -> u32 {
        match &self.relief {
            None => self.routes.route(address),
            Some(membership) => membership.route(address),
        }
    }

    pub(super) fn fault(&mut self, error: &io::Error) -> Fault {
        if let Some(gone) = error.get_ref().and_then(|inner| inner.downcast_ref::<Gone>()) {
            self.gone = Some(*gone);
        }
        stream_fault(error)
    }

    /// Handles input and timeouts. Returns 1 if `spw_receive` has a result.
    pub(super) fn handle(&mut self) -> c_int {
        let now = Instant::now();
        self.session.handle_ready(now);
        self.session.handle_timeout(now);
        self.take_events(now);
        c_int::from(self.session.has_arrived())
    }

    /// Reports events to the relief, and keeps them for the application.
    pub(crate) fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.session.poll_event() {
            if let Some(membership) = &self.relief {
                membership.report_event(now, &event);
            }
            if self.events.len() >= EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    pub(super) fn next_event(&mut self) -> Option<spw_session_event> {
        use spw_session_event_kind as K;
        self.take_events(Instant::now());
        let (kind, address, why) = match self.events.pop_front()? {
            SessionEvent::Moved(address) => (K::SPW_SESSION_MOVED, Some(address), String::new()),
            SessionEvent::CarrierLost { address, why } => {
                (K::SPW_SESSION_CARRIER_LOST, Some(address), why.to_string())
            }
            SessionEvent::Accepted => (K::SPW_SESSION_ACCEPTED, None, String::new()),
            SessionEvent::Room => (K::SPW_SESSION_ROOM, None, String::new()),
        };
        let c_text = |text: String| CString::new(text).unwrap_or_default(); // these texts contain no NUL
        self.texts.address = address.map_or_else(CString::default, |address| c_text(address.to_string()));
        self.texts.why = c_text(why);
        Some(spw_session_event {
            kind: kind as i32,
            route: address.map_or(0, |address| self.route(address)),
            address: self.texts.address.as_ptr(),
            why: self.texts.why.as_ptr(),
        })
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        if let Some(membership) = &self.relief {
            membership.leave();
        }
    }
}

/// Waits for input of a session or its relief, or for a timeout of one of them, for at most `timeout_ms` (negative: no
/// limit), and handles both. Returns 1 if `spw_receive` has a result; otherwise 0, also after a signal.
pub(super) fn wait(shared: &SharedSession, timeout_ms: c_int) -> Result<c_int, Fault> {
    let (descriptors, due) = {
        let state = lock(shared)?;
        if state.session.has_arrived() {
            return Ok(1);
        }
        let (relief_fd, relief_due) =
            state.relief().map_or(Ok((None, None)), Membership::descriptor_and_timeout)?;
        let due = [state.session.poll_timeout(), relief_due].into_iter().flatten().min();
        ([Some(state.session.as_fd().as_raw_fd()), relief_fd], due)
    };
    let requested = u64::try_from(timeout_ms).ok().map(Duration::from_millis); // negative: without limit
    let due = due.map(|due| due.saturating_duration_since(Instant::now()));
    // The lock is not held here: meanwhile the relief may move the session.
    let was_interrupted = !wait_for(descriptors, [requested, due].into_iter().flatten().min())?;
    if was_interrupted {
        return Ok(0); // so that the caller can act on what its signal handler has recorded
    }
    let membership = {
        let mut state = lock(shared)?;
        state.handle();
        state.relief().cloned()
    };
    if let Some(membership) = membership {
        membership.handle()?;
    }
    Ok(c_int::from(lock(shared)?.session.has_arrived()))
}

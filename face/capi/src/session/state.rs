//! The value behind a `spw_session`: a session, the numbers of its routes in C, and the `spw_relief` that moves the
//! session, if any.

use std::ffi::{CString, c_int};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use spillway_client::session::{Gone, SessionEvent};
use spillway_client::{Session, SessionSettings};

use super::event::{spw_session_event, spw_session_event_kind};
use super::shared::{MovableSession, SharedSession};
use crate::relief::state::Membership;
use crate::settings::Routes;
use crate::status::{Fault, lock, stream_fault};
use crate::waiting::wait_for;

/// The value of C's handle. One call at a time uses it; only `shared` is used by the relief's functions, too.
pub(crate) struct SessionState {
    shared: SharedSession,
    routes: Routes,
    relief: Option<Membership>,
    /// Set when the server has reported that it no longer knows the session.
    pub(super) gone: Option<Gone>,
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
        Ok(SessionState::new(MovableSession::shared(session), routes, None))
    }

    /// The value of an open session. With a relief, `routes` are those of the relief.
    pub(crate) fn new(shared: SharedSession, routes: Routes, relief: Option<Membership>) -> SessionState {
        SessionState { shared, routes, relief, gone: None, texts: EventTexts::default() }
    }

    /// Locks the session. The relief's functions do not move it meanwhile.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, MovableSession>, Fault> {
        lock(&self.shared)
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
        self.lock()?.session.set_routes(routes.targets()).map_err(|error| stream_fault(&error))?;
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
    pub(super) fn handle(&self) -> Result<c_int, Fault> {
        let (mut shared, now) = (self.lock()?, Instant::now());
        shared.session.handle_ready(now);
        shared.session.handle_timeout(now);
        self.take_events(now, &mut shared);
        Ok(c_int::from(shared.session.has_arrived()))
    }

    /// Reports events to the relief, and keeps them for the application.
    fn take_events(&self, now: Instant, shared: &mut MovableSession) {
        match &self.relief {
            Some(membership) => membership.report_events(now, shared),
            None => while shared.take_event().is_some() {},
        }
    }

    fn poll_event(&self) -> Result<Option<SessionEvent>, Fault> {
        let mut shared = self.lock()?;
        self.take_events(Instant::now(), &mut shared);
        Ok(shared.pop_event())
    }

    pub(super) fn next_event(&mut self) -> Result<Option<spw_session_event>, Fault> {
        use spw_session_event_kind as K;
        let Some(event) = self.poll_event()? else { return Ok(None) };
        let (kind, address, why) = match event {
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
        Ok(Some(spw_session_event {
            kind: kind as i32,
            route: address.map_or(0, |address| self.route(address)),
            address: self.texts.address.as_ptr(),
            why: self.texts.why.as_ptr(),
        }))
    }

    /// Waits for input of the session or its relief, or for a timeout of one of them, for at most `timeout_ms` (negative:
    /// no limit), and handles both. Returns 1 if `spw_receive` has a result; otherwise 0, also after a signal.
    pub(super) fn wait(&self, timeout_ms: c_int) -> Result<c_int, Fault> {
        let (descriptors, due) = {
            let shared = self.lock()?;
            if shared.session.has_arrived() {
                return Ok(1);
            }
            let (relief_fd, relief_due) =
                self.relief().map_or(Ok((None, None)), Membership::descriptor_and_timeout)?;
            let due = [shared.session.poll_timeout(), relief_due].into_iter().flatten().min();
            ([Some(shared.session.as_fd().as_raw_fd()), relief_fd], due)
        };
        let requested = u64::try_from(timeout_ms).ok().map(Duration::from_millis); // negative: without limit
        let due = due.map(|due| due.saturating_duration_since(Instant::now()));
        // The lock is not held here: meanwhile the relief may move the session.
        let was_interrupted = !wait_for(descriptors, [requested, due].into_iter().flatten().min())?;
        if was_interrupted {
            return Ok(0); // so that the caller can act on what its signal handler has recorded
        }
        self.handle()?;
        if let Some(membership) = self.relief() {
            membership.handle()?;
        }
        Ok(c_int::from(self.lock()?.session.has_arrived()))
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        if let Some(membership) = &self.relief {
            membership.leave();
        }
    }
}

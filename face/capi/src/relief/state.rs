//! The value behind a `spw_relief`: a relief and the sessions that it moves.
//!
//! Sessions report events to their relief, and the relief moves its sessions. The order of locks is session, then relief; so
//! the relief's lock is released before sessions are moved.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use spillway_client::relief::{ActivationSettings, Member, Move};
use spillway_client::{Relief, ReliefSettings, SessionSettings};

use crate::session::shared::{MovableSession, SharedSession};
use crate::settings::{Routes, SPW_FORMER_ROUTE};
use crate::status::{Fault, lock};
use crate::waiting::wait_for;

/// Timeout of [`open`]. The first move of a session is normally known within [`spillway_client::LOAD_QUERY_TIMEOUT`].
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

fn open_timed_out() -> Fault {
    Fault::again("no helper was chosen within 2 s of the load queries: try again")
}

pub(crate) struct ReliefState {
    pub(super) relief: Relief,
    /// The routes, with their numbers in C.
    routes: Routes,
    sessions: HashMap<Member, Weak<Mutex<MovableSession>>>,
    /// Orders that were not carried out yet: at most two for each member.
    moves: VecDeque<Move>,
    /// The C program has freed the relief: its sessions continue without it.
    is_over: bool,
}

/// The value of C's handle. Dropping the handle's value ends the relief.
pub(crate) struct SharedRelief(Arc<Mutex<ReliefState>>);

impl SharedRelief {
    pub(super) fn new(state: ReliefState) -> SharedRelief {
        SharedRelief(Arc::new(Mutex::new(state)))
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, ReliefState>, Fault> {
        lock(&self.0)
    }

    pub(super) fn inner(&self) -> &Arc<Mutex<ReliefState>> {
        &self.0
    }
}

impl Drop for SharedRelief {
    fn drop(&mut self) {
        if let Ok(mut state) = self.lock() {
            state.is_over = true;
            state.moves.clear();
            state.sessions.clear();
        }
    }
}

impl ReliefState {
    pub(super) fn new(
        routes: Routes,
        session: SessionSettings,
        activation: ActivationSettings,
    ) -> Result<ReliefState, Fault> {
        let (server, helpers) = routes.split();
        let server = server
            .ok_or_else(|| Fault::invalid("a relief needs the server's own port: spw_settings_server"))?;
        let settings = ReliefSettings { activation, session, ..ReliefSettings::new(server, helpers) };
        let relief = Relief::new(Instant::now(), settings).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Fault::invalid(error.to_string()),
            _ => Fault::system("a relief cannot be made", &error),
        })?;
        Ok(ReliefState { relief, routes, sessions: HashMap::new(), moves: VecDeque::new(), is_over: false })
    }

    /// Runs `body` with the relief, and collects the moves that the relief orders.
    pub(super) fn change(&mut self, body: impl FnOnce(&mut Relief, Instant)) {
        if self.is_over {
            return;
        }
        body(&mut self.relief, Instant::now());
        while let Some(order) = self.relief.poll_move() {
            self.moves.push_back(order);
        }
    }

    pub(super) fn set_helpers(&mut self, routes: Routes) -> Result<(), Fault> {
        let (server, helpers) = routes.split();
        if server.map(|server| server.address) != self.routes.split().0.map(|server| server.address) {
            return Err(Fault::invalid("these settings name another server"));
        }
        self.change(|relief, now| relief.set_helpers(now, helpers));
        self.routes = routes;
        Ok(())
    }

    fn leave(&mut self, member: Member) {
        self.relief.leave(Instant::now(), member);
        self.sessions.remove(&member);
        self.moves.retain(|order| order.member != member);
    }

    /// When [`handle`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.moves.is_empty() { self.relief.poll_timeout() } else { Some(Instant::now()) }
    }
}

/// Handles input and timeouts, and moves sessions. Returns the number of sessions moved.
pub(super) fn handle(shared: &Arc<Mutex<ReliefState>>) -> Result<c_int, Fault> {
    let moves: Vec<(SharedSession, Move)> = {
        let mut state = lock(shared)?;
        state.change(|relief, now| {
            relief.handle_ready(now);
            relief.handle_timeout(now);
        });
        let (moves, sessions) = (std::mem::take(&mut state.moves), &state.sessions);
        let with_session = |order: Move| Some((sessions.get(&order.member)?.upgrade()?, order));
        moves.into_iter().filter_map(with_session).collect()
    };
    let (mut moved, mut failed) = (0, None);
    for (session, order) in moves {
        // A fault of one session does not stop the moves of the others.
        match apply(shared, &session, order) {
            Ok(has_moved) => moved += c_int::from(has_moved),
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    failed.map_or(Ok(moved), Err)
}

/// Moves a session, unless the session is over. Returns whether it was moved.
fn apply(shared: &Arc<Mutex<ReliefState>>, session: &SharedSession, order: Move) -> Result<bool, Fault> {
    let (mut session, now) = (lock(session)?, Instant::now());
    if session.session.is_over() {
        return Ok(false);
    }
    let membership = Membership { shared: shared.clone(), member: order.member };
    order
        .apply(now, &mut session.session)
        .map_err(|error| Fault::system("a session cannot be moved", &error))?;
    membership.report_events(now, &mut session);
    Ok(true)
}

/// Opens a session on the carrier that the relief chooses. Returns the session, the relief's routes, and the membership,
/// which the session must end by [`Membership::leave`].
pub(super) fn open(shared: &Arc<Mutex<ReliefState>>) -> Result<(SharedSession, Routes, Membership), Fault> {
    let mut state = lock(shared)?;
    let mut joined = None;
    state.change(|relief, now| joined = relief.join(now));
    let member = joined.ok_or_else(|| Fault::again("the relief's maximum of sessions is reached"))?;
    let open = |first: Move| {
        first.open(Instant::now()).map_err(|error| Fault::system("a session cannot be opened", &error))
    };
    let session =
        wait_for_first_move(&mut state, member).and_then(open).inspect_err(|_| state.leave(member))?;
    let session = MovableSession::shared(session);
    state.sessions.insert(member, Arc::downgrade(&session));
    Ok((session, state.routes.clone(), Membership { shared: shared.clone(), member }))
}

/// Waits for the first move of a new member, which may need answers of helpers.
fn wait_for_first_move(state: &mut ReliefState, member: Member) -> Result<Move, Fault> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        if let Some(index) = state.moves.iter().position(|order| order.member == member)
            && let Some(first) = state.moves.remove(index)
        {
            return Ok(first);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(open_timed_out());
        }
        let until = state.relief.poll_timeout().map_or(deadline, |due| due.min(deadline));
        wait_for([Some(state.relief.as_fd().as_raw_fd()), None], Some(until.saturating_duration_since(now)))?;
        state.change(|relief, now| {
            relief.handle_ready(now);
            relief.handle_timeout(now);
        });
    }
}

/// A session's place in its relief.
pub(crate) struct Membership {
    shared: Arc<Mutex<ReliefState>>,
    member: Member,
}

impl Membership {
    pub(crate) fn record_latency(&self, latency: Duration) -> Result<(), Fault> {
        lock(&self.shared)?.change(|relief, now| relief.record_latency(now, self.member, latency));
        Ok(())
    }

    /// Reports for how long the oldest request without a reply has waited; `None` without such a request.
    pub(crate) fn set_oldest_wait(&self, waited: Option<Duration>) -> Result<(), Fault> {
        lock(&self.shared)?.change(|relief, now| {
            let since = waited.map(|waited| now.checked_sub(waited).unwrap_or(now));
            relief.set_oldest_request(self.member, since);
        });
        Ok(())
    }

    /// Takes the session's events: reports them to the relief, and keeps them for the application.
    pub(crate) fn report_events(&self, now: Instant, session: &mut MovableSession) {
        while let Some(event) = session.take_event() {
            // After a panic the relief gets no more reports, and the session continues.
            if let Ok(mut state) = lock(&self.shared) {
                state.change(|relief, _| relief.handle_event(now, self.member, event));
            }
        }
    }

    pub(crate) fn route(&self, address: SocketAddr) -> u32 {
        lock(&self.shared).map_or(SPW_FORMER_ROUTE, |state| state.routes.route(address))
    }

    /// The relief's descriptor to watch, and its next timeout; none once the relief is over.
    pub(crate) fn descriptor_and_timeout(&self) -> Result<(Option<RawFd>, Option<Instant>), Fault> {
        let state = lock(&self.shared)?;
        match state.is_over {
            true => Ok((None, None)),
            false => Ok((Some(state.relief.as_fd().as_raw_fd()), state.due())),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.shared).map_or(true, |state| state.is_over)
    }

    /// Removes the session from the relief. Called while the session is dropped, so its lock is not held.
    pub(crate) fn leave(&self) {
        if let Ok(mut state) = lock(&self.shared) {
            state.leave(self.member);
        }
    }

    pub(crate) fn handle(&self) -> Result<c_int, Fault> {
        handle(&self.shared)
    }
}

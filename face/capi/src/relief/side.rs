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
use spillway_client::session::SessionEvent;
use spillway_client::{Relief, ReliefSettings, SessionSettings};

use crate::session::side::{ClientSide, Shared};
use crate::settings::{Routes, SPW_FORMER_ROUTE};
use crate::status::{Fault, lock};
use crate::waiting::wait_for;

/// Timeout of [`open`]. The first move of a session is normally known within [`spillway_client::ASK_TIMEOUT`].
const OPEN_WITHIN: Duration = Duration::from_secs(2);

/// The fault after [`OPEN_WITHIN`].
fn nobody_answers() -> Fault {
    Fault::again("the helpers were asked, and no session could be opened in time")
}

/// A relief and its sessions.
pub(crate) struct ReliefSide {
    pub(super) relief: Relief,
    /// The routes, with their numbers in C.
    routes: Routes,
    sessions: HashMap<Member, Weak<Mutex<ClientSide>>>,
    /// Orders that were not carried out yet: at most two for each member.
    moves: VecDeque<Move>,
    /// C has freed the relief: its sessions continue without it.
    is_over: bool,
}

/// The value of C's handle. Dropping it ends the relief.
pub(crate) struct Owner(Arc<Mutex<ReliefSide>>);

impl Owner {
    pub(super) fn new(side: ReliefSide) -> Owner {
        Owner(Arc::new(Mutex::new(side)))
    }

    pub(super) fn lock(&self) -> Result<MutexGuard<'_, ReliefSide>, Fault> {
        lock(&self.0)
    }

    pub(super) fn shared(&self) -> &Arc<Mutex<ReliefSide>> {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Ok(mut side) = self.lock() {
            side.is_over = true;
            side.moves.clear();
            side.sessions.clear();
        }
    }
}

impl ReliefSide {
    pub(super) fn new(
        routes: Routes,
        session: SessionSettings,
        activation: ActivationSettings,
    ) -> Result<ReliefSide, Fault> {
        let (server, helpers) = routes.split();
        let server = server
            .ok_or_else(|| Fault::invalid("a relief needs the server's own port: spw_settings_server"))?;
        let settings = ReliefSettings { activation, session, ..ReliefSettings::new(server, helpers) };
        let relief = Relief::new(Instant::now(), settings).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => Fault::invalid(error.to_string()),
            _ => Fault::system("a relief cannot be made", &error),
        })?;
        Ok(ReliefSide { relief, routes, sessions: HashMap::new(), moves: VecDeque::new(), is_over: false })
    }

    /// Calls the relief, and collects the moves that it orders.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Relief, Instant)) {
        if self.is_over {
            return;
        }
        change(&mut self.relief, Instant::now());
        while let Some(one) = self.relief.poll_move() {
            self.moves.push_back(one);
        }
    }

    pub(super) fn set_helpers(&mut self, routes: Routes) -> Result<(), Fault> {
        let (server, helpers) = routes.split();
        if server.map(|server| server.address) != self.routes.split().0.map(|server| server.address) {
            return Err(Fault::invalid("these settings are of another server"));
        }
        self.change(|relief, now| relief.set_helpers(now, helpers));
        self.routes = routes;
        Ok(())
    }

    fn leave(&mut self, member: Member) {
        self.relief.leave(Instant::now(), member);
        self.sessions.remove(&member);
        self.moves.retain(|one| one.member != member);
    }

    /// When [`handle`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.moves.is_empty() { self.relief.poll_timeout() } else { Some(Instant::now()) }
    }
}

/// Handles input and timeouts, and moves sessions. Returns the number of sessions moved.
pub(super) fn handle(shared: &Arc<Mutex<ReliefSide>>) -> Result<c_int, Fault> {
    let moves: Vec<(Shared, Move)> = {
        let mut side = lock(shared)?;
        side.change(|relief, now| {
            relief.handle_ready(now);
            relief.handle_timeout(now);
        });
        let (moves, sessions) = (std::mem::take(&mut side.moves), &side.sessions);
        let known = |one: Move| Some((sessions.get(&one.member)?.upgrade()?, one));
        moves.into_iter().filter_map(known).collect()
    };
    let (mut moved, mut failed) = (0, None);
    for (session, one) in moves {
        // One session's fault keeps no other from its move.
        match apply(&session, one) {
            Ok(has_moved) => moved += c_int::from(has_moved),
            Err(fault) => failed = failed.or(Some(fault)),
        }
    }
    failed.map_or(Ok(moved), Err)
}

/// Moves a session, unless it is over. Returns whether it did.
fn apply(session: &Shared, one: Move) -> Result<bool, Fault> {
    let (mut side, now) = (lock(session)?, Instant::now());
    if side.session.is_over() {
        return Ok(false);
    }
    one.apply(now, &mut side.session).map_err(|error| Fault::system("a session cannot be moved", &error))?;
    side.take_events(now);
    Ok(true)
}

/// Opens a session on the carrier that the relief chooses.
pub(super) fn open(shared: &Arc<Mutex<ReliefSide>>) -> Result<Shared, Fault> {
    let mut side = lock(shared)?;
    let mut joined = None;
    side.change(|relief, now| joined = relief.join(now));
    let member = joined.ok_or_else(|| Fault::again("the relief has as many sessions as it can have"))?;
    let open = |first: Move| {
        first.open(Instant::now()).map_err(|error| Fault::system("a session cannot be opened", &error))
    };
    let session = first_move(&mut side, member).and_then(open).inspect_err(|_| side.leave(member))?;
    let (routes, membership) = (side.routes.clone(), Membership { shared: shared.clone(), member });
    let session = Arc::new(Mutex::new(ClientSide::of(session, routes, Some(membership))));
    side.sessions.insert(member, Arc::downgrade(&session));
    Ok(session)
}

/// Waits for the first move of a new member, which may need answers of helpers.
fn first_move(side: &mut ReliefSide, member: Member) -> Result<Move, Fault> {
    let deadline = Instant::now() + OPEN_WITHIN;
    loop {
        if let Some(at) = side.moves.iter().position(|one| one.member == member)
            && let Some(first) = side.moves.remove(at)
        {
            return Ok(first);
        }
        let now = Instant::now();
        if now >= deadline {
            return Err(nobody_answers());
        }
        let until = side.relief.poll_timeout().map_or(deadline, |due| due.min(deadline));
        wait_for([Some(side.relief.as_fd().as_raw_fd()), None], Some(until.saturating_duration_since(now)))?;
        side.change(|relief, now| {
            relief.handle_ready(now);
            relief.handle_timeout(now);
        });
    }
}

/// A session's membership in its relief.
#[derive(Clone)]
pub(crate) struct Membership {
    shared: Arc<Mutex<ReliefSide>>,
    member: Member,
}

impl Membership {
    pub(crate) fn measured(&self, latency: Duration) -> Result<(), Fault> {
        lock(&self.shared)?.change(|relief, now| relief.measured(now, self.member, latency));
        Ok(())
    }

    /// Reports for how long the oldest request without a reply has waited; `None` without such a request.
    pub(crate) fn waiting(&self, waited: Option<Duration>) -> Result<(), Fault> {
        lock(&self.shared)?.change(|relief, now| {
            let since = waited.map(|waited| now.checked_sub(waited).unwrap_or(now));
            relief.waits_since(self.member, since);
        });
        Ok(())
    }

    pub(crate) fn note(&self, now: Instant, event: &SessionEvent) {
        // After a panic the relief gets no more reports, and the session continues.
        if let Ok(mut side) = lock(&self.shared) {
            side.change(|relief, _| relief.note(now, self.member, event));
        }
    }

    pub(crate) fn route(&self, address: SocketAddr) -> u32 {
        lock(&self.shared).map_or(SPW_FORMER_ROUTE, |side| side.routes.route(address))
    }

    /// The relief's descriptor to watch, and its next timeout; none once the relief is over.
    pub(crate) fn wakes(&self) -> Result<(Option<RawFd>, Option<Instant>), Fault> {
        let side = lock(&self.shared)?;
        match side.is_over {
            true => Ok((None, None)),
            false => Ok((Some(side.relief.as_fd().as_raw_fd()), side.due())),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.shared).map_or(true, |side| side.is_over)
    }

    /// Removes the session from the relief. Called while the session is dropped, so its lock is not held.
    pub(crate) fn leave(&self) {
        if let Ok(mut side) = lock(&self.shared) {
            side.leave(self.member);
        }
    }

    pub(crate) fn handle(&self) -> Result<c_int, Fault> {
        handle(&self.shared)
    }
}

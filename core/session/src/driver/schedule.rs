//! Which link port is tried next and when, when a carrier that still works is left, and when the session is given up.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::Time;

use super::absence::Absence;
use super::jitter::Jitter;
use super::settings::SessionSettings;
use super::target::LinkTarget;
use crate::routes::Routes;

/// When the present carrier is to be left although it works.
#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Time,
    /// To this route, because the server asked for it; or to the next one, because the carrier goes away.
    route: Option<usize>,
}

/// Why a carrier that works is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The carrier goes away.
    Drain,
    /// The server wants the session elsewhere.
    SentAway,
}

/// What the driver does when its patience has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// Nothing has carried the session for too long.
    Silent,
    /// The server's own port refuses connections. Whether a server has ever answered.
    Absent { was_attached: bool },
}

#[derive(Debug)]
pub(super) struct Schedule {
    targets: Vec<LinkTarget>,
    server_port: Option<SocketAddr>,
    routes: Routes,
    jitter: Jitter,
    /// When the next route is tried.
    retry_at: Option<Time>,
    departure: Option<Departure>,
    /// Since when no server has answered on any carrier.
    detached_since: Option<Time>,
    absence: Absence,
    give_up_after: Duration,
    refused_patience: Duration,
}

impl Schedule {
    /// The first of these targets is tried at once. There is at least one.
    pub(super) fn new(
        now: Time,
        targets: Vec<LinkTarget>,
        settings: &SessionSettings,
        seed: u64,
    ) -> Schedule {
        let own = own_of(&targets, settings.server_port);
        Schedule {
            routes: Routes::new(targets.len(), own, settings.pace),
            targets,
            server_port: settings.server_port,
            jitter: Jitter::seeded(seed),
            retry_at: Some(now),
            departure: None,
            detached_since: Some(now),
            absence: Absence::default(),
            give_up_after: settings.give_up_after,
            refused_patience: settings.refused_patience,
        }
    }

    pub(super) fn route_count(&self) -> usize {
        self.targets.len()
    }

    /// The server has answered at this address.
    pub(super) fn attached(&mut self, address: SocketAddr) {
        self.detached_since = None;
        self.routes.attached();
        self.absence.attached(self.is_own(address));
    }

    /// Nothing carries the session any more.
    pub(super) fn detached(&mut self, now: Time) {
        self.departure = None;
        self.detached_since.get_or_insert(now);
    }

    /// An attempt at this address failed, or what it carried is lost.
    pub(super) fn note_lost(&mut self, now: Time, address: SocketAddr, is_refused: bool) {
        if self.is_own(address) {
            self.absence.own_lost(now, is_refused);
        }
    }

    /// The next route is tried, when its time has come.
    pub(super) fn retry(&mut self, now: Time) {
        let jitter = &mut self.jitter;
        self.retry_at = Some(self.routes.lost(now, || jitter.fraction()).at);
    }

    /// This route is tried at once.
    pub(super) fn choose(&mut self, now: Time, route: usize) {
        self.routes.choose(route);
        self.retry_at = Some(now);
    }

    /// Nothing is tried any more.
    pub(super) fn stop(&mut self) {
        self.retry_at = None;
        self.departure = None;
    }

    /// The carrier that works is not left any more.
    pub(super) fn stay(&mut self) {
        self.departure = None;
    }

    /// The helper that carries the session goes away within this time. Whether the session may stay for a while.
    pub(super) fn drained(&mut self, now: Time, deadline: Duration, is_attached: bool) -> bool {
        match self.routes.drained(now, deadline, self.jitter.fraction()) {
            Some(at) if is_attached => {
                self.departure = Some(Departure { at, route: None });
                true
            }
            _ => false,
        }
    }

    /// The server wants the session elsewhere within this time: with a helper, or without.
    pub(super) fn sent_away(&mut self, now: Time, deadline: Duration) {
        if let Some(away) = self.routes.sent_away(now, deadline, self.jitter.fraction()) {
            self.departure = Some(Departure { at: away.at, route: Some(away.route) });
        }
    }

    /// Whether a carrier that works is to be left now; with [`Leaving::SentAway`] the next route is chosen already.
    pub(super) fn poll_leave(&mut self, now: Time) -> Option<Leaving> {
        let Departure { route, .. } = self.departure.take_if(|departure| departure.at <= now)?;
        let Some(route) = route else { return Some(Leaving::Drain) };
        self.choose(now, route);
        Some(Leaving::SentAway)
    }

    /// Whether it is the session's turn to return to the server, whatever is tried meanwhile.
    pub(super) fn take_turn(&mut self, now: Time) -> bool {
        let is_turn = self.routes.take_turn(now).is_some();
        if is_turn {
            self.retry_at = Some(now);
        }
        is_turn
    }

    /// The link port to try now, if it is time.
    pub(super) fn poll_target(&mut self, now: Time) -> Option<LinkTarget> {
        self.retry_at.take_if(|at| *at <= now)?;
        let target = self.targets.get(self.routes.attempt());
        debug_assert!(target.is_some(), "routes are as many as targets");
        target.cloned()
    }

    /// Other link ports from now on; not empty. `carrier`: the address of the present one, if there is one.
    pub(super) fn replace(&mut self, targets: Vec<LinkTarget>, carrier: Option<SocketAddr>) {
        let tried = self.targets.get(self.routes.at()).map(|target| target.address);
        let present = carrier.or(tried);
        let at = targets.iter().position(|target| Some(target.address) == present);
        self.routes.replace(targets.len(), own_of(&targets, self.server_port), at);
        self.targets = targets;
        // The server asked for one of the old routes: the same way leads to one of the new ones.
        if let Some(Departure { route: route @ Some(_), .. }) = &mut self.departure {
            *route = self.routes.sent_away(Time::ZERO, Duration::ZERO, 0.0).map(|away| away.route);
        }
    }

    /// When and how the session is given up if nothing carries it until then.
    fn give_up(&self) -> Option<(Time, GiveUp)> {
        let silent = (self.detached_since? + self.give_up_after, GiveUp::Silent);
        let was_attached = self.absence.was_attached();
        let absent = self.absence.gives_up_at(self.refused_patience);
        let absent = absent.map(|at| (at, GiveUp::Absent { was_attached }));
        [Some(silent), absent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Whether the session is given up now.
    pub(super) fn poll_give_up(&self, now: Time) -> Option<GiveUp> {
        self.give_up().filter(|(at, _)| *at <= now).map(|(_, how)| how)
    }

    /// When something of this is due.
    pub(super) fn poll_timeout(&self, is_attached: bool) -> Option<Time> {
        let turn = self.routes.turn().filter(|_| !is_attached);
        let departure = self.departure.map(|departure| departure.at);
        let give_up = self.give_up().map(|(at, _)| at);
        [self.retry_at, departure, turn, give_up].into_iter().flatten().min()
    }

    fn is_own(&self, address: SocketAddr) -> bool {
        self.server_port == Some(address)
    }
}

/// Which of the targets is the server's own.
fn own_of(targets: &[LinkTarget], server_port: Option<SocketAddr>) -> Option<usize> {
    targets.iter().position(|target| Some(target.address) == server_port)
}

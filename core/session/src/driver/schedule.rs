//! Schedules the attempts at link ports, the departure from a carrier that still works, and when a session is given up.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::Time;

use super::absence::Absence;
use super::jitter::Jitter;
use super::settings::SessionSettings;
use super::target::LinkTarget;
use crate::routes::Routes;

/// When to leave a carrier that still works.
#[derive(Clone, Copy, Debug)]
struct Departure {
    at: Time,
    /// The route that the server asked for; `None` for the next one, because the carrier drains.
    route: Option<usize>,
}

/// Why the session leaves a carrier that still works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// The carrier drains.
    Drain,
    /// The server asked the session to move.
    AskedToMove,
}

/// Why the driver gives the session up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GiveUp {
    /// The session was detached for too long.
    Silent,
    /// The server's own port refuses connections. `was_attached`: a server has answered on some carrier before.
    Absent { was_attached: bool },
}

#[derive(Debug)]
pub(super) struct Schedule {
    targets: Vec<LinkTarget>,
    server_port: Option<SocketAddr>,
    routes: Routes,
    jitter: Jitter,
    retry_at: Option<Time>,
    departure: Option<Departure>,
    /// When the session became detached; `None` while it is attached.
    detached_since: Option<Time>,
    absence: Absence,
    give_up_after: Duration,
    refused_timeout: Duration,
}

impl Schedule {
    /// The first target is tried at once. `targets` is not empty.
    pub(super) fn new(
        now: Time,
        targets: Vec<LinkTarget>,
        settings: &SessionSettings,
        seed: u64,
    ) -> Schedule {
        let own_port = own_port_of(&targets, settings.server_port);
        Schedule {
            routes: Routes::new(targets.len(), own_port, settings.pace),
            targets,
            server_port: settings.server_port,
            jitter: Jitter::seeded(seed),
            retry_at: Some(now),
            departure: None,
            detached_since: Some(now),
            absence: Absence::default(),
            give_up_after: settings.give_up_after,
            refused_timeout: settings.refused_timeout,
        }
    }

    pub(super) fn route_count(&self) -> usize {
        self.targets.len()
    }

    /// The server has answered at this address.
    pub(super) fn note_attached(&mut self, address: SocketAddr) {
        self.detached_since = None;
        self.routes.attached();
        self.absence.note_attached(self.is_own_port(address));
    }

    /// The session is detached: no carrier.
    pub(super) fn note_detached(&mut self, now: Time) {
        self.departure = None;
        self.detached_since.get_or_insert(now);
    }

    /// An attempt at this address failed, or the carrier through it is lost.
    pub(super) fn note_lost(&mut self, now: Time, address: SocketAddr, is_refused: bool) {
        if self.is_own_port(address) {
            self.absence.note_own_port_lost(now, is_refused);
        }
    }

    /// Schedules the attempt at the next route.
    pub(super) fn retry(&mut self, now: Time) {
        let jitter = &mut self.jitter;
        self.retry_at = Some(self.routes.lost(now, || jitter.fraction()).at);
    }

    /// Schedules an attempt at this route now.
    pub(super) fn choose(&mut self, now: Time, route: usize) {
        self.routes.choose(route);
        self.retry_at = Some(now);
    }

    /// Cancels all attempts and the departure.
    pub(super) fn stop(&mut self) {
        self.retry_at = None;
        self.departure = None;
    }

    /// Cancels the departure from a carrier that still works.
    pub(super) fn stay(&mut self) {
        self.departure = None;
    }

    /// The helper that carries the session drains within this time. Schedules the departure and returns true
    /// if the session may stay for a while.
    pub(super) fn schedule_drain(&mut self, now: Time, deadline: Duration, is_attached: bool) -> bool {
        match self.routes.drained(now, deadline, self.jitter.fraction()) {
            Some(at) if is_attached => {
                self.departure = Some(Departure { at, route: None });
                true
            }
            _ => false,
        }
    }

    /// The server asks the session to move within this time: to a helper, or back to the server's own port.
    pub(super) fn schedule_move(&mut self, now: Time, deadline: Duration) {
        if let Some(attempt) = self.routes.asked_to_move(now, deadline, self.jitter.fraction()) {
            self.departure = Some(Departure { at: attempt.at, route: Some(attempt.route) });
        }
    }

    /// Why to leave the working carrier now, if a departure is due. With [`Leaving::AskedToMove`], also schedules the
    /// attempt at the route that the server asked for.
    pub(super) fn poll_leave(&mut self, now: Time) -> Option<Leaving> {
        let Departure { route, .. } = self.departure.take_if(|departure| departure.at <= now)?;
        let Some(route) = route else { return Some(Leaving::Drain) };
        self.choose(now, route);
        Some(Leaving::AskedToMove)
    }

    /// If the return to the server's own port is due, schedules its attempt now instead of any other. Returns whether
    /// it was due.
    pub(super) fn take_return(&mut self, now: Time) -> bool {
        let is_due = self.routes.take_return(now).is_some();
        if is_due {
            self.retry_at = Some(now);
        }
        is_due
    }

    /// The link port to try now, if an attempt is due.
    pub(super) fn poll_target(&mut self, now: Time) -> Option<LinkTarget> {
        self.retry_at.take_if(|at| *at <= now)?;
        let jitter = &mut self.jitter;
        let attempt = self.routes.attempt(now, || jitter.fraction());
        if attempt.at > now {
            self.retry_at = Some(attempt.at);
            return None;
        }
        let target = self.targets.get(attempt.route);
        debug_assert!(target.is_some(), "there should be as many routes as targets");
        target.cloned()
    }

    /// Replaces the link ports; `targets` is not empty. `carrier`: the address of the present carrier, if any.
    pub(super) fn replace(&mut self, targets: Vec<LinkTarget>, carrier: Option<SocketAddr>) {
        let attempted = self.targets.get(self.routes.present()).map(|target| target.address);
        let address = carrier.or(attempted);
        let present = targets.iter().position(|target| Some(target.address) == address);
        self.routes.replace(targets.len(), own_port_of(&targets, self.server_port), present);
        self.targets = targets;
        // The departure has the index of a route in the old list: choose the corresponding route of the new list.
        // Without one, the session stays on its carrier, which works.
        if let Some(Departure { at, route: Some(_) }) = self.departure {
            let attempt = self.routes.asked_to_move(Time::ZERO, Duration::ZERO, 0.0);
            self.departure = attempt.map(|attempt| Departure { at, route: Some(attempt.route) });
        }
    }

    /// When and why the session is given up unless it is attached before.
    fn give_up(&self) -> Option<(Time, GiveUp)> {
        let silent = (self.detached_since? + self.give_up_after, GiveUp::Silent);
        let was_attached = self.absence.was_attached();
        let absent = self.absence.give_up_at(self.refused_timeout);
        let absent = absent.map(|at| (at, GiveUp::Absent { was_attached }));
        [Some(silent), absent].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Why to give the session up now, if it is due.
    pub(super) fn poll_give_up(&self, now: Time) -> Option<GiveUp> {
        self.give_up().filter(|(at, _)| *at <= now).map(|(_, reason)| reason)
    }

    /// When the next attempt or departure is due, or the session is given up.
    pub(super) fn poll_timeout(&self, is_attached: bool) -> Option<Time> {
        let return_at = self.routes.return_at().filter(|_| !is_attached);
        let departure = self.departure.map(|departure| departure.at);
        let give_up = self.give_up().map(|(at, _)| at);
        [self.retry_at, departure, return_at, give_up].into_iter().flatten().min()
    }

    fn is_own_port(&self, address: SocketAddr) -> bool {
        self.server_port == Some(address)
    }
}

/// The index of the server's own port.
fn own_port_of(targets: &[LinkTarget], server_port: Option<SocketAddr>) -> Option<usize> {
    targets.iter().position(|target| Some(target.address) == server_port)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use spillway_auth::Key;
    use spillway_batch::Encryption;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn target(last: u8) -> LinkTarget {
        let address = SocketAddr::from(([10, 0, 0, last], 11411));
        LinkTarget { address, key: Key::loopback_only(), server: None, encryption: Encryption::Off }
    }

    /// A session that is attached at the server's own port, and was asked to move to a helper within a second.
    fn schedule_with_move() -> Schedule {
        let own_port = target(1).address;
        let settings = SessionSettings { server_port: Some(own_port), ..SessionSettings::default() };
        let mut schedule = Schedule::new(Time::ZERO, vec![target(1), target(2)], &settings, 7);
        assert_eq!(schedule.poll_target(Time::ZERO).map(|target| target.address), Some(own_port));
        schedule.note_attached(own_port);
        schedule.schedule_move(Time::ZERO, SECOND);
        schedule
    }

    #[test]
    fn a_session_stays_if_the_route_that_it_was_asked_to_take_is_removed() {
        let mut schedule = schedule_with_move();
        schedule.replace(vec![target(1)], Some(target(1).address));
        assert_eq!(schedule.poll_leave(Time::ZERO + SECOND), None);
    }

    #[test]
    fn a_session_that_was_asked_to_move_uses_the_new_route_list() {
        let mut schedule = schedule_with_move();
        schedule.replace(vec![target(3), target(1)], Some(target(1).address));
        assert_eq!(schedule.poll_leave(Time::ZERO + SECOND), Some(Leaving::AskedToMove));
        let next = schedule.poll_target(Time::ZERO + SECOND);
        assert_eq!(next.map(|target| target.address), Some(target(3).address));
    }
}

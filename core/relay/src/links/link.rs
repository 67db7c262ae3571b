//! One link to a server in all its states: when it connects, what replaces it, and what it has done so far.

use alloc::boxed::Box;
use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{KeyId, LinkError, OpenerConfig, PolicyKind, Verdict};
use spillway_transport::{Conn, Time};

use crate::config::{ServiceConfig, Timeouts};
use crate::counters::Past;
use crate::links::linked::Linked;
use crate::marked::Turns;
use crate::reasons::LinkDown;
use crate::status::{LinkState, LinkStatus};

/// A link of a service, open or not.
#[derive(Debug)]
pub(crate) struct Link {
    service: u16,
    /// Which of the service's links.
    number: u16,
    state: State,
    tenure: Tenure,
    /// Which of the service's keys it opens with.
    key: usize,
    /// Failures in a row.
    failures: u32,
    /// What its earlier connections have done.
    past: Past,
}

/// What a link is to its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tenure {
    /// Opened as configured, and opened again when it is lost.
    Current,
    /// Replaced, and takes clients until a new link is up. Its clients then have to leave within this time.
    StandsIn { within: Option<Duration> },
    /// Carries the clients that it has, until the deadline.
    Retired { deadline: Option<Time> },
    /// Its place is free.
    Gone,
}

#[derive(Debug)]
enum State {
    Waiting { until: Time },
    Connecting { conn: Conn, deadline: Time },
    Linked(Box<Linked>),
    Closed,
}

/// What is due on a link.
#[derive(Debug, PartialEq)]
pub(crate) enum Due {
    Nothing,
    /// It is to be connected.
    Connect,
    /// Its connection has failed.
    Failed(Conn, LinkDown),
}

/// What a link had when it was closed.
#[derive(Debug)]
pub(crate) enum Ended {
    Nothing,
    Connecting(Conn),
    Linked(Box<Linked>),
}

impl Link {
    pub(crate) fn new(service: u16, number: u16) -> Link {
        Link {
            service,
            number,
            state: State::Waiting { until: Time::ZERO },
            tenure: Tenure::Current,
            key: 0,
            failures: 0,
            past: Past::default(),
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    /// Which of the service's links it is.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn tenure(&self) -> Tenure {
        self.tenure
    }

    /// What it has done since the start, its present connection included.
    pub(crate) fn done(&self) -> Past {
        let mut done = self.past;
        if let Some(linked) = self.linked() {
            linked.add_to(&mut done);
        }
        done
    }

    pub(crate) fn linked(&self) -> Option<&Linked> {
        match &self.state {
            State::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    pub(crate) fn linked_mut(&mut self) -> Option<&mut Linked> {
        match &mut self.state {
            State::Linked(linked) => Some(linked),
            _ => None,
        }
    }

    /// Whether new clients can be put on it.
    pub(crate) fn takes_clients(&self) -> bool {
        let may = matches!(self.tenure, Tenure::Current | Tenure::StandsIn { .. });
        may && self.linked().is_some_and(Linked::takes_clients)
    }

    /// What is due at this time.
    pub(crate) fn handle_timeout(&mut self, now: Time) -> Due {
        match &mut self.state {
            State::Waiting { until } if *until <= now => Due::Connect,
            State::Connecting { conn, deadline } if *deadline <= now => {
                Due::Failed(*conn, LinkDown::ConnectTimeout)
            }
            State::Linked(linked) => match linked.handle_timeout(now) {
                Ok(()) => Due::Nothing,
                Err(error) => Due::Failed(linked.conn(), LinkDown::Link(error)),
            },
            _ => Due::Nothing,
        }
    }

    /// A connection to the server was begun.
    pub(crate) fn connecting(&mut self, conn: Conn, deadline: Time) {
        self.state = State::Connecting { conn, deadline };
    }

    /// The key to authenticate with. Settings may have changed since the connection was begun.
    pub(crate) fn key(&self, service: &ServiceConfig) -> Key {
        let key = service.keys.get(self.key).or(service.keys.first()).cloned();
        key.unwrap_or_else(Key::loopback_only)
    }

    /// The connection is open: both ends authenticate now.
    pub(crate) fn opened(
        &mut self,
        now: Time,
        conn: Conn,
        config: &OpenerConfig,
        fresh: spillway_batch::Fresh,
    ) {
        self.state = State::Linked(Box::new(Linked::new(now, conn, config, fresh)));
    }

    /// Both ends have authenticated. When it is lost it is opened with the newest key again.
    pub(crate) fn came_up(&mut self) {
        self.failures = 0;
        self.key = 0;
        if let Some(linked) = self.linked_mut() {
            linked.came_up();
        }
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyKind) {
        if let Some(linked) = self.linked_mut() {
            linked.set_policy(policy);
        }
    }

    /// Ends its connection, whose end is the caller's.
    pub(crate) fn close(&mut self) -> Ended {
        match core::mem::replace(&mut self.state, State::Closed) {
            State::Waiting { .. } | State::Closed => Ended::Nothing,
            State::Connecting { conn, .. } => Ended::Connecting(conn),
            State::Linked(linked) => {
                linked.add_to(&mut self.past);
                Ended::Linked(linked)
            }
        }
    }

    /// A closed link is not opened again: its place is free. Returns what it has done.
    #[must_use]
    pub(crate) fn forget(&mut self) -> Past {
        debug_assert!(matches!(self.state, State::Closed), "closed before it is forgotten");
        self.tenure = Tenure::Gone;
        core::mem::take(&mut self.past)
    }

    /// The link is down. If the server did not accept its key and the service has an older one, that one is tried at once:
    /// returns the key that was not accepted.
    pub(crate) fn try_older_key(&mut self, now: Time, keys: &[Key], why: LinkDown) -> Option<KeyId> {
        let is_refused = why == LinkDown::Link(LinkError::RefusedByServer(Verdict::Key));
        if !is_refused || self.tenure != Tenure::Current {
            return None;
        }
        let tried = keys.get(self.key).map(Key::id);
        self.key += 1;
        if self.key >= keys.len() {
            self.key = 0;
            return None;
        }
        self.state = State::Waiting { until: now };
        tried
    }

    /// Waits before the next attempt: the minimum doubled for each failure in a row up to the maximum, and of
    /// that between a half and all, by `random`, so that helpers do not come back all at once.
    pub(crate) fn wait(&mut self, now: Time, timeouts: &Timeouts, random: u16) -> Duration {
        let longest = timeouts.reconnect_min.saturating_mul(1 << self.failures.min(16));
        let longest = longest.min(timeouts.reconnect_max);
        self.failures += 1;
        let delay = longest / 2 + (longest / 2).mul_f64(f64::from(random) / f64::from(u16::MAX));
        self.state = State::Waiting { until: now + delay };
        delay
    }

    /// Another link takes its place. With `within`, its clients must leave in that time. False: it carries nothing, and may
    /// be closed at once.
    #[must_use]
    pub(crate) fn replace(&mut self, now: Time, within: Option<Duration>) -> bool {
        let is_up = self.linked().is_some_and(Linked::is_up);
        match self.tenure {
            Tenure::Current if is_up => self.tenure = Tenure::StandsIn { within },
            // Its clients were sent away before the server changed: from now on the deadline counts.
            Tenure::StandsIn { within: None } if is_up => self.tenure = Tenure::StandsIn { within },
            Tenure::Retired { deadline: None } => {
                self.tenure = Tenure::Retired { deadline: within.map(|within| now + within) };
            }
            Tenure::Current => return false,
            Tenure::StandsIn { .. } | Tenure::Retired { .. } | Tenure::Gone => {}
        }
        true
    }

    /// Takes no more clients, and ends with those that it has, or at the deadline.
    pub(crate) fn retire(&mut self, deadline: Option<Time>) {
        self.tenure = Tenure::Retired { deadline };
    }

    pub(crate) fn status(&self) -> LinkStatus {
        let state = match &self.state {
            State::Waiting { .. } => LinkState::Waiting,
            State::Connecting { .. } => LinkState::Connecting,
            State::Linked(linked) if !linked.is_up() => LinkState::Connecting,
            State::Linked(linked) if linked.is_draining() => LinkState::Draining,
            State::Linked(_) if matches!(self.tenure, Tenure::Retired { .. }) => LinkState::Draining,
            State::Linked(_) => LinkState::Up,
            State::Closed => LinkState::Closed,
        };
        let linked = self.linked();
        LinkStatus {
            state,
            connections: linked.map_or(0, |linked| u32::try_from(linked.connections()).unwrap_or(u32::MAX)),
            pending_bytes: linked.map_or(0, Linked::pending),
            replaced: self.tenure != Tenure::Current,
            key: linked.map(Linked::key),
            encrypted: linked.is_some_and(Linked::is_encrypted),
        }
    }
}

impl Turns for Link {
    fn deadline(&self) -> Option<Time> {
        let retired = match self.tenure {
            Tenure::Retired { deadline } => deadline,
            _ => None,
        };
        let state = match &self.state {
            State::Waiting { until } => Some(*until),
            State::Connecting { deadline, .. } => Some(*deadline),
            State::Linked(linked) => linked.poll_timeout(),
            State::Closed => None,
        };
        [retired, state].into_iter().flatten().min()
    }

    fn is_unfinished(&self) -> bool {
        self.linked().is_some_and(Linked::is_unfinished)
    }

    fn is_at_rest(&self) -> bool {
        let has_ended = matches!(self.tenure, Tenure::Retired { .. })
            && self.linked().is_none_or(|linked| linked.connections() == 0);
        !has_ended && self.linked().is_none_or(Linked::is_at_rest)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn waits_longer_after_each_failure_and_never_too_long() {
        let reconnect_max = Duration::from_secs(2);
        let timeouts = Timeouts { reconnect_max, ..Timeouts::default() };
        let mut link = Link::new(0, 0);
        for expected_ms in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let longest = Duration::from_millis(expected_ms);
            let delay = link.wait(Time(0), &timeouts, u16::MAX);
            assert_eq!(delay, longest);
            assert_eq!(link.deadline(), Some(Time(0) + longest));
        }
        for _ in 0..100 {
            assert_eq!(link.wait(Time(0), &timeouts, 0), reconnect_max / 2);
        }
        link.came_up();
        assert_eq!(link.wait(Time(7), &timeouts, 0), timeouts.reconnect_min / 2);
    }

    #[test]
    fn each_older_key_is_tried_once() {
        let keys = vec![Key::from_secret([1; 32]), Key::from_secret([2; 32])];
        let refused = LinkDown::Link(LinkError::RefusedByServer(Verdict::Key));
        let mut link = Link::new(0, 0);
        assert_eq!(link.try_older_key(Time(0), &keys, LinkDown::HostFull), None);
        assert_eq!(link.try_older_key(Time(3), &keys, refused), Some(keys[0].id()));
        assert_eq!(link.handle_timeout(Time(3)), Due::Connect, "at once");
        assert_eq!(link.try_older_key(Time(4), &keys, refused), None, "there is no other");
        link.retire(None);
        assert_eq!(link.try_older_key(Time(5), &keys, refused), None, "it was replaced");
    }

    #[test]
    fn a_link_that_carries_nothing_ends_when_it_is_replaced() {
        let mut link = Link::new(0, 0);
        assert!(!link.replace(Time(0), None));
        link.retire(None);
        let within = Duration::from_secs(1);
        assert!(link.replace(Time(5), Some(within)));
        assert_eq!(link.tenure(), Tenure::Retired { deadline: Some(Time(5) + within) });
        assert!(link.replace(Time(9), Some(within)), "the first deadline stays");
        assert_eq!(link.deadline(), Some(Time(0)), "it would connect");
    }
}

//! One link to a server in all its states: connecting, open, replaced, closed.

use alloc::boxed::Box;
use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{KeyId, LinkError, OpenerConfig, PolicyKind, Verdict};
use spillway_transport::{Conn, Time};

use crate::config::{ServiceConfig, Timeouts};
use crate::counters::LinkTotals;
use crate::links::linked::Linked;
use crate::marked::Turns;
use crate::reasons::LinkDown;
use crate::status::{LinkState, LinkStatus};

/// A link of a service, open or not.
#[derive(Debug)]
pub(crate) struct Link {
    service: u16,
    /// Number among the service's links.
    number: u16,
    state: State,
    lifecycle: Lifecycle,
    /// Index of the key among the service's keys.
    key: usize,
    /// Failures since the link was last up.
    failures: u32,
    /// Totals of earlier connections.
    earlier_totals: LinkTotals,
}

/// Whether a link accepts new clients, and whether the link is opened again when it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// Configured; opened again when it is lost.
    Current,
    /// Replaced, but accepts clients until a new link is up. From then on its clients have the time `within`
    /// to leave, if it is set.
    Replaced { within: Option<Duration> },
    /// Accepts no clients, and is closed when its last client has left or at the deadline.
    Retired { deadline: Option<Time> },
    /// The index is not in use.
    Free,
}

#[derive(Debug)]
enum State {
    Waiting { until: Time },
    Connecting { conn: Conn, deadline: Time },
    Linked(Box<Linked>),
    Closed,
}

/// What the caller must do after a timeout of a link.
#[derive(Debug, PartialEq)]
pub(crate) enum Due {
    Nothing,
    Connect,
    /// Abort this connection: it has failed.
    Failed(Conn, LinkDown),
}

/// State of a link before it was closed.
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
            lifecycle: Lifecycle::Current,
            key: 0,
            failures: 0,
            earlier_totals: LinkTotals::default(),
        }
    }

    pub(crate) fn service(&self) -> u16 {
        self.service
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle
    }

    /// Totals since the start, including the present connection.
    pub(crate) fn totals(&self) -> LinkTotals {
        let mut totals = self.earlier_totals;
        if let Some(linked) = self.linked() {
            linked.add_to(&mut totals);
        }
        totals
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

    pub(crate) fn accepts_clients(&self) -> bool {
        let is_in_use = matches!(self.lifecycle, Lifecycle::Current | Lifecycle::Replaced { .. });
        is_in_use && self.linked().is_some_and(Linked::accepts_clients)
    }

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

    pub(crate) fn begin_connecting(&mut self, conn: Conn, deadline: Time) {
        self.state = State::Connecting { conn, deadline };
    }

    /// The key to authenticate with. Falls back to the newest key if a reload has removed the chosen one.
    pub(crate) fn key(&self, service: &ServiceConfig) -> Key {
        let key = service.keys.get(self.key).or(service.keys.first()).cloned();
        key.unwrap_or_else(Key::loopback_only)
    }

    /// The connection is open, and authentication begins.
    pub(crate) fn begin_authentication(
        &mut self,
        now: Time,
        conn: Conn,
        config: &OpenerConfig,
        randomness: spillway_batch::LinkRandomness,
    ) {
        self.state = State::Linked(Box::new(Linked::new(now, conn, config, randomness)));
    }

    /// Both ends have authenticated. The next connection starts with the newest key again.
    pub(crate) fn mark_up(&mut self) {
        self.failures = 0;
        self.key = 0;
        if let Some(linked) = self.linked_mut() {
            linked.mark_up();
        }
    }

    pub(crate) fn set_policy(&mut self, policy: PolicyKind) {
        if let Some(linked) = self.linked_mut() {
            linked.set_policy(policy);
        }
    }

    /// Closes the link. The caller must end the returned connection.
    pub(crate) fn close(&mut self) -> Ended {
        match core::mem::replace(&mut self.state, State::Closed) {
            State::Waiting { .. } | State::Closed => Ended::Nothing,
            State::Connecting { conn, .. } => Ended::Connecting(conn),
            State::Linked(linked) => {
                linked.add_to(&mut self.earlier_totals);
                Ended::Linked(linked)
            }
        }
    }

    /// Frees the index of a closed link. Returns the link's totals.
    #[must_use]
    pub(crate) fn forget(&mut self) -> LinkTotals {
        debug_assert!(matches!(self.state, State::Closed), "the link should be closed");
        self.lifecycle = Lifecycle::Free;
        core::mem::take(&mut self.earlier_totals)
    }

    /// The link is down. If the server rejected the key and the service has an older one, schedules an attempt with the
    /// older key at once and returns the rejected key.
    pub(crate) fn try_older_key(&mut self, now: Time, keys: &[Key], why: LinkDown) -> Option<KeyId> {
        let is_refused = why == LinkDown::Link(LinkError::RefusedByServer(Verdict::Key));
        if !is_refused || self.lifecycle != Lifecycle::Current {
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

    /// Schedules the next attempt and returns its delay: `reconnect_min`, doubled for each failure up to
    /// `reconnect_max`, and reduced by up to a half with `random`, so that helpers do not all reconnect at the same
    /// time.
    pub(crate) fn schedule_retry(&mut self, now: Time, timeouts: &Timeouts, random: u16) -> Duration {
        let delay_max = timeouts.reconnect_min.saturating_mul(1 << self.failures.min(16));
        let delay_max = delay_max.min(timeouts.reconnect_max);
        self.failures += 1;
        let delay = delay_max / 2 + (delay_max / 2).mul_f64(f64::from(random) / f64::from(u16::MAX));
        self.state = State::Waiting { until: now + delay };
        delay
    }

    /// Marks the link as replaced by a new one. With `within`, its clients must leave in that time. False:
    /// the link is not up, and the caller must close it.
    #[must_use]
    pub(crate) fn mark_replaced(&mut self, now: Time, within: Option<Duration>) -> bool {
        let is_up = self.linked().is_some_and(Linked::is_up);
        match self.lifecycle {
            Lifecycle::Current if is_up => self.lifecycle = Lifecycle::Replaced { within },
            // The earlier replacement had no time limit.
            Lifecycle::Replaced { within: None } if is_up => self.lifecycle = Lifecycle::Replaced { within },
            Lifecycle::Retired { deadline: None } => {
                self.lifecycle = Lifecycle::Retired { deadline: within.map(|within| now + within) };
            }
            Lifecycle::Current => return false,
            Lifecycle::Replaced { .. } | Lifecycle::Retired { .. } | Lifecycle::Free => {}
        }
        true
    }

    /// Accepts no more clients; the link is closed when its last client has left, or at the deadline.
    pub(crate) fn retire(&mut self, deadline: Option<Time>) {
        // A second reload does not extend an earlier deadline.
        let earlier = match self.lifecycle {
            Lifecycle::Retired { deadline } => deadline,
            _ => None,
        };
        self.lifecycle = Lifecycle::Retired { deadline: earlier.into_iter().chain(deadline).min() };
    }

    pub(crate) fn status(&self) -> LinkStatus {
        let state = match &self.state {
            State::Waiting { .. } => LinkState::Waiting,
            State::Connecting { .. } => LinkState::Connecting,
            State::Linked(linked) if !linked.is_up() => LinkState::Connecting,
            State::Linked(linked) if linked.is_draining() => LinkState::Draining,
            State::Linked(_) if matches!(self.lifecycle, Lifecycle::Retired { .. }) => LinkState::Draining,
            State::Linked(_) => LinkState::Up,
            State::Closed => LinkState::Closed,
        };
        let linked = self.linked();
        LinkStatus {
            state,
            connections: linked.map_or(0, |linked| u32::try_from(linked.connections()).unwrap_or(u32::MAX)),
            pending_bytes: linked.map_or(0, Linked::pending),
            replaced: self.lifecycle != Lifecycle::Current,
            key: linked.map(Linked::key),
            encrypted: linked.is_some_and(Linked::is_encrypted),
        }
    }
}

impl Turns for Link {
    fn deadline(&self) -> Option<Time> {
        let retired = match self.lifecycle {
            Lifecycle::Retired { deadline } => deadline,
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
        let has_ended = matches!(self.lifecycle, Lifecycle::Retired { .. })
            && self.linked().is_none_or(|linked| linked.connections() == 0);
        !has_ended && self.linked().is_none_or(Linked::is_at_rest)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn delay_doubles_with_each_failure_up_to_the_maximum() {
        let reconnect_max = Duration::from_secs(2);
        let timeouts = Timeouts { reconnect_max, ..Timeouts::default() };
        let mut link = Link::new(0, 0);
        for expected_ms in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            let delay_max = Duration::from_millis(expected_ms);
            let delay = link.schedule_retry(Time(0), &timeouts, u16::MAX);
            assert_eq!(delay, delay_max);
            assert_eq!(link.deadline(), Some(Time(0) + delay_max));
        }
        for _ in 0..100 {
            assert_eq!(link.schedule_retry(Time(0), &timeouts, 0), reconnect_max / 2);
        }
        link.mark_up();
        assert_eq!(link.schedule_retry(Time(7), &timeouts, 0), timeouts.reconnect_min / 2);
    }

    #[test]
    fn each_older_key_is_tried_once() {
        let keys = vec![Key::from_secret([1; 32]), Key::from_secret([2; 32])];
        let refused = LinkDown::Link(LinkError::RefusedByServer(Verdict::Key));
        let mut link = Link::new(0, 0);
        assert_eq!(link.try_older_key(Time(0), &keys, LinkDown::HostFull), None);
        assert_eq!(link.try_older_key(Time(3), &keys, refused), Some(keys[0].id()));
        assert_eq!(link.handle_timeout(Time(3)), Due::Connect, "the attempt should be due at once");
        assert_eq!(
            link.try_older_key(Time(4), &keys, refused),
            None,
            "no key should be left after two attempts"
        );
        link.retire(None);
        assert_eq!(
            link.try_older_key(Time(5), &keys, refused),
            None,
            "a retired link should try no other key"
        );
    }

    #[test]
    fn replaced_link_is_closed_at_once_unless_it_is_up() {
        let mut link = Link::new(0, 0);
        assert!(!link.mark_replaced(Time(0), None), "a link that is not up should be closed at once");
        link.retire(None);
        let within = Duration::from_secs(1);
        assert!(link.mark_replaced(Time(5), Some(within)), "a link that is up should be closed later");
        assert_eq!(link.lifecycle(), Lifecycle::Retired { deadline: Some(Time(5) + within) });
        assert!(link.mark_replaced(Time(9), Some(within)), "the first deadline should stay");
        assert_eq!(link.deadline(), Some(Time(0)), "the attempt to connect should be due first");
    }
}

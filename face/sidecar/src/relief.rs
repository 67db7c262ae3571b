//! One network thread's group of sessions, and the relief policy that decides each session's carrier.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_client::relief::{ActivationSettings, Move, Relief as Policy, ReliefSettings};
use spillway_client::session::{Session, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget};
use spillway_policy::Override;
use tracing::info;

use crate::settings::Settings;
use crate::thread_state::{ReliefState, ThreadState};

pub(crate) use spillway_client::relief::Member;

/// The relief policy of one network thread, with the server's link port and key.
#[derive(Debug)]
pub(crate) struct Relief {
    policy: Policy,
    server: LinkTarget,
    key: Key,
    /// The state has changed since [`Relief::publish`].
    is_changed: bool,
}

impl Relief {
    /// # Errors
    /// The host has no descriptors left, or the SLA is out of its bounds.
    pub fn new(now: Instant, settings: &Settings) -> io::Result<Relief> {
        let key = settings.key.clone();
        let server = LinkTarget {
            address: settings.server,
            key: key.clone(),
            server: None,
            encryption: settings.encryption,
        };
        let activation = ActivationSettings { sla: settings.sla, ..ActivationSettings::default() };
        let relief_settings = ReliefSettings {
            activation,
            helpers_asked: settings.helpers_asked,
            ..ReliefSettings::new(server.clone(), Vec::new())
        };
        let mut policy = Policy::new(now, relief_settings)?;
        if settings.manual_override != Override::Auto {
            policy.set_override(now, settings.manual_override, None);
        }
        Ok(Relief { policy, server, key, is_changed: true })
    }

    /// Replaces the list of helpers. Sessions on a helper that is no longer listed stay there until that
    /// carrier is lost.
    pub fn set_helpers(&mut self, now: Instant, helpers: &[SocketAddr]) {
        let target = |address: &SocketAddr| LinkTarget {
            address: *address,
            key: self.key.clone(),
            server: None,
            encryption: self.server.encryption,
        };
        self.policy.set_helpers(now, helpers.iter().map(target).collect());
        self.is_changed = true;
    }

    /// Sets the operator's override; `lasts` is `None` until the next override.
    pub fn set_override(&mut self, now: Instant, new: Override, lasts: Option<Duration>) {
        self.policy.set_override(now, new, lasts);
        self.is_changed = true;
    }

    /// Adds a connection to the group; [`poll_move`](Self::poll_move) returns its first move. `None`: the group is
    /// full, and the connection uses the server's link port.
    pub fn join(&mut self, now: Instant) -> Option<Member> {
        self.policy.join(now)
    }

    /// Opens a session at the server for a connection outside the group.
    ///
    /// # Errors
    /// The host has no descriptors left.
    pub fn open_at_server(&self, now: Instant) -> io::Result<Session> {
        let settings =
            SessionSettings { server_port: Some(self.server.address), ..SessionSettings::default() };
        Session::open(now, vec![self.server.clone()], settings)
    }

    pub fn leave(&mut self, now: Instant, member: Member) {
        self.policy.leave(now, member);
    }

    pub fn record_latency(&mut self, now: Instant, member: Member, latency: Duration) {
        self.policy.record_latency(now, member, latency);
    }

    /// Records since when a connection waits for a measured reply; `None` if it does not wait. Call on each change.
    pub fn set_oldest_request(&mut self, member: Member, since: Option<Instant>) {
        self.policy.set_oldest_request(member, since);
    }

    pub fn handle_event(&mut self, now: Instant, member: Member, event: &SessionEvent) {
        self.policy.handle_event(now, member, event);
    }

    /// Reads the helpers' load reports. Call when the descriptor is readable.
    pub fn handle_ready(&mut self, now: Instant) {
        self.policy.handle_ready(now);
    }

    pub fn handle_timeout(&mut self, now: Instant) {
        if self.policy.poll_timeout().is_some_and(|at| at <= now) {
            self.policy.handle_timeout(now);
        }
    }

    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.policy.poll_timeout()
    }

    /// The next session to open or to move. Call until `None`.
    #[must_use]
    pub fn poll_move(&mut self) -> Option<Move> {
        self.policy.poll_move()
    }

    pub fn helpers(&self) -> usize {
        self.policy.helpers().len()
    }

    /// Logs the policy's decisions, and updates the thread's public state if something has changed.
    pub fn log_decisions(&mut self, now: Instant, thread: &ThreadState) {
        while let Some(notice) = self.policy.poll_notice() {
            info!(decision = notice.label(), "relief: {notice}");
            self.is_changed = true;
        }
        if std::mem::take(&mut self.is_changed) {
            self.publish(now, thread);
        }
    }

    /// Copies the policy's state into the thread's public state.
    pub fn publish(&self, now: Instant, thread: &ThreadState) {
        let status = self.policy.status(now);
        let helpers = self.policy.helpers().iter().map(|helper| helper.address).collect();
        let counters = *self.policy.counters();
        thread.set_relief(ReliefState {
            stage: status.stage,
            relief_override: status.manual_override,
            counters,
            helpers,
        });
    }
}

impl AsFd for Relief {
    /// Readable when [`handle_ready`](Relief::handle_ready) must be called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.policy.as_fd()
    }
}

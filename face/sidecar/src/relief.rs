//! Where sessions go: one network thread's group of connections, and the policy that decides for it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use spillway_client::relief::{ActivationSettings, Move, Relief as Policy, ReliefSettings};
use spillway_client::session::{Session, SessionEvent, SessionSettings};
use spillway_client::{Key, LinkTarget};
use spillway_policy::Override;
use tracing::info;

use crate::part::{Part, ReliefPart};
use crate::settings::Settings;

pub(crate) use spillway_client::relief::Member;

/// What one network thread knows of the service.
#[derive(Debug)]
pub(crate) struct Relief {
    policy: Policy,
    server: LinkTarget,
    key: Key,
    /// Since it was last told to whoever asks.
    is_news: bool,
}

impl Relief {
    /// # Errors
    /// The host has no descriptors, or the SLA is out of its bounds.
    pub fn new(now: Instant, settings: &Settings) -> io::Result<Relief> {
        let key = settings.key.clone();
        let server = LinkTarget {
            address: settings.server,
            key: key.clone(),
            server: None,
            encryption: settings.encryption,
        };
        let activation = ActivationSettings { sla: settings.sla, ..ActivationSettings::default() };
        let wanted = ReliefSettings {
            activation,
            asked: settings.asked,
            ..ReliefSettings::new(server.clone(), Vec::new())
        };
        let mut policy = Policy::new(now, wanted)?;
        if settings.word != Override::Auto {
            policy.say(now, settings.word, None);
        }
        Ok(Relief { policy, server, key, is_news: true })
    }

    /// Other helpers from now on. Sessions that are with one that is no longer among them stay there until it goes.
    pub fn set_helpers(&mut self, now: Instant, helpers: &[SocketAddr]) {
        let target = |address: &SocketAddr| LinkTarget {
            address: *address,
            key: self.key.clone(),
            server: None,
            encryption: self.server.encryption,
        };
        self.policy.set_helpers(now, helpers.iter().map(target).collect());
        self.is_news = true;
    }

    /// The operator's override.
    pub fn say(&mut self, now: Instant, word: Override, lasts: Option<Duration>) {
        self.policy.say(now, word, lasts);
        self.is_news = true;
    }

    /// A new connection: its first move comes from [`poll_move`](Self::poll_move). `None`: there are too many of them to
    /// be led; it goes to the server.
    pub fn join(&mut self, now: Instant) -> Option<Member> {
        self.policy.join(now)
    }

    /// A session for a connection that is not led.
    ///
    /// # Errors
    /// The host has no descriptors.
    pub fn open_at_server(&self, now: Instant) -> io::Result<Session> {
        let settings =
            SessionSettings { server_port: Some(self.server.address), ..SessionSettings::default() };
        Session::open(now, vec![self.server.clone()], settings)
    }

    /// A connection has ended.
    pub fn leave(&mut self, now: Instant, member: Member) {
        self.policy.leave(now, member);
    }

    /// A reply took so long.
    pub fn measured(&mut self, now: Instant, member: Member, latency: Duration) {
        self.policy.measured(now, member, latency);
    }

    /// Since when a connection waits for a reply that counts. Said when it changes.
    pub fn waits_since(&mut self, member: Member, since: Option<Instant>) {
        self.policy.waits_since(member, since);
    }

    /// Something happened to a session.
    pub fn note(&mut self, now: Instant, member: Member, event: &SessionEvent) {
        self.policy.note(now, member, event);
    }

    /// Helpers have answered.
    pub fn handle_ready(&mut self, now: Instant) {
        self.policy.handle_ready(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.policy.poll_timeout().is_some_and(|at| at <= now) {
            self.policy.handle_timeout(now);
        }
    }

    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.policy.poll_timeout()
    }

    /// Whom to open, or to send elsewhere.
    #[must_use]
    pub fn poll_move(&mut self) -> Option<Move> {
        self.policy.poll_move()
    }

    /// How many helpers are known.
    pub fn helpers(&self) -> usize {
        self.policy.helpers().len()
    }

    /// Says its decisions in the log, and how it stands to whoever asks.
    pub fn tell(&mut self, now: Instant, part: &Part) {
        while let Some(notice) = self.policy.poll_notice() {
            info!(decision = notice.label(), "relief: {notice}");
            self.is_news = true;
        }
        if std::mem::take(&mut self.is_news) {
            self.show(now, part);
        }
    }

    /// As it stands now.
    pub fn show(&self, now: Instant, part: &Part) {
        let status = self.policy.status(now);
        let helpers = self.policy.helpers().iter().map(|helper| helper.address).collect();
        let counters = *self.policy.counters();
        part.show(ReliefPart { stage: status.stage, word: status.word, counters, helpers });
    }
}

impl AsFd for Relief {
    /// Readable when there is something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.policy.as_fd()
    }
}

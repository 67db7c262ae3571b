//! When a server moves live connections to other servers, and which: decisions for migration (Capybara §2, §3.3).
//!
//! A server measures its load and the rates of its connections, and knows the others' loads from their heartbeats. At
//! each *look*, about every 10 ms, its rule plans moves: [`Reactive`](MovePolicy::Reactive), the paper's, or
//! [`Proactive`](MovePolicy::Proactive). Limits that no rule can exceed apply when the moves are made. The operator's
//! override *off* forbids moves; *on* ignores the thresholds, but not the limits.
//!
//! - `settings`: rules, thresholds and limits; `decision`: decisions with their reasons
//! - `load`: the server's own load; `connections`: rates, and which connections may move; `peers`: the other servers
//! - `view`: what a rule sees at a look; `reactive`, `proactive`: the rules

mod connections;
mod decision;
mod load;
mod peers;
mod proactive;
mod reactive;
mod settings;
mod view;

use alloc::collections::VecDeque;
use core::time::Duration;

use spillway_parts::Random;
use spillway_transport::Time;
use spillway_wire::switch::ServerId;

pub use connections::{CONNECTIONS_MAX, ConnectionId};
pub use decision::{Decision, Reason, Target};
pub use load::{LOAD_REPORTED_MAX, LoadSample, OwnLoad};
pub use peers::{PEERS_MAX, PeerReport};
pub use settings::{MigrationSettings, MoveLimits, MovePolicy, ProactiveSettings, ReactiveSettings};

use self::connections::Connections;

use self::peers::Peers;
use self::proactive::Proactive;
use self::reactive::Reactive;
use self::view::{Planned, View};
use crate::activation::OutOfBounds;
use crate::limiter::Limiter;
use crate::relief_override::{CurrentOverride, Override};

#[derive(Clone, Debug)]
enum Rule {
    Reactive(Reactive),
    Proactive(Proactive),
}

/// Counters since the start; each only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationCounters {
    /// Decisions to move a connection.
    pub decisions: u64,
    /// Decisions whose move failed.
    pub failed: u64,
    /// Planned moves that the limits forbade when their turn came.
    pub forbidden: u64,
    /// Connections that joined beyond [`CONNECTIONS_MAX`].
    pub connections_ignored: u64,
    /// Heartbeats of servers beyond [`PEERS_MAX`].
    pub heartbeats_ignored: u64,
}

/// Decides for one server. Report events, pass a [`LoadSample`] about every 10 ms, and then call [`poll`](Self::poll)
/// until `None`, and again at [`poll_timeout`](Self::poll_timeout).
#[derive(Clone, Debug)]
pub struct Migration {
    settings: MigrationSettings,
    rule: Rule,
    random: Random,
    current_override: CurrentOverride,
    own: OwnLoad,
    peers: Peers,
    connections: Connections,
    limiter: Limiter,
    /// The moves of the last look that are still to be made.
    planned: VecDeque<Planned>,
    decisions: u64,
    failed: u64,
    forbidden: u64,
}

impl Migration {
    /// A server without connections and peers. `seed` must differ between servers.
    ///
    /// # Errors
    /// A setting is out of its bounds.
    pub fn new(settings: MigrationSettings, seed: u64) -> Result<Migration, OutOfBounds> {
        settings.check()?;
        let rule = match settings.policy {
            MovePolicy::Reactive(reactive) => Rule::Reactive(Reactive::new(reactive)),
            MovePolicy::Proactive(proactive) => Rule::Proactive(Proactive::new(proactive)),
        };
        Ok(Migration {
            settings,
            rule,
            random: Random::new(seed),
            current_override: CurrentOverride::default(),
            own: OwnLoad::new(settings.queueing_full),
            peers: Peers::default(),
            connections: Connections::default(),
            limiter: Limiter::new(settings.limits.moves_per_s_max),
            planned: VecDeque::new(),
            decisions: 0,
            failed: 0,
            forbidden: 0,
        })
    }

    /// A connection joins: a new one, or one that `came_from` another server by a move. Returns false if the table is
    /// full; the connection then never moves.
    pub fn join(&mut self, now: Time, connection: ConnectionId, came_from: Option<ServerId>) -> bool {
        self.connections.join(now, connection, came_from, &self.settings.limits)
    }

    /// A connection ends, or its move has succeeded.
    pub fn leave(&mut self, connection: ConnectionId) {
        self.connections.leave(connection);
    }

    /// The move of a connection failed: the connection stays at this server.
    pub fn not_moved(&mut self, now: Time, connection: ConnectionId) {
        self.failed += u64::from(self.connections.stay(now, connection, &self.settings.limits));
    }

    /// Requests arrived on this connection.
    pub fn record_requests(&mut self, connection: ConnectionId, requests: u32) {
        self.connections.record_requests(connection, requests);
    }

    /// A server of the same service has sent a heartbeat.
    pub fn heartbeat(&mut self, now: Time, server: ServerId, report: PeerReport) {
        self.peers.heartbeat(now, server, report);
    }

    /// Removes a server from the peers.
    pub fn remove_peer(&mut self, server: ServerId) {
        self.peers.remove(server);
    }

    /// Sets the operator's override, for the time `lasts` or without limit.
    pub fn set_override(&mut self, now: Time, manual_override: Override, lasts: Option<Duration>) {
        self.current_override.set(now, manual_override, lasts);
        self.planned.clear();
    }

    /// The override in force.
    pub fn manual_override(&self, now: Time) -> Override {
        self.current_override.at(now)
    }

    /// Takes the measurements of a look, and plans moves. Plans of the last look that are not made yet are dropped.
    pub fn sample(&mut self, now: Time, sample: LoadSample) {
        self.planned.clear();
        let Some(passed) = self.own.sample(now, sample) else { return };
        let demand = self.connections.look(passed) * self.own.cost_s;
        let is_forced = match self.current_override.at(now) {
            Override::Off => return,
            Override::On => true,
            Override::Auto => false,
        };
        self.plan(now, demand, is_forced);
    }

    fn plan(&mut self, now: Time, demand: f64, is_forced: bool) {
        let MoveLimits { silent_after, room_percent, .. } = self.settings.limits;
        let (mean, others) = self.peers.mean_with(now, silent_after, demand);
        let view = View {
            load: self.own.load,
            demand,
            mean,
            others,
            cost_s: self.own.cost_s,
            is_forced,
            candidates: self.peers.candidates(now, silent_after, room_percent).collect(),
            movable: &|| self.connections.movable(now, &self.settings.limits),
        };
        match &mut self.rule {
            Rule::Reactive(reactive) => self.planned.extend(reactive.plan(&view, &mut self.random)),
            Rule::Proactive(proactive) => self.planned.extend(proactive.plan(&view)),
        }
    }

    /// The next decision. Call until `None`, after each sample and at [`poll_timeout`](Self::poll_timeout).
    pub fn poll(&mut self, now: Time) -> Option<Decision> {
        if self.current_override.at(now) == Override::Off {
            self.planned.clear();
        }
        while let Some(Planned { connection, target, reason }) = self.planned.front().copied() {
            if !self.is_allowed(now, connection, target.expected()) {
                self.planned.pop_front();
                self.forbidden += 1;
                continue;
            }
            if !self.limiter.take_at_random(now, &mut self.random) {
                return None;
            }
            self.planned.pop_front();
            let demand = self.connections.set_leaving(connection) * self.own.cost_s;
            self.peers.record_sent(now, target.expected(), demand);
            self.decisions += 1;
            return Some(Decision { connection, target, reason });
        }
        None
    }

    fn is_allowed(&self, now: Time, connection: ConnectionId, target: ServerId) -> bool {
        let MoveLimits { silent_after, room_percent, .. } = self.settings.limits;
        let mut candidates = self.peers.candidates(now, silent_after, room_percent);
        candidates.any(|candidate| candidate.server == target && candidate.room > 0)
            && self.connections.may_move(now, connection, target, &self.settings.limits)
    }

    /// When to call [`poll`](Self::poll) at the latest; `None`: after the next sample.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (!self.planned.is_empty()).then(|| self.limiter.next_at())
    }

    /// The load to state in heartbeats, as [`OwnLoad::reported`] returns it.
    pub fn reported_load(&self) -> u32 {
        self.own.reported()
    }

    /// Number of connections that the policy knows.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// Counters since the start.
    pub fn counters(&self) -> MigrationCounters {
        MigrationCounters {
            decisions: self.decisions,
            failed: self.failed,
            forbidden: self.forbidden,
            connections_ignored: self.connections.ignored,
            heartbeats_ignored: self.peers.ignored,
        }
    }
}

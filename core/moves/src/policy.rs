//! Moves that a policy decides (`docs/move-policy.md`): joins [`Migration`] with the flows of a server.

use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use spillway_handoff::PeerLoad;
use spillway_policy::migration::{
    ConnectionId, Decision, LoadSample, Migration, MigrationSettings, PeerReport, Reason,
};
use spillway_policy::{OutOfBounds, Override};
use spillway_transport::Time;
use spillway_wire::switch::{Flow, ServerId};

/// Interval of looks at the load with a policy, and without one, when only heartbeats need the load.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const LOOK_INTERVAL_WITHOUT_POLICY: Duration = Duration::from_millis(100);
/// Decisions that wait for the log; older ones are forgotten.
const REPORTS_MAX: usize = 1024;

/// Settings of a server's policy.
pub type PolicySettings = MigrationSettings;

/// Decisions of a policy, by reason and outcome; each number only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Ordered because of the server's own load.
    pub load: u64,
    /// Ordered because of a demand above the mean of all servers.
    pub above_mean: u64,
    /// Ordered because the override is *on*.
    pub manual_override: u64,
    /// Ordered or decided moves that have failed.
    pub failed: u64,
    /// Planned moves that a limit has forbidden.
    pub forbidden: u64,
}

/// A server's policy, and its load.
#[derive(Debug)]
pub(crate) struct Policy {
    migration: Migration,
    /// Without a policy only the load is measured.
    is_active: bool,
    next_look: Time,
    /// The known connections. A flow has its number until the connection ends or has moved away, also while a failed move
    /// exports and returns the connection.
    ids: BTreeMap<Flow, ConnectionId>,
    /// The inverse of `ids`.
    flows: BTreeMap<ConnectionId, Flow>,
    next_id: u64,
    reports: VecDeque<(Flow, Decision)>,
    counts: DecisionCounts,
}

impl Policy {
    /// No policy: the load is measured.
    pub(crate) fn none() -> Policy {
        let migration = Migration::new(MigrationSettings::default(), 0);
        Policy::with(migration.expect("the defaults are within their bounds"), false)
    }

    pub(crate) fn new(settings: PolicySettings, seed: u64) -> Result<Policy, OutOfBounds> {
        Ok(Policy::with(Migration::new(settings, seed)?, true))
    }

    fn with(migration: Migration, is_active: bool) -> Policy {
        Policy {
            migration,
            is_active,
            next_look: Time::ZERO,
            ids: BTreeMap::new(),
            flows: BTreeMap::new(),
            next_id: 0,
            reports: VecDeque::new(),
            counts: DecisionCounts::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// A connection is here: a new one, or one from another server.
    pub(crate) fn join(&mut self, now: Time, flow: Flow, came_from: Option<ServerId>) {
        self.leave(&flow);
        let id = ConnectionId(self.next_id);
        if self.is_active && self.migration.join(now, id, came_from) {
            self.next_id += 1;
            self.ids.insert(flow, id);
            self.flows.insert(id, flow);
        }
    }

    /// A connection has ended or has moved away.
    pub(crate) fn leave(&mut self, flow: &Flow) {
        if let Some(id) = self.ids.remove(flow) {
            self.flows.remove(&id);
            self.migration.leave(id);
        }
    }

    /// A move has failed, or was not ordered: the connection stays for a while.
    pub(crate) fn not_moved(&mut self, now: Time, flow: &Flow) {
        if let Some(id) = self.ids.get(flow) {
            self.migration.not_moved(now, *id);
        }
    }

    pub(crate) fn record_request(&mut self, flow: &Flow) {
        if let Some(id) = self.ids.get(flow) {
            self.migration.record_requests(*id, 1);
        }
    }

    /// The switch has stated the load of another server.
    pub(crate) fn hear(&mut self, now: Time, load: PeerLoad) {
        let age_ns = u64::try_from(load.age.as_nanos()).unwrap_or(u64::MAX);
        let heard_at = Time(now.as_nanos().saturating_sub(age_ns));
        let report = PeerReport { load: load.load, free_places: load.free_places };
        self.migration.heartbeat(heard_at, load.server, report);
    }

    pub(crate) fn look(&mut self, now: Time, sample: LoadSample) {
        let interval = if self.is_active { LOOK_INTERVAL } else { LOOK_INTERVAL_WITHOUT_POLICY };
        self.next_look = now + interval;
        self.migration.sample(now, sample);
    }

    pub(crate) fn next_look(&self) -> Time {
        self.next_look
    }

    /// The next decision to move a connection.
    pub(crate) fn poll(&mut self, now: Time) -> Option<(Flow, Decision)> {
        if !self.is_active {
            return None;
        }
        let decision = self.migration.poll(now)?;
        // Connections are forgotten in both tables at once.
        let flow = self.flows.get(&decision.connection).copied();
        debug_assert!(flow.is_some(), "the policy decides about connections that it was told of");
        flow.map(|flow| (flow, decision))
    }

    /// A decision has become an order.
    pub(crate) fn report(&mut self, flow: Flow, decision: Decision) {
        match decision.reason {
            Reason::Load { .. } => self.counts.load += 1,
            Reason::AboveMean { .. } => self.counts.above_mean += 1,
            Reason::Override { .. } => self.counts.manual_override += 1,
        }
        if self.reports.len() == REPORTS_MAX {
            self.reports.pop_front();
        }
        self.reports.push_back((flow, decision));
    }

    pub(crate) fn poll_report(&mut self) -> Option<(Flow, Decision)> {
        self.reports.pop_front()
    }

    pub(crate) fn set_override(&mut self, now: Time, manual_override: Override, lasts: Option<Duration>) {
        if self.is_active {
            self.migration.set_override(now, manual_override, lasts);
        }
    }

    pub(crate) fn manual_override(&self, now: Time) -> Override {
        self.migration.manual_override(now)
    }

    pub(crate) fn load(&self) -> u32 {
        self.migration.reported_load()
    }

    pub(crate) fn counts(&self) -> DecisionCounts {
        let counters = self.migration.counters();
        DecisionCounts { failed: counters.failed, forbidden: counters.forbidden, ..self.counts }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.is_active.then(|| self.migration.poll_timeout()).flatten()
    }
}

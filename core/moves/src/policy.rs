//! Moves that a policy decides (`docs/move-policy.md`): joins [`Migration`] with the flows of a server.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use core::time::Duration;

use spillway_handoff::PeerLoad;
use spillway_policy::migration::{
    ConnectionId, Decision, LoadSample, Migration, MigrationSettings, OwnLoad, PeerReport, Reason,
};
use spillway_policy::{OutOfBounds, Override};
use spillway_transport::Time;
use spillway_wire::switch::{Flow, ServerId};

/// Interval of looks at the load with a policy, and without one, when only heartbeats need the load.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
const LOOK_INTERVAL_WITHOUT_POLICY: Duration = Duration::from_millis(100);
/// Maximum number of decisions that wait for the log; older ones are forgotten.
const REPORTS_MAX: usize = 1024;

/// Settings of a server's policy.
pub type PolicySettings = MigrationSettings;

/// Decisions of a policy, by reason and outcome; each number only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecisionCounts {
    /// Moves that were ordered because of the server's own load.
    pub load: u64,
    /// Moves that were ordered because of a demand above the mean of all servers.
    pub above_mean: u64,
    /// Moves that were ordered because the override is *on*.
    pub manual_override: u64,
    /// Moves that were decided and have failed, or could not be ordered.
    pub failed: u64,
    /// Planned moves that a limit has forbidden.
    pub forbidden: u64,
}

/// A server's load, and its policy if it has one.
#[derive(Debug)]
pub(crate) struct Policy {
    next_look: Time,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    /// No policy: the load is measured for heartbeats only.
    None(OwnLoad),
    Active(Box<Active>),
}

/// A policy that decides, and the connections that it knows.
#[derive(Debug)]
struct Active {
    migration: Migration,
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
    /// No policy: only the load is measured.
    pub(crate) fn none() -> Policy {
        let queueing_full = MigrationSettings::default().queueing_full;
        Policy { next_look: Time::ZERO, rule: Rule::None(OwnLoad::new(queueing_full)) }
    }

    pub(crate) fn new(settings: PolicySettings, seed: u64) -> Result<Policy, OutOfBounds> {
        let active = Active {
            migration: Migration::new(settings, seed)?,
            ids: BTreeMap::new(),
            flows: BTreeMap::new(),
            next_id: 0,
            reports: VecDeque::new(),
            counts: DecisionCounts::default(),
        };
        Ok(Policy { next_look: Time::ZERO, rule: Rule::Active(Box::new(active)) })
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active().is_some()
    }

    fn active(&self) -> Option<&Active> {
        match &self.rule {
            Rule::None(_) => None,
            Rule::Active(active) => Some(active),
        }
    }

    fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.rule {
            Rule::None(_) => None,
            Rule::Active(active) => Some(active),
        }
    }

    /// A connection is here: a new one, or one from another server.
    pub(crate) fn join(&mut self, now: Time, flow: Flow, came_from: Option<ServerId>) {
        if let Some(active) = self.active_mut() {
            active.join(now, flow, came_from);
        }
    }

    /// A connection has ended or has moved away.
    pub(crate) fn leave(&mut self, flow: &Flow) {
        if let Some(active) = self.active_mut() {
            active.leave(flow);
        }
    }

    /// A move has failed, or was not ordered: the connection stays for a while.
    pub(crate) fn not_moved(&mut self, now: Time, flow: &Flow) {
        if let Some(active) = self.active_mut()
            && let Some(id) = active.ids.get(flow)
        {
            active.migration.not_moved(now, *id);
        }
    }

    pub(crate) fn record_request(&mut self, flow: &Flow) {
        if let Some(active) = self.active_mut()
            && let Some(id) = active.ids.get(flow)
        {
            active.migration.record_requests(*id, 1);
        }
    }

    /// The switch has stated the load of another server.
    pub(crate) fn hear(&mut self, now: Time, load: PeerLoad) {
        let age_ns = u64::try_from(load.age.as_nanos()).unwrap_or(u64::MAX);
        let heard_at = Time(now.as_nanos().saturating_sub(age_ns));
        let report = PeerReport { load: load.load, free_places: load.free_places };
        if let Some(active) = self.active_mut() {
            active.migration.heartbeat(heard_at, load.server, report);
        }
    }

    pub(crate) fn look(&mut self, now: Time, sample: LoadSample) {
        let interval = match &mut self.rule {
            Rule::None(load) => {
                load.sample(now, sample);
                LOOK_INTERVAL_WITHOUT_POLICY
            }
            Rule::Active(active) => {
                active.migration.sample(now, sample);
                LOOK_INTERVAL
            }
        };
        self.next_look = now + interval;
    }

    pub(crate) fn next_look(&self) -> Time {
        self.next_look
    }

    /// The next decision to move a connection.
    pub(crate) fn poll(&mut self, now: Time) -> Option<(Flow, Decision)> {
        let active = self.active_mut()?;
        let decision = active.migration.poll(now)?;
        // `leave` removes a connection from the policy and from both tables at once.
        let flow = active.flows.get(&decision.connection).copied();
        debug_assert!(flow.is_some(), "the policy decided about a connection that it does not know");
        flow.map(|flow| (flow, decision))
    }

    /// A decision has become an order.
    pub(crate) fn report(&mut self, flow: Flow, decision: Decision) {
        if let Some(active) = self.active_mut() {
            active.report(flow, decision);
        }
    }

    pub(crate) fn poll_report(&mut self) -> Option<(Flow, Decision)> {
        self.active_mut()?.reports.pop_front()
    }

    pub(crate) fn set_override(&mut self, now: Time, manual_override: Override, lasts: Option<Duration>) {
        if let Some(active) = self.active_mut() {
            active.migration.set_override(now, manual_override, lasts);
        }
    }

    /// The override in force; *auto* without a policy.
    pub(crate) fn manual_override(&self, now: Time) -> Override {
        self.active().map_or(Override::Auto, |active| active.migration.manual_override(now))
    }

    pub(crate) fn load(&self) -> u32 {
        match &self.rule {
            Rule::None(load) => load.reported(),
            Rule::Active(active) => active.migration.reported_load(),
        }
    }

    pub(crate) fn counts(&self) -> DecisionCounts {
        self.active().map(Active::counts).unwrap_or_default()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.active()?.migration.poll_timeout()
    }
}

impl Active {
    fn join(&mut self, now: Time, flow: Flow, came_from: Option<ServerId>) {
        self.leave(&flow);
        let id = ConnectionId(self.next_id);
        if self.migration.join(now, id, came_from) {
            self.next_id += 1;
            self.ids.insert(flow, id);
            self.flows.insert(id, flow);
        }
    }

    fn leave(&mut self, flow: &Flow) {
        if let Some(id) = self.ids.remove(flow) {
            self.flows.remove(&id);
            self.migration.leave(id);
        }
    }

    fn report(&mut self, flow: Flow, decision: Decision) {
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

    fn counts(&self) -> DecisionCounts {
        let counters = self.migration.counters();
        DecisionCounts { failed: counters.failed, forbidden: counters.forbidden, ..self.counts }
    }
}

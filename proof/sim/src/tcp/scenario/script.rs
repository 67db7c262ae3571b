//! The moves of a run: which connection moves when, and which fault strikes at which step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use spillway_handoff::MoveResult;
use spillway_transport::Time;
use spillway_wire::switch::Flow;

use super::case::{Case, Step, VERY_LATE};
use crate::tcp::cabling::Cable;

/// The first move begins after this time: servers have sessions, and connections are busy.
const WARM_UP: Duration = Duration::from_millis(120);
/// Time between the end of a move and the next one.
const REST: Duration = Duration::from_millis(20);
/// A move that has no outcome after this time has none.
const OUTCOME_WITHIN: Duration = Duration::from_secs(8);

/// A move under way.
#[derive(Clone, Debug)]
pub(crate) struct Moving {
    pub(crate) flow: Flow,
    pub(crate) source: Cable,
    pub(crate) target: Cable,
    case: Option<Case>,
    began_at: Time,
    /// Steps whose first message was sent. *received* of a state in one part leaves after *own*.
    reached: BTreeSet<Step>,
    has_struck: bool,
}

/// How a scripted move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) case: Option<Case>,
    /// Whether the step of the case was reached.
    pub(crate) has_struck: bool,
    /// `None`: the source has restarted, or has not learned the outcome in time.
    pub(crate) result: Option<MoveResult>,
    pub(crate) is_lost: bool,
}

/// The moves of a run, one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    cases: VecDeque<Option<Case>>,
    moving: Option<Moving>,
    next_at: Time,
    pub(crate) outcomes: Vec<Outcome>,
    /// Moves that were requested, by flow.
    pub(crate) requested: BTreeMap<Flow, u64>,
}

impl Script {
    /// One move for each case; `None`: a move without a fault.
    pub(crate) fn new(cases: Vec<Option<Case>>) -> Script {
        let (moving, outcomes, requested) = (None, Vec::new(), BTreeMap::new());
        Script { cases: cases.into(), moving, next_at: Time::ZERO + WARM_UP, outcomes, requested }
    }

    /// Whether a move may begin now.
    pub(crate) fn is_due(&self, now: Time) -> bool {
        self.moving.is_none() && !self.cases.is_empty() && now >= self.next_at
    }

    pub(crate) fn moving(&self) -> Option<&Moving> {
        self.moving.as_ref()
    }

    /// Whether no move is left, and no late copy of a message is on its way.
    pub(crate) fn has_ended(&self, now: Time) -> bool {
        self.moving.is_none() && self.cases.is_empty() && now > self.next_at + 2 * VERY_LATE
    }

    /// Begins no further moves.
    pub(crate) fn end(&mut self) {
        self.cases.clear();
    }

    /// A move of this flow was requested.
    pub(crate) fn begin(&mut self, now: Time, flow: Flow, (source, target): (Cable, Cable)) {
        let case = self.cases.pop_front().flatten();
        *self.requested.entry(flow).or_default() += 1;
        let (began_at, reached, has_struck) = (now, BTreeSet::new(), false);
        self.moving = Some(Moving { flow, source, target, case, began_at, reached, has_struck });
    }

    /// The move has not begun, because its connection has ended: another one moves instead.
    pub(crate) fn cancel(&mut self, now: Time) {
        let Some(moving) = self.moving.take() else { return };
        self.cases.push_front(moving.case);
        if let Some(requested) = self.requested.get_mut(&moving.flow) {
            *requested -= 1;
        }
        self.next_at = now;
    }

    /// A message of the move is sent. Returns the fault that strikes now.
    pub(crate) fn reach(&mut self, step: Step) -> Option<Case> {
        let moving = self.moving.as_mut()?;
        if !moving.reached.insert(step) {
            return None;
        }
        let case = moving.case.filter(|case| case.step == step)?;
        moving.has_struck = true;
        Some(case)
    }

    /// Whether the fault of the move under way strikes at this step.
    pub(crate) fn is_for(&self, step: Step) -> bool {
        self.moving.as_ref().and_then(|moving| moving.case).is_some_and(|case| case.step == step)
    }

    /// The step of a sealed message from one server to another.
    pub(crate) fn step_between(&mut self, from: Cable, to: Cable) -> Option<Step> {
        let moving = self.moving.as_mut().filter(|moving| moving.reached.contains(&Step::RelayedPrepared))?;
        if (from, to) == (moving.source, moving.target) {
            return Some(Step::State);
        }
        if (from, to) != (moving.target, moving.source) || !moving.reached.contains(&Step::State) {
            return None;
        }
        Some(if moving.reached.contains(&Step::OwnAnswer) { Step::Accepted } else { Step::Received })
    }

    /// Notes the outcome of the move, if there is one.
    pub(crate) fn observe(&mut self, now: Time, result: Option<MoveResult>, is_lost: bool) {
        let Some(moving) = &self.moving else { return };
        let is_over = result.is_some() || is_lost || now.since(moving.began_at) > OUTCOME_WITHIN;
        // The target's last message is on its way, or comes later.
        if !is_over {
            return;
        }
        let (case, has_struck) = (moving.case, moving.has_struck);
        self.outcomes.push(Outcome { case, has_struck, result, is_lost });
        self.moving = None;
        self.next_at = now + REST;
    }
}

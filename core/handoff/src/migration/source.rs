//! One move as its source sees it.
//!
//! ```text
//! Asking --prepared--> Exporting --state--> Sending --owned--> moved
//!    |                     |                   | refused, or no answer in time
//!    | no answer in time   | nothing to export v
//!    v                     v                InDoubt --own: ok--> returned
//! Settling --own: ok--> kept                   | otherwise: moved, or let go
//! ```
//!
//! The entry decides: a source in doubt continues the connection only after *own* was confirmed.

use alloc::sync::Arc;

use spillway_transport::Time;
use spillway_wire::switch::{Flow, FlowState, Import, Request, Site, Status};

use super::{MoveTimes, Seen};

/// How a move ended for its source, or what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target is ready: export the connection, then call [`Source::exported`] or [`Source::not_exported`].
    Export,
    /// The connection stays, and is not exported. The generation is the entry's; 0: no entry.
    Kept { generation: u64 },
    /// The exported connection comes back: the source owns the flow.
    Returned { generation: u64 },
    /// The target has the connection.
    Moved,
    /// The entry does not confirm that the source owns the flow: its copy must not be continued.
    LetGo,
}

/// A message that the source must send now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// To the switch.
    Request(Request),
    /// The connection's state, to the target.
    State { generation: u64, target: Site, state: Arc<[u8]> },
}

#[derive(Clone, Debug)]
enum Phase {
    Asking,
    /// The move has failed before the export. The entry may still be asked or held: `own` names its generation.
    Settling {
        own: Option<u64>,
    },
    Exporting {
        generation: u64,
        target: Site,
    },
    Sending {
        generation: u64,
        target: Site,
        state: Arc<[u8]>,
    },
    InDoubt {
        generation: u64,
        state: Arc<[u8]>,
    },
}

/// A move on its source.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    flow: Flow,
    /// The generation that *prepare* replaces.
    replaces: u64,
    target: Option<Site>,
    times: MoveTimes,
    phase: Phase,
    next_at: Time,
    ends_at: Time,
}

impl Source {
    /// Asks for a move. Without a target the switch chooses the least loaded one. `replaces`: the entry's generation, or 0.
    pub(crate) fn new(
        now: Time,
        flow: Flow,
        replaces: u64,
        target: Option<Site>,
        times: MoveTimes,
    ) -> Source {
        let ends_at = now + times.lifetime;
        Source { flow, replaces, target, times, phase: Phase::Asking, next_at: now, ends_at }
    }

    /// Takes a flow back that a move, given up before, has directed to a target.
    pub(crate) fn settle(now: Time, flow: Flow, generation: u64, times: MoveTimes) -> Source {
        let phase = Phase::Settling { own: Some(generation) };
        Source { phase, ..Source::new(now, flow, generation, None, times) }
    }

    pub(crate) fn poll_timeout(&self) -> Time {
        self.next_at
    }

    /// The exported state, if the source has one.
    pub(crate) fn state(&self) -> Option<&Arc<[u8]>> {
        match &self.phase {
            Phase::Sending { state, .. } | Phase::InDoubt { state, .. } => Some(state),
            Phase::Asking | Phase::Settling { .. } | Phase::Exporting { .. } => None,
        }
    }

    /// The message that is due, if any.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Outgoing> {
        if now < self.next_at {
            return None;
        }
        self.next_at = now + self.times.retry;
        let is_over = now >= self.ends_at;
        match &self.phase {
            Phase::Asking if is_over => self.phase = Phase::Settling { own: None },
            Phase::Sending { generation, state, .. } if is_over => {
                self.phase = Phase::InDoubt { generation: *generation, state: state.clone() };
            }
            _ => {}
        }
        let flow = self.flow;
        Some(match &self.phase {
            Phase::Asking => Outgoing::Request(Request::Prepare {
                flow,
                replaces: self.replaces,
                target: self.target,
                lifetime_ms: self.times.lifetime_ms(),
            }),
            Phase::Settling { own: None } => Outgoing::Request(Request::Get { flow }),
            Phase::Settling { own: Some(replaces) } => {
                Outgoing::Request(Request::Own { flow, replaces: *replaces })
            }
            Phase::InDoubt { generation, .. } => {
                Outgoing::Request(Request::Own { flow, replaces: *generation })
            }
            Phase::Sending { generation, target, state } => {
                Outgoing::State { generation: *generation, target: *target, state: state.clone() }
            }
            Phase::Exporting { .. } => return None,
        })
    }

    /// Handles a relayed *prepared*. A copy of an earlier move's has a generation that this move replaces.
    pub(crate) fn handle_prepared(&mut self, now: Time, generation: u64, import: Import) -> Option<Outcome> {
        if generation <= self.replaces || !matches!(self.phase, Phase::Asking | Phase::Settling { own: None })
        {
            return None;
        }
        match import {
            Import::Ready(target) if matches!(self.phase, Phase::Asking) => {
                self.phase = Phase::Exporting { generation, target };
                Some(Outcome::Export)
            }
            Import::Ready(_) => {
                self.phase = Phase::Settling { own: Some(generation) };
                self.next_at = now;
                None
            }
            Import::Refused => Some(Outcome::Kept { generation }),
        }
    }

    /// The connection was exported.
    pub(crate) fn exported(&mut self, now: Time, state: Arc<[u8]>) {
        if let Phase::Exporting { generation, target } = self.phase {
            (self.phase, self.next_at) = (Phase::Sending { generation, target, state }, now);
        }
    }

    /// The connection cannot be exported: the flow returns to the source.
    pub(crate) fn not_exported(&mut self, now: Time) {
        if let Phase::Exporting { generation, .. } = self.phase {
            (self.phase, self.next_at) = (Phase::Settling { own: Some(generation) }, now);
        }
    }

    /// The target says that it owns the flow.
    pub(crate) fn handle_owned(&self, of: u64) -> Option<Outcome> {
        match &self.phase {
            Phase::Sending { generation, .. } | Phase::InDoubt { generation, .. } if *generation == of => {
                Some(Outcome::Moved)
            }
            _ => None,
        }
    }

    /// The target says that it will not own the flow.
    pub(crate) fn handle_refused(&mut self, now: Time, of: u64) {
        if let Phase::Sending { generation, state, .. } = &self.phase
            && *generation == of
        {
            (self.phase, self.next_at) = (Phase::InDoubt { generation: of, state: state.clone() }, now);
        }
    }

    /// Handles the answer to *prepare*, *get* or *own*.
    pub(crate) fn handle_answer(&mut self, now: Time, seen: Seen) -> Option<Outcome> {
        if seen.status == Status::Replayed {
            return None;
        }
        match self.phase {
            Phase::Asking | Phase::Settling { .. } => self.handle_before_export(now, seen),
            Phase::InDoubt { .. } => match (seen.status, seen.state) {
                (Status::Ok, FlowState::Owned) => Some(Outcome::Returned { generation: seen.generation }),
                // The server has no term at present: it asks again when it has one.
                (Status::NoOwner, _) => None,
                (_, FlowState::Owned) if !seen.is_ours => Some(Outcome::Moved),
                _ => Some(Outcome::LetGo),
            },
            Phase::Exporting { .. } | Phase::Sending { .. } => None,
        }
    }

    /// The switch has lost all entries. Nothing that was exported can be taken back.
    pub(crate) fn handle_lost_entries(&self) -> Outcome {
        if self.state().is_some() { Outcome::LetGo } else { Outcome::Kept { generation: 0 } }
    }

    fn handle_before_export(&mut self, now: Time, seen: Seen) -> Option<Outcome> {
        match seen.state {
            // The server, or the target, has no term at present.
            _ if seen.status == Status::NoOwner => None,
            FlowState::None => Some(Outcome::Kept { generation: 0 }),
            // *get* needs no term: the answer to the next heartbeat will say that this server has lost the flow.
            FlowState::Owned if seen.status == Status::Ok && !seen.is_ours => None,
            FlowState::Owned if seen.is_ours => Some(Outcome::Kept { generation: seen.generation }),
            FlowState::Asked | FlowState::Held if seen.is_ours => {
                (self.phase, self.next_at) = (Phase::Settling { own: Some(seen.generation) }, now);
                None
            }
            FlowState::Owned | FlowState::Asked | FlowState::Held => Some(Outcome::LetGo),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;
    use core::time::Duration;

    use spillway_wire::packet::ethernet::Mac;

    use super::*;

    const TIMES: MoveTimes = MoveTimes { retry: Duration::from_millis(10), lifetime: Duration::from_secs(1) };
    const LATER: Time = Time(2_000_000_000);

    fn flow() -> Flow {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        Flow::new(end("10.0.0.2:40000"), end("10.0.0.1:80")).unwrap()
    }

    fn site() -> Site {
        Site::new(flow().service(), Mac([2, 0, 0, 0, 0, 9])).unwrap()
    }

    fn seen(status: Status, state: FlowState, generation: u64, is_ours: bool) -> Seen {
        Seen { status, state, generation, is_ours }
    }

    fn asking() -> Source {
        let mut source = Source::new(Time(0), flow(), 7, None, TIMES);
        assert!(matches!(
            source.poll(Time(0)),
            Some(Outgoing::Request(Request::Prepare { replaces: 7, .. }))
        ));
        source
    }

    fn sending() -> Source {
        let mut source = asking();
        assert_eq!(source.handle_prepared(Time(1), 8, Import::Ready(site())), Some(Outcome::Export));
        source.exported(Time(1), Arc::from(&b"state"[..]));
        source
    }

    fn in_doubt() -> Source {
        let mut source = sending();
        assert!(matches!(source.poll(LATER), Some(Outgoing::Request(Request::Own { replaces: 8, .. }))));
        source
    }

    #[test]
    fn prepare_and_state_are_repeated_until_the_target_owns_the_flow() {
        let mut source = asking();
        assert_eq!(source.poll(Time(9_999_999)), None);
        assert!(matches!(source.poll(Time(10_000_000)), Some(Outgoing::Request(Request::Prepare { .. }))));
        let mut source = sending();
        for now in [1, 10_000_001] {
            assert!(matches!(source.poll(Time(now)), Some(Outgoing::State { generation: 8, .. })));
        }
        assert_eq!(source.handle_owned(9), None, "another move");
        assert_eq!(source.handle_owned(8), Some(Outcome::Moved));
    }

    #[test]
    fn prepared_of_an_earlier_move_or_a_second_time_changes_nothing() {
        assert_eq!(asking().handle_prepared(Time(1), 7, Import::Ready(site())), None);
        assert_eq!(sending().handle_prepared(Time(1), 8, Import::Ready(site())), None);
    }

    #[test]
    fn a_source_that_gives_up_before_the_export_takes_the_flow_back() {
        let mut source = asking();
        assert!(matches!(source.poll(LATER), Some(Outgoing::Request(Request::Get { .. }))));
        assert_eq!(source.handle_answer(LATER, seen(Status::Ok, FlowState::Held, 8, true)), None);
        assert!(matches!(source.poll(LATER), Some(Outgoing::Request(Request::Own { replaces: 8, .. }))));
        let kept = source.handle_answer(LATER, seen(Status::Ok, FlowState::Owned, 9, true));
        assert_eq!(kept, Some(Outcome::Kept { generation: 9 }));
    }

    #[test]
    fn refusals_leave_the_connection_where_it_is() {
        assert_eq!(
            asking().handle_prepared(Time(1), 9, Import::Refused),
            Some(Outcome::Kept { generation: 9 })
        );
        let full = seen(Status::Full, FlowState::None, 0, false);
        assert_eq!(asking().handle_answer(Time(1), full), Some(Outcome::Kept { generation: 0 }));
        let stale = seen(Status::Stale, FlowState::Owned, 20, true);
        assert_eq!(asking().handle_answer(Time(1), stale), Some(Outcome::Kept { generation: 20 }));
        let foreign = seen(Status::Forbidden, FlowState::Owned, 20, false);
        assert_eq!(asking().handle_answer(Time(1), foreign), Some(Outcome::LetGo));
    }

    #[test]
    fn in_doubt_only_a_confirmed_own_continues_the_connection() {
        let answer =
            |status, state, is_ours| in_doubt().handle_answer(LATER, seen(status, state, 9, is_ours));
        assert_eq!(answer(Status::Ok, FlowState::Owned, true), Some(Outcome::Returned { generation: 9 }));
        assert_eq!(answer(Status::Forbidden, FlowState::Owned, false), Some(Outcome::Moved));
        // The target may have owned the flow, and died.
        assert_eq!(answer(Status::Stale, FlowState::Owned, true), Some(Outcome::LetGo));
        assert_eq!(answer(Status::NoEntry, FlowState::None, false), Some(Outcome::LetGo));
        assert_eq!(answer(Status::NoOwner, FlowState::None, false), None);
        assert_eq!(answer(Status::Replayed, FlowState::Owned, true), None);
    }

    #[test]
    fn a_refused_state_leads_to_own_at_once() {
        let mut source = sending();
        source.handle_refused(Time(2), 8);
        assert!(matches!(source.poll(Time(2)), Some(Outgoing::Request(Request::Own { replaces: 8, .. }))));
        assert_eq!(source.handle_owned(8), Some(Outcome::Moved), "the target's later word counts");
    }

    #[test]
    fn without_entries_only_what_was_not_exported_stays() {
        assert_eq!(asking().handle_lost_entries(), Outcome::Kept { generation: 0 });
        assert_eq!(sending().handle_lost_entries(), Outcome::LetGo);
        let mut source = asking();
        source.handle_prepared(Time(1), 8, Import::Ready(site()));
        source.not_exported(Time(1));
        assert!(matches!(source.poll(Time(1)), Some(Outgoing::Request(Request::Own { replaces: 8, .. }))));
    }
}

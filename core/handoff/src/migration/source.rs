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

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::{Body, Reason, Received};
use spillway_wire::switch::{Flow, FlowState, Import, Request, Site, Status};

use super::{ATTEMPTS, MoveTimes, Seen};
use crate::buffer::HeldFrames;
use crate::transfer::{Due, Sending};

/// How a move ended for its source, or what the source waits for.
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

/// Where the exported state goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The generation of the flow's entry, which is held for the target.
    pub(crate) generation: u64,
    pub(crate) target: Site,
}

#[derive(Debug)]
enum Phase {
    Asking {
        attempts: u32,
    },
    /// The move has failed before the export. The entry may still be asked or held: `own` names its generation.
    Settling {
        own: Option<u64>,
    },
    Exporting(Destination),
    Sending(Destination, Sending),
    InDoubt(Destination, Chunks),
}

/// A move on its source.
#[derive(Debug)]
pub(crate) struct Source {
    flow: Flow,
    /// The generation that *prepare* replaces.
    replaces: u64,
    site: Option<Site>,
    times: MoveTimes,
    phase: Phase,
    next_at: Time,
    /// The target that was ready, with the generation of the entry held for it.
    destination: Option<Destination>,
    /// Why the target has refused the state.
    refusal: Option<Reason>,
    /// Frames that the target has returned after the export.
    pub(crate) held: HeldFrames,
}

impl Source {
    /// Begins a move. `site`: the target's; `None` lets the switch choose the least loaded target. `replaces`: the entry's
    /// generation, or 0 without an entry.
    pub(crate) fn new(
        now: Time,
        flow: Flow,
        replaces: u64,
        site: Option<Site>,
        (times, held): (MoveTimes, HeldFrames),
    ) -> Source {
        let phase = Phase::Asking { attempts: 0 };
        let (next_at, destination, refusal) = (now, None, None);
        Source { flow, replaces, site, times, phase, next_at, destination, refusal, held }
    }

    /// Takes a flow back whose entry is held for a target by a move that the source has given up.
    pub(crate) fn settle(now: Time, flow: Flow, to: Destination, parts: (MoveTimes, HeldFrames)) -> Source {
        let (phase, destination) = (Phase::Settling { own: Some(to.generation) }, Some(to));
        Source { phase, destination, ..Source::new(now, flow, to.generation, None, parts) }
    }

    /// When to call [`poll`](Self::poll) and [`poll_part`](Self::poll_part).
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        match &self.phase {
            Phase::Exporting(_) => None,
            Phase::Sending(_, sending) => sending.poll_timeout().or(Some(self.next_at)),
            Phase::Asking { .. } | Phase::Settling { .. } | Phase::InDoubt(..) => Some(self.next_at),
        }
    }

    /// The exported state, if the source has one.
    pub(crate) fn state(&self) -> Option<&Chunks> {
        match &self.phase {
            Phase::Sending(_, sending) => Some(sending.state()),
            Phase::InDoubt(_, state) => Some(state),
            Phase::Asking { .. } | Phase::Settling { .. } | Phase::Exporting(_) => None,
        }
    }

    /// The target that was ready; `None` before *prepared*.
    pub(crate) fn destination(&self) -> Option<Destination> {
        self.destination
    }

    /// Why the target has refused the state, if it has.
    pub(crate) fn refusal(&self) -> Option<Reason> {
        self.refusal
    }

    /// The request to the switch that is due, if any.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Request> {
        if now < self.next_at {
            return None;
        }
        match &mut self.phase {
            Phase::Asking { attempts } if *attempts < ATTEMPTS => {
                self.next_at = now + self.times.interval(*attempts);
                *attempts += 1;
            }
            Phase::Asking { .. } => {
                (self.phase, self.next_at) = (Phase::Settling { own: None }, now + self.times.asking());
            }
            // The target has acknowledged the whole state, and has not answered in time.
            Phase::Sending(_, sending) if sending.is_complete() => self.doubt(now),
            Phase::Sending(..) | Phase::Exporting(_) => return None,
            Phase::Settling { .. } | Phase::InDoubt(..) => {}
        }
        let flow = self.flow;
        Some(match &self.phase {
            Phase::Asking { .. } => Request::Prepare {
                flow,
                replaces: self.replaces,
                target: self.site,
                lifetime_ms: self.times.lifetime_ms(),
            },
            Phase::Settling { own: None } => {
                self.next_at = now + self.times.asking();
                Request::Get { flow }
            }
            Phase::Settling { own: Some(replaces) } => {
                self.next_at = now + self.times.asking();
                Request::Own { flow, replaces: *replaces }
            }
            Phase::InDoubt(to, _) => {
                self.next_at = now + self.times.asking();
                Request::Own { flow, replaces: to.generation }
            }
            Phase::Exporting(_) | Phase::Sending(..) => return None,
        })
    }

    /// The message for the target that is due, if any: a part of the state.
    pub(crate) fn poll_part(&mut self, now: Time) -> Option<(Destination, Body<'_>)> {
        let Phase::Sending(_, sending) = &mut self.phase else { return None };
        let number = match sending.poll(now)? {
            Due::Part(number) => number,
            Due::Failed => {
                self.doubt(now);
                return None;
            }
        };
        let Phase::Sending(to, sending) = &mut self.phase else { return None };
        Some((*to, sending.body(number)?))
    }

    /// The source does not know whether the target has the state: from now on only the entry decides.
    pub(crate) fn doubt(&mut self, now: Time) {
        if let Phase::Sending(to, sending) = &self.phase {
            (self.phase, self.next_at) = (Phase::InDoubt(*to, sending.state().clone()), now);
        }
    }

    /// The target has these parts of the state.
    pub(crate) fn handle_received(&mut self, now: Time, of: u64, received: Received) {
        if let Phase::Sending(to, sending) = &mut self.phase
            && to.generation == of
            && !sending.is_complete()
        {
            sending.handle_received(received);
            if sending.is_complete() {
                self.next_at = now + self.times.all_attempts();
            }
        }
    }

    /// Handles a relayed *prepared*. A late copy from an earlier move has a generation of at most `replaces`, and is ignored.
    pub(crate) fn handle_prepared(&mut self, now: Time, generation: u64, import: Import) -> Option<Outcome> {
        let is_asking = matches!(self.phase, Phase::Asking { .. });
        if generation <= self.replaces || !is_asking && !matches!(self.phase, Phase::Settling { own: None }) {
            return None;
        }
        let Import::Ready(target) = import else { return Some(Outcome::Kept { generation }) };
        let to = Destination { generation, target };
        self.destination = Some(to);
        if is_asking {
            self.phase = Phase::Exporting(to);
            return Some(Outcome::Export);
        }
        (self.phase, self.next_at) = (Phase::Settling { own: Some(generation) }, now);
        None
    }

    /// Whether the driver is to export the connection.
    pub(crate) fn is_exporting(&self) -> bool {
        matches!(self.phase, Phase::Exporting(_))
    }

    /// The connection was exported. A state with too many parts comes back at once.
    pub(crate) fn exported(&mut self, now: Time, state: Chunks) {
        if let Phase::Exporting(to) = self.phase {
            self.next_at = now;
            self.phase = match Sending::new(now, state.clone(), self.times) {
                Some(sending) => Phase::Sending(to, sending),
                None => Phase::InDoubt(to, state),
            };
        }
    }

    /// The connection cannot be exported: the flow returns to the source.
    pub(crate) fn not_exported(&mut self, now: Time) {
        if let Phase::Exporting(to) = self.phase {
            (self.phase, self.next_at) = (Phase::Settling { own: Some(to.generation) }, now);
        }
    }

    /// Handles *accepted*: the target owns the flow.
    pub(crate) fn handle_accepted(&self, of: u64) -> Option<Outcome> {
        let is_ours = self.state().is_some() && self.destination().is_some_and(|to| to.generation == of);
        is_ours.then_some(Outcome::Moved)
    }

    /// Handles *refused*: the target will not own the flow.
    pub(crate) fn handle_refused(&mut self, now: Time, of: u64, reason: Reason) {
        if self.destination().is_some_and(|to| to.generation == of) {
            self.refusal = Some(reason);
            self.doubt(now);
        }
    }

    /// Handles the answer to *prepare*, *get* or *own*.
    pub(crate) fn handle_answer(&mut self, now: Time, seen: Seen) -> Option<Outcome> {
        if seen.status == Status::Replayed {
            return None;
        }
        match self.phase {
            Phase::Asking { .. } | Phase::Settling { .. } => self.handle_before_export(now, seen),
            Phase::InDoubt(..) => match (seen.status, seen.state) {
                (Status::Ok, FlowState::Owned) => Some(Outcome::Returned { generation: seen.generation }),
                // The server has no term at present: the request is repeated until it has one.
                (Status::NoOwner, _) => None,
                (_, FlowState::Owned) if !seen.is_ours => Some(Outcome::Moved),
                _ => Some(Outcome::LetGo),
            },
            Phase::Exporting(_) | Phase::Sending(..) => None,
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
            // *get* needs no term: the answer to the next heartbeat will state that this server has lost its flows.
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
    use core::time::Duration;

    use super::*;
    use crate::budget::Budget;
    use crate::test_flow::{flow, site};

    fn ms(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn seen(status: Status, state: FlowState, generation: u64, is_ours: bool) -> Seen {
        Seen { status, state, generation, is_ours }
    }

    fn parts() -> (MoveTimes, HeldFrames) {
        (MoveTimes::default(), HeldFrames::new(&Budget::new(1 << 20)))
    }

    fn asking() -> Source {
        let mut source = Source::new(Time(0), flow(1), 7, None, parts());
        assert!(matches!(source.poll(Time(0)), Some(Request::Prepare { replaces: 7, .. })));
        source
    }

    fn exporting() -> Source {
        let mut source = asking();
        assert_eq!(source.handle_prepared(Time(1), 8, Import::Ready(site())), Some(Outcome::Export));
        source
    }

    fn sending() -> Source {
        let mut source = exporting();
        source.exported(Time(0), Chunks::from(&b"state"[..]));
        source
    }

    /// Calls both polls at each of the source's times up to `until`. Returns the requests with their times.
    fn requests_until(source: &mut Source, until: Time) -> alloc::vec::Vec<(u64, Request)> {
        let mut all = alloc::vec::Vec::new();
        let mut now = Time(0);
        while let Some(at) = source.poll_timeout().map(|at| at.max(now)).filter(|at| *at <= until) {
            now = at;
            while source.poll_part(now).is_some() {}
            all.extend(source.poll(now).map(|request| (now.as_nanos() / 1_000_000, request)));
        }
        all
    }

    #[test]
    fn prepare_is_sent_five_times_and_then_the_entry_is_asked() {
        let mut source = Source::new(Time(0), flow(1), 7, None, parts());
        let requests = requests_until(&mut source, ms(63));
        let times: alloc::vec::Vec<_> = requests.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [0, 1, 3, 7, 15, 31, 47, 63]);
        let is_prepare = |(_, request): &(u64, Request)| matches!(request, Request::Prepare { .. });
        assert!(requests[..5].iter().all(is_prepare));
        assert!(requests[5..].iter().all(|(_, request)| matches!(request, Request::Get { .. })));
    }

    #[test]
    fn a_state_whose_parts_are_not_acknowledged_leads_to_own_every_16_ms() {
        let requests = requests_until(&mut sending(), ms(70));
        let own = Request::Own { flow: flow(1), replaces: 8 };
        assert_eq!(requests, [(31, own), (47, own), (63, own)]);
    }

    #[test]
    fn a_target_that_has_the_state_and_is_silent_is_doubted() {
        let mut source = sending();
        assert!(source.poll_part(Time(0)).is_some());
        source.handle_received(ms(1), 9, Received { through: 1, beyond: 0 });
        source.handle_received(ms(2), 8, Received { through: 1, beyond: 0 });
        source.handle_received(ms(20), 8, Received { through: 1, beyond: 0 });
        let own = Request::Own { flow: flow(1), replaces: 8 };
        assert_eq!(requests_until(&mut source, ms(40)), [(33, own)], "31 ms after the first acknowledgement");
    }

    #[test]
    fn accepted_ends_the_move_whatever_the_source_waits_for() {
        let mut source = sending();
        assert_eq!(source.handle_accepted(9), None, "another move");
        assert_eq!(source.handle_accepted(8), Some(Outcome::Moved));
        source.doubt(ms(1));
        assert_eq!(source.handle_accepted(8), Some(Outcome::Moved));
        assert_eq!(exporting().handle_accepted(8), None, "nothing was exported");
    }

    #[test]
    fn prepared_of_an_earlier_move_or_a_second_time_changes_nothing() {
        assert_eq!(asking().handle_prepared(Time(1), 7, Import::Ready(site())), None);
        assert_eq!(sending().handle_prepared(Time(1), 8, Import::Ready(site())), None);
        assert_eq!(exporting().handle_prepared(Time(1), 8, Import::Ready(site())), None);
    }

    #[test]
    fn a_source_that_gives_up_before_the_export_takes_the_flow_back() {
        let mut source = Source::new(Time(0), flow(1), 7, None, parts());
        requests_until(&mut source, ms(31));
        assert_eq!(source.handle_answer(ms(32), seen(Status::Ok, FlowState::Asked, 8, true)), None);
        assert!(matches!(source.poll(ms(32)), Some(Request::Own { replaces: 8, .. })));
        let kept = source.handle_answer(ms(33), seen(Status::Ok, FlowState::Owned, 9, true));
        assert_eq!(kept, Some(Outcome::Kept { generation: 9 }));
    }

    #[test]
    fn a_late_prepared_is_answered_by_own() {
        let mut source = Source::new(Time(0), flow(1), 7, None, parts());
        requests_until(&mut source, ms(31));
        assert_eq!(source.handle_prepared(ms(32), 8, Import::Ready(site())), None, "no export");
        assert!(matches!(source.poll(ms(32)), Some(Request::Own { replaces: 8, .. })));
    }

    #[test]
    fn refusals_leave_the_connection_where_it_is() {
        let refused = asking().handle_prepared(Time(1), 9, Import::Refused);
        assert_eq!(refused, Some(Outcome::Kept { generation: 9 }));
        let full = seen(Status::Full, FlowState::None, 0, false);
        assert_eq!(asking().handle_answer(Time(1), full), Some(Outcome::Kept { generation: 0 }));
        let stale = seen(Status::Stale, FlowState::Owned, 20, true);
        assert_eq!(asking().handle_answer(Time(1), stale), Some(Outcome::Kept { generation: 20 }));
        let foreign = seen(Status::Forbidden, FlowState::Owned, 20, false);
        assert_eq!(asking().handle_answer(Time(1), foreign), Some(Outcome::LetGo));
    }

    #[test]
    fn in_doubt_only_a_confirmed_own_continues_the_connection() {
        let answer = |status, state, is_ours| {
            let mut source = sending();
            source.doubt(ms(1));
            source.handle_answer(ms(2), seen(status, state, 9, is_ours))
        };
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
        source.handle_refused(Time(2), 7, Reason::NoRoom);
        assert_eq!(source.poll(Time(2)), None, "another move was refused");
        source.handle_refused(Time(2), 8, Reason::NoRoom);
        assert_eq!(source.refusal(), Some(Reason::NoRoom));
        assert!(matches!(source.poll(Time(2)), Some(Request::Own { replaces: 8, .. })));
    }

    #[test]
    fn without_entries_only_what_was_not_exported_stays() {
        assert_eq!(asking().handle_lost_entries(), Outcome::Kept { generation: 0 });
        assert_eq!(sending().handle_lost_entries(), Outcome::LetGo);
        let mut source = exporting();
        source.not_exported(Time(1));
        assert!(matches!(source.poll(Time(1)), Some(Request::Own { replaces: 8, .. })));
    }
}

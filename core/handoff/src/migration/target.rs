//! One move as its target sees it.
//!
//! ```text
//! Waiting --all parts--> Checking --the stack can import it--> Owning --own: ok--> owned
//!    | nothing arrives in time  | the stack refuses it           | own: otherwise
//!    v                          v                                v
//!  given back               given back                       given back
//! ```
//!
//! The target transmits nothing, and gives no packet to its stack, before *own* is confirmed.

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::{Part, Reason, Received};
use spillway_wire::switch::{Flow, FlowState, Import, Request, Site, Status};

use super::{ATTEMPTS, MoveTimes, Seen};
use crate::budget::Budget;
use crate::buffer::HeldFrames;
use crate::transfer::Receiving;

/// How a move ended for its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target owns the flow with this generation, and continues the connection.
    Owned { generation: u64 },
    /// The target does not own the flow.
    LetGo,
}

#[derive(Debug)]
enum Phase {
    /// Waits for the connection's state.
    Waiting(Option<Receiving>),
    /// The state has arrived; the driver has not reported yet whether the stack can import it.
    Checking { state: Chunks, parts: u16 },
    /// Waits for the switch to confirm *own*.
    Owning { state: Chunks, parts: u16, asked: u32 },
}

/// A move on its target. Packets of the flow wait here until the target owns it.
#[derive(Debug)]
pub(crate) struct Target {
    flow: Flow,
    generation: u64,
    site: Site,
    times: MoveTimes,
    phase: Phase,
    next_at: Time,
    /// The driver keeps the flow's packets until the connection is here.
    pub(crate) is_expected: bool,
    pub(crate) held: HeldFrames,
    /// When the parts that have arrived and were not acknowledged yet are to be acknowledged, if there are any.
    acknowledge_at: Option<Time>,
}

/// The acknowledgement of the last part waits for this part of [`MoveTimes::first_interval`]: *accepted*, which usually follows
/// within a few microseconds, acknowledges the state as well.
const LAST_WAITS: u32 = 4;

impl Target {
    /// The switch has relayed a *prepare* with this generation; the connection will be imported at `site`.
    pub(crate) fn new(
        now: Time,
        flow: Flow,
        generation: u64,
        site: Site,
        (times, held): (MoveTimes, HeldFrames),
    ) -> Target {
        let (phase, next_at) = (Phase::Waiting(None), now + times.state_within);
        Target {
            flow,
            generation,
            site,
            times,
            phase,
            next_at,
            is_expected: false,
            held,
            acknowledge_at: None,
        }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The answer to each *prepare* of this move. A repeated *prepare* shows that the source still waits.
    pub(crate) fn prepared(&mut self, now: Time) -> Request {
        if self.is_waiting() {
            self.next_at = now + self.times.state_within;
        }
        Request::Prepared { flow: self.flow, asked: self.generation, import: Import::Ready(self.site) }
    }

    /// Whether a part of the state has arrived.
    pub(crate) fn has_part(&self) -> bool {
        !matches!(self.phase, Phase::Waiting(None))
    }

    /// Whether an acknowledgement is due.
    pub(crate) fn owes_received(&self, now: Time) -> bool {
        self.acknowledge_at.is_some_and(|at| at <= now)
    }

    /// Whether the state has not arrived yet.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    /// The state, when the stack can import it.
    pub(crate) fn state(&self) -> Option<&Chunks> {
        match &self.phase {
            Phase::Owning { state, .. } => Some(state),
            Phase::Waiting(_) | Phase::Checking { .. } => None,
        }
    }

    /// A part of the state has arrived. Returns the state when it is complete.
    ///
    /// # Errors
    /// The budget has no room for the state.
    pub(crate) fn handle_part(
        &mut self,
        now: Time,
        part: &Part<'_>,
        budget: &Budget,
    ) -> Result<Option<Chunks>, Reason> {
        self.acknowledge_at = Some(now);
        let Phase::Waiting(receiving) = &mut self.phase else { return Ok(None) };
        if receiving.is_none() {
            *receiving = Some(Receiving::new(part, budget).ok_or(Reason::NoRoom)?);
        }
        if receiving.as_mut().is_some_and(|receiving| receiving.store(part)) {
            self.next_at = now + self.times.state_within;
        }
        let parts = receiving.as_ref().and_then(Receiving::complete_parts);
        let Some((parts, receiving)) = parts.and_then(|parts| Some((parts, receiving.take()?))) else {
            return Ok(None);
        };
        self.acknowledge_at = Some(now + self.times.first_interval / LAST_WAITS);
        let state = receiving.into_state();
        self.phase = Phase::Checking { state: state.clone(), parts };
        Ok(Some(state))
    }

    /// The source has sent *lent* instead of a state.
    pub(crate) fn handle_lent(&mut self, now: Time) {
        self.acknowledge_at = Some(now);
        if let Phase::Waiting(_) = &self.phase {
            self.acknowledge_at = Some(now + self.times.first_interval / LAST_WAITS);
            self.phase = Phase::Owning { state: Chunks::new(), parts: 1, asked: 0 };
            self.next_at = now;
        }
    }

    /// The stack can import the state.
    pub(crate) fn handle_checked(&mut self, now: Time) {
        if let Phase::Checking { state, parts } = &self.phase {
            self.phase = Phase::Owning { state: state.clone(), parts: *parts, asked: 0 };
            self.next_at = now;
        }
    }

    /// Handles *taken back*: the source owns the flow again. Returns whether the move is over. A target that has the whole
    /// state does not end the move yet: it sends *own* at once, and the switch's answer decides.
    pub(crate) fn handle_taken_back(&mut self, now: Time) -> bool {
        self.next_at = self.next_at.min(now);
        self.is_waiting()
    }

    /// The acknowledgement that is due, if any.
    pub(crate) fn poll_received(&mut self, now: Time) -> Option<Received> {
        self.acknowledge_at.take_if(|at| *at <= now).map(|_| match &self.phase {
            Phase::Waiting(receiving) => {
                receiving.as_ref().map_or_else(Received::default, Receiving::received)
            }
            Phase::Checking { parts, .. } | Phase::Owning { parts, .. } => {
                Received { through: *parts, beyond: 0 }
            }
        })
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let next_at = match &self.phase {
            Phase::Waiting(_) | Phase::Owning { .. } => Some(self.next_at),
            Phase::Checking { .. } => None,
        };
        next_at.into_iter().chain(self.acknowledge_at).min()
    }

    /// The request that is due, if any. *own* is repeated until the switch answers: before that, either end may own the
    /// flow.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Request> {
        let Phase::Owning { asked, .. } = &mut self.phase else { return None };
        if now < self.next_at {
            return None;
        }
        self.next_at = now + self.times.interval(*asked);
        *asked = (*asked + 1).min(ATTEMPTS);
        Some(Request::Own { flow: self.flow, replaces: self.generation })
    }

    /// Whether nothing of the state has arrived for too long.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        self.is_waiting() && now >= self.next_at
    }

    /// Handles the answer to *own*.
    pub(crate) fn handle_answer(&self, seen: Seen) -> Option<Outcome> {
        self.state()?;
        match (seen.status, seen.state) {
            (Status::Replayed, _) => None,
            (Status::Ok, FlowState::Owned) => Some(Outcome::Owned { generation: seen.generation }),
            _ => Some(Outcome::LetGo),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use spillway_wire::handoff::PART_BYTES;

    use super::*;
    use crate::test_flow::{flow, site};

    fn ms(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn budget() -> Budget {
        Budget::new(1 << 20)
    }

    fn target() -> Target {
        Target::new(Time(0), flow(1), 8, site(), (MoveTimes::default(), HeldFrames::new(&budget())))
    }

    fn owning() -> Target {
        let mut target = target();
        let state = target.handle_part(ms(1), &Part::of(b"state", 0).unwrap(), &budget());
        assert_eq!(state.unwrap(), Some(Chunks::from(&b"state"[..])));
        target.handle_checked(ms(2));
        target
    }

    fn seen(status: Status, state: FlowState) -> Seen {
        Seen { status, state, generation: 9, is_ours: status == Status::Ok }
    }

    #[test]
    fn own_is_sent_when_the_state_can_be_imported_and_then_every_16_ms() {
        let mut target = target();
        assert_eq!(target.handle_answer(seen(Status::Ok, FlowState::Owned)), None, "nothing was asked");
        assert!(target.handle_part(ms(1), &Part::of(b"state", 0).unwrap(), &budget()).unwrap().is_some());
        assert_eq!(target.poll(ms(1)), None, "the stack has not checked the state");
        target.handle_checked(ms(2));
        let mut times = alloc::vec::Vec::new();
        assert_eq!(target.poll_received(ms(2)), Some(Received { through: 1, beyond: 0 }));
        while times.len() < 7 {
            let now = target.poll_timeout().unwrap();
            assert_eq!(target.poll(now), Some(Request::Own { flow: flow(1), replaces: 8 }));
            times.push(now.as_nanos() / 1_000_000);
        }
        assert_eq!(times, [2, 3, 5, 9, 17, 33, 49]);
        assert!(!target.is_expired(ms(5_000)), "a target in doubt asks until it is answered");
    }

    #[test]
    fn only_a_confirmed_own_makes_an_owner() {
        let target = owning();
        let owned = Some(Outcome::Owned { generation: 9 });
        assert_eq!(target.handle_answer(seen(Status::Ok, FlowState::Owned)), owned);
        assert_eq!(target.handle_answer(seen(Status::Replayed, FlowState::Owned)), None);
        for status in [Status::Stale, Status::Forbidden, Status::NoEntry, Status::NoOwner] {
            assert_eq!(target.handle_answer(seen(status, FlowState::Owned)), Some(Outcome::LetGo));
        }
    }

    #[test]
    fn a_target_waits_100_ms_for_the_next_part() {
        let (mut target, state, budget) = (target(), [7; 3 * PART_BYTES], budget());
        assert!(!target.is_expired(ms(99)) && target.is_expired(ms(100)));
        target.prepared(ms(50));
        assert!(!target.is_expired(ms(149)) && target.is_expired(ms(150)), "the source has asked again");
        for (at, number) in [(100, 0), (150, 1), (240, 1)] {
            let part = Part::of(&state, number).unwrap();
            assert_eq!(target.handle_part(ms(at), &part, &budget), Ok(None));
            let at = ms(at);
            assert_eq!(target.poll_received(at), Some(Received { through: number + 1, beyond: 0 }));
            assert_eq!(target.poll_received(at), None);
        }
        assert!(!target.is_expired(ms(249)) && target.is_expired(ms(250)), "a repeated part is no progress");
    }

    #[test]
    fn accepted_makes_the_acknowledgement_of_the_last_part_needless_and_a_repeated_part_is_acknowledged_at_once()
     {
        let us = |us: u64| Time(us * 1000);
        let (mut target, state, budget) = (target(), [7; 2 * PART_BYTES], budget());
        for number in 0..2 {
            assert!(target.handle_part(us(10), &Part::of(&state, number).unwrap(), &budget).is_ok());
        }
        assert_eq!((target.poll_received(us(259)), target.poll_timeout()), (None, Some(us(260))));
        assert_eq!(target.poll_received(us(260)), Some(Received { through: 2, beyond: 0 }));
        assert_eq!((target.poll_received(us(900)), target.poll_timeout()), (None, None));
        assert_eq!(target.handle_part(us(900), &Part::of(&state, 1).unwrap(), &budget), Ok(None));
        assert_eq!(target.poll_received(us(900)), Some(Received { through: 2, beyond: 0 }));
    }

    #[test]
    fn a_state_without_room_is_refused() {
        let part = Part::of(b"state", 0).unwrap();
        assert_eq!(target().handle_part(ms(1), &part, &Budget::new(4)), Err(Reason::NoRoom));
    }

    #[test]
    fn taken_back_ends_a_move_whose_state_is_not_here_and_otherwise_the_entry_is_asked() {
        assert!(target().handle_taken_back(ms(1)));
        let mut owning = owning();
        assert!(owning.poll(ms(2)).is_some() && owning.poll(ms(2)).is_none());
        assert!(!owning.handle_taken_back(ms(2)) && owning.poll(ms(2)).is_some());
    }
}

//! One move as its target sees it.

use alloc::sync::Arc;

use spillway_transport::Time;
use spillway_wire::switch::{Flow, FlowState, Import, Request, Site, Status};

use super::{MoveTimes, Seen};
use crate::buffer::HeldFrames;

/// How a move ended for its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The target owns the flow with this generation, and continues the connection.
    Owned { generation: u64 },
    /// The target does not own the flow.
    LetGo,
}

#[derive(Clone, Debug)]
enum Phase {
    /// Waits for the connection's state.
    Waiting,
    /// Waits for the switch to confirm *own*.
    Owning(Arc<[u8]>),
}

/// A move on its target. Packets of the flow wait here until the target owns it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    flow: Flow,
    generation: u64,
    site: Site,
    times: MoveTimes,
    phase: Phase,
    next_at: Time,
    ends_at: Time,
    held: HeldFrames,
}

impl Target {
    /// The switch has relayed a *prepare* with this generation; the connection will be imported at `site`.
    pub(crate) fn new(now: Time, flow: Flow, generation: u64, site: Site, times: MoveTimes) -> Target {
        let ends_at = now + times.lifetime;
        let (phase, held) = (Phase::Waiting, HeldFrames::default());
        Target { flow, generation, site, times, phase, next_at: ends_at, ends_at, held }
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The answer to each *prepare* of this move.
    pub(crate) fn prepared(&self) -> Request {
        Request::Prepared { flow: self.flow, asked: self.generation, import: Import::Ready(self.site) }
    }

    /// Keeps a packet of the flow. Returns false if there is no room.
    pub(crate) fn hold(&mut self, frame: &[u8], is_damaged: bool) -> bool {
        self.held.push(frame, is_damaged)
    }

    pub(crate) fn held(&mut self) -> &mut HeldFrames {
        &mut self.held
    }

    /// Whether the state has not arrived yet.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting)
    }

    pub(crate) fn state(&self) -> Option<&Arc<[u8]>> {
        match &self.phase {
            Phase::Waiting => None,
            Phase::Owning(state) => Some(state),
        }
    }

    /// The state has arrived, and can be imported.
    pub(crate) fn receive(&mut self, now: Time, state: Arc<[u8]>) {
        (self.phase, self.next_at) = (Phase::Owning(state), now);
    }

    pub(crate) fn poll_timeout(&self) -> Time {
        self.next_at
    }

    /// What to send now, if anything. *own* is repeated until the switch answers: before that, either end may own the flow.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Request> {
        if now < self.next_at || self.is_waiting() {
            return None;
        }
        self.next_at = now + self.times.retry;
        Some(Request::Own { flow: self.flow, replaces: self.generation })
    }

    /// Whether the move's time has passed before the state arrived.
    pub(crate) fn is_expired(&self, now: Time) -> bool {
        self.is_waiting() && now >= self.ends_at
    }

    /// Handles the answer to *own*.
    pub(crate) fn handle_answer(&self, seen: Seen) -> Option<Outcome> {
        if self.is_waiting() {
            return None;
        }
        match (seen.status, seen.state) {
            (Status::Replayed, _) => None,
            (Status::Ok, FlowState::Owned) => Some(Outcome::Owned { generation: seen.generation }),
            _ => Some(Outcome::LetGo),
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

    fn target() -> Target {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap().into();
        let flow = Flow::new(end("10.0.0.2:40000"), end("10.0.0.1:80")).unwrap();
        let site = Site::new(flow.service(), Mac([2, 0, 0, 0, 0, 9])).unwrap();
        Target::new(Time(0), flow, 8, site, TIMES)
    }

    fn seen(status: Status, state: FlowState) -> Seen {
        Seen { status, state, generation: 9, is_ours: status == Status::Ok }
    }

    #[test]
    fn own_is_sent_when_the_state_has_arrived_and_repeated() {
        let mut target = target();
        assert!(matches!(target.prepared(), Request::Prepared { asked: 8, import: Import::Ready(_), .. }));
        assert_eq!(target.poll(Time(500)), None);
        assert_eq!(target.handle_answer(seen(Status::Ok, FlowState::Owned)), None, "nothing was asked");
        target.receive(Time(500), Arc::from(&b"state"[..]));
        for now in [500, 10_000_500] {
            assert!(matches!(target.poll(Time(now)), Some(Request::Own { replaces: 8, .. })));
        }
        assert!(!target.is_expired(Time(5_000_000_000)), "a target in doubt asks until it is answered");
    }

    #[test]
    fn only_a_confirmed_own_makes_an_owner() {
        let mut target = target();
        target.receive(Time(0), Arc::from(&b"state"[..]));
        assert_eq!(
            target.handle_answer(seen(Status::Ok, FlowState::Owned)),
            Some(Outcome::Owned { generation: 9 })
        );
        assert_eq!(target.handle_answer(seen(Status::Replayed, FlowState::Owned)), None);
        for status in [Status::Stale, Status::Forbidden, Status::NoEntry, Status::NoOwner] {
            assert_eq!(target.handle_answer(seen(status, FlowState::Owned)), Some(Outcome::LetGo));
        }
    }

    #[test]
    fn a_move_whose_state_does_not_arrive_expires() {
        let target = target();
        assert!(!target.is_expired(Time(999_999_999)) && target.is_expired(Time(1_000_000_000)));
    }
}

//! Requests that move with their connections, from the server that has read them to the one that serves them (Prism §4.1).
//!
//! A connection has one owner, and its request with it: the importing server serves it once, or gives it back. This module
//! has what the entry of the flow does not tell: how a request that has left this server ended ([`ours`]), what this server
//! reports about requests of others ([`reports`]), and which request moves with a connection that is leaving.

mod ours;
mod reports;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use spillway_transport::Time;
use spillway_wire::handoff::{Body, NextServer};
use spillway_wire::state::{HandedRequest, Purpose};
use spillway_wire::switch::{Flow, ServerId};

use crate::event::{MoveResult, RequestOutcome};
use crate::migration::MoveTimes;
use ours::Ours;
use reports::{Report, Reports};

/// The move of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaving {
    request: HandedRequest,
    to: ServerId,
}

/// All requests that have left this server, are leaving, or were served for others.
#[derive(Debug)]
pub(crate) struct Requests {
    us: ServerId,
    ours: Ours,
    reports: Reports,
    leaving: BTreeMap<Flow, Leaving>,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) flow: Flow,
    pub(crate) number: u64,
    /// Whether this server is the origin.
    pub(crate) is_own: bool,
    pub(crate) outcome: RequestOutcome,
}

impl Requests {
    /// `first_number`: that of the first request; other runs of this server begin elsewhere.
    pub(crate) fn new(us: ServerId, first_number: u64, requests_max: usize) -> Requests {
        Requests {
            us,
            ours: Ours::new(first_number, requests_max),
            reports: Reports::new(),
            leaving: BTreeMap::new(),
        }
    }

    /// A new request of this server, which is not away yet.
    pub(crate) fn new_request(&mut self, hops_left: u8) -> HandedRequest {
        let number = self.ours.take_number();
        HandedRequest { origin: self.us, number, hops_left, purpose: Purpose::Serve }
    }

    /// Whether a request may leave: `None` is a new one of this server.
    pub(crate) fn has_room(&self, request: Option<&HandedRequest>) -> bool {
        !request.is_none_or(|request| self.is_ours(request)) || self.ours.has_room()
    }

    /// The move of a request with its connection has begun.
    pub(crate) fn begin(&mut self, now: Time, flow: Flow, request: HandedRequest, to: ServerId) {
        if self.is_ours(&request) {
            self.ours.add(now, flow, to, &request);
        }
        self.leaving.insert(flow, Leaving { request, to });
    }

    /// The request that leaves with the connection of a flow.
    pub(crate) fn leaving(&self, flow: &Flow) -> Option<HandedRequest> {
        self.leaving.get(flow).map(|leaving| leaving.request)
    }

    /// The move of a connection has ended. Returns what follows for the request that it had, if it had one.
    pub(crate) fn end_move(&mut self, now: Time, flow: &Flow, result: MoveResult) -> Option<Ended> {
        let Leaving { request, to } = self.leaving.remove(flow)?;
        let is_own = self.is_ours(&request);
        match result {
            MoveResult::Moved if is_own => {}
            MoveResult::Moved => {
                // A request that returns tells its origin itself.
                if request.purpose == Purpose::Serve && to != request.origin {
                    let next = NextServer { id: to, hops_left: request.hops_left };
                    self.reports.add(now, *flow, &request, Report::PassedOn(next));
                }
            }
            MoveResult::Kept(_) | MoveResult::Returned(_) => {
                self.take_back(&request);
                let outcome = RequestOutcome::Stays(result);
                return Some(Ended { flow: *flow, number: request.number, is_own, outcome });
            }
            // The target may have the connection, and then reports.
            MoveResult::LetGo if is_own => self.ours.doubt(now, request.number),
            MoveResult::LetGo => {}
        }
        None
    }

    /// A request has come with its connection. If it is one of this server, it is not away any more.
    pub(crate) fn arrive(&mut self, request: &HandedRequest) {
        self.take_back(request);
        // What this server has reported before is old.
        self.reports.forget(request);
    }

    /// This server has served a request of another one.
    pub(crate) fn served(&mut self, now: Time, flow: Flow, request: &HandedRequest) {
        self.report(now, flow, request, Report::Served);
    }

    /// The connection of another server's request has ended here before the request was served.
    pub(crate) fn abandoned(&mut self, now: Time, flow: Flow, request: &HandedRequest) {
        self.report(now, flow, request, Report::Abandoned);
    }

    fn report(&mut self, now: Time, flow: Flow, request: &HandedRequest, report: Report) {
        if !self.is_ours(request) {
            self.reports.add(now, flow, request, report);
        }
    }

    /// A report about a request of this server has arrived: it is answered by *noted*, whether it is new or not.
    pub(crate) fn handle_report(
        &mut self,
        now: Time,
        from: ServerId,
        flow: &Flow,
        body: &Body<'_>,
    ) -> Option<Ended> {
        let (number, outcome) = match *body {
            Body::Served(number) => (number, RequestOutcome::Served(from)),
            Body::Abandoned(number) => (number, RequestOutcome::Abandoned(from)),
            Body::PassedOn(number, next) => {
                self.ours.pass_on(now, number, flow, next);
                return None;
            }
            _ => return None,
        };
        self.ours.end(number, flow).then(|| own((*flow, number), outcome))
    }

    /// The origin has this server's report; `next`: that of *passed on*.
    pub(crate) fn handle_noted(&mut self, origin: ServerId, number: u64, next: Option<NextServer>) {
        self.reports.remove(origin, number, next);
    }

    /// The connection of a flow has ended here, before it could leave: its request does not leave. The client may connect again
    /// from the same port before the move has ended.
    pub(crate) fn stay_behind(&mut self, flow: &Flow) {
        if let Some(Leaving { request, .. }) = self.leaving.remove(flow) {
            self.take_back(&request);
        }
    }

    /// A request is here. If it is one of this server, it is not away any more.
    fn take_back(&mut self, request: &HandedRequest) {
        if self.is_ours(request) {
            self.ours.remove(request.number);
        }
    }

    /// A peer has restarted: its connections are lost, and with them requests of this server.
    pub(crate) fn handle_new_run(&mut self, peer: ServerId) -> Vec<Ended> {
        self.reports.forget_origin(peer);
        let leaving = &self.leaving;
        self.ours.lost_with(peer, |flow| leaving.contains_key(flow)).into_iter().map(unknown).collect()
    }

    /// The connection of a flow was lost with the server that had it.
    pub(crate) fn handle_lost_loan(&mut self, flow: &Flow) -> Vec<Ended> {
        self.ours.lost_of(flow).into_iter().map(unknown).collect()
    }

    /// Requests of this server about which nothing was heard for too long.
    pub(crate) fn expire(&mut self, now: Time) -> Vec<Ended> {
        self.ours.expired(now).into_iter().map(unknown).collect()
    }

    /// The next report that is due.
    pub(crate) fn poll_report(
        &mut self,
        now: Time,
        times: &MoveTimes,
    ) -> Option<(ServerId, Flow, Body<'static>)> {
        self.reports.poll(now, times)
    }

    /// When [`expire`](Self::expire) or [`poll_report`](Self::poll_report) has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.ours.next_at().into_iter().chain(self.reports.next_at()).min()
    }

    /// Requests of this server that are away.
    pub(crate) fn away(&self) -> usize {
        self.ours.len()
    }

    fn is_ours(&self, request: &HandedRequest) -> bool {
        request.origin == self.us
    }
}

fn own((flow, number): (Flow, u64), outcome: RequestOutcome) -> Ended {
    Ended { flow, number, is_own: true, outcome }
}

fn unknown(request: (Flow, u64)) -> Ended {
    own(request, RequestOutcome::Unknown)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::event::Obstacle;
    use crate::test_flow::flow;

    const US: ServerId = ServerId(1);
    const B: ServerId = ServerId(2);
    const C: ServerId = ServerId(3);

    fn ms(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    /// The requests of server 1, one of which is away at server 2.
    fn with_one_away() -> (Requests, HandedRequest) {
        let mut requests = Requests::new(US, 100, 8);
        let request = requests.new_request(4);
        requests.begin(ms(0), flow(1), request, B);
        assert_eq!(requests.leaving(&flow(1)), Some(request));
        assert_eq!(requests.end_move(ms(1), &flow(1), MoveResult::Moved), None);
        assert_eq!((requests.away(), requests.leaving(&flow(1))), (1, None));
        (requests, request)
    }

    fn reports(requests: &mut Requests, now: Time) -> Vec<(ServerId, Flow, Body<'static>)> {
        core::iter::from_fn(|| requests.poll_report(now, &MoveTimes::default())).collect()
    }

    #[test]
    fn a_request_that_was_served_elsewhere_ends_once() {
        let (mut requests, HandedRequest { number, .. }) = with_one_away();
        let served = Body::Served(number);
        let other_flow = requests.handle_report(ms(1), B, &flow(2), &served);
        assert_eq!(other_flow, None, "the number belongs to another flow");
        let ended = Some(own((flow(1), number), RequestOutcome::Served(B)));
        assert_eq!(requests.handle_report(ms(1), B, &flow(1), &served), ended);
        assert_eq!(requests.handle_report(ms(1), B, &flow(1), &served), None, "a repeated report");
        assert_eq!((requests.away(), requests.poll_timeout()), (0, None));
    }

    #[test]
    fn a_request_whose_move_has_failed_stays_here() {
        for result in [MoveResult::Kept(Obstacle::Silence), MoveResult::Returned(None)] {
            let mut requests = Requests::new(US, 100, 8);
            let request = requests.new_request(4);
            requests.begin(ms(0), flow(1), request, B);
            let stays = Some(own((flow(1), request.number), RequestOutcome::Stays(result)));
            assert_eq!(requests.end_move(ms(1), &flow(1), result), stays);
            assert_eq!(requests.away(), 0);
        }
    }

    #[test]
    fn the_death_of_the_server_that_has_a_request_makes_its_outcome_unknown() {
        let (mut requests, HandedRequest { number, .. }) = with_one_away();
        assert_eq!(requests.handle_new_run(C).len(), 0);
        let passed_on = |hops_left, id| Body::PassedOn(number, NextServer { id, hops_left });
        assert_eq!(requests.handle_report(ms(1), B, &flow(1), &passed_on(3, C)), None);
        // An older report arrives later.
        assert_eq!(requests.handle_report(ms(1), US, &flow(1), &passed_on(4, B)), None);
        assert_eq!(requests.handle_new_run(B).len(), 0, "server 3 has the request");
        let lost = requests.handle_new_run(C);
        assert_eq!(lost, [own((flow(1), number), RequestOutcome::Unknown)]);
        assert_eq!(requests.away(), 0);
    }

    #[test]
    fn a_lost_loan_and_a_long_silence_make_outcomes_unknown() {
        let (mut requests, HandedRequest { number, .. }) = with_one_away();
        assert_eq!(requests.handle_lost_loan(&flow(2)).len(), 0);
        let lost = [own((flow(1), number), RequestOutcome::Unknown)];
        assert_eq!(requests.handle_lost_loan(&flow(1)), lost);
        let (mut requests, _) = with_one_away();
        let at = requests.poll_timeout().unwrap();
        assert_eq!(requests.expire(Time(at.as_nanos() - 1)).len(), 0);
        assert_eq!(requests.expire(at), lost);
    }

    #[test]
    fn a_move_in_doubt_leaves_five_seconds_for_a_report() {
        let mut requests = Requests::new(US, 100, 8);
        let [one, two] = [1, 2].map(|port| {
            let request = requests.new_request(4);
            requests.begin(ms(0), flow(port), request, B);
            assert_eq!(requests.end_move(ms(10), &flow(port), MoveResult::LetGo), None);
            request.number
        });
        assert_eq!(requests.poll_timeout(), Some(ms(5010)));
        let served = Some(own((flow(1), one), RequestOutcome::Served(B)));
        assert_eq!(requests.handle_report(ms(1), B, &flow(1), &Body::Served(one)), served);
        let expired = requests.expire(ms(5010));
        assert_eq!(expired, [own((flow(2), two), RequestOutcome::Unknown)]);
    }

    #[test]
    fn a_request_of_another_server_is_reported_until_its_origin_has_noted_it() {
        let mut requests = Requests::new(US, 100, 8);
        let request = HandedRequest { origin: B, number: 7, hops_left: 2, purpose: Purpose::Serve };
        requests.arrive(&request);
        requests.served(ms(0), flow(1), &request);
        let report = (B, flow(1), Body::Served(7));
        assert_eq!(reports(&mut requests, ms(0)), [report]);
        assert_eq!(reports(&mut requests, ms(0)), []);
        assert_eq!(requests.poll_timeout(), Some(ms(1)));
        assert_eq!(reports(&mut requests, ms(1)), [report]);
        requests.handle_noted(C, 7, None);
        assert_eq!(requests.poll_timeout(), Some(ms(3)), "server 3 has another request with this number");
        requests.handle_noted(B, 7, None);
        assert_eq!(requests.poll_timeout(), None);
    }

    #[test]
    fn an_origin_that_does_not_answer_is_given_up() {
        let mut requests = Requests::new(US, 100, 8);
        let request = HandedRequest { origin: B, number: 7, hops_left: 2, purpose: Purpose::Serve };
        requests.abandoned(ms(0), flow(1), &request);
        let mut sent = 0;
        while let Some(at) = requests.poll_timeout() {
            sent += reports(&mut requests, at).len();
        }
        assert_eq!(sent, 20);
    }

    #[test]
    fn a_request_that_is_passed_on_is_reported_and_one_that_returns_is_not() {
        let request = HandedRequest { origin: B, number: 7, hops_left: 1, purpose: Purpose::Serve };
        let mut requests = Requests::new(US, 100, 8);
        requests.begin(ms(0), flow(1), request, C);
        assert_eq!(requests.end_move(ms(0), &flow(1), MoveResult::Moved), None);
        let next = NextServer { id: C, hops_left: 1 };
        let passed_on = Body::PassedOn(7, next);
        assert_eq!(reports(&mut requests, ms(0)), [(B, flow(1), passed_on)]);
        // It comes back to this server.
        requests.arrive(&request);
        assert_eq!(requests.poll_timeout(), None);
        requests.served(ms(1), flow(1), &request);
        requests.handle_noted(B, 7, Some(next));
        assert!(requests.poll_timeout().is_some(), "an acknowledgement of the earlier report has come late");
        requests.handle_noted(B, 7, None);
        let returning = HandedRequest { purpose: Purpose::NotServed, ..request };
        requests.begin(ms(1), flow(1), returning, B);
        assert_eq!(requests.end_move(ms(1), &flow(1), MoveResult::Moved), None);
        assert_eq!(reports(&mut requests, ms(9)), []);
    }

    #[test]
    fn a_request_that_is_passed_on_has_its_full_time_again() {
        let mut requests = Requests::new(US, 100, 8);
        let request = requests.new_request(4);
        requests.begin(ms(0), flow(1), request, B);
        assert_eq!(requests.end_move(ms(10), &flow(1), MoveResult::LetGo), None);
        let passed_on = Body::PassedOn(request.number, NextServer { id: C, hops_left: 3 });
        assert_eq!(requests.handle_report(ms(20), B, &flow(1), &passed_on), None);
        assert_eq!(requests.expire(ms(6_000)), []);
        assert_eq!(requests.poll_timeout(), Some(ms(600_020)));
    }

    #[test]
    fn a_request_does_not_leave_with_the_next_connection_of_its_flow() {
        let mut requests = Requests::new(US, 100, 8);
        let request = requests.new_request(4);
        requests.begin(ms(0), flow(1), request, B);
        requests.stay_behind(&flow(1));
        assert_eq!((requests.leaving(&flow(1)), requests.away()), (None, 0));
        assert_eq!(requests.end_move(ms(1), &flow(1), MoveResult::Moved), None);
    }

    #[test]
    fn requests_that_are_away_are_bounded() {
        let mut requests = Requests::new(US, 100, 2);
        for port in 1..=2 {
            assert!(requests.has_room(None));
            let request = requests.new_request(4);
            requests.begin(ms(0), flow(port), request, B);
        }
        let foreign = HandedRequest { origin: B, number: 7, hops_left: 1, purpose: Purpose::Serve };
        assert!(!requests.has_room(None) && requests.has_room(Some(&foreign)));
    }
}

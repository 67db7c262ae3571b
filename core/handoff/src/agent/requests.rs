//! Requests that move with their connections.

use spillway_transport::Time;
use spillway_wire::handoff::Body;
use spillway_wire::state::{HandedRequest, Purpose};
use spillway_wire::switch::{Flow, ServerId};

use super::Agent;
use crate::event::{Event, MoveError, MoveResult};
use crate::requests::Ended;

/// Maximum number of reports that leave at once; the others follow in the next turn.
const REPORTS_PER_TURN: usize = 256;

impl Agent {
    /// Hands a request off: moves its connection to the server `to`, which serves the request. `request`: one that has come
    /// from another server, or has returned; `None` for a request that this server has read from the client. The state gets
    /// [`leaving_request`](Self::leaving_request). [`Event::Request`] tells how a request of this server has ended, and
    /// whether one of another server has stayed.
    ///
    /// # Errors
    /// As [`request_move`](Self::request_move); or the request was handed off too often, or too many requests of this server
    /// are away. The request is here as before.
    pub fn hand_off(
        &mut self,
        now: Time,
        flow: Flow,
        to: ServerId,
        request: Option<HandedRequest>,
    ) -> Result<(), MoveError> {
        let hops_left = request.map_or(self.settings.limits.hops_max, |request| request.hops_left);
        let hops_left = hops_left.checked_sub(1).ok_or(MoveError::TooManyHops)?;
        if !self.requests.has_room(request.as_ref()) {
            return Err(MoveError::TooManyRequests);
        }
        self.request_move(now, flow, Some(to))?;
        let request = match request {
            Some(request) => HandedRequest { hops_left, purpose: Purpose::Serve, ..request },
            None => self.requests.new_request(hops_left),
        };
        self.requests.begin(now, flow, request, to);
        Ok(())
    }

    /// Returns a request of another server to its origin, with its connection. `is_served`: otherwise the request was not
    /// executed, not even in part. [`Event::Request`] tells if the connection has stayed here.
    ///
    /// # Errors
    /// As [`request_move`](Self::request_move); a request of this server has returned already.
    pub fn hand_back(
        &mut self,
        now: Time,
        flow: Flow,
        request: HandedRequest,
        is_served: bool,
    ) -> Result<(), MoveError> {
        self.request_move(now, flow, Some(request.origin))?;
        let purpose = if is_served { Purpose::Served } else { Purpose::NotServed };
        self.requests.begin(now, flow, HandedRequest { purpose, ..request }, request.origin);
        Ok(())
    }

    /// The request for the state of a connection that is to be exported.
    pub fn leaving_request(&self, flow: &Flow) -> Option<HandedRequest> {
        self.requests.leaving(flow)
    }

    /// A connection was imported with this request.
    pub fn request_arrived(&mut self, request: &HandedRequest) {
        self.requests.arrive(request);
    }

    /// This server has served a request of another one, whose connection stays here. The origin learns it.
    pub fn request_served(&mut self, now: Time, flow: Flow, request: &HandedRequest) {
        self.requests.served(now, flow, request);
    }

    /// The connection of another server's request has ended here, and the request may have been executed in part. The origin
    /// learns it.
    pub fn request_abandoned(&mut self, now: Time, flow: Flow, request: &HandedRequest) {
        self.requests.abandoned(now, flow, request);
    }

    /// Requests of this server that are away.
    pub fn requests_away(&self) -> usize {
        self.requests.away()
    }

    /// Ends the move of a request, if the connection of the flow has one.
    pub(super) fn end_request_move(&mut self, now: Time, flow: &Flow, result: MoveResult) {
        let ended = self.requests.end_move(now, flow, result);
        self.report_ended(ended);
    }

    pub(super) fn report_ended(&mut self, ended: impl IntoIterator<Item = Ended>) {
        let event =
            |Ended { flow, number, is_own, outcome }| Event::Request { flow, number, is_own, outcome };
        self.events.extend(ended.into_iter().map(event));
    }

    pub(super) fn handle_request_report(&mut self, now: Time, from: ServerId, flow: Flow, body: &Body<'_>) {
        let ended = self.requests.handle_report(now, from, &flow, body);
        self.report_ended(ended);
        let noted = match *body {
            Body::Served(number) | Body::Abandoned(number) => Body::Noted(number, None),
            Body::PassedOn(number, next) => Body::Noted(number, Some(next)),
            _ => return,
        };
        self.send(from, flow, 0, noted);
    }

    pub(super) fn poll_requests(&mut self, now: Time) {
        let expired = self.requests.expire(now);
        self.report_ended(expired);
        for _ in 0..REPORTS_PER_TURN {
            let Some((origin, flow, body)) = self.requests.poll_report(now, &self.settings.times) else {
                return;
            };
            self.send(origin, flow, 0, body);
        }
    }
}

//! The agent's events: exports, imports, checks, dropped connections and ended moves.

use alloc::vec::Vec;

use spillway_handoff::{Agent, Cause, Event, HandedRequest, MoveResult, Purpose, Step};
use spillway_transport::{Conn, Event as ApplicationEvent, LostReason, Time};
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::Flow;

use super::Server;
use crate::application::{Arrival, Movable};
use crate::connections::{About, ComingConnection, ends_of};
use crate::incidents::{Incident, Loss};
use crate::orders::OrderResult;
use crate::reservations::Checked;
use crate::tcp::Tcp;

impl<S: Tcp> Server<S> {
    /// Handles all events of the agent.
    pub(super) fn run_agent<A: Movable>(&mut self, application: &mut A, now: Time) {
        while let Some(event) = self.agent.as_mut().and_then(Agent::poll_event) {
            self.handle_agent_event(application, now, event);
            self.keep_places();
            self.pass_events(application, now);
        }
    }

    /// The stack keeps the reserved places free.
    pub(super) fn keep_places(&mut self) {
        self.connections.stack_mut().keep_places(self.reservations.len());
    }

    pub(super) fn with_agent(&mut self, act: impl FnOnce(&mut Agent)) {
        if let Some(agent) = &mut self.agent {
            act(agent);
        }
    }

    fn handle_agent_event<A: Movable>(&mut self, application: &mut A, now: Time, event: Event) {
        match event {
            Event::Expect { flow, generation } => self.expect(now, flow, generation),
            Event::Export { flow } => self.exports.push_back(flow),
            Event::Check { flow, generation, state } => {
                let result = self.check(application, now, flow, &state);
                self.with_agent(|agent| agent.checked(now, flow, generation, result));
            }
            Event::Import { flow, state, frames, is_return } => {
                self.reservations.end_away(&flow);
                match self.reservations.end_coming(&flow) {
                    Some(checked) if !is_return => self.import(application, now, flow, checked),
                    _ => self.take_back(application, now, flow, &state),
                }
                self.deliver_all(application, now, frames);
                self.release_held(application, now, flow);
            }
            Event::Deliver { flow, frames } => {
                self.deliver_all(application, now, frames);
                self.release_held(application, now, flow);
            }
            Event::LoanEnded { flow, frames } => {
                self.end_exported(now, flow);
                self.deliver_all(application, now, frames);
            }
            Event::Drop { flow, cause } => self.drop_connection(application, now, flow, cause),
            // `Ended` follows.
            Event::Gone { flow, cause } => self.lost(flow, Loss::GivenUp(cause)),
            Event::Refused { flow, source, reason } => {
                self.reservations.end_coming(&flow);
                self.forget_held(now, flow);
                self.incidents.add(Incident::Refused { flow, source, reason });
            }
            Event::Ended { flow, result } => self.end_move(now, flow, result),
            Event::Request { flow, number, is_own, outcome } => {
                self.pass_request_event(application, now, (flow, number, is_own), outcome);
            }
        }
    }

    /// Checks whether a connection can be imported. If so, a place is reserved for it.
    fn check<A: Movable>(
        &mut self,
        application: &A,
        now: Time,
        flow: Flow,
        state: &Chunks,
    ) -> Result<(), Reason> {
        // Another move of the flow may have been under way, which this one replaces.
        self.reservations.end_coming(&flow);
        if self.used_places() >= self.connections_max {
            return Err(Reason::NoRoom);
        }
        let place = self.place(&flow).ok_or(Reason::NoService)?;
        let connection = self.connections.check(now, state, (&flow, place))?;
        let about = &connection.about;
        let attachment = about.attachment.as_ref();
        if attachment.is_some_and(|attachment| !application.knows_protocol(attachment.protocol())) {
            return Err(Reason::Feature);
        }
        if let Some(request) = about.request {
            let is_origin = self.agent.as_ref().is_some_and(|agent| agent.id() == request.origin);
            if !application.serves_requests() {
                return Err(Reason::Feature);
            }
            if request.purpose != Purpose::Serve && !is_origin {
                return Err(Reason::Invalid);
            }
        }
        let source = self.agent.as_ref().and_then(|agent| agent.source_of(&flow));
        self.reservations.add_coming(flow, Checked { source, connection });
        Ok(())
    }

    /// Continues a connection that has come from another server.
    fn import<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        flow: Flow,
        Checked { source, connection: ComingConnection { checked, about } }: Checked<S::Checked>,
    ) {
        if let Some(request) = about.request {
            self.request_arrived(flow, request);
        }
        let Some(conn) = self.connections.import(now, flow, checked) else {
            return self.end_not_imported(application, now, flow, false);
        };
        self.counters.imported += 1;
        self.with_agent(|agent| agent.record_step(&flow, Step::Import));
        self.policy.join(now, flow, source);
        let request = about.request;
        self.continue_connection(application, now, conn, &about, (request, false));
    }

    /// Continues a connection that was exported here, and has not moved. Its request is here already.
    fn take_back<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow, state: &Chunks) {
        let place = self.place(&flow);
        let returned = place.and_then(|place| self.connections.take_back(now, state, (&flow, place)));
        let Some((conn, about)) = returned else {
            return self.end_not_imported(application, now, flow, true);
        };
        let request = self.requests.get(&flow).copied();
        self.continue_connection(application, now, conn, &about, (request, true));
    }

    fn continue_connection<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        conn: Conn,
        about: &About,
        (request, is_return): (Option<HandedRequest>, bool),
    ) {
        let About { peer, listener, ref attachment, .. } = *about;
        let arrival = Arrival { peer, listener, attachment: attachment.as_ref(), request, is_return };
        application.on_migrated(now, conn, &arrival, &mut self.connections);
        self.pass_events(application, now);
    }

    /// A connection cannot be continued. Its client's next segment is answered by a reset, also if the connection was exported
    /// here before.
    fn end_not_imported<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow, is_return: bool) {
        self.end_request_not_imported(application, now, flow, is_return);
        self.counters.lost += 1;
        self.lost(flow, Loss::NotImported);
        self.policy.leave(&flow);
        self.end_exported(now, flow);
        self.with_agent(|agent| agent.connection_ended(now, flow));
    }

    /// A connection is to come: from now on the TCP holds its packets, if not all of them pass the agent.
    fn expect(&mut self, now: Time, flow: Flow, generation: u64) {
        let held = self.place(&flow).ok_or(Reason::NoService);
        let held =
            held.and_then(|place| self.connections.stack_mut().hold_packets(now, ends_of(&flow, place)));
        self.with_agent(|agent| agent.expected(now, flow, generation, held));
    }

    /// Gives the packets that the TCP has held to their connection.
    fn release_held<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow) {
        if let Some(place) = self.place(&flow) {
            self.connections.stack_mut().release_packets(now, ends_of(&flow, place));
            self.pass_events(application, now);
        }
    }

    /// A connection does not come: the packets that the TCP has held go back to the source.
    fn forget_held(&mut self, now: Time, flow: Flow) {
        let Some(place) = self.place(&flow) else { return };
        for frame in self.connections.stack_mut().forget_packets(now, ends_of(&flow, place)) {
            self.pass_on(now, &frame);
        }
    }

    fn deliver_all<A: Movable>(&mut self, application: &mut A, now: Time, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.pass_frame(application, now, &frame);
        }
    }

    /// An exported connection does not exist on another server any more.
    fn end_exported(&mut self, now: Time, flow: Flow) {
        if let Some(place) = self.place(&flow) {
            self.connections.stack_mut().end_exported(now, ends_of(&flow, place));
        }
    }

    /// Drops a connection without a segment: this server does not own its flow any more.
    fn drop_connection<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow, cause: Cause) {
        let Some(conn) = self.connections.conn(&flow) else {
            return self.lost(flow, Loss::LastSegments(cause));
        };
        self.note_served(application, now);
        // If the connection has just ended, it is not discarded, and the TCP's event reports the end.
        if self.connections.discard(now, conn) {
            self.counters.lost += 1;
            self.lost(flow, Loss::Dropped(cause));
            self.end_order(now, &flow, OrderResult::Closed);
            self.policy.leave(&flow);
            self.end_request(now, flow);
            let lost = ApplicationEvent::Lost(LostReason::Failed);
            application.handle(now, conn, lost, &mut self.connections);
        }
    }

    fn lost(&mut self, flow: Flow, loss: Loss) {
        self.incidents.add(Incident::Lost(flow, loss));
    }

    fn end_move(&mut self, now: Time, flow: Flow, result: MoveResult) {
        self.reservations.end_away(&flow);
        self.blackouts.end(now, &flow, result);
        self.leave_request(&flow, result);
        match result {
            MoveResult::Moved => self.counters.moved += 1,
            MoveResult::Kept(_) if self.orders.wait_again(&flow) => return,
            MoveResult::Kept(_) => self.counters.kept += 1,
            MoveResult::Returned(_) => self.counters.returned += 1,
            MoveResult::LetGo => self.counters.let_go += 1,
        }
        if matches!(result, MoveResult::Moved | MoveResult::LetGo) {
            self.policy.leave(&flow);
            if let Some(place) = self.place(&flow) {
                self.connections.stack_mut().give_up(now, ends_of(&flow, place));
            }
        }
        // Not one that waits: the connection has moved with a request.
        if self.orders.is_under_way(&flow) {
            self.end_order(now, &flow, OrderResult::Ended(result));
        }
    }
}

//! The agent's events: exports, imports, checks, dropped connections and ended moves.

use alloc::vec::Vec;

use spillway_handoff::{Agent, Cause, Event, MoveResult, Purpose, Step};
use spillway_transport::{Event as ApplicationEvent, LostReason, Time};
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Flow, ServerId};

use super::Server;
use crate::application::{Arrival, Movable};
use crate::connections::ExportedConnection;
use crate::incidents::{Incident, Loss};
use crate::orders::OrderResult;
use crate::reservations::Checked;

impl Server {
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
            // All frames pass the agent.
            Event::Expect { .. } => {}
            Event::Export { flow } => self.exports.push_back(flow),
            Event::Check { flow, generation, state } => {
                let result = self.check(application, now, flow, &state);
                self.with_agent(|agent| agent.checked(now, flow, generation, result));
            }
            Event::Import { flow, state, frames, is_return } => {
                self.reservations.end_away(&flow);
                let (source, connection) = match self.reservations.end_coming(&flow) {
                    Some(Checked { source, connection }) if !is_return => (source, Some(connection)),
                    _ => (None, self.read_returned(now, &flow, &state)),
                };
                self.import(application, now, flow, connection, (is_return, source));
                self.deliver_all(application, now, frames);
            }
            Event::Deliver { frames } => self.deliver_all(application, now, frames),
            Event::LoanEnded { flow, frames } => {
                self.end_exported(now, flow);
                self.deliver_all(application, now, frames);
            }
            Event::Drop { flow, cause } => self.drop_connection(application, now, flow, cause),
            // `Ended` follows.
            Event::Gone { flow, cause } => self.lost(flow, Loss::GivenUp(cause)),
            Event::Refused { flow, source, reason } => {
                self.reservations.end_coming(&flow);
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
        if self.used_places() >= self.connections_max {
            return Err(Reason::NoRoom);
        }
        let place = self.place(&flow).ok_or(Reason::NoService)?;
        let connection = self.connections.read_coming(now, state, (&flow, place))?;
        let attachment = connection.attachment.as_ref();
        if attachment.is_some_and(|attachment| !application.knows_protocol(attachment.protocol())) {
            return Err(Reason::Feature);
        }
        if let Some(request) = connection.request {
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

    /// Reads the state of a connection that comes back.
    fn read_returned(&mut self, now: Time, flow: &Flow, state: &Chunks) -> Option<ExportedConnection> {
        let place = self.place(flow)?;
        self.connections.read(now, state, (flow, place)).ok()
    }

    fn import<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        flow: Flow,
        connection: Option<ExportedConnection>,
        (is_return, source): (bool, Option<ServerId>),
    ) {
        // That of a connection that comes back is here already.
        let come = connection.as_ref().and_then(|connection| connection.request).filter(|_| !is_return);
        if let Some(request) = come {
            self.request_arrived(flow, request);
        }
        let request = if is_return { self.requests.get(&flow).copied() } else { come };
        let imported =
            connection.and_then(|ExportedConnection { importable, peer, listener, attachment, .. }| {
                Some((self.connections.import(now, flow, importable)?, peer, listener, attachment))
            });
        let Some((conn, peer, listener, attachment)) = imported else {
            self.end_request_not_imported(application, now, flow, is_return);
            // The stack answers the client's next segment by a reset, also if the connection was exported here before.
            self.counters.lost += 1;
            self.lost(flow, Loss::NotImported);
            self.policy.leave(&flow);
            self.end_exported(now, flow);
            return self.with_agent(|agent| agent.connection_ended(now, flow));
        };
        self.counters.imported += u64::from(!is_return);
        if !is_return {
            self.with_agent(|agent| agent.record_step(&flow, Step::Import));
            self.policy.join(now, flow, source);
        }
        let arrival = Arrival { peer, listener, attachment: attachment.as_ref(), request, is_return };
        application.on_migrated(now, conn, &arrival, &mut self.connections);
        self.pass_events(application, now);
    }

    fn deliver_all<A: Movable>(&mut self, application: &mut A, now: Time, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.pass_frame(application, now, &frame);
        }
    }

    /// An exported connection does not exist on another server any more.
    fn end_exported(&mut self, now: Time, flow: Flow) {
        if let Some(place) = self.place(&flow) {
            self.connections.end_exported(now, flow, place);
        }
    }

    /// Drops a connection without a segment: this server does not own its flow any more.
    fn drop_connection<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow, cause: Cause) {
        let Some(conn) = self.connections.conn(&flow) else {
            return self.lost(flow, Loss::LastSegments(cause));
        };
        self.note_served(application, now);
        // If the connection has just ended, the export fails, and the stack's event reports the end.
        if self.connections.export(now, conn).is_ok() {
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
        }
        // Not one that waits: the connection has moved with a request.
        if self.orders.is_under_way(&flow) {
            self.end_order(now, &flow, OrderResult::Ended(result));
        }
    }
}

//! Begins the moves that were ordered, and exports connections.

use alloc::vec::Vec;

use spillway_handoff::{MoveResult, Obstacle, Step};
use spillway_transport::Time;
use spillway_wire::switch::Flow;

use super::Server;
use crate::application::Movable;
use crate::orders::{Order, OrderResult};
use crate::tcp::{ConnectionEnds, Tcp};

impl<S: Tcp> Server<S> {
    /// Begins the moves whose connections are between two requests, and ends orders that have waited for too long. Returns
    /// whether a move has begun.
    pub(super) fn begin_moves<A: Movable>(&mut self, application: &A, now: Time) -> bool {
        self.end_forgotten_orders(now);
        let mut has_begun = false;
        let mut free = self.orders.free();
        let waiting = self.orders.waiting();
        for Order { flow, to } in waiting {
            if free == 0 {
                return has_begun;
            }
            let Some(conn) = self.connections.conn(&flow) else {
                self.end_order(now, &flow, OrderResult::Closed);
                continue;
            };
            if self.requests.contains_key(&flow) || !application.is_at_safe_point(conn) {
                if self.orders.wait(now, &flow) {
                    self.end_order(now, &flow, OrderResult::Busy);
                }
                continue;
            }
            let Some(agent) = &mut self.agent else { return has_begun };
            match agent.request_move(now, flow, to) {
                Ok(()) => {
                    has_begun = true;
                    self.orders.begin(&flow);
                    free -= 1;
                }
                Err(error) => self.end_order(now, &flow, OrderResult::Refused(error)),
            }
        }
        has_begun
    }

    /// The agent forgets moves before their export, without an event, when the switch has lost its entries.
    fn end_forgotten_orders(&mut self, now: Time) {
        let Some(agent) = &self.agent else { return };
        let forgotten: Vec<Flow> = self.orders.under_way().filter(|flow| !agent.is_source(flow)).collect();
        for flow in forgotten {
            self.counters.kept += 1;
            self.end_order(now, &flow, OrderResult::Ended(MoveResult::Kept(Obstacle::Restart)));
        }
    }

    /// Call this when the device has taken all frames that [`poll_transmit`](Self::poll_transmit) has returned: connections
    /// whose targets are ready are exported now, so that their states follow their frames. Call
    /// [`poll_datagram`](Self::poll_datagram) after it.
    pub fn frames_sent<A: Movable>(&mut self, application: &mut A, now: Time) {
        while let Some(flow) = self.exports.pop_front() {
            // The switch may have ended the move since `Event::Export`.
            if self.agent.as_ref().is_some_and(|agent| agent.is_exporting(&flow)) {
                self.export(application, now, flow);
            }
        }
        self.run_agent(application, now);
    }

    fn export<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow) {
        let Some(conn) = self.connections.conn(&flow) else {
            return self.with_agent(|agent| agent.not_exported(now, flow));
        };
        let request = self.agent.as_ref().and_then(|agent| agent.leaving_request(&flow));
        if request.is_none() && !application.is_at_safe_point(conn) {
            // The packets of the rest of the request wait at the target, which returns them.
            self.counters.stopped += 1;
            self.orders.stop(&flow);
            return self.with_agent(|agent| agent.not_exported(now, flow));
        }
        self.with_agent(|agent| agent.record_step(&flow, Step::Export));
        match self.connections.export(now, conn) {
            Some(mut state) => {
                self.reservations.add_away(flow);
                self.keep_places();
                state.attachment = application.leave(now, conn);
                state.request = request;
                self.blackouts.begin(now, flow);
                self.with_agent(|agent| agent.exported(now, flow, state.encode()));
            }
            None => self.with_agent(|agent| agent.not_exported(now, flow)),
        }
    }

    /// A connection has ended on this server's TCP.
    pub(super) fn connection_ended(&mut self, now: Time, flow: Flow) {
        self.with_agent(|agent| agent.connection_ended(now, flow));
        self.end_order(now, &flow, OrderResult::Closed);
        self.policy.leave(&flow);
        self.end_request(now, flow);
    }

    /// The TCP does not have a connection any more that had ended before.
    pub(super) fn connection_gone(&mut self, now: Time, ends: ConnectionEnds) {
        let flow = self.connections.flow_of(ends);
        // The client may have opened another connection with the same ends.
        if let Some(flow) = flow.filter(|flow| self.connections.conn(flow).is_none()) {
            self.with_agent(|agent| agent.connection_ended(now, flow));
        }
    }
}

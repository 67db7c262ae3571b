//! A turn: frames, datagrams and timers go to the stack, the agent and the application. As `spillway_tcp::drive`, with
//! an agent.

use core::time::Duration;

use spillway_handoff::Sorted;
use spillway_policy::migration::{LoadSample, Target};
use spillway_tcp::StackEvent;
use spillway_transport::{Conn, Event, Time};

use super::Server;
use crate::application::Movable;
use crate::ends::Ends;
use crate::incidents::Incident;
use crate::orders::Order;
use crate::tcp::Tcp;

impl<S: Tcp> Server<S> {
    /// Begins a turn: runs the application's timers that are due.
    pub fn begin_turn<A: Movable>(&mut self, application: &mut A, now: Time) {
        while let Some(ends) = self.connections.stack_mut().poll_gone() {
            self.connection_gone(now, ends);
        }
        while let Some(frame) = self.connections.stack_mut().poll_stray(now) {
            self.pass_on(now, &frame);
        }
        if application.poll_timeout().is_some_and(|at| at <= now) {
            application.handle_timeout(now, &mut self.connections);
        }
        self.pass_events(application, now);
    }

    /// Handles a received frame. A client's packet whose connection is not here waits for it, or goes on to the server
    /// that has it.
    pub fn deliver<A: Movable>(&mut self, application: &mut A, now: Time, frame: &[u8]) {
        if let Some(agent) = &mut self.agent
            && let Some(ends) = Ends::of(frame)
            && agent.sort(now, (ends.source, ends.target), ends.is_opening, frame) != Sorted::Stack
        {
            return;
        }
        self.pass_frame(application, now, frame);
    }

    /// Passes a client's packet on to the server that has the connection. One that cannot be forwarded any more is lost: no
    /// connection of this server takes it.
    pub(super) fn pass_on(&mut self, now: Time, frame: &[u8]) {
        if let Some((agent, ends)) = self.agent.as_mut().zip(Ends::of(frame)) {
            agent.sort(now, (ends.source, ends.target), ends.is_opening, frame);
        }
    }

    /// Passes a frame to the stack.
    pub(super) fn pass_frame<A: Movable>(&mut self, application: &mut A, now: Time, frame: &[u8]) {
        if let Some(delivery) = self.connections.stack_mut().handle_frame(now, frame) {
            self.record_request(delivery.conn);
            let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
            application.handle(now, delivery.conn, event, &mut self.connections);
        }
        self.pass_events(application, now);
    }

    /// Handles the payload of a datagram of the switch or of another server. Those of other servers are opened in place.
    pub fn handle_datagram<A: Movable>(&mut self, application: &mut A, now: Time, payload: &mut [u8]) {
        if let Some(agent) = &mut self.agent {
            agent.handle_datagram(now, payload);
            while let Some(load) = agent.poll_load() {
                self.policy.hear(now, load);
            }
            while let Some(fault) = agent.poll_peer_fault() {
                self.incidents.add(Incident::PeerFault(fault));
            }
            self.run_agent(application, now);
        }
    }

    /// Ends a turn, after everything that has arrived and before frames are sent.
    pub fn end_turn<A: Movable>(&mut self, application: &mut A, now: Time) {
        if self.connections.stack().poll_timeout().is_some_and(|at| at <= now) {
            self.connections.stack_mut().handle_timeout(now);
        }
        self.pass_events(application, now);
        self.run_agent_timers(now);
        self.run_agent(application, now);
        application.end_of_turn(now, &mut self.connections);
        let mut has_commands = false;
        // Commands of `end_of_turn` may cause events, for example a grant that delivers waiting bytes; so may the answer to a
        // command about a request.
        loop {
            let has_run = self.run_request_commands(application, now);
            if !self.pass_events(application, now) && !has_run {
                break;
            }
            has_commands |= has_run;
            application.end_of_turn(now, &mut self.connections);
        }
        self.order_decided(now);
        if self.begin_moves(application, now) || has_commands {
            // *prepare*, or a report about a request, leaves in this turn.
            self.run_agent_timers(now);
        }
        self.run_agent(application, now);
    }

    /// Takes the measurements since the last look at the load; the policy, if there is one, plans moves. Call it at
    /// [`next_look`](Self::next_look), before [`end_turn`](Self::end_turn). `cpu`: use of the CPU in millionths; `queueing`:
    /// mean time that frames waited for the server.
    pub fn look(&mut self, now: Time, cpu: u32, queueing: Duration) {
        let served = core::mem::take(&mut self.served);
        self.policy.look(now, LoadSample { cpu, queueing, served });
    }

    /// When the next look at the load is due.
    pub fn next_look(&self) -> Time {
        self.policy.next_look()
    }

    /// A received segment with data counts as a request.
    fn record_request(&mut self, conn: Conn) {
        self.served = self.served.saturating_add(1);
        if let Some(flow) = self.connections.flow(conn) {
            self.policy.record_request(&flow);
        }
    }

    /// Orders the moves that the policy has decided.
    fn order_decided(&mut self, now: Time) {
        while let Some((flow, decision)) = self.policy.poll(now) {
            let to = match decision.target {
                Target::LeastLoaded(_) => None,
                Target::Server(server) => Some(server),
            };
            match self.order(Order { flow, to }) {
                Ok(()) => self.policy.report(flow, decision),
                Err(_) => self.policy.not_moved(now, &flow),
            }
        }
    }

    fn run_agent_timers(&mut self, now: Time) {
        let free_places = self.connections_max.saturating_sub(self.used_places());
        let Some(agent) = &mut self.agent else { return };
        agent.set_load(self.policy.load(), free_places);
        if agent.poll_timeout() <= now {
            agent.handle_timeout(now);
        }
    }

    /// Passes all events of the stack to the application. Returns whether there was at least one.
    pub(super) fn pass_events<A: Movable>(&mut self, application: &mut A, now: Time) -> bool {
        let mut has_events = false;
        while let Some((conn, event)) = self.connections.stack_mut().poll_event() {
            has_events = true;
            self.pass_event(application, now, conn, &event);
        }
        if self.connections.has_aborted() {
            // The application may have served the connections' requests just before.
            self.note_served(application, now);
        }
        for flow in self.connections.take_aborted() {
            self.connection_ended(now, flow);
        }
        has_events
    }

    fn pass_event<A: Movable>(&mut self, application: &mut A, now: Time, conn: Conn, event: &StackEvent) {
        let event = match event {
            StackEvent::Opened { peer, listener } => {
                if let Some(listener) = listener {
                    self.connections.add(conn, *peer, *listener);
                    if let Some(flow) = self.connections.flow(conn) {
                        self.with_agent(|agent| agent.connection_opened(&flow));
                        self.policy.join(now, flow, None);
                    }
                }
                Event::Opened { peer: *peer, listener: *listener }
            }
            StackEvent::Data { end, bytes } => {
                self.record_request(conn);
                Event::Data { end: *end, bytes }
            }
            StackEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            StackEvent::Room => Event::Room,
            StackEvent::Finished => Event::Finished,
            StackEvent::Lost(reason) => {
                // The application may have served the connection's request just before.
                self.note_served(application, now);
                let lingers = self.connections.stack_mut().lingers(conn);
                if let Some(flow) = self.connections.remove(conn) {
                    self.connection_ended(now, flow);
                    if lingers {
                        self.with_agent(|agent| agent.connection_lingers(now, &flow));
                    }
                }
                Event::Lost(*reason)
            }
        };
        application.handle(now, conn, event, &mut self.connections);
    }
}

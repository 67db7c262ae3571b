//! A turn: frames, datagrams and timers go to the stack, the agent and the application. As `spillway_tcp::drive`, with
//! an agent.

use spillway_handoff::Sorted;
use spillway_tcp::StackEvent;
use spillway_transport::{Conn, Event, Time};

use super::Server;
use crate::application::Movable;
use crate::ends::Ends;

impl Server {
    /// Begins a turn: runs the application's timers that are due.
    pub fn begin_turn<A: Movable>(&mut self, application: &mut A, now: Time) {
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

    /// Passes a frame to the stack.
    pub(super) fn pass_frame<A: Movable>(&mut self, application: &mut A, now: Time, frame: &[u8]) {
        if let Some(delivery) = self.connections.stack_mut().handle_frame(now, frame) {
            let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
            application.handle(now, delivery.conn, event, &mut self.connections);
        }
        self.pass_events(application, now);
    }

    /// Handles the payload of a datagram of the switch or of another server.
    pub fn handle_datagram<A: Movable>(&mut self, application: &mut A, now: Time, payload: &[u8]) {
        if let Some(agent) = &mut self.agent {
            agent.handle_datagram(now, payload);
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
        // Commands of `end_of_turn` may cause events, for example a grant that delivers waiting bytes.
        while self.pass_events(application, now) {
            application.end_of_turn(now, &mut self.connections);
        }
        self.begin_moves(application, now);
        self.run_agent(application, now);
    }

    fn run_agent_timers(&mut self, now: Time) {
        let Some(agent) = &mut self.agent else { return };
        let connections = self.connections.stack().connections();
        let used = connections + self.reserved.len();
        agent.set_load(connections, self.connections_max.saturating_sub(used));
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
                }
                Event::Opened { peer: *peer, listener: *listener }
            }
            StackEvent::Data { end, bytes } => Event::Data { end: *end, bytes },
            StackEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            StackEvent::Room => Event::Room,
            StackEvent::Finished => Event::Finished,
            StackEvent::Lost(reason) => {
                if let Some(flow) = self.connections.remove(conn) {
                    self.connection_ended(now, flow);
                }
                Event::Lost(*reason)
            }
        };
        application.handle(now, conn, event, &mut self.connections);
    }
}

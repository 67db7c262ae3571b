//! Requests that move with their connections: the application's commands, and what it learns.

use core::time::Duration;

use spillway_handoff::{Agent, HandedRequest, MoveError, MoveResult, Purpose, RequestOutcome};
use spillway_transport::{Conn, Time};
use spillway_wire::switch::Flow;

use super::Server;
use crate::application::{Movable, RequestCommand, RequestEvent};
use crate::orders::OrderResult;
use crate::tcp::Tcp;

/// Time after which a command is tried again whose connection moves for another reason.
const WAIT: Duration = Duration::from_millis(1);
/// How often an application may answer [`RequestEvent::Stays`] by another command in one turn.
const ROUNDS_MAX: usize = 4;

impl<S: Tcp> Server<S> {
    /// Carries out the application's commands. One that must wait for another move of its connection is tried again later.
    /// Returns whether there was one.
    pub(super) fn run_request_commands<A: Movable>(&mut self, application: &mut A, now: Time) -> bool {
        let mut due = self.commands.take_due(now);
        let mut has_commands = false;
        for _ in 0..ROUNDS_MAX {
            due.extend(core::iter::from_fn(|| application.poll_request_command(now)));
            if due.is_empty() {
                return has_commands;
            }
            has_commands = true;
            for (conn, command) in core::mem::take(&mut due) {
                self.run_request_command(application, now, conn, command);
            }
        }
        self.put_off(application, now, now + WAIT);
        has_commands
    }

    /// Notes which requests the application has served, before a connection ends. Its other commands wait for the end of the
    /// turn: the connection has not left the tables yet.
    pub(super) fn note_served<A: Movable>(&mut self, application: &mut A, now: Time) {
        self.put_off(application, now, now);
    }

    /// Carries out the application's commands that move nothing; the others wait.
    fn put_off<A: Movable>(&mut self, application: &mut A, now: Time, until: Time) {
        while let Some((conn, command)) = application.poll_request_command(now) {
            match command {
                RequestCommand::Served => self.run_request_command(application, now, conn, command),
                RequestCommand::HandOff(_) | RequestCommand::Return { .. } => {
                    self.commands.wait_until(until, conn, command);
                }
            }
        }
    }

    fn run_request_command<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        conn: Conn,
        command: RequestCommand,
    ) {
        let result = match self.connections.flow_until_taken(conn) {
            Some(flow) => self.begin_request(now, flow, command),
            // Also if the connection has just ended.
            None => Err(MoveError::NotOwned),
        };
        match result {
            Ok(()) => {}
            Err(MoveError::Moving | MoveError::TooMany) => {
                self.commands.wait_until(now + WAIT, conn, command)
            }
            Err(error) => {
                let event = RequestEvent::Stays { conn, why: OrderResult::Refused(error) };
                application.on_request(now, event, &mut self.connections);
            }
        }
    }

    fn begin_request(&mut self, now: Time, flow: Flow, command: RequestCommand) -> Result<(), MoveError> {
        let agent = self.agent.as_mut().ok_or(MoveError::NotOwned)?;
        let request = self.requests.get(&flow).copied();
        match command {
            RequestCommand::HandOff(to) => agent.hand_off(now, flow, to, request),
            RequestCommand::Return { is_served } => {
                agent.hand_back(now, flow, request.ok_or(MoveError::NotOwned)?, is_served)
            }
            RequestCommand::Served => {
                if let Some(request) = self.requests.remove(&flow) {
                    agent.request_served(now, flow, &request);
                }
                Ok(())
            }
        }
    }

    /// A connection has come with a request.
    pub(super) fn request_arrived(&mut self, flow: Flow, request: HandedRequest) {
        self.with_agent(|agent| agent.request_arrived(&request));
        if request.purpose != Purpose::Served {
            self.requests.insert(flow, request);
        }
    }

    /// The connection of a flow has ended here, and with it the request that came with it.
    pub(super) fn end_request(&mut self, now: Time, flow: Flow) {
        if let Some(request) = self.requests.remove(&flow) {
            self.with_agent(|agent| agent.request_abandoned(now, flow, &request));
        }
    }

    /// The move of a connection has ended: its request is here no more, if the connection is not.
    pub(super) fn leave_request(&mut self, flow: &Flow, result: MoveResult) {
        if matches!(result, MoveResult::Moved | MoveResult::LetGo) {
            self.requests.remove(flow);
        }
    }

    pub(super) fn pass_request_event<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        (flow, number, is_own): (Flow, u64, bool),
        outcome: RequestOutcome,
    ) {
        let event = match (outcome, self.connections.conn(&flow)) {
            (RequestOutcome::Stays(result), Some(conn)) => {
                RequestEvent::Stays { conn, why: OrderResult::Ended(result) }
            }
            (RequestOutcome::Stays(_), None) if is_own => {
                return self.end_own_request(application, now, flow, number);
            }
            // Its origin has learned it when the connection ended.
            (RequestOutcome::Stays(_), None) => return,
            (outcome, _) => RequestEvent::Ended { flow, number, outcome },
        };
        application.on_request(now, event, &mut self.connections);
    }

    /// The connection has ended here, with a request of this server.
    fn end_own_request<A: Movable>(&mut self, application: &mut A, now: Time, flow: Flow, number: u64) {
        let Some(agent) = &self.agent else { return };
        let event = RequestEvent::Ended { flow, number, outcome: RequestOutcome::Abandoned(agent.id()) };
        application.on_request(now, event, &mut self.connections);
    }

    /// A connection that was to come with a request could not be imported; or one that was to come back: then the end of its
    /// move follows.
    pub(super) fn end_request_not_imported<A: Movable>(
        &mut self,
        application: &mut A,
        now: Time,
        flow: Flow,
        is_return: bool,
    ) {
        let own = self.agent.as_ref().map(Agent::id);
        let request = self.requests.get(&flow).filter(|request| Some(request.origin) == own).copied();
        self.end_request(now, flow);
        if let Some(request) = request.filter(|_| !is_return) {
            self.end_own_request(application, now, flow, request.number);
        }
    }
}

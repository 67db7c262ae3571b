//! Moves of connections: through the switch to another server (Capybara §3.2), and in place, between any two frames
//! (Capybara §3.3).

use std::net::SocketAddr;

use spillway_handoff::{Agent, Cause, MoveResult};
use spillway_moves::{Incident, Loss as ServerLoss, Order, OrderResult};
use spillway_tcp::{ExportError, ImportError, Stack};
use spillway_transport::{Application, Conn, Event, LostReason, Time};
use spillway_wire::handoff::Reason;
use spillway_wire::state::ConnectionState;
use spillway_wire::switch::{Flow, ServerId};

use super::compare::compare_states;
use super::loss::Loss;
use super::names::Handle;
use super::planted_fault::PlantedFault;
use super::rack::Rack;

impl Rack {
    /// Moves a connection, if a move is due, after a frame with these ends was received or sent.
    pub(super) fn move_after<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        let directory = &mut self.directory;
        if directory.moves.have_ended() {
            return;
        }
        let (flows, opened) = (&directory.flows, &directory.opened);
        let of_frame = || {
            let (local, peer) = ends?;
            let service = Flow::new(peer.into(), local.into()).ok();
            service.and_then(|flow| flows.get(&flow)).or_else(|| opened.get(&(local, peer))).copied()
        };
        let name = directory.moves.pick(of_frame, &directory.names);
        let Some((name, handle)) = name.and_then(|name| Some((name, directory.names.handle(name)?))) else {
            return;
        };
        let flow = directory.flow_of(name);
        let is_ordered = directory.moves.leaves() && flow.is_some_and(|flow| self.order(handle.server, flow));
        if !is_ordered && self.directory.moves.rebuilds() {
            self.rebuild(now, name);
            self.pass_events(application, now);
        }
    }

    /// Orders a server to move a connection, for itself or with a request.
    fn order(&mut self, server: usize, flow: Flow) -> bool {
        let name = self.directory.flows.get(&flow).copied();
        if name.is_some_and(|name| self.directory.requests.takes(name, server)) {
            return true;
        }
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != server);
        let others: Vec<ServerId> =
            others.filter_map(|(_, member)| member.server.agent().map(Agent::id)).collect();
        let to = self.directory.moves.target(&others);
        self.members[server].server.order(Order { flow, to }).is_ok()
    }

    /// Orders a server to move a client's connection to another one. Returns its flow.
    pub(super) fn order_scripted(&mut self, server: usize, client: SocketAddr, to: ServerId) -> Option<Flow> {
        let mut flows = self.directory.flows.keys().filter(|flow| SocketAddr::from(flow.client()) == client);
        let flow = *flows.find(|flow| self.directory.at(flow, server).is_some())?;
        let member = self.members.get_mut(server).filter(|member| !member.is_paused)?;
        member.server.order(Order { flow, to: Some(to) }).is_ok().then_some(flow)
    }

    /// Exports a connection and imports it in place.
    fn rebuild(&mut self, now: Time, name: Conn) {
        let Some(handle) = self.directory.names.handle(name) else { return };
        if let Err(why) = self.try_rebuild(now, name, handle) {
            let what = format!("{name:?} is exported and imported by server {}: {why}", handle.server);
            self.directory.violations.push(what);
        }
    }

    fn try_rebuild(&mut self, now: Time, name: Conn, handle: Handle) -> Result<(), String> {
        let mut state = match self.export(now, handle) {
            Ok(state) => state?,
            Err(ExportError::Opening | ExportError::Ended) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.directory.moves.hide(&mut state);
        let exported = state.clone();
        self.directory.moves.alter(&mut state);
        self.put_back(now, name, handle, &state).map_err(|error| error.to_string())?;
        self.directory.moves.in_place += 1;
        if self.directory.moves.is_check_due() {
            self.compare(now, handle.server, &exported, &state)?;
        }
        Ok(())
    }

    /// Exports a connection, writes its state as bytes, and parses the bytes again.
    fn export(&mut self, now: Time, handle: Handle) -> Result<Result<ConnectionState, String>, ExportError> {
        let member = &mut self.members[handle.server];
        let server_now = member.time(now);
        let state = member.stack_mut().export(server_now, handle.conn)?;
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        Ok(match ConnectionState::parse(&bytes) {
            Ok(read) if read == state => Ok(read),
            Ok(_) => Err("the parsed state differs from the written one".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    /// Imports a connection at the server that has exported it.
    fn put_back(
        &mut self,
        now: Time,
        name: Conn,
        handle: Handle,
        state: &ConnectionState,
    ) -> Result<(), ImportError> {
        self.directory.names.remove(name);
        let member = &mut self.members[handle.server];
        let server_now = member.time(now);
        let conn = member.stack_mut().import(server_now, state)?;
        member.server.connections_mut().replaced(handle.conn, conn);
        self.directory.names.put(name, Handle { conn, ..handle });
        Ok(())
    }

    /// Compares the exported state with the one that a new stack exports after an import.
    fn compare(
        &self,
        now: Time,
        server: usize,
        exported: &ConnectionState,
        imported: &ConnectionState,
    ) -> Result<(), String> {
        let member = &self.members[server];
        let stack_now = member.time(now);
        let mut fresh_stack =
            Stack::new(stack_now, member.stack().settings().clone()).map_err(|error| error.to_string())?;
        let conn = fresh_stack.import(stack_now, imported).map_err(|error| error.to_string())?;
        let state = fresh_stack.export(stack_now, conn).map_err(|error| error.to_string())?;
        compare_states(exported, &state, stack_now)
    }

    /// All frames have been sent: connections leave. Returns whether one of them might.
    pub(super) fn export_all<A: Application>(&mut self, application: &mut A, now: Time) -> bool {
        let mut has_exports = false;
        for index in 0..self.members.len() {
            if self.members[index].is_paused || !self.members[index].server.has_exports() {
                continue;
            }
            has_exports = true;
            let kept = self.prepare_exports(now, index);
            self.with(application, now, index, |server, local, now| server.frames_sent(local, now));
            for state in kept {
                let member = &mut self.members[index];
                let server_now = member.time(now);
                // The copy is a connection that the program does not know.
                _ = member.stack_mut().import(server_now, &state);
                while member.stack_mut().poll_event().is_some() {}
            }
        }
        has_exports
    }

    /// Connections that are about to leave are exported and imported in place, for the checks and faults of states. Returns
    /// the states that the planted fault [`PlantedFault::KeepSource`] keeps.
    fn prepare_exports(&mut self, now: Time, index: usize) -> Vec<ConnectionState> {
        let Some(agent) = self.members[index].server.agent() else { return Vec::new() };
        let leaving: Vec<Flow> =
            self.directory.flows.keys().filter(|flow| agent.is_exporting(flow)).copied().collect();
        let mut kept = Vec::new();
        for flow in leaving {
            let Some((name, _)) = self.directory.at(&flow, index) else { continue };
            self.rebuild(now, name);
            let Some(handle) = self.directory.names.handle(name) else { continue };
            if self.directory.moves.keeps_source()
                && let Ok(Ok(state)) = self.export(now, handle)
                && self.put_back(now, name, handle, &state).is_ok()
            {
                kept.push(state);
            }
        }
        kept
    }

    /// Handles what a call of a server has led to.
    pub(super) fn settle<A: Application>(&mut self, application: &mut A, now: Time, index: usize) {
        while let Some(incident) = self.members[index].server.poll_incident() {
            match incident {
                Incident::Lost(flow, loss) => self.handle_loss(application, now, index, (flow, loss)),
                Incident::Refused { flow, .. } => self.give_up(application, now, flow, Cause::Doubt),
                Incident::PeerFault(_) => {}
            }
        }
        while let Some((order, result)) = self.members[index].server.poll_result() {
            let flow = order.flow;
            self.ended.push(match result {
                OrderResult::Ended(result) => (flow, Some(result)),
                OrderResult::Refused(_) | OrderResult::Busy | OrderResult::Closed => (flow, None),
            });
            // The servers of a host run the same program, and nothing damages a state on its way.
            use Reason::{Damaged, Family, Feature, NoService, Version};
            if let OrderResult::Ended(MoveResult::Returned(Some(
                why @ (Damaged | Family | Feature | NoService | Version),
            ))) = result
            {
                self.directory.violations.push(format!("a server refuses the state of {flow:?}: {why}"));
            }
        }
        if self.directory.moves.has_planted(PlantedFault::Bounce) {
            let arrived = self.directory.imports.iter().filter(|(_, server)| *server == index);
            for flow in arrived.map(|(flow, _)| *flow).collect::<Vec<_>>() {
                _ = self.members[index].server.order(Order { flow, to: None });
            }
        }
    }

    fn handle_loss<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        (flow, loss): (Flow, ServerLoss),
    ) {
        match loss {
            ServerLoss::Dropped(Cause::Foreign) => self.directory.foreign.push((flow, index)),
            ServerLoss::Dropped(cause) => self.directory.record_loss(flow, Loss::Protocol(cause)),
            ServerLoss::LastSegments(cause) => {
                // The connection has ended here, but its last segments could not be sent: its peer waits for them in vain.
                if !self.directory.flows.contains_key(&flow) && cause != Cause::Foreign {
                    self.directory.lost.push((flow, Loss::LastSegments));
                }
            }
            ServerLoss::GivenUp(cause) => self.give_up(application, now, flow, cause),
            ServerLoss::NotImported => {
                let what = format!("server {index} owns {flow:?}, but does not import it");
                self.directory.violations.push(what);
            }
        }
    }

    /// One end of a move has given the connection up. It is lost if no other server may still continue it.
    fn give_up<A: Application>(&mut self, application: &mut A, now: Time, flow: Flow, cause: Cause) {
        let name = self.directory.flows.get(&flow).copied();
        let transit = name.and_then(|name| self.directory.transits.get_mut(&name));
        let Some(transit) = transit else { return };
        let cause = *transit.cause.get_or_insert(cause);
        if !self.agents().any(|agent| agent.may_continue(&flow)) {
            self.lose(application, now, flow, Loss::Protocol(cause));
        }
    }

    /// A connection between two servers is lost. For the program it has failed.
    pub(super) fn lose<A: Application>(&mut self, application: &mut A, now: Time, flow: Flow, loss: Loss) {
        if let Some(name) = self.directory.give_up(flow, loss) {
            application.handle(now, name, Event::Lost(LostReason::Failed), self);
        }
    }
}

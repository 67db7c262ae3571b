//! Moves of connections: through the switch to another server (Capybara §3.2), and in place, between any two frames
//! (Capybara §3.3). The state moves as bytes.

use std::net::SocketAddr;

use spillway_handoff::{Agent, Cause, Event};
use spillway_tcp::{ExportError, ImportError, Stack};
use spillway_transport::{Application, Conn, Time};
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::state::ConnectionState;
use spillway_wire::switch::{Flow, ServerId};

use super::loss::Loss;
use super::names::Handle;
use super::planted_fault::PlantedFault;
use super::rack::Rack;
use super::transit::Transit;

/// Maximum number of fields in the text about the differences of two states.
const DIFFERENCES_MAX: usize = 8;

impl Rack {
    /// Moves a connection, if a move is due, after a frame with these ends was received or sent.
    pub(super) fn move_after(&mut self, now: Time, ends: Option<(SocketAddr, SocketAddr)>) {
        let of_frame = || {
            let (local, peer) = ends?;
            let service = Flow::new(peer.into(), local.into()).ok();
            let name =
                service.and_then(|flow| self.flows.get(&flow)).or_else(|| self.opened.get(&(local, peer)));
            name.copied()
        };
        let name = self.moves.pick(of_frame, &self.names);
        let Some((name, handle)) = name.and_then(|name| Some((name, self.names.handle(name)?))) else {
            return;
        };
        let flow = self.flow_of(name);
        let is_requested =
            self.moves.leaves() && flow.is_some_and(|flow| self.request_move(now, handle.server, flow));
        if !is_requested && let Err(why) = self.move_in_place(now, name, handle) {
            let server = handle.server;
            self.violations.push(format!("{name:?} is exported and imported by server {server}: {why}"));
        }
    }

    fn request_move(&mut self, now: Time, server: usize, flow: Flow) -> bool {
        let others: Vec<ServerId> = (0..self.servers.len())
            .filter(|other| *other != server)
            .filter_map(|other| self.servers[other].agent.as_ref().map(Agent::id))
            .collect();
        let target = self.moves.target(&others);
        let server = &mut self.servers[server];
        let server_now = server.time(now);
        server.agent.as_mut().is_some_and(|agent| agent.request_move(server_now, flow, target).is_ok())
    }

    /// Begins to move a client's connection from one server to another. Returns its flow.
    pub(super) fn request_scripted_move(
        &mut self,
        now: Time,
        server: usize,
        client: SocketAddr,
        to: ServerId,
    ) -> Option<Flow> {
        let is_here = |name: &Conn| self.names.handle(*name).is_some_and(|at| at.server == server);
        let mut flows = self.flows.iter().filter(|(flow, _)| SocketAddr::from(flow.client()) == client);
        let flow = flows.find(|(_, name)| is_here(name)).map(|(flow, _)| *flow)?;
        let server = &mut self.servers[server];
        let server_now = server.time(now);
        let agent = server.agent.as_mut().filter(|_| !server.is_paused)?;
        agent.request_move(server_now, flow, Some(to)).is_ok().then_some(flow)
    }

    fn move_in_place(&mut self, now: Time, name: Conn, handle: Handle) -> Result<(), String> {
        let mut state = match self.export(now, handle) {
            Ok(state) => state?,
            Err(ExportError::Opening | ExportError::Ended) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        self.names.remove(name);
        self.moves.hide(&mut state);
        let exported = state.clone();
        self.moves.alter(&mut state);
        let conn = self.import(now, handle.server, &state).map_err(|error| error.to_string())?;
        self.moves.in_place += 1;
        if self.moves.is_check_due() {
            self.compare(now, handle.server, &exported, &state)?;
        }
        self.names.put(name, Handle { conn, ..handle });
        Ok(())
    }

    /// Handles all events of the agents.
    pub(super) fn run_agents<A: Application>(&mut self, application: &mut A, now: Time) {
        while let Some((index, event)) = self.next_agent_event() {
            self.handle_agent_event(application, now, index, event);
            self.drain(application, now);
        }
    }

    fn next_agent_event(&mut self) -> Option<(usize, Event)> {
        let mut agents = self.servers.iter_mut().enumerate();
        agents.find_map(|(index, server)| Some((index, server.agent.as_mut()?.poll_event()?)))
    }

    fn handle_agent_event<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        event: Event,
    ) {
        match event {
            Event::Export { flow } => {
                let exported = self.export_flow(now, index, flow);
                self.with_agent(now, index, |agent, now| match exported {
                    Some(state) => agent.exported(now, flow, state),
                    None => agent.not_exported(now, flow),
                });
            }
            Event::Check { flow, generation, state } => {
                let result = self.can_import(now, index, flow, &state);
                self.with_agent(now, index, |agent, now| agent.checked(now, flow, generation, result));
            }
            Event::Import { flow, state, frames, is_return } => {
                self.import_flow(now, index, flow, &state, is_return);
                if self.moves.has_planted(PlantedFault::ReplaySeal) {
                    self.import_flow(now, index, flow, &state, is_return);
                }
                if !self.moves.has_planted(PlantedFault::ForgetBuffer) {
                    self.deliver_held(application, now, index, frames);
                }
                if self.moves.has_planted(PlantedFault::Bounce) {
                    self.request_move(now, index, flow);
                }
            }
            Event::Deliver { frames } => self.deliver_held(application, now, index, frames),
            Event::LoanEnded { flow, frames } => {
                self.end_exported(now, index, flow);
                self.deliver_held(application, now, index, frames);
            }
            Event::Drop { flow, cause } => self.drop_flow(application, now, index, flow, cause),
            Event::Gone { flow, cause } => self.give_up_flow(application, now, flow, cause),
            Event::Refused { flow, .. } => self.give_up_flow(application, now, flow, Cause::Doubt),
            Event::Ended { flow, result } => self.ended.push((flow, result)),
        }
    }

    fn with_agent(&mut self, now: Time, index: usize, act: impl FnOnce(&mut Agent, Time)) {
        let server = &mut self.servers[index];
        let server_now = server.time(now);
        if let Some(agent) = &mut server.agent {
            act(agent, server_now);
        }
    }

    /// Exports the connection of a flow, which is then between two stacks; `None` if it cannot be exported.
    fn export_flow(&mut self, now: Time, index: usize, flow: Flow) -> Option<Chunks> {
        let name = *self.flows.get(&flow)?;
        let handle = self.names.handle(name).filter(|handle| handle.server == index)?;
        let mut state = match self.export(now, handle).ok()? {
            Ok(state) => state,
            Err(why) => {
                self.violations.push(format!("{name:?} is exported by server {index}: {why}"));
                return None;
            }
        };
        self.names.remove(name);
        if self.moves.keeps_source() {
            // An unknown connection: its events would be violations, too.
            _ = self.import(now, index, &state);
            while self.servers[index].stack.poll_event().is_some() {}
        }
        self.moves.hide(&mut state);
        let exported = self.moves.is_check_due().then(|| Box::new(state.clone()));
        self.transits.insert(name, Transit::new(exported));
        self.moves.alter(&mut state);
        Some(state.encode())
    }

    /// A state as this server would import it: at its own place.
    fn state_here(&self, index: usize, flow: Flow, bytes: &Chunks) -> Result<ConnectionState, String> {
        let state = ConnectionState::decode(bytes).map_err(|error| error.to_string())?;
        let agent = self.servers[index].agent.as_ref();
        let place =
            agent.and_then(|agent| agent.place_of(flow.service())).ok_or("no place for the service")?;
        Ok(ConnectionState { local: place.into(), ..state })
    }

    fn can_import(&mut self, now: Time, index: usize, flow: Flow, bytes: &Chunks) -> Result<(), Reason> {
        let state = match self.state_here(index, flow, bytes) {
            Ok(state) => state,
            Err(why) => {
                self.violations.push(format!("server {index} receives the state of {flow:?}: {why}"));
                return Err(Reason::Damaged);
            }
        };
        let server = &self.servers[index];
        let settings = server.stack.settings().clone();
        let has_room = server.stack.connections() < settings.connections_max as usize;
        let mut fresh_stack = match Stack::new(server.time(now), settings) {
            Ok(stack) => stack,
            Err(error) => {
                self.violations.push(error.to_string());
                return Err(Reason::Invalid);
            }
        };
        match fresh_stack.import(server.time(now), &state) {
            Ok(_) if has_room => Ok(()),
            Ok(_) => Err(Reason::NoRoom),
            Err(ImportError::TooMuch(_)) => Err(Reason::TooLarge),
            Err(error) => {
                self.violations.push(format!("server {index} refuses the state of {flow:?}: {error}"));
                Err(Reason::Invalid)
            }
        }
    }

    fn import_flow(&mut self, now: Time, index: usize, flow: Flow, bytes: &Chunks, is_return: bool) {
        let name = self.flows.get(&flow).copied();
        let transit = name.and_then(|name| Some((name, self.transits.remove(&name)?)));
        let Some((name, transit)) = transit else {
            return self.violations.push(format!("server {index} imports {flow:?}, which is not on its way"));
        };
        let conn = self.state_here(index, flow, bytes).and_then(|state| {
            Ok((self.import(now, index, &state).map_err(|error| error.to_string())?, state))
        });
        let (conn, state) = match conn {
            Ok(imported) => imported,
            Err(why) => {
                return self
                    .violations
                    .push(format!("server {index} owns {flow:?}, but does not import it: {why}"));
            }
        };
        self.names.put(name, Handle { server: index, conn });
        self.imports.push((flow, index));
        if is_return {
            self.moves.returned += 1;
        } else {
            self.moves.made += 1;
            self.moved.push(flow);
        }
        if let Some(exported) = &transit.exported
            && let Err(why) = self.compare(now, index, exported, &state)
        {
            self.violations.push(format!("{name:?} moves to server {index}: {why}"));
        }
        transit.apply(&mut self.servers[index].stack, conn);
        if transit.is_aborted() {
            self.end_connection(now, name);
        }
    }

    fn deliver_held<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        frames: Vec<Vec<u8>>,
    ) {
        self.drain(application, now);
        for mut frame in frames {
            self.hand_over(application, now, index, (&mut frame, false));
        }
    }

    /// A connection that this server has exported does not exist on another server any more.
    fn end_exported(&mut self, now: Time, index: usize, flow: Flow) {
        let server = &mut self.servers[index];
        let server_now = server.time(now);
        let place = server.agent.as_ref().and_then(|agent| agent.place_of(flow.service()));
        let here =
            place.and_then(|place| spillway_tcp::Flow::new(place.into(), SocketAddr::from(flow.client())));
        if let Some(here) = here {
            server.stack.end_exported(server_now, here);
        }
    }

    /// Drops a connection without a segment, if this server has it.
    fn drop_flow<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        flow: Flow,
        cause: Cause,
    ) {
        let name = self.flows.get(&flow).copied();
        let handle = name.and_then(|name| self.names.handle(name));
        let Some(handle) = handle.filter(|handle| handle.server == index) else {
            // The connection has ended here, but its last segments could not be sent: its peer waits for them in vain.
            if name.is_none() && cause != Cause::Foreign {
                self.lost.push((flow, Loss::LastSegments));
            }
            return;
        };
        // If the connection has just ended, the stack's event reports the end.
        if self.export(now, handle).is_ok() {
            self.lose(application, now, flow, Loss::Protocol(cause));
        }
    }

    /// One end of a move has given the connection up. It is lost if no other server may still continue it.
    fn give_up_flow<A: Application>(&mut self, application: &mut A, now: Time, flow: Flow, cause: Cause) {
        let name = self.flows.get(&flow).copied();
        let Some(transit) = name.and_then(|name| self.transits.get_mut(&name)) else { return };
        let cause = *transit.cause.get_or_insert(cause);
        let mut agents = self.servers.iter().filter_map(|server| server.agent.as_ref());
        if !agents.any(|agent| agent.may_continue(&flow)) {
            self.lose(application, now, flow, Loss::Protocol(cause));
        }
    }

    /// Exports a connection, writes its state as bytes, and parses the bytes again.
    fn export(&mut self, now: Time, handle: Handle) -> Result<Result<ConnectionState, String>, ExportError> {
        let server = &mut self.servers[handle.server];
        let state = server.stack.export(server.time(now), handle.conn)?;
        let mut bytes = Vec::new();
        state.emit(&mut bytes);
        Ok(match ConnectionState::parse(&bytes) {
            Ok(read) if read == state => Ok(read),
            Ok(_) => Err("the parsed state differs from the written one".to_owned()),
            Err(error) => Err(error.to_string()),
        })
    }

    fn import(&mut self, now: Time, target: usize, state: &ConnectionState) -> Result<Conn, ImportError> {
        let server = &mut self.servers[target];
        server.stack.import(server.time(now), state)
    }

    /// Compares the exported state with the one that a new stack exports after an import.
    fn compare(
        &self,
        now: Time,
        reached: usize,
        exported: &ConnectionState,
        imported: &ConnectionState,
    ) -> Result<(), String> {
        let server = &self.servers[reached];
        let stack_now = server.time(now);
        let mut fresh_stack =
            Stack::new(stack_now, server.stack.settings().clone()).map_err(|error| error.to_string())?;
        let conn = fresh_stack.import(stack_now, imported).map_err(|error| error.to_string())?;
        let state = fresh_stack.export(stack_now, conn).map_err(|error| error.to_string())?;
        compare_states(exported, &state, stack_now)
    }
}

/// Compares two states, except for values that may differ after a move. `now`: time on the target's clock.
fn compare_states(exported: &ConnectionState, imported: &ConnectionState, now: Time) -> Result<(), String> {
    let (mut exported, mut imported) = (exported.clone(), imported.clone());
    // The target may import at another address.
    exported.local = imported.local;
    // The target may have a smaller MSS. If its send queue is longer, the import has reported room.
    imported.agreed.mss = exported.agreed.mss;
    imported.sending.wants_room |= exported.sending.wants_room;
    // The target cannot represent times before the start of its clock.
    let clamp_age = |age_ns: &mut u64| *age_ns = (*age_ns).min(now.0);
    clamp_age(&mut exported.received_age_ns);
    exported.agreed.stamps.iter_mut().for_each(|stamps| clamp_age(&mut stamps.recent_age_ns));
    if let (Some(before), Some(after)) = (&mut exported.recovery, &mut imported.recovery) {
        clamp_age(&mut before.sent_age_ns);
        clamp_age(&mut before.progress_age_ns);
        clamp_age(&mut before.latest_age_ns);
        if before.segments.is_empty() {
            before.probe = None; // the probe has been acknowledged
        }
        for (before, after) in
            before.segments.iter_mut().zip(&after.segments).filter(|(before, _)| before.age_ns > now.0)
        {
            (before.age_ns, before.transmissions) = (now.0, after.transmissions);
        }
        // The target may use another congestion control algorithm, which starts anew. CUBIC's times before
        // the start of the target's clock are replaced by that start.
        after.controller = before.controller;
        if let (Some(before), Some(after)) = (&mut before.undo, &mut after.undo) {
            after.controller = before.controller;
            before.first_age_ns.iter_mut().for_each(clamp_age);
        }
    }
    if exported == imported { Ok(()) } else { Err(differences(&exported, &imported)) }
}

fn differences(exported: &ConnectionState, imported: &ConnectionState) -> String {
    let (exported, imported) = (format!("{exported:#?}"), format!("{imported:#?}"));
    let differences: Vec<String> = exported
        .lines()
        .zip(imported.lines())
        .filter(|(exported, imported)| exported != imported)
        .take(DIFFERENCES_MAX)
        .map(|(exported, imported)| format!("{} exported, {} imported", exported.trim(), imported.trim()))
        .collect();
    format!("another state has arrived: {}", differences.join("; "))
}

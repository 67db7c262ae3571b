//! Restarts of servers: a new run, with a new stack and a new agent, and without the connections of the earlier run.

use spillway_handoff::Agent;
use spillway_tcp::Stack;
use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};
use spillway_wire::handoff::Run;
use spillway_wire::switch::Flow;

use super::loss::Loss;
use super::rack::{DROPS_MAX, Rack};

/// The numbers of two consecutive runs of a server differ by this number.
const RUN_STEP: u64 = 1_000_000;
impl Rack {
    /// Flows of all open connections, whichever end has opened them.
    pub(super) fn open_flows(&self) -> impl Iterator<Item = Flow> {
        let opened = self.opened.iter().filter(|(_, name)| self.is_open(**name));
        let opened =
            opened.filter_map(|((local, service), _)| Flow::new((*local).into(), (*service).into()).ok());
        opened.chain(self.flows.keys().copied())
    }

    fn is_open(&self, name: Conn) -> bool {
        self.names.handle(name).is_some() || self.transits.contains_key(&name)
    }

    /// Flows whose connections are not at this server: at others, or between two of them.
    pub(super) fn flows_at_others(&self, server: usize) -> Vec<Flow> {
        let is_elsewhere = |name: &Conn| self.names.handle(*name).is_none_or(|at| at.server != server);
        self.flows.iter().filter(|(_, name)| is_elsewhere(name)).map(|(flow, _)| *flow).collect()
    }

    /// Restarts a server.
    pub(super) fn restart<A: Application>(&mut self, application: &mut A, now: Time, index: usize) {
        let settings_error = "the settings were valid before";
        let server = &mut self.servers[index];
        let server_now = server.time(now);
        self.retired.push(*server.stack.counters());
        let mut settings = server.stack.settings().clone();
        // A new run has a new key: otherwise it would choose the ports of connections that its peers still have.
        settings.key.0.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        let mut stack = Stack::new(server_now, settings).expect(settings_error);
        stack.watch_drops(DROPS_MAX);
        server.stack = stack;
        server.inbox.clear();
        server.messages.clear();
        if let Some(settings) = &mut server.agent_settings {
            settings.run = Run::new(settings.run.get() + RUN_STEP).expect("above 0");
            server.agent = Some(Agent::new(server_now, settings.clone()));
        }
        if index == 0 {
            [0, 1].into_iter().for_each(|listener| self.set_listening(listener, true));
        }
        for name in self.names.at(index) {
            self.lose_with_server(application, now, name);
        }
        self.lose_abandoned(application, now);
    }

    fn lose_with_server<A: Application>(&mut self, application: &mut A, now: Time, name: Conn) {
        let flow = self.flow_of(name).or_else(|| {
            let (ends, _) = self.opened.iter().find(|(_, opened)| **opened == name)?;
            Flow::new(ends.0.into(), ends.1.into()).ok()
        });
        self.lost.extend(flow.map(|flow| (flow, Loss::Server)));
        self.forget_flow(name);
        self.names.remove(name);
        application.handle(now, name, Event::Lost(LostReason::Failed), self);
    }

    /// Connections between two servers that neither end can continue now.
    fn lose_abandoned<A: Application>(&mut self, application: &mut A, now: Time) {
        let moving: Vec<Flow> = self.transits.keys().filter_map(|name| self.flow_of(*name)).collect();
        for flow in moving {
            let mut agents = self.servers.iter().filter_map(|server| server.agent.as_ref());
            if !agents.any(|agent| agent.may_continue(&flow)) {
                self.lose(application, now, flow, Loss::Server);
            }
        }
    }
}

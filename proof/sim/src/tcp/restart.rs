//! Restarts of servers: a new run, with a new stack and a new agent, and without the connections of the earlier run.

use spillway_transport::{Application, Conn, Event, LostReason, Time, Transport};
use spillway_wire::handoff::Run;
use spillway_wire::switch::Flow;

use super::loss::Loss;
use super::rack::{Rack, start};

/// The numbers of two consecutive runs of a server differ by this number.
const RUN_STEP: u64 = 1_000_000;

impl Rack {
    /// Flows of all open connections, whichever end has opened them.
    pub(super) fn open_flows(&self) -> impl Iterator<Item = Flow> {
        let opened = self.directory.opened.iter().filter(|(_, name)| self.is_open(**name));
        let opened =
            opened.filter_map(|((local, service), _)| Flow::new((*local).into(), (*service).into()).ok());
        opened.chain(self.directory.flows.keys().copied())
    }

    fn is_open(&self, name: Conn) -> bool {
        self.directory.names.handle(name).is_some() || self.directory.transits.contains_key(&name)
    }

    /// Flows whose connections are not at this server: at others, or between two of them.
    pub(super) fn flows_at_others(&self, server: usize) -> Vec<Flow> {
        let flows = self.directory.flows.keys();
        flows.filter(|flow| self.directory.at(flow, server).is_none()).copied().collect()
    }

    /// Restarts a server.
    pub(super) fn restart<A: Application>(&mut self, application: &mut A, now: Time, index: usize) {
        let services = self.directory.services();
        let member = &mut self.members[index];
        let server_now = member.time(now);
        self.retired.push(*member.stack().counters());
        let mut settings = member.stack().settings().clone();
        // A new run has a new key: otherwise it would choose the ports of connections that its peers still have.
        settings.key.0.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        if let Some(settings) = &mut member.agent_settings {
            settings.run = Run::new(settings.run.get() + RUN_STEP).expect("above 0");
        }
        member.server = start(server_now, settings, member.agent_settings.clone(), services);
        member.inbox.clear();
        member.messages.clear();
        if index == 0 {
            [0, 1].into_iter().for_each(|listener| self.set_listening(listener, true));
        }
        for name in self.directory.names.at(index) {
            self.lose_with_server(application, now, name);
        }
        self.lose_abandoned(application, now);
    }

    fn lose_with_server<A: Application>(&mut self, application: &mut A, now: Time, name: Conn) {
        let directory = &mut self.directory;
        let flow = directory.flow_of(name).or_else(|| {
            let (ends, _) = directory.opened.iter().find(|(_, opened)| **opened == name)?;
            Flow::new(ends.0.into(), ends.1.into()).ok()
        });
        directory.lost.extend(flow.map(|flow| (flow, Loss::Server)));
        directory.end(name);
        application.handle(now, name, Event::Lost(LostReason::Failed), self);
    }

    /// Ends connections that are on their way between two servers, if no server can continue them any more: after a restart of
    /// one (its target waits for the state for a while), or when the last of several servers that took part learns that another
    /// one has had the connection.
    pub(super) fn lose_abandoned<A: Application>(&mut self, application: &mut A, now: Time) {
        // Only a server that has restarted does not say that it gives a connection up.
        let has_restarted = !self.retired.is_empty();
        let moving: Vec<(Flow, Loss)> = (self.directory.transits.iter())
            .filter(|(_, transit)| has_restarted || transit.cause.is_some())
            .filter_map(|(name, transit)| {
                let loss = transit.cause.map_or(Loss::Server, Loss::Protocol);
                Some((self.directory.flow_of(*name)?, loss))
            })
            .collect();
        for (flow, loss) in moving {
            if !self.agents().any(|agent| agent.may_continue(&flow)) {
                self.lose(application, now, flow, loss);
            }
        }
    }
}

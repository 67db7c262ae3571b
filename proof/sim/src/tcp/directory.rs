//! Which connections the program of a host has, where each of them is, and what has happened to them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use spillway_handoff::Cause;
use spillway_transport::Conn;
use spillway_wire::switch::Flow;

use super::loss::Loss;
use super::moves::Moves;
use super::names::{Handle, Names};
use super::requests::Requests;
use super::transit::Transit;

#[derive(Debug)]
pub(crate) struct Directory {
    pub(super) names: Names,
    /// Connections between two servers.
    pub(super) transits: BTreeMap<Conn, Transit>,
    /// The latest connection of each flow of a service.
    pub(super) flows: BTreeMap<Flow, Conn>,
    flow_of: BTreeMap<Conn, Flow>,
    /// The latest connection with these ends that the program opened: local address, and the service.
    pub(crate) opened: BTreeMap<(SocketAddr, SocketAddr), Conn>,
    pub(crate) moves: Moves,
    pub(crate) requests: Requests,
    services: [SocketAddr; 2],
    /// Imports of connections: the server continues the connection from now on.
    pub(crate) imports: Vec<(Flow, usize)>,
    /// Connections that clients have opened, and their servers, since the last turn.
    pub(crate) accepted: Vec<(Flow, usize)>,
    /// Imports at targets.
    pub(crate) moved: Vec<Flow>,
    /// Connections that servers have dropped since the last turn, because the switch names another owner.
    pub(crate) foreign: Vec<(Flow, usize)>,
    /// Connections that were lost without a violation.
    pub(crate) lost: Vec<(Flow, Loss)>,
    /// Losses that [`take_new_losses`](Self::take_new_losses) has returned.
    losses_seen: usize,
    /// Connections that the program opened, and that were lost without a violation, here or at their other end.
    pub(crate) excused: BTreeSet<Conn>,
    pub(crate) violations: Vec<String>,
}

impl Directory {
    /// `services`: where the host's clients connect, by the index of the listener.
    pub(super) fn new(moves: Moves, services: [SocketAddr; 2]) -> Directory {
        Directory {
            names: Names::default(),
            transits: BTreeMap::new(),
            flows: BTreeMap::new(),
            flow_of: BTreeMap::new(),
            opened: BTreeMap::new(),
            moves,
            requests: Requests::new(None, Vec::new()),
            services,
            imports: Vec::new(),
            accepted: Vec::new(),
            moved: Vec::new(),
            foreign: Vec::new(),
            lost: Vec::new(),
            losses_seen: 0,
            excused: BTreeSet::new(),
            violations: Vec::new(),
        }
    }

    pub(super) fn services(&self) -> [SocketAddr; 2] {
        self.services
    }

    /// The flow of a connection that a server has accepted.
    pub(crate) fn flow_of(&self, name: Conn) -> Option<Flow> {
        self.flow_of.get(&name).copied()
    }

    /// Where a connection is, for people.
    pub(crate) fn place_of(&self, name: Conn) -> String {
        let ends = |client: SocketAddr, service: SocketAddr| format!(" of {client} to {service}");
        let opened = self.opened.iter().find(|(_, opened)| **opened == name);
        let flow = match (self.flow_of(name), opened) {
            (Some(flow), _) => ends(flow.client().into(), flow.service().into()),
            (None, Some(((client, service), _))) => ends(*client, *service),
            (None, None) => String::new(),
        };
        match self.names.handle(name) {
            Some(handle) => format!("{name:?}{flow} at server {}", handle.server),
            None if self.transits.contains_key(&name) => format!("{name:?}{flow} on its way"),
            None => format!("{name:?}{flow} nowhere"),
        }
    }

    /// The connection of a flow at a server.
    pub(super) fn at(&self, flow: &Flow, server: usize) -> Option<(Conn, Handle)> {
        let name = *self.flows.get(flow)?;
        let handle = self.names.handle(name).filter(|handle| handle.server == server)?;
        Some((name, handle))
    }

    /// The program has opened a connection.
    pub(super) fn add_opened(&mut self, handle: Handle, ends: (SocketAddr, SocketAddr)) -> Conn {
        let name = self.names.add(handle);
        self.opened.insert(ends, name);
        name
    }

    /// A client has opened a connection.
    pub(super) fn add_accepted(&mut self, handle: Handle, peer: SocketAddr, listener: u16) {
        let name = self.names.add(handle);
        let service = self.services[usize::from(listener).min(1)];
        match Flow::new(peer.into(), service.into()) {
            Ok(flow) => {
                self.flows.insert(flow, name);
                self.flow_of.insert(name, flow);
                self.accepted.push((flow, handle.server));
            }
            Err(error) => self.violations.push(format!("{peer} has no flow: {error}")),
        }
    }

    /// A connection has left a server.
    pub(super) fn depart(&mut self, name: Conn) {
        self.names.remove(name);
        self.transits.insert(name, Transit::default());
    }

    /// A connection has come to a server. Returns what the program did with it meanwhile; `None` if it was not on its way,
    /// which is a violation.
    pub(super) fn arrive(&mut self, name: Conn, handle: Handle, is_return: bool) -> Option<Transit> {
        let on_its_way = self.transits.remove(&name).zip(self.flow_of(name));
        let Some((transit, flow)) = on_its_way else {
            let (server, flow) = (handle.server, self.flow_of(name));
            self.violations
                .push(format!("server {server} imports {name:?} of {flow:?}, which is not on its way"));
            return None;
        };
        self.names.put(name, handle);
        self.imports.push((flow, handle.server));
        if is_return {
            self.moves.returned += 1;
        } else {
            self.moves.made += 1;
            self.moved.push(flow);
        }
        if transit.is_aborted() {
            self.end(name);
        }
        Some(transit)
    }

    /// A connection has ended at its server, or was lost with it.
    pub(super) fn end(&mut self, name: Conn) {
        self.names.remove(name);
        if let Some(flow) = self.flow_of(name)
            && self.flows.get(&flow) == Some(&name)
        {
            self.flows.remove(&flow);
        }
    }

    /// Records a loss without a violation.
    pub(super) fn record_loss(&mut self, flow: Flow, loss: Loss) {
        self.lost.push((flow, loss));
    }

    /// Finds out which of the losses since the last turn are those of connections that both ends had closed. `has_ended`: whether
    /// a fresh SYN has ended the entry of a flow; a later connection with the same ends has another entry.
    pub(super) fn find_closed(&mut self, has_ended: impl Fn(&Flow) -> bool) {
        for (flow, loss) in &mut self.lost[self.losses_seen..] {
            if *loss == Loss::Protocol(Cause::Doubt) && has_ended(flow) {
                *loss = Loss::Closed;
            }
        }
    }

    /// Flows of the losses since the last call.
    pub(crate) fn take_new_losses(&mut self) -> Vec<Flow> {
        let seen = std::mem::replace(&mut self.losses_seen, self.lost.len());
        self.lost[seen..].iter().map(|(flow, _)| *flow).collect()
    }

    /// A connection was lost without a violation: it is excused if the program opened it. A connection that the program opens
    /// later with the same ends is another one: after a restart a stack may choose a port of its earlier run.
    pub(crate) fn excuse(&mut self, flow: &Flow) {
        let ends = (flow.client().into(), flow.service().into());
        self.excused.extend(self.opened.get(&ends));
    }

    /// Gives up a connection between two servers. Returns its name if the program still uses it.
    pub(super) fn give_up(&mut self, flow: Flow, loss: Loss) -> Option<Conn> {
        self.record_loss(flow, loss);
        let name = self.flows.remove(&flow)?;
        self.names.remove(name);
        let is_aborted = self.transits.remove(&name).is_some_and(|transit| transit.is_aborted());
        (!is_aborted).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::tcp::moves::When;

    #[test]
    fn only_losses_of_the_last_turn_are_those_of_closed_connections() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let flow = Flow::new(end("10.0.0.2:40000").into(), end("10.0.0.1:80").into()).unwrap();
        let moves = Moves::new((When::Never, 1), Rng::new(1), (None, 1));
        let mut directory = Directory::new(moves, [end("10.0.0.2:80"), end("10.0.0.2:81")]);
        let doubt = Loss::Protocol(Cause::Doubt);
        directory.record_loss(flow, doubt);
        directory.find_closed(|_| false);
        directory.take_new_losses();
        directory.record_loss(flow, doubt);
        directory.record_loss(flow, Loss::Server);
        directory.find_closed(|_| true);
        assert_eq!(directory.lost, [(flow, doubt), (flow, Loss::Closed), (flow, Loss::Server)]);
    }

    #[test]
    fn a_loss_excuses_the_connection_that_had_the_ends_then() {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (client, service) = (end("10.0.0.2:40000"), end("10.0.0.1:80"));
        let moves = Moves::new((When::Never, 1), Rng::new(1), (None, 1));
        let mut directory = Directory::new(moves, [end("10.0.0.2:80"), end("10.0.0.2:81")]);
        let handle = |slot| Handle { server: 0, conn: Conn { slot, generation: 0 } };
        let first = directory.add_opened(handle(1), (client, service));
        let flow = Flow::new(client.into(), service.into()).unwrap();
        directory.record_loss(flow, Loss::Server);
        assert_eq!(directory.take_new_losses(), [flow]);
        directory.excuse(&flow);
        let second = directory.add_opened(handle(2), (client, service));
        assert_eq!(directory.take_new_losses(), []);
        assert!(directory.excused.contains(&first) && !directory.excused.contains(&second));
    }
}

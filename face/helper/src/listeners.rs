//! The table of listening addresses, which is the same in every thread, and its changes.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_net::{Binding, BoundListener, Config as NetConfig, Listeners};

use crate::config::{HelperConfig, StartError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The service, and the kind of its clients: they distinguish listeners that are configured with port 0.
    owner: (String, ListenerKind),
    configured: SocketAddr,
    /// The configured address with the port that the kernel chose for port 0.
    pub bound: SocketAddr,
    pub keep_alive: Option<Duration>,
    binding: Binding,
}

/// The kind of clients that a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    Plain,
    Library,
}

/// Listeners by the index that they have in every thread.
#[derive(Clone, Debug, Default)]
pub struct ListenerTable(Vec<Option<Listener>>);

/// A change of the table.
#[derive(Debug, Default)]
pub struct Plan {
    pub table: ListenerTable,
    /// New listeners by index, with one socket for each thread.
    pub new: Vec<(u16, Vec<BoundListener>)>,
    pub removed: Vec<u16>,
}

impl ListenerTable {
    /// The indexes of a service's listeners.
    pub fn of(&self, service: &str, kind: ListenerKind) -> Vec<u16> {
        self.owned(service, kind).map(|(index, _)| index).collect()
    }

    pub fn addresses(&self, service: &str, kind: ListenerKind) -> Vec<SocketAddr> {
        self.owned(service, kind).map(|(_, listener)| listener.bound).collect()
    }

    pub fn kind(&self, index: u16) -> ListenerKind {
        let listener = self.0.get(usize::from(index)).and_then(Option::as_ref);
        listener.map_or(ListenerKind::Plain, |listener| listener.owner.1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &Listener)> {
        (0_u16..).zip(&self.0).filter_map(|(index, listener)| Some((index, listener.as_ref()?)))
    }

    fn owned(&self, service: &str, kind: ListenerKind) -> impl Iterator<Item = (u16, &Listener)> {
        self.iter().filter(move |(_, listener)| listener.owner.0 == service && listener.owner.1 == kind)
    }

    /// Binds the listeners that are missing. A present one stays open, even if it changes its service.
    ///
    /// # Errors
    /// An address cannot be bound, or there are more listeners than indexes.
    pub fn plan(&self, config: &HelperConfig, threads: usize, net: &NetConfig) -> Result<Plan, StartError> {
        let own_addresses: Vec<SocketAddr> = self.iter().map(|(_, listener)| listener.bound).collect();
        let mut plan = Plan { table: ListenerTable(vec![None; self.0.len()]), ..Plan::default() };
        let mut missing = Vec::new();
        for (owner, configured, keep_alive) in configured_listeners(config) {
            let binding = binding(config, owner.1);
            let is_free = |(index, _): &(u16, &Listener)| plan.table.0[usize::from(*index)].is_none();
            let matches = |listener: &Listener| {
                listener.configured == configured
                    && listener.binding == binding
                    && (configured.port() != 0 || listener.owner == owner)
            };
            match self.iter().filter(is_free).find(|(_, listener)| matches(listener)) {
                Some((index, listener)) => {
                    let bound = listener.bound;
                    let listener = Listener { owner, configured, bound, keep_alive, binding };
                    plan.table.0[usize::from(index)] = Some(listener);
                }
                None => missing.push((owner, configured, keep_alive)),
            }
        }
        for (owner, configured, keep_alive) in missing {
            let net = NetConfig { keep_alive, ..net.clone() };
            let binding = binding(config, owner.1);
            let listeners = Listeners::bind_beside(&[configured], threads, &net, binding, &own_addresses)
                .map_err(StartError::Bind)?;
            let bound = listeners.addresses()[0]; // the result for the only address
            let index = plan.table.free_index(&self.0)?;
            plan.table.0[usize::from(index)] =
                Some(Listener { owner, configured, bound, keep_alive, binding });
            let sockets = listeners.into_contexts().into_iter().flat_map(|thread| thread.into_listeners());
            plan.new.push((index, sockets.collect()));
        }
        let is_kept = |index: u16| plan.table.0[usize::from(index)].is_some();
        plan.removed = self.iter().map(|(index, _)| index).filter(|index| !is_kept(*index)).collect();
        Ok(plan)
    }

    /// A free index that `previous` did not use either: events of a removed listener may still be pending.
    fn free_index(&mut self, previous: &[Option<Listener>]) -> Result<u16, StartError> {
        let is_free = |position: &usize| {
            self.0[*position].is_none() && previous.get(*position).is_none_or(Option::is_none)
        };
        let position = (0..self.0.len()).find(is_free).unwrap_or(self.0.len());
        let index = u16::try_from(position).map_err(|_| StartError::Listeners)?;
        if position == self.0.len() {
            self.0.push(None);
        }
        Ok(index)
    }
}

/// A library client sends load queries from the port from which it connects, so that one thread handles both.
fn binding(config: &HelperConfig, kind: ListenerKind) -> Binding {
    match kind {
        ListenerKind::Plain => Binding::Plain,
        ListenerKind::Library if config.load_answers => Binding::LoadQueries,
        ListenerKind::Library => Binding::BySourcePort,
    }
}

/// Owner, configured address and TCP keep-alive of a listener.
type Configured = ((String, ListenerKind), SocketAddr, Option<Duration>);

fn configured_listeners(config: &HelperConfig) -> impl Iterator<Item = Configured> + '_ {
    config.services.iter().flat_map(|service| {
        let plain = service.listen.iter().map(|address| (ListenerKind::Plain, *address));
        let library = service.link_listen.iter().map(|address| (ListenerKind::Library, *address));
        plain
            .chain(library)
            .map(|(kind, address)| ((service.name.clone(), kind), address, service.client_keepalive))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Service;

    fn config(services: &[(&str, &[&str])]) -> HelperConfig {
        let service = |(name, listen): &(&str, &[&str])| {
            let mut service = Service::new(*name, "127.0.0.1:1".parse().unwrap());
            service.listen = listen.iter().map(|address| address.parse().unwrap()).collect();
            service
        };
        HelperConfig::new(services.iter().map(service).collect())
    }

    #[test]
    fn present_listeners_stay_and_removed_indexes_are_not_reused_at_once() {
        let net = NetConfig::default();
        let any_port = "127.0.0.1:0";
        let first = ListenerTable::default()
            .plan(&config(&[("a", &[any_port, any_port]), ("b", &[any_port])]), 2, &net)
            .unwrap();
        assert_eq!((first.new.len(), first.removed.len()), (3, 0));
        assert!(first.new.iter().all(|(_, sockets)| sockets.len() == 2));
        let (a, b) = (first.table.of("a", ListenerKind::Plain), first.table.of("b", ListenerKind::Plain));
        assert_eq!((a, b), (vec![0, 1], vec![2]));

        let port = first.table.addresses("b", ListenerKind::Plain)[0].to_string();
        let same =
            first.table.plan(&config(&[("b", &[any_port]), ("a", &[any_port, any_port])]), 2, &net).unwrap();
        assert!(same.new.is_empty() && same.removed.is_empty());

        // A listener of service a is removed, and c is added: c must not get the removed listener's index.
        let second = first
            .table
            .plan(&config(&[("a", &[any_port]), ("b", &[any_port]), ("c", &[any_port])]), 2, &net)
            .unwrap();
        assert_eq!(second.removed, [1]);
        assert_eq!(second.table.of("c", ListenerKind::Plain), [3]);
        let third = second.table.plan(&config(&[("d", &[any_port])]), 2, &net).unwrap();
        assert_eq!(third.table.of("d", ListenerKind::Plain), [1]);
        assert_eq!(third.removed, [0, 2, 3]);

        let result = third.table.plan(&config(&[("e", &[any_port, &port])]), 2, &net);
        drop(first.new);
        assert!(result.is_ok(), "a port that is bound but does not listen should be accepted");
        let other_program = std::net::TcpListener::bind(any_port).unwrap();
        let port = other_program.local_addr().unwrap().to_string();
        assert!(matches!(third.table.plan(&config(&[("e", &[&port])]), 2, &net), Err(StartError::Bind(_))));
    }

    #[test]
    fn an_address_may_change_its_service_and_overlap_with_a_present_listener() {
        let net = NetConfig::default();
        let free = spillway_ports::free_address();
        let (loopback, wildcard) = (free.to_string(), format!("0.0.0.0:{}", free.port()));
        let first = ListenerTable::default().plan(&config(&[("a", &[&loopback])]), 1, &net).unwrap();
        let second = first.table.plan(&config(&[("b", &[&loopback])]), 1, &net).unwrap();
        assert!(second.new.is_empty() && second.removed.is_empty());
        assert_eq!(second.table.of("b", ListenerKind::Plain), [0]);
        let third = second.table.plan(&config(&[("b", &[&wildcard])]), 1, &net).unwrap();
        assert_eq!((third.new.len(), third.removed), (1, vec![0]));
    }
}

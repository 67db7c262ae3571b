//! Which listening address has which place in every thread, and how it changes.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_net::{Binding, BoundListener, Config as NetConfig, Listeners};

use crate::config::{HelperConfig, StartError};

/// One listening address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listening {
    /// The service, and what comes in there: tells addresses without a port apart.
    owner: (String, Sort),
    /// As configured.
    wanted: SocketAddr,
    /// As bound: with its port.
    pub bound: SocketAddr,
    /// Of clients that come in there.
    pub keep_alive: Option<Duration>,
    /// How its sockets were bound.
    binding: Binding,
}

/// What comes in at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Plain clients.
    Plain,
    /// Library clients.
    Library,
}

/// By place: what threads know as a listener's index.
#[derive(Clone, Debug, Default)]
pub struct Places(Vec<Option<Listening>>);

/// How places change.
#[derive(Debug, Default)]
pub struct Plan {
    /// Afterwards.
    pub places: Places,
    /// New sockets: their place, one for each thread.
    pub new: Vec<(u16, Vec<BoundListener>)>,
    /// Places that are given up.
    pub gone: Vec<u16>,
}

impl Places {
    /// The places of a service's listeners, in the order of its configuration.
    pub fn of(&self, service: &str, sort: Sort) -> Vec<u16> {
        self.owned(service, sort).map(|(place, _)| place).collect()
    }

    /// Where a service listens, ports included.
    pub fn addresses(&self, service: &str, sort: Sort) -> Vec<SocketAddr> {
        self.owned(service, sort).map(|(_, listening)| listening.bound).collect()
    }

    /// Every place that is in use.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Listening)> {
        (0_u16..).zip(&self.0).filter_map(|(place, listening)| Some((place, listening.as_ref()?)))
    }

    fn owned(&self, service: &str, sort: Sort) -> impl Iterator<Item = (u16, &Listening)> {
        self.iter().filter(move |(_, listening)| listening.owner.0 == service && listening.owner.1 == sort)
    }

    /// Binds what a configuration needs and does not have. What is there stays, even where another service has it
    /// from now on.
    ///
    /// # Errors
    /// An address cannot be bound; nothing has changed, then.
    pub fn plan(&self, config: &HelperConfig, threads: usize, net: &NetConfig) -> Result<Plan, StartError> {
        let ours: Vec<SocketAddr> = self.iter().map(|(_, listening)| listening.bound).collect();
        let mut plan = Plan { places: Places(vec![None; self.0.len()]), ..Plan::default() };
        let mut missing = Vec::new();
        for (owner, wanted, keep_alive) in wanted(config) {
            let binding = binding(config, owner.1);
            let free = |(place, _): &(u16, &Listening)| plan.places.0[usize::from(*place)].is_none();
            let fits = |listening: &Listening| {
                listening.wanted == wanted
                    && listening.binding == binding
                    && (wanted.port() != 0 || listening.owner == owner)
            };
            match self.iter().filter(free).find(|(_, listening)| fits(listening)) {
                Some((place, listening)) => {
                    let bound = listening.bound;
                    let listening = Listening { owner, wanted, bound, keep_alive, binding };
                    plan.places.0[usize::from(place)] = Some(listening);
                }
                None => missing.push((owner, wanted, keep_alive)),
            }
        }
        for (owner, wanted, keep_alive) in missing {
            let net = NetConfig { keep_alive, ..net.clone() };
            let binding = binding(config, owner.1);
            let listeners =
                Listeners::bind_beside(&[wanted], threads, &net, binding, &ours).map_err(StartError::Bind)?;
            let bound = listeners.addresses()[0]; // one was asked for
            let place = plan.places.free_place(&self.0)?;
            plan.places.0[usize::from(place)] = Some(Listening { owner, wanted, bound, keep_alive, binding });
            let each = listeners.into_contexts().into_iter().flat_map(|of_thread| of_thread.into_each());
            plan.new.push((place, each.collect()));
        }
        let kept = |place: u16| plan.places.0[usize::from(place)].is_some();
        plan.gone = self.iter().map(|(place, _)| place).filter(|place| !kept(*place)).collect();
        Ok(plan)
    }

    /// A place that nothing uses, nor did before: its events may still be under way.
    fn free_place(&mut self, before: &[Option<Listening>]) -> Result<u16, StartError> {
        let is_free =
            |place: &usize| self.0[*place].is_none() && before.get(*place).is_none_or(Option::is_none);
        let place = (0..self.0.len()).find(is_free).unwrap_or(self.0.len());
        let index = u16::try_from(place).map_err(|_| StartError::Listeners)?;
        if place == self.0.len() {
            self.0.push(None);
        }
        Ok(index)
    }
}

/// Library clients ask before they come, from the port that they will come from.
fn binding(config: &HelperConfig, sort: Sort) -> Binding {
    match sort {
        Sort::Plain => Binding::Plain,
        Sort::Library if config.load_answers => Binding::Questions,
        Sort::Library => Binding::BySourcePort,
    }
}

type Wanted = ((String, Sort), SocketAddr, Option<Duration>);

fn wanted(config: &HelperConfig) -> impl Iterator<Item = Wanted> + '_ {
    config.services.iter().flat_map(|service| {
        let plain = service.listen.iter().map(|address| (Sort::Plain, *address));
        let library = service.link_listen.iter().map(|address| (Sort::Library, *address));
        plain
            .chain(library)
            .map(|(sort, address)| ((service.name.clone(), sort), address, service.client_keepalive))
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
    fn what_is_there_stays_and_places_rest() {
        let net = NetConfig::default();
        let any = "127.0.0.1:0";
        let first = Places::default().plan(&config(&[("a", &[any, any]), ("b", &[any])]), 2, &net).unwrap();
        assert_eq!((first.new.len(), first.gone.len()), (3, 0));
        assert!(first.new.iter().all(|(_, each)| each.len() == 2));
        let (a, b) = (first.places.of("a", Sort::Plain), first.places.of("b", Sort::Plain));
        assert_eq!((a, b), (vec![0, 1], vec![2]));

        let port = first.places.addresses("b", Sort::Plain)[0].to_string();
        let same = first.places.plan(&config(&[("b", &[any]), ("a", &[any, any])]), 2, &net).unwrap();
        assert!(same.new.is_empty() && same.gone.is_empty());

        // One of a's goes, and a new service comes: it does not get the place that has just been left.
        let second =
            first.places.plan(&config(&[("a", &[any]), ("b", &[any]), ("c", &[any])]), 2, &net).unwrap();
        assert_eq!(second.gone, [1]);
        assert_eq!(second.places.of("c", Sort::Plain), [3]);
        let third = second.places.plan(&config(&[("d", &[any])]), 2, &net).unwrap();
        assert_eq!(third.places.of("d", Sort::Plain), [1]);
        assert_eq!(third.gone, [0, 2, 3]);

        // An address that is taken changes nothing.
        let error = third.places.plan(&config(&[("e", &[any, &port])]), 2, &net);
        drop(first.new);
        assert!(error.is_ok(), "nobody listens there yet");
        let taken = std::net::TcpListener::bind(any).unwrap();
        let port = taken.local_addr().unwrap().to_string();
        assert!(matches!(third.places.plan(&config(&[("e", &[&port])]), 2, &net), Err(StartError::Bind(_))));
    }

    #[test]
    fn an_address_may_change_its_service_and_overlap_with_ours() {
        let net = NetConfig::default();
        let free = spillway_ports::free_address();
        let (one, all) = (free.to_string(), format!("0.0.0.0:{}", free.port()));
        let first = Places::default().plan(&config(&[("a", &[&one])]), 1, &net).unwrap();
        let second = first.places.plan(&config(&[("b", &[&one])]), 1, &net).unwrap();
        assert!(second.new.is_empty() && second.gone.is_empty());
        assert_eq!(second.places.of("b", Sort::Plain), [0]);
        let third = second.places.plan(&config(&[("b", &[&all])]), 1, &net).unwrap();
        assert_eq!((third.new.len(), third.gone), (1, vec![0]));
    }
}

//! Other settings for a running relay: what stays the same goes on, undisturbed.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::Key;
use spillway_policy::Shedding;
use spillway_transport::{Time, Transport};

use crate::config::{Config, ConfigError, SERVICES_MAX, ServiceConfig};
use crate::draining::milliseconds;
use crate::notice::Notice;
use crate::relay::{Listener, Relay, Service};
use crate::slots::Sort;
use crate::upstream::{Standing, State, Upstream};

impl Relay {
    /// Whether [`reconfigure`](Self::reconfigure) would take this.
    ///
    /// # Errors
    /// As of `reconfigure`.
    pub fn check_change(&self, config: &Config) -> Result<(), ConfigError> {
        if self.is_draining() {
            return Err(ConfigError::GoingAway);
        }
        config.check()?;
        let is_new = |service: &&ServiceConfig| self.place_of(&service.name).is_none();
        let new = config.services.iter().filter(is_new).count();
        if self.services.len() + new > SERVICES_MAX { Err(ConfigError::TooManyServices) } else { Ok(()) }
    }

    /// Puts other settings in force, all but the timeouts. Services are told apart by their names:
    ///
    /// - one that is no longer there is drained within `within`; one that was drained comes back;
    /// - ranges of clients, client keys and listeners concern clients that come from now on;
    /// - where the server, this helper's newest key, the number of links or the bounds of connections change, or the
    ///   key in use goes, new links are opened. The old ones take clients until a new one is up; then they end with
    ///   their clients. For another server, clients on old links have to be gone after `within`, and library clients
    ///   are told;
    /// - where encryption becomes required, links and library clients without it have to be gone after `within`;
    /// - when batches go is changed on links that are open.
    ///
    /// The transport must have the listeners that `config` names.
    ///
    /// # Errors
    /// What cannot be served; everything is as it was, then.
    pub fn reconfigure<T: Transport>(
        &mut self,
        now: Time,
        config: Config,
        within: Duration,
        out: &mut T,
    ) -> Result<(), ConfigError> {
        self.check_change(&config)?;
        self.config.clients_max = config.clients_max;
        self.config.memory_bytes_max = config.memory_bytes_max;
        self.config.connection_buffer_bytes = config.connection_buffer_bytes;
        self.begin_turn(now, out);
        self.memory.set_max(config.memory_bytes_max);
        self.keep_within_memory(out);
        self.config.load.clone_from(&config.load);
        self.gauge.set_capacity(self.config.capacity());
        match (&mut self.shedding, config.load.shedding) {
            (Some(shedding), Some(settings)) => shedding.set(settings),
            (shedding, settings) => *shedding = settings.map(Shedding::new),
        }
        for place in 0..self.services.len() {
            let name = &self.config.services[place].name;
            if !config.services.iter().any(|service| service.name == *name) {
                self.remove_service(now, place, within, out);
            }
        }
        for service in config.services {
            match self.place_of(&service.name) {
                Some(place) => self.change_service(now, place, service, within, out),
                None => self.add_service(service),
            }
        }
        self.map_listeners();
        (0..self.services.len()).for_each(|service| self.update_listening(service, out));
        self.close_unused_listeners(out);
        Ok(())
    }

    fn place_of(&self, name: &str) -> Option<usize> {
        self.config.services.iter().position(|service| service.name == name)
    }

    /// The caller has checked that there is room.
    pub(crate) fn add_service(&mut self, config: ServiceConfig) {
        let place = self.services.len();
        self.services.push(Service::default());
        self.config.services.push(config);
        self.open_links(place);
    }

    fn open_links(&mut self, place: usize) {
        for link in 0..self.config.services[place].links {
            let upstream = Upstream::new(place as u16, link); // at most SERVICES_MAX
            let free = self.upstreams.iter().position(|upstream| upstream.standing == Standing::Gone);
            let index = free.unwrap_or(self.upstreams.len());
            match free {
                Some(_) => self.upstreams[index] = upstream,
                None => self.upstreams.push(upstream),
            }
            self.services[place].upstreams.push(index);
        }
    }

    fn remove_service<T: Transport>(&mut self, now: Time, place: usize, within: Duration, out: &mut T) {
        if !self.services[place].removed {
            self.services[place].removed = true;
            let config = &mut self.config.services[place];
            config.raw_listeners.clear();
            config.link_listeners.clear();
            self.drain_one(now, place, within, out);
        }
    }

    fn change_service<T: Transport>(
        &mut self,
        now: Time,
        place: usize,
        config: ServiceConfig,
        within: Duration,
        out: &mut T,
    ) {
        let service = &mut self.services[place];
        service.removed = false;
        let comes_back = service.drain.take().is_some_and(|drain| drain.is_over());
        let before = core::mem::replace(&mut self.config.services[place], config);
        let config = &self.config.services[place];
        if before.policy != config.policy {
            for index in &self.services[place].upstreams {
                if let Some(linked) = self.upstreams[*index].linked_mut() {
                    linked.opener.set_policy(config.policy);
                }
            }
        }
        let other_server = before.server != config.server;
        let other_encryption =
            before.encryption != config.encryption || before.client_encryption != config.client_encryption;
        let other_links = other_server
            || comes_back
            || newest(&before.keys) != newest(&config.keys)
            || self.uses_another_key(place)
            || before.links != config.links
            || before.encryption != config.encryption
            || before.limits != config.limits;
        if other_links {
            self.replace_links(now, place, other_server.then_some(within), out);
        }
        if other_encryption {
            self.end_unencrypted(now, place, within);
        }
    }

    /// Whether a link was opened with a key that is no longer among the service's.
    fn uses_another_key(&self, place: usize) -> bool {
        let keys = &self.config.services[place].keys;
        let links = self.services[place].upstreams.iter().map(|index| &self.upstreams[*index]);
        let mut current =
            links.filter(|link| link.standing == Standing::Current).filter_map(Upstream::linked);
        !keys.is_empty() && current.any(|linked| keys.iter().all(|key| key.id() != linked.key))
    }

    /// Opens new links. With `within`, clients must have left the old ones by then.
    fn replace_links<T: Transport>(
        &mut self,
        now: Time,
        place: usize,
        within: Option<Duration>,
        out: &mut T,
    ) {
        for index in self.services[place].upstreams.clone() {
            let upstream = &mut self.upstreams[index];
            let carries = upstream.linked().is_some_and(|linked| linked.up);
            match upstream.standing {
                Standing::Current if carries => {
                    upstream.standing = Standing::StandsIn { within };
                }
                // They have been told to go before the server changed: now it matters when.
                Standing::StandsIn { within: None } if carries => {
                    upstream.standing = Standing::StandsIn { within };
                }
                Standing::Retired { deadline: None } => {
                    let deadline = within.map(|within| now + within);
                    upstream.standing = Standing::Retired { deadline };
                }
                Standing::Current => self.end_link(now, index, out),
                Standing::StandsIn { .. } | Standing::Retired { .. } | Standing::Gone => {}
            }
        }
        self.open_links(place);
    }

    /// A new link is up: those that stood in for it take no more clients.
    pub(crate) fn retire_predecessors(&mut self, now: Time, place: usize) {
        for index in self.services[place].upstreams.clone() {
            let upstream = &mut self.upstreams[index];
            let Standing::StandsIn { within } = upstream.standing else { continue };
            upstream.standing = Standing::Retired { deadline: within.map(|within| now + within) };
            if let Some((within, linked)) = within.zip(upstream.linked()) {
                let clients: Vec<_> = linked.clients().collect();
                clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
            }
        }
    }

    /// Links that were replaced end with their clients, or at their deadline.
    pub(crate) fn end_retired<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Standing::Retired { deadline } = self.upstreams[index].standing else { return };
        if deadline.is_some_and(|deadline| deadline <= now)
            && let Some(linked) = self.upstreams[index].linked()
        {
            let clients: Vec<_> = linked.clients().collect();
            clients.into_iter().for_each(|conn| self.reset_client(conn, out));
        } else if self.upstreams[index].linked().is_some_and(|linked| linked.connections() > 0) {
            return;
        }
        let (service, link) = (self.upstreams[index].service, self.upstreams[index].link);
        self.end_link(now, index, out);
        self.notices.push(Notice::LinkRetired { service, link });
    }

    /// Closes a link for good; its place is free.
    fn end_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        self.close_link(now, index, out);
        self.forget_link(index);
    }

    /// The place of a link that is closed is free: no client is on it.
    pub(crate) fn forget_link(&mut self, index: usize) {
        let upstream = &mut self.upstreams[index];
        debug_assert!(matches!(upstream.state, State::Closed), "closed before it is forgotten");
        upstream.standing = Standing::Gone;
        let past = core::mem::take(&mut upstream.past);
        let service = &mut self.services[usize::from(upstream.service)];
        service.past.merge(&past);
        service.upstreams.retain(|other| *other != index);
    }

    /// Who uses which listener.
    pub(crate) fn map_listeners(&mut self) {
        self.listeners.iter_mut().for_each(|listener| listener.of = None);
        for (service, config) in (0_u16..).zip(&self.config.services) {
            let raw = config.raw_listeners.iter().map(|listener| (*listener, Sort::Raw));
            let library = config.link_listeners.iter().map(|listener| (*listener, Sort::Library));
            for (listener, sort) in raw.chain(library) {
                let position = usize::from(listener);
                if self.listeners.len() <= position {
                    self.listeners.resize(position + 1, Listener::default());
                }
                self.listeners[position].of = Some((service, sort));
            }
        }
    }

    fn close_unused_listeners<T: Transport>(&mut self, out: &mut T) {
        for (index, listener) in (0_u16..).zip(&mut self.listeners) {
            if listener.of.is_none() && core::mem::take(&mut listener.open) {
                out.set_listening(index, false);
            }
        }
    }
}

fn newest(keys: &[Key]) -> Option<spillway_batch::KeyId> {
    keys.first().map(Key::id)
}

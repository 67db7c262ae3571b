//! Other settings for a running relay: what stays the same goes on, undisturbed.

use core::time::Duration;

use spillway_transport::{Time, Transport};

use super::Relay;
use crate::config::{Config, ConfigError, SERVICES_MAX, ServiceConfig};

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
        let is_new = |service: &&ServiceConfig| self.services.place_of(&service.name).is_none();
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
        self.admission.set_clients_max(config.clients_max);
        self.settings.connection_buffer_bytes = config.connection_buffer_bytes;
        self.begin_turn(now, out);
        self.memory.set_max(config.memory_bytes_max);
        self.keep_within_memory(out);
        self.load.change(&config);
        for place in 0..self.services.len() {
            let name = &self.services[place].config().name;
            if !config.services.iter().any(|service| service.name == *name) {
                self.remove_service(now, place, within, out);
            }
        }
        for service in config.services {
            match self.services.place_of(&service.name) {
                Some(place) => self.change_service(now, place, service, within, out),
                None => self.add_service(service),
            }
        }
        self.listeners.assign(self.services.configs());
        (0..self.services.len()).for_each(|service| self.update_listening(service, out));
        self.listeners.close_unused(|listener, open| out.set_listening(listener, open));
        Ok(())
    }

    fn remove_service<T: Transport>(&mut self, now: Time, place: usize, within: Duration, out: &mut T) {
        if self.services[place].remove() {
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
        let policy = config.policy;
        let changes = self.services[place].change(config);
        if changes.policy {
            for index in self.links_of(place) {
                self.links[index].set_policy(policy);
            }
        }
        if changes.links || self.uses_another_key(place) {
            self.replace_links(now, place, changes.server.then_some(within), out);
        }
        if changes.encryption {
            self.end_unencrypted(now, place, within);
        }
    }
}

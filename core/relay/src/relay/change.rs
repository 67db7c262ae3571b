//! Reconfiguration of a running relay. Links and clients that the changes do not concern are not affected.

use core::time::Duration;

use spillway_transport::{Time, Transport};

use super::Relay;
use crate::config::{Config, ConfigError, SERVICES_MAX, ServiceConfig};

impl Relay {
    /// Checks whether [`reconfigure`](Self::reconfigure) would accept this configuration.
    ///
    /// # Errors
    /// Those of `reconfigure`.
    pub fn check_change(&self, config: &Config) -> Result<(), ConfigError> {
        if self.is_draining() {
            return Err(ConfigError::Draining);
        }
        config.check()?;
        let is_new = |service: &&ServiceConfig| self.services.index_of(&service.name).is_none();
        let new = config.services.iter().filter(is_new).count();
        if self.services.len() + new > SERVICES_MAX { Err(ConfigError::TooManyServices) } else { Ok(()) }
    }

    /// Applies a new configuration, except for `timeouts`, `first_window_bytes` and `unauthenticated`, which are fixed
    /// when the relay starts. Services are identified by name:
    ///
    /// - A service that is no longer configured is drained; `within` is the time until the drain's deadline. A
    ///   configured service that drains or has drained accepts clients again.
    /// - Ranges of clients, client keys and listeners apply to new clients.
    /// - New links are opened if the server, this helper's newest key, or the number, limits or encryption of links
    ///   change, or if the key in use is removed. The old links accept clients until a new one is up, and are closed
    ///   when their clients have left. If the server changes, library clients are sent *drain* when a new link is up,
    ///   and clients that are still on the old links after `within` are reset.
    /// - If encryption becomes required, links and library clients without encryption end after `within` at the latest.
    /// - The batch policy applies to open links at once.
    ///
    /// The transport must have the listeners that `config` names.
    ///
    /// # Errors
    /// The configuration is invalid, or the relay drains. The present configuration stays in force.
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
        for service_index in 0..self.services.len() {
            let name = &self.services[service_index].config().name;
            if !config.services.iter().any(|service| service.name == *name) {
                self.remove_service(now, service_index, within, out);
            }
        }
        for service in config.services {
            match self.services.index_of(&service.name) {
                Some(service_index) => self.change_service(now, service_index, service, within, out),
                None => self.add_service(service),
            }
        }
        self.listeners.assign(self.services.configs());
        (0..self.services.len()).for_each(|service| self.update_listening(service, out));
        self.listeners.close_unused(|listener, open| out.set_listening(listener, open));
        Ok(())
    }

    fn remove_service<T: Transport>(
        &mut self,
        now: Time,
        service_index: usize,
        within: Duration,
        out: &mut T,
    ) {
        if self.services[service_index].remove() {
            self.begin_service_drain(now, service_index, within, out);
        }
    }

    fn change_service<T: Transport>(
        &mut self,
        now: Time,
        service_index: usize,
        config: ServiceConfig,
        within: Duration,
        out: &mut T,
    ) {
        let policy = config.policy;
        let changes = self.services[service_index].change(config);
        if changes.policy {
            for index in self.links_of(service_index) {
                self.links[index].set_policy(policy);
            }
        }
        if changes.links || self.uses_removed_key(service_index) {
            self.replace_links(now, service_index, changes.server.then_some(within), out);
        }
        if changes.encryption {
            self.end_unencrypted(now, service_index, within);
        }
    }
}

//! Reconfiguration from optional to required encryption, which also ends open connections without encryption.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Encryption, LinkError};
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds, service_number};
use crate::links::{Lifecycle, Linked};
use crate::reasons::Cut;

impl Relay {
    /// Call it when a service's encryption settings have changed. If encryption is required now, links to the server
    /// without encryption accept no more clients and end after `within`. Library clients without encryption are sent
    /// *drain*, and are cut after `within`.
    pub(super) fn end_unencrypted(&mut self, now: Time, service_index: usize, within: Duration) {
        let deadline = now + within;
        let config = self.services[service_index].config();
        let (of_links, of_clients) = (config.encryption, config.client_encryption);
        if of_links == Encryption::Required {
            let is_unencrypted = |linked: &Linked| linked.is_up() && !linked.is_encrypted();
            for index in self.links_of(service_index) {
                let link = &self.links[index];
                if link.lifecycle() == Lifecycle::Free || !link.linked().is_some_and(is_unencrypted) {
                    continue;
                }
                self.links[index].retire(Some(deadline));
                let clients = self.clients_on(index);
                clients.into_iter().for_each(|conn| self.send_drain(conn, milliseconds(within)));
            }
        }
        if of_clients == Encryption::Required {
            // Handshakes that began before may still end without encryption: their clients are cut at the deadline too.
            self.encryption_deadline =
                Some(self.encryption_deadline.map_or(deadline, |earlier| earlier.min(deadline)));
            let clients = self.unencrypted_clients(service_index);
            clients.into_iter().for_each(|conn| self.send_drain(conn, milliseconds(within)));
        }
    }

    /// Cuts the library clients without encryption when the deadline has passed.
    pub(super) fn unencrypted_timeout<T: Transport>(&mut self, out: &mut T) {
        if self.encryption_deadline.is_none_or(|at| at > self.turn.now) {
            return;
        }
        self.encryption_deadline = None;
        for service_index in 0..self.services.len() {
            for conn in self.unencrypted_clients(service_index) {
                self.cut(conn, Cut::Protocol(LinkError::Unencrypted), out);
            }
        }
    }

    /// The authenticated library clients without encryption, if their service requires it.
    fn unencrypted_clients(&self, service_index: usize) -> Vec<Conn> {
        if self.services[service_index].config().client_encryption != Encryption::Required {
            return Vec::new();
        }
        let mut clients = self.clients.of_service(service_number(service_index));
        clients.retain(|conn| self.clients.library(*conn).is_some_and(|client| client.is_unencrypted()));
        clients
    }
}

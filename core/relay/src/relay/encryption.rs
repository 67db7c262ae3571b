//! Reconfiguration from optional to required encryption, which also ends open connections without encryption.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Encryption, LinkError};
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds, service_number};
use crate::links::{Lifecycle, Linked};
use crate::reasons::ResetReason;

impl Relay {
    /// Call this when a service's encryption settings have changed. If encryption is required now, links to the server
    /// without encryption accept no more clients and end after `within`. Library clients without encryption are sent
    /// *drain*, and are reset after `within`.
    pub(super) fn end_unencrypted(&mut self, now: Time, service_index: usize, within: Duration) {
        let deadline = now + within;
        let config = self.services[service_index].config();
        let (link_encryption, client_encryption) = (config.encryption, config.client_encryption);
        if link_encryption == Encryption::Required {
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
        if client_encryption == Encryption::Required {
            self.services[service_index].bring_forward_unencrypted_deadline(deadline);
            let clients = self.unencrypted_clients(service_index);
            clients.into_iter().for_each(|conn| self.send_drain(conn, milliseconds(within)));
        }
    }

    /// Call this when a library client has authenticated. A handshake that began before encryption was
    /// required may end without encryption. Such a client is sent *drain* if the service's deadline for
    /// clients without encryption has not passed, and is reset otherwise. Returns whether the client stays.
    #[must_use]
    pub(super) fn enforce_encryption<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) -> bool {
        let Some(client) = self.clients.library(conn) else {
            debug_assert!(false, "the caller has just taken an event of this client");
            return false;
        };
        let service = self.service(client.service());
        if !client.is_unencrypted() || service.config().client_encryption != Encryption::Required {
            return true;
        }
        match service.unencrypted_deadline() {
            Some(deadline) => self.send_drain(conn, milliseconds(deadline.since(now))),
            None => {
                self.reset_for(conn, ResetReason::Protocol(LinkError::Unencrypted), out);
                return false;
            }
        }
        true
    }

    /// Resets the service's library clients without encryption when their deadline has passed.
    pub(super) fn unencrypted_timeout<T: Transport>(&mut self, now: Time, service_index: usize, out: &mut T) {
        if self.services[service_index].end_unencrypted_deadline(now) {
            for conn in self.unencrypted_clients(service_index) {
                self.reset_for(conn, ResetReason::Protocol(LinkError::Unencrypted), out);
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

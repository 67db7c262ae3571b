//! A change of settings that requires encryption also concerns the connections that are open.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Encryption, LinkError};
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds, number_of};
use crate::links::{Linked, Tenure};
use crate::reasons::Cut;

impl Relay {
    /// The settings about encryption have changed. If encryption is required now, links to the server without it take no
    /// more clients and end after `within`; library clients whose links are not encrypted are told to leave, and are cut after `within`.
    pub(super) fn end_unencrypted(&mut self, now: Time, place: usize, within: Duration) {
        let deadline = now + within;
        let config = self.services[place].config();
        let (of_links, of_clients) = (config.encryption, config.client_encryption);
        if of_links == Encryption::Required {
            let lacks = |linked: &Linked| linked.is_up() && !linked.is_encrypted();
            for index in self.links_of(place) {
                let link = &self.links[index];
                if link.tenure() == Tenure::Gone || !link.linked().is_some_and(lacks) {
                    continue;
                }
                self.links[index].retire(Some(deadline));
                let clients = self.clients_on(index);
                clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
            }
        }
        if of_clients == Encryption::Required {
            // Handshakes in progress may still agree on what was allowed when they began.
            self.encrypted_by = Some(self.encrypted_by.map_or(deadline, |earlier| earlier.min(deadline)));
            let clients = self.unencrypted_clients(place);
            clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
        }
    }

    /// Cuts the library clients that were told to leave and have not.
    pub(super) fn unencrypted_timeout<T: Transport>(&mut self, out: &mut T) {
        if self.encrypted_by.is_none_or(|at| at > self.turn.now) {
            return;
        }
        self.encrypted_by = None;
        for place in 0..self.services.len() {
            for conn in self.unencrypted_clients(place) {
                self.cut(conn, Cut::Protocol(LinkError::Unencrypted), out);
            }
        }
    }

    /// Library clients that have authenticated, and whose links lack the encryption that their service requires.
    fn unencrypted_clients(&self, place: usize) -> Vec<Conn> {
        if self.services[place].config().client_encryption != Encryption::Required {
            return Vec::new();
        }
        let mut clients = self.clients.of_service(number_of(place));
        clients.retain(|conn| self.clients.library(*conn).is_some_and(|client| client.is_unencrypted()));
        clients
    }
}

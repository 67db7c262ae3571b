//! A change of settings that requires encryption also concerns the connections that are open.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Encryption, LinkError};
use spillway_transport::{Conn, Time, Transport};

use crate::draining::milliseconds;
use crate::notice::Cut;
use crate::relay::Relay;
use crate::slots::Holder;
use crate::upstream::Standing;

impl Relay {
    /// The settings about encryption have changed. If encryption is required now, links to the server without it take no
    /// more clients and end after `within`; library clients whose links are not encrypted are told to leave, and are cut after `within`.
    pub(crate) fn end_unencrypted(&mut self, now: Time, place: usize, within: Duration) {
        let deadline = now + within;
        if self.config.services[place].encryption == Encryption::Required {
            for index in self.services[place].upstreams.clone() {
                let upstream = &mut self.upstreams[index];
                let Some(linked) = upstream.linked().filter(|linked| linked.up) else { continue };
                if linked.opener.is_encrypted() || upstream.standing == Standing::Gone {
                    continue;
                }
                let clients: Vec<Conn> = linked.clients().collect();
                upstream.standing = Standing::Retired { deadline: Some(deadline) };
                clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
            }
        }
        if self.config.services[place].client_encryption == Encryption::Required {
            // Handshakes in progress may still agree on what was allowed when they began.
            self.encrypted_by = Some(self.encrypted_by.map_or(deadline, |earlier| earlier.min(deadline)));
            let clients = self.unencrypted_clients(place);
            clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
        }
    }

    /// Cuts the library clients that were told to leave and have not.
    pub(crate) fn unencrypted_timeout<T: Transport>(&mut self, out: &mut T) {
        if self.encrypted_by.is_none_or(|at| at > self.now) {
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
        if self.config.services[place].client_encryption != Encryption::Required {
            return Vec::new();
        }
        let mut clients = self.clients_of(place);
        clients.retain(|conn| match self.slots.get(*conn) {
            Some(Holder::Library(client)) => {
                client.acceptor.is_established() && !client.acceptor.is_encrypted()
            }
            _ => false,
        });
        clients
    }
}

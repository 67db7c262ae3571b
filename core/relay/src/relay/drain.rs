//! Drains of the relay or of one service, and the operator's override. Unlike a drain, the override `off` keeps links
//! open and serves the connected plain clients.

use core::time::Duration;

use spillway_policy::Override;
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds, service_number};
use crate::notice::Notice;

impl Relay {
    /// Drains the relay: accepts no more clients, sends library clients *drain*, and resets the remaining clients after
    /// `within`. A second call can only bring the deadline forward.
    pub fn drain<T: Transport>(&mut self, now: Time, within: Duration, out: &mut T) {
        self.is_draining = true;
        (0..self.services.len()).for_each(|service| self.begin_service_drain(now, service, within, out));
    }

    /// Drains one service, until the relay is [configured](Self::reconfigure) again. False: no service has this name.
    pub fn drain_service<T: Transport>(
        &mut self,
        now: Time,
        name: &str,
        within: Duration,
        out: &mut T,
    ) -> bool {
        let found = self.services.index_of_active(name);
        found.map(|service| self.begin_service_drain(now, service, within, out)).is_some()
    }

    pub(super) fn begin_service_drain<T: Transport>(
        &mut self,
        now: Time,
        service_index: usize,
        within: Duration,
        out: &mut T,
    ) {
        if self.services[service_index].begin_drain(now, within) {
            self.update_listening(service_index, out);
            self.send_drain_to_all(service_index, within);
        }
    }

    fn send_drain_to_all(&mut self, service_index: usize, within: Duration) {
        for conn in self.clients.of_service(service_number(service_index)) {
            self.send_drain(conn, milliseconds(within));
        }
    }

    /// Sends *drain* to a client, if it is a library client that has authenticated.
    pub(super) fn send_drain(&mut self, conn: Conn, deadline_ms: u32) {
        if let Some(client) = self.clients.library_mut(conn)
            && client.drain(deadline_ms)
        {
            self.mark_dirty(conn);
        }
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether all clients and links have ended after [`drain`](Self::drain). The transport can be closed when its
    /// queues are empty.
    pub fn is_drained(&self) -> bool {
        self.is_draining && self.services.iter().all(|service| service.is_drained())
    }

    /// Processes the services in which something has changed.
    pub(super) fn services_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let services = self.services.begin_turn(now);
        for service in services.iter().copied() {
            self.advance_drain(now, service, out);
            self.services.settle(service);
        }
        self.services.end_turn(services);
    }

    /// Ends a service's drain when the last client has left, or at its deadline.
    pub(super) fn advance_drain<T: Transport>(&mut self, now: Time, service_index: usize, out: &mut T) {
        if !self.services[service_index].drain_is_due(now) {
            return;
        }
        let clients = self.services[service_index].clients();
        if clients > 0 {
            let service = service_number(service_index);
            self.notices.push(Notice::DrainDeadline { service, clients });
            for conn in self.clients.of_service(service) {
                self.reset_client(conn, out);
            }
        }
        for link in self.links_of(service_index) {
            self.close_link(now, link, out);
            if self.services[service_index].is_removed() {
                self.forget_link(link);
            }
        }
        self.services[service_index].end_drain();
    }

    /// Sets the operator's override of a service, with an optional time limit. With `off`, library clients are sent
    /// *drain* with the deadline `within`. False: no service has this name.
    pub fn set_override<T: Transport>(
        &mut self,
        now: Time,
        name: &str,
        (relief, duration): (Override, Option<Duration>),
        within: Duration,
        out: &mut T,
    ) -> bool {
        let Some(service_index) = self.services.index_of_active(name) else { return false };
        self.services[service_index].set_override(now, relief, duration);
        self.update_listening(service_index, out);
        if relief == Override::Off {
            self.send_drain_to_all(service_index, within);
        }
        true
    }

    /// Ends an override whose time has passed, and opens the service's listeners.
    pub(super) fn end_override<T: Transport>(&mut self, now: Time, service_index: usize, out: &mut T) {
        if self.services[service_index].end_override(now) {
            self.update_listening(service_index, out);
        }
    }
}

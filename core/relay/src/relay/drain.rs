//! Going away: the whole relay, or one of its services. And the operator's override, by which a service helps no clients for
//! a time: unlike a drain it is not the end. Links stay open, and plain clients that are there are served.

use core::time::Duration;

use spillway_policy::Override;
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds, number_of};
use crate::notice::Notice;

impl Relay {
    /// Goes away: takes no more clients, tells library clients to move, and resets those that are left after
    /// `within`. A second call can only bring the deadline forward.
    pub fn drain<T: Transport>(&mut self, now: Time, within: Duration, out: &mut T) {
        self.is_going = true;
        (0..self.services.len()).for_each(|service| self.drain_one(now, service, within, out));
    }

    /// Does the same for one service. It comes back when the relay is [configured](Self::reconfigure) again. False
    /// where there is none of this name.
    pub fn drain_service<T: Transport>(
        &mut self,
        now: Time,
        name: &str,
        within: Duration,
        out: &mut T,
    ) -> bool {
        let found = self.services.present(name);
        found.map(|service| self.drain_one(now, service, within, out)).is_some()
    }

    pub(super) fn drain_one<T: Transport>(&mut self, now: Time, place: usize, within: Duration, out: &mut T) {
        if self.services[place].begin_drain(now, within) {
            self.update_listening(place, out);
            self.send_away(place, within);
        }
    }

    /// Tells a service's library clients to go elsewhere.
    fn send_away(&mut self, place: usize, within: Duration) {
        for conn in self.clients.of_service(number_of(place)) {
            self.say_drain(conn, milliseconds(within));
        }
    }

    /// Tells a client to go elsewhere, if it is a library client that has authenticated.
    pub(super) fn say_drain(&mut self, conn: Conn, deadline_ms: u32) {
        if let Some(client) = self.clients.library_mut(conn)
            && client.drain(deadline_ms)
        {
            self.mark_dirty(conn);
        }
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.is_going
    }

    /// Whether all clients and links are gone after [`drain`](Self::drain), so that the transport may be closed
    /// once it has sent what it has queued.
    pub fn is_drained(&self) -> bool {
        self.is_going && self.services.iter().all(|service| service.is_drained())
    }

    /// The turn of services in which something has changed.
    pub(super) fn services_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let services = self.services.begin_turn(now);
        for service in services.iter().copied() {
            self.advance_drain(now, service, out);
            self.services.settle(service);
        }
        self.services.end_turn(services);
    }

    /// A drain ends when the last client has left, or at its deadline.
    pub(super) fn advance_drain<T: Transport>(&mut self, now: Time, place: usize, out: &mut T) {
        if !self.services[place].drain_is_due(now) {
            return;
        }
        let clients = self.services[place].clients();
        if clients > 0 {
            let service = number_of(place);
            self.notices.push(Notice::DrainDeadline { service, clients });
            for conn in self.clients.of_service(service) {
                self.reset_client(conn, out);
            }
        }
        for link in self.links_of(place) {
            self.close_link(now, link, out);
            if self.services[place].is_removed() {
                self.forget_link(link);
            }
        }
        self.services[place].end_drain();
    }

    /// The operator's override for a service, for ever or for a time. *off*: library clients are to go elsewhere within
    /// `within`. False where there is no service of this name.
    pub fn say<T: Transport>(
        &mut self,
        now: Time,
        name: &str,
        (word, lasts): (Override, Option<Duration>),
        within: Duration,
        out: &mut T,
    ) -> bool {
        let Some(place) = self.services.present(name) else { return false };
        self.services[place].say(now, word, lasts);
        self.update_listening(place, out);
        if word == Override::Off {
            self.send_away(place, within);
        }
        true
    }

    /// A service listens again when its override has ended.
    pub(super) fn end_override<T: Transport>(&mut self, now: Time, place: usize, out: &mut T) {
        if self.services[place].override_ends(now) {
            self.update_listening(place, out);
        }
    }
}

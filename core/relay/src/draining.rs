//! Going away: the whole relay, or one of its services.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Control, Id};
use spillway_transport::{Conn, Time, Transport};

use crate::notice::Notice;
use crate::relay::Relay;
use crate::slots::{Holder, Sort};
use crate::status::Drained;

/// A service that takes no more clients and ends with those that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    deadline: Time,
    links_closed: bool,
    counts: Drained,
}

impl Drain {
    pub(crate) fn counts(&self) -> Drained {
        self.counts
    }

    /// When those that are left are reset.
    #[must_use]
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (!self.links_closed).then_some(self.deadline)
    }

    /// No client and no link is left.
    pub(crate) fn is_over(&self) -> bool {
        self.links_closed
    }
}

impl Relay {
    /// Goes away: takes no more clients, tells library clients to move, and resets those that are left after
    /// `within`. A second call can only bring the deadline forward.
    pub fn drain<T: Transport>(&mut self, now: Time, within: Duration, out: &mut T) {
        self.going = true;
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
        let found = self.config.services.iter().position(|service| service.name == name);
        let found = found.filter(|service| !self.services[*service].is_gone());
        found.map(|service| self.drain_one(now, service, within, out)).is_some()
    }

    pub(crate) fn drain_one<T: Transport>(
        &mut self,
        now: Time,
        service: usize,
        within: Duration,
        out: &mut T,
    ) {
        let deadline = now + within;
        if let Some(drain) = &mut self.services[service].drain {
            drain.deadline = drain.deadline.min(deadline);
            return;
        }
        let drain = Drain { deadline, links_closed: false, counts: Drained::default() };
        self.services[service].drain = Some(drain);
        self.update_listening(service, out);
        for conn in self.clients_of(service) {
            self.say_drain(conn, milliseconds(within));
        }
    }

    /// A service's clients of both sorts.
    pub(crate) fn clients_of(&self, service: usize) -> Vec<Conn> {
        let is_its = |conn: &Conn| {
            let holder = self.slots.get(*conn);
            holder.and_then(Holder::client_of).is_some_and(|(of, _)| usize::from(of) == service)
        };
        self.slots.clients().filter(is_its).collect()
    }

    /// Tells a library client to go elsewhere.
    pub(crate) fn say_drain(&mut self, conn: Conn, deadline_ms: u32) {
        if let Some(Holder::Library(client)) = self.slots.get_mut(conn)
            && client.acceptor.is_established()
        {
            client.acceptor.control(Id::LINK, Control::Drain { deadline_ms });
            self.mark_dirty(conn);
        }
    }

    /// Whether [`drain`](Self::drain) was called.
    pub fn is_draining(&self) -> bool {
        self.going
    }

    /// Whether all clients and links are gone after [`drain`](Self::drain), so that the transport may be closed
    /// once it has sent what it has queued.
    pub fn is_drained(&self) -> bool {
        self.going && self.services.iter().all(|service| service.drain.is_some_and(|drain| drain.is_over()))
    }

    /// Whether a service takes no more clients for good.
    pub(crate) fn is_leaving(&self, service: u16) -> bool {
        self.services[usize::from(service)].drain.is_some()
    }

    /// A client is gone; `failed` when that was not its own doing, nor the server's.
    pub(crate) fn count_drained(&mut self, service: u16, sort: Sort, failed: bool) {
        let Some(drain) = &mut self.services[usize::from(service)].drain else { return };
        let counter = match (failed, sort) {
            (true, _) => &mut drain.counts.failed,
            (false, Sort::Library) => &mut drain.counts.moved,
            (false, Sort::Raw) => &mut drain.counts.left,
        };
        *counter += 1;
    }

    /// The turn of services in which something has changed.
    pub(crate) fn services_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let services = self.services.begin_turn(now);
        for service in services.iter().copied() {
            self.advance_drain(now, service, out);
            self.services.settle(service);
        }
        self.services.end_turn(services);
    }

    /// A drain comes to an end by itself or by its deadline.
    pub(crate) fn advance_drain<T: Transport>(&mut self, now: Time, service: usize, out: &mut T) {
        let Some(drain) = self.services[service].drain.filter(|drain| !drain.links_closed) else { return };
        let clients = self.services[service].clients();
        if clients > 0 && now < drain.deadline {
            return;
        }
        if clients > 0 {
            self.notices.push(Notice::DrainDeadline { service: service as u16, clients }); // few
            for conn in self.clients_of(service) {
                self.reset_client(conn, out);
            }
        }
        for upstream in self.services[service].upstreams.clone() {
            self.close_link(now, upstream, out);
            if self.services[service].removed {
                self.forget_link(upstream);
            }
        }
        if let Some(drain) = &mut self.services[service].drain {
            drain.links_closed = true;
        }
    }
}

/// As *drain* says it.
pub(crate) fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

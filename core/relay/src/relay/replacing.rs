//! Replacement of links after a reconfiguration: the old links accept clients until new ones are up.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::Key;
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds};
use crate::links::{Lifecycle, Linked};
use crate::notice::Notice;

impl Relay {
    /// Whether a link was opened with a key that was removed from the service.
    pub(super) fn uses_removed_key(&self, service_index: usize) -> bool {
        let keys = &self.services[service_index].config().keys;
        let links = self.services[service_index].links().iter().map(|index| &self.links[*index]);
        let mut current =
            links.filter(|link| link.lifecycle() == Lifecycle::Current).filter_map(|link| link.linked());
        !keys.is_empty() && current.any(|linked| !keys.iter().map(Key::id).any(|key| key == linked.key()))
    }

    /// Opens new links. With `within`, clients must leave the old links in that time.
    pub(super) fn replace_links<T: Transport>(
        &mut self,
        now: Time,
        service_index: usize,
        within: Option<Duration>,
        out: &mut T,
    ) {
        for index in self.links_of(service_index) {
            if !self.links[index].mark_replaced(now, within) {
                self.end_link(now, index, out);
            }
        }
        self.open_links(service_index);
    }

    /// A new link is up: the links that it replaces accept no more clients.
    pub(super) fn retire_predecessors(&mut self, now: Time, service_index: usize) {
        for index in self.links_of(service_index) {
            let link = &mut self.links[index];
            let Lifecycle::Replaced { within } = link.lifecycle() else { continue };
            link.retire(within.map(|within| now + within));
            if let Some(within) = within {
                let clients = self.clients_on(index);
                clients.into_iter().for_each(|conn| self.send_drain(conn, milliseconds(within)));
            }
        }
    }

    /// Closes a retired link when its last client has left, or at its deadline.
    pub(super) fn end_retired<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Lifecycle::Retired { deadline } = self.links[index].lifecycle() else { return };
        let mut clients = 0;
        if deadline.is_some_and(|deadline| deadline <= now) {
            for conn in self.clients_on(index) {
                self.reset_client(conn, out);
                clients += 1;
            }
        } else if self.links.linked(index).is_some_and(|linked| linked.connections() > 0) {
            return;
        }
        let (service, link) = (self.links[index].service(), self.links[index].number());
        self.end_link(now, index, out);
        self.notices.push(Notice::LinkRetired { service, link, clients });
    }

    /// Closes a link for good and frees its index.
    fn end_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        self.close_link(now, index, out);
        self.forget_link(index);
    }

    pub(super) fn links_of(&self, service_index: usize) -> Vec<usize> {
        self.services[service_index].links().to_vec()
    }

    /// The clients of a link. Empty if the link is not open.
    pub(super) fn clients_on(&self, index: usize) -> Vec<Conn> {
        self.links.linked(index).map(Linked::clients).into_iter().flatten().collect()
    }
}

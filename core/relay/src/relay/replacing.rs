//! Links that are replaced because settings have changed: the old ones carry clients until new ones are up.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_auth::Key;
use spillway_transport::{Conn, Time, Transport};

use super::{Relay, milliseconds};
use crate::links::{Linked, Tenure};
use crate::notice::Notice;

impl Relay {
    /// Whether a link was opened with a key that is no longer among the service's.
    pub(super) fn uses_another_key(&self, place: usize) -> bool {
        let keys = &self.services[place].config().keys;
        let links = self.services[place].links().iter().map(|index| &self.links[*index]);
        let mut current =
            links.filter(|link| link.tenure() == Tenure::Current).filter_map(|link| link.linked());
        !keys.is_empty() && current.any(|linked| !keys.iter().map(Key::id).any(|key| key == linked.key()))
    }

    /// Opens new links. With `within`, clients must have left the old ones by then.
    pub(super) fn replace_links<T: Transport>(
        &mut self,
        now: Time,
        place: usize,
        within: Option<Duration>,
        out: &mut T,
    ) {
        for index in self.links_of(place) {
            if !self.links[index].replace(now, within) {
                self.end_link(now, index, out);
            }
        }
        self.open_links(place);
    }

    /// A new link is up: those that stood in for it take no more clients.
    pub(super) fn retire_predecessors(&mut self, now: Time, place: usize) {
        for index in self.links_of(place) {
            let link = &mut self.links[index];
            let Tenure::StandsIn { within } = link.tenure() else { continue };
            link.retire(within.map(|within| now + within));
            if let Some(within) = within {
                let clients = self.clients_on(index);
                clients.into_iter().for_each(|conn| self.say_drain(conn, milliseconds(within)));
            }
        }
    }

    /// Links that were replaced end with their clients, or at their deadline.
    pub(super) fn end_retired<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Tenure::Retired { deadline } = self.links[index].tenure() else { return };
        if deadline.is_some_and(|deadline| deadline <= now) {
            self.clients_on(index).into_iter().for_each(|conn| self.reset_client(conn, out));
        } else if self.links.linked(index).is_some_and(|linked| linked.connections() > 0) {
            return;
        }
        let (service, link) = (self.links[index].service(), self.links[index].number());
        self.end_link(now, index, out);
        self.notices.push(Notice::LinkRetired { service, link });
    }

    /// Closes a link for good; its place is free.
    fn end_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        self.close_link(now, index, out);
        self.forget_link(index);
    }

    /// The indexes of a service's links as they are now.
    pub(super) fn links_of(&self, place: usize) -> Vec<usize> {
        self.services[place].links().to_vec()
    }

    /// The clients of an open link.
    pub(super) fn clients_on(&self, index: usize) -> Vec<Conn> {
        self.links.linked(index).map(Linked::clients).into_iter().flatten().collect()
    }
}

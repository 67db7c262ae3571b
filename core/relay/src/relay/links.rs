//! Links to servers: how they are opened and kept, their turns, and what follows when they are lost.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Limits, OpenerConfig, Role};
use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::Holder;
use crate::links::{BATCH_BYTES, Due, Ended, LINK_GRANT_BYTES, Linked, Tenure};
use crate::notice::Notice;
use crate::reasons::LinkDown;

impl Relay {
    /// Listeners are open while a link is there to carry their clients; otherwise the host refuses them.
    pub(super) fn update_listening<T: Transport>(&mut self, place: usize, out: &mut T) {
        let service = &mut self.services[place];
        let takes = service.links().iter().any(|index| self.links[*index].takes_clients());
        let open = service.listen(self.turn.now, takes);
        self.listeners.set_open(service.config(), open, |listener, open| out.set_listening(listener, open));
    }

    pub(super) fn link_timeout<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        match self.links[index].handle_timeout(now) {
            Due::Nothing => {}
            Due::Connect => self.connect_link(now, index, out),
            Due::Failed(conn, why) => {
                out.abort(conn);
                self.link_down(now, index, why, out);
            }
        }
    }

    fn connect_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let config = self.service(self.links[index].service()).config();
        let (server, timeout) = (config.server, config.connect_timeout);
        match out.connect(now, server) {
            Ok(conn) => {
                self.clients.put(conn, Holder::Link(index));
                self.links[index].connecting(conn, now + timeout);
            }
            Err(_) => self.link_down(now, index, LinkDown::HostFull, out),
        }
    }

    pub(super) fn link_opened<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(Holder::Link(index)) = self.clients.get(conn) else {
            debug_assert!(false, "only links are opened by us, and each has its place from then on");
            return out.abort(conn);
        };
        let index = *index;
        let fresh = self.fresh();
        // All links' batches together may have a quarter of the memory.
        let share = self.memory.max() / 4 / self.links.len();
        let link = &mut self.links[index];
        let service = self.services[usize::from(link.service())].config();
        let pending_bytes_max = service.limits.pending_bytes_max.min(share.max(BATCH_BYTES));
        let config = OpenerConfig {
            role: Role::Helper,
            key: link.key(service),
            limits: Limits { pending_bytes_max, ..service.limits },
            policy: service.policy,
            encryption: service.encryption,
        };
        link.opened(now, conn, &config, fresh);
        out.grant(conn, LINK_GRANT_BYTES);
    }

    /// The turn of links on which something has changed, or something is due.
    pub(super) fn links_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let links = self.links.begin_turn(now);
        for index in links.iter().copied() {
            self.link_turn(now, index, out);
            self.end_retired(now, index, out);
            self.links.settle(index);
        }
        self.links.end_turn(links);
    }

    /// Sends what is due, and lets those go on who waited for it.
    pub(super) fn link_turn<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        // A link that is not open has no turn.
        let Some(linked) = self.links.linked_mut(index) else { return };
        linked.transmit(now, out);
        while let Some(id) = linked.poll_room() {
            if let Some(conn) = linked.client(id)
                && let Some(client) = self.clients.raw_mut(conn)
            {
                client.link_has_room(now, conn, linked, &mut self.memory, out);
            }
        }
        if linked.may_feed() {
            let starved = linked.take_starved();
            self.feed_starved(now, index, starved, out);
        }
        if let Some(linked) = self.links.linked_mut(index) {
            linked.count(&mut self.memory);
        }
    }

    /// A link has drained: those that waited for it go on in turn, until it is full again.
    fn feed_starved<T: Transport>(&mut self, now: Time, index: usize, starved: Vec<Conn>, out: &mut T) {
        let mut starved = starved.into_iter();
        for conn in starved.by_ref() {
            match self.clients.get_mut(conn) {
                Some(Holder::Raw(client)) => {
                    if let Some(linked) = self.links.carrier(client.link()) {
                        client.link_drained(now, conn, linked, &mut self.memory, out);
                    }
                }
                Some(Holder::Library(_)) => self.library_goes_on(now, conn, out),
                _ => {}
            }
            if self.links.linked(index).is_none_or(Linked::is_full) {
                break;
            }
        }
        if let Some(linked) = self.links.linked_mut(index) {
            linked.put_back_starved(starved);
        }
    }

    /// A link is lost, or did not come up. Its own connection is gone already.
    pub(super) fn link_down<T: Transport>(&mut self, now: Time, index: usize, why: LinkDown, out: &mut T) {
        let link = &mut self.links[index];
        let (service, number) = (link.service(), link.number());
        let (mut clients, mut was_up, mut starved) = (0, false, Vec::new());
        match link.close() {
            Ended::Nothing => {}
            Ended::Connecting(conn) => drop(self.clients.take(conn)),
            Ended::Linked(mut linked) => {
                starved = linked.take_starved();
                linked.uncount(&mut self.memory);
                was_up = linked.is_up();
                drop(self.clients.take(linked.conn()));
                for conn in linked.clients() {
                    clients += u32::from(self.lost_with_link(conn, out));
                }
            }
        }
        let counters = self.service_mut(service).counters_mut();
        counters.links_lost += u64::from(was_up);
        counters.lost_with_link += u64::from(clients);
        counters.link_failures.count(why);
        let keys = &self.services[usize::from(service)].config().keys;
        if let Some(key) = self.links[index].try_older_key(now, keys, why) {
            self.notices.push(Notice::KeyRefused { service, link: number, key });
        } else {
            let retry_in = self.retry_link(now, index);
            self.notices.push(Notice::LinkDown { service, link: number, why, clients, retry_in });
        }
        self.update_listening(usize::from(service), out);
        // Library clients whose connection there had ended before: their links go on.
        starved.into_iter().for_each(|conn| self.library_goes_on(now, conn, out));
    }

    /// The link that carried a client is lost. True: the client is reset with it.
    #[must_use]
    fn lost_with_link<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        match self.clients.get_mut(conn) {
            // It takes what is left for it all the same.
            Some(Holder::Leaving(leaving)) => leaving.owes_nothing(),
            // The server's *close* came before the end of its link: the client hears of it.
            Some(Holder::Library(client)) if client.is_closed_by_server() => self.leave_passage(conn),
            _ => {
                self.drop_client(conn, true);
                out.abort(conn);
                return true;
            }
        }
        false
    }

    /// When a lost link is opened again; never, if it was replaced.
    fn retry_link(&mut self, now: Time, index: usize) -> Option<Duration> {
        if self.links[index].tenure() != Tenure::Current {
            self.forget_link(index);
            return None;
        }
        let mut random = [0; 2];
        (self.random)(&mut random);
        let random = u16::from_le_bytes(random);
        Some(self.links[index].wait(now, &self.settings.timeouts, random))
    }

    /// The relay goes away, or does without this link: what is gathered leaves, then the link ends.
    pub(super) fn close_link<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        if let Some(linked) = self.links.linked_mut(index) {
            linked.transmit_all(now, out);
        }
        match self.links[index].close() {
            Ended::Nothing => {}
            Ended::Connecting(conn) => {
                drop(self.clients.take(conn));
                out.abort(conn);
            }
            Ended::Linked(linked) => {
                linked.uncount(&mut self.memory);
                drop(self.clients.take(linked.conn()));
                out.finish(linked.conn());
            }
        }
    }

    /// The place of a link that is closed is free: no client is on it.
    pub(super) fn forget_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        let (service, done) = (link.service(), link.forget());
        self.service_mut(service).forget_link(index, &done);
    }
}

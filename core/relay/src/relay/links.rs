//! Links to servers: opening, turns, loss and closing.

use alloc::vec::Vec;
use core::time::Duration;

use spillway_batch::{Limits, OpenerConfig, Role};
use spillway_transport::{Conn, Time, Transport};

use super::Relay;
use crate::clients::ConnRole;
use crate::links::{BATCH_BYTES, Due, Ended, LINK_GRANT_BYTES, Lifecycle, Linked};
use crate::notice::Notice;
use crate::reasons::LinkDown;

impl Relay {
    /// Opens or closes a service's listeners. They are open only while a link accepts clients: the host's TCP rejects
    /// clients of a closed listener.
    pub(super) fn update_listening<T: Transport>(&mut self, service_index: usize, out: &mut T) {
        let service = &mut self.services[service_index];
        let has_link = service.links().iter().any(|index| self.links[*index].accepts_clients());
        let open = service.update_listening(self.turn.now, has_link);
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
                self.clients.put(conn, ConnRole::Link(index));
                self.links[index].begin_connecting(conn, now + timeout);
            }
            Err(_) => self.link_down(now, index, LinkDown::HostFull, out),
        }
    }

    pub(super) fn link_opened<T: Transport>(&mut self, now: Time, conn: Conn, out: &mut T) {
        let Some(ConnRole::Link(index)) = self.clients.get(conn) else {
            debug_assert!(false, "the relay connects only links, and adds each to the table at once");
            return out.abort(conn);
        };
        let index = *index;
        let randomness = self.link_randomness();
        // The batches of all links together may use a quarter of the memory.
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
        link.begin_authentication(now, conn, &config, randomness);
        out.grant(conn, LINK_GRANT_BYTES);
    }

    /// Processes the links on which something has changed or is due.
    pub(super) fn links_turn<T: Transport>(&mut self, now: Time, out: &mut T) {
        let links = self.links.begin_turn(now);
        for index in links.iter().copied() {
            self.link_turn(now, index, out);
            self.end_retired(now, index, out);
            self.links.settle(index);
        }
        self.links.end_turn(links);
    }

    /// Sends the link's batch if it is due, and resumes the clients that waited for room.
    pub(super) fn link_turn<T: Transport>(&mut self, now: Time, index: usize, out: &mut T) {
        let Some(linked) = self.links.linked_mut(index) else { return };
        linked.transmit(now, out);
        while let Some(id) = linked.poll_room() {
            if let Some(conn) = linked.client(id)
                && let Some(client) = self.clients.plain_mut(conn)
            {
                client.handle_link_room(now, conn, linked, &mut self.memory, out);
            }
        }
        if linked.can_resume_waiters() {
            let waiters = linked.take_waiters();
            self.resume_waiters(now, index, waiters, out);
        }
        if let Some(linked) = self.links.linked_mut(index) {
            linked.count(&mut self.memory);
        }
    }

    /// Resumes the clients that waited while the link was congested, in order, until the link's batch is full
    /// again.
    fn resume_waiters<T: Transport>(&mut self, now: Time, index: usize, waiters: Vec<Conn>, out: &mut T) {
        let mut waiters = waiters.into_iter();
        for conn in waiters.by_ref() {
            match self.clients.get_mut(conn) {
                Some(ConnRole::Plain(client)) => {
                    if let Some(linked) = self.links.open_link(client.link()) {
                        client.handle_link_uncongested(now, conn, linked, &mut self.memory, out);
                    }
                }
                Some(ConnRole::Library(_)) => self.resume_library(now, conn, out),
                _ => {}
            }
            if self.links.linked(index).is_none_or(Linked::is_full) {
                break;
            }
        }
        if let Some(linked) = self.links.linked_mut(index) {
            linked.put_back_waiters(waiters);
        }
    }

    /// A link was lost or could not be opened. The transport has ended its connection already.
    pub(super) fn link_down<T: Transport>(&mut self, now: Time, index: usize, why: LinkDown, out: &mut T) {
        let link = &mut self.links[index];
        let (service, number) = (link.service(), link.number());
        let (mut clients, mut was_up, mut waiters) = (0, false, Vec::new());
        match link.close() {
            Ended::Nothing => {}
            Ended::Connecting(conn) => drop(self.clients.take(conn)),
            Ended::Linked(mut linked) => {
                waiters = linked.take_waiters();
                linked.release_memory(&mut self.memory);
                was_up = linked.is_up();
                drop(self.clients.take(linked.conn()));
                for conn in linked.clients() {
                    clients += u32::from(self.end_client_of_lost_link(conn, out));
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
        // The only waiters that still exist are library clients without a connection on this link: their own
        // links stay open.
        waiters.into_iter().for_each(|conn| self.resume_library(now, conn, out));
    }

    /// The link that carried a client is lost. True: the client was reset.
    #[must_use]
    fn end_client_of_lost_link<T: Transport>(&mut self, conn: Conn, out: &mut T) -> bool {
        match self.clients.get_mut(conn) {
            // The client still gets the remaining replies.
            Some(ConnRole::Lingering(lingering)) => lingering.cancel_final_ack(),
            // The server's *close* arrived before the end of its link, and is forwarded to the client.
            Some(ConnRole::Library(client)) if client.is_closed_by_server() => self.remove_relayed(conn),
            _ => {
                self.drop_client(conn, true);
                out.abort(conn);
                return true;
            }
        }
        false
    }

    /// Schedules a lost link's next attempt and returns its delay. `None`: the link was replaced and is removed.
    fn retry_link(&mut self, now: Time, index: usize) -> Option<Duration> {
        if self.links[index].lifecycle() != Lifecycle::Current {
            self.forget_link(index);
            return None;
        }
        let mut random = [0; 2];
        (self.random)(&mut random);
        let random = u16::from_le_bytes(random);
        Some(self.links[index].schedule_retry(now, &self.settings.timeouts, random))
    }

    /// Closes a link that is not needed any more, after sending the pending batch.
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
                linked.release_memory(&mut self.memory);
                drop(self.clients.take(linked.conn()));
                out.finish(linked.conn());
            }
        }
    }

    /// Frees the index of a closed link without clients.
    pub(super) fn forget_link(&mut self, index: usize) {
        let link = &mut self.links[index];
        let (service, totals) = (link.service(), link.forget());
        self.service_mut(service).forget_link(index, &totals);
    }
}

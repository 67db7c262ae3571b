//! Accepts local clients: admission, PROXY headers of load balancers, and opening of sessions.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use spillway_client::Session;
use spillway_requests::Tracker;
use spillway_wire::proxy::{PROXY_BYTES_MAX, parse_proxy};
use tracing::{debug, warn};

use super::{LISTENERS, Worker};
use crate::counters::{Ending, Refusal};
use crate::memory::Supply;
use crate::pair::Pair;
use crate::settings::is_in;
use crate::socket;
use crate::table::{AwaitingHeader, Entry, Opening, Side};

/// Minimum interval between log lines about rejected load balancers.
const WARN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of connections accepted from a listener before other events are handled.
const ACCEPTED_PER_TURN: usize = 64;
/// How long accepting pauses when the host has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Worker {
    /// Registers the listeners with the epoll set; `EXCLUSIVE` wakes one thread for a connection, not all.
    pub(super) fn watch_listeners(&mut self) -> io::Result<()> {
        for (token, listener) in (LISTENERS..).zip(&self.listeners) {
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            match epoll::add(&self.epoll, &**listener, EventData::new_u64(token), flags) {
                // `EXIST`: an earlier call has registered this listener, and has failed at a later listener.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn stop_watching_listeners(&mut self) {
        for listener in &self.listeners {
            // Fails only for a listener that is not registered.
            let _ = epoll::delete(&self.epoll, &**listener);
        }
    }

    pub(super) fn accept(&mut self, now: Instant, listener: u64) {
        self.accept_at_most(now, listener, ACCEPTED_PER_TURN);
    }

    pub(super) fn accept_at_most(&mut self, now: Instant, listener: u64, max: usize) {
        let Some(listener) = usize::try_from(listener).ok().and_then(|at| self.listeners.get(at)) else {
            return;
        };
        let listener = Arc::clone(listener);
        for _ in 0..max {
            match socket::accept(&listener) {
                Ok((socket, peer)) => self.admit_client(now, socket, peer),
                Err(error) if socket::would_block(&error) => return,
                // The client closed its connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.resources.thread.counters.refused.add(Refusal::Descriptors);
                    warn!(%error, "cannot accept connections; trying again in 100 ms");
                    self.stop_watching_listeners();
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit_client(&mut self, now: Instant, socket: OwnedFd, peer: Option<SocketAddr>) {
        if let Err(why) = self.check_admission(peer) {
            return self.reject(&socket, peer, why);
        }
        let deadline = now + self.settings.connect_timeout;
        let needs_header = peer.is_some_and(|peer| is_in(&self.settings.proxy_protocol_from, peer.ip()));
        if !needs_header {
            debug!(client = %peer.map_or_else(String::new, |peer| peer.to_string()), "client accepted");
            return self.begin_session(now, socket, peer, &[], deadline);
        }
        let index = self.table.insert(Entry::Free);
        let data = EventData::new_u64(self.table.token(index, Side::Local));
        if epoll::add(&self.epoll, &socket, data, EventFlags::IN).is_err() {
            self.table.remove(index);
            return self.reject(&socket, peer, Refusal::Descriptors);
        }
        *self.table.get(index) =
            Entry::AwaitingHeader(AwaitingHeader { socket, peer, bytes: Vec::new(), deadline });
        self.set_timer(index, Some(deadline));
        self.add_connections(1);
    }

    /// Adds to the connections of all threads together, which `max_connections` bounds.
    fn add_connections(&self, number: i64) {
        self.resources.thread.add_connections(number);
    }

    fn check_admission(&self, peer: Option<SocketAddr>) -> Result<(), Refusal> {
        let settings = &self.settings;
        let is_allowed = |peer: SocketAddr| {
            is_in(&settings.allow_clients, peer.ip()) || is_in(&settings.proxy_protocol_from, peer.ip())
        };
        if !peer.is_none_or(is_allowed) {
            return Err(Refusal::Address);
        }
        if self.resources.thread.connections_of_all_threads() >= u64::from(settings.max_connections) {
            return Err(Refusal::Full);
        }
        if self.memory.supply() == Supply::UsedUp {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    fn reject(&mut self, socket: &OwnedFd, peer: Option<SocketAddr>, why: Refusal) {
        self.resources.thread.counters.refused.add(why);
        let peer = peer.map_or_else(|| "a local client".into(), |peer| peer.to_string());
        debug!(%peer, ?why, "client rejected");
        socket::reset_on_close(socket);
    }

    /// Reads the PROXY header, and opens the session when the header is complete.
    pub(super) fn receive_header(&mut self, now: Instant, index: u32) {
        let Entry::AwaitingHeader(awaiting) = self.table.get(index) else { return };
        let mut buffer = [0; PROXY_BYTES_MAX];
        let room = PROXY_BYTES_MAX - awaiting.bytes.len();
        match socket::receive(&awaiting.socket, &mut buffer[..room]) {
            Ok(count @ 1..) => awaiting.bytes.extend_from_slice(&buffer[..count]),
            Err(error) if socket::would_block(&error) => return,
            Ok(0) => return self.reject_awaiting(index, Some("closed without a PROXY header".into())),
            Err(error) => return self.reject_awaiting(index, Some(error.to_string())),
        }
        match parse_proxy(&awaiting.bytes) {
            Ok(None) => {} // incomplete; cannot happen with PROXY_BYTES_MAX bytes
            Ok(Some(header)) => {
                let Entry::AwaitingHeader(awaiting) = self.remove_awaiting(index) else { return };
                let (client, first) = (header.client.or(awaiting.peer), &awaiting.bytes[header.bytes..]);
                if client.is_some_and(|client| !is_in(&self.settings.allow_clients, client.ip())) {
                    return self.reject(&awaiting.socket, client, Refusal::Address);
                }
                self.resources.thread.counters.with_proxy_header.add(1);
                if let (Some(client), Some(via)) = (client, awaiting.peer) {
                    debug!(%client, %via, "client accepted");
                }
                self.begin_session(now, awaiting.socket, client, first, awaiting.deadline);
            }
            Err(error) => self.reject_awaiting(index, Some(error.to_string())),
        }
    }

    fn remove_awaiting(&mut self, index: u32) -> Entry {
        self.add_connections(-1);
        let entry = self.table.remove(index);
        if let Entry::AwaitingHeader(awaiting) = &entry {
            // `begin_session` registers the socket again, with another token.
            let _ = epoll::delete(&self.epoll, &awaiting.socket);
        }
        entry
    }

    /// Rejects a load balancer's connection. `why`: the error of its header or socket; `None` if the header did not
    /// arrive in time.
    pub(super) fn reject_awaiting(&mut self, index: u32, why: Option<String>) {
        if let Entry::AwaitingHeader(awaiting) = self.remove_awaiting(index) {
            let why = why.unwrap_or_else(|| "no PROXY header in time".into());
            let peer = awaiting.peer.map_or_else(String::new, |peer| peer.to_string());
            let now = Instant::now();
            if self.warn_at <= now {
                self.warn_at = now + WARN_INTERVAL;
                warn!(%peer, %why, "load balancer rejected");
            }
            self.reject(&awaiting.socket, awaiting.peer, Refusal::Proxy);
        }
    }

    /// Asks the relief policy where to open the session. The policy may first wait for helpers' load reports; its order
    /// arrives in [`Worker::apply_relief`]. The session of a connection outside the group opens at the server at once.
    fn begin_session(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        client: Option<SocketAddr>,
        first: &[u8],
        deadline: Instant,
    ) {
        let member = self.resources.relief.join(now);
        let opening = Opening { socket, client, first: first.to_vec(), deadline, member };
        let index = self.table.insert(Entry::Opening(opening));
        self.resources.thread.counters.accepted.add(1);
        self.add_connections(1);
        self.set_timer(index, Some(deadline));
        match member {
            Some(member) => drop(self.members.insert(member, index)),
            None => {
                let session = self.resources.relief.open_at_server(now);
                self.handle_opened(now, index, session);
            }
        }
    }

    /// Begins to forward between a local connection and its session, or closes the connection if the session failed.
    pub(super) fn handle_opened(&mut self, now: Instant, index: u32, session: io::Result<Session>) {
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, "cannot open a session: the client is reset");
                return self.abandon_opening(now, index);
            }
        };
        let local = EventData::new_u64(self.table.token(index, Side::Local));
        let carrier = EventData::new_u64(self.table.token(index, Side::Session));
        let Entry::Opening(opening) = std::mem::replace(self.table.get(index), Entry::Free) else { return };
        let watched = epoll::add(&self.epoll, &session, carrier, EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &opening.socket, local, EventFlags::IN));
        let Opening { socket, client, first, deadline, member } = opening;
        let tracker = Tracker::new(self.settings.protocol);
        let context = self.resources.context(now);
        let mut pair = Pair::new((socket, client), (session, member), tracker, (&first, deadline), &context);
        pair.watched = Some(EventFlags::IN);
        *self.table.get(index) = Entry::Open(Box::new(pair));
        if watched.is_err() {
            return self.close(now, index, Ending::NoCarrier, false);
        }
        // On loopback the first request has often arrived by now.
        self.forward(now, index, true);
    }

    /// Closes a local connection whose session failed to open, or took too long.
    pub(super) fn abandon_opening(&mut self, now: Instant, index: u32) {
        if let Entry::Opening(opening) = self.table.remove(index) {
            self.add_connections(-1);
            if let Some(member) = opening.member {
                self.members.remove(&member);
                self.resources.relief.leave(now, member);
            }
            self.resources.thread.counters.ended.add(Ending::NoCarrier);
            self.note_no_carrier(now);
            socket::reset_on_close(&opening.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use spillway_client::Key;

    use super::*;
    use crate::mailbox::Mailbox;
    use crate::settings::Settings;
    use crate::thread_state::ThreadState;
    use crate::worker::WorkerSetup;

    #[test]
    fn listeners_after_a_registered_one_are_registered() {
        let listener = || Arc::new(socket::listen(([127, 0, 0, 1], 0).into()).unwrap());
        let mut worker = Worker::new(WorkerSetup {
            settings: Arc::new(Settings::new(([127, 0, 0, 1], 1).into(), Key::loopback_only())),
            listeners: vec![listener()],
            thread: Arc::new(ThreadState::new(Instant::now(), Arc::default())),
            mailbox: Arc::new(Mailbox::new().unwrap()),
            all_mailboxes: Vec::new(),
            watcher: None,
        })
        .unwrap();
        // The first listener is registered already, and this one is not, as after a failure.
        worker.listeners.push(listener());
        worker.watch_listeners().unwrap();
        let again = epoll::add(&worker.epoll, &*worker.listeners[1], EventData::new_u64(0), EventFlags::IN);
        assert_eq!(again, Err(Errno::EXIST), "the second listener should be registered");
    }
}

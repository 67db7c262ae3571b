//! Local clients come in: who may, and what a load balancer says of them.

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
use crate::table::{Arriving, Opening, Place, Which};

/// Refused load balancers in the log: at most one in this time.
const WARN_INTERVAL: Duration = Duration::from_secs(1);
/// Connections accepted before others have their turn.
const ACCEPTED_PER_TURN: usize = 64;
/// Without descriptors nobody is accepted for so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl Worker {
    /// Has the epoll set tell of new connections: one thread of each.
    pub(super) fn watch_listeners(&mut self) -> io::Result<()> {
        for (token, listener) in (LISTENERS..).zip(&self.listeners) {
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            match epoll::add(&self.epoll, &**listener, EventData::new_u64(token), flags) {
                // An attempt before got no further than to this one.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn stop_watching_listeners(&mut self) {
        for listener in &self.listeners {
            // It was there, or it was not: the same.
            let _ = epoll::delete(&self.epoll, &**listener);
        }
    }

    /// Takes connections of a listener.
    pub(super) fn accept(&mut self, now: Instant, listener: u64) {
        let Some(listener) = usize::try_from(listener).ok().and_then(|at| self.listeners.get(at)) else {
            return;
        };
        let listener = Arc::clone(listener);
        for _ in 0..ACCEPTED_PER_TURN {
            match socket::accept(&listener) {
                Ok((socket, peer)) => self.take(now, socket, peer),
                Err(error) if socket::is_later(&error) => return,
                // The client was faster than we.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.resources.part.counters.refused.add(Refusal::Descriptors);
                    warn!(%error, "cannot accept; trying again soon");
                    self.stop_watching_listeners();
                    self.accept_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn take(&mut self, now: Instant, socket: OwnedFd, peer: Option<SocketAddr>) {
        if let Err(why) = self.may_come(peer) {
            return self.turn_away(&socket, peer, why);
        }
        let deadline = now + self.settings.connect_timeout;
        let announces = peer.is_some_and(|peer| is_in(&self.settings.proxy_protocol_from, peer.ip()));
        if !announces {
            debug!(client = %peer.map_or_else(String::new, |peer| peer.to_string()), "taken");
            return self.begin(now, socket, peer, &[], deadline);
        }
        let index = self.table.insert(Place::Free);
        let data = EventData::new_u64(self.table.token(index, Which::Local));
        if epoll::add(&self.epoll, &socket, data, EventFlags::IN).is_err() {
            self.table.remove(index);
            return self.turn_away(&socket, peer, Refusal::Descriptors);
        }
        *self.table.get(index) = Place::Arriving(Arriving { socket, peer, bytes: Vec::new(), deadline });
        self.set_timer(index, Some(deadline));
        self.part_taken(1);
    }

    /// Counts those that are there in all threads: the bound is for all of them.
    fn part_taken(&self, more: i64) {
        self.resources.part.count_connection(more);
    }

    fn may_come(&self, peer: Option<SocketAddr>) -> Result<(), Refusal> {
        let settings = &self.settings;
        let is_allowed = |peer: SocketAddr| {
            is_in(&settings.allow_clients, peer.ip()) || is_in(&settings.proxy_protocol_from, peer.ip())
        };
        if !peer.is_none_or(is_allowed) {
            return Err(Refusal::Address);
        }
        if self.resources.part.connections() >= u64::from(settings.max_connections) {
            return Err(Refusal::Full);
        }
        if self.memory.supply() == Supply::UsedUp {
            return Err(Refusal::Memory);
        }
        Ok(())
    }

    fn turn_away(&mut self, socket: &OwnedFd, peer: Option<SocketAddr>, why: Refusal) {
        self.resources.part.counters.refused.add(why);
        let peer = peer.map_or_else(|| "a local client".into(), |peer| peer.to_string());
        debug!(%peer, ?why, "refused");
        socket::reset_on_close(socket);
    }

    /// A PROXY header comes.
    pub(super) fn arrive(&mut self, now: Instant, index: u32) {
        let Place::Arriving(arriving) = self.table.get(index) else { return };
        let mut space = [0; PROXY_BYTES_MAX];
        let room = PROXY_BYTES_MAX - arriving.bytes.len();
        match socket::receive(&arriving.socket, &mut space[..room]) {
            Ok(count @ 1..) => arriving.bytes.extend_from_slice(&space[..count]),
            Err(error) if socket::is_later(&error) => return,
            Ok(0) | Err(_) => return self.turn_away_arriving(index, None),
        }
        match parse_proxy(&arriving.bytes) {
            Ok(None) => {} // never so when it is as long as a header may be
            Ok(Some(header)) => {
                let Place::Arriving(arriving) = self.leave_place(index) else { return };
                let (client, first) = (header.client.or(arriving.peer), &arriving.bytes[header.bytes..]);
                if client.is_some_and(|client| !is_in(&self.settings.allow_clients, client.ip())) {
                    return self.turn_away(&arriving.socket, client, Refusal::Address);
                }
                self.resources.part.counters.announced.add(1);
                if let (Some(client), Some(via)) = (client, arriving.peer) {
                    debug!(%client, %via, "taken");
                }
                self.begin(now, arriving.socket, client, first, arriving.deadline);
            }
            Err(error) => self.turn_away_arriving(index, Some(error.to_string())),
        }
    }

    fn leave_place(&mut self, index: u32) -> Place {
        self.part_taken(-1);
        let place = self.table.remove(index);
        if let Place::Arriving(arriving) = &place {
            // It is watched anew, under another token.
            let _ = epoll::delete(&self.epoll, &arriving.socket);
        }
        place
    }

    /// No PROXY header came, or a wrong one.
    pub(super) fn turn_away_arriving(&mut self, index: u32, why: Option<String>) {
        if let Place::Arriving(arriving) = self.leave_place(index) {
            let why = why.unwrap_or_else(|| "it sent no PROXY header in time".into());
            let peer = arriving.peer.map_or_else(String::new, |peer| peer.to_string());
            // They are counted; one a second is told.
            let now = Instant::now();
            if self.warn_at <= now {
                self.warn_at = now + WARN_INTERVAL;
                warn!(%peer, %why, "a load balancer was refused");
            }
            self.turn_away(&arriving.socket, arriving.peer, Refusal::Proxy);
        }
    }

    /// Has relief say where a local connection's session is to be opened: at once, or when helpers have answered.
    fn begin(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        client: Option<SocketAddr>,
        first: &[u8],
        deadline: Instant,
    ) {
        let member = self.resources.relief.join(now);
        let opening = Opening { socket, client, first: first.to_vec(), deadline, member };
        let index = self.table.insert(Place::Opening(opening));
        self.resources.part.counters.taken.add(1);
        self.part_taken(1);
        self.set_timer(index, Some(deadline));
        match member {
            Some(member) => drop(self.members.insert(member, index)),
            None => {
                let session = self.resources.relief.open_at_server(now);
                self.opened(now, index, session);
            }
        }
    }

    /// A session was opened for a local connection, or could not be.
    pub(super) fn opened(&mut self, now: Instant, index: u32, session: io::Result<Session>) {
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, "no session can be opened");
                return self.give_up(now, index);
            }
        };
        let local = EventData::new_u64(self.table.token(index, Which::Local));
        let carrier = EventData::new_u64(self.table.token(index, Which::Session));
        let Place::Opening(opening) = std::mem::replace(self.table.get(index), Place::Free) else { return };
        let watched = epoll::add(&self.epoll, &session, carrier, EventFlags::IN)
            .and_then(|()| epoll::add(&self.epoll, &opening.socket, local, EventFlags::IN));
        let Opening { socket, client, first, deadline, member } = opening;
        let tracker = Tracker::new(self.settings.protocol);
        let around = self.resources.around(now);
        let mut pair = Pair::new((socket, client), (session, member), tracker, (&first, deadline), &around);
        pair.watched = Some(EventFlags::IN);
        *self.table.get(index) = Place::Taken(Box::new(pair));
        if watched.is_err() {
            return self.end(now, index, Ending::NoCarrier, false);
        }
        // On loopback the request is often there by now.
        self.pump(now, index, true);
    }

    /// Nobody said in time where a session is to be opened, or it cannot be.
    pub(super) fn give_up(&mut self, now: Instant, index: u32) {
        if let Place::Opening(opening) = self.table.remove(index) {
            self.part_taken(-1);
            if let Some(member) = opening.member {
                self.members.remove(&member);
                self.resources.relief.leave(now, member);
            }
            self.resources.part.counters.ended.add(Ending::NoCarrier);
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
    use crate::part::Part;
    use crate::settings::Settings;
    use crate::worker::Start;

    #[test]
    fn listeners_that_are_watched_do_not_keep_others_from_it() {
        let listener = || Arc::new(socket::listen(([127, 0, 0, 1], 0).into()).unwrap());
        let mut worker = Worker::new(Start {
            settings: Arc::new(Settings::new(([127, 0, 0, 1], 1).into(), Key::loopback_only())),
            listeners: vec![listener()],
            part: Arc::new(Part::new(Instant::now(), Arc::default())),
            mailbox: Arc::new(Mailbox::new().unwrap()),
            everybody: Vec::new(),
            watcher: None,
        })
        .unwrap();
        // As when the host had no memory for this one.
        worker.listeners.push(listener());
        worker.watch_listeners().unwrap();
        let again = epoll::add(&worker.epoll, &*worker.listeners[1], EventData::new_u64(0), EventFlags::IN);
        assert_eq!(again, Err(Errno::EXIST), "it is watched");
    }
}

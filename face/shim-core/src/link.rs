//! One link: receiving, sending, and its end. All with the link's lock held.

mod carried;
mod ending;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;

use libc::c_int;
use spillway_batch::{
    CloseReason, Id, IdTable, Info, LinkError, RefuseReason, Role, ServerEvent, ServerLink,
};
use spillway_session::OpeningMessage;
use spillway_transport::{Time, Unsent};

use crate::carrier_name::Name;
use crate::connections::{self, Connection};
use crate::handshakes::{self, Newcomer};
use crate::listeners::{self, Offer};
use crate::log::{self, Reason};
use crate::ready::{self, Buffers, Set};
use crate::source::{notify, notify_all};
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{link_places, release_timer, threads};

/// Replies of this many bytes are sent at once, even if other clients have yet to be answered.
const FLUSH_BYTES: usize = 64 * 1024;

/// The state of one link, or of a vacant place.
pub(crate) struct Inner {
    pub(crate) index: u32,
    pub(crate) fd: c_int,
    /// `None` while the place is free.
    pub(crate) end: Option<Box<ServerLink>>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// What the peer's ids refer to; ids of [`Named::Nobody`] are left out.
    named: IdTable<Named>,
    /// The epoll set whose threads receive from it.
    pub(crate) set: u32,
    /// Whether that set holds one of the link's connections; at first, `set` is the link port's.
    pub(crate) adopted: bool,
    stage: Stage,
    /// Distinguishes this link from earlier ones in its place.
    serial: u64,
    /// Number of receives that found messages.
    batches_received: u64,
    /// When the first of the messages arrived whose replies have yet to be sent.
    received_at: Option<Time>,
    /// Whether the rest of a record is awaited, or reading is paused.
    has_read_timeout: bool,
    /// The rest of a batch of which the socket took only a part.
    unsent: Unsent,
    pub(crate) watched: Interest,
    /// Connections with data in the current batch, whose sets are informed at its end. Kept for its allocation.
    raised: Vec<u32>,
}

/// Progress of the peer's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    /// It has named an accepted key, which it has yet to prove.
    NamedKey,
    Established,
}

/// What an id of the peer refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Named {
    /// Nothing, or something that the application has closed.
    #[default]
    Nobody,
    /// The connection with this index.
    Connection(u32),
    /// A session, unless another link carries it by now.
    Session(Name),
}

/// Why a link ended.
pub(crate) enum Lost {
    Ended,
    Unserved,
    Socket(Errno),
    Broken(LinkError),
    SwitchedOff,
    /// It had yet to authenticate, and newer links came.
    Evicted,
}

impl core::fmt::Display for Lost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lost::Ended => f.write_str("closed by the peer"),
            Lost::Unserved => f.write_str("the server closed its event loop"),
            Lost::Socket(error) => Reason(*error).fmt(f),
            Lost::Broken(error) => error.fmt(f),
            Lost::SwitchedOff => f.write_str("switched off"),
            Lost::Evicted => {
                f.write_str("too many links had yet to authenticate, and it was dropped for a newer one")
            }
        }
    }
}

/// What a link's socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Whether the peer's bytes are read: see [`ServerLink::may_read`].
    pub(crate) input: bool,
    /// Whether epoll has to report room, because the socket is full.
    pub(crate) room: bool,
}

impl Interest {
    pub(crate) const INPUT: Interest = Interest { input: true, room: false };

    /// The events in epoll's form.
    pub(crate) fn events(self) -> u32 {
        let of = |wanted: bool, event: libc::c_int| if wanted { event as u32 } else { 0 };
        of(self.input, libc::EPOLLIN) | of(self.room, libc::EPOLLOUT)
    }
}

impl Inner {
    pub(crate) fn vacant(index: u32) -> Inner {
        Inner {
            index,
            fd: -1,
            end: None,
            peer: None,
            local: None,
            named: IdTable::new(),
            set: 0,
            adopted: false,
            stage: Stage::Silent,
            serial: 0,
            batches_received: 0,
            received_at: None,
            has_read_timeout: false,
            unsent: Unsent::default(),
            watched: Interest::INPUT,
            raised: Vec::new(),
        }
    }

    /// A link whose socket was accepted between `peer` and `local`, and is watched in this set.
    pub(crate) fn begun(
        (index, serial): Newcomer,
        fd: c_int,
        end: ServerLink,
        (peer, local): (SocketAddr, SocketAddr),
        set: u32,
    ) -> Inner {
        Inner {
            fd,
            end: Some(Box::new(end)),
            peer: Some(peer),
            local: Some(local),
            set,
            serial,
            ..Inner::vacant(index)
        }
    }

    /// Whether this is the link with this serial number, and its peer has yet to authenticate.
    pub(crate) fn is_newcomer(&self, serial: u64) -> bool {
        self.end.is_some() && self.serial == serial && self.stage != Stage::Established
    }

    /// The id of a connection, if it is still one of this link's.
    pub(crate) fn of(&mut self, connection: &Connection) -> Option<(Id, &mut ServerLink)> {
        let id = connection.id.load(Ordering::Relaxed);
        let named = self.named(Id(id));
        let end = self.end.as_deref_mut()?;
        (named == Named::Connection(connection.index)).then_some((Id(id), end))
    }

    pub(crate) fn named(&self, id: Id) -> Named {
        self.named.get(id).copied().unwrap_or_default()
    }

    fn connection(&self, id: Id) -> Option<&'static Connection> {
        match self.named(id) {
            Named::Connection(index) => connections::get(index),
            Named::Nobody | Named::Session(_) => None,
        }
    }

    pub(crate) fn name(&mut self, id: Id, what: Named) {
        match what {
            Named::Nobody => drop(self.named.remove(id)),
            _ => drop(self.named.insert(id, what)), // the link end keeps ids below its limit
        }
    }

    /// Leaves sending to the thread's next flush, after its ready list is empty; sends at once if there is none.
    pub(crate) fn send_soon(&mut self, wakes: &mut Wakes) {
        if self.end.as_ref().is_some_and(|end| end.pending() > 0) && !threads::defer(self.index) {
            self.flush_or_lose(wakes);
        }
    }

    /// Like [`send_soon`](Self::send_soon), but sends a large batch at once.
    pub(crate) fn send_in_time(&mut self, wakes: &mut Wakes) {
        if self.end.as_ref().is_some_and(|end| end.pending() >= FLUSH_BYTES) {
            self.flush_or_lose(wakes);
        } else {
            self.send_soon(wakes);
        }
    }

    pub(crate) fn flush_or_lose(&mut self, wakes: &mut Wakes) {
        if let Err(lost) = self.flush(wakes) {
            self.lose(lost, wakes);
        }
    }

    /// Sends until nothing is left or the socket is full.
    fn push(&mut self) -> Result<(), Lost> {
        let Some(end) = &mut self.end else { return Ok(()) };
        let next = |spent| {
            end.recycle(spent);
            end.flush(sys::now())
        };
        self.unsent.send_all(next, |bytes| match sys::send(self.fd, bytes) {
            Ok(sent) => Ok(Some(sent)),
            Err(libc::EINTR) => Ok(Some(0)),
            Err(libc::EAGAIN) => Ok(None),
            Err(error) => Err(Lost::Socket(error)),
        })
    }

    /// Sends, and informs connections that have room again.
    fn flush(&mut self, wakes: &mut Wakes) -> Result<(), Lost> {
        let Some(end) = &self.end else { return Ok(()) };
        let batches_before = end.counters().batches_sent;
        self.push()?;
        self.watch();
        if self.end.as_ref().is_some_and(|end| end.counters().batches_sent != batches_before) {
            self.tell_status();
            if let Some(received_at) = self.received_at.take() {
                release_timer::served(sys::now().since(received_at));
            }
        }
        self.announce_room(wakes);
        Ok(())
    }

    /// Updates the events that the socket is watched for. Call after all that may change them.
    fn watch(&mut self) {
        let Some(end) = &self.end else { return };
        let wanted = Interest { input: end.may_read(), room: !self.unsent.is_empty() };
        if wanted != self.watched {
            self.watched = wanted;
            self.control(libc::EPOLL_CTL_MOD);
        }
    }

    fn announce_room(&mut self, wakes: &mut Wakes) {
        while let Some(id) = self.end.as_mut().and_then(|end| end.poll_room()) {
            match self.named(id) {
                Named::Session(name) => self.carry(id, name),
                Named::Connection(index) => {
                    if let Some(connection) = connections::get(index) {
                        connection.source.can_send(true);
                        notify(connection, wakes);
                    }
                }
                Named::Nobody => {}
            }
        }
    }

    pub(crate) fn receive_or_lose(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) {
        match self.receive(buffers, wakes) {
            Ok(()) => self.send_soon(wakes),
            Err(lost) => self.lose(lost, wakes),
        }
    }

    /// Receives once; epoll reports the socket again if bytes are left.
    fn receive(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) -> Result<(), Lost> {
        let Buffers { received, scratch } = buffers;
        // Reading is paused; `flush` or `handle_timeout` resumes it.
        if !self.end.as_ref().is_some_and(|end| end.may_read()) {
            return Ok(());
        }
        let length = match sys::receive(self.fd, received) {
            Ok(0) => return Err(Lost::Ended),
            Ok(length) => length,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(error) => return Err(Lost::Socket(error)),
        };
        let messages =
            |end: &Option<Box<ServerLink>>| end.as_ref().map_or(0, |end| end.counters().messages_received);
        let messages_before = messages(&self.end);
        let now = sys::now();
        let Some(end) = &mut self.end else { return Ok(()) };
        let mut input = end.unseal(now, &received[..length], scratch);
        let outcome = loop {
            let Some(end) = &mut self.end else { break Ok(()) };
            match end.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle(now, event, wakes),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Lost::Broken(error)),
            }
        };
        notify_all(self.raised.iter().filter_map(|&index| connections::get(index)), wakes);
        self.raised.clear();
        self.note_reading();
        if messages(&self.end) != messages_before {
            self.batches_received += 1;
            self.received_at.get_or_insert(now);
        }
        if self.stage == Stage::Silent && self.end.as_ref().is_some_and(|end| end.has_named_key()) {
            self.stage = Stage::NamedKey;
            handshakes::named_key((self.index, self.serial));
        }
        self.tell_status();
        self.announce_room(wakes);
        outcome
    }

    /// Updates the socket's watch and the read timeout, after an input or a timeout.
    fn note_reading(&mut self) {
        self.watch();
        self.wait_for_timeout(self.end.as_ref().is_some_and(|end| end.has_read_timeout()));
    }

    fn wait_for_timeout(&mut self, is_due: bool) {
        if core::mem::replace(&mut self.has_read_timeout, is_due) != is_due {
            handshakes::wait_for_read_timeout(is_due);
        }
    }

    /// Ends the link if the peer has not authenticated, or sent the rest of a record, in time; resumes paused reading.
    pub(crate) fn handle_timeout(&mut self, now: Time, wakes: &mut Wakes) {
        match self.end.as_mut().map(|end| end.handle_timeout(now)) {
            Some(Ok(())) => self.note_reading(),
            Some(Err(error)) => self.lose(Lost::Broken(error), wakes),
            None => {}
        }
    }

    /// Updates the link's figures on the status page, once a batch.
    fn tell_status(&self) {
        if let Some(end) = &self.end {
            status::link_turn(self.index, &end.counters(), self.batches_received, end.connections());
        }
    }

    /// Calls `tell` with the traffic of each connection that the application has not closed.
    pub(crate) fn each_connection(&self, tell: &mut impl FnMut(u32, Info)) {
        let Some(end) = &self.end else { return };
        for (id, named) in self.named.iter() {
            if let (&Named::Connection(index), Some(info)) = (named, end.info(id)) {
                tell(index, info);
            }
        }
    }

    fn handle(&mut self, now: Time, event: ServerEvent<'_>, wakes: &mut Wakes) {
        match event {
            ServerEvent::Data { id, bytes } => {
                if let Some(connection) = self.connection(id) {
                    if connection.deliver(bytes) {
                        self.raised.push(connection.index);
                    } else if let Some(end) = &mut self.end {
                        let outcome = end.consumed(id, bytes.len());
                        debug_assert_eq!(outcome, Ok(()), "it was received just now");
                    }
                }
            }
            ServerEvent::Connect { id, client, .. } => self.connect(id, client, wakes),
            ServerEvent::Session { id, kind, client, opening } => {
                self.session_words(
                    OpeningMessage { carrier: (self.index, id), kind, client, opening },
                    wakes,
                );
            }
            ServerEvent::Carried { id, bytes } => self.session_data(now, id, bytes, wakes),
            ServerEvent::CarriedControl { id, control } => self.session_control(now, id, &control),
            ServerEvent::Finished { id } => {
                if let Some(connection) = self.connection(id) {
                    connection.end();
                    notify(connection, wakes);
                }
            }
            ServerEvent::Closed { id, reason } => self.closed_by_client(id, reason, wakes),
            ServerEvent::Established { role, key } => {
                self.stage = Stage::Established;
                let is_encrypted = self.end.as_ref().is_some_and(|end| end.is_encrypted());
                status::link_established(self.index, role, key.0, is_encrypted);
                handshakes::authenticated_or_gone((self.index, self.serial));
                if let (Role::Helper, Some(peer)) = (role, self.peer) {
                    log::line(format_args!("link with the {role} at {peer}, key {key}"));
                }
            }
            ServerEvent::Forbidden { client, why } => {
                status::count(Counter::ConnectionForbidden);
                if let Some(peer) = self.peer {
                    log::line(format_args!("client {client} through {peer} refused: {why}"));
                }
            }
            ServerEvent::Drain { deadline_ms } => {
                if let Some(peer) = self.peer {
                    log::line(format_args!("the peer at {peer} goes away within {deadline_ms} ms"));
                }
            }
        }
    }

    fn connect(&mut self, id: Id, client: SocketAddr, wakes: &mut Wakes) {
        let Some(connection) = connections::take() else {
            status::count(Counter::ConnectionFull);
            return self.refuse(id, RefuseReason::Full);
        };
        connection.link.store(self.index, Ordering::Relaxed);
        connection.id.store(id.0, Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(client), self.local);
        }
        match listeners::offer(connection, client, wakes) {
            Offer::Queued => {
                status::connection_began(connection, client, (self.index, id));
                self.name(id, Named::Connection(connection.index));
            }
            Offer::Refused(reason) => {
                status::connection_refused(reason);
                connections::give_back(connection);
                self.refuse(id, reason);
            }
        }
    }

    pub(crate) fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if let Some(end) = &mut self.end {
            end.refuse(id, reason);
        }
    }

    fn closed_by_client(&mut self, id: Id, reason: CloseReason, wakes: &mut Wakes) {
        let Some(connection) = self.connection(id) else { return };
        if listeners::withdraw(connection) {
            // The application has not accepted it.
            status::connection_ended(connection);
            self.name(id, Named::Nobody);
            if let Some(end) = &mut self.end {
                end.close(id, CloseReason::Normal);
            }
            connections::give_back(connection);
            return;
        }
        connection.closed_by_client(reason != CloseReason::Normal);
        notify(connection, wakes);
    }

    /// A set holds a connection that this link carries: moves the link there, unless another set's threads serve it.
    pub(crate) fn adopt(&mut self, set: &Set) {
        if !self.adopted {
            self.adopted = true;
            self.move_to(set);
        }
    }

    /// Applies an epoll operation to the socket, in the set that it belongs to.
    fn control(&self, operation: c_int) -> bool {
        let Some(set) = ready::get(self.set) else { return false };
        let (fd, tag) = (set.fd.load(Ordering::Relaxed), Tag::Link(self.index).value());
        sys::epoll_ctl(fd, operation, self.fd, self.watched.events(), tag).is_ok()
    }

    pub(crate) fn move_to(&mut self, set: &Set) {
        if self.set == set.index || set.activate().is_err() {
            return;
        }
        self.control(libc::EPOLL_CTL_DEL);
        let before = core::mem::replace(&mut self.set, set.index);
        if !self.control(libc::EPOLL_CTL_ADD) {
            self.set = before;
            self.control(libc::EPOLL_CTL_ADD);
        }
    }

    /// Ends the link, and with it all its connections.
    pub(crate) fn lose(&mut self, lost: Lost, wakes: &mut Wakes) {
        let Some(mut end) = self.end.take() else { return };
        self.wait_for_timeout(false);
        if let (Lost::Broken(_), true) = (&lost, self.unsent.is_empty())
            && let Some(last) = end.flush(sys::now())
        {
            let _ = sys::send(self.fd, last.as_slice()); // tells the peer why, if the socket takes it
        }
        let established = self.stage == Stage::Established;
        if !established {
            handshakes::authenticated_or_gone((self.index, self.serial));
            status::count(refusal(&lost));
        }
        status::link_ended(self.index, &end.counters(), self.batches_received, established);
        let sessions = self.detach_sessions();
        let held: Vec<&'static Connection> =
            self.named.iter().filter_map(|(id, _)| self.connection(id)).collect();
        if let Some(peer) = self.peer {
            // A peer that closes an unused link is not logged.
            if !established && matches!(lost, Lost::Ended) {
                // Counted, but not logged: health checks open the port and close at once.
            } else if !established {
                log::knock(format_args!("link of {peer} refused: {lost}"));
            } else if !matches!(lost, Lost::Ended) || !held.is_empty() || sessions > 0 {
                let count = held.len();
                let sessions = match (sessions, &lost) {
                    (0, _) => String::new(),
                    (sessions, Lost::Unserved) => format!(" ({sessions} sessions closed)"),
                    (sessions, _) => format!(" ({sessions} sessions go on without it)"),
                };
                log::line(format_args!("link of {peer} lost, with {count} connections{sessions}: {lost}"));
            }
        }
        // Explicitly, because a forked child may hold the same socket, which would keep it in the set.
        self.control(libc::EPOLL_CTL_DEL);
        table::note(self.fd, Entry::Real);
        sys::end_socket(self.fd);
        *self = Inner::vacant(self.index);
        for connection in held {
            status::connection_ended(connection);
            if listeners::withdraw(connection) {
                connections::give_back(connection);
            } else {
                connection.closed_by_client(true);
                notify(connection, wakes);
            }
        }
        link_places::give_back(self.index);
    }
}

/// The counter for a link that was not established.
fn refusal(lost: &Lost) -> Counter {
    match lost {
        Lost::Broken(LinkError::UnknownKey { .. } | LinkError::WrongProof) => Counter::LinkKey,
        Lost::Broken(LinkError::Version { .. }) => Counter::LinkVersion,
        Lost::Broken(LinkError::HandshakeTimeout) => Counter::LinkTimeout,
        Lost::SwitchedOff => Counter::LinkOff,
        Lost::Evicted => Counter::LinkStrangers,
        _ => Counter::LinkMalformed,
    }
}

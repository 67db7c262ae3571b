//! One link: receiving, sending, and its end. All functions are called with the link's lock held.

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

use crate::carrier_name::SessionName;
use crate::connections::{self, Connection};
use crate::epoll_set::{self, Buffers, Set};
use crate::handshakes::{self, Newcomer};
use crate::listeners::{self, Offer};
use crate::log::{self, Reason};
use crate::readiness::{notify, notify_all};
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::table::{self, Entry};
use crate::tag::Tag;
use crate::wakes::Wakes;
use crate::{link_slots, release_timer, threads};

/// Unsent replies of this many bytes are sent at once, without waiting for the replies to other clients.
const FLUSH_BYTES: usize = 64 * 1024;

/// The state of one link, or of a vacant slot.
pub(crate) struct Inner {
    pub(crate) index: u32,
    pub(crate) fd: c_int,
    /// `None` while the slot is vacant.
    pub(crate) endpoint: Option<Box<ServerLink>>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) local: Option<SocketAddr>,
    /// What the peer's ids refer to; ids of [`Referent::Nothing`] are left out.
    referents: IdTable<Referent>,
    /// Number of [`Referent::Session`]s in `referents`.
    session_count: usize,
    /// The epoll set whose threads receive from this link.
    pub(crate) set: u32,
    /// Whether `set` holds one of the link's connections. At first `set` is the link port's, which need not hold any.
    pub(crate) adopted: bool,
    stage: Stage,
    /// Distinguishes this link from earlier links in the same slot.
    serial: u64,
    /// Number of receives that found messages.
    batches_received: u64,
    /// When the oldest message without a sent reply arrived.
    received_at: Option<Time>,
    /// Whether the rest of a record is awaited, or reading is paused.
    has_read_timeout: bool,
    /// The rest of a batch that the socket accepted only in part.
    unsent: Unsent,
    pub(crate) watched: Interest,
    /// Connections with data in the current batch, whose sets are notified at its end. A field to reuse the allocation.
    raised: Vec<u32>,
}

/// Progress of the peer's authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    /// The peer has named an accepted key, and has yet to prove that it has the key.
    NamedKey,
    Established,
}

/// What an id of the peer refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Referent {
    /// An unused id, or a connection that the application has closed.
    #[default]
    Nothing,
    /// The connection with this index.
    Connection(u32),
    /// A session; another link may carry that session by now.
    Session(SessionName),
}

/// Why a link was lost.
pub(crate) enum Lost {
    ClosedByPeer,
    EventLoopClosed,
    Socket(Errno),
    Broken(LinkError),
    SwitchedOff,
    /// The peer had not authenticated, and the link was closed for a newer one.
    Evicted,
}

impl core::fmt::Display for Lost {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Lost::ClosedByPeer => f.write_str("closed by the peer"),
            Lost::EventLoopClosed => f.write_str("the server closed its event loop"),
            Lost::Socket(error) => Reason(*error).fmt(f),
            Lost::Broken(error) => error.fmt(f),
            Lost::SwitchedOff => f.write_str("switched off"),
            Lost::Evicted => f.write_str(
                "too many links have not authenticated yet: this link was dropped for a newer one",
            ),
        }
    }
}

/// What a link's socket is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// Whether to report that bytes have arrived: see [`ServerLink::may_read`].
    pub(crate) input: bool,
    /// Whether to report room for sending, because the socket is full.
    pub(crate) room: bool,
}

impl Interest {
    pub(crate) const INPUT: Interest = Interest { input: true, room: false };

    /// The events in epoll's form.
    pub(crate) fn events(self) -> u32 {
        let bit_if = |wanted: bool, event: libc::c_int| if wanted { event as u32 } else { 0 };
        bit_if(self.input, libc::EPOLLIN) | bit_if(self.room, libc::EPOLLOUT)
    }
}

impl Inner {
    pub(crate) fn vacant(index: u32) -> Inner {
        Inner {
            index,
            fd: -1,
            endpoint: None,
            peer: None,
            local: None,
            referents: IdTable::new(),
            session_count: 0,
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

    /// A new link whose accepted socket connects `peer` with `local`, and is watched in the epoll set with index `set`.
    pub(crate) fn new(
        (index, serial): Newcomer,
        fd: c_int,
        endpoint: ServerLink,
        (peer, local): (SocketAddr, SocketAddr),
        set: u32,
    ) -> Inner {
        Inner {
            fd,
            endpoint: Some(Box::new(endpoint)),
            peer: Some(peer),
            local: Some(local),
            set,
            serial,
            ..Inner::vacant(index)
        }
    }

    /// Whether this is the link with this serial number, and its peer has not authenticated yet.
    pub(crate) fn is_newcomer(&self, serial: u64) -> bool {
        self.endpoint.is_some() && self.serial == serial && self.stage != Stage::Established
    }

    /// The id of a connection and the endpoint, if this link still carries the connection.
    pub(crate) fn endpoint_of(&mut self, connection: &Connection) -> Option<(Id, &mut ServerLink)> {
        let id = connection.id.load(Ordering::Relaxed);
        let referent = self.referent(Id(id));
        let endpoint = self.endpoint.as_deref_mut()?;
        (referent == Referent::Connection(connection.index)).then_some((Id(id), endpoint))
    }

    pub(crate) fn referent(&self, id: Id) -> Referent {
        self.referents.get(id).copied().unwrap_or_default()
    }

    fn connection(&self, id: Id) -> Option<&'static Connection> {
        match self.referent(id) {
            Referent::Connection(index) => connections::get(index),
            Referent::Nothing | Referent::Session(_) => None,
        }
    }

    pub(crate) fn set_referent(&mut self, id: Id, referent: Referent) {
        let before = match referent {
            Referent::Nothing => self.referents.remove(id),
            _ => self.referents.insert(id, referent), // the endpoint bounds the ids
        };
        let is_session = |referent: Option<Referent>| matches!(referent, Some(Referent::Session(_)));
        self.session_count += usize::from(is_session(Some(referent)));
        self.session_count -= usize::from(is_session(before));
    }

    /// Defers sending until the thread's ready list is empty. A thread without an event loop sends at once.
    pub(crate) fn send_soon(&mut self, wakes: &mut Wakes) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.pending() > 0)
            && !threads::defer(self.index)
        {
            self.flush_or_lose(wakes);
        }
    }

    /// Like [`send_soon`](Self::send_soon), but sends a batch of [`FLUSH_BYTES`] or more at once.
    pub(crate) fn send_soon_unless_large(&mut self, wakes: &mut Wakes) {
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.pending() >= FLUSH_BYTES) {
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
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        let next = |spent| {
            endpoint.recycle(spent);
            endpoint.flush(sys::now())
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
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let batches_before = endpoint.counters().batches_sent;
        self.push()?;
        self.watch();
        if self.endpoint.as_ref().is_some_and(|endpoint| endpoint.counters().batches_sent != batches_before) {
            self.update_status_page();
            if let Some(received_at) = self.received_at.take() {
                release_timer::record_service_time(sys::now().since(received_at));
            }
        }
        self.announce_room(wakes);
        Ok(())
    }

    /// Updates the events that the socket is watched for. Call after each change of `may_read` or `unsent`.
    fn watch(&mut self) {
        let Some(endpoint) = &self.endpoint else { return };
        let wanted = Interest { input: endpoint.may_read(), room: !self.unsent.is_empty() };
        if wanted != self.watched {
            self.watched = wanted;
            self.control(libc::EPOLL_CTL_MOD);
        }
    }

    fn announce_room(&mut self, wakes: &mut Wakes) {
        while let Some(id) = self.endpoint.as_mut().and_then(|endpoint| endpoint.poll_room()) {
            match self.referent(id) {
                Referent::Session(name) => self.carry(id, name),
                Referent::Connection(index) => {
                    if let Some(connection) = connections::get(index) {
                        connection.readiness.set_can_send(true);
                        notify(connection, wakes);
                    }
                }
                Referent::Nothing => {}
            }
        }
    }

    pub(crate) fn receive_or_lose(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) {
        match self.receive(buffers, wakes) {
            Ok(()) => self.send_soon(wakes),
            Err(lost) => self.lose(lost, wakes),
        }
    }

    /// Receives once. If bytes are left, epoll reports the socket again.
    fn receive(&mut self, buffers: &mut Buffers, wakes: &mut Wakes) -> Result<(), Lost> {
        let Buffers { received, scratch } = buffers;
        // Paused: `flush` or `handle_timeout` resumes reading.
        if !self.endpoint.as_ref().is_some_and(|endpoint| endpoint.may_read()) {
            return Ok(());
        }
        let length = match sys::receive(self.fd, received) {
            Ok(0) => return Err(Lost::ClosedByPeer),
            Ok(length) => length,
            Err(libc::EAGAIN | libc::EINTR) => return Ok(()),
            Err(error) => return Err(Lost::Socket(error)),
        };
        let messages = |endpoint: &Option<Box<ServerLink>>| {
            endpoint.as_ref().map_or(0, |endpoint| endpoint.counters().messages_received)
        };
        let messages_before = messages(&self.endpoint);
        let now = sys::now();
        let Some(endpoint) = &mut self.endpoint else { return Ok(()) };
        let mut input = endpoint.unseal(now, &received[..length], scratch);
        let outcome = loop {
            let Some(endpoint) = &mut self.endpoint else { break Ok(()) };
            match endpoint.decompose(now, &mut input) {
                Ok(Some(event)) => self.handle(now, event, wakes),
                Ok(None) => break Ok(()),
                Err(error) => break Err(Lost::Broken(error)),
            }
        };
        notify_all(self.raised.iter().filter_map(|&index| connections::get(index)), wakes);
        self.raised.clear();
        self.update_reading();
        if messages(&self.endpoint) != messages_before {
            self.batches_received += 1;
            self.received_at.get_or_insert(now);
        }
        if self.stage == Stage::Silent
            && self.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_named_key())
        {
            self.stage = Stage::NamedKey;
            handshakes::named_key((self.index, self.serial));
        }
        self.update_status_page();
        self.announce_room(wakes);
        outcome
    }

    /// Updates the watched events and the read timeout, after received bytes or a timeout.
    fn update_reading(&mut self) {
        self.watch();
        self.set_read_timeout(self.endpoint.as_ref().is_some_and(|endpoint| endpoint.has_read_timeout()));
    }

    fn set_read_timeout(&mut self, has_one: bool) {
        if core::mem::replace(&mut self.has_read_timeout, has_one) != has_one {
            handshakes::count_read_timeout(has_one);
        }
    }

    /// Ends the link if authentication, or the rest of a record, is overdue. Otherwise resumes paused reading.
    pub(crate) fn handle_timeout(&mut self, now: Time, wakes: &mut Wakes) {
        match self.endpoint.as_mut().map(|endpoint| endpoint.handle_timeout(now)) {
            Some(Ok(())) => self.update_reading(),
            Some(Err(error)) => self.lose(Lost::Broken(error), wakes),
            None => {}
        }
    }

    /// Updates the link's counters on the status page. Called after each batch.
    fn update_status_page(&self) {
        if let Some(endpoint) = &self.endpoint {
            status::update_link(
                self.index,
                &endpoint.counters(),
                self.batches_received,
                endpoint.connections(),
                self.session_count,
            );
        }
    }

    /// Calls `report` with the traffic of each connection that the application has not closed.
    pub(crate) fn each_connection(&self, report: &mut impl FnMut(u32, Info)) {
        let Some(endpoint) = &self.endpoint else { return };
        for (id, referent) in self.referents.iter() {
            if let (&Referent::Connection(index), Some(info)) = (referent, endpoint.info(id)) {
                report(index, info);
            }
        }
    }

    fn handle(&mut self, now: Time, event: ServerEvent<'_>, wakes: &mut Wakes) {
        match event {
            ServerEvent::Data { id, bytes } => {
                if let Some(connection) = self.connection(id) {
                    if connection.deliver(bytes) {
                        self.raised.push(connection.index);
                    } else if let Some(endpoint) = &mut self.endpoint {
                        let outcome = endpoint.consumed(id, bytes.len());
                        debug_assert_eq!(
                            outcome,
                            Ok(()),
                            "bytes that were just received should be consumable"
                        );
                    }
                }
            }
            ServerEvent::Connect { id, client, .. } => self.handle_connect(id, client, wakes),
            ServerEvent::Session { id, kind, client, opening } => {
                self.handle_session_opening(
                    OpeningMessage { carrier: (self.index, id), kind, client, opening },
                    wakes,
                );
            }
            ServerEvent::Carried { id, bytes } => self.handle_session_data(now, id, bytes, wakes),
            ServerEvent::CarriedControl { id, control } => self.handle_session_control(now, id, &control),
            ServerEvent::Finished { id } => {
                if let Some(connection) = self.connection(id) {
                    connection.note_client_finished();
                    notify(connection, wakes);
                }
            }
            ServerEvent::Closed { id, reason } => self.handle_client_close(id, reason, wakes),
            ServerEvent::Established { role, key } => {
                self.stage = Stage::Established;
                let is_encrypted = self.endpoint.as_ref().is_some_and(|endpoint| endpoint.is_encrypted());
                status::link_established(self.index, role, key.0, is_encrypted);
                handshakes::end((self.index, self.serial));
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
                    log::line(format_args!(
                        "the peer at {peer} drains: its links end within {deadline_ms} ms"
                    ));
                }
            }
        }
    }

    fn handle_connect(&mut self, id: Id, client: SocketAddr, wakes: &mut Wakes) {
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
                self.set_referent(id, Referent::Connection(connection.index));
            }
            Offer::Refused(reason) => {
                status::connection_refused(reason);
                connections::give_back(connection);
                self.refuse(id, reason);
            }
        }
    }

    pub(crate) fn refuse(&mut self, id: Id, reason: RefuseReason) {
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.refuse(id, reason);
        }
    }

    fn handle_client_close(&mut self, id: Id, reason: CloseReason, wakes: &mut Wakes) {
        let Some(connection) = self.connection(id) else { return };
        if listeners::withdraw(connection) {
            // The connection waited to be accepted.
            status::connection_ended(connection);
            self.set_referent(id, Referent::Nothing);
            if let Some(endpoint) = &mut self.endpoint {
                endpoint.close(id, CloseReason::Normal);
            }
            connections::give_back(connection);
            return;
        }
        connection.note_client_closed(reason != CloseReason::Normal);
        notify(connection, wakes);
    }

    /// `set` has got a connection of this link: moves the link there, unless another set has adopted the link.
    pub(crate) fn adopt(&mut self, set: &Set) {
        if !self.adopted {
            self.adopted = self.move_to(set);
        }
    }

    /// Applies an epoll operation to the link's socket, in the link's set.
    fn control(&self, operation: c_int) -> bool {
        let Some(set) = epoll_set::get(self.set) else { return false };
        let (fd, tag) = (set.fd.load(Ordering::Relaxed), Tag::Link(self.index).value());
        sys::epoll_ctl(fd, operation, self.fd, self.watched.events(), tag).is_ok()
    }

    /// Moves the link to this set. Returns whether the link is there now; otherwise it stays in its present set.
    pub(crate) fn move_to(&mut self, set: &Set) -> bool {
        if self.set == set.index {
            return true;
        }
        if set.activate().is_err() {
            return false;
        }
        // Added to the new set first: if that fails, the old set still watches the socket.
        let before = core::mem::replace(&mut self.set, set.index);
        if !self.control(libc::EPOLL_CTL_ADD) {
            self.set = before;
            return false;
        }
        let after = core::mem::replace(&mut self.set, before);
        self.control(libc::EPOLL_CTL_DEL);
        self.set = after;
        true
    }

    /// Ends the link, and with it all its connections.
    pub(crate) fn lose(&mut self, lost: Lost, wakes: &mut Wakes) {
        let Some(mut endpoint) = self.endpoint.take() else { return };
        self.set_read_timeout(false);
        if let (Lost::Broken(_), true) = (&lost, self.unsent.is_empty())
            && let Some(last) = endpoint.flush(sys::now())
        {
            let _ = sys::send(self.fd, last.as_slice()); // the reason, if the socket has room
        }
        let established = self.stage == Stage::Established;
        if !established {
            handshakes::end((self.index, self.serial));
            status::count(refusal(&lost));
        }
        status::link_ended(self.index, &endpoint.counters(), self.batches_received, established);
        let sessions = self.detach_sessions();
        let lost_connections: Vec<&'static Connection> =
            self.referents.iter().filter_map(|(id, _)| self.connection(id)).collect();
        if let Some(peer) = self.peer {
            if !established && matches!(lost, Lost::ClosedByPeer) {
                // Counted, but not logged: health checks open the port and close at once.
            } else if !established {
                log::unauthenticated(format_args!("link of {peer} refused: {lost}"));
            } else if !matches!(lost, Lost::ClosedByPeer) || !lost_connections.is_empty() || sessions > 0 {
                let count = lost_connections.len();
                let sessions = match (sessions, &lost) {
                    (0, _) => String::new(),
                    (sessions, Lost::EventLoopClosed) => format!(" ({sessions} sessions closed)"),
                    (sessions, _) => format!(" ({sessions} sessions wait for another link)"),
                };
                log::line(format_args!("link of {peer} lost, with {count} connections{sessions}: {lost}"));
            }
        }
        // Needed because a forked child may hold the same socket: closing the descriptor here would not
        // remove the socket from the epoll set.
        self.control(libc::EPOLL_CTL_DEL);
        table::record(self.fd, Entry::Real);
        sys::end_socket(self.fd);
        *self = Inner::vacant(self.index);
        for connection in lost_connections {
            status::connection_ended(connection);
            if listeners::withdraw(connection) {
                connections::give_back(connection);
            } else {
                connection.note_client_closed(true);
                notify(connection, wakes);
            }
        }
        link_slots::give_back(self.index);
    }
}

/// The counter for a link that was lost before it was established.
fn refusal(lost: &Lost) -> Counter {
    match lost {
        Lost::Broken(LinkError::UnknownKey { .. } | LinkError::WrongProof) => Counter::LinkKey,
        Lost::Broken(LinkError::Version { .. }) => Counter::LinkVersion,
        Lost::Broken(LinkError::HandshakeTimeout) => Counter::LinkTimeout,
        Lost::SwitchedOff => Counter::LinkOff,
        Lost::Evicted => Counter::LinkEvicted,
        _ => Counter::LinkMalformed,
    }
}

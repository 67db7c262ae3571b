//! Sessions: virtual connections that outlive the links that carry them.
//!
//! Links have a lock each, and a session moves between them. What it has received and sent is therefore kept here, in
//! shards with a lock each, which is taken after a link's and before a connection's. A connection that came by a
//! session names its place here; the session knows by which link it is reached just now.

mod expiry;

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use libc::{c_int, iovec};
use spillway_auth::KeyRing;
use spillway_batch::{CloseReason, Control, Id, Info, RefuseReason, Role};
use spillway_session::{Carrier, FirstWords, Opened, SessionHandle, Sessions, StreamEvent, TableLimits};
use spillway_transport::Time;

use crate::connections::{self, Connection};
use crate::listeners::{self, Offer};
use crate::parts::put;
use crate::ready::Wakes;
use crate::status::{self, Counter};
use crate::sys::{self, Errno};
use crate::{links, lock};

pub(crate) use expiry::{due_within, is_due, look};

/// Ids are random, so shards fill evenly.
const SHARDS: usize = 16;

/// In `Connection::link`, with the shard added: it came by a session, and `Connection::id` is its place there.
const BY_SESSION: u32 = 1 << 31;

static TABLES: [Mutex<Option<Shard>>; SHARDS] = [const { Mutex::new(None) }; SHARDS];

/// What carries a session: a link, and a virtual connection on it.
pub(crate) type CarrierName = (u32, Id);

/// Names a session's place. It may be another session's by now: that one has another carrier, and another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    shard: u8,
    slot: u32,
}

struct Shard {
    table: Sessions<CarrierName>,
    /// By slot.
    places: Vec<Place>,
    /// When acknowledgements are due that nothing goes along with, in order.
    owed: VecDeque<(Time, u32)>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    session: Option<SessionHandle>,
    /// The application's end, until it closes.
    connection: Option<u32>,
    is_owing: bool,
}

/// What becomes of a session's first words.
pub(crate) enum Words {
    /// It waits to be accepted.
    New(Name, Control),
    /// It goes on.
    Resumed {
        name: Name,
        answer: Control,
        is_accepted: bool,
        connection: Option<&'static Connection>,
        /// The connection whose sets are to be told that it has room again.
        raised: Option<u32>,
    },
    Refused(RefuseReason),
}

/// What a message of a session led to.
#[derive(Default)]
pub(crate) struct Heard {
    /// The sets of this connection are to be told, once no lock is held.
    pub(crate) raised: Option<u32>,
    /// The virtual connection carries the session no more, and is to be closed.
    pub(crate) is_left: bool,
    /// The session may have something for it.
    pub(crate) is_to_answer: bool,
}

impl Shard {
    fn new(limits: TableLimits) -> Shard {
        let mut random = [0; 8];
        if sys::random(&mut random).is_err() {
            // Different in the next life of this server at least.
            random = sys::now().as_nanos().to_ne_bytes();
        }
        Shard {
            table: Sessions::new(limits, u64::from_ne_bytes(random)),
            places: Vec::new(),
            owed: VecDeque::new(),
        }
    }

    fn settle(&mut self, session: SessionHandle, connection: &Connection) -> u32 {
        let slot = session.slot();
        let index = slot as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::default());
        }
        self.places[index] =
            Place { session: Some(session), connection: Some(connection.index), is_owing: false };
        slot
    }

    fn place(&mut self, slot: u32) -> Option<&mut Place> {
        self.places.get_mut(slot as usize)
    }

    fn session(&self, slot: u32) -> Option<SessionHandle> {
        self.places.get(slot as usize)?.session
    }

    fn connection(&self, slot: u32) -> Option<&'static Connection> {
        connections::get(self.places.get(slot as usize)?.connection?)
    }

    /// The session of a connection, unless that has been closed and is another client's by now.
    fn of(&self, connection: &Connection) -> Option<SessionHandle> {
        let place = self.places.get(connection.id.load(Ordering::Relaxed) as usize)?;
        (place.connection == Some(connection.index)).then_some(place.session).flatten()
    }

    /// Whether the session is no more, and its place free.
    fn vacate_if_over(&mut self, slot: u32, session: SessionHandle) -> bool {
        let is_over = !self.table.contains(session);
        if is_over && let Some(place) = self.place(slot) {
            *place = Place::default();
        }
        is_over
    }

    /// The application's end goes without having been accepted, if nobody has seen it yet.
    fn withdraw(&mut self, slot: u32, connection: &'static Connection) -> bool {
        let withdrawn = listeners::withdraw(connection);
        if withdrawn {
            if let Some(place) = self.place(slot) {
                place.connection = None;
            }
            status::connection_ended(connection);
            connections::give_back(connection);
        }
        withdrawn
    }

    /// What the other end did, for the application.
    fn tell(&mut self, now: Time, slot: u32, event: StreamEvent) -> Option<u32> {
        let connection = self.connection(slot)?;
        match event {
            StreamEvent::Room => connection.source.can_send(true),
            StreamEvent::Finished => connection.end(),
            StreamEvent::Closed(_) if self.withdraw(slot, connection) => {
                self.table.close(now, self.session(slot)?, CloseReason::Normal);
                return None;
            }
            StreamEvent::Closed(reason) => connection.hear_close(reason != CloseReason::Normal),
        }
        Some(connection.index)
    }
}

fn shard(index: u8) -> MutexGuard<'static, Option<Shard>> {
    lock(&TABLES[usize::from(index) % SHARDS])
}

/// Where a connection came by a session: its shard.
#[inline]
fn shard_of(connection: &Connection) -> Option<u8> {
    let link = connection.link.load(Ordering::Relaxed);
    link.checked_sub(BY_SESSION).filter(|&shard| (shard as usize) < SHARDS).map(|shard| shard as u8)
}

/// Whether it came by a session.
#[inline]
pub(crate) fn is_carried(connection: &Connection) -> bool {
    shard_of(connection).is_some()
}

/// Acts on a connection's session, then gives its carrier what it is to have. `None`: it has none any more.
fn with<T>(
    connection: &Connection,
    wakes: &mut Wakes,
    act: impl FnOnce(&mut Sessions<CarrierName>, SessionHandle) -> T,
) -> Option<T> {
    let index = shard_of(connection)?;
    let (outcome, carrier, name) = {
        let mut guard = shard(index);
        let shard = guard.as_mut()?;
        let session = shard.of(connection)?;
        let outcome = act(&mut shard.table, session);
        (outcome, shard.table.carrier(session), Name { shard: index, slot: session.slot() })
    };
    if let Some(carrier) = carrier {
        links::carry(carrier, name, wakes);
    }
    Some(outcome)
}

// The application's side.

/// Sends on a connection: the length taken, or EAGAIN.
///
/// # Safety
/// `parts` describe readable memory.
pub(crate) unsafe fn send(
    fd: c_int,
    connection: &Connection,
    parts: &[iovec],
    wakes: &mut Wakes,
) -> Result<usize, Errno> {
    let write = |table: &mut Sessions<CarrierName>, session| {
        if !connection.is_named(fd) {
            return Err(libc::EBADF); // closed by another thread; it may be another client's by now
        }
        // SAFETY: the caller vouches for the parts.
        let (taken, wanted) = unsafe { put(parts, |bytes| table.write(session, bytes)) };
        if taken < wanted {
            connection.source.can_send(false);
        }
        if taken == 0 && wanted > 0 { Err(libc::EAGAIN) } else { Ok(taken) }
    };
    with(connection, wakes, write).unwrap_or(Err(libc::EPIPE))
}

/// The application has read bytes.
pub(crate) fn consumed(connection: &Connection, bytes: usize, wakes: &mut Wakes) {
    with(connection, wakes, |table, session| table.consumed(session, bytes));
}

/// The application sends no more.
pub(crate) fn finish(connection: &Connection, wakes: &mut Wakes) {
    with(connection, wakes, |table, session| table.finish(session));
}

/// The application has accepted the connection.
pub(crate) fn accept(connection: &Connection, wakes: &mut Wakes) {
    let Some(Some(carrier)) = with(connection, wakes, |table, session| table.accept(session)) else { return };
    if let Some(name) = name_of(connection) {
        links::accept_carrier(carrier, name, wakes);
    }
}

/// Nobody will accept the connection: it has been taken out of the queue.
pub(crate) fn refuse(connection: &Connection, wakes: &mut Wakes) {
    let Some(index) = shard_of(connection) else { return };
    let mut guard = shard(index);
    let Some(shard) = guard.as_mut() else { return };
    let Some(session) = shard.of(connection) else { return };
    let (slot, carrier) = (session.slot(), shard.table.refuse(session));
    shard.vacate_if_over(slot, session);
    status::connection_ended(connection);
    drop(guard);
    if let Some(carrier) = carrier {
        links::refuse_carrier(carrier, Name { shard: index, slot }, RefuseReason::Unavailable, wakes);
    }
}

/// The application has closed the connection: no delivery can meet it after this. The session lingers.
pub(crate) fn close(connection: &Connection, abort: bool, wakes: &mut Wakes) {
    let Some(index) = shard_of(connection) else { return };
    let carrier = {
        let mut guard = shard(index);
        let Some(shard) = guard.as_mut() else { return };
        let Some(session) = shard.of(connection) else { return };
        let reason = if abort { CloseReason::Reset } else { CloseReason::Normal };
        shard.table.close(sys::now(), session, reason);
        if let Some(place) = shard.place(session.slot()) {
            place.connection = None;
        }
        status::connection_ended(connection);
        expiry::note(shard.table.poll_timeout());
        shard.table.carrier(session).map(|carrier| (carrier, Name { shard: index, slot: session.slot() }))
    };
    if let Some((carrier, name)) = carrier {
        links::carry(carrier, name, wakes);
    }
}

fn name_of(connection: &Connection) -> Option<Name> {
    Some(Name { shard: shard_of(connection)?, slot: connection.id.load(Ordering::Relaxed) })
}

/// By which link a connection is reached now.
pub(crate) fn link_of(connection: &Connection) -> Option<u32> {
    let guard = shard(shard_of(connection)?);
    let shard = guard.as_ref()?;
    shard.table.carrier(shard.of(connection)?).map(|(link, _)| link)
}

/// Tells what each session that the application has not closed is doing.
pub(crate) fn each_connection(tell: &mut impl FnMut(u32, Info)) {
    for table in &TABLES {
        let guard = lock(table);
        let Some(shard) = guard.as_ref() else { continue };
        for place in &shard.places {
            let known = place.session.and_then(|session| shard.table.info(session));
            if let (Some(connection), Some(info)) = (place.connection, known)
                && let Some(client) = connections::get(connection).and_then(|one| one.lock().client)
            {
                let (bytes_received, bytes_sent) = (info.bytes_received, info.bytes_sent);
                tell(connection, Info { client, role: Role::Client, bytes_received, bytes_sent });
            }
        }
    }
}

// The links' side, each with the link's lock held.

/// A session's first words on a link whose socket has the address `local`.
pub(crate) fn open(
    ring: &KeyRing,
    limits: TableLimits,
    words: &FirstWords<CarrierName>,
    local: Option<SocketAddr>,
    wakes: &mut Wakes,
) -> Words {
    let shards = limits.sessions_max.min(SHARDS);
    if shards == 0 {
        return Words::Refused(RefuseReason::Unavailable);
    }
    let limits = TableLimits { sessions_max: limits.sessions_max / shards, ..limits };
    let index = (usize::from(words.opening.session.0[0]) % shards) as u8;
    let mut guard = shard(index);
    let shard = guard.get_or_insert_with(|| Shard::new(limits));
    let now = sys::now();
    match shard.table.open(now, ring, words) {
        Opened::New { session, answer } => match shard.begin(index, session, words, local, wakes) {
            Ok(()) => Words::New(Name { shard: index, slot: session.slot() }, answer),
            Err(reason) => {
                shard.table.refuse(session);
                Words::Refused(reason)
            }
        },
        Opened::Resumed { session, answer, is_accepted, room, replaced } => {
            status::count(Counter::SessionsResumed);
            let name = Name { shard: index, slot: session.slot() };
            if let Some(replaced) = replaced {
                wakes.leave(replaced, name);
            }
            let connection = shard.connection(session.slot());
            if let Some(connection) = connection {
                status::connection_moved(connection, words.carrier);
            }
            let raised = if room { shard.tell(now, session.slot(), StreamEvent::Room) } else { None };
            Words::Resumed { name, answer, is_accepted, connection, raised }
        }
        Opened::Refused(reason) => Words::Refused(reason),
    }
}

impl Shard {
    /// A new session's connection waits to be accepted.
    fn begin(
        &mut self,
        index: u8,
        session: SessionHandle,
        words: &FirstWords<CarrierName>,
        local: Option<SocketAddr>,
        wakes: &mut Wakes,
    ) -> Result<(), RefuseReason> {
        let connection = connections::take().ok_or(RefuseReason::Full)?;
        connection.link.store(BY_SESSION + u32::from(index), Ordering::Relaxed);
        connection.id.store(session.slot(), Ordering::Relaxed);
        {
            let mut inner = connection.lock();
            (inner.client, inner.local) = (Some(words.client), local);
        }
        match listeners::offer(connection, words.client, wakes) {
            Offer::Queued => {
                self.settle(session, connection);
                status::connection_began(connection, words.client, words.carrier);
                Ok(())
            }
            Offer::Refused(reason) => {
                connections::give_back(connection);
                Err(reason)
            }
        }
    }
}

/// Counts a session that was refused.
pub(crate) fn count_refused(reason: RefuseReason) {
    status::count(match reason {
        RefuseReason::Full => Counter::ConnectionFull,
        RefuseReason::Unavailable => Counter::ConnectionUnserved,
        RefuseReason::Forbidden => Counter::ConnectionForbidden,
        _ => Counter::SessionRefused,
    });
}

/// Bytes came. The connection whose sets are to be told.
pub(crate) fn data(now: Time, name: Name, carrier: CarrierName, bytes: &[u8]) -> Option<u32> {
    let mut guard = shard(name.shard);
    let shard = guard.as_mut()?;
    let session = shard.session(name.slot)?;
    match shard.table.handle_data(now, session, carrier, bytes.len()) {
        Ok(false) => None,
        Ok(true) => {
            shard.owe(name.slot, session);
            // With the shard's lock held: another link may have the session next, and bytes for it.
            let connection = shard.connection(name.slot)?;
            if connection.deliver(bytes) {
                return Some(connection.index);
            }
            shard.table.consumed(session, bytes.len());
            None
        }
        Err(event) => shard.tell(now, name.slot, event),
    }
}

/// A control message came.
pub(crate) fn control(now: Time, name: Name, carrier: CarrierName, control: &Control) -> Heard {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return Heard::default() };
    let Some(session) = shard.session(name.slot) else { return Heard::default() };
    let event = shard.table.handle_control(now, session, carrier, control);
    let raised = event.and_then(|event| shard.tell(now, name.slot, event));
    if matches!(control, Control::Acknowledge(acknowledge) if !acknowledge.answer) {
        // Comes with nearly every request, and makes room in memory. Only a session that ends waits for that.
        let is_ending = shard.connection(name.slot).is_none_or(|open| open.finished.load(Ordering::Relaxed));
        return Heard { raised, is_left: false, is_to_answer: is_ending };
    }
    shard.owe(name.slot, session);
    let is_left = matches!(control, Control::Close(_)) && shard.table.carrier(session) != Some(carrier);
    shard.vacate_if_over(name.slot, session);
    expiry::note(shard.table.poll_timeout());
    Heard { raised, is_left, is_to_answer: !is_left }
}

/// Gives the carrier what its session has for it. Whether the session is over.
pub(crate) fn transmit(now: Time, name: Name, carrier: CarrierName, on: &mut impl Carrier) -> bool {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return false };
    let Some(session) = shard.session(name.slot) else { return false };
    if shard.table.carrier(session) != Some(carrier) {
        return false;
    }
    shard.table.transmit(now, session, on);
    shard.vacate_if_over(name.slot, session)
}

/// Whether this is what carries the session now.
pub(crate) fn is_carried_by(name: Name, carrier: CarrierName) -> bool {
    let guard = shard(name.shard);
    guard.as_ref().is_some_and(|shard| {
        shard.session(name.slot).and_then(|session| shard.table.carrier(session)) == Some(carrier)
    })
}

/// The link is lost: the session waits for another.
pub(crate) fn detach(now: Time, name: Name, carrier: CarrierName) {
    let mut guard = shard(name.shard);
    let Some(shard) = guard.as_mut() else { return };
    if let Some(session) = shard.session(name.slot) {
        shard.table.detach(now, session, carrier);
        expiry::note(shard.table.poll_timeout());
    }
}

//! Sessions: virtual connections that outlive the links that carry them.
//!
//! Each link has a lock, and a session moves between links. What it has received and sent is therefore kept here, in
//! shards with a lock each, which is taken after a link's and before a connection's. A session's connection names its
//! place here; the session knows which link carries it now.

mod calls;
mod carriers;
mod expiry;
mod moves;

use core::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use spillway_batch::CloseReason;
use spillway_session::{Port, SessionHandle, StreamEvent, TableLimits};
use spillway_transport::Time;

use crate::carrier_name::CarrierName;
use crate::connections::{self, Connection};
use crate::source::notify;
use crate::wakes::Wakes;
use crate::{listeners, lock, status, sys};

pub(crate) use calls::{accept, close, consumed, each_connection, finish, link_of, refuse, send};
pub(crate) use carriers::{Next, control, data, detach, end_with_server, is_carried_by, open, transmit};
pub(crate) use expiry::{due_within, is_due, look};
pub(crate) use moves::{Order, carried_by, misplaced, return_home};

/// Ids are random, so shards fill evenly.
const SHARDS: usize = 16;

/// Marks a session's connection in `Connection::link`, with the shard added; `Connection::id` is its place there.
const BY_SESSION: u32 = 1 << 31;

static TABLES: [Mutex<Option<Shard>>; SHARDS] = [const { Mutex::new(None) }; SHARDS];

struct Shard {
    port: Port<CarrierName>,
    /// Indexed by slot.
    places: Vec<Place>,
}

#[derive(Clone, Copy, Default)]
struct Place {
    session: Option<SessionHandle>,
    /// Index of the application's connection, until the application closes it.
    connection: Option<u32>,
}

impl Shard {
    fn new(limits: TableLimits) -> Shard {
        let mut random = [0; 8];
        if sys::random(&mut random).is_err() {
            // Differs from one start of this server to the next at least.
            random = sys::now().as_nanos().to_ne_bytes();
        }
        Shard { port: Port::new(limits, u64::from_ne_bytes(random)), places: Vec::new() }
    }

    fn settle(&mut self, session: SessionHandle, connection: &Connection) {
        let index = session.slot() as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, Place::default());
        }
        self.places[index] = Place { session: Some(session), connection: Some(connection.index) };
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

    /// The session of a connection, unless the connection was closed and its place is another client's.
    fn of(&self, connection: &Connection) -> Option<SessionHandle> {
        let place = self.places.get(connection.id.load(Ordering::Relaxed) as usize)?;
        (place.connection == Some(connection.index)).then_some(place.session).flatten()
    }

    /// Frees the place of a session that is over. Returns whether it is over.
    fn vacate_if_over(&mut self, slot: u32, session: SessionHandle) -> bool {
        let is_over = !self.port.contains(session);
        if is_over && let Some(place) = self.place(slot) {
            *place = Place::default();
        }
        is_over
    }

    /// Withdraws the application's connection, if it has not been accepted. Returns whether it was withdrawn.
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

    /// Ends the session for the application, whatever the client does.
    fn tell_end(&mut self, slot: u32, wakes: &mut Wakes) {
        if let Some(connection) = self.connection(slot)
            && !self.withdraw(slot, connection)
        {
            status::connection_ended(connection);
            connection.closed_by_client(true);
            notify(connection, wakes);
        }
    }

    /// Whether the session has no connection: closed before it was accepted, for instance, which its client must be told.
    fn is_withdrawn(&self, slot: u32, session: SessionHandle) -> bool {
        self.session(slot) == Some(session) && self.connection(slot).is_none()
    }

    /// Applies the client's action to the application's connection. Returns the connection whose sets must be informed.
    fn tell(&mut self, now: Time, slot: u32, event: StreamEvent) -> Option<u32> {
        let connection = self.connection(slot)?;
        match event {
            StreamEvent::Room => connection.source.can_send(true),
            StreamEvent::Finished => connection.end(),
            StreamEvent::Closed(_) if self.withdraw(slot, connection) => {
                self.port.close(now, self.session(slot)?, CloseReason::Normal);
                return None;
            }
            StreamEvent::Closed(reason) => connection.closed_by_client(reason != CloseReason::Normal),
        }
        Some(connection.index)
    }
}

fn table_of(shard: u8) -> &'static Mutex<Option<Shard>> {
    &TABLES[usize::from(shard) % SHARDS]
}

fn shard(index: u8) -> MutexGuard<'static, Option<Shard>> {
    lock(table_of(index))
}

/// The shard of a session's connection; `None` for other connections.
#[inline]
fn shard_of(connection: &Connection) -> Option<u8> {
    let link = connection.link.load(Ordering::Relaxed);
    link.checked_sub(BY_SESSION).filter(|&shard| (shard as usize) < SHARDS).map(|shard| shard as u8)
}

/// Whether the connection belongs to a session.
#[inline]
pub(crate) fn is_carried(connection: &Connection) -> bool {
    shard_of(connection).is_some()
}

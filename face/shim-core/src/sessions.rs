//! Sessions: virtual connections that outlive the links that carry them.
//!
//! A session moves between links, and each link has a lock. A session's state is therefore kept here, in shards with a
//! lock each, which is taken after a link's lock and before a connection's. The connection of a session stores the
//! session's shard and slot; the session stores the link that carries it now.

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
use crate::notify::notify;
use crate::wakes::Wakes;
use crate::{listeners, lock, status, sys};

pub(crate) use calls::{accept, close, consumed, each_connection, finish, link_of, refuse, send};
pub(crate) use carriers::{
    Next, detach, end_with_server, handle_control, handle_data, is_carried_by, open, transmit,
};
pub(crate) use expiry::{due_within, is_due, run_timed_work};
pub(crate) use moves::{Order, ask_to_return, carried_by, misplaced_sessions};

/// Session ids are random, so the shards fill evenly.
const SHARDS: usize = 16;

/// `Connection::link` of a session's connection is this value plus the shard's index; `Connection::id` is the slot.
const SESSION_LINK_BASE: u32 = 1 << 31;

static TABLES: [Mutex<Option<Shard>>; SHARDS] = [const { Mutex::new(None) }; SHARDS];

struct Shard {
    port: Port<CarrierName>,
    /// Indexed by slot.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    session: Option<SessionHandle>,
    /// Index of the application's connection, until the application closes it.
    connection: Option<u32>,
}

impl Shard {
    fn new(limits: TableLimits) -> Shard {
        let mut random = [0; 8];
        if sys::random(&mut random).is_err() {
            // The time still differs between starts of this server.
            random = sys::now().as_nanos().to_ne_bytes();
        }
        Shard { port: Port::new(limits, u64::from_ne_bytes(random)), entries: Vec::new() }
    }

    fn assign_connection(&mut self, session: SessionHandle, connection: &Connection) {
        let index = session.slot() as usize;
        if self.entries.len() <= index {
            self.entries.resize(index + 1, Entry::default());
        }
        self.entries[index] = Entry { session: Some(session), connection: Some(connection.index) };
    }

    fn entry(&mut self, slot: u32) -> Option<&mut Entry> {
        self.entries.get_mut(slot as usize)
    }

    fn session(&self, slot: u32) -> Option<SessionHandle> {
        self.entries.get(slot as usize)?.session
    }

    fn connection(&self, slot: u32) -> Option<&'static Connection> {
        connections::get(self.entries.get(slot as usize)?.connection?)
    }

    /// The session of a connection; `None` if the connection was closed, and another client may use the session's slot.
    fn session_of(&self, connection: &Connection) -> Option<SessionHandle> {
        let entry = self.entries.get(connection.id.load(Ordering::Relaxed) as usize)?;
        (entry.connection == Some(connection.index)).then_some(entry.session).flatten()
    }

    /// If the session is over, frees its slot. Returns whether it is over.
    fn vacate_if_over(&mut self, slot: u32, session: SessionHandle) -> bool {
        let is_over = !self.port.contains(session);
        if is_over && let Some(entry) = self.entry(slot) {
            *entry = Entry::default();
        }
        is_over
    }

    /// Withdraws the session's connection if the application has not accepted it. Returns whether it was withdrawn.
    fn withdraw(&mut self, slot: u32, connection: &'static Connection) -> bool {
        let withdrawn = listeners::withdraw(connection);
        if withdrawn {
            if let Some(entry) = self.entry(slot) {
                entry.connection = None;
            }
            status::connection_ended(connection);
            connections::give_back(connection);
        }
        withdrawn
    }

    /// Ends the session for the application, as if the client had reset the connection.
    fn end_for_application(&mut self, slot: u32, wakes: &mut Wakes) {
        if let Some(connection) = self.connection(slot)
            && !self.withdraw(slot, connection)
        {
            status::connection_ended(connection);
            connection.note_client_closed(true);
            notify(connection, wakes);
        }
    }

    /// Whether the session has lost its connection, for instance by a close before the application accepted it.
    fn is_withdrawn(&self, slot: u32, session: SessionHandle) -> bool {
        self.session(slot) == Some(session) && self.connection(slot).is_none()
    }

    /// Applies the client's action to the application's connection. Returns the connection whose sets must be notified.
    fn apply_event(&mut self, now: Time, slot: u32, event: StreamEvent) -> Option<u32> {
        let connection = self.connection(slot)?;
        match event {
            StreamEvent::Room => connection.readiness.set_can_send(true),
            StreamEvent::Finished => connection.note_client_finished(),
            StreamEvent::Closed(_) if self.withdraw(slot, connection) => {
                self.port.close(now, self.session(slot)?, CloseReason::Normal);
                return None;
            }
            StreamEvent::Closed(reason) => connection.note_client_closed(reason != CloseReason::Normal),
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
    link.checked_sub(SESSION_LINK_BASE).filter(|&shard| (shard as usize) < SHARDS).map(|shard| shard as u8)
}

/// Whether the connection belongs to a session.
#[inline]
pub(crate) fn belongs_to_session(connection: &Connection) -> bool {
    shard_of(connection).is_some()
}

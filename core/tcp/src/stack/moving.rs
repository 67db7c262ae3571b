//! Connections that are exported to another stack, or imported from one.

use alloc::boxed::Box;

use spillway_transport::{Conn, Time};
use spillway_wire::state::ConnectionState;

use super::Stack;
use super::listen::cookie_binding;
use super::time_wait::TimeWait;
use crate::connection::Connection;
use crate::flow::Flow;
use crate::moving::ImportError;

impl Stack {
    pub(crate) fn connection(&self, conn: Conn) -> Option<&Connection> {
        self.table.get(conn)
    }

    /// Removes an exported connection. Its late segments are dropped silently; a newer SYN opens a new
    /// connection.
    pub(crate) fn remove_exported(&mut self, now: Time, conn: Conn) -> Option<Box<Connection>> {
        self.now = self.now.max(now);
        let connection = self.free(conn)?;
        self.wheel.disarm(conn.slot);
        let (flow, last) = (connection.flow, connection.final_segments(self.now));
        let expiry = self.now + self.settings.time_wait;
        let entry = TimeWait::Moved { acknowledgement: last.acknowledgement, ts_recent: last.ts_recent };
        let forgets_older = self.time_waits.add(flow, expiry, entry);
        self.counters.time_waits_forgotten += u64::from(forgets_older);
        self.counters.exported += 1;
        Some(connection)
    }

    /// Forgets that a connection was exported. Does nothing if it has come back or a new one has followed.
    pub(crate) fn forget_moved(&mut self, now: Time, flow: Flow) {
        self.now = self.now.max(now);
        if self.time_waits.has_moved(&flow) {
            self.time_waits.forget(&flow);
            self.remember_aborted(flow);
        }
    }

    /// Builds the connection of a state. The table does not have it yet.
    pub(crate) fn build_imported(
        &self,
        now: Time,
        state: &ConnectionState,
    ) -> Result<Box<Connection>, ImportError> {
        let conn = self.table.next().ok_or(ImportError::Full)?;
        Ok(Box::new(Connection::import(self.now.max(now), &self.settings, conn, state)?))
    }

    pub(crate) fn add_imported(
        &mut self,
        now: Time,
        mut connection: Box<Connection>,
    ) -> Result<Conn, ImportError> {
        self.now = self.now.max(now);
        let flow = connection.flow;
        if let Some(half_open) = self.check_imported(&connection)? {
            // The SYN of the half-open connection may be forged, so the imported connection replaces it.
            self.half_open -= 1;
            self.wheel.disarm(half_open.slot);
            self.free(half_open);
        }
        let conn = self.table.next().ok_or(ImportError::Full)?;
        connection.conn = conn;
        self.time_waits.forget(&flow);
        self.has_foreign_connections |= !self.is_local(flow.local().ip());
        let (isn, peer_isn) = connection.initial_sequence_numbers();
        let binding = cookie_binding(flow, peer_isn);
        // The connection may have begun with a valid cookie. The cookie counts as used, so that a late copy of the
        // segment that carried it opens no second connection.
        if self.cookies.is_valid(self.now, binding, isn) {
            self.used_cookies.advance_to(self.cookies.counter(self.now));
            self.used_cookies.add(binding, isn);
        }
        self.table.add(connection);
        self.counters.imported += 1;
        self.with(conn, |connection, cx| connection.push_events(cx));
        Ok(conn)
    }

    /// Whether the table can take a connection, apart from its size. Returns the half-open connection that it would replace.
    pub(crate) fn check_imported(&mut self, connection: &Connection) -> Result<Option<Conn>, ImportError> {
        if connection.listener.is_some_and(|listener| !self.listeners.contains(listener)) {
            return Err(ImportError::Contradiction("an unknown listener"));
        }
        if connection.waiting_bytes() > self.settings.reassembly_total_max.saturating_sub(self.waiting_bytes)
        {
            return Err(ImportError::TooMuch("bytes out of order of all connections"));
        }
        let existing = self.table.find(&connection.flow);
        let is_half_open = |conn| self.table.get(conn).is_some_and(Connection::is_half_open);
        if existing.is_some_and(|conn| !is_half_open(conn)) || self.time_waits.has_closed(&connection.flow) {
            return Err(ImportError::Present);
        }
        Ok(existing)
    }

    /// Remembers an aborted connection at an imported address, so that its later segments are answered by resets. Other
    /// unknown segments to such an address are ignored.
    pub(super) fn remember_aborted(&mut self, flow: Flow) {
        if !self.is_local(flow.local().ip()) {
            let expiry = self.now + self.settings.time_wait;
            let forgets_older = self.time_waits.add(flow, expiry, TimeWait::Aborted);
            self.counters.time_waits_forgotten += u64::from(forgets_older);
        }
    }
}

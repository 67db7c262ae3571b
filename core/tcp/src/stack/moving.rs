//! Connections that are exported to another stack, or imported from one.

use alloc::boxed::Box;

use spillway_transport::{Conn, Time};

use super::Stack;
use super::listen::cookie_flow;
use super::time_wait::TimeWait;
use crate::connection::Connection;
use crate::flow::Flow;
use crate::moving::ImportError;
use crate::settings::Settings;

impl Stack {
    pub(crate) fn connection(&self, conn: Conn) -> Option<&Connection> {
        self.table.get(conn)
    }

    /// Forgets an exported connection, and drops its later segments silently.
    pub(crate) fn let_go(&mut self, now: Time, conn: Conn) {
        self.now = self.now.max(now);
        let Some(connection) = self.table.get(conn) else {
            debug_assert!(false, "its state has just been exported");
            return;
        };
        let (flow, last) = (connection.flow, connection.last_words(self.now));
        self.wheel.disarm(conn.slot);
        self.free(conn);
        let expiry = self.now + self.settings.time_wait;
        let entry = TimeWait::Moved { acknowledgement: last.acknowledgement, stamps: last.stamps };
        self.counters.time_waits_forgotten += u64::from(self.time_waits.add(flow, expiry, entry));
        self.counters.exported += 1;
    }

    /// Adds an imported connection.
    pub(crate) fn take_over(
        &mut self,
        now: Time,
        import: impl FnOnce(Time, &Settings, Conn) -> Result<Connection, ImportError>,
    ) -> Result<Conn, ImportError> {
        self.now = self.now.max(now);
        let conn = self.table.next().ok_or(ImportError::Full)?;
        let mut connection = import(self.now, &self.settings, conn)?;
        let flow = connection.flow;
        if connection.late_bytes() > self.settings.reassembly_total_max.saturating_sub(self.late_bytes) {
            return Err(ImportError::TooMuch("bytes out of order of all connections"));
        }
        let there = self.table.find(&flow);
        let is_half_open = |conn| self.table.get(conn).is_some_and(Connection::is_half_open);
        if there.is_some_and(|conn| !is_half_open(conn)) || self.time_waits.has_closed(&flow) {
            return Err(ImportError::Present);
        }
        if let Some(half_open) = there {
            // A half-open connection does not prevent the import: its SYN may be forged.
            self.half_open -= 1;
            self.wheel.disarm(half_open.slot);
            self.free(half_open);
            connection.conn = self.table.next().ok_or(ImportError::Full)?;
        }
        let conn = connection.conn;
        self.time_waits.forget(&flow);
        self.has_moved_here |= *flow.local.ip() != self.settings.address;
        let (initial, peer_initial) = connection.initials();
        let ends = cookie_flow(flow, peer_initial);
        if self.cookies.is_good(self.now, ends, initial) {
            self.used_cookies.turn(self.cookies.counter(self.now));
            self.used_cookies.add(ends, initial);
        }
        self.table.add(Box::new(connection));
        self.counters.imported += 1;
        self.with(conn, |connection, cx| connection.tell(cx));
        Ok(conn)
    }

    /// Remembers an aborted connection at another address than our own, where unknown segments are otherwise ignored.
    pub(super) fn remember_broken(&mut self, flow: Flow) {
        if *flow.local.ip() != self.settings.address {
            let expiry = self.now + self.settings.time_wait;
            self.counters.time_waits_forgotten +=
                u64::from(self.time_waits.add(flow, expiry, TimeWait::Broken));
        }
    }
}

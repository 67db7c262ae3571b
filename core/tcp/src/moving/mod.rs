//! Connections move to another stack in any synchronised state (Capybara §3.3): [`Stack::export`] removes a connection,
//! and [`Stack::import`] continues it on the other stack. If the peer's packets are redirected, a move has no effect on
//! the peer.

pub(crate) mod recovery;

use alloc::boxed::Box;
use core::fmt;

use spillway_transport::{Conn, Time};
use spillway_wire::state::ConnectionState;

use crate::connection::Connection;
use crate::flow::Flow;
use crate::stack::Stack;

/// Why a connection cannot be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The connection does not exist.
    Unknown,
    /// The connection is not established yet.
    Opening,
    /// The connection is over.
    Ended,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExportError::Unknown => "there is no such connection",
            ExportError::Opening => "the connection is not established yet: try again when it is",
            ExportError::Ended => "the connection is over: there is nothing to move",
        })
    }
}

impl core::error::Error for ExportError {}

/// Why a connection cannot be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// The table of connections is full.
    Full,
    /// A connection with the same addresses and ports exists on this stack, or is in TIME-WAIT.
    Present,
    /// The connection has IPv6 addresses, which the stack's settings do not permit.
    Family,
    /// The state contradicts itself; the text names the field.
    Contradiction(&'static str),
    /// The state exceeds this stack's settings; the text names the quantity.
    TooMuch(&'static str),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Full => f.write_str("no room for another connection: raise the connection limit"),
            ImportError::Present => f.write_str("a connection with these addresses and ports exists already"),
            ImportError::Family => f.write_str(
                "the stack's settings do not permit IPv6: it needs Resolver::Driver and an MTU of 1,280 bytes",
            ),
            ImportError::Contradiction(field) => write!(f, "the state contradicts itself: {field}"),
            ImportError::TooMuch(quantity) => write!(f, "more {quantity} than this stack's settings allow"),
        }
    }
}

impl core::error::Error for ImportError {}

/// A connection that a stack can import.
#[derive(Debug)]
pub struct Importable(Box<Connection>);

impl Stack {
    /// Removes a connection, and returns its whole state. Sends nothing to the peer. Segments of the connection that
    /// still arrive here are dropped silently, because a reset would end the connection on its new stack. A newer SYN with
    /// its ends opens a connection: a driver that may import the connection again passes no such SYN before, and
    /// [keeps a place](Self::keep_places) for it. Queued bytes are moved into the state without a copy.
    ///
    /// # Errors
    /// On an error the connection is unchanged.
    pub fn export(&mut self, now: Time, conn: Conn) -> Result<ConnectionState, ExportError> {
        let stage = self.connection(conn).ok_or(ExportError::Unknown)?.exported_stage()?;
        let connection = self.remove_exported(now, conn).ok_or(ExportError::Unknown)?;
        Ok(connection.export(now, stage))
    }

    /// An exported connection does not exist on another stack any more: from now on its segments are answered by resets
    /// (RFC 9293 §3.10.7.1). Does nothing if this stack has the connection or has not exported it.
    pub fn end_exported(&mut self, now: Time, flow: Flow) {
        self.forget_moved(now, flow);
    }

    /// Continues an exported connection, and returns its new id; there is no `Opened` event. Its local address may
    /// differ from the stack's own; the stack then also accepts segments to that address. The send queue shares the
    /// memory of the state's queue until its bytes are acknowledged. The application gets the state's attachment from
    /// the caller.
    ///
    /// # Errors
    /// On an error nothing has changed.
    pub fn import(&mut self, now: Time, state: &ConnectionState) -> Result<Conn, ImportError> {
        let connection = self.build_imported(now, state)?;
        self.add_imported(now, connection)
    }

    /// Checks whether [`import`](Self::import) of this state would succeed now. [`import_checked`](Self::import_checked)
    /// imports the connection later; its timers run from now on.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn check_import(&mut self, now: Time, state: &ConnectionState) -> Result<Importable, ImportError> {
        let connection = self.build_imported(now, state)?;
        self.check_imported(&connection)?;
        Ok(Importable(connection))
    }

    /// As [`import`](Self::import), of a state that this stack has checked.
    ///
    /// # Errors
    /// There is no room any more: see [`keep_places`](Self::keep_places). Or a connection with the same ends exists now, or
    /// the listener does not exist any more.
    pub fn import_checked(&mut self, now: Time, importable: Importable) -> Result<Conn, ImportError> {
        self.add_imported(now, importable.0)
    }
}

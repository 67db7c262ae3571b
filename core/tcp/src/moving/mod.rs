//! Connections that move to another stack, whatever is under way (Capybara §3.3): [`Stack::export`] takes one out,
//! [`Stack::import`] goes on with it, on this host or another. The peer does not notice, if its segments follow.

pub(crate) mod recovery;

use core::fmt;

use spillway_transport::{Conn, Time};
use spillway_wire::state::ConnectionState;

use crate::connection::Connection;
use crate::stack::Stack;

/// Why a connection cannot be taken out: its owner's mistake, or a matter of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// There is no such connection.
    Unknown,
    /// It is not established yet.
    Opening,
    /// It is over.
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

/// Why a connection cannot be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// The table is full.
    Full,
    /// It is here already, or was until now.
    Present,
    /// The stack has no path for IPv6.
    Family,
    /// The state contradicts itself, in this.
    Contradiction(&'static str),
    /// More than this stack's settings allow, of this.
    TooMuch(&'static str),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImportError::Full => f.write_str("no room for another connection: raise the connection limit"),
            ImportError::Present => f.write_str("there is a connection between these two ends already"),
            ImportError::Family => f.write_str("connections over IPv6 cannot be gone on with here"),
            ImportError::Contradiction(what) => write!(f, "the state contradicts itself: {what}"),
            ImportError::TooMuch(what) => write!(f, "more {what} than this stack's settings allow"),
        }
    }
}

impl core::error::Error for ImportError {}

impl Stack {
    /// Takes a connection out, with everything that is known of it. Nothing is told to the peer; what still comes for it
    /// is dropped in silence, so that a reset does not end what goes on elsewhere.
    ///
    /// # Errors
    /// The connection stays as it was.
    pub fn export(&mut self, now: Time, conn: Conn) -> Result<ConnectionState, ExportError> {
        let connection = self.connection(conn).ok_or(ExportError::Unknown)?;
        let state = connection.export(now)?;
        self.let_go(now, conn);
        Ok(state)
    }

    /// Goes on with a connection. Its local address may be another than the stack's own: segments for it are taken where they
    /// come. The application learns its name here, there is no event.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn import(&mut self, now: Time, state: &ConnectionState) -> Result<Conn, ImportError> {
        self.take_over(now, |now, settings, conn| Connection::import(now, settings, conn, state))
    }
}

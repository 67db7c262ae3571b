//! Why a run could not be begun or finished.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Sorted by who can do something about it.
#[derive(Debug)]
pub enum Error {
    /// The options do not fit together; the text says which and what to give instead.
    Usage(String),
    /// The server could not be reached, or did not behave before the run began.
    Server {
        /// Which.
        address: SocketAddr,
        /// What happened.
        what: String,
    },
    /// This machine refused something.
    System {
        /// What was tried, and what to do.
        what: String,
        /// The kernel's reason.
        cause: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, cause: impl Into<io::Error>) -> Error {
        Error::System { what: what.into(), cause: cause.into() }
    }

    pub(crate) fn server(address: SocketAddr, what: impl Into<String>) -> Error {
        Error::Server { address, what: what.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(what) => f.write_str(what),
            Error::Server { address, what } => write!(f, "server {address}: {what}"),
            Error::System { what, cause } => write!(f, "{what}: {cause}"),
        }
    }
}

impl std::error::Error for Error {}

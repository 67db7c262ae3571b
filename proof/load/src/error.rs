//! Errors that prevent a run or end it early.

use std::fmt;
use std::io;
use std::net::SocketAddr;

/// The reason why a run did not start or did not finish: its options, the server, or this machine.
#[derive(Debug)]
pub enum Error {
    /// The options do not fit together. The text names them and the options to give instead.
    Usage(String),
    /// The server could not be reached, or gave a wrong reply before the run.
    Server {
        /// The server's address.
        address: SocketAddr,
        /// The failed operation.
        what: String,
    },
    /// A system call failed.
    System {
        /// The failed operation and the next step.
        what: String,
        /// The kernel's error.
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

//! What the operator should know about links.

use core::fmt;
use core::net::SocketAddr;

use spillway_batch::{ForbiddenAddress, KeyId, LinkError, Role};

/// A change of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNotice {
    /// A helper, or a library client, has authenticated.
    Up {
        /// Its address.
        peer: SocketAddr,
        /// Its role.
        role: Role,
        /// The key with which it has authenticated.
        key: KeyId,
    },
    /// A link has ended, and its clients with it.
    Down {
        /// The peer's address.
        peer: SocketAddr,
        /// Number of its clients.
        clients: usize,
        /// The error; `None`: the connection has ended.
        error: Option<LinkError>,
    },
    /// A peer was not accepted. Reported at most once in ten seconds.
    Rejected {
        /// The peer's address.
        peer: SocketAddr,
        /// Why.
        error: LinkError,
        /// Rejected peers since the last report.
        count: u64,
    },
    /// A helper has stated a client address that is not allowed. Reported at most once in ten seconds.
    Forbidden {
        /// The address.
        client: SocketAddr,
        /// Why it is not allowed.
        why: ForbiddenAddress,
        /// Refused clients since the last report.
        count: u64,
    },
    /// Clients were reset: too many bytes waited for the application. Reported at most once in ten seconds.
    NoRoom {
        /// Clients that were reset since the last report.
        count: u64,
    },
}

impl LinkNotice {
    /// Whether something is wrong.
    pub fn is_problem(&self) -> bool {
        !matches!(self, LinkNotice::Up { .. } | LinkNotice::Down { error: None, .. })
    }
}

impl fmt::Display for LinkNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkNotice::Up { peer, role: Role::Helper, key } => {
                write!(f, "link of helper {peer} up, key {key}")
            }
            LinkNotice::Up { peer, role: Role::Client, key } => {
                write!(f, "link of library client {peer} up, key {key}")
            }
            LinkNotice::Down { peer, clients, error: None } => {
                write!(f, "link of {peer} down, with {clients} clients: the connection has ended")
            }
            LinkNotice::Down { peer, clients, error: Some(error) } => {
                write!(f, "link of {peer} down, with {clients} clients: {error}")
            }
            LinkNotice::Rejected { peer, error, count } => {
                write!(f, "link of {peer} rejected ({count} since the last report): {error}")
            }
            LinkNotice::Forbidden { client, why, count } => {
                write!(f, "client {client} refused ({count} since the last report): {why}")
            }
            LinkNotice::NoRoom { count } => {
                write!(
                    f,
                    "{count} helped clients were reset since the last report: too many bytes waited for the server"
                )
            }
        }
    }
}

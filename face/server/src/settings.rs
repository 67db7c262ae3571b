//! What a link port accepts.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits};
use spillway_policy::release::ReleaseSettings;
use spillway_session::TableLimits;

use crate::threads::Threads;

/// What a link port accepts, and its bounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Keys of helpers and of clients. Empty: only a loopback address can be bound, and everybody on this machine
    /// is accepted.
    pub ring: KeyRing,
    /// Which client addresses helpers may carry.
    pub rules: AddressRules,
    /// Bounds of each link.
    pub limits: Limits,
    /// Whether links are encrypted.
    pub encryption: Encryption,
    /// Links at a time. One for each helper thread, and one for each client that speaks links itself.
    pub links_max: usize,
    /// Links at a time that have not authenticated yet. When there are more, one of the source address that holds most
    /// is dropped, see [`spillway_batch::Unauthenticated`].
    pub unauthenticated: Bounds,
    /// Bounds of sessions.
    pub sessions: TableLimits,
    /// Several link ports share the address, and the kernel spreads links over them. Without
    /// [`threads`](Self::threads) sessions are refused then: one that returns might meet another port.
    pub reuse_port: bool,
    /// The threads of this process that share the address, each with [`Links`](crate::Links) of its own: a clone of the
    /// same for each. A session stays with the thread where it began, whichever of them its next link meets. Says
    /// [`reuse_port`](Self::reuse_port) too.
    pub threads: Option<Threads>,
    /// Sends helped sessions back when requests have been few and fast for a while; each thread by what it sees itself. A
    /// request is what comes as one [`Event::Data`](crate::Event::Data), its service the time from
    /// [`decompose`](crate::Links::decompose) to the turn's [`flush`](crate::Links::flush), as the application tells it:
    /// replies that are composed in later turns look fast. `None`: only [`release`](crate::Links::release) does, and
    /// clients when it is calm.
    pub release: Option<ReleaseSettings>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ring: KeyRing::new(),
            rules: AddressRules::default(),
            limits: Limits::default(),
            encryption: Encryption::Preferred,
            links_max: 16_384,
            unauthenticated: Bounds::DEFAULT,
            sessions: TableLimits::default(),
            reuse_port: false,
            threads: None,
            release: Some(ReleaseSettings::default()),
        }
    }
}

/// A link port cannot be opened.
#[derive(Debug)]
pub enum BindError {
    /// Without a key, a link port must stay on loopback.
    NeedsKey(SocketAddr),
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::NeedsKey(address) => write!(
                f,
                "link port {address} can be reached from other machines, or encryption is required, so it needs a key: \
                 make one with `spillway key new FILE`, or bind it to 127.0.0.1"
            ),
            BindError::Listen(address, error) => write!(f, "cannot listen on link port {address}: {error}"),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::NeedsKey(_) => None,
            BindError::Listen(_, error) => Some(error),
        }
    }
}

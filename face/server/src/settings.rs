//! Settings of a link port.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_auth::KeyRing;
use spillway_batch::unauthenticated::Bounds;
use spillway_batch::{AddressRules, Encryption, Limits};
use spillway_policy::release::{OutOfBounds, ReleaseSettings};
use spillway_session::TableLimits;

use crate::threads::Threads;

/// Which links and sessions a link port accepts, and its bounds.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Keys of helpers and of clients. Empty: only a loopback address can be bound, and every process on this host
    /// is accepted.
    pub keys: KeyRing,
    /// Client addresses that helpers may carry.
    pub rules: AddressRules,
    /// Bounds of each link.
    pub limits: Limits,
    /// Whether links are encrypted.
    pub encryption: Encryption,
    /// Maximum of concurrent links: one for each helper thread, and one for each library client. Default 16,384.
    pub links_max: usize,
    /// Maximum of concurrent links that have not authenticated yet. A newer link replaces one from the source address with
    /// the most links, see [`spillway_batch::Unauthenticated`].
    pub unauthenticated: Bounds,
    /// Bounds of sessions.
    pub sessions: TableLimits,
    /// Several link ports share the address (`SO_REUSEPORT`), and the kernel distributes links over them. Without
    /// [`threads`](Self::threads) sessions are then refused, because a session's next link might reach another port.
    pub reuse_port: bool,
    /// The threads of this process that share the address, each with [`Links`](crate::Links) of its own and a clone of
    /// the same value. A session stays with the thread where it began, also when its next link reaches another thread.
    /// Implies [`reuse_port`](Self::reuse_port).
    pub threads: Option<Threads>,
    /// Releases helped sessions when requests have been few and fast for a while; each thread by its own measurements. A
    /// request is one [`Event::Data`](crate::Event::Data); its service time is the time from
    /// [`decompose`](crate::Links::decompose) to the turn's [`flush`](crate::Links::flush), by the times that the
    /// application passes, so replies composed in later turns look fast. `None`: sessions return only after
    /// [`release`](crate::Links::release), or when their clients decide.
    pub release: Option<ReleaseSettings>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            keys: KeyRing::new(),
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

/// Why a link port cannot be opened.
#[derive(Debug)]
pub enum BindError {
    /// There is no key, and the address is not a loopback address or encryption is required.
    NeedsKey(SocketAddr),
    /// A setting of [`Settings::release`] is out of its bounds.
    Release(OutOfBounds),
    /// A system call failed; most often the address is in use.
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
            BindError::Release(error) => write!(f, "release settings: {error}"),
            BindError::Listen(address, error) => write!(f, "cannot listen on link port {address}: {error}"),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BindError::NeedsKey(_) => None,
            BindError::Release(error) => Some(error),
            BindError::Listen(_, error) => Some(error),
        }
    }
}

//! Where a connection may go, and its bounds.

use std::net::SocketAddr;
use std::time::Duration;

use spillway_auth::Key;
use spillway_batch::{Encryption, Limits, OpenerConfig, PolicyKind, Role};

/// A link port: a helper's, or the server's own.
#[derive(Clone, Debug)]
pub struct LinkTarget {
    /// The link port's address.
    pub address: SocketAddr,
    /// The key that it accepts of clients. For a link port on loopback without keys: [`Key::loopback_only`].
    pub key: Key,
    /// Which server is wanted, where a helper's link port serves several; `None` for the only one.
    pub server: Option<SocketAddr>,
    /// Whether links to it are encrypted.
    pub encryption: Encryption,
}

impl LinkTarget {
    /// A link of one connection's own: nothing to wait for, and whoever uses it has deadlines of its own.
    pub(crate) fn opener(&self, limits: Limits) -> OpenerConfig {
        OpenerConfig {
            role: Role::Client,
            key: self.key.clone(),
            limits: Limits { connections_max: 1, handshake_timeout: Duration::MAX, ..limits },
            policy: PolicyKind::Fixed { delay: Duration::ZERO, bytes: 0 },
            encryption: self.encryption,
        }
    }
}

/// How a connection's bytes shall travel.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// Plain TCP to the server's ordinary port.
    Direct,
    /// A link.
    Link(&'a LinkTarget),
}

/// Bounds of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long TCP may take to connect.
    pub connect_timeout: Duration,
    /// How long a link may take from then on until the server's application has accepted.
    pub accepted_timeout: Duration,
    /// While helped, the direct connection stays open and idle.
    pub keep_direct: bool,
    /// Bytes of replies that a link may carry before they are received here.
    pub window_bytes: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            connect_timeout: Duration::from_secs(5),
            accepted_timeout: Duration::from_secs(5),
            keep_direct: true,
            window_bytes: 256 * 1024,
        }
    }
}

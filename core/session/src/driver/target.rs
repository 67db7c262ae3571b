//! A link port that a session can use.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::Key;
use spillway_batch::{Encryption, Limits, OpenerConfig, PolicyKind, Role};

/// A link port: a helper's, or the server's own.
#[derive(Clone, Debug)]
pub struct LinkTarget {
    /// The link port's address.
    pub address: SocketAddr,
    /// A client key that the link port accepts. For a link port on loopback without keys: [`Key::loopback_only`].
    pub key: Key,
    /// The server to reach, where a helper's link port serves several; `None` for the only one.
    pub server: Option<SocketAddr>,
    /// Whether links to it are encrypted.
    pub encryption: Encryption,
}

impl LinkTarget {
    /// The configuration of a link for one connection: messages leave without delay, and the handshake has no timeout
    /// of its own because the user of the link sets a deadline.
    pub fn opener(&self, limits: Limits) -> OpenerConfig {
        OpenerConfig {
            role: Role::Client,
            key: self.key.clone(),
            limits: Limits { connections_max: 1, handshake_timeout: Duration::MAX, ..limits },
            policy: PolicyKind::Fixed { interval: Duration::ZERO, size_bytes: 0 },
            encryption: self.encryption,
        }
    }
}

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
    /// Maximum of concurrent links. Each thread of a helper opens at least one, and each library client one. Default
    /// 16,384.
    pub links_max: usize,
    /// Maximum of concurrent links that have not authenticated yet. A newer link replaces one from the source address with
    /// the most links, see [`spillway_batch::Unauthenticated`].
    pub unauthenticated: Bounds,
    /// Bounds of sessions.
    pub sessions: TableLimits,
    /// Several [`Links`](crate::Links) share the address (`SO_REUSEPORT`), and the kernel distributes links over them.
    /// Without [`threads`](Self::threads) sessions are then refused: the next link of a session might reach other
    /// `Links`.
    pub reuse_port: bool,
    /// The threads of this process that share the address. Each thread has its own [`Links`](crate::Links), whose
    /// settings hold a clone of one [`Threads`]. A session stays with the thread where it began, also when its next
    /// link reaches another thread. Implies [`reuse_port`](Self::reuse_port).
    pub threads: Option<Threads>,
    /// Releases helped sessions when requests have been few and fast for a while. Each thread decides from its own
    /// measurements. A request is one [`Event::Data`](crate::Event::Data); its service time is the difference between
    /// the `now` of [`decompose`](crate::Links::decompose) and that of the same turn's [`flush`](crate::Links::flush).
    /// A reply that is composed in a later turn is not included, so its request counts as fast. `None`: sessions return
    /// only after [`release`](crate::Links::release), or when their clients decide.
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
    /// There is no key, and the address is not a loopback address.
    NeedsKeyForAddress(SocketAddr),
    /// There is no key, and encryption is required.
    NeedsKeyForEncryption(SocketAddr),
    /// A setting of [`Settings::release`] is out of its bounds.
    Release(OutOfBounds),
    /// The address cannot be listened on; most often it is in use.
    Listen(SocketAddr, io::Error),
    /// The host lacks something that every link port needs, such as descriptors or random bytes.
    Host(io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::NeedsKeyForAddress(address) => write!(
                f,
                "link port {address} can be reached from other hosts, so it needs a key: make one with \
                 `spillway key new FILE`, or bind the port to 127.0.0.1"
            ),
            BindError::NeedsKeyForEncryption(address) => write!(
                f,
                "link port {address} requires encryption, so it needs a key: make one with `spillway key new FILE`, or \
                 do not require encryption"
            ),
            BindError::Release(error) => write!(f, "release settings: {error}"),
            BindError::Listen(address, error) => {
                write!(f, "cannot listen on link port {address}: {error}")?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => f.write_str(
                        "; another program listens there (ss -ltnp shows which): give another port",
                    ),
                    io::ErrorKind::AddrNotAvailable => {
                        f.write_str("; no interface of this host has the address")
                    }
                    _ => Ok(()),
                }
            }
            BindError::Host(error) => write!(
                f,
                "this host cannot open a link port: {error}; check its limits of descriptors and memory (ulimit -n)"
            ),
        }
    }
}

// No `source`: the text contains the cause, and a program that prints the chain would print it twice.
impl std::error::Error for BindError {}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_error_has_its_cause_once_and_the_next_step() {
        let address = SocketAddr::from(([127, 0, 0, 1], 11_411));
        let in_use = BindError::Listen(address, io::ErrorKind::AddrInUse.into());
        let text = in_use.to_string();
        assert!(
            text.starts_with("cannot listen on link port 127.0.0.1:11411: ") && text.contains("ss -ltnp"),
            "{text}"
        );
        let host = BindError::Host(io::Error::other("no random bytes"));
        let text = host.to_string();
        assert!(
            text.contains("this host") && text.contains("no random bytes") && !text.contains("listen"),
            "{text}"
        );
        for error in [in_use, host] {
            assert!(error.source().is_none(), "{error}");
        }
    }
}

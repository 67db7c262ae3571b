//! What can keep a helper from starting, or from taking other settings.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_daemon::PortError;
use spillway_net::BindError;
use spillway_relay::ConfigError;

/// Why a helper does not start, or does not take other settings. Its text tells the operator the next step.
#[derive(Debug)]
pub enum StartError {
    /// Two services of one name.
    SameName(String),
    /// Two uses of one address.
    SameAddress(SocketAddr),
    /// A service that no client can reach.
    NoListener(String),
    /// Library clients from other hosts need a key.
    NoClientKey {
        /// Of which service.
        service: String,
        /// Where they would come in.
        address: SocketAddr,
    },
    /// Encryption is required, and a key is missing.
    EncryptionWithoutKey(String),
    /// Two services under one prefix of etcd, where clients of one would find the other.
    SamePlace {
        /// Their names.
        services: [String; 2],
    },
    /// The relay cannot serve this.
    Relay(ConfigError),
    /// An address cannot be listened on.
    Bind(BindError),
    /// More listening addresses than there are places for.
    Listeners,
    /// Metrics cannot be served, or the admin socket cannot be made.
    Port(PortError),
    /// A network thread does not answer.
    Silent,
    /// The host gave no random bytes, no thread or no descriptor.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::SameName(name) => write!(f, "two services are named {name}: give each its own name"),
            StartError::SameAddress(address) => write!(
                f,
                "clients of two kinds or services would come in at {address}: give each its own address"
            ),
            StartError::NoListener(name) => write!(
                f,
                "service {name} has no port for clients: give --listen ADDR (listen) for plain clients, \
                 --link-listen ADDR (link_listen) for library clients, or both"
            ),
            StartError::NoClientKey { service, address } => write!(
                f,
                "service {service} would take library clients of other hosts at {address} without a key: \
                 give --client-key FILE (client_key_files), or listen on loopback"
            ),
            StartError::EncryptionWithoutKey(service) => write!(
                f,
                "service {service} requires encryption, and links without a key are not encrypted: give --key FILE \
                 (key_files), and --client-key FILE (client_key_files) where library clients come in"
            ),
            StartError::SamePlace { services: [one, other] } => write!(
                f,
                "services {one} and {other} are registered under one prefix, where clients of one would find \
                 the other: give each its own (register)"
            ),
            StartError::Relay(error) => error.fmt(f),
            StartError::Bind(error) => error.fmt(f),
            StartError::Listeners => {
                f.write_str("more listening addresses than a helper can have: use fewer")
            }
            StartError::Port(PortError::Metrics { address, error }) => {
                write!(
                    f,
                    "cannot serve metrics at {address}: {error}; give another address (--metrics, metrics)"
                )
            }
            StartError::Port(PortError::Socket { path, error }) => {
                write!(f, "cannot serve status at {}: {error}", path.display())?;
                match error.kind() {
                    io::ErrorKind::AddrInUse => f.write_str(
                        "; another helper answers there, or there is something that is no socket: name \
                         another path, or remove it",
                    ),
                    io::ErrorKind::NotFound => f.write_str("; create its directory"),
                    _ => Ok(()),
                }
            }
            StartError::Silent => f.write_str("a network thread does not answer: restart the helper"),
            StartError::Host(error) => write!(f, "this host cannot run a helper: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

//! Errors of starting a helper, or of changing its settings.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use spillway_daemon::PortError;
use spillway_net::BindError;
use spillway_relay::ConfigError;

use crate::engine::XdpError;

/// Why a helper does not start, or refuses new settings. The text includes the operator's next step.
#[derive(Debug)]
pub enum StartError {
    /// Two services have this name.
    SameName(String),
    /// This address is used twice.
    SameAddress(SocketAddr),
    /// This service has no address for clients.
    NoListener(String),
    /// Library clients from other hosts need a key.
    NoClientKey {
        /// Name of the service.
        service: String,
        /// The listening address.
        address: SocketAddr,
    },
    /// This service requires encryption, and a key is missing.
    EncryptionWithoutKey(String),
    /// Two services have the same prefix in etcd: clients of one would find the other.
    SamePrefix {
        /// Names of the services.
        services: [String; 2],
    },
    /// The relay refuses the settings.
    Relay(ConfigError),
    /// A listening address cannot be bound.
    Bind(BindError),
    /// There are more than 65,536 listening addresses.
    Listeners,
    /// The HTTP port or the admin socket cannot be bound.
    Port(PortError),
    /// The engine `xdp` cannot be used.
    Xdp(XdpError),
    /// A network thread does not answer.
    Silent,
    /// These network threads have not answered after others had applied new settings.
    SilentAfterChange {
        /// Numbers of the threads.
        threads: Vec<usize>,
    },
    /// The host could not provide random bytes, a thread or a descriptor.
    Host(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::SameName(name) => write!(f, "two services are named {name}: give each its own name"),
            StartError::SameAddress(address) => write!(
                f,
                "two services, or listen and link_listen, use the address {address}: give each its own address"
            ),
            StartError::NoListener(name) => write!(
                f,
                "service {name} has no port for clients: give --listen ADDR (listen) for plain clients, \
                 --link-listen ADDR (link_listen) for library clients, or both"
            ),
            StartError::NoClientKey { service, address } => write!(
                f,
                "service {service} would accept library clients of other hosts at {address} without a key: \
                 give --client-key FILE (client_key_files), or listen on loopback"
            ),
            StartError::EncryptionWithoutKey(service) => write!(
                f,
                "service {service} requires encryption, and links without a key are not encrypted: give --key FILE \
                 (key_files), and --client-key FILE (client_key_files) if library clients connect"
            ),
            StartError::SamePrefix { services: [one, other] } => write!(
                f,
                "services {one} and {other} are registered under one prefix, where clients of one would find \
                 the other: give each its own (register)"
            ),
            StartError::Relay(error) => error.fmt(f),
            StartError::Bind(error) => error.fmt(f),
            StartError::Listeners => {
                f.write_str("too many listening addresses (listen, link_listen): use at most 65,536")
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
                        "; another helper answers there, or the path is not a socket: name another path, or \
                         remove the file",
                    ),
                    io::ErrorKind::NotFound => f.write_str("; create its directory"),
                    _ => Ok(()),
                }
            }
            StartError::Xdp(error) => error.fmt(f),
            StartError::Silent => f.write_str("a network thread does not answer: restart the helper"),
            StartError::SilentAfterChange { threads } => write!(
                f,
                "the new settings are in force, except on network threads that do not answer ({threads:?}): restart \
                 the helper if they stay silent"
            ),
            StartError::Host(error) => write!(f, "this host cannot run a helper: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

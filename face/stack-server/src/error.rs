//! Why a server cannot start.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use spillway_bpf::BpfError;
use spillway_daemon::PortError;
use spillway_kernel_tcp::OpenError;
use spillway_keys::KeyFileError;
use spillway_tcp::SettingsError;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::AdapterError;

/// Why a server cannot start. Each text contains the operator's next step.
#[derive(Debug)]
pub enum EngineError {
    /// The interface cannot be shared.
    Adapter(AdapterError),
    /// The steering program has no room for the service.
    Program(BpfError),
    /// The kernel's TCP cannot be used.
    Kernel(OpenError),
    /// A setting of the stack is not valid.
    Stack(SettingsError),
    /// The kernel has sockets at the stack's port.
    Port(SocketAddr, io::Error),
    /// The socket for datagrams of the switch and of other servers cannot be opened.
    Datagrams(SocketAddr, io::Error),
    /// No server of the file has the interface's Ethernet address.
    NoOwnPeer {
        /// The interface.
        interface: String,
        /// Its Ethernet address.
        mac: Mac,
    },
    /// No server of the file has the service's own address as its place.
    NoOriginal(SocketAddr),
    /// The settings contradict each other.
    Settings(String),
    /// The file with the servers cannot be used.
    File(PathBuf, String),
    /// A key file cannot be used.
    Key(KeyFileError),
    /// The admin socket or the HTTP port cannot be opened.
    Ports(PortError),
    /// The host lacks something, such as random bytes or descriptors.
    Host(io::Error),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Adapter(error) => error.fmt(f),
            EngineError::Program(error) => error.fmt(f),
            EngineError::Kernel(error) => error.fmt(f),
            EngineError::Stack(error) => error.fmt(f),
            EngineError::Port(address, error) => write!(
                f,
                "{address}: {error}; a program of this host has the port: end it (`ss -tlnp`), or give another place"
            ),
            EngineError::Datagrams(address, error) => write!(
                f,
                "cannot receive datagrams at {address}: {error}; `address` of this server must be an address of this host \
                 with a free UDP port"
            ),
            EngineError::NoOwnPeer { interface, mac } => write!(
                f,
                "no [[moves.peer]] has the Ethernet address {mac} of interface {interface}: add this server, or correct its \
                 `mac`"
            ),
            EngineError::NoOriginal(service) => write!(
                f,
                "no [[moves.peer]] has the place {service}: the server to which clients connect has the service's own \
                 address as its `place`"
            ),
            EngineError::Settings(what) => f.write_str(what),
            EngineError::File(path, what) => write!(f, "{}: {what}", path.display()),
            EngineError::Key(error) => error.fmt(f),
            EngineError::Ports(PortError::Socket { path, error }) => {
                write!(
                    f,
                    "admin socket {}: {error}; give another path, or end the program that has it",
                    path.display()
                )
            }
            EngineError::Ports(PortError::Metrics { address, error }) => {
                write!(f, "metrics at {address}: {error}; give another address")
            }
            EngineError::Host(error) => write!(f, "the host refuses: {error}"),
        }
    }
}

impl std::error::Error for EngineError {}

//! Why a helper cannot use the user-level TCP stack.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use spillway_bpf::ENDPOINTS_MAX;
use spillway_tcp::SettingsError;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{AdapterError, InterfaceError, InterruptsError, PortsError};

use crate::config::SeparateAddress;

/// Why a helper cannot use the engine `xdp`. The text includes the operator's next step.
#[derive(Debug)]
pub enum XdpError {
    /// No interface is configured.
    NoInterface,
    /// The stack cannot listen at an address.
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why the stack cannot listen there.
        problem: AddressProblem,
    },
    /// There are more listening addresses than the steering program has room for.
    TooManyListeners {
        /// The number of configured addresses.
        configured: usize,
        /// The number of other addresses that still have a listener or clients.
        leaving: usize,
    },
    /// The engine is `auto`, and the driver of the interface has no XDP.
    GenericMode {
        /// The interface's name.
        interface: String,
    },
    /// A server is not reached through the interface.
    Server {
        /// The server's address.
        address: SocketAddr,
        /// This host's address towards the server; `None`: no route.
        from: Option<IpAddr>,
        /// The interface's name.
        interface: String,
    },
    /// A server is not reached from the separate address.
    Unreachable {
        /// The server's address.
        server: IpAddr,
        /// The separate address.
        separate: SeparateAddress,
    },
    /// This host's kernel has the separate address.
    KernelHas(Ipv4Addr),
    /// Another host has the separate address.
    OtherHas {
        /// The address.
        ip: Ipv4Addr,
        /// The other host's Ethernet address.
        mac: Mac,
    },
    /// A server is on this host.
    LocalServer(SocketAddr),
    /// Servers are reached from several addresses of this host.
    SeveralOwn {
        /// Two of the addresses.
        own: [IpAddr; 2],
    },
    /// A reload adds the first server of an address family.
    NewFamily(IpAddr),
    /// The interface cannot be used.
    Interface(InterfaceError),
    /// The interface cannot be shared with the kernel.
    Adapter(AdapterError),
    /// The interface could not be set up as the engine needs it.
    Configure {
        /// The interface's name.
        interface: String,
        /// The step that failed.
        what: String,
        /// A command that performs the step.
        next: String,
        /// The system's error.
        source: io::Error,
    },
    /// The interface's interrupts cannot be deferred.
    Interrupts(InterruptsError),
    /// The kernel may use the stack's local ports.
    Ports(PortsError),
    /// The stack refuses a setting.
    Stack(SettingsError),
    /// The system has failed.
    Host(io::Error),
}

/// Why the stack cannot listen at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressProblem {
    /// It is a wildcard, which stands for every address of the host.
    Wildcard,
    /// It is a loopback address.
    Loopback,
    /// It is not the helper's separate address, which is given here.
    NotSeparate(Ipv4Addr),
    /// The interface does not have the address.
    NotOfInterface {
        /// The interface's name.
        interface: String,
        /// The addresses of the interface.
        own: Vec<IpAddr>,
    },
}

impl fmt::Display for AddressProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressProblem::Wildcard => f.write_str(
                "the engine xdp listens at single addresses of its interface: give HOST:PORT with one of them",
            ),
            AddressProblem::Loopback => f.write_str(
                "the engine xdp does not see loopback: give an address of its interface, or use the engine sockets",
            ),
            AddressProblem::NotSeparate(own) => write!(
                f,
                "the helper has the address {own} alone (address in [helper.xdp]): give {own}:PORT, or leave out address to \
                 share the interface's addresses"
            ),
            AddressProblem::NotOfInterface { interface, own } => {
                write!(f, "interface {interface} does not have this address; it has ")?;
                match own.as_slice() {
                    [] => f.write_str("none"),
                    own => {
                        let own: Vec<String> = own.iter().map(IpAddr::to_string).collect();
                        f.write_str(&own.join(", "))
                    }
                }
            }
        }
    }
}

impl fmt::Display for XdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XdpError::NoInterface => f.write_str(
                "the engine xdp needs the network interface that it uses: give --interface IF (interface = \"IF\"); \
                 `ip link` lists them",
            ),
            XdpError::Listen { address, problem } => write!(f, "cannot listen at {address}: {problem}"),
            XdpError::TooManyListeners { configured, leaving: 0 } => write!(
                f,
                "{configured} listening addresses are configured, and the engine xdp has room for {ENDPOINTS_MAX}: run several \
                 helpers, each on an interface of its own, or use the engine sockets"
            ),
            XdpError::TooManyListeners { configured, leaving } => write!(
                f,
                "{configured} listening addresses are configured, and {leaving} others still have a listener or clients: \
                 the engine xdp has room for {ENDPOINTS_MAX}; reload with fewer changes, or when those clients have left"
            ),
            XdpError::GenericMode { interface } => write!(
                f,
                "the driver of interface {interface} has no XDP, and generic mode is slow and drops joined packets: use \
                 engine = \"xdp\" to take it all the same"
            ),
            XdpError::Server { address, from: Some(from), interface } => write!(
                f,
                "server {address} is reached from {from}, which is not an address of interface {interface}: the engine \
                 xdp needs the interface that leads to the server (`ip route get {}`)",
                address.ip()
            ),
            XdpError::Server { address, from: None, interface } => write!(
                f,
                "server {address} cannot be reached through interface {interface}: `ip route get {}` shows the way",
                address.ip()
            ),
            XdpError::Unreachable { server, separate } => f.write_str(&unreachable_text(separate, *server)),
            XdpError::KernelHas(ip) => write!(
                f,
                "this host has the address {ip}, which is to be the helper's alone (address in [helper.xdp]): remove it from the \
                 host (`ip addr show to {ip}` names the interface), or leave out address to share it"
            ),
            XdpError::OtherHas { ip, mac } => write!(
                f,
                "the host with the Ethernet address {mac} has the address {ip}, which is to be the helper's alone (address in \
                 [helper.xdp]): give another address, or remove it there"
            ),
            XdpError::LocalServer(address) => write!(
                f,
                "server {address} is on this host, and the engine xdp sees only what passes its interface: run the helper \
                 on another host, or use the engine sockets"
            ),
            XdpError::SeveralOwn { own: [one, other] } => write!(
                f,
                "servers are reached from {one} and from {other}: the engine xdp uses one address for all of them; run \
                 a helper for each"
            ),
            XdpError::NewFamily(own) => write!(
                f,
                "the engine xdp has no connections from {own} yet: restart the helper for the first server that is reached \
                 from there"
            ),
            XdpError::Interface(error) => error.fmt(f),
            XdpError::Adapter(error) => error.fmt(f),
            XdpError::Configure { interface, what, next, source } => write!(
                f,
                "interface {interface}: cannot {what}: {source}; run `{next}`, and leave out configure_interface if the driver \
                 cannot do it"
            ),
            XdpError::Interrupts(error) => error.fmt(f),
            XdpError::Ports(error @ PortsError::Used { .. }) => write!(f, "{error}: ports in [helper.xdp]"),
            XdpError::Ports(error) => error.fmt(f),
            XdpError::Stack(error) => error.fmt(f),
            XdpError::Host(error) => write!(f, "this host cannot run the engine xdp: {error}"),
        }
    }
}

/// Why a server is not reached from the separate address, with the next step.
pub fn unreachable_text(separate: &SeparateAddress, server: IpAddr) -> String {
    if server.to_canonical().is_ipv6() {
        return format!(
            "{server} is an IPv6 address, and address is IPv4: share the interface's addresses instead"
        );
    }
    let SeparateAddress { ip, prefix, .. } = separate;
    format!(
        "{server} is not in the network of address, {ip}/{prefix}: give gateway, or the network's right prefix"
    )
}

impl std::error::Error for XdpError {}

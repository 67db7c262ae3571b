//! Settings of a switch, from a file.

mod file;
mod network;
mod numbers;
mod reference;
mod rules;
mod schema;
mod show;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use spillway_auth::Key;
use spillway_config::Problems;
use spillway_daemon::AdminGroup;
use spillway_rules::Mode;
use spillway_wire::packet::ethernet::Mac;

pub use file::read_text;
pub use network::Network;
pub(crate) use numbers::KnownNumbers;
pub use reference::reference;
pub(crate) use show::mode_text;

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Name in status, metrics and logs, and of the directory of the switch's pinned tables.
    pub name: String,
    /// Whether the switch runs between several interfaces or on a server's own interface.
    pub mode: Mode,
    /// Where servers send control messages: one address of each family at most.
    pub control: Vec<SocketAddr>,
    /// Addresses of the switch's host, those of `control` included.
    pub addresses: Vec<IpAddr>,
    /// Time without heartbeats after which a server is silent, and loses its flows.
    pub owner_timeout: Duration,
    /// Maximum number of flows with an entry.
    pub flows_max: usize,
    /// Path of the admin socket.
    pub socket: PathBuf,
    /// The group whose members may reload and clear flows over the socket; other users may only read. `None`: every
    /// user who can connect may reload and clear flows.
    pub admin_group: Option<AdminGroup>,
    /// Address of the HTTP port for metrics.
    pub metrics: Option<SocketAddr>,
    /// The interfaces.
    pub ports: Vec<Port>,
    /// Hosts that are not servers.
    pub stations: Vec<Station>,
    /// Routes.
    pub routes: Vec<Route>,
    /// Services whose flows may move.
    pub services: Vec<Service>,
    /// Servers that may own flows.
    pub servers: Vec<Server>,
}

/// An interface of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Number of the port.
    pub number: u8,
    /// Name of the interface.
    pub interface: String,
    /// Ethernet address of the interface; zero if it does not exist, or if the file was read without the host (see
    /// [`read_file`]).
    pub mac: Mac,
    /// Numbers of the services whose flows the port's servers may own; empty for a port without servers.
    pub may_own: Vec<u8>,
}

/// A host on one of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// The host's Ethernet address.
    pub mac: Mac,
    /// Number of the port that leads to it.
    pub port: u8,
}

/// A route of packets that are addressed to the switch itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destinations.
    pub network: Network,
    /// Ethernet address of the next hop.
    pub next_hop: Mac,
    /// Number of the port that leads to the next hop.
    pub port: u8,
}

/// A service whose flows may move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name in status and commands.
    pub name: String,
    /// Number of the service.
    pub number: u8,
    /// Where clients connect, at least one.
    pub endpoints: Vec<Endpoint>,
    /// Maximum number of its flows with an entry; `None`: no bound of its own.
    pub flows_max: Option<usize>,
}

/// An address to which clients connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and TCP port.
    pub address: SocketAddr,
    /// Id of the original server.
    pub server: u8,
}

/// A server that may own flows.
#[derive(Clone, Debug)]
pub struct Server {
    /// Name in status and commands.
    pub name: String,
    /// The server's id in control messages.
    pub id: u8,
    /// Whether the file states the id. Otherwise a reload keeps the id in force.
    pub has_fixed_id: bool,
    /// Where the switch sends control messages.
    pub address: IpAddr,
    /// The server's Ethernet address.
    pub mac: Mac,
    /// Number of the port that leads to the server.
    pub port: u8,
    /// The key file as the configuration names it.
    pub key_file: String,
    /// The server's key; `None` if key files were not read.
    pub key: Option<Key>,
    /// Where the server imports connections under its own address.
    pub places: Vec<Place>,
}

/// Where a server imports connections of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The server's address and TCP port.
    pub address: SocketAddr,
    /// Number of the service.
    pub service: u8,
    /// The service's endpoint, to which clients connect.
    pub endpoint: SocketAddr,
}

impl SwitchConfig {
    /// The service with this endpoint.
    pub fn service_of(&self, endpoint: SocketAddr) -> Option<&Service> {
        self.services.iter().find(|service| service.endpoints.iter().any(|one| one.address == endpoint))
    }

    /// The server with this id.
    pub fn server(&self, id: u8) -> Option<&Server> {
        self.servers.iter().find(|server| server.id == id)
    }

    /// In host mode, this host's own server: the one with the Ethernet address of the port's interface. `None` if the
    /// interface does not exist.
    pub fn local_server(&self) -> Option<&Server> {
        let port = self.ports.first().filter(|port| self.mode == Mode::Host && port.mac != Mac::ZERO)?;
        self.servers.iter().find(|server| server.mac == port.mac)
    }

    /// The interfaces that this host does not have, if the file was read with the host.
    pub fn missing_interfaces(&self) -> Vec<&str> {
        let missing = self.ports.iter().filter(|port| port.mac == Mac::ZERO);
        missing.map(|port| port.interface.as_str()).collect()
    }

    /// The interface of the port with this number; empty for an unknown number.
    pub fn interface(&self, port: u8) -> &str {
        self.ports.iter().find(|one| one.number == port).map_or("", |port| &port.interface)
    }
}

/// Reads a configuration file. If `reads_host` is true, also reads the key files that the file names and looks up its
/// interfaces; an interface that does not exist is not an error (see [`SwitchConfig::missing_interfaces`]).
///
/// # Errors
/// All errors of the file.
pub fn read_file(path: &Path, reads_host: bool) -> Result<SwitchConfig, Problems> {
    spillway_config::read_file(path, reads_host, read_text)
}

/// Whether a text is the configuration of a switch, and not of a helper. Works for texts with errors, too: only a
/// switch's file has a section `[switch]` or sections in double brackets.
pub fn is_of_switch(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| line.starts_with("[switch]") || line.starts_with("[["))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use spillway_config::Reading;

    use super::reference::EXAMPLE;
    use super::*;

    /// [`EXAMPLE`] without the ids of servers, which are the same without them. Tests replace single lines.
    pub(crate) static VALID: LazyLock<String> =
        LazyLock::new(|| EXAMPLE.replace("id = 1\n", "").replace("id = 2\n", ""));

    /// The settings of [`VALID`].
    pub(crate) fn config() -> SwitchConfig {
        read(&VALID)
    }

    /// Host mode on the interface of server `a`, with the services and servers of [`VALID`].
    pub(crate) fn host() -> String {
        const HEAD: &str = "[switch]\nmode = \"host\"\ncontrol = [\"10.0.0.5:9511\"]\n[[port]]\ninterface = \"eth0\"\nmay_own = \
                            [\"cache\"]\n";
        let (_, rest) = VALID.split_at(VALID.find("[[service]]").expect("it has a service"));
        format!("{HEAD}{}", rest.replace("eth1", "eth0").replace("eth2", "eth0"))
    }

    /// Reads a text without errors, without looking at the host.
    pub(crate) fn read(text: &str) -> SwitchConfig {
        let reading = Reading { base: PathBuf::new(), reads_host: false };
        read_text(text, &reading).unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
    }
}

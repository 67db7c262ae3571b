//! Faults of a configuration.

use core::fmt;

use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Endpoint, ServerId};

use super::{
    FLOWS_MAX, OWN_ADDRESSES_MAX, OWNER_TIMEOUT_MAX, OWNER_TIMEOUT_MIN, PLACES_MAX, PORTS_MAX, PREFIXES_MAX,
    PortId, SENDERS_MAX, STATIONS_MAX, ServiceId,
};
use crate::address::Address;

/// Why a configuration is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The epoch is 0.
    Epoch,
    /// More ports than the switch supports.
    TooManyPorts(usize),
    /// More stations than the switch supports.
    TooManyStations(usize),
    /// More prefixes than the switch supports.
    TooManyPrefixes(usize),
    /// More own addresses than the switch supports.
    TooManyOwnAddresses(usize),
    /// More servers than the switch supports.
    TooManyServers(usize),
    /// More places than the switch supports.
    TooManyPlaces(usize),
    /// The number of a port is the daemon's.
    DaemonPort,
    /// Two ports have the same number.
    PortTwice(PortId),
    /// A port without servers may own services.
    OwnerPortWithoutServers(PortId),
    /// An Ethernet address is zero or a group address.
    MacNotUnicast(Mac),
    /// Two stations have the same Ethernet address.
    StationTwice(Mac),
    /// A station is connected to a port that is not configured.
    StationPort(Mac, PortId),
    /// A prefix is longer than its address, or its address has bits after the prefix.
    Prefix(Address, u8),
    /// Two prefixes are equal.
    PrefixTwice(Address, u8),
    /// The next hop of a prefix is connected to a port that is not configured.
    PrefixPort(Address, u8, PortId),
    /// An own address is listed twice.
    OwnAddressTwice(Address),
    /// There is no control endpoint, or more than one for an address family.
    ControlEndpoints(usize),
    /// The address of a control endpoint is not one of the switch's own addresses.
    ControlNotOwn(Endpoint),
    /// A control endpoint has port 0, or another port than the other control endpoint.
    ControlPort(Endpoint),
    /// The id of a server is the daemon's.
    DaemonServer,
    /// Two servers have the same id.
    ServerTwice(ServerId),
    /// Two servers have the same Ethernet address.
    ServerMacTwice(ServerId, ServerId),
    /// Two senders of control messages have the same key.
    KeyTwice(ServerId, ServerId),
    /// A server is connected to a port that is not configured, or that is not for servers.
    ServerPort(ServerId, PortId),
    /// A server's Ethernet address is a station at another port.
    ServerStation(ServerId, PortId),
    /// No control endpoint has the address family of a server's address.
    ServerFamily(ServerId, Address),
    /// Two places have the same address and port.
    PlaceTwice(Endpoint),
    /// A place has port 0.
    PlacePort(Endpoint),
    /// A place names a server that is not configured.
    PlaceServer(Endpoint, ServerId),
    /// A place names a service endpoint that is not configured.
    PlaceService(Endpoint, Endpoint),
    /// A place has another service number, or another address family, than its service endpoint.
    PlaceDiffers(Endpoint, Endpoint),
    /// The port of a place's server may not own the service.
    PlaceNotAllowed(Endpoint, ServiceId, PortId),
    /// A server is encapsulated, but the mode is not host.
    EncapsulationInGateway(ServerId),
    /// The local server is encapsulated.
    EncapsulationOfLocal(ServerId),
    /// The next hop of an encapsulated server is the switch's own interface.
    NextHopOwn(ServerId, Mac),
    /// The address of an encapsulated server has another family than the local server's address.
    EncapsulationFamily(ServerId, Address),
    /// In host mode, there is not exactly port 0, with servers.
    HostPorts(usize),
    /// In host mode, there are stations or prefixes.
    HostForwarding(usize, usize),
    /// A reload has another mode.
    ModeChange,
    /// The owner timeout is out of range.
    OwnerTimeout,
    /// The maximum number of flows is out of range.
    FlowsMax(usize),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ConfigError as Error;
        match self {
            Error::Epoch => f.write_str("the switch's start time is 0; set the host's clock"),
            Error::TooManyPorts(count) => {
                write!(f, "{count} ports; the switch supports {}", PORTS_MAX - 1)
            }
            Error::TooManyStations(count) => {
                write!(f, "{count} stations; the switch supports {STATIONS_MAX}")
            }
            Error::TooManyPrefixes(count) => {
                write!(f, "{count} prefixes; the switch supports {PREFIXES_MAX}")
            }
            Error::TooManyOwnAddresses(count) => {
                write!(f, "{count} own addresses; the switch supports {OWN_ADDRESSES_MAX}")
            }
            Error::TooManyServers(count) => {
                write!(f, "{count} servers; the switch supports {}", SENDERS_MAX - 1)
            }
            Error::TooManyPlaces(count) => write!(f, "{count} places; the switch supports {PLACES_MAX}"),
            Error::DaemonPort => {
                write!(
                    f,
                    "port number {} is reserved for the daemon; use 0 to {}",
                    PortId::DAEMON,
                    PORTS_MAX - 2
                )
            }
            Error::PortTwice(port) => write!(f, "two ports have the number {port}"),
            Error::OwnerPortWithoutServers(port) => {
                write!(f, "port {port} may own services, but is not a port of servers")
            }
            Error::MacNotUnicast(mac) => write!(f, "{mac} is not the Ethernet address of one interface"),
            Error::StationTwice(mac) => write!(f, "two stations have the Ethernet address {mac}"),
            Error::StationPort(mac, port) => {
                write!(f, "station {mac} is on port {port}, which is not configured")
            }
            Error::Prefix(address, length) => {
                write!(f, "{address}/{length} is not a prefix: too long, or bits after the prefix are not 0")
            }
            Error::PrefixTwice(address, length) => write!(f, "prefix {address}/{length} is listed twice"),
            Error::PrefixPort(address, length, port) => {
                write!(f, "the next hop of {address}/{length} is on port {port}, which is not configured")
            }
            Error::OwnAddressTwice(address) => write!(f, "own address {address} is listed twice"),
            Error::ControlEndpoints(count) => {
                write!(f, "{count} control endpoints; use one of IPv4, one of IPv6, or one of each")
            }
            Error::ControlNotOwn(endpoint) => {
                write!(f, "control endpoint {endpoint} is not at an own address of the switch's host")
            }
            Error::ControlPort(endpoint) => {
                write!(
                    f,
                    "control endpoint {endpoint}: the port must not be 0, and the same for both endpoints"
                )
            }
            Error::DaemonServer => {
                write!(
                    f,
                    "server id {} is reserved for the daemon; use 1 to {}",
                    ServerId::DAEMON,
                    SENDERS_MAX - 1
                )
            }
            Error::ServerTwice(server) => write!(f, "two servers have the id {server}"),
            Error::ServerMacTwice(one, other) => {
                write!(f, "servers {one} and {other} have the same Ethernet address")
            }
            Error::KeyTwice(one, other) => {
                write!(
                    f,
                    "servers {one} and {other} have the same key (id 0 is the daemon); create a key for each"
                )
            }
            Error::ServerPort(server, port) => {
                write!(f, "server {server} is on port {port}, which is not configured as a port of servers")
            }
            Error::ServerStation(server, port) => {
                write!(
                    f,
                    "the Ethernet address of server {server} is a station on port {port}, where the server is not"
                )
            }
            Error::ServerFamily(server, address) => {
                write!(f, "server {server}: no control endpoint has the address family of {address}")
            }
            Error::PlaceTwice(at) => write!(f, "{at} is listed twice"),
            Error::PlacePort(at) => write!(f, "{at}: the port must not be 0"),
            Error::PlaceServer(at, server) => {
                write!(f, "{at} names server {server}, which is not configured")
            }
            Error::PlaceService(at, service) => {
                write!(f, "{at} names the service endpoint {service}, which is not configured")
            }
            Error::PlaceDiffers(at, service) => {
                write!(
                    f,
                    "{at} must have the service number and the address family of its service endpoint {service}"
                )
            }
            Error::PlaceNotAllowed(at, service, port) => {
                write!(f, "{at}: port {port} of its server may not own service {service}")
            }
            Error::EncapsulationInGateway(server) => {
                write!(f, "server {server} is encapsulated, which is possible in host mode only")
            }
            Error::EncapsulationOfLocal(server) => {
                write!(
                    f,
                    "server {server} is this host's own, and is encapsulated: only servers of other racks can be"
                )
            }
            Error::NextHopOwn(server, mac) => {
                write!(
                    f,
                    "server {server} is encapsulated with the next hop {mac}, which is this host's own interface"
                )
            }
            Error::EncapsulationFamily(server, local) => {
                write!(
                    f,
                    "server {server} is encapsulated, but its address has another family than {local}, the address of the \
                     local server, at which the tunnel begins"
                )
            }
            Error::HostPorts(count) => {
                write!(
                    f,
                    "{count} ports; in host mode use one, with the number {} and for servers",
                    PortId::HOST
                )
            }
            Error::HostForwarding(stations, prefixes) => {
                write!(
                    f,
                    "{stations} stations and {prefixes} prefixes; in host mode the switch forwards only the packets of \
                     moved connections: remove them"
                )
            }
            Error::ModeChange => {
                f.write_str("the mode differs from the running switch's: restart it to change the mode")
            }
            Error::OwnerTimeout => {
                write!(f, "the owner timeout must be between {OWNER_TIMEOUT_MIN:?} and {OWNER_TIMEOUT_MAX:?}")
            }
            Error::FlowsMax(count) => {
                write!(f, "a table of {count} flows; the switch supports 1 to {FLOWS_MAX}")
            }
        }
    }
}

impl core::error::Error for ConfigError {}

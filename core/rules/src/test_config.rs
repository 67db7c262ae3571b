//! A configuration for tests: clients on ports 0 and 5, server n on port n.

use alloc::collections::BTreeMap;
use alloc::vec;
use core::net::SocketAddr;

use spillway_auth::SwitchKey;
use spillway_wire::packet::ethernet::Mac;

use crate::config::{
    Config, Mode, OWNER_TIMEOUT_DEFAULT, Place, Port, PortId, Prefix, Server, ServiceId, Services, Station,
};
use crate::{Address, Endpoint, ServerId};

/// The service of [`service`] and [`service_v6`], whose original owner is server 1. Servers 1 to 4 may own it.
pub const SERVICE: ServiceId = ServiceId(7);
/// The service of [`other_service`], whose original owner is server 3. Servers 3 and 4 may own it.
pub const OTHER_SERVICE: ServiceId = ServiceId(8);

pub fn endpoint(text: &str) -> Endpoint {
    text.parse::<SocketAddr>().unwrap().into()
}

pub fn address(text: &str) -> Address {
    Address::from(text.parse::<core::net::IpAddr>().unwrap())
}

pub fn port(number: u8) -> PortId {
    PortId::new(number).unwrap()
}

pub fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

/// Ethernet address of a port's interface.
pub fn port_mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 2, number])
}

pub fn server_mac(server: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, server])
}

/// The client on the segment, on port 0.
pub fn client_mac() -> Mac {
    mac(12)
}

/// The next hop of 192.0.2.0/24 and 2001:db8::/32, on port 5.
pub fn router_mac() -> Mac {
    mac(13)
}

pub fn key(sender: u8) -> SwitchKey {
    SwitchKey::from_bytes([sender + 1; 16])
}

pub fn service() -> Endpoint {
    endpoint("10.0.0.1:80")
}

pub fn service_v6() -> Endpoint {
    endpoint("[fd00::1]:80")
}

pub fn other_service() -> Endpoint {
    endpoint("10.0.0.3:90")
}

/// Where a server imports connections of [`service`].
pub fn place_of(server: u8) -> Endpoint {
    Endpoint::from(SocketAddr::from(([10, 0, 1, server], 8000)))
}

/// Where a server imports connections of [`service_v6`].
pub fn place_v6_of(server: u8) -> Endpoint {
    Endpoint::from(SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 1, server.into()], 8000)))
}

pub fn control() -> Endpoint {
    endpoint("10.0.0.254:7300")
}

pub fn control_v6() -> Endpoint {
    endpoint("[fd00::fe]:7300")
}

pub fn server_address(server: u8) -> Address {
    place_of(server).into()
}

pub fn config() -> Config {
    let may_own = |number| match number {
        0 | 5 => Services::NONE,
        1 | 2 => [SERVICE].into_iter().collect(),
        _ => [SERVICE, OTHER_SERVICE].into_iter().collect(),
    };
    let ports = (0..6).map(|number| Port {
        id: port(number),
        mac: port_mac(number),
        is_server: (1..=4).contains(&number),
        may_own: may_own(number),
        mtu: 1500,
    });
    let servers = (1..=4).map(|id| Server {
        id: ServerId(id),
        key: key(id),
        address: server_address(id),
        mac: server_mac(id),
        port: port(id),
        encapsulation: None,
    });
    let mut stations =
        vec![Station { mac: client_mac(), port: port(0) }, Station { mac: router_mac(), port: port(5) }];
    stations.extend((1..=4).map(|server| Station { mac: server_mac(server), port: port(server) }));
    let prefix = |at: &str, length, next_hop, number| Prefix {
        address: address(at),
        length,
        next_hop,
        port: port(number),
    };
    let place = |at, service, number, server| Place { at, service, number, server: ServerId(server) };
    let mut places = vec![
        place(service(), service(), SERVICE, 1),
        place(service_v6(), service_v6(), SERVICE, 1),
        place(other_service(), other_service(), OTHER_SERVICE, 3),
    ];
    for server in 1..=4 {
        places.push(place(place_of(server), service(), SERVICE, server));
        places.push(place(place_v6_of(server), service_v6(), SERVICE, server));
    }
    Config {
        mode: Mode::Gateway,
        ports: ports.collect(),
        stations,
        prefixes: vec![
            prefix("192.0.2.0", 24, router_mac(), 5),
            prefix("2001:db8::", 32, router_mac(), 5),
            prefix("10.0.0.1", 32, server_mac(1), 1),
            prefix("fd00::1", 128, server_mac(1), 1),
        ],
        own_addresses: vec![address("10.0.0.254"), address("fd00::fe")],
        control: vec![control(), control_v6()],
        daemon_key: key(0),
        servers: servers.collect(),
        places,
        owner_timeout: OWNER_TIMEOUT_DEFAULT,
        flows_max: 16,
        service_flows_max: BTreeMap::new(),
    }
}

/// The same servers and services, on the interface of server 1: it is the arbiter of [`service`] and [`service_v6`].
pub fn host_config() -> Config {
    let mut config = config();
    config.mode = Mode::Host;
    let may_own = [SERVICE, OTHER_SERVICE].into_iter().collect();
    config.ports = vec![Port { id: PortId::HOST, mac: server_mac(1), is_server: true, may_own, mtu: 1500 }];
    config.stations.clear();
    config.prefixes.clear();
    config.servers.iter_mut().for_each(|server| server.port = PortId::HOST);
    config
}

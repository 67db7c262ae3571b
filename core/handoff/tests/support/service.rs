//! One service whose servers are behind one switch: the switch's configuration, the servers' settings, and their control
//! messages. The tests of core/moves use this file, too.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_auth::{Key, SwitchKey};
use spillway_handoff::{Limits, MoveTimes, Peer, Service, Settings};
use spillway_rules::Address;
use spillway_rules::config::{Config, Mode, Place, Port, PortId, Server, ServiceId, Services, Station};
use spillway_wire::handoff::Run;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{checksum, ipv4, udp};
use spillway_wire::switch::ServerId;

pub const OWNER_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of the clients' host and of its port at the switch.
pub const CLIENT: u8 = 9;
/// The switch's address and port for control messages.
const CONTROL: &str = "10.0.255.254:7300";
/// The servers' port for control messages.
const CONTROL_PORT: u16 = 7301;
const SERVICE: ServiceId = ServiceId(1);

pub fn end(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The Ethernet address of a host.
pub fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, host])
}

/// The Ethernet address of the switch's port to a host.
fn port_mac(host: u8) -> Mac {
    Mac([2, 1, 0, 0, 0, host])
}

pub fn port(number: u8) -> PortId {
    PortId::new(number).unwrap()
}

fn key(server: u8) -> SwitchKey {
    SwitchKey::from_bytes([server; 16])
}

/// The switch's configuration. `places`: where the servers 1, 2 and so on have connections of the service. The place of
/// server 1, the original owner, is the endpoint to which clients connect.
pub fn switch_config(places: &[SocketAddr]) -> Config {
    let numbers = 1..=places.len() as u8;
    let place = |number: u8| places[usize::from(number) - 1];
    let may_own: Services = [SERVICE].into_iter().collect();
    let port_of = |number, is_server| Port {
        id: port(number),
        mac: port_mac(number),
        is_server,
        may_own: if is_server { may_own } else { Services::NONE },
    };
    let place_of = |number: u8| Place {
        at: place(number).into(),
        service: place(1).into(),
        number: SERVICE,
        server: ServerId(number),
    };
    let server = |number| Server {
        id: ServerId(number),
        key: key(number),
        address: Address::from(place(number).ip()),
        mac: mac(number),
        port: port(number),
    };
    let station = |number| Station { mac: mac(number), port: port(number) };
    let ports = numbers.clone().map(|number| port_of(number, true));
    Config {
        mode: Mode::Gateway,
        ports: ports.chain([port_of(CLIENT, false)]).collect(),
        stations: numbers.clone().chain([CLIENT]).map(station).collect(),
        prefixes: Vec::new(),
        own_addresses: vec![Address::from(end(CONTROL).ip())],
        control: vec![end(CONTROL).into()],
        daemon_key: SwitchKey::from_bytes([0xda; 16]),
        servers: numbers.clone().map(server).collect(),
        places: numbers.map(place_of).collect(),
        owner_timeout: OWNER_TIMEOUT,
        flows_max: 16,
        service_flows_max: Default::default(),
    }
}

/// The settings of a server's agent. `run` identifies the run of the server's process.
pub fn agent_settings(places: &[SocketAddr], server: u8, run: u64, limits: Limits) -> Settings {
    let place = places[usize::from(server) - 1];
    let peer = |id| Peer { id: ServerId(id), mac: mac(id) };
    Settings {
        id: ServerId(server),
        key: key(server),
        peers_key: Key::from_secret([5; 32]),
        run: Run::new(run).unwrap(),
        mac: mac(server),
        services: vec![Service { endpoint: places[0].into(), place: place.into(), original: ServerId(1) }],
        peers: (1..=places.len() as u8).map(peer).collect(),
        heartbeat: Duration::from_millis(10),
        owner_timeout: OWNER_TIMEOUT,
        times: MoveTimes::default(),
        time_wait: Duration::from_secs(1),
        limits,
    }
}

/// A frame with a server's control message for the switch.
pub fn control_frame(places: &[SocketAddr], server: u8, payload: &[u8]) -> Vec<u8> {
    let source = SocketAddr::new(places[usize::from(server) - 1].ip(), CONTROL_PORT);
    let target = end(CONTROL);
    let length = udp::HEADER_BYTES + payload.len();
    let macs = (mac(server), port_mac(server));
    let (mut frame, pseudo) = ip_frame(macs, (source, target), ipv4::PROTOCOL_UDP, length);
    let at = frame.len() - length;
    frame[at + udp::HEADER_BYTES..].copy_from_slice(payload);
    let payload_bytes = payload.len() as u16;
    let header = udp::Header { source: source.port(), target: target.port(), payload_bytes };
    header.emit(&mut frame[at..], pseudo);
    frame
}

/// A frame with an IPv4 packet whose payload is zeros, and the checksum of the pseudo header for this payload.
pub fn ip_frame(
    (source_mac, target_mac): (Mac, Mac),
    (source, target): (SocketAddr, SocketAddr),
    protocol: u8,
    payload_bytes: usize,
) -> (Vec<u8>, checksum::Sum) {
    let v4 = |end: SocketAddr| match end {
        SocketAddr::V4(end) => *end.ip(),
        SocketAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    let at = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
    let mut frame = vec![0; at + payload_bytes];
    let header = ethernet::Header { target: target_mac, source: source_mac, kind: ethernet::KIND_IPV4 };
    header.emit(frame.first_chunk_mut().unwrap());
    let (source, target) = (v4(source), v4(target));
    let ip = ipv4::Header::new(source, target, protocol, payload_bytes as u16);
    ip.emit(frame[ethernet::HEADER_BYTES..].first_chunk_mut().unwrap());
    (frame, checksum::pseudo_v4(source, target, protocol, payload_bytes as u32))
}

//! Addresses of the servers in memory, the switch's configuration, and frames with control messages.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use spillway_auth::SwitchKey;
use spillway_rules::config::{
    Config, Mode, Place, Port, PortId, Server as ConfigServer, ServiceId, Services, Station,
};
use spillway_rules::{Action, Address, Switch};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{checksum, ipv4, udp};
use spillway_wire::switch::ServerId;

use crate::experiments::common::script::{CLIENT_IP, CLIENT_MAC, PORT, STACK_IP, STACK_MAC};

const CONTROL_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 254);
const CONTROL_PORT: u16 = 7_300;
const SERVICE: ServiceId = ServiceId(1);
const CLIENT_PORT_NUMBER: u8 = 9;

/// Where a server has connections of the service. The place of server 1 is the service's address.
pub(super) fn place(server: u8) -> SocketAddr {
    let ip = if server == 1 { STACK_IP } else { Ipv4Addr::new(10, 0, 0, 2 + server) };
    SocketAddr::new(ip.into(), PORT)
}

pub(super) fn mac(server: u8) -> Mac {
    if server == 1 { STACK_MAC } else { Mac([2, 0, 0, 0, 1, server]) }
}

pub(super) fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT_IP.into(), port)
}

pub(super) fn key(server: u8) -> SwitchKey {
    SwitchKey::from_bytes([server; 16])
}

fn switch_mac(port: u8) -> Mac {
    Mac([2, 1, 0, 0, 0, port])
}

pub(super) fn config(owner_timeout: Duration) -> Config {
    let port = |number| PortId::new(number).expect("small numbers are valid ports");
    let may_own: Services = [SERVICE].into_iter().collect();
    let port_of = |number, is_server| Port {
        id: port(number),
        mac: switch_mac(number),
        is_server,
        may_own: if is_server { may_own } else { Services::NONE },
        mtu: 1500,
    };
    let at = |number: u8| Place {
        at: place(number).into(),
        service: place(1).into(),
        number: SERVICE,
        server: ServerId(number),
    };
    let server = |number| ConfigServer {
        id: ServerId(number),
        key: key(number),
        address: Address::from(place(number).ip()),
        mac: mac(number),
        port: port(number),
        encapsulation: None,
    };
    let stations = [(mac(1), 1), (mac(2), 2), (CLIENT_MAC, CLIENT_PORT_NUMBER)];
    Config {
        mode: Mode::Gateway,
        ports: vec![port_of(1, true), port_of(2, true), port_of(CLIENT_PORT_NUMBER, false)],
        stations: stations.map(|(mac, number)| Station { mac, port: port(number) }).into(),
        prefixes: Vec::new(),
        own_addresses: vec![Address::from(IpAddr::from(CONTROL_IP))],
        control: vec![SocketAddr::new(CONTROL_IP.into(), CONTROL_PORT).into()],
        daemon_key: SwitchKey::from_bytes([0xda; 16]),
        servers: vec![server(1), server(2)],
        places: vec![at(1), at(2)],
        owner_timeout,
        flows_max: 4096,
        service_flows_max: Default::default(),
    }
}

/// A control message of a server passes the switch. Returns the server that gets a datagram then, and the datagram.
pub(super) fn pass(switch: &mut Switch, now: Time, from: u8, payload: &[u8]) -> Option<(u8, Vec<u8>)> {
    let mut frame = frame_of(from, payload);
    let port = PortId::new(from)?;
    let to = match switch.handle_frame(now, port, &mut frame).action {
        Action::Answer => from,
        Action::To(port) => port.number(),
        _ => return None,
    };
    Some((to, datagram_in(&frame)?))
}

fn frame_of(from: u8, payload: &[u8]) -> Vec<u8> {
    let IpAddr::V4(source) = place(from).ip() else { return Vec::new() };
    let length = udp::HEADER_BYTES + payload.len();
    let at = ethernet::HEADER_BYTES + ipv4::HEADER_BYTES;
    let mut frame = vec![0; at + length];
    let header = ethernet::Header { target: switch_mac(from), source: mac(from), kind: ethernet::KIND_IPV4 };
    let ip = ipv4::Header {
        source,
        target: CONTROL_IP,
        protocol: ipv4::PROTOCOL_UDP,
        ttl: 64,
        dscp_ecn: 0,
        ident: 0,
        dont_fragment: true,
        payload_bytes: length as u16, // a control message is shorter than a frame
    };
    if let Some(slot) = frame.first_chunk_mut() {
        header.emit(slot);
    }
    if let Some(slot) = frame[ethernet::HEADER_BYTES..].first_chunk_mut() {
        ip.emit(slot);
    }
    frame[at + udp::HEADER_BYTES..].copy_from_slice(payload);
    let udp = udp::Header { source: 7_301, target: CONTROL_PORT, payload_bytes: payload.len() as u16 };
    let pseudo = checksum::pseudo_v4(source, CONTROL_IP, ipv4::PROTOCOL_UDP, length as u32);
    udp.emit(&mut frame[at..], pseudo);
    frame
}

fn datagram_in(frame: &[u8]) -> Option<Vec<u8>> {
    let (_, packet) = ethernet::Header::parse(frame).ok()?;
    let (ip, _, payload) = ipv4::Header::parse(packet).ok()?;
    let (_, payload) = udp::Header::parse_v4(payload, ip.source, ip.target).ok()?;
    Some(payload.to_vec())
}

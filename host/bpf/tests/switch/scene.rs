//! A switch for tests: a client on port 0, and server n on port n.

use std::net::SocketAddr;

use spillway_auth::SwitchKey;
use spillway_bpf::switch::{Switch, SwitchError};
use spillway_rules::config::{Config, Place, Port, Server, ServiceId, Services, Station};
use spillway_rules::{Address, Endpoint, Mode, PortId, ServerId, Verdict};
use spillway_transport::Time;
use spillway_wire::packet::checksum::{Sum, pseudo_v4};
use spillway_wire::packet::ethernet::Mac;
use spillway_wire::switch::{Kind, MESSAGE_BYTES, Site, Status, View};

pub const EPOCH: u64 = 1_000_000;
pub const SERVICE: ServiceId = ServiceId(7);
/// Bytes before the payload of a UDP datagram over IPv4.
const HEADERS: usize = 14 + 20 + 8;

pub fn endpoint(text: &str) -> Endpoint {
    text.parse::<SocketAddr>().unwrap().into()
}

pub fn service() -> Endpoint {
    endpoint("10.0.0.1:80")
}

pub fn control() -> Endpoint {
    endpoint("10.0.0.254:7300")
}

/// Where server n imports connections of [`service`].
pub fn place_of(server: u8) -> Endpoint {
    Endpoint::from(SocketAddr::from(([10, 0, 1, server], 8000)))
}

pub fn port(number: u8) -> PortId {
    PortId::new(number).unwrap()
}

/// Ethernet address of server n; 0 is the client.
pub fn mac(host: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, host])
}

pub fn port_mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 2, number])
}

pub fn key(sender: u8) -> SwitchKey {
    SwitchKey::from_bytes([sender + 1; 16])
}

/// A client and `servers` servers, of which server 1 is the original owner of [`service`].
pub fn config(servers: u8) -> Config {
    let address = |endpoint: Endpoint| Address(endpoint.address());
    Config {
        mode: Mode::Gateway,
        ports: (0..=servers.min(62))
            .map(|number| Port {
                id: port(number),
                mac: port_mac(number),
                is_server: number != 0,
                may_own: if number == 0 { Services::NONE } else { [SERVICE].into_iter().collect() },
                mtu: 1500,
            })
            .collect(),
        stations: (0..=servers).map(|host| Station { mac: mac(host), port: port(host.min(62)) }).collect(),
        prefixes: Vec::new(),
        own_addresses: vec![address(control())],
        control: vec![control()],
        daemon_key: key(0),
        servers: (1..=servers)
            .map(|id| Server {
                id: ServerId(id),
                key: SwitchKey::from_bytes([id; 16].map(|byte| byte.wrapping_add(1))),
                address: address(place_of(id)),
                mac: mac(id),
                port: port(id.min(62)),
                encapsulation: None,
            })
            .collect(),
        places: std::iter::once(Place {
            at: service(),
            service: service(),
            number: SERVICE,
            server: ServerId(1),
        })
        .chain((1..=servers).map(|id| Place {
            at: place_of(id),
            service: service(),
            number: SERVICE,
            server: ServerId(id),
        }))
        .collect(),
        owner_timeout: std::time::Duration::from_secs(1),
        flows_max: 4096,
        service_flows_max: Default::default(),
    }
}

/// The same servers and service, on the interface of server 1.
pub fn host_config(servers: u8) -> Config {
    let mut config = Config { mode: Mode::Host, stations: Vec::new(), ..config(servers) };
    config.ports = vec![Port { id: PortId::HOST, mac: mac(1), ..config.ports[1].clone() }];
    config.servers.iter_mut().for_each(|server| server.port = PortId::HOST);
    config
}

/// Loads a switch, or returns `None` without the privileges.
pub fn loaded(result: Result<Switch, SwitchError>) -> Option<Switch> {
    match result {
        Err(error) if error.is_unprivileged() => {
            eprintln!("skipped: {error}");
            None
        }
        result => Some(result.unwrap_or_else(|error| panic!("{error}"))),
    }
}

/// The client's end of flow n.
pub fn client(number: u32) -> Endpoint {
    let [.., high, middle, low] = number.to_be_bytes();
    Endpoint::from(SocketAddr::from(([10, 9, high, middle], 1024 + u16::from(low))))
}

/// A blank message about a flow.
pub fn message(kind: Kind, sender: u8, sequence: u64, flow: u32) -> View<[u8; MESSAGE_BYTES]> {
    let mut message = View::blank(kind);
    message.set_sender(sender.into());
    message.set_sequence(sequence);
    message.set_epoch(EPOCH);
    message.set_family(4);
    message.set_client(client(flow));
    message.set_service(service());
    message.set_lifetime_ms(60_000);
    message
}

/// The site at which server n keeps the service's own address.
pub fn site(server: u8) -> Option<Site> {
    Site::new(service(), mac(server))
}

/// The frame with a message of a server, or of the daemon (0).
pub fn control_frame(sender: u8, mut message: View<[u8; MESSAGE_BYTES]>) -> Vec<u8> {
    key(sender).tag_message(&mut message);
    udp_frame(sender, message.bytes())
}

fn udp_frame(sender: u8, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = ([10, 0, 1, sender], [10, 0, 0, 254]);
    let mut frame = ethernet(port_mac(sender), mac(sender));
    frame.extend(ipv4(17, source, destination, 8 + payload.len()));
    let mut udp = Vec::new();
    udp.extend(7400_u16.to_be_bytes());
    udp.extend(control().port().to_be_bytes());
    udp.extend(((8 + payload.len()) as u16).to_be_bytes());
    udp.extend([0; 2]);
    udp.extend(payload);
    let sum = pseudo_v4(source.into(), destination.into(), 17, udp.len() as u32).add_bytes(&udp).finish();
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    frame.extend(udp);
    frame
}

/// A TCP packet of 60 bytes. `macs`: destination and source.
pub fn tcp_frame(macs: (Mac, Mac), source: Endpoint, destination: Endpoint, flags: u8) -> Vec<u8> {
    let address = |endpoint: Endpoint| *endpoint.address().last_chunk::<4>().unwrap();
    let (from, to) = (address(source), address(destination));
    let mut frame = ethernet(macs.0, macs.1);
    frame.extend(ipv4(6, from, to, 26));
    let mut tcp = Vec::new();
    tcp.extend(source.port().to_be_bytes());
    tcp.extend(destination.port().to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, flags, 0x10, 0, 0, 0, 0, 0]);
    tcp.extend(*b"abcdef");
    let sum = pseudo_v4(from.into(), to.into(), 6, tcp.len() as u32).add_bytes(&tcp).finish();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    frame.extend(tcp);
    frame
}

fn ethernet(to: Mac, from: Mac) -> Vec<u8> {
    [&to.0[..], &from.0, &[8, 0]].concat()
}

fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], payload: usize) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend(((20 + payload) as u16).to_be_bytes());
    header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(source);
    header.extend(destination);
    let sum = Sum::ZERO.add_bytes(&header).finish();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

/// Sends a message; returns its answer, whose tag is checked.
pub fn ask(
    switch: &Switch,
    sender: u8,
    now: Time,
    message: View<[u8; MESSAGE_BYTES]>,
) -> View<[u8; MESSAGE_BYTES]> {
    let run = switch.test_run(port(sender), now, &control_frame(sender, message)).unwrap();
    assert_eq!(run.verdict, Verdict::Answered);
    answer_of(sender, &run.frame)
}

/// The message in the frame of an answer.
pub fn answer_of(sender: u8, frame: &[u8]) -> View<[u8; MESSAGE_BYTES]> {
    let answer = View::new(*frame[HEADERS..].first_chunk().unwrap()).unwrap();
    assert!(key(sender).verify_message(&answer), "an answer has a valid tag");
    answer
}

/// Makes servers 1 to n owners that are ready for connections.
pub fn register(switch: &Switch, servers: u8, now: Time) {
    for server in 1..=servers {
        let hello = ask(switch, server, now, message(Kind::Hello, server, 1, 0));
        assert_eq!(hello.status(), Ok(Status::Ok));
        let mut heartbeat = message(Kind::Heartbeat, server, 2, 0);
        heartbeat.set_load(u32::from(server) * 10);
        heartbeat.set_free_places(1_000_000);
        heartbeat.set_weight(100);
        assert_eq!(ask(switch, server, now, heartbeat).status(), Ok(Status::Ok));
    }
}

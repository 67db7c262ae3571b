//! Floods of forged SYNs at a helper on AF_XDP. With kernel sockets, the kernel handles them.

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
use spillway_helper::config::Engine;
use spillway_helper::{Helper, HelperConfig, Service};
use support::{EchoServer, Place, connect, echo, helper_key, is_served, wait};

/// The sum of the big-endian 16-bit words of `bytes`.
fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    bytes.chunks(2).map(word).sum()
}

/// A packet with a SYN. The kernel fills in length and checksum of the IP header (raw(7)).
fn forged_syn(source: Ipv4Addr, target: (Ipv4Addr, u16), number: u32) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    packet.extend(source.octets());
    packet.extend(target.0.octets());
    packet.extend((1024 + number as u16 % 60_000).to_be_bytes());
    packet.extend(target.1.to_be_bytes());
    packet.extend(number.wrapping_mul(0x9e37_79b9).to_be_bytes());
    packet.extend([0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    let mut total = sum(&packet[12..]) + 6 + 20; // protocol and length of the pseudo-header
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    packet[36..38].copy_from_slice(&(!total as u16).to_be_bytes());
    packet
}

/// Sends SYNs from addresses in 198.18.0.0/15, which no host has (RFC 2544).
fn flood(target: SocketAddr, syns: u32) {
    let IpAddr::V4(ip) = target.ip() else { panic!("an IPv4 address was given") };
    let raw = rustix::net::ipproto::RAW;
    let socket = socket(AddressFamily::INET, SocketType::RAW, Some(raw)).expect("a raw socket");
    for number in 0..syns {
        let source = Ipv4Addr::from(0xc612_0000 | number);
        let packet = forged_syn(source, (ip, target.port()), number);
        sendto(&socket, &packet, SendFlags::empty(), &SocketAddr::from((ip, 0))).expect("send a SYN");
        if number % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1)); // the cable's ring holds 256 frames
        }
    }
}

fn cookies_sent(helper: &Helper) -> f64 {
    let mut stream = TcpStream::connect(helper.metrics_address().expect("metrics are configured")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let line = page.lines().find(|line| line.contains("event=\"cookie_sent\"")).expect("a sample");
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[test]
fn forged_syns_keep_out_neither_clients_nor_links() {
    fn on_xdp(place: &Place) {
        let server = place.echo_server();
        let address = server.address;
        let service = Service {
            listen: vec![place.listen()],
            keys: vec![helper_key()],
            ..Service::new("cache", address)
        };
        let config = HelperConfig {
            threads: 1,
            max_connections: 20,
            metrics: Some(place.listen()),
            ..HelperConfig::new(vec![service])
        };
        let helper = place.start(config).unwrap();
        let links_up = || helper.status().services[0].links_up();
        wait("the link", || links_up() == 1);
        let port = helper.status().services[0].listen[0];

        flood(port, 3000);
        wait("cookies", || cookies_sent(&helper) > 1000.0);
        let mut clients: Vec<_> = (0..20).map(|_| connect(port)).collect();
        clients.iter_mut().enumerate().for_each(|(seed, client)| echo(client, seed, 1000));

        // Half-open connections remain for 63 s. The link must come back nevertheless.
        drop(server);
        wait("the loss of the link", || links_up() == 0);
        drop(clients);
        let _server = EchoServer::start_at(address);
        wait("the link again", || links_up() == 1);
        wait("a client to be served again", || is_served(port));
        assert_eq!(helper.status().services[0].links_up(), 1);
    }
    Place::run(Engine::Xdp, on_xdp);
}

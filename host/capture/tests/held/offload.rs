//! A virtual cable between hosts of one machine: packets arrive without complete checksums, which the sender leaves to hardware
//! that is not there.

use std::net::{IpAddr, SocketAddr};

use spillway_lab::{HostOptions, Lab};
use spillway_wire::packet::checksum::pseudo_v4;
use spillway_wire::packet::ipv4;
use spillway_wire::packet::tcp::is_checksum_partial;

use crate::stream::Pattern;
use crate::{Target, moves, skipped};

#[test]
fn packets_without_complete_checksums_are_injected() {
    if skipped() {
        return;
    }
    let lab = Lab::new("held-offload").unwrap();
    let [client_host, host] =
        ["client", "server"].map(|name| lab.host(name, HostOptions::default()).unwrap());
    let IpAddr::V4(address) = host.address() else { panic!("hosts of a lab have addresses of IPv4") };
    let (client, mut server) = crate::connection(&client_host, &host, SocketAddr::new(address.into(), 7_000));
    let mut target = Target::new(&host, host.interface());
    let mut requests = (Pattern::new(1), Pattern::new(1));
    let mut partial = 0;
    for _ in 0..moves() {
        let hold = target.hold(&server);
        requests.0.write(&client, 3_000);
        target.waits_for_packets(hold, 1);
        // The connection moves from one socket of the host to another.
        let state = crate::captured(&host, server);
        let injector = &target.injector;
        let import = || spillway_capture::import(&state).unwrap().go_live(injector).unwrap();
        let live = host.run_inside(import).unwrap();
        let socket = target.injector.for_socket(&live.socket).unwrap();
        let inject = |packet: &[u8]| {
            let (header, _, segment) = ipv4::Header::parse(packet).unwrap();
            let pseudo = pseudo_v4(header.source, header.target, 6, header.payload_bytes.into());
            partial += usize::from(is_checksum_partial(segment, pseudo));
            socket.inject(packet).unwrap();
        };
        crate::release(&mut target.held, hold, inject);
        server = live.socket.into();
        requests.1.read(&server, 3_000);
    }
    assert!(partial > 0, "no packet has left its checksum to hardware");
    for name in ["Tcp:OutRsts", "Tcp:InCsumErrors", "TcpExt:TCPChallengeACK"] {
        assert_eq!(target.counter(name), 0, "{name}");
    }
}

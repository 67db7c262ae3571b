//! Divides a laboratory into two racks: segments of their own, with a router of the kernel between them.

use std::net::IpAddr;
use std::process::Command;

use spillway_lab::{Host, HostOptions, Lab};
use spillway_wire::packet::ethernet::Mac;

/// The second rack.
pub struct Racks {
    /// The addresses of its server.
    pub b_addresses: [IpAddr; 2],
    /// The router's Ethernet addresses in the first and in the second rack.
    pub routers: [Mac; 2],
}

/// Runs lines of `ip`.
fn ip(lines: &[String]) {
    for line in lines {
        let output = Command::new("ip").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Moves `b`, which is on the segment of the others, to a rack of its own.
pub fn divide(lab: &Lab, others: [&Host; 2], b: &Host) -> Racks {
    // The service's address is a source in the second rack: the router must not drop it.
    let sysctls = [
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv6/conf/all/forwarding", "1"),
        ("net/ipv4/conf/all/rp_filter", "0"),
        ("net/ipv4/conf/default/rp_filter", "0"),
    ];
    let sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let options = HostOptions { tx_checksums: false, pass_program: false, sysctls, ..HostOptions::default() };
    let router = lab.host("router", options.clone()).unwrap();
    // A host has one interface. The router gets that of another host, for the second rack.
    let east = lab.host("east", options).unwrap();
    let (b_end, east_end) = (b.far_interface().to_owned(), east.far_interface().to_owned());
    let bridge = move || {
        ip(&[
            "link add br1 type bridge forward_delay 0 stp_state 0 mcast_snooping 0".to_owned(),
            "link set br1 up".to_owned(),
            format!("link set {b_end} master br1"),
            format!("link set {east_end} master br1"),
        ]);
    };
    b.far_thread(bridge).unwrap().join().unwrap().unwrap();
    let interface = east.interface();
    east.run_inside(|| ip(&[format!("link set {interface} netns {}", router.namespace())])).unwrap();
    router
        .run_inside(|| {
            ip(&[
                format!("addr add 10.78.0.1/24 dev {interface}"),
                format!("link set {interface} up"),
                format!("-6 addr add fd78::1/64 dev {interface} nodad"),
                // A router solicits neighbours from its link-local addresses, which the laboratory's hosts do not have.
                format!("-6 addr add fe80::1/64 dev {interface} nodad"),
                format!("-6 addr add fe80::1/64 dev {} nodad", router.interface()),
            ]);
        })
        .unwrap();
    let (own, interface) = (b.address(), b.interface());
    b.run_inside(|| {
        ip(&[
            format!("addr flush dev {interface}"),
            // Servers of the laboratory listen there, too.
            format!("addr add {own}/32 dev lo"),
            format!("addr add 10.78.0.2/24 dev {interface}"),
            format!("-6 addr add fd78::2/64 dev {interface} nodad"),
            "route add default via 10.78.0.1".to_owned(),
            "-6 route add default via fd78::1".to_owned(),
        ]);
    })
    .unwrap();
    let (west_v4, west_v6) = (router.address(), router.ipv6_address().expect("hosts of a segment have both"));
    for host in others {
        let routes = [
            format!("route add 10.78.0.0/24 via {west_v4}"),
            format!("-6 route add fd78::/64 via {west_v6}"),
        ];
        host.run_inside(|| ip(&routes)).unwrap();
    }
    let b_addresses = ["10.78.0.2", "fd78::2"].map(|text| text.parse().unwrap());
    Racks { b_addresses, routers: [Mac(router.mac()), Mac(east.mac())] }
}

//! ICMP errors of the stack's connections. The kernel receives the errors, and the stack gets copies.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use spillway_lab::{Host, HostOptions};
use spillway_transport::LostReason;

use super::pair::{Family, Pair, Stacks, THEIRS, allow_ipv6, run};
use crate::application::Role;
use crate::rig::{PATIENCE, set_timeouts, take_pattern};

pub fn icmp_errors_reach_the_stack(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-icmp") else { return };
    let ((far, route), client) = (family.far(), family.client());
    run(&pair.server, &format!("ip route add {route} via {client}"));
    forward(&pair.client);
    run(&pair.client, &format!("ip route add unreachable {route}"));
    let mut adapter = pair.adapter().unwrap();
    let to_open = vec![(SocketAddr::from((far, THEIRS)), Role::Ask(1))];
    let stacks = Stacks::opening(&pair, &mut adapter, to_open);
    let start = Instant::now();
    // *Host unreachable* is a temporary error: the stack counts it and keeps trying to connect.
    loop {
        std::thread::sleep(Duration::from_millis(50));
        if unreachable_received(&pair.server, family) > 0 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the client does not refuse to forward");
    }
    let (_, tally, counters) = stacks.stop().remove(0);
    assert_eq!(tally.opened, 0, "{tally:?}");
    assert!(counters.frames_ignored > 0, "{counters:?}");
    pair.lab.close().unwrap();
}

fn forward(host: &Host) {
    run(host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
}

/// Number of ICMP messages *destination unreachable* that a host's kernel has received.
fn unreachable_received(host: &Host, family: Family) -> u64 {
    if family == Family::V4 {
        return host.tcp_counters().unwrap()["Icmp:InDestUnreachs"];
    }
    let read = || std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
    let counters = host.run_inside(read).unwrap();
    let line = counters.lines().find(|line| line.starts_with("Icmp6InDestUnreachs")).expect("the counter");
    line.split_whitespace().nth(1).expect("its value").parse().unwrap()
}

/// A router drops packets that are too long for its next link and reports so by ICMP. Without the report the
/// stack would retransmit them until it gives up.
pub fn a_path_with_a_smaller_mtu_is_found(family: Family) {
    const BYTES: u64 = 1 << 20;
    let Some(pair) = Pair::of(family, "xdp-mtu") else { return };
    let ((far, route), client) = (family.far(), family.client());
    let host = pair.lab.host("far", HostOptions::default()).unwrap();
    allow_ipv6(&host);
    let far_end = host.namespace();
    run(&pair.client, &format!("ip link add far0 mtu 1280 type veth peer name far1 netns {far_end}"));
    let near: IpAddr = if family == Family::V4 { "198.51.100.1" } else { "2001:db8::1" }.parse().unwrap();
    for (host, interface, address) in [(&pair.client, "far0", near), (&host, "far1", far)] {
        run(host, &format!("ip addr add dev {interface} {}", family.address_arguments(address)));
        run(host, &format!("ip link set {interface} up"));
    }
    forward(&pair.client);
    run(&pair.server, &format!("ip route add {route} via {client}"));
    run(&host, &format!("ip route add {} via {near}", family.server()));
    let listener = host.run_inside(|| TcpListener::bind((far, THEIRS)).unwrap()).unwrap();

    let mut adapter = pair.adapter().unwrap();
    let to_open = vec![(SocketAddr::from((far, THEIRS)), Role::Source(BYTES))];
    let stacks = Stacks::opening(&pair, &mut adapter, to_open);
    let (stream, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), family.server());
    set_timeouts(&stream);
    assert_eq!(take_pattern(&stream), BYTES);
    drop(stream);
    stacks.wait_until_idle();
    let (_, tally, counters) = stacks.stop().remove(0);
    assert_eq!(tally.lost_by(LostReason::Closed), 1, "{tally:?}");
    assert_eq!(counters.given_up, 0, "{counters:?}");
    pair.lab.close().unwrap();
}

//! Next hops from the kernel's routes and neighbours.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use spillway_lab::Host;
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{Interface, KernelNeighbours};

use super::pair::{CLIENT_END, Family, Pair, SERVER_END, run};
use crate::rig::PATIENCE;

/// Waits for an answer about `target` that `fits`.
fn wait_for(
    neighbours: &mut KernelNeighbours,
    target: IpAddr,
    fits: impl Fn(Option<Mac>) -> bool,
) -> Option<Mac> {
    let start = Instant::now();
    let mut answers = Vec::new();
    loop {
        while let Some(resolved) = neighbours.poll().unwrap() {
            if resolved.target == target && fits(resolved.mac) {
                return resolved.mac;
            }
            answers.push(resolved);
        }
        assert!(start.elapsed() < PATIENCE, "no answer for {target} that fits: {answers:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn the_kernel_resolves_neighbours(family: Family) {
    let Some(pair) = Pair::of(family, "xdp-neighbours") else { return };
    let find = |host: &Host, name| host.run_inside(|| Interface::find(name).unwrap()).unwrap();
    let (client, server) = (find(&pair.client, CLIENT_END), find(&pair.server, SERVER_END));
    let mut neighbours = pair.server.run_inside(|| KernelNeighbours::open(&server).unwrap()).unwrap();

    let (ip, (behind, route)) = (family.client(), family.far());

    // A peer on the link to which the kernel has not sent a packet yet.
    neighbours.ask(ip).unwrap();
    assert_eq!(wait_for(&mut neighbours, ip, |mac| mac.is_some()), Some(client.mac));
    // The same peer, which the kernel knows now.
    neighbours.ask(ip).unwrap();
    assert_eq!(wait_for(&mut neighbours, ip, |_| true), Some(client.mac));

    // A peer behind a gateway.
    run(&pair.server, &format!("ip route add {route} via {ip}"));
    neighbours.ask(behind).unwrap();
    assert_eq!(wait_for(&mut neighbours, behind, |_| true), Some(client.mac));

    // A peer without a route, and one whose route leads through another interface.
    let (unknown, elsewhere, silent) = match family {
        Family::V4 => ("203.0.113.1", "10.77.0.1", "10.79.0.99"),
        Family::V6 => {
            run(&pair.server, &format!("ip route add 2001:db8:77::/64 dev {}", pair.server.interface()));
            ("2001:db8:99::1", "2001:db8:77::1", "fd79::99")
        }
    };
    for unreachable in [unknown, elsewhere] {
        let unreachable = unreachable.parse().unwrap();
        neighbours.ask(unreachable).unwrap();
        assert_eq!(wait_for(&mut neighbours, unreachable, |_| true), None);
    }
    // A neighbour that does not answer.
    let silent = silent.parse().unwrap();
    neighbours.ask(silent).unwrap();
    assert_eq!(wait_for(&mut neighbours, silent, |_| true), None);

    // Every link has the prefix fe80::/64: the request must use this interface's link.
    if family == Family::V6 {
        run(&pair.client, &format!("ip addr add fe80::79/64 dev {CLIENT_END} nodad"));
        let link_local = "fe80::79".parse().unwrap();
        neighbours.ask(link_local).unwrap();
        assert_eq!(wait_for(&mut neighbours, link_local, |mac| mac.is_some()), Some(client.mac));
    }

    // The neighbour's Ethernet address changes: both targets behind it must get the new one.
    run(&pair.server, &format!("ip neigh replace {ip} lladdr 02:00:00:00:00:77 dev {SERVER_END}"));
    let changed = Mac([2, 0, 0, 0, 0, 0x77]);
    let mut left: Vec<IpAddr> = vec![ip, behind];
    let start = Instant::now();
    while !left.is_empty() {
        if let Some(resolved) = neighbours.poll().unwrap() {
            left.retain(|target| *target != resolved.target || resolved.mac != Some(changed));
        }
        assert!(start.elapsed() < PATIENCE, "{left:?} do not learn the changed address");
    }
    pair.lab.close().unwrap();
}

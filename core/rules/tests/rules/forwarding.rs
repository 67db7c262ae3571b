//! Forwarding without flows.

use spillway_rules::{Action, Decision, Verdict};
use spillway_wire::packet::ethernet::Mac;

use crate::frames::{ACK, Frame, SYN, Upper, read};
use crate::test_config::{
    client_mac, config, endpoint, mac, port, port_mac, router_mac, server_mac, service, service_v6,
};
use crate::world::{World, client};

const PASS: Decision = Decision { verdict: Verdict::Passed, action: Action::Pass };
const FLOOD: Decision = Decision { verdict: Verdict::Flooded, action: Action::Flood };

fn drop(verdict: Verdict) -> Decision {
    Decision { verdict, action: Action::Drop }
}

fn to(verdict: Verdict, number: u8) -> Decision {
    Decision { verdict, action: Action::To(port(number)) }
}

/// The decision on a frame that must stay as it is.
fn unchanged(ingress: u8, frame: &[u8]) -> Decision {
    let (decision, after) = World::new().receive(ingress, frame.to_vec());
    assert_eq!(after, frame);
    decision
}

fn udp(target: Mac, from: &str, to: &str) -> Frame {
    Frame::udp((client_mac(), target), (endpoint(from), endpoint(to)), b"data")
}

fn arp(target_mac: Mac, target: [u8; 4]) -> Vec<u8> {
    let mut frame = [target_mac.0, client_mac().0].concat();
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    frame.extend(client_mac().0);
    frame.extend([10, 0, 9, 9]);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

fn solicitation(target: &str) -> Frame {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(crate::test_config::address(target).0);
    Frame {
        upper: Upper::Other(58),
        payload: message,
        ..udp(Mac([0x33, 0x33, 0xff, 0, 0, 0xfe]), "[fd00::9]:0", "[ff02::1:ff00:fe]:0")
    }
}

#[test]
fn stations_are_configured() {
    let frame = udp(server_mac(3), "10.0.9.9:1", "10.0.1.3:2");
    assert_eq!(unchanged(0, &frame.bytes()), to(Verdict::Switched, 3));
    assert_eq!(unchanged(3, &frame.bytes()), drop(Verdict::DropSamePort));
    let unknown = udp(mac(99), "10.0.9.9:1", "10.0.1.3:2");
    assert_eq!(unchanged(0, &unknown.bytes()), drop(Verdict::DropUnknownStation));
    assert_eq!(unchanged(6, &frame.bytes()), drop(Verdict::DropUnknownPort));
}

#[test]
fn other_protocols_are_switched_like_ip() {
    let mut frame = [server_mac(3).0, client_mac().0].concat();
    assert_eq!(unchanged(0, &frame), drop(Verdict::DropShort));
    frame.push(0x12);
    assert_eq!(unchanged(0, &frame), drop(Verdict::DropShort));
    frame.push(0x34);
    assert_eq!(unchanged(0, &frame), to(Verdict::Switched, 3));
    // A frame to the port's own address passes to the kernel.
    frame[..6].copy_from_slice(&port_mac(0).0);
    assert_eq!(unchanged(0, &frame), PASS);
    // The address of another port is not a station.
    frame[..6].copy_from_slice(&port_mac(1).0);
    assert_eq!(unchanged(0, &frame), drop(Verdict::DropUnknownStation));
}

#[test]
fn reserved_group_addresses_stay_on_their_link() {
    for last in 0..=255 {
        let target = Mac([0x01, 0x80, 0xc2, 0, 0, last]);
        let expected = if last < 16 { drop(Verdict::DropLinkLocal) } else { FLOOD };
        assert_eq!(unchanged(0, &udp(target, "10.0.9.9:1", "10.0.1.3:2").bytes()), expected, "{last}");
    }
    // The destination is checked before the headers.
    let mut cut = udp(Mac([0x01, 0x80, 0xc2, 0, 0, 0]), "10.0.9.9:1", "10.0.1.3:2").bytes();
    cut.truncate(20);
    assert_eq!(unchanged(0, &cut), drop(Verdict::DropLinkLocal));
    cut.truncate(13);
    assert_eq!(unchanged(0, &cut), drop(Verdict::DropShort));
}

#[test]
fn queries_for_own_addresses_pass_and_others_are_flooded() {
    assert_eq!(unchanged(0, &arp(Mac::BROADCAST, [10, 0, 0, 254])), PASS);
    assert_eq!(unchanged(0, &arp(Mac::BROADCAST, [10, 0, 0, 1])), FLOOD);
    assert_eq!(unchanged(0, &arp(port_mac(0), [10, 0, 0, 1])), PASS);
    assert_eq!(unchanged(0, &arp(server_mac(1), [10, 0, 0, 254])), to(Verdict::Switched, 1));
    let own = solicitation("fd00::fe");
    assert_eq!(unchanged(0, &own.bytes()), PASS);
    assert_eq!(unchanged(0, &solicitation("fd00::1").bytes()), FLOOD);
    let behind_header = Frame { extensions: vec![(0, 0)], ..own.clone() };
    assert_eq!(unchanged(0, &behind_header.bytes()), PASS);
    for (name, frame) in [
        ("a fragment", Frame { extensions: vec![(44, 0)], ..own.clone() }),
        ("another type", with_payload(&own, |message| message[0] = 136)),
        ("cut", with_payload(&own, |message| message.truncate(23))),
        ("another protocol", Frame { upper: Upper::Other(59), ..own.clone() }),
    ] {
        assert_eq!(unchanged(0, &frame.bytes()), FLOOD, "{name}");
    }
    // Broadcast and multicast of IP are flooded, even to an own address.
    assert_eq!(unchanged(0, &udp(Mac::BROADCAST, "10.0.9.9:68", "255.255.255.255:67").bytes()), FLOOD);
    assert_eq!(unchanged(0, &udp(Mac::BROADCAST, "10.0.9.9:68", "10.0.0.254:67").bytes()), FLOOD);
    // Hardware other than Ethernet and IEEE 802: neither IP nor ARP.
    let mut other = arp(Mac::BROADCAST, [10, 0, 0, 254]);
    other[15] = 6;
    assert_eq!(unchanged(0, &other), PASS);
    other[15] = 7;
    assert_eq!(unchanged(0, &other), FLOOD);
    other.truncate(30);
    assert_eq!(unchanged(0, &other), drop(Verdict::DropShort));
}

fn with_payload(frame: &Frame, change: impl FnOnce(&mut Vec<u8>)) -> Frame {
    let mut frame = frame.clone();
    change(&mut frame.payload);
    frame
}

#[test]
fn packets_to_the_host_pass() {
    for target in ["10.0.0.254:22", "10.0.0.254:7300"] {
        let frame = Frame::tcp((client_mac(), port_mac(0)), (client(), endpoint(target)), SYN);
        assert_eq!(unchanged(0, &frame.bytes()), PASS, "TCP to {target} is no control message");
    }
    assert_eq!(unchanged(0, &udp(port_mac(0), "[fd00::9]:1", "[fd00::fe]:22").bytes()), PASS);
    let later_fragment = Frame { fragment_field: 5, ..udp(port_mac(0), "10.0.9.9:1", "10.0.0.254:7300") };
    assert_eq!(unchanged(0, &later_fragment.bytes()), PASS);
}

#[test]
fn packets_to_other_networks_are_routed() {
    for (from, target, expected) in [
        ("10.0.9.9:1", "192.0.2.7:2", to(Verdict::Routed, 5)),
        ("[fd00::9]:1", "[2001:db8::7]:2", to(Verdict::Routed, 5)),
        ("10.0.9.9:1", "198.51.100.1:2", drop(Verdict::DropNoRoute)),
        ("[fd00::9]:1", "[2001:db9::7]:2", drop(Verdict::DropNoRoute)),
        ("10.0.9.9:1", "224.0.0.1:2", drop(Verdict::DropNoRoute)),
    ] {
        for hops in [64, 2, 1, 0] {
            let frame = Frame { hops, ..udp(port_mac(0), from, target) };
            let (decision, after) = World::new().receive(0, frame.bytes());
            if hops <= 1 && expected.verdict == Verdict::Routed {
                assert_eq!((decision, after), (PASS, frame.bytes()), "the kernel reports the last hop");
                continue;
            }
            assert_eq!(decision, expected, "{target}, {hops} hops");
            if expected.verdict == Verdict::Routed {
                let seen = read(&after);
                assert_eq!((seen.source_mac, seen.target_mac), (port_mac(5), router_mac()));
                assert_eq!((seen.hops, seen.has_correct_checksums), (hops - 1, true));
                assert_eq!((seen.source, seen.target), (frame.source, frame.target));
            }
        }
    }
    let back = udp(port_mac(5), "192.0.2.9:1", "192.0.2.7:2");
    assert_eq!(unchanged(5, &back.bytes()), drop(Verdict::DropSamePort));
    let back_on_its_last_hop = Frame { hops: 1, ..back };
    assert_eq!(unchanged(5, &back_on_its_last_hop.bytes()), PASS);
}

#[test]
fn packets_without_ports_are_routed_too() {
    let frames = [
        Frame { upper: Upper::Other(1), ..udp(port_mac(0), "10.0.9.9:0", "192.0.2.7:0") },
        Frame { fragment_field: 0x2001, ..udp(port_mac(0), "10.0.9.9:1", "192.0.2.7:2") },
        Frame { extensions: vec![(60, 0); 8], ..udp(port_mac(0), "[fd00::9]:1", "[2001:db8::7]:2") },
        Frame { extensions: vec![(44, 8)], ..udp(port_mac(0), "[fd00::9]:1", "[2001:db8::7]:2") },
    ];
    for frame in frames {
        assert_eq!(World::new().receive(0, frame.bytes()).0, to(Verdict::Routed, 5), "{frame:?}");
    }
}

#[test]
fn a_service_without_flows_is_routed() {
    for (from, target) in [("192.0.2.7:1", service()), ("[2001:db8::7]:1", service_v6())] {
        let frame = Frame::tcp((router_mac(), port_mac(5)), (endpoint(from), target), SYN);
        let (decision, after) = World::new().receive(5, frame.bytes());
        assert_eq!(decision, to(Verdict::Routed, 1));
        assert_eq!(read(&after).target_mac, server_mac(1));
        assert!(read(&after).has_correct_checksums);
    }
}

#[test]
fn truncated_headers_are_dropped_at_every_length() {
    let frames = [
        Frame {
            option_words: 2,
            vlan_tags: vec![(0x8100, 1)],
            ..udp(server_mac(3), "10.0.9.9:1", "10.0.1.3:2")
        },
        Frame { extensions: vec![(0, 1), (44, 0)], ..udp(server_mac(3), "[fd00::9]:1", "[fd00::3]:2") },
    ];
    for frame in frames {
        let bytes = frame.bytes();
        // The ports are the last that must be present.
        let complete = bytes.len() - frame.payload.len() - 4;
        for length in 0..bytes.len() {
            let expected =
                if length < complete { drop(Verdict::DropShort) } else { to(Verdict::Switched, 3) };
            assert_eq!(unchanged(0, &bytes[..length]), expected, "{length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn invalid_ip_headers_are_dropped() {
    let mut frame = udp(server_mac(3), "10.0.9.9:1", "10.0.1.3:2").bytes();
    for first in [0x44, 0x55, 0x65, 0x05, 0x40] {
        frame[14] = first;
        assert_eq!(unchanged(0, &frame), drop(Verdict::DropShort), "{first:#x}");
    }
    let mut frame = udp(server_mac(3), "[fd00::9]:1", "[fd00::3]:2").bytes();
    frame[14] = 0x45;
    assert_eq!(unchanged(0, &frame), drop(Verdict::DropShort));
}

#[test]
fn four_vlan_tags_hide_a_packet() {
    let tagged = |tags| Frame {
        vlan_tags: vec![(0x8100, 1); tags],
        ..Frame::tcp((client_mac(), server_mac(1)), (client(), service()), ACK)
    };
    let mut world = World::new();
    world.move_flow(1, 2);
    for tags in 0..=3 {
        assert_eq!(world.receive(0, tagged(tags).bytes()).0, to(Verdict::ToOwner, 2), "{tags} tags");
    }
    assert_eq!(world.receive(0, tagged(4).bytes()).0, to(Verdict::Switched, 1), "4 tags: neither IP nor ARP");
    let to_host = Frame { target_mac: port_mac(0), ..tagged(4) };
    assert_eq!(world.receive(0, to_host.bytes()).0, PASS);
}

#[test]
fn servers_cannot_hide_packets_behind_headers() {
    let hidden = [
        Frame { extensions: vec![(60, 0); 8], ..udp(client_mac(), "[fd00::1]:80", "[fd00::9]:5000") },
        Frame { vlan_tags: vec![(0x8100, 1); 4], ..udp(client_mac(), "10.0.0.1:80", "10.0.9.9:5000") },
    ];
    for frame in hidden {
        assert_eq!(unchanged(2, &frame.bytes()), drop(Verdict::DropNotOwner));
        assert_eq!(unchanged(5, &frame.bytes()), to(Verdict::Switched, 0), "a port without servers");
    }
}

#[test]
fn counters_count_every_frame() {
    let mut world = World::empty(config());
    world.receive(0, arp(Mac::BROADCAST, [10, 0, 0, 254]));
    world.receive(0, arp(Mac::BROADCAST, [10, 0, 0, 1]));
    world.receive(0, Vec::new());
    let counted: Vec<_> = world.switch.counters().iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(counted, [(Verdict::Flooded, 1), (Verdict::Passed, 1), (Verdict::DropShort, 1)]);
}

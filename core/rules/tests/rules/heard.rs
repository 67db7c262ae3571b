//! Only the owner of a flow is heard, and clients reach the owner or the target.

use spillway_rules::{Action, Decision, Endpoint, Verdict};
use spillway_wire::switch::Kind;

use crate::frames::{ACK, FIN, Frame, RST, SYN};
use crate::test_config::{
    client_mac, endpoint, mac, other_service, place_of, place_v6_of, port, port_mac, router_mac, server_mac,
    service, service_v6,
};
use crate::world::{Message, World, client, client_frame, server_frame};

const NOT_OWNER: Decision = Decision { verdict: Verdict::DropNotOwner, action: Action::Drop };

fn to(verdict: Verdict, number: u8) -> Decision {
    Decision { verdict, action: Action::To(port(number)) }
}

/// Each server's decision when it sends from its own place, or from the service endpoint.
fn heard(world: &World) -> Vec<(u8, Endpoint)> {
    let mut heard = Vec::new();
    for server in 1..=4 {
        for from in [place_of(server), service()] {
            let (decision, seen) = world.clone().server_sends(server, from, ACK);
            if decision == NOT_OWNER {
                continue;
            }
            assert_eq!(decision.action, Action::To(port(0)));
            let is_moved = world.switch.flow_count() > 0;
            assert_eq!(decision.verdict, if is_moved { Verdict::FromOwner } else { Verdict::Switched });
            assert_eq!(
                (seen.source, seen.source_mac),
                (service(), server_mac(1)),
                "seems to be the original"
            );
            assert_eq!((seen.target, seen.target_mac), (client(), client_mac()));
            assert!(seen.has_correct_checksums);
            heard.push((server, from));
        }
    }
    heard
}

#[test]
fn exactly_one_server_is_heard_in_every_state() {
    let mut world = World::new();
    assert_eq!(heard(&world), [(1, service())], "without entry: the original owner");
    world.ask(1, 2);
    assert_eq!(heard(&world), [(1, service())], "asked: the owner before the move");
    world.ready(2);
    assert_eq!(heard(&world), [(1, service())], "held: the owner before the move");
    world.own(2);
    assert_eq!(heard(&world), [(2, place_of(2))], "owned");
    // The flow moves on, from a server that is not the original owner.
    world.ask(2, 3);
    assert_eq!(heard(&world), [(2, place_of(2))]);
    world.ready(3);
    assert_eq!(heard(&world), [(2, place_of(2))]);
    world.own(3);
    assert_eq!(heard(&world), [(3, place_of(3))]);
    // The flow moves back to the original owner.
    let home = Message::new(3, Kind::Hold).generation(world.generation()).site(service(), server_mac(1));
    world.send(home);
    assert_eq!(heard(&world), [(3, place_of(3))]);
    world.own(1);
    assert_eq!(heard(&world), [(1, service())]);
}

#[test]
fn a_move_may_change_the_ethernet_address_only() {
    let mut world = World::new();
    world.ask(1, 2);
    let prepared =
        Message::new(2, Kind::Prepared).generation(world.generation()).site(service(), server_mac(2));
    world.send(prepared);
    world.own(2);
    assert_eq!(heard(&world), [(2, service())]);
    let (decision, seen) = world.client_sends(ACK);
    assert_eq!(decision, to(Verdict::ToOwner, 2));
    assert_eq!((seen.target, seen.target_mac), (service(), server_mac(2)));
}

#[test]
fn the_owner_must_send_from_its_port_and_its_ethernet_address() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let from_owner = server_frame(2, place_of(2), ACK);
    assert_eq!(world.server_sends_frame(3, &from_owner).0, NOT_OWNER, "another port");
    let other_mac = Frame { source_mac: mac(77), ..from_owner.clone() };
    assert_eq!(world.server_sends_frame(2, &other_mac).0, NOT_OWNER);
    let (source, ..) = (Endpoint::new(place_of(2).address(), 8001), ());
    let other_port = Frame { source, ..from_owner.clone() };
    let decision = world.server_sends_frame(2, &other_port).0;
    assert_eq!(decision, to(Verdict::Switched, 0), "no place: a packet like any other");
    assert_eq!(world.server_sends_frame(2, &from_owner).0, to(Verdict::FromOwner, 0));
    // The same segments of a flow without an entry.
    let mut world = World::new();
    let original = server_frame(1, service(), ACK);
    let other_mac = Frame { source_mac: mac(77), ..original.clone() };
    assert_eq!(world.server_sends_frame(1, &other_mac).0, NOT_OWNER);
    assert_eq!(world.server_sends_frame(2, &original).0, NOT_OWNER);
    assert_eq!(world.server_sends_frame(1, &original).0, to(Verdict::Switched, 0));
}

#[test]
fn a_killed_target_cannot_reset_the_client() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    for flags in [RST, RST | ACK, FIN | ACK, SYN | ACK, ACK] {
        for from in [place_of(2), service()] {
            assert_eq!(world.server_sends(2, from, flags).0, NOT_OWNER);
        }
    }
    assert_eq!(world.entry().unwrap().owner_rst, None);
    assert_eq!(world.switch.counters().of(Verdict::DropNotOwner), 10);
}

#[test]
fn the_source_of_a_held_flow_cannot_reset_it() {
    let mut world = World::new();
    world.ask(1, 2);
    world.ready(2);
    let before = world.entry();
    for flags in [RST, RST | ACK, RST | FIN] {
        assert_eq!(world.server_sends(1, service(), flags).0, NOT_OWNER);
        let fragment = Frame { fragment_field: 0x2000, ..server_frame(1, service(), flags) };
        assert_eq!(world.server_sends_frame(1, &fragment).0, NOT_OWNER);
    }
    assert_eq!(world.entry(), before);
    assert_eq!(world.server_sends(1, service(), ACK).0, to(Verdict::FromOwner, 0));
    world.own(1);
    assert_eq!(world.server_sends(1, service(), RST).0, to(Verdict::FromOwner, 0));
}

#[test]
fn a_host_that_wakes_up_late_is_mute() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let (decision, _) = world.server_sends(1, service(), RST);
    assert_eq!(decision, NOT_OWNER, "the source");
    world.move_flow(2, 3);
    assert_eq!(world.server_sends(2, place_of(2), RST).0, NOT_OWNER);
    assert_eq!(world.entry().unwrap().owner_rst, None);
}

#[test]
fn packets_from_ports_without_servers_are_no_replies() {
    // A client may use any source address; rule 4a is about ports of servers.
    let mut world = World::new();
    world.move_flow(1, 2);
    let frame = server_frame(2, place_of(2), ACK);
    let (decision, seen) = world.client_sends_frame(&frame);
    assert_eq!(decision, Decision { verdict: Verdict::DropSamePort, action: Action::Drop });
    assert_eq!(seen.source, place_of(2));
}

#[test]
fn a_clients_packets_follow_the_flow() {
    let mut world = World::new();
    let sent = client_frame(ACK).bytes();
    let (decision, frame) = world.receive(0, sent.clone());
    assert_eq!((decision, frame), (to(Verdict::Switched, 1), sent), "no entry: unchanged");
    let follow = |world: &mut World| {
        let (decision, seen) = world.client_sends(ACK);
        assert!(seen.has_correct_checksums);
        assert_eq!((seen.source, seen.source_mac), (client(), client_mac()));
        assert_eq!(seen.hops, 17, "switched: no hop");
        (decision, seen.target, seen.target_mac)
    };
    world.ask(1, 2);
    assert_eq!(follow(&mut world), (to(Verdict::ToOwner, 1), service(), server_mac(1)));
    world.ready(2);
    assert_eq!(follow(&mut world), (to(Verdict::ToTarget, 2), place_of(2), server_mac(2)));
    world.own(2);
    assert_eq!(follow(&mut world), (to(Verdict::ToOwner, 2), place_of(2), server_mac(2)));
}

#[test]
fn routed_packets_of_a_flow_take_a_hop() {
    let routed_client = endpoint("192.0.2.7:5000");
    let mut world = World::new();
    let prepare = Message::new(1, Kind::Prepare).client(routed_client).place(2);
    world.send(prepare);
    let generation = world.entry_of(routed_client).unwrap().generation;
    let prepared = Message::new(2, Kind::Prepared).client(routed_client).generation(generation).place(2);
    world.send(prepared);
    world.send(Message::new(2, Kind::Own).client(routed_client).generation(generation));
    let from_router = Frame::tcp((router_mac(), port_mac(5)), (routed_client, service()), ACK);
    let (decision, bytes) = world.receive(5, from_router.bytes());
    let seen = crate::frames::read(&bytes);
    assert_eq!(decision, to(Verdict::ToOwner, 2));
    assert_eq!((seen.hops, seen.target, seen.has_correct_checksums), (16, place_of(2), true));
    assert_eq!((seen.source_mac, seen.target_mac), (port_mac(2), server_mac(2)));
    // The last hop: the kernel answers, so the packet stays as it is.
    let dying = Frame { hops: 1, ..from_router.clone() }.bytes();
    let (decision, bytes) = world.receive(5, dying.clone());
    assert_eq!((decision, bytes), (Decision { verdict: Verdict::Passed, action: Action::Pass }, dying));
    // Replies are routed, too.
    let reply = Frame::tcp((server_mac(2), port_mac(2)), (place_of(2), routed_client), ACK);
    let (decision, bytes) = world.receive(2, reply.bytes());
    let seen = crate::frames::read(&bytes);
    assert_eq!(decision, to(Verdict::FromOwner, 5));
    assert_eq!((seen.hops, seen.source, seen.has_correct_checksums), (16, service(), true));
    assert_eq!((seen.source_mac, seen.target_mac), (port_mac(5), router_mac()));
}

#[test]
fn a_client_on_the_owners_port_is_not_served() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let (decision, _) = world.receive(2, client_frame(ACK).bytes());
    assert_eq!(decision, Decision { verdict: Verdict::DropSamePort, action: Action::Drop });
}

#[test]
fn a_server_may_be_a_client_of_another_service() {
    let mut world = World::new();
    let caller = endpoint("10.0.1.1:40000");
    let opening = Frame::tcp((server_mac(1), server_mac(3)), (caller, other_service()), SYN);
    assert_eq!(world.receive(1, opening.bytes()).0, to(Verdict::Switched, 3));
    let heartbeat = |server| Message::new(server, Kind::Heartbeat).service(other_service()).load(1, 1, 1);
    world.send(heartbeat(4));
    let prepare = Message::new(3, Kind::Prepare).service(other_service()).client(caller);
    world.send(prepare);
    let data = Frame::tcp((server_mac(1), server_mac(3)), (caller, other_service()), ACK);
    assert_eq!(world.receive(1, data.bytes()).0, to(Verdict::ToOwner, 3), "rule 4b applies");
    let reply = Frame::tcp((server_mac(3), server_mac(1)), (other_service(), caller), ACK);
    assert_eq!(world.receive(3, reply.bytes()).0, to(Verdict::FromOwner, 1));
}

#[test]
fn fragments_and_cut_headers_of_a_flow_are_dropped() {
    let drop = |verdict| Decision { verdict, action: Action::Drop };
    let mut world = World::new();
    let fragment = Frame { fragment_field: 0x2000, ..client_frame(ACK) };
    assert_eq!(world.client_sends_frame(&fragment).0, to(Verdict::Switched, 1), "no entry");
    world.move_flow(1, 2);
    let before = world.entry();
    assert_eq!(world.client_sends_frame(&fragment).0, drop(Verdict::DropFragment));
    let reply = Frame { fragment_field: 0x2000, ..server_frame(2, place_of(2), ACK) };
    assert_eq!(world.server_sends_frame(2, &reply).0, drop(Verdict::DropFragment));
    let stranger = Frame { fragment_field: 0x2000, ..server_frame(3, place_of(3), ACK) };
    assert_eq!(world.server_sends_frame(3, &stranger).0, NOT_OWNER);
    for (ingress, mut frame) in
        [(0, client_frame(ACK).bytes()), (2, server_frame(2, place_of(2), ACK).bytes())]
    {
        frame.truncate(14 + 20 + 19);
        assert_eq!(world.receive(ingress, frame).0, drop(Verdict::DropShort));
    }
    assert_eq!(world.entry(), before, "dropped packets leave no trace");
    // A later fragment has no ports: it goes to the service endpoint, where it is of no use.
    let later = Frame { fragment_field: 0x2003, ..client_frame(ACK) };
    assert_eq!(world.receive(0, later.bytes()).0, to(Verdict::Switched, 1));
}

#[test]
fn flows_over_ipv6_with_extension_headers_and_vlan_tags() {
    let mut world = World::new();
    let client = endpoint("[fd00::9]:5000");
    let about = |message: Message| message.service(service_v6()).client(client);
    world.send(about(Message::new(1, Kind::Prepare)).site(place_v6_of(2), server_mac(2)));
    let generation = world.entry_of(client).unwrap().generation;
    let prepared =
        about(Message::new(2, Kind::Prepared)).generation(generation).site(place_v6_of(2), server_mac(2));
    world.send(prepared);
    let plain = Frame::tcp((client_mac(), server_mac(1)), (client, service_v6()), ACK);
    let frame = Frame {
        extensions: vec![(0, 0), (60, 2), (43, 0), (60, 0), (60, 0), (60, 0), (60, 0)],
        vlan_tags: vec![(0x88a8, 1), (0x8100, 2), (0x8100, 0)],
        payload: b"request".to_vec(),
        ..plain.clone()
    };
    let (decision, seen) = world.client_sends_frame(&frame);
    assert_eq!(decision, to(Verdict::ToTarget, 2));
    assert_eq!(
        (seen.target, seen.target_mac, seen.has_correct_checksums),
        (place_v6_of(2), server_mac(2), true)
    );
    assert_eq!(seen.upper[20..], *b"request");
    let reply = Frame {
        extensions: vec![(60, 1)],
        ..Frame::tcp((server_mac(1), client_mac()), (service_v6(), client), ACK)
    };
    let (decision, seen) = world.server_sends_frame(1, &reply);
    assert_eq!((decision, seen.has_correct_checksums), (to(Verdict::FromOwner, 0), true));
    // A fragment header, even of a whole packet, makes it a fragment; eight headers are a long chain.
    let fragment = Frame { extensions: vec![(44, 0)], ..plain.clone() };
    assert_eq!(world.client_sends_frame(&fragment).0.verdict, Verdict::DropFragment);
    let long = Frame { extensions: vec![(60, 0); 8], ..plain };
    let (decision, bytes) = world.receive(0, long.bytes());
    assert_eq!(
        (decision, bytes),
        (to(Verdict::Switched, 1), long.bytes()),
        "not parsed, so forwarded as it is"
    );
}

#[test]
fn ipv4_options_are_parsed() {
    let mut world = World::new();
    world.move_flow(1, 2);
    let frame = Frame { option_words: 10, payload: vec![7; 9], ..client_frame(ACK) };
    let (decision, seen) = world.client_sends_frame(&frame);
    assert_eq!(
        (decision, seen.target, seen.has_correct_checksums),
        (to(Verdict::ToOwner, 2), place_of(2), true)
    );
}

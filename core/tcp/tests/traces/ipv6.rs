//! What only IPv6 has (RFC 8200, RFC 4443, RFC 8201): headers, extension headers, segment sizes, errors of
//! routers. `traces_over_ipv6.rs` runs the tests of both families over IPv6.

use std::net::{IpAddr, SocketAddr};

use spillway_tcp::{Dropped, ImportError, Listener, OwnAddress, Resolver, Settings, SettingsError, Stack};
use spillway_transport::{LostReason, Transport};
use spillway_wire::packet::icmp::v6::{self, Message};
use spillway_wire::packet::{ethernet, ipv4, ipv6};
use spillway_wire::state::ConnectionState;

use crate::icmp::quoted;
use crate::trace::*;

/// The IPv6 header of the last frame that the stack has sent.
fn last_header(t: &Trace) -> ipv6::Header {
    let (ethernet, packet) = ethernet::Header::parse(&t.last_frame).expect("a valid Ethernet header");
    assert_eq!(ethernet.kind, ethernet::KIND_IPV6);
    ipv6::Header::parse(packet).expect("a valid IPv6 header").0
}

/// Delivers a frame; returns the reason if the stack drops it.
fn reason_of(t: &mut Trace, frame: &[u8]) -> Option<Dropped> {
    t.stack.watch_drops(1);
    t.recv_frame(frame);
    t.stack.poll_dropped().map(|dropping| dropping.reason)
}

#[test]
fn packets_have_the_configured_hop_limit_and_dscp_and_no_flow_label() {
    let mut t = Trace::new_ipv6(|settings| (settings.ttl, settings.dscp) = (77, 46));
    t.establish(syn());
    t.send_pattern(10);
    t.expect(data(1, 10));
    let expected = ipv6::Header {
        source: STACK_IP6,
        target: PEER_IP6,
        protocol: ipv4::PROTOCOL_TCP,
        hop_limit: 77,
        dscp_ecn: 46 << 2,
        flow_label: 0,
        payload_bytes: 30,
    };
    assert_eq!(last_header(&t), expected);
}

/// The checksum covers the pseudo-header of RFC 8200 §8.1.
#[test]
fn a_segment_whose_address_was_altered_is_ignored() {
    let mut t = Trace::open_ipv6(syn());
    let mut frame = t.frame_of(bytes(1, "abc"));
    frame[ethernet::HEADER_BYTES + 23] ^= 1; // the last byte of the source address
    assert_eq!(reason_of(&mut t, &frame), Some(Dropped::BadChecksum));
    t.expect_nothing();
}

#[test]
fn partial_checksums_are_recognised() {
    use spillway_wire::packet::checksum;
    let mut t = Trace::open_ipv6(syn());
    let mut frame = t.frame_of(bytes(1, "abc"));
    let segment = &mut frame[frame::TCP_AT6..];
    let pseudo = checksum::pseudo_v6(PEER_IP6, STACK_IP6, ipv4::PROTOCOL_TCP, segment.len() as u32);
    segment[16..18].copy_from_slice(&(!pseudo.finish()).to_be_bytes());
    assert_eq!(reason_of(&mut t, &frame), Some(Dropped::PartialChecksum));
}

/// A frame with extension headers before the segment; `number` is that of the first.
fn with_extensions(t: &mut Trace, seg: Seg, number: u8, extensions: &[u8]) -> Vec<u8> {
    let frame = t.frame_of(seg);
    frame::packet6(PEER_IP6, STACK_IP6, number, &[extensions, &frame[frame::TCP_AT6..]].concat())
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// RFC 8200 §4: headers with options that may be skipped, and routing headers whose route ends here.
#[test]
fn extension_headers_are_skipped() {
    let padding = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let route_ends = |next: u8| [next, 0, 4, 0, 0, 0, 0, 0];
    let all = [padding(DESTINATION), padding(ROUTING), route_ends(DESTINATION), padding(6)].concat();
    for (number, extensions) in [
        (HOP_BY_HOP, &padding(6)[..]),
        (DESTINATION, &padding(6)),
        (ROUTING, &route_ends(6)),
        (HOP_BY_HOP, &all),
    ] {
        let mut t = Trace::open_ipv6(syn());
        let frame = with_extensions(&mut t, bytes(1, "abc"), number, extensions);
        t.recv_frame(&frame);
        t.expect_data("abc");
        t.expect(ack(4));
    }
}

#[test]
fn packets_with_other_extension_headers_are_dropped_with_their_reason() {
    let atomic = [6, 0, 0, 0, 1, 2, 3, 4];
    let first = [6, 0, 0, 1, 1, 2, 3, 4];
    let route_goes_on = [6, 0, 4, 1, 0, 0, 0, 0];
    let must_not_be_skipped = [6, 0, 0x81, 4, 0, 0, 0, 0];
    for (number, extension, reason) in [
        (FRAGMENT, atomic, Dropped::Fragment),
        (FRAGMENT, first, Dropped::Fragment),
        (ROUTING, route_goes_on, Dropped::Extension),
        (DESTINATION, must_not_be_skipped, Dropped::Extension),
        (51, [6, 4, 0, 0, 0, 0, 0, 0], Dropped::Extension),
        (17, [0; 8], Dropped::UnknownProtocol),
    ] {
        let mut t = Trace::open_ipv6(syn());
        let frame = with_extensions(&mut t, bytes(1, "abc"), number, &extension);
        assert_eq!(
            reason_of(&mut t, &frame),
            Some(reason),
            "the packet should be dropped with its reason: {number} {extension:?}"
        );
        t.expect_nothing();
    }
}

#[test]
fn packets_for_other_addresses_are_ignored() {
    let mut t = Trace::new_ipv6(|_| {});
    let segment = t.frame_of(syn())[frame::TCP_AT6..].to_vec();
    let other = "fd00::9".parse().unwrap();
    let frame = frame::packet6(PEER_IP6, other, ipv4::PROTOCOL_TCP, &segment);
    assert_eq!(reason_of(&mut t, &frame), Some(Dropped::NotForUs));
    let mut to_group = t.frame_of(syn());
    to_group[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(
        reason_of(&mut t, &to_group),
        Some(Dropped::NotForUs),
        "a TCP segment in a group frame should be ignored"
    );
}

/// MUST-15: the default is 1,220 bytes. RFC 6691 §2: our MSS option is not reduced by other options.
#[test]
fn segment_sizes_follow_the_headers_of_ipv6() {
    for (mtu, offered) in [(1280, 1220), (1500, 1440), (9000, 8940)] {
        let mut t = Trace::new_ipv6(|settings| settings.mtu = mtu);
        t.recv(syn().mss(9000));
        t.expect(syn_ack().mss(offered));
        t.recv(ack(1).seq(1));
        t.send_pattern(20_000);
        t.expect(data(1, usize::from(offered)));
        assert_eq!(t.last_frame.len(), ethernet::HEADER_BYTES + usize::from(mtu));
    }
    let mut t = Trace::open_ipv6(syn());
    t.send_pattern(3000);
    t.expect(data(1, 1220));
    let mut t = Trace::new_ipv6(|_| {});
    t.connect();
    t.expect(syn().mss(1440));
}

#[test]
fn connections_have_the_own_address_of_the_peers_family() {
    let mut t = Trace::new(add_ipv6);
    t.select_peer(0).peer().ip = PEER_IP.into();
    t.connect();
    t.expect(syn().mss(1460));
    t.select_peer(1).peer().ip = PEER_IP6.into();
    t.connect();
    t.expect(syn().mss(1440));
    for (peer, own) in [(0, IpAddr::V4(STACK_IP)), (1, IpAddr::V6(STACK_IP6))] {
        t.select_peer(peer).recv(syn_ack());
        t.expect(ack(1));
        t.expect_opened();
        assert_eq!(t.stack.local_address(t.conn()).map(|local| local.ip()), Some(own));
    }
}

/// Listener 0 has the IPv4 address, listener 2 the IPv6 address.
#[test]
fn listeners_of_both_families_share_a_port() {
    let mut t = Trace::new(add_ipv6);
    for (index, ip, listener) in [(0, IpAddr::V4(PEER_IP), 0), (1, IpAddr::V6(PEER_IP6), 2)] {
        t.select_peer(index).peer().ip = ip;
        t.recv(syn());
        t.expect(syn_ack());
        t.recv(bytes(1, "hello").ack(1));
        match t.peer().events.pop_front() {
            Some(spillway_tcp::StackEvent::Opened { listener: Some(at), .. }) => assert_eq!(at, listener),
            event => t.fail(&format!("{event:?}")),
        }
        t.grant(100);
        t.expect_data("hello");
    }
    t.stack.set_listening(2, false);
    t.select_peer(2).peer().ip = PEER_IP6.into();
    t.recv(syn());
    t.expect(rst(0).ack(1));
    t.select_peer(3).peer().ip = PEER_IP.into();
    t.recv(syn());
    t.expect(syn_ack());
}

/// RFC 4291 §2.5.5.2: such an address means an IPv4 host. No packets have it.
#[test]
fn ipv4_addresses_mapped_into_ipv6_are_ipv4_addresses() {
    let mapped = SocketAddr::new(PEER_IP.to_ipv6_mapped().into(), PEER_PORT);
    let mut t = Trace::new(|settings| {
        add_ipv6(settings);
        let address = SocketAddr::from((STACK_IP.to_ipv6_mapped(), 82));
        settings.listeners.push(Listener { address, is_gated: false });
    });
    let conn = t.stack.connect(t.now, mapped).expect("room for a connection");
    t.peer().conn = Some(conn);
    t.transmit();
    t.expect(syn().mss(1460));
    t.recv(syn_ack());
    t.expect(ack(1));
    assert_eq!(t.stack.local_address(conn).map(|local| local.ip()), Some(STACK_IP.into()));

    t.select_peer(1).peer().stack_port = 82;
    t.recv(syn());
    t.expect(syn_ack());
    let frame = frame::segment(PEER_IP.to_ipv6_mapped(), &Default::default(), b"", None);
    assert!(reason_of(&mut t, &frame).is_some(), "a packet from a mapped address should be dropped");
}

/// The connection fails like one to an unreachable network.
#[test]
fn without_an_address_of_the_peers_family_a_connection_is_lost_at_once() {
    for (own, target) in [("fd00::1", "10.0.0.2:80"), ("10.0.0.1", "[fd00::2]:80")] {
        let own: IpAddr = own.parse().unwrap();
        let mut t = Trace::new(|settings| {
            settings.resolver = Resolver::Driver;
            settings.listeners.clear();
            settings.addresses = vec![OwnAddress::new(own, 24)];
        });
        let conn = t.stack.connect(t.now, target.parse().unwrap()).expect("room for a connection");
        t.peer().conn = Some(conn);
        t.transmit();
        t.expect_lost(LostReason::Failed);
        t.expect_nothing();
        assert_eq!(t.stack.connections(), 0);
    }
}

#[test]
fn a_listener_added_later_is_checked() {
    let listener = |text: &str| Some(Listener { address: text.parse().unwrap(), is_gated: false });
    let ipv6 = listener("[fd00::9]:80");
    let mut t = Trace::new(|_| {});
    let refused = Err(SettingsError::Neighbours("fd00::9".parse().unwrap()));
    assert_eq!(t.stack.set_listener(7, ipv6), refused);
    let mut t = Trace::new(|settings| (settings.resolver, settings.mtu) = (Resolver::Driver, 1279));
    assert_eq!(t.stack.set_listener(7, ipv6), Err(SettingsError::Ipv6Mtu(1279)));
    let mut t = Trace::new(|settings| settings.resolver = Resolver::Driver);
    assert_eq!(t.stack.set_listener(7, ipv6), Ok(()));
}

/// A router's packet too big that quotes the segment with this sequence number.
fn too_big(t: &mut Trace, mtu: u32, seq: i64) {
    let inner = quoted(t, seq);
    t.recv_frame(&frame::icmp6(ROUTER.parse().unwrap(), &Message::PacketTooBig { mtu, inner: &inner }));
}

/// A router's unreachable that quotes the segment with this sequence number.
fn unreachable(t: &mut Trace, code: u8, seq: i64) {
    let inner = quoted(t, seq);
    t.recv_frame(&frame::icmp6(ROUTER.parse().unwrap(), &Message::Unreachable { code, inner: &inner }));
}

const ROUTER: &str = "fe80::fe";

/// Established, with a segment of 1,440 bytes in flight.
fn sending() -> Trace {
    let mut t = Trace::open_ipv6(syn().mss(1460));
    t.send_pattern(1440);
    t.expect(data(1, 1440));
    t
}

/// RFC 8201 §4: a segment that was too large is retransmitted at once in smaller ones.
#[test]
fn packet_too_big_reduces_the_segment_size() {
    let mut t = sending();
    too_big(&mut t, 1300, 1);
    t.expect(data(1, 1240));
    t.recv(ack(1241));
    t.expect(data(1241, 200));
    t.recv(ack(1441));
    t.send_pattern(1440);
    t.expect(data(1441, 1240));
    t.expect(data(2681, 200));
}

/// RFC 8201 §4: "it must discard it"; RFC 5927 §4.1: such errors may be forged; §7: none increases the size.
#[test]
fn packet_too_big_is_ignored_if_it_is_too_small_or_forged_or_larger_than_our_mtu() {
    for (mtu, seq) in [(0, 1), (1279, 1), (1500, 1), (9000, 1), (u32::MAX, 1), (1300, 1441), (1300, 90_000)] {
        let mut t = sending();
        too_big(&mut t, mtu, seq);
        t.expect_nothing_sent();
        t.recv(ack(1441));
        t.send_pattern(1440);
        t.expect(data(1441, 1440));
    }
}

/// RFC 4443 §3.1, RFC 5461: code 4 says that no program listens at the port; the others may be temporary.
#[test]
fn port_unreachable_ends_only_an_opening_connection() {
    for code in 0..8 {
        let mut t = Trace::new_ipv6(|_| {});
        t.connect();
        t.expect(syn());
        unreachable(&mut t, code, 5000);
        t.expect_nothing();
        unreachable(&mut t, code, 0);
        if code == v6::CODE_PORT {
            t.expect_lost(LostReason::Refused);
            continue;
        }
        t.expect_nothing();
        t.recv(syn_ack());
        t.expect(ack(1));
        t.expect_opened();
        t.send_pattern(10);
        t.expect(data(1, 10));
        unreachable(&mut t, code, 1);
        t.expect_nothing();
    }
    let mut t = sending();
    unreachable(&mut t, v6::CODE_PORT, 1);
    t.expect_nothing();
    t.recv(ack(1441));
    t.send_pattern(1);
    t.expect(data(1441, 1));
}

/// A raw socket delivers the message without its IPv6 header; the kernel has verified the checksum.
#[test]
fn errors_from_a_raw_socket_count() {
    let raw = |t: &mut Trace, source: &str, message: Message<'_>| {
        let mut bytes = vec![0; message.bytes()];
        message.emit(&mut bytes, Default::default());
        t.stack.handle_icmpv6_message(t.now, source.parse().unwrap(), &bytes);
        t.transmit();
    };
    let mut t = sending();
    let inner = quoted(&mut t, 1);
    let message = Message::PacketTooBig { mtu: 1300, inner: &inner };
    for own_or_group in ["fd00::1", "ff02::1", "::"] {
        raw(&mut t, own_or_group, message);
        t.expect_nothing_sent();
    }
    raw(&mut t, ROUTER, message);
    t.expect(data(1, 1240));

    let mut t = Trace::new_ipv6(|_| {});
    t.connect();
    t.expect(syn());
    let inner = quoted(&mut t, 0);
    raw(&mut t, ROUTER, Message::Unreachable { code: v6::CODE_PORT, inner: &inner });
    t.expect_lost(LostReason::Refused);
    for length in 0..8 {
        t.stack.handle_icmpv6_message(t.now, ROUTER.parse().unwrap(), &[1; 8][..length]);
    }
}

#[test]
fn errors_with_a_truncated_or_foreign_quotation_are_ignored() {
    let mut t = sending();
    let inner = quoted(&mut t, 1);
    for end in 0..inner.len() {
        t.recv_frame(&frame::icmp6(PEER_IP6, &Message::PacketTooBig { mtu: 1300, inner: &inner[..end] }));
    }
    for at in [6, 23, 39, 41, 43] {
        let mut foreign = inner.clone();
        foreign[at] ^= 1; // the protocol, an address or a port
        t.recv_frame(&frame::icmp6(PEER_IP6, &Message::PacketTooBig { mtu: 1300, inner: &foreign }));
    }
    t.expect_nothing();
}

/// The kernel shares the address: it answers ping and does neighbour discovery.
#[test]
fn other_messages_are_ignored() {
    let mut t = sending();
    let inner = quoted(&mut t, 1);
    let target = STACK_IP6;
    for message in [
        Message::EchoRequest { ident: 7, sequence: 8, payload: b"ping" },
        Message::TimeExceeded { code: 0, inner: &inner },
        Message::NeighbourSolicitation { target, source_mac: Some(PEER_MAC) },
        Message::Other { kind: 4, code: 1, body: &[&[0; 4][..], &inner].concat() },
    ] {
        t.recv_frame(&frame::icmp6(PEER_IP6, &message));
    }
    t.expect_nothing();
    assert!(t.other_frames.is_empty(), "no frame should be sent");
}

#[test]
fn a_cookie_keeps_the_default_segment_size_of_ipv6() {
    let mut t = Trace::new_ipv6(|settings| settings.half_open_max = 1);
    t.select_peer(9).recv(syn());
    t.select_peer(0).recv(syn());
    t.expect(syn_ack().mss(1440));
    assert_eq!(t.counters().cookies_sent, 1);
    t.recv(bytes(1, "hello").ack(1));
    t.expect_opened();
    assert_eq!(t.counters().cookies_accepted, 1);
    t.send_pattern(3000);
    assert_eq!(t.take_last().payload.map(|payload| payload.len()), Some(3000 - 2 * 1220));
}

#[test]
fn a_connection_moves_to_a_stack_with_another_ipv6_address() {
    let mut t = Trace::open_ipv6(syn().mss(1460).timestamp(PEER_CLOCK));
    t.send_pattern(1000);
    t.discard();
    let state = t.stack.export(t.now, t.conn()).expect("an established connection");
    assert_eq!(state.local, SocketAddr::from((STACK_IP6, UNGATED_PORT)));
    let mut bytes_of_state = Vec::new();
    state.emit(&mut bytes_of_state);
    let state = ConnectionState::parse(&bytes_of_state).expect("a valid encoded state");

    let addresses = vec![OwnAddress::new("fd00::9".parse::<IpAddr>().unwrap(), 64)];
    let mut settings = settings();
    add_ipv6(&mut settings);
    t.stack = Stack::new(t.now, Settings { addresses, ..settings }).expect("valid settings");
    t.peer().conn = Some(t.stack.import(t.now, &state).expect("room for a connection"));
    t.recv(bytes(1, "abc").ack(1001));
    t.expect_data("abc");
    t.grant(100);
    t.send_pattern(10);
    assert_eq!(t.take_last().seq, Some(1001));
    t.abort();
    assert_eq!(t.take_last().flags, rst(1).ack(1).flags);
    t.recv(bytes(4, "late"));
    assert_eq!(
        t.take_last().flags,
        rst(1).flags,
        "an aborted connection at a foreign address should be remembered"
    );
}

#[test]
fn an_imported_state_has_addresses_of_one_family_that_the_stack_supports() {
    let mut t = Trace::open();
    let state = t.stack.export(t.now, t.conn()).expect("an established connection");
    let end = |text: &str| text.parse().unwrap();
    let mixed = ConnectionState { peer: end("[fd00::2]:4000"), ..state.clone() };
    assert_eq!(t.stack.import(t.now, &mixed), Err(ImportError::Contradiction("addresses of two families")));
    let ipv6 = ConnectionState { local: end("[fd00::1]:80"), ..mixed };
    assert_eq!(t.stack.import(t.now, &ipv6), Err(ImportError::Family));
    let mapped = ConnectionState {
        local: end("[::ffff:10.0.0.1]:80"),
        peer: end("[::ffff:10.0.0.2]:4000"),
        ..state.clone()
    };
    let conn = t.stack.import(t.now, &mapped).expect("an IPv4 connection");
    assert_eq!(t.stack.local_address(conn), Some(state.local));

    // Segments of 1,460 bytes, as the exporter sent them, would not fit IPv6 and this MTU.
    let mut t = Trace::new_ipv6(|settings| settings.mtu = 1280);
    let conn = t.stack.import(t.now, &ipv6).expect("a stack with IPv6");
    t.peer().conn = Some(conn);
    t.announce_mac();
    assert!(t.stack.send(conn, &[0; 3000]) == 3000, "the buffer should take all bytes");
    t.peer().is_checked = false;
    t.transmit();
    assert_eq!(t.next().payload.map(|payload| payload.len()), Some(1220));
}

//! Errors from routers, and `ping` (RFC 9293 §3.9.2.2; RFC 1122 §3.2.2, §4.2.3.9; RFC 5927; RFC 1191).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use spillway_tcp::{Listener, OwnAddress, Settings, Stack};
use spillway_transport::LostReason;
use spillway_wire::packet::icmp::v4::{self, Message};
use spillway_wire::packet::{arp, ethernet, ipv4};

use crate::trace::*;

/// The part that a router quotes of the segment with this sequence number: the IP header and eight bytes.
pub fn quoted(t: &mut Trace, seq: i64) -> Vec<u8> {
    let peer = t.peer();
    let mut tcp = [0; 8];
    tcp[..2].copy_from_slice(&peer.stack_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&peer.port.to_be_bytes());
    tcp[4..].copy_from_slice(&peer.stack_initial().wrapping_add(seq as u32).to_be_bytes());
    let packet = match peer.ip {
        IpAddr::V4(ip) => frame::packet(STACK_IP, ip, ipv4::PROTOCOL_TCP, &tcp),
        IpAddr::V6(ip) => frame::packet6(STACK_IP6, ip, ipv4::PROTOCOL_TCP, &tcp),
    };
    packet[ethernet::HEADER_BYTES..].to_vec()
}

/// The frame of a router's error that quotes the segment with this sequence number.
pub fn unreachable_frame(t: &mut Trace, code: u8, next_hop_mtu: u16, seq: i64) -> Vec<u8> {
    let inner = quoted(t, seq);
    let message = Message::Unreachable { code, next_hop_mtu, inner: &inner };
    frame::icmp([10, 0, 0, 254].into(), &message)
}

fn unreachable(t: &mut Trace, code: u8, next_hop_mtu: u16, seq: i64) {
    let frame = unreachable_frame(t, code, next_hop_mtu, seq);
    t.recv_frame(&frame);
}

/// Established, with a segment of 1460 bytes in flight.
fn sending() -> Trace {
    let mut t = Trace::open();
    t.send_pattern(1460);
    t.expect(data(1, 1460));
    t
}

/// MUST-56, SHLD-25, RFC 1122 §4.2.3.9.
#[test]
fn soft_errors_end_no_connection() {
    for code in [v4::CODE_NETWORK, v4::CODE_HOST, 5, 6, 11, 12] {
        let mut t = Trace::new(|_| {});
        t.connect();
        t.expect(syn());
        unreachable(&mut t, code, 0, 0);
        t.expect_nothing();
        t.recv(syn_ack());
        t.expect(ack(1));
        t.expect_opened();
        t.send_pattern(10);
        t.expect(data(1, 10));
        unreachable(&mut t, code, 0, 1);
        t.expect_nothing();
    }
}

/// SHLD-26.
#[test]
fn hard_errors_end_an_opening_connection() {
    for code in [v4::CODE_PROTOCOL, v4::CODE_PORT] {
        let mut t = Trace::new(|_| {});
        t.connect();
        t.expect(syn());
        unreachable(&mut t, code, 0, 0);
        t.expect_lost(LostReason::Refused);
    }
}

/// RFC 5927 §5.2, RFC 5461.
#[test]
fn hard_errors_do_not_end_an_established_connection() {
    for code in [v4::CODE_PROTOCOL, v4::CODE_PORT] {
        let mut t = sending();
        unreachable(&mut t, code, 0, 1);
        t.expect_nothing();
        t.recv(ack(1461));
        t.send_pattern(1);
        t.expect(data(1461, 1));
    }
}

/// RFC 5927 §4.1: such errors may be forged.
#[test]
fn errors_that_quote_no_segment_in_flight_are_ignored() {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn());
    for seq in [-1, 1, 5000] {
        unreachable(&mut t, v4::CODE_PORT, 0, seq);
    }
    t.expect_nothing();
    let mut t = sending();
    for seq in [0, 1461, 90_000] {
        unreachable(&mut t, v4::CODE_FRAGMENTATION_NEEDED, 1000, seq);
    }
    t.send_pattern(1460);
    t.expect(data(1461, 1460));
}

/// RFC 1191 §6.1: a segment that was too large is retransmitted at once in smaller ones.
#[test]
fn a_smaller_mtu_reduces_the_segment_size() {
    let mut t = sending();
    unreachable(&mut t, v4::CODE_FRAGMENTATION_NEEDED, 1000, 1);
    t.expect(data(1, 960));
    t.recv(ack(961));
    t.expect(data(961, 500));
    t.recv(ack(1461));
    t.send_pattern(1460);
    t.expect(data(1461, 960));
    t.expect(data(2421, 500));
}

/// A router on the path may have fragmented the segment before another router reports its MTU.
#[test]
fn an_error_may_quote_the_first_fragment_of_a_segment() {
    const FLAGS_AND_OFFSET: usize = 6; // of the IPv4 header
    let mut t = sending();
    let mut inner = quoted(&mut t, 1);
    let mut report = |t: &mut Trace, fragment: u16| {
        inner[FLAGS_AND_OFFSET..FLAGS_AND_OFFSET + 2].copy_from_slice(&fragment.to_be_bytes());
        let code = v4::CODE_FRAGMENTATION_NEEDED;
        let message = Message::Unreachable { code, next_hop_mtu: 1000, inner: &inner };
        t.recv_frame(&frame::icmp([10, 0, 0, 254].into(), &message));
    };
    report(&mut t, 0x2001);
    t.expect_nothing_sent();
    report(&mut t, 0x2000);
    t.expect(data(1, 960));
}

/// RFC 5927 §7.
#[test]
fn a_tiny_mtu_is_raised_to_552_bytes() {
    for mtu in [0, 1, 68, 551] {
        let mut t = sending();
        unreachable(&mut t, v4::CODE_FRAGMENTATION_NEEDED, mtu, 1);
        t.expect(data(1, 512));
    }
}

#[test]
fn a_larger_mtu_is_ignored() {
    let mut t = sending();
    unreachable(&mut t, v4::CODE_FRAGMENTATION_NEEDED, 9000, 1);
    t.expect_nothing_sent();
    t.recv(ack(1461));
    t.send_pattern(1460);
    t.expect(data(1461, 1460));
}

/// MUST-55: source quench is discarded without an answer, and so are unknown messages.
#[test]
fn other_icmp_messages_are_ignored() {
    let mut t = sending();
    let inner = quoted(&mut t, 1);
    for kind in [4, 5, 9, 10, 12, 13, 17, 200] {
        let body = [&[0; 4][..], &inner].concat();
        t.recv_frame(&frame::icmp(PEER_IP, &Message::Other { kind, code: 0, body: &body }));
    }
    t.recv_frame(&frame::icmp(PEER_IP, &Message::TimeExceeded { code: 0, inner: &inner }));
    t.expect_nothing();
    t.recv(ack(1461));
    t.send_pattern(1460);
    t.expect(data(1461, 1460));
}

#[test]
fn errors_with_a_truncated_quotation_are_ignored() {
    let mut t = sending();
    let inner = quoted(&mut t, 1);
    for end in 0..inner.len() {
        let message = Message::Unreachable { code: 4, next_hop_mtu: 600, inner: &inner[..end] };
        t.recv_frame(&frame::icmp(PEER_IP, &message));
    }
    t.expect_nothing();
}

/// RFC 1122 §3.2.2.6.
#[test]
fn ping_is_answered() {
    let mut t = Trace::new(|_| {});
    let payload = pattern(1, 56);
    let ping = Message::EchoRequest { ident: 7, sequence: 8, payload: &payload };
    t.recv_frame(&frame::icmp(PEER_IP, &ping));
    let frame = t.other_frames.pop_front().expect("an echo reply");
    let (_, packet) = ethernet::Header::parse(&frame).expect("a valid Ethernet header");
    let (ip, _, message) = ipv4::Header::parse(packet).expect("a valid IPv4 header");
    assert_eq!((ip.source, ip.target), (STACK_IP, PEER_IP));
    let pong = Message::EchoReply { ident: 7, sequence: 8, payload: &payload };
    assert_eq!(Message::parse(message), Ok(pong));
}

/// RFC 1122 §3.2.2.6: all hosts of a group would answer a forged request.
#[test]
fn ping_to_or_from_a_group_address_is_not_answered() {
    let ping = Message::EchoRequest { ident: 7, sequence: 8, payload: b"" };
    let mut t = Trace::new(|_| {});
    t.recv_frame(&frame::icmp([10, 0, 0, 255].into(), &ping));
    let mut to_all = frame::icmp(PEER_IP, &ping);
    to_all[30..34].copy_from_slice(&[10, 0, 0, 255]);
    frame::fix_ip_checksum(&mut to_all);
    t.recv_frame(&to_all);
    assert!(t.other_frames.is_empty(), "the ping should not be answered");
}

/// Routers send errors to the connection's address, not to that of its new host (RFC 1191). Pings to the
/// connection's address are not answered.
#[test]
fn icmp_errors_to_the_old_address_are_handled() {
    let mut t = Trace::open();
    t.send_pattern(5000);
    let conn = t.peer().conn.expect("an open connection");
    let state = t.stack.export(t.now, conn).expect("an established connection");

    let address = Ipv4Addr::new(10, 0, 0, 9);
    let listeners = vec![Listener { address: SocketAddr::from((address, UNGATED_PORT)), is_gated: false }];
    let mut other_stack = Stack::new(
        t.now,
        Settings { addresses: vec![OwnAddress::new(address, 24)], listeners, ..settings() },
    )
    .expect("valid settings");
    other_stack.handle_frame(t.now, &frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), address));
    other_stack.import(t.now, &state).expect("room for a connection");
    let mut slot = vec![0; other_stack.frame_bytes_max()];
    while other_stack.poll_transmit(t.now, &mut slot).is_some() {}
    let mut next_retransmission = |stack: &mut Stack| {
        loop {
            let now = stack.poll_timeout().expect("a timer runs while bytes are in flight");
            stack.handle_timeout(now);
            while let Some(length) = stack.poll_transmit(now, &mut slot) {
                if slot[12..14] == ethernet::KIND_IPV4.to_be_bytes() {
                    return slot[..length].to_vec();
                }
            }
        }
    };
    let large = next_retransmission(&mut other_stack);
    assert_eq!(large.len(), frame::TCP_AT + 20 + 1460);
    let inner = &large[ethernet::HEADER_BYTES..frame::TCP_AT + 8];
    let message = Message::Unreachable { code: v4::CODE_FRAGMENTATION_NEEDED, next_hop_mtu: 700, inner };
    let ping = Message::EchoRequest { ident: 1, sequence: 1, payload: b"ping" };
    for message in [message, ping] {
        let mut bytes = vec![0; message.bytes()];
        message.emit(&mut bytes);
        other_stack.handle_frame(t.now, &frame::packet(PEER_IP, STACK_IP, ipv4::PROTOCOL_ICMP, &bytes));
    }
    assert_eq!(
        next_retransmission(&mut other_stack).len(),
        ethernet::HEADER_BYTES + 700,
        "the next frame should be a retransmission, not an echo reply"
    );
}

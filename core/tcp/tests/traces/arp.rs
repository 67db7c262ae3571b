//! ARP (RFC 826; RFC 1122 §2.3.2), and frames for others.

use std::net::{Ipv4Addr, SocketAddr};

use spillway_transport::{Conn, LostReason, Transport};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, ipv4};

use crate::trace::*;

/// The next frame that is not a segment, as an ARP packet.
fn next_arp(t: &mut Trace) -> Option<(Mac, arp::Packet)> {
    let frame = t.other_frames.pop_front()?;
    let (header, packet) = ethernet::Header::parse(&frame).expect("a valid Ethernet header");
    assert_eq!(header.source, STACK_MAC);
    Some((header.target, arp::Packet::parse(packet).expect("a valid ARP packet")))
}

/// The application connects to a host whose Ethernet address is unknown.
fn connecting_to(t: &mut Trace, ip: Ipv4Addr) -> Conn {
    t.peer().ip = ip.into();
    let conn = t.stack.connect(t.now, SocketAddr::from((ip, PEER_PORT))).expect("room for a connection");
    t.peer().conn = Some(conn);
    t.transmit();
    conn
}

#[test]
fn an_arp_request_for_our_address_is_answered() {
    let mut t = Trace::new(|_| {});
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP));
    let (target, reply) = next_arp(&mut t).expect("an ARP reply");
    assert_eq!(target, PEER_MAC);
    assert_eq!(reply.operation, arp::Operation::Reply);
    assert_eq!(
        (reply.sender_mac, reply.sender_ip),
        (STACK_MAC, STACK_IP),
        "the reply should come from the stack"
    );
    assert_eq!((reply.target_mac, reply.target_ip), (PEER_MAC, PEER_IP), "the reply should go to the peer");
}

#[test]
fn an_arp_request_for_another_address_is_not_answered() {
    let mut t = Trace::new(|_| {});
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), Ipv4Addr::new(10, 0, 0, 9)));
    assert!(t.other_frames.is_empty(), "the request should not be answered");
}

#[test]
fn an_unknown_neighbour_is_resolved_before_the_first_segment() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.expect_nothing_sent();
    let (target, request) = next_arp(&mut t).expect("an ARP request");
    assert_eq!((target, request.operation), (Mac::BROADCAST, arp::Operation::Request));
    assert_eq!((request.sender_ip, request.target_ip), (STACK_IP, PEER_IP));
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.expect(syn());
    t.recv(syn_ack());
    t.expect_opened();
}

/// The peer, or its router, may get another network card. Only the source address of acceptable segments is used.
#[test]
fn frames_go_to_the_source_of_the_last_acceptable_segment() {
    let mut t = Trace::open();
    let other_mac = Mac([2, 0, 0, 0, 0, 77]);
    t.peer().is_checked = false;
    // The second segment is outside the window.
    for (seq, source) in [(1, other_mac), (90_000, PEER_MAC), (1001, other_mac)] {
        let mut frame = t.frame_of(data(seq, 1000));
        frame[6..12].copy_from_slice(&source.0);
        t.recv_frame(&frame);
        t.advance(ms(40));
        assert_eq!(
            t.last_frame[..6],
            other_mac.0,
            "the frame should go to the other source: {seq}, from {source}"
        );
    }
}

/// RFC 1122 §2.3.2.1, RFC 9293 §3.8.3 (a): the next hop may have another network card, which no segment shows
/// while the peer only waits.
#[test]
fn after_two_timeouts_the_neighbour_is_resolved_again() {
    let mut t = Trace::open();
    t.peer().is_checked = false;
    t.send_pattern(100);
    let begun = t.now;
    while t.other_frames.is_empty() {
        t.until_sent();
        assert_eq!(t.last_segment_to, PEER_MAC, "the known address should be used until another reply");
        t.peer().segments.clear();
        assert!(t.now.since(begun) < secs(4), "an ARP request should be sent within 4 s");
    }
    let (_, request) = next_arp(&mut t).expect("an ARP request");
    assert_eq!((request.operation, request.target_ip), (arp::Operation::Request, PEER_IP));
    t.until_sent();
    assert_eq!(t.last_segment_to, PEER_MAC);
    t.peer().segments.clear();
    let other_mac = Mac([2, 0, 0, 0, 0, 77]);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (other_mac, PEER_IP), STACK_IP));
    t.peer().segments.clear();
    t.until_sent();
    assert_eq!(t.last_segment_to, other_mac);
}

/// ARP packets have no checksum, so a damaged reply is not detected.
#[test]
fn a_wrong_arp_reply_is_corrected_after_two_timeouts() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.peer().is_checked = false;
    let wrong = Mac([2, 0, 0, 0, 0, 78]);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (wrong, PEER_IP), STACK_IP));
    assert_eq!(t.last_segment_to, wrong);
    t.other_frames.clear();
    t.advance(ms(3500));
    let (_, request) = next_arp(&mut t).expect("an ARP request after two timeouts");
    assert_eq!(request.target_ip, PEER_IP);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.advance(secs(4));
    assert_eq!(t.last_segment_to, PEER_MAC);
}

/// RFC 1122 §2.3.2.1: at most one request a second.
#[test]
fn arp_requests_are_repeated_each_second() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.advance(ms(2500));
    let requests = std::iter::from_fn(|| next_arp(&mut t)).count();
    assert!((2..=3).contains(&requests), "requests should be a second apart in 2.5 s: {requests}");
}

#[test]
fn a_connection_to_an_unresolved_neighbour_times_out() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.advance(secs(181));
    t.expect_lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn hosts_beyond_the_link_are_reached_through_the_gateway() {
    let gateway = Ipv4Addr::new(10, 0, 0, 254);
    let mut t = Trace::new(|settings| settings.gateway = Some(gateway));
    connecting_to(&mut t, Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(next_arp(&mut t).expect("an ARP request").1.target_ip, gateway);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, gateway), STACK_IP));
    t.expect(syn());
}

#[test]
fn without_a_gateway_connections_beyond_the_link_fail() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, Ipv4Addr::new(192, 0, 2, 1));
    t.expect_lost(LostReason::Failed);
    assert!(t.other_frames.is_empty(), "no request should be sent");
}

/// Answers go to the Ethernet address from which the peer's segments come.
#[test]
fn peers_that_connect_need_no_arp_request() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    assert!(t.other_frames.is_empty(), "no request should be sent");
}

/// Frames of unknown protocols and truncated frames are ignored, too.
#[test]
fn frames_for_others_are_ignored() {
    let mut t = Trace::new(|_| {});
    let valid = t.frame_of(syn());
    let change = |at: usize, byte: u8| {
        let mut frame = valid.clone();
        frame[at] = byte;
        frame
    };
    let mut other_address = change(33, 77);
    frame::fix_checksums(&mut other_address);
    let udp = frame::packet(PEER_IP, STACK_IP, ipv4::PROTOCOL_UDP, &[0; 8]);
    let frames = [
        change(5, 9),
        change(12, 0x86),
        other_address,
        udp,
        valid[..53].to_vec(),
        valid[..13].to_vec(),
        vec![],
    ];
    for frame in frames {
        t.recv_frame(&frame);
    }
    t.expect_nothing();
    assert!(t.other_frames.is_empty(), "no frame should be sent");
    let counters = t.counters();
    assert_eq!(counters.frames_ignored + counters.frames_malformed, 7);
    t.recv_frame(&valid);
    t.expect(syn_ack());
}

/// Ethernet pads short frames; the length of the IP packet counts.
#[test]
fn ethernet_padding_is_not_payload() {
    let mut t = Trace::open();
    let mut frame = t.frame_of(bytes(1, "abc"));
    frame.resize(frame.len() + 20, 0xee);
    t.recv_frame(&frame);
    t.expect_data("abc");
}

/// RFC 791 §3.2, MUST-50.
#[test]
fn ip_options_are_skipped() {
    let mut t = Trace::open();
    let mut frame = t.frame_of(bytes(1, "abc"));
    frame[14] = 0x47; // seven words of header
    frame.splice(34..34, [1, 1, 0x83, 3, 4, 0, 0, 0]);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame::fix_checksums(&mut frame);
    t.recv_frame(&frame);
    t.expect_data("abc");
}

/// Fragments are not reassembled: segments of the advertised size are not fragmented.
#[test]
fn fragments_are_ignored() {
    for bits in [0x20, 0x01] {
        let mut t = Trace::open();
        let mut frame = t.frame_of(bytes(1, "abc"));
        frame[20] = bits;
        frame::fix_checksums(&mut frame);
        t.recv_frame(&frame);
        t.expect_nothing();
    }
}

/// A connection in the slot of aborted ones, which waited for ARP, is queued only once.
#[test]
fn aborted_connections_no_longer_wait_for_arp() {
    let mut t = Trace::new(|_| {});
    for _ in 0..5 {
        let conn = connecting_to(&mut t, PEER_IP);
        t.stack.abort(conn);
        t.transmit();
    }
    connecting_to(&mut t, PEER_IP);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.expect(syn());
    t.expect_nothing();
}

/// An answer would reach all members of the group.
#[test]
fn frames_from_a_group_address_are_ignored() {
    let mut t = Trace::new(|_| {});
    let mut frame = t.frame_of(syn());
    frame[6] |= 1;
    t.recv_frame(&frame);
    t.expect_nothing_sent();
    t.recv(syn());
    t.expect(syn_ack());
}

#[test]
fn an_arp_request_from_beyond_the_link_is_not_cached() {
    let mut t = Trace::new(|_| {});
    let far = Ipv4Addr::new(192, 0, 2, 9);
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, far), STACK_IP));
    assert!(next_arp(&mut t).is_some(), "the request should be answered nevertheless");
    assert_eq!(t.stack.poll_timeout(), None);
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP));
    next_arp(&mut t);
    connecting_to(&mut t, PEER_IP);
    t.expect(syn());
}

/// The importing stack has no Ethernet address of the peer and gets no ARP reply. It sends one request a
/// second while there is something to send; otherwise no timer runs.
#[test]
fn an_unresolved_neighbour_causes_few_wake_ups() {
    for granted in [10, 0] {
        let mut t = Trace::new(|settings| settings.initial_window = 1000);
        t.establish(syn());
        t.grant(1000);
        let conn = t.peer().conn.expect("an open connection");
        let state = t.stack.export(t.now, conn).expect("an established connection");
        let moved = t.stack.import(t.now, &state).expect("import of an exported state");
        t.stack.grant(moved, granted);
        let (mut calls, end) = (0, t.now + secs(60));
        while let Some(at) = t.stack.poll_timeout().filter(|at| *at <= end) {
            t.now = t.now.max(at);
            t.stack.handle_timeout(t.now);
            t.transmit();
            calls += 1;
        }
        assert!(calls < 200, "an unresolved neighbour should cause few wake-ups: {calls} calls in a minute");
        assert_eq!(
            t.other_frames.is_empty(),
            granted == 0,
            "without anything to send there should be no ARP request"
        );
    }
}

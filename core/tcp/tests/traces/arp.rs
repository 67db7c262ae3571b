//! ARP (RFC 826; RFC 1122 §2.3.2), and frames for others.

use std::net::{Ipv4Addr, SocketAddr};

use spillway_transport::{Conn, LostReason, Transport};
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::{arp, ipv4};

use crate::trace::*;

/// The next frame that is not a segment, as an ARP packet.
fn next_arp(t: &mut Trace) -> Option<(Mac, arp::Packet)> {
    let frame = t.others.pop_front()?;
    let (header, packet) = ethernet::Header::parse(&frame).expect("a frame");
    assert_eq!(header.source, STACK_MAC);
    Some((header.target, arp::Packet::parse(packet).expect("ARP")))
}

/// The application connects to a host that is not known on the link yet.
fn connecting_to(t: &mut Trace, ip: Ipv4Addr) -> Conn {
    t.peer().ip = ip;
    let conn = t.stack.connect(t.now, SocketAddr::from((ip, PEER_PORT))).expect("room for it");
    t.peer().conn = Some(conn);
    t.transmit();
    conn
}

#[test]
fn a_question_about_us_is_answered() {
    let mut t = Trace::new(|_| {});
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP));
    let (target, answer) = next_arp(&mut t).expect("an answer");
    assert_eq!(target, PEER_MAC);
    assert_eq!(answer.operation, arp::Operation::Reply);
    assert_eq!((answer.sender_mac, answer.sender_ip), (STACK_MAC, STACK_IP));
    assert_eq!((answer.target_mac, answer.target_ip), (PEER_MAC, PEER_IP));
}

#[test]
fn a_question_about_others_is_not_answered() {
    let mut t = Trace::new(|_| {});
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), Ipv4Addr::new(10, 0, 0, 9)));
    assert!(t.others.is_empty());
}

/// The first segment waits for the reply.
#[test]
fn an_unknown_neighbour_is_asked_for() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.quiet();
    let (target, question) = next_arp(&mut t).expect("a question");
    assert_eq!((target, question.operation), (Mac::BROADCAST, arp::Operation::Request));
    assert_eq!((question.sender_ip, question.target_ip), (STACK_IP, PEER_IP));
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.expect(syn());
    t.recv(syn_ack());
    t.opened();
}

/// The peer, or its router, may get another network card. Only acceptable segments show it.
#[test]
fn frames_go_where_the_peers_last_came_from() {
    let mut t = Trace::open();
    let other = Mac([2, 0, 0, 0, 0, 77]);
    t.peer().is_trusted = false;
    // A segment outside the window is answered, too, but its source address is not used.
    for (seq, card) in [(1, other), (90_000, PEER_MAC), (1001, other)] {
        let mut frame = t.frame_of(many(seq, 1000));
        frame[6..12].copy_from_slice(&card.0);
        t.recv_frame(&frame);
        t.pass(ms(40));
        assert_eq!(t.last_frame[..6], other.0, "{seq}, from {card}");
    }
}

/// RFC 1122 §2.3.2.1, RFC 9293 §3.8.3 (a): after two timeouts the router may have another card, and a peer that only waits
/// would never show it.
#[test]
fn whoever_does_not_answer_is_asked_for_again() {
    let mut t = Trace::open();
    t.peer().is_trusted = false;
    t.say(100);
    let begun = t.now;
    while t.others.is_empty() {
        t.until_sent();
        assert_eq!(t.last_segment_to, PEER_MAC, "until somebody else answers");
        t.peer().segments.clear();
        assert!(t.now.since(begun) < secs(4), "nobody is asked");
    }
    let (_, question) = next_arp(&mut t).expect("a question");
    assert_eq!((question.operation, question.target_ip), (arp::Operation::Request, PEER_IP));
    t.until_sent();
    assert_eq!(t.last_segment_to, PEER_MAC);
    t.peer().segments.clear();
    let other = Mac([2, 0, 0, 0, 0, 77]);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (other, PEER_IP), STACK_IP));
    t.peer().segments.clear();
    t.until_sent();
    assert_eq!(t.last_segment_to, other);
}

/// A reply that was damaged on its way, which no checksum detects, is soon corrected.
#[test]
fn a_wrong_answer_is_put_right_while_we_connect() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.peer().is_trusted = false;
    let wrong = Mac([2, 0, 0, 0, 0, 78]);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (wrong, PEER_IP), STACK_IP));
    assert_eq!(t.last_segment_to, wrong);
    t.others.clear();
    t.pass(ms(3500));
    let (_, question) = next_arp(&mut t).expect("a question after two timeouts");
    assert_eq!(question.target_ip, PEER_IP);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.pass(secs(4));
    assert_eq!(t.last_segment_to, PEER_MAC);
}

/// RFC 1122 §2.3.2.1: at most one request a second.
#[test]
fn questions_are_repeated_each_second() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.pass(ms(2500));
    let many = std::iter::from_fn(|| next_arp(&mut t)).count();
    assert!((2..=3).contains(&many), "{many}");
}

#[test]
fn a_neighbour_that_never_answers_is_lost() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, PEER_IP);
    t.pass(secs(181));
    t.lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
}

/// Packets for hosts beyond the link go to the gateway.
#[test]
fn far_hosts_are_reached_by_the_gateway() {
    let gateway = Ipv4Addr::new(10, 0, 0, 254);
    let mut t = Trace::new(|settings| settings.gateway = Some(gateway));
    connecting_to(&mut t, Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(next_arp(&mut t).expect("a question").1.target_ip, gateway);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, gateway), STACK_IP));
    t.expect(syn());
}

#[test]
fn without_a_gateway_far_hosts_are_out_of_reach() {
    let mut t = Trace::new(|_| {});
    connecting_to(&mut t, Ipv4Addr::new(192, 0, 2, 1));
    t.lost(LostReason::Failed);
    assert!(t.others.is_empty());
}

/// A peer whose segments arrive is answered at their source, without an ARP request.
#[test]
fn peers_that_speak_to_us_need_no_question() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    assert!(t.others.is_empty());
}

/// Frames for others, of unknown protocols, or cut short have no effect.
#[test]
fn frames_that_are_not_for_us_are_ignored() {
    let mut t = Trace::new(|_| {});
    let mine = t.frame_of(syn());
    let change = |at: usize, byte: u8| {
        let mut frame = mine.clone();
        frame[at] = byte;
        frame
    };
    let mut elsewhere = change(33, 77); // an address that is not ours
    frame::mend(&mut elsewhere);
    let udp = frame::packet(PEER_IP, STACK_IP, ipv4::PROTOCOL_UDP, &[0; 8]);
    let frames =
        [change(5, 9), change(12, 0x86), elsewhere, udp, mine[..53].to_vec(), mine[..13].to_vec(), vec![]];
    for frame in frames {
        t.recv_frame(&frame);
    }
    t.nothing();
    assert!(t.others.is_empty());
    let counters = t.counters();
    assert_eq!(counters.frames_ignored + counters.frames_malformed, 7);
    t.recv_frame(&mine);
    t.expect(syn_ack());
}

/// Ethernet pads short frames; the length of the IP packet counts.
#[test]
fn padding_is_not_payload() {
    let mut t = Trace::open();
    let mut frame = t.frame_of(bytes(1, "abc"));
    frame.resize(frame.len() + 20, 0xee);
    t.recv_frame(&frame);
    t.hears("abc");
}

/// RFC 791 §3.2: options of IP are skipped (MUST-50).
#[test]
fn options_of_ip_are_passed_over() {
    let mut t = Trace::open();
    let mut frame = t.frame_of(bytes(1, "abc"));
    frame[14] = 0x47; // seven words of header
    frame.splice(34..34, [1, 1, 0x83, 3, 4, 0, 0, 0]);
    let total = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&total.to_be_bytes());
    frame::mend(&mut frame);
    t.recv_frame(&frame);
    t.hears("abc");
}

/// Fragments are not reassembled: the advertised segment size makes them needless.
#[test]
fn fragments_are_ignored() {
    for bits in [0x20, 0x01] {
        let mut t = Trace::open();
        let mut frame = t.frame_of(bytes(1, "abc"));
        frame[20] = bits;
        frame::mend(&mut frame);
        t.recv_frame(&frame);
        t.nothing();
    }
}

/// A connection that reuses the slot of an aborted one that waited for ARP is queued only once.
#[test]
fn who_is_given_up_while_its_neighbour_is_asked_for_leaves_nothing() {
    let mut t = Trace::new(|_| {});
    for _ in 0..5 {
        let conn = connecting_to(&mut t, PEER_IP);
        t.stack.abort(conn);
        t.transmit();
    }
    connecting_to(&mut t, PEER_IP);
    t.recv_frame(&frame::arp(arp::Operation::Reply, (PEER_MAC, PEER_IP), STACK_IP));
    t.expect(syn());
    t.nothing();
}

/// A frame from a group address is ignored: an answer would go to all members.
#[test]
fn what_comes_from_a_group_is_not_answered() {
    let mut t = Trace::new(|_| {});
    let mut frame = t.frame_of(syn());
    frame[6] |= 1;
    t.recv_frame(&frame);
    t.quiet();
    t.recv(syn());
    t.expect(syn_ack());
}

/// Only hosts on the link enter the ARP cache.
#[test]
fn a_question_from_beyond_the_link_teaches_nothing() {
    let mut t = Trace::new(|_| {});
    let far = Ipv4Addr::new(192, 0, 2, 9);
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, far), STACK_IP));
    assert!(next_arp(&mut t).is_some(), "it is answered all the same");
    assert_eq!(t.stack.poll_timeout(), None);
    t.recv_frame(&frame::arp(arp::Operation::Request, (PEER_MAC, PEER_IP), STACK_IP));
    next_arp(&mut t);
    connecting_to(&mut t, PEER_IP);
    t.expect(syn());
}

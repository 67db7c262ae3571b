//! SYN floods: many SYNs whose handshakes are not completed (RFC 4987 §3.6: cookies).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_transport::{Full, Transport};
use spillway_wire::packet::tcp::{Flags, Header};

use crate::trace::*;

/// A stack whose table of half-open connections is full: its two places are taken by peers 1 and 2.
fn flooded() -> Trace {
    let mut t = Trace::new(|settings| settings.half_open_max = 2);
    for index in 1..3 {
        t.select_peer(index).recv(syn());
        t.expect(syn_ack());
    }
    t.select_peer(0);
    t
}

/// A SYN of a peer that sends nothing more, with an address, port and initial sequence number by `index`.
fn flood_syn(index: u32) -> Vec<u8> {
    let host = index % 60_000 + 1000;
    let ip = match PEER {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::from(0x0a00_0000 | host)),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::from(0xfd00 << 112 | u128::from(host))),
    };
    let header = Header {
        source: 1024 + (index % 60_000) as u16,
        target: UNGATED_PORT,
        seq: index.wrapping_mul(0x9e37_79b9),
        flags: Flags::SYN,
        window: 1000,
        ..Header::default()
    };
    frame::segment(ip, &header, &[], None)
}

#[test]
fn an_acknowledged_cookie_establishes_a_connection() {
    let mut t = flooded();
    t.recv(syn().mss(1460));
    t.expect(syn_ack().ack(1).mss(1460));
    assert_eq!((t.stack.connections(), t.counters().cookies_sent), (2, 1), "one SYN should get a cookie");
    t.recv(ack(1).seq(1));
    t.expect_opened();
    assert_eq!(
        (t.stack.connections(), t.counters().cookies_accepted),
        (3, 1),
        "the cookie should establish a connection"
    );
    t.grant(1000);
    t.recv(bytes(1, "hello"));
    t.expect_data("hello");
    t.expect(ack(6));
    t.send_pattern(3000);
    t.expect(data(1, 1460));
}

/// Without timestamps a cookie keeps only the segment size, rounded.
#[test]
fn a_cookie_keeps_the_rounded_segment_size() {
    for (mss, payload_min) in [(1460, 1400), (1300, 1000), (536, 536), (0, MSS_DEFAULT.min(500))] {
        let mut t = flooded();
        t.recv(if mss > 0 { syn().mss(mss) } else { syn() });
        t.expect(syn_ack().no_scale().sack_ok(false).no_timestamp());
        t.recv(ack(1).seq(1));
        t.expect_opened();
        t.send_pattern(5000);
        let bytes = t.next().payload.expect("a segment's payload").len();
        let payload_max = if mss > 0 { mss } else { MSS_DEFAULT };
        assert!(
            (payload_min..=payload_max).contains(&(bytes as u16)),
            "the payload should fit the rounded segment size: {mss}: {bytes}"
        );
    }
}

/// With timestamps a cookie keeps the other options, too.
#[test]
fn with_timestamps_a_cookie_keeps_scale_and_sack() {
    let mut t = flooded();
    t.recv(syn().mss(1460).scale(3).sack_ok(true).timestamp(PEER_CLOCK));
    t.expect(syn_ack().scale(0).sack_ok(true));
    t.advance(ms(5));
    t.recv(ack(1).seq(1).window(100));
    t.expect_opened();
    t.grant(65_535);
    t.recv(data(11, 10).window(100));
    t.expect(ack(1).sack(&[(11, 21)]));
    t.send_pattern(5000);
    t.expect(data(1, 800)); // 100 << 3 bytes
}

/// The bytes of the segment that ends the handshake are delivered.
#[test]
fn bytes_with_the_acknowledgement_of_a_cookie_are_delivered() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(bytes(1, "hello").ack(1));
    t.expect_opened();
    t.grant(100);
    t.expect_data("hello");
}

/// A sender cannot guess a cookie. A wrong acknowledgement is ignored: the right one may have been lost, and
/// a reset would end a connection that is established for the peer.
#[test]
fn a_forged_acknowledgement_of_a_cookie_is_ignored() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    for wrong in [0, 2, 3, 1000, -5] {
        t.recv(ack(wrong).seq(1));
    }
    t.recv(ack(1).seq(2)); // the cookie covers the peer's sequence number, too
    t.expect_nothing();
    t.recv(ack(1).seq(1));
    t.expect_opened();
}

/// A cookie is valid for 128 s at most.
#[test]
fn an_expired_cookie_is_answered_by_a_reset() {
    let mut t = flooded();
    t.recv(syn());
    t.expect(syn_ack());
    t.advance(secs(3600));
    t.recv(ack(1).seq(1));
    t.expect(rst(1));
}

#[test]
fn cookies_are_sent_only_while_the_half_open_table_is_full() {
    let mut t = flooded();
    t.select_peer(1).recv(ack(1));
    t.expect_opened();
    t.select_peer(2).recv(rst(1));
    t.select_peer(3).recv(syn());
    t.expect(syn_ack());
    t.select_peer(4).recv(syn());
    t.expect(syn_ack());
    assert_eq!(t.counters().cookies_sent, 0);
    t.select_peer(5).recv(syn());
    t.expect(syn_ack());
    assert_eq!(t.counters().cookies_sent, 1);
}

/// The flood uses no memory beyond the table of half-open connections.
#[test]
fn a_syn_flood_does_not_affect_other_connections() {
    let mut t = Trace::new(|settings| settings.half_open_max = 100);
    t.establish(syn().mss(1000));
    t.grant(65_535);
    for index in 0..50_000 {
        t.recv_frame(&flood_syn(index));
        t.other_frames.clear();
    }
    assert_eq!(t.stack.connections(), 101);
    assert!(t.counters().cookies_sent > 49_000, "nearly all of 50,000 SYNs should get cookies");
    t.recv(bytes(1, "here"));
    t.expect_data("here");
    t.select_peer(1).establish(syn());
}

#[test]
fn waiting_replies_are_bounded() {
    let mut t = flooded();
    for index in 0..5000 {
        assert_eq!(t.stack.handle_frame(t.now, &flood_syn(index)), None);
    }
    assert_eq!(t.counters().replies_dropped, 5000 - 1024);
    t.transmit();
    assert_eq!(t.other_frames.len(), 1024);
}

/// The flood takes at most half of the places that other connections leave. Beyond that, cookies let peers
/// use all other places, and this end uses its reserve.
#[test]
fn forged_syns_keep_out_neither_peers_nor_connections_of_this_end() {
    const RESERVE: u32 = 4;
    for (connections_max, clients_before) in [(2 * RESERVE, 0), (100, 0), (100, 60), (300, 280)] {
        let mut t = Trace::new(|settings| {
            (settings.connections_max, settings.connect_reserve) = (connections_max, RESERVE);
        });
        (0..clients_before).for_each(|client| t.select_peer(client).establish(syn()));
        let places = connections_max as usize - RESERVE as usize - clients_before;
        for index in 0..2000 {
            t.recv_frame(&flood_syn(index));
            t.other_frames.clear();
        }
        let half_open = t.stack.connections() - clients_before;
        assert_eq!(half_open, places / 2, "the flood should take half of the {places} places");
        // More forged SYNs come between the peers' segments.
        for client in clients_before..clients_before + places - half_open {
            t.select_peer(client).recv(syn());
            t.recv_frame(&flood_syn(client as u32 + 5000));
            t.expect(syn_ack().ack(1));
            t.recv(ack(1).seq(1));
            t.expect_opened();
        }
        for link in 0..RESERVE as usize {
            t.select_peer(1000 + link).connect();
            t.expect(syn());
        }
        assert_eq!(t.stack.connections(), connections_max as usize);
        // The places of the flood are free about a minute after its end.
        t.select_peer(1000).discard();
        t.advance(secs(64));
        t.select_peer(2000).establish(syn());
    }
}

/// When peers have taken all places but the reserve, SYNs and cookies are refused.
#[test]
fn places_for_connections_of_this_end_are_kept() {
    let mut t = Trace::new(|settings| {
        (settings.connections_max, settings.connect_reserve, settings.half_open_max) = (4, 1, 1);
    });
    t.select_peer(1).recv(syn());
    t.expect(syn_ack());
    t.select_peer(2).recv(syn());
    t.expect(syn_ack());
    t.select_peer(3).establish(syn());
    t.select_peer(4).establish(syn());
    t.select_peer(2).recv(ack(1).seq(1));
    t.select_peer(5).recv(syn());
    t.expect_nothing();
    assert_eq!(
        (t.stack.connections(), t.counters().connections_refused),
        (3, 2),
        "two connections should be refused"
    );
    t.select_peer(6).connect();
    t.expect(syn());
}

/// A driver keeps places for connections that come from other stacks, or come back: neither peers nor this end take them.
#[test]
fn places_for_imported_connections_are_kept() {
    let mut t = Trace::new(|settings| (settings.connections_max, settings.half_open_max) = (3, 1));
    t.establish(syn());
    let state = t.stack.export(t.now, t.conn()).expect("an established connection");
    t.select_peer(1).recv(syn());
    t.expect(syn_ack());
    t.select_peer(2).recv(syn());
    t.expect(syn_ack());
    t.stack.keep_places(2);
    t.select_peer(2).recv(ack(1).seq(1));
    t.expect_nothing();
    t.select_peer(3).recv(syn());
    t.expect_nothing();
    assert_eq!((t.stack.connections(), t.counters().connections_refused), (1, 2), "a cookie and a SYN");
    assert_eq!(t.stack.connect(t.now, SocketAddr::from((PEER, 9999))), Err(Full));
    t.stack.import(t.now, &state).expect("a place that was kept");
    t.stack.keep_places(1);
    assert_eq!(t.stack.connect(t.now, SocketAddr::from((PEER, 9999))), Err(Full));
    t.stack.keep_places(0);
    t.select_peer(2).recv(ack(1).seq(1));
    t.expect_opened();
}

/// SYN-ACKs are sent to the Ethernet address of the SYN only: forged SYNs must not fill the table of neighbours.
#[test]
fn syn_acks_to_silent_peers_need_no_neighbour() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.advance(secs(62));
    assert_eq!((t.peer().segments.len(), t.other_frames.len()), (6, 0));
    assert_eq!(t.stack.poll_next_hop_request(), None);
}

/// A full table drops SYNs without an answer, because there may be room when the peer retransmits.
#[test]
fn a_full_table_drops_syns() {
    let mut t = Trace::new(|settings| settings.connections_max = 2);
    t.establish(syn());
    t.select_peer(1).establish(syn());
    t.select_peer(2).recv(syn());
    t.expect_nothing();
    assert_eq!(t.counters().connections_refused, 1);
    let target = SocketAddr::from((PEER, 9999));
    assert_eq!(t.stack.connect(t.now, target), Err(Full));
    t.select_peer(0).abort();
    t.select_peer(2).establish(syn());
}

#[test]
fn a_full_table_refuses_valid_cookies() {
    let mut t = Trace::new(|settings| (settings.connections_max, settings.half_open_max) = (2, 1));
    t.select_peer(1).recv(syn());
    t.expect(syn_ack());
    t.select_peer(0).recv(syn());
    t.expect(syn_ack());
    t.select_peer(2).connect();
    t.select_peer(0).recv(ack(1).seq(1));
    t.expect_nothing();
    t.select_peer(2).abort();
    t.select_peer(0).recv(ack(1).seq(1));
    t.expect_opened();
}

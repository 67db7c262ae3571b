//! Opening connections (RFC 9293 §3.5, §3.10.7.1 to §3.10.7.3).

use std::net::{IpAddr, SocketAddr};

use spillway_tcp::Listener;
use spillway_transport::{LostReason, Transport};

use crate::trace::*;

/// The application connects, and the peer has received the SYN.
fn connecting() -> Trace {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn());
    t
}

#[test]
fn a_peer_opens_a_connection() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().mss(1460));
    t.expect(syn_ack().ack(1).mss(1460).window(65_535));
    t.expect_nothing();
    t.recv(ack(1));
    t.expect_opened();
    t.expect_nothing();
}

/// MUST-41, MUST-42.
#[test]
fn several_peers_connect_to_one_listener() {
    let mut t = Trace::open();
    t.select_peer(1).establish(syn());
    t.grant(100);
    t.recv(bytes(1, "two"));
    t.expect_data("two");
    t.select_peer(0).recv(bytes(1, "one"));
    t.expect_data("one");
    assert_eq!(t.stack.connections(), 2);
}

#[test]
fn this_end_opens_a_connection() {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn().mss(1460).scale(0).sack_ok(true).timestamp(0).echo(0).window(65_535));
    t.recv(syn_ack().mss(1460));
    t.expect(ack(1).seq(1).no_timestamp());
    t.expect_opened();
    t.expect_nothing();
}

/// The last segment of the handshake was lost, and the peer probes the window. The probe neither completes
/// the handshake nor prevents its completion.
#[test]
fn a_window_probe_does_not_complete_the_handshake() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.recv(syn());
    t.expect(syn_ack().ack(1).window(0));
    t.recv(ack(1).seq(0));
    t.expect(ack(1));
    t.recv(ack(1));
    t.expect_opened();
}

#[test]
fn a_repeated_syn_is_answered_by_the_same_syn_ack() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv(ack(1));
    t.expect_opened();
    assert_eq!(t.counters().resets_sent, 0);
}

/// RFC 6298 §2.1, §5.5.
#[test]
fn retransmissions_of_our_syn_back_off_exponentially() {
    let mut t = connecting();
    for wait in [1, 2, 4, 8] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(syn());
    }
    t.recv(syn_ack());
    t.expect(ack(1));
    t.expect_opened();
}

/// The peer would answer a repeated SYN-ACK by a challenge (RFC 5961 §4).
#[test]
fn a_repeated_syn_is_not_answered_after_the_handshake() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv_all([syn(), ack(1).seq(1)]);
    t.expect_opened();
    t.expect(ack(1).seq(1));
    t.expect_nothing_sent_later();
}

#[test]
fn an_unacknowledged_syn_ack_is_retransmitted() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    for wait in [1, 2, 4] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(syn_ack().ack(1));
    }
    t.recv(ack(1));
    t.expect_opened();
}

/// MUST-23: a SYN is repeated for three minutes at least.
#[test]
fn a_peer_that_never_answers_a_syn_is_lost_after_three_minutes() {
    let mut t = connecting();
    t.advance(secs(179));
    assert!(t.peer().events.is_empty(), "the peer should not be lost before three minutes");
    t.advance(secs(2));
    t.expect_lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
}

/// The peer repeats its SYN for three minutes (MUST-23); each repetition may begin a new half-open
/// connection. The old one sends no reset, because that would end the peer's attempt.
#[test]
fn half_open_connections_end_silently_after_five_retransmissions() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.advance(ms(62_900));
    assert_eq!(
        (t.stack.connections(), t.peer().segments.len()),
        (1, 6),
        "the SYN-ACK should be sent six times"
    );
    t.peer().segments.clear();
    t.advance(secs(1));
    t.expect_nothing();
    assert_eq!(
        (t.stack.connections(), t.counters().resets_sent),
        (0, 0),
        "the half-open connection should end silently"
    );
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.advance(secs(64));
    assert!(t.peer().events.is_empty(), "the application should get no event of a half-open connection");
}

/// §3.10.7.3, second.
#[test]
fn a_reset_that_acknowledges_our_syn_refuses_the_connection() {
    let mut t = connecting();
    t.recv(rst(0).ack(1));
    t.expect_lost(LostReason::Refused);
    t.expect_nothing();
    assert_eq!(t.stack.connections(), 0);
}

/// §3.10.7.3, second: such a reset does not prove that its sender has received our SYN.
#[test]
fn resets_that_do_not_acknowledge_our_syn_are_ignored() {
    let mut t = connecting();
    t.recv(rst(0));
    t.recv(rst(0).ack(2));
    t.recv(rst(0).ack(0));
    t.expect_nothing();
    t.recv(syn_ack());
    t.expect(ack(1));
    t.expect_opened();
}

/// §3.10.7.3, first.
#[test]
fn a_wrong_acknowledgement_of_our_syn_is_answered_by_a_reset() {
    let mut t = connecting();
    t.recv(syn_ack().ack(77));
    t.expect(rst(77));
    t.recv(ack(0).seq(5));
    t.expect(rst(0));
    t.recv(syn_ack());
    t.expect(ack(1));
    t.expect_opened();
}

/// §3.10.7.3: segments without SYN and RST are dropped.
#[test]
fn segments_without_syn_do_not_answer_our_syn() {
    let mut t = connecting();
    t.recv(ack(1).seq(1));
    t.recv(fin(1).ack(1));
    t.expect_nothing();
}

/// §3.10.7.4, fifth, SYN-RECEIVED.
#[test]
fn a_wrong_acknowledgement_of_our_syn_ack_is_answered_by_a_reset() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(ack(2).seq(1));
    t.expect(rst(2));
    t.recv(ack(0).seq(1));
    t.expect(rst(0));
    t.recv(ack(1).seq(1));
    t.expect_opened();
}

/// §3.10.7.1.
#[test]
fn segments_to_a_port_without_a_listener_are_answered_by_resets() {
    let mut t = Trace::new(|_| {});
    t.peer().stack_port = 99;
    t.recv(syn());
    t.expect(rst(0).ack(1));
    t.recv(bytes(5, "abc").ack(70));
    t.expect(rst(70));
    t.recv(seg().no_flags().seq(10).payload("abcd"));
    t.expect(rst(0).ack(14));
    t.recv(fin(20).ack(80));
    t.expect(rst(80));
    t.recv(seg().no_flags().fin().seq(30).payload("ab"));
    t.expect(rst(0).ack(33));
    t.recv(rst(5));
    t.recv(rst(5).ack(9));
    t.expect_nothing();
}

/// §3.10.7.2.
#[test]
fn a_listener_accepts_only_a_syn() {
    let mut t = Trace::new(|_| {});
    t.recv(rst(3));
    t.recv(seg().no_flags().seq(3).payload("x"));
    t.recv(seg().fin().seq(3));
    t.expect_nothing();
    t.recv(ack(50).seq(3));
    t.expect(rst(50));
    t.recv(syn_ack().ack(60));
    t.expect(rst(60));
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn a_closed_listener_answers_by_a_reset() {
    let mut t = Trace::new(|_| {});
    t.stack.set_listening(0, false);
    t.recv(syn());
    t.expect(rst(0).ack(1));
}

#[test]
fn bytes_in_the_last_segment_of_the_handshake_are_delivered() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(bytes(1, "abc").ack(1));
    t.expect_opened();
    t.expect(ack(4));
    t.expect_nothing();
    t.grant(10);
    t.expect_data("abc");
    t.expect_nothing();
}

/// The last segment of the handshake was lost, and so were bytes that fill the window: from then on the peer's acknowledgements
/// have the number behind the window.
#[test]
fn an_acknowledgement_behind_a_full_window_completes_the_handshake() {
    let mut t = Trace::new(|settings| settings.initial_window = 1000);
    t.recv(syn());
    t.expect(syn_ack().ack(1).window(1000));
    t.recv(ack(1).seq(1001));
    t.expect_opened();
    t.expect_nothing();
    t.grant(1000);
    t.recv(data(1, 1000));
    assert_eq!(t.peer().received, pattern(1, 1000));
}

#[test]
fn a_fin_in_the_last_segment_of_the_handshake_is_accepted() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(fin(1).ack(1));
    t.expect_opened();
    t.expect_finished();
    t.expect(ack(2));
}

/// §3.4 permits to queue the bytes of a SYN, or, as here, to leave them to retransmission.
#[test]
fn bytes_in_a_syn_are_not_acknowledged() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().payload("abc"));
    t.expect(syn_ack().ack(1));
    t.recv(bytes(1, "abc").ack(1));
    t.expect_opened();
    t.grant(10);
    t.expect_data("abc");
    let mut t = connecting();
    t.recv(syn_ack().payload("abc"));
    t.expect(ack(1));
    t.expect_opened();
    t.grant(10);
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
}

/// MUST-11, §3.10.7.4, second: the listener is unchanged, and the application gets no event.
#[test]
fn a_reset_ends_a_half_open_connection() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(rst(1));
    t.expect_nothing();
    assert_eq!(t.stack.connections(), 0);
    t.establish(syn());
}

/// §3.5, figure 8: the peer answers the SYN-ACK by a reset.
#[test]
fn an_old_duplicate_syn_opens_no_connection() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().seq(-90)); // below 0, the present initial number
    t.expect(syn_ack().ack(-89));
    t.recv(rst(-89));
    t.expect_nothing();
    t.establish(syn());
}

#[test]
fn grants_before_the_end_of_the_handshake_count() {
    let mut t = connecting();
    t.grant(5);
    t.recv(syn_ack());
    t.expect(ack(1));
    t.expect_opened();
    t.recv(bytes(1, "hello"));
    t.expect_data("hello");
}

/// §3.10.4, SYN-SENT: the FIN is queued until the connection is established.
#[test]
fn finish_before_the_end_of_the_handshake_sends_the_fin_after_it() {
    let mut t = connecting();
    t.finish();
    t.expect_nothing_sent();
    t.recv(syn_ack());
    t.expect(fin(1).ack(1));
    t.expect_opened();
}

/// §3.10.5, SYN-SENT.
#[test]
fn an_abort_before_the_syn_ack_sends_nothing() {
    let mut t = connecting();
    t.abort();
    t.expect_nothing();
    t.recv(syn_ack());
    t.expect(rst(1));
}

/// MUST-46, MUST-63.
#[test]
fn connections_to_and_from_group_addresses_are_refused() {
    for (ipv4, ipv6) in [
        ("224.0.0.1", "ff02::1"),
        ("255.255.255.255", "ff05::2"),
        ("0.0.0.0", "::"),
        ("10.0.0.255", "::ffff:10.0.0.2"),
        ("127.0.0.1", "::1"),
    ] {
        let mut t = Trace::new(|_| {});
        let ip = either(ipv4, ipv6);
        t.peer().ip = ip;
        t.recv(syn());
        t.expect_nothing();
        assert_eq!(t.stack.connections(), 0, "a connection with {ip:?} should be refused");
        t.connect();
        t.expect_lost(LostReason::Failed);
    }
}

/// MUST-57.
#[test]
fn a_syn_to_a_group_address_is_ignored() {
    for (ipv4, ipv6) in [("10.0.0.255", "ff02::1"), ("255.255.255.255", "ff05::2"), ("224.0.0.1", "::")] {
        let mut t = Trace::new(|_| {});
        let mut frame = t.frame_of(syn());
        match either(ipv4, ipv6) {
            IpAddr::V4(target) => frame[30..34].copy_from_slice(&target.octets()),
            IpAddr::V6(target) => frame[38..54].copy_from_slice(&target.octets()),
        }
        frame::fix_checksums(&mut frame);
        t.recv_frame(&frame);
        t.expect_nothing();
        assert_eq!(t.stack.connections(), 0);
    }
}

/// MUST-8: initial sequence numbers differ between connections, and rise with a clock for the same one.
#[test]
fn initial_sequence_numbers_rise_with_the_clock() {
    let mut t = connecting();
    let first = t.peer().stack_initial();
    t.abort();
    t.advance(ms(10));
    let mut other = Trace::new(|_| {});
    other.advance(ms(10));
    other.connect();
    let second = other.peer().stack_initial();
    assert_eq!(second.wrapping_sub(first), 2500, "the number should rise by one each 4 µs in 10 ms");
    t.select_peer(1).connect();
    assert_ne!(t.peer().stack_initial(), second, "different peers should get different numbers");
}

/// If the peer's first acknowledgement and first bytes were lost, later bytes get no answer while cookies are
/// valid. The peer retransmits its first bytes, whose segment returns the cookie (RFC 4987 §3.6).
#[test]
fn later_bytes_without_the_cookie_are_ignored() {
    let mut t = Trace::new(|settings| settings.half_open_max = 1);
    t.recv(syn());
    t.expect(syn_ack());
    t.select_peer(1).recv(syn().mss(1460));
    t.expect(syn_ack().ack(1));
    t.recv(bytes(4, "def").ack(1));
    t.expect_nothing();
    t.recv(bytes(1, "abc").ack(1));
    t.expect_opened();
    assert_eq!(t.stack.counters().cookies_accepted, 1);
}

/// RFC 9293 §3.10.7.2 would keep the FIN for later, but T/TCP, the only TCP that sent both, is historic (RFC
/// 6247 §4). Forged segments with both pass filters that look for a lone SYN. Linux ignores them, too.
#[test]
fn a_syn_with_a_fin_is_ignored() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().fin());
    t.expect_nothing();
    assert_eq!(t.stack.connections(), 0);
    t.recv(syn());
    t.expect(syn_ack());
}

/// RFC 6335 §6: port 0 is reserved.
#[test]
fn a_syn_from_port_0_is_malformed() {
    let mut t = Trace::new(|_| {});
    t.peer().port = 0;
    t.recv(syn());
    t.expect_nothing();
    assert_eq!((t.stack.connections(), t.counters().frames_malformed), (0, 1), "the SYN should be malformed");
}

#[test]
fn ports_of_listeners_are_not_used_to_connect() {
    let free_port = 40_000;
    let mut t = Trace::new(|settings| {
        let listener = |port| Listener { address: SocketAddr::from((STACK, port)), is_gated: false };
        settings.listeners = (32_768..61_000).filter(|port| *port != free_port).map(listener).collect();
    });
    t.connect();
    t.expect(syn());
    assert_eq!(t.peer().stack_port, free_port);
}

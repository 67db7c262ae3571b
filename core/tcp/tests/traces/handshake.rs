//! Opening connections (RFC 9293 §3.5, §3.10.7.1 to §3.10.7.3).

use std::net::{Ipv4Addr, SocketAddrV4};

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
    t.nothing();
    t.recv(ack(1));
    t.opened();
    t.nothing();
}

/// MUST-41, MUST-42: many connections at one port, each by its own address and port.
#[test]
fn peers_share_a_listener() {
    let mut t = Trace::open();
    t.at(1).establish(syn());
    t.grant(100);
    t.recv(bytes(1, "two"));
    t.hears("two");
    t.at(0).recv(bytes(1, "one"));
    t.hears("one");
    assert_eq!(t.stack.connections(), 2);
}

#[test]
fn we_open_a_connection() {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn().mss(1460).scale(0).sack_ok(true).stamp(0).echo(0).window(65_535));
    t.recv(syn_ack().mss(1460));
    t.expect(ack(1).seq(1).no_stamp());
    t.opened();
    t.nothing();
}

/// The end of the handshake was lost, and the peer probes the window: the probe neither opens the connection nor prevents it
/// from opening.
#[test]
fn a_probe_of_the_window_is_no_end_of_the_handshake() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.recv(syn());
    t.expect(syn_ack().ack(1).window(0));
    t.recv(ack(1).seq(0));
    t.expect(ack(1));
    t.recv(ack(1));
    t.opened();
}

#[test]
fn a_repeated_syn_gets_the_same_answer() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv(ack(1));
    t.opened();
    assert_eq!(t.counters().resets_sent, 0);
}

/// RFC 6298 §2.1, §5.5.
#[test]
fn our_syn_is_sent_again_ever_more_slowly() {
    let mut t = connecting();
    for wait in [1, 2, 4, 8] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(syn());
    }
    t.recv(syn_ack());
    t.expect(ack(1));
    t.opened();
}

/// Once our SYN-ACK is acknowledged it is not repeated: the peer would challenge it.
#[test]
fn a_repeated_syn_is_not_answered_after_the_handshake() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack().ack(1));
    t.recv_all([syn(), ack(1).seq(1)]);
    t.opened();
    t.expect(ack(1).seq(1));
    t.nothing_sent_later();
}

#[test]
fn our_answer_to_a_syn_is_sent_again() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    for wait in [1, 2, 4] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(syn_ack().ack(1));
    }
    t.recv(ack(1));
    t.opened();
}

/// MUST-23: a SYN is repeated for three minutes at least.
#[test]
fn a_peer_that_never_answers_a_syn_is_lost_after_three_minutes() {
    let mut t = connecting();
    t.pass(secs(179));
    assert!(t.peer().events.is_empty());
    t.pass(secs(2));
    t.lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn half_open_connections_end_after_three_minutes_in_silence() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.pass(secs(181));
    assert_eq!(t.stack.connections(), 0);
    assert!(t.peer().events.is_empty(), "the application never knew of it");
}

/// §3.10.7.3, second.
#[test]
fn a_reset_that_acknowledges_our_syn_refuses() {
    let mut t = connecting();
    t.recv(rst(0).ack(1));
    t.lost(LostReason::Refused);
    t.nothing();
    assert_eq!(t.stack.connections(), 0);
}

/// §3.10.7.3, second: the sender of a reset without ACK, or with a wrong one, has not seen our SYN.
#[test]
fn blind_resets_do_not_refuse() {
    let mut t = connecting();
    t.recv(rst(0));
    t.recv(rst(0).ack(2));
    t.recv(rst(0).ack(0));
    t.nothing();
    t.recv(syn_ack());
    t.expect(ack(1));
    t.opened();
}

/// §3.10.7.3, first.
#[test]
fn a_wrong_acknowledgement_of_our_syn_is_reset() {
    let mut t = connecting();
    t.recv(syn_ack().ack(77));
    t.expect(rst(77));
    t.recv(ack(0).seq(5));
    t.expect(rst(0));
    t.recv(syn_ack());
    t.expect(ack(1));
    t.opened();
}

/// §3.10.7.3: without SYN and RST it is dropped.
#[test]
fn other_segments_do_not_answer_a_syn() {
    let mut t = connecting();
    t.recv(ack(1).seq(1));
    t.recv(fin(1).ack(1));
    t.nothing();
}

/// §3.10.7.4, fifth, SYN-RECEIVED.
#[test]
fn a_wrong_acknowledgement_of_our_answer_is_reset() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(ack(2).seq(1));
    t.expect(rst(2));
    t.recv(ack(0).seq(1));
    t.expect(rst(0));
    t.recv(ack(1).seq(1));
    t.opened();
}

/// §3.10.7.1.
#[test]
fn nobody_answers_with_a_reset() {
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
    t.nothing();
}

/// §3.10.7.2.
#[test]
fn a_listener_takes_nothing_but_a_syn() {
    let mut t = Trace::new(|_| {});
    t.recv(rst(3));
    t.recv(seg().no_flags().seq(3).payload("x"));
    t.recv(seg().fin().seq(3));
    t.nothing();
    t.recv(ack(50).seq(3));
    t.expect(rst(50));
    t.recv(syn_ack().ack(60));
    t.expect(rst(60));
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn a_listener_that_is_closed_refuses() {
    let mut t = Trace::new(|_| {});
    t.stack.set_listening(0, false);
    t.recv(syn());
    t.expect(rst(0).ack(1));
}

#[test]
fn bytes_may_come_with_the_last_segment_of_the_handshake() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(bytes(1, "abc").ack(1));
    t.opened();
    t.expect(ack(4));
    t.nothing();
    t.grant(10);
    t.hears("abc");
    t.nothing();
}

#[test]
fn the_last_segment_of_the_handshake_may_finish() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(fin(1).ack(1));
    t.opened();
    t.finished();
    t.expect(ack(2));
}

/// Bytes of a SYN are not accepted, and so not acknowledged (§3.4 permits to queue them, or to let them be retransmitted).
#[test]
fn bytes_that_come_with_a_syn_come_again() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().payload("abc"));
    t.expect(syn_ack().ack(1));
    t.recv(bytes(1, "abc").ack(1));
    t.opened();
    t.grant(10);
    t.hears("abc");
    let mut t = connecting();
    t.recv(syn_ack().payload("abc"));
    t.expect(ack(1));
    t.opened();
    t.grant(10);
    t.recv(bytes(1, "abc"));
    t.hears("abc");
}

/// MUST-11, §3.10.7.4, second: the listener is unchanged, and the application has not learned of the connection.
#[test]
fn a_peer_takes_its_syn_back() {
    let mut t = Trace::new(|_| {});
    t.recv(syn());
    t.expect(syn_ack());
    t.recv(rst(1));
    t.nothing();
    assert_eq!(t.stack.connections(), 0);
    t.establish(syn());
}

/// Figure 8: an old duplicate SYN.
#[test]
fn an_old_syn_is_found_out() {
    let mut t = Trace::new(|_| {});
    t.recv(syn().seq(-90)); // old: the peer's numbers begin at 0
    t.expect(syn_ack().ack(-89));
    t.recv(rst(-89));
    t.nothing();
    t.establish(syn());
}

/// Bytes granted before the connection is established count, too.
#[test]
fn grants_may_come_before_the_handshake_is_over() {
    let mut t = connecting();
    t.grant(5);
    t.recv(syn_ack());
    t.expect(ack(1));
    t.opened();
    t.recv(bytes(1, "hello"));
    t.hears("hello");
}

/// §3.10.4, SYN-SENT: queued until the connection is established.
#[test]
fn an_end_before_the_handshake_is_over_is_sent_after_it() {
    let mut t = connecting();
    t.finish();
    t.quiet();
    t.recv(syn_ack());
    t.expect(fin(1).ack(1));
    t.opened();
}

/// §3.10.5, SYN-SENT.
#[test]
fn nobody_is_told_of_an_abort_before_the_peer_has_answered() {
    let mut t = connecting();
    t.abort();
    t.nothing();
    t.recv(syn_ack());
    t.expect(rst(1));
}

/// MUST-46, MUST-63: no connection to a group address, and none from one.
#[test]
fn groups_are_no_peers() {
    for ip in [[224, 0, 0, 1], [255, 255, 255, 255], [0, 0, 0, 0], [10, 0, 0, 255], [127, 0, 0, 1]] {
        let mut t = Trace::new(|_| {});
        t.peer().ip = Ipv4Addr::from(ip);
        t.recv(syn());
        t.nothing();
        assert_eq!(t.stack.connections(), 0, "{ip:?}");
        t.connect();
        t.lost(LostReason::Failed);
    }
}

/// MUST-57: a SYN to a group address is ignored.
#[test]
fn a_syn_to_a_group_is_ignored() {
    for target in [[10, 0, 0, 255], [255, 255, 255, 255], [224, 0, 0, 1]] {
        let mut t = Trace::new(|_| {});
        let mut frame = t.frame_of(syn());
        frame[30..34].copy_from_slice(&target);
        frame::mend(&mut frame);
        t.recv_frame(&frame);
        t.nothing();
        assert_eq!(t.stack.connections(), 0);
    }
}

/// MUST-8: initial sequence numbers differ between connections, and rise with a clock for the same one.
#[test]
fn initial_sequence_numbers_rise_with_the_clock() {
    let mut t = connecting();
    let first = t.peer().stack_initial();
    t.abort();
    t.pass(ms(10));
    let mut other = Trace::new(|_| {});
    other.pass(ms(10));
    other.connect();
    let second = other.peer().stack_initial();
    assert_eq!(second.wrapping_sub(first), 2500, "one each four microseconds");
    t.at(1).connect();
    assert_ne!(t.peer().stack_initial(), second, "another peer, other numbers");
}

/// While cookies are outstanding, later bytes of a peer whose first acknowledgement and first bytes were lost get no answer:
/// the peer retransmits the first bytes, and these return the cookie (RFC 4987 §3.6).
#[test]
fn later_bytes_without_the_cookie_are_awaited_again() {
    let mut t = Trace::new(|settings| settings.half_open_max = 1);
    t.recv(syn());
    t.expect(syn_ack());
    t.at(1).recv(syn().mss(1460));
    t.expect(syn_ack().ack(1));
    t.recv(bytes(4, "def").ack(1));
    t.nothing();
    t.recv(bytes(1, "abc").ack(1));
    t.opened();
    assert_eq!(t.stack.counters().cookies_accepted, 1);
}

/// RFC 6335 §6: port 0 is reserved.
#[test]
fn a_peer_has_a_port() {
    let mut t = Trace::new(|_| {});
    t.peer().port = 0;
    t.recv(syn());
    t.nothing();
    assert_eq!((t.stack.connections(), t.counters().frames_malformed), (0, 1));
}

/// Connections that this end opens do not use the ports of listeners.
#[test]
fn our_connections_avoid_the_ports_at_which_we_listen() {
    let free = 40_000;
    let mut t = Trace::new(|settings| {
        let listener = |port| Listener { address: SocketAddrV4::new(STACK_IP, port), is_gated: false };
        settings.listeners = (32_768..61_000).filter(|port| *port != free).map(listener).collect();
    });
    t.connect();
    t.expect(syn());
    assert_eq!(t.peer().stack_port, free);
}

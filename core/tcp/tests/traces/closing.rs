//! Closing connections (RFC 9293 §3.6, §3.10.4, §3.10.7.4).

use spillway_transport::{LostReason, Transport};

use crate::trace::*;

/// §3.6, figure 12, and MUST-13.
#[test]
fn this_end_closes_first() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1).ack(1));
    t.recv(ack(2));
    t.expect_nothing();
    t.recv(fin(1).ack(2));
    t.expect_finished();
    t.expect(ack(2).seq(2));
    t.expect_lost(LostReason::Closed);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn the_peer_closes_first() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.expect_finished();
    t.expect(ack(2).seq(1));
    t.expect_nothing();
    t.finish();
    t.expect(fin(1).ack(2));
    t.recv(ack(2));
    t.expect_lost(LostReason::Closed);
    t.recv(ack(2));
    t.expect(rst(2)); // the connection is forgotten
}

#[test]
fn a_fin_of_the_peer_may_acknowledge_ours() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(2));
    t.expect_finished();
    t.expect(ack(2));
    t.expect_lost(LostReason::Closed);
}

/// Both ends close at once, and the peer's acknowledgement of our FIN is lost. The peer's repeated FIN
/// acknowledges ours, too, and may be its last segment.
#[test]
fn a_repeated_fin_of_the_peer_may_acknowledge_ours() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(1));
    t.expect_finished();
    t.expect(ack(2));
    t.expect_nothing();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.expect_lost(LostReason::Closed);
}

/// MAY-1: the other direction of a half-closed connection continues without a time limit.
#[test]
fn bytes_are_received_after_our_fin() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(ack(2));
    for at in 0..5 {
        t.advance(secs(3600));
        t.recv(data(1 + 1000 * at, 1000));
        t.expect(ack(1001 + 1000 * at));
    }
    assert_eq!(t.peer().received, pattern(1, 5000));
}

#[test]
fn bytes_are_sent_after_the_peers_fin() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.expect_finished();
    t.expect(ack(2));
    t.advance(secs(3600));
    t.send_pattern(3000);
    t.expect(data(1, 1460).ack(2));
    t.expect(data(1461, 1460));
    t.expect(data(2921, 80));
    t.recv(ack(3001));
    t.finish();
    t.expect(fin(3001));
}

/// §3.10.4.
#[test]
fn the_fin_follows_all_queued_bytes() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(1500));
    t.send_pattern(2500);
    t.finish();
    t.expect(data(1, 1000));
    t.expect_nothing_sent();
    t.recv(ack(1001).window(1400));
    t.expect(data(1001, 1000));
    t.expect_nothing_sent();
    t.recv(ack(2001).window(1400));
    t.expect(data(2001, 500).fin());
    t.expect_nothing_sent();
}

/// §3.10.2.
#[test]
fn no_bytes_are_accepted_after_finish() {
    let mut t = Trace::open();
    t.finish();
    let conn = t.peer().conn.expect("an open connection");
    assert_eq!(
        (t.stack.room(conn), t.stack.send(conn, b"x")),
        (0, 0),
        "nothing should be accepted after finish"
    );
    t.finish();
    t.expect(fin(1));
    t.expect_nothing_sent();
}

#[test]
fn a_lost_fin_is_retransmitted() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.finish();
    t.expect(data(1, 10));
    t.expect(fin(11));
    assert_eq!(t.until_sent(), secs(1));
    t.expect(data(1, 10));
    t.expect(fin(11));
    t.recv(ack(12));
    t.expect_nothing_sent_later();
}

#[test]
fn bytes_may_be_acknowledged_before_the_fin() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.finish();
    t.peer().segments.clear();
    t.recv(ack(11));
    t.recv(fin(1).ack(11));
    t.expect_finished();
    t.expect(ack(2));
    assert!(t.peer().events.is_empty(), "our FIN should not be acknowledged yet");
    t.recv(ack(12));
    t.expect_lost(LostReason::Closed);
}

/// §3.10.7.4, eighth: the event of the peer's FIN is not repeated.
#[test]
fn a_repeated_fin_is_acknowledged_again() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.expect_finished();
    t.expect(ack(2));
    for _ in 0..3 {
        t.recv(fin(1));
        t.expect(ack(2));
        t.expect_nothing();
    }
}

/// §3.10.7.4, seventh: "this should not occur since a FIN has been received".
#[test]
fn bytes_after_the_peers_fin_are_ignored() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").fin());
    t.expect_data("abc");
    t.expect_finished();
    t.expect(ack(5));
    t.recv(bytes(5, "more"));
    t.recv(bytes(4, "more"));
    t.recv(bytes(2, "bcdefghijklmn").fin());
    t.expect_nothing();
}

#[test]
fn a_fin_may_arrive_before_the_bytes() {
    let mut t = Trace::open();
    t.recv(fin(7));
    t.expect(ack(1));
    t.recv(bytes(4, "def"));
    t.expect(ack(1));
    t.expect_nothing();
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
    t.expect_data("def");
    t.expect_finished();
    t.expect(ack(8));
}

/// Only a hostile peer sends bytes beyond its FIN, here before the FIN. They are not part of the stream.
#[test]
fn bytes_beyond_a_fin_that_arrives_later_are_not_delivered() {
    for beyond in [bytes(4, "beyond"), bytes(2, "bcbeyond"), bytes(9, "far beyond")] {
        let mut t = Trace::open_sack();
        t.recv(beyond);
        t.recv(fin(4));
        t.recv(bytes(1, "abc"));
        t.peer().events.retain(|event| !matches!(event, spillway_tcp::StackEvent::Data { .. }));
        assert_eq!(t.peer().received, b"abc");
        t.expect_finished();
        t.expect_no_event();
        let last = t.take_last();
        assert_eq!(last.ack, Some(5));
        // Duplicates before the FIN may be reported (RFC 2883), but no bytes beyond it.
        let is_before_fin = |block: &(i64, i64)| block.1 <= 4;
        assert!(
            last.sack.iter().flatten().all(is_before_fin),
            "bytes beyond the FIN should not be reported: {last}"
        );
    }
}

/// The bytes are acknowledged, and wait for a grant.
#[test]
fn a_fin_below_acknowledged_bytes_is_ignored() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(bytes(1, "abcdef"));
    t.expect(ack(7));
    t.recv(fin(4));
    t.expect(ack(7));
    t.grant(10);
    t.expect_data("abcdef");
    t.expect_no_event();
    t.recv(fin(7));
    t.expect_finished();
}

#[test]
fn a_second_fin_at_another_position_is_ignored() {
    let mut t = Trace::open();
    t.recv(fin(4));
    t.recv(fin(9));
    t.recv(bytes(1, "abcdefgh"));
    t.expect_data("abc");
    t.expect_finished();
    assert_eq!(t.take_last().ack, Some(5));
}

#[test]
fn a_fin_beyond_the_window_is_ignored() {
    let mut t = Trace::new(|settings| settings.initial_window = 10);
    t.establish(syn());
    t.grant(10);
    t.recv(bytes(1, "abcdefghijklm").fin());
    t.expect_data("abcdefghij");
    t.expect(ack(11).window(0));
    t.expect_nothing();
    t.grant(10);
    t.expect(ack(11));
    t.recv(bytes(11, "klm").fin());
    t.expect_data("klm");
    t.expect_finished();
}

/// A peer without further bytes can probe the window only by its FIN.
#[test]
fn a_fin_at_a_closed_window_is_accepted() {
    let mut t = Trace::new(|settings| settings.initial_window = 3);
    t.establish(syn());
    t.grant(3);
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
    t.recv(fin(4));
    t.expect_finished();
    assert_eq!(t.take_last().ack, Some(5));
}

/// Without further bytes, only the FIN can probe the window.
#[test]
fn our_fin_is_sent_at_a_closed_window() {
    let mut t = Trace::open_with(|_| {}, syn().window(0));
    t.finish();
    t.expect(fin(1));
}

/// R2 of §3.8.3.
#[test]
fn an_unacknowledged_fin_times_out() {
    let mut t = Trace::open();
    t.finish();
    t.advance(secs(300));
    t.expect_lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
    assert!(rst(2).ack(1).agrees_with(&t.take_last()), "the reset should have the next numbers");
}

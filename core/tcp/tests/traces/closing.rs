//! Closing connections (RFC 9293 §3.6, §3.10.4, §3.10.7.4).

use spillway_transport::{LostReason, Transport};

use crate::trace::*;

/// Figure 12 from our side, and MUST-13, the wait.
#[test]
fn we_close_first() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1).ack(1));
    t.recv(ack(2));
    t.nothing();
    t.recv(fin(1).ack(2));
    t.finished();
    t.expect(ack(2).seq(2));
    t.lost(LostReason::Closed);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn the_peer_closes_first() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.finished();
    t.expect(ack(2).seq(1));
    t.nothing();
    t.finish();
    t.expect(fin(1).ack(2));
    t.recv(ack(2));
    t.lost(LostReason::Closed);
    t.recv(ack(2));
    t.expect(rst(2)); // the connection is forgotten
}

#[test]
fn the_peer_acknowledges_with_its_own_end() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(2));
    t.finished();
    t.expect(ack(2));
    t.lost(LostReason::Closed);
}

/// Both ends close at once, and the peer's acknowledgement of our FIN is lost. The peer's repeated FIN carries it once more,
/// and then the peer may be gone.
#[test]
fn the_peer_acknowledges_our_end_with_its_repeated_one() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(fin(1).ack(1));
    t.finished();
    t.expect(ack(2));
    t.nothing();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.lost(LostReason::Closed);
}

/// MAY-1: half-closed, the other direction continues for any time.
#[test]
fn half_closed_we_still_hear() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1));
    t.recv(ack(2));
    for at in 0..5 {
        t.pass(secs(3600));
        t.recv(many(1 + 1000 * at, 1000));
        t.expect(ack(1001 + 1000 * at));
    }
    assert_eq!(t.peer().heard, pattern(1, 5000));
}

#[test]
fn half_closed_we_still_speak() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.finished();
    t.expect(ack(2));
    t.pass(secs(3600));
    t.say(3000);
    t.expect(many(1, 1460).ack(2));
    t.expect(many(1461, 1460));
    t.expect(many(2921, 80));
    t.recv(ack(3001));
    t.finish();
    t.expect(fin(3001));
}

/// §3.10.4: all bytes before the FIN are sent.
#[test]
fn the_end_comes_after_all_bytes() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(1500));
    t.say(2500);
    t.finish();
    t.expect(many(1, 1000));
    t.quiet();
    t.recv(ack(1001).window(1400));
    t.expect(many(1001, 1000));
    t.quiet();
    t.recv(ack(2001).window(1400));
    t.expect(many(2001, 500).fin());
    t.quiet();
}

/// §3.10.2: no bytes are accepted after the FIN.
#[test]
fn there_is_no_room_after_the_end() {
    let mut t = Trace::open();
    t.finish();
    let conn = t.peer().conn.expect("a connection");
    assert_eq!((t.stack.room(conn), t.stack.send(conn, b"x")), (0, 0));
    t.finish();
    t.expect(fin(1));
    t.quiet();
}

#[test]
fn an_end_that_is_lost_is_sent_again() {
    let mut t = Trace::open();
    t.say(10);
    t.finish();
    t.expect(many(1, 10));
    t.expect(fin(11));
    assert_eq!(t.until_sent(), secs(1));
    t.expect(many(1, 10));
    t.expect(fin(11));
    t.recv(ack(12));
    t.nothing_sent_later();
}

/// Our bytes and our FIN may be acknowledged separately.
#[test]
fn bytes_may_be_acknowledged_without_the_end() {
    let mut t = Trace::open();
    t.say(10);
    t.finish();
    t.peer().segments.clear();
    t.recv(ack(11));
    t.recv(fin(1).ack(11));
    t.finished();
    t.expect(ack(2));
    assert!(t.peer().events.is_empty(), "our FIN is not acknowledged");
    t.recv(ack(12));
    t.lost(LostReason::Closed);
}

/// §3.10.7.4, eighth: a repeated FIN is acknowledged again, and ends nothing twice.
#[test]
fn an_end_that_comes_again_is_acknowledged_again() {
    let mut t = Trace::open();
    t.recv(fin(1));
    t.finished();
    t.expect(ack(2));
    for _ in 0..3 {
        t.recv(fin(1));
        t.expect(ack(2));
        t.nothing();
    }
}

/// §3.10.7.4, seventh: "this should not occur since a FIN has been received"; ignored.
#[test]
fn bytes_after_the_end_are_ignored() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").fin());
    t.hears("abc");
    t.finished();
    t.expect(ack(5));
    t.recv(bytes(5, "more"));
    t.recv(bytes(4, "more"));
    t.recv(bytes(2, "bcdefghijklmn").fin());
    t.nothing();
}

#[test]
fn an_end_may_come_before_the_bytes() {
    let mut t = Trace::open();
    t.recv(fin(7));
    t.expect(ack(1));
    t.recv(bytes(4, "def"));
    t.expect(ack(1));
    t.nothing();
    t.recv(bytes(1, "abc"));
    t.hears("abc");
    t.hears("def");
    t.finished();
    t.expect(ack(8));
}

/// A hostile peer: bytes that arrived out of order from beyond the FIN are not part of the stream.
#[test]
fn bytes_beyond_an_end_that_comes_later_are_not_delivered() {
    for beyond in [bytes(4, "beyond"), bytes(2, "bcbeyond"), bytes(9, "far beyond")] {
        let mut t = Trace::open_sack();
        t.recv(beyond);
        t.recv(fin(4));
        t.recv(bytes(1, "abc"));
        t.peer().events.retain(|event| !matches!(event, spillway_tcp::StackEvent::Data { .. }));
        assert_eq!(t.peer().heard, b"abc");
        t.finished();
        t.nothing_happens();
        let last = t.last();
        assert_eq!(last.ack, Some(5));
        // Duplicates before the FIN may be reported (RFC 2883), nothing beyond it.
        let is_before_the_end = |block: &(i64, i64)| block.1 <= 4;
        assert!(last.sack.iter().flatten().all(is_before_the_end), "and nobody is told of them: {last}");
    }
}

/// A FIN before bytes that were acknowledged and wait for a grant is ignored.
#[test]
fn an_end_before_what_was_acknowledged_does_not_count() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(bytes(1, "abcdef"));
    t.expect(ack(7));
    t.recv(fin(4));
    t.expect(ack(7));
    t.grant(10);
    t.hears("abcdef");
    t.nothing_happens();
    t.recv(fin(7));
    t.finished();
}

/// The first FIN counts.
#[test]
fn an_end_does_not_move() {
    let mut t = Trace::open();
    t.recv(fin(4));
    t.recv(fin(9));
    t.recv(bytes(1, "abcdefgh"));
    t.hears("abc");
    t.finished();
    assert_eq!(t.last().ack, Some(5));
}

#[test]
fn an_end_beyond_the_window_does_not_count() {
    let mut t = Trace::new(|settings| settings.initial_window = 10);
    t.establish(syn());
    t.grant(10);
    t.recv(bytes(1, "abcdefghijklm").fin());
    t.hears("abcdefghij");
    t.expect(ack(11).window(0));
    t.nothing();
    t.grant(10);
    t.expect(ack(11));
    t.recv(bytes(11, "klm").fin());
    t.hears("klm");
    t.finished();
}

/// A FIN needs no window: its sender would have nothing to probe with.
#[test]
fn an_end_at_a_shut_window_counts() {
    let mut t = Trace::new(|settings| settings.initial_window = 3);
    t.establish(syn());
    t.grant(3);
    t.recv(bytes(1, "abc"));
    t.hears("abc");
    t.recv(fin(4));
    t.finished();
    assert_eq!(t.last().ack, Some(5));
}

/// The same from our side.
#[test]
fn our_end_goes_whatever_the_window() {
    let mut t = Trace::opened_by(|_| {}, syn().window(0));
    t.finish();
    t.expect(fin(1));
}

/// R2 (§3.8.3) holds for a FIN, too.
#[test]
fn an_end_that_is_never_acknowledged_loses_the_connection() {
    let mut t = Trace::open();
    t.finish();
    t.pass(secs(300));
    t.lost(LostReason::TimedOut);
    assert_eq!(t.stack.connections(), 0);
    assert!(rst(2).ack(1).agrees_with(&t.last()));
}

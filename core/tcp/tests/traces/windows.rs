//! Windows (RFC 9293 §3.8.6): those that we advertise, and the peer's.

use crate::trace::*;

/// The window shrinks by received bytes and grows by granted ones, exactly.
#[test]
fn the_window_is_what_was_granted() {
    let mut t = Trace::open();
    t.recv(many(1, 1000));
    t.expect(ack(1001).window(64_535));
    t.recv(many(1001, 1000));
    t.expect(ack(2001).window(63_535));
    t.grant(2000);
    assert_eq!(t.until_sent(), ms(40), "the peer has most of its window left");
    t.expect(ack(2001).window(65_535));
}

/// §3.8.6: a window can be 0.
#[test]
fn nothing_granted_is_a_window_of_nothing() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.recv(syn());
    t.expect(syn_ack().window(0));
    t.recv(ack(1));
    t.opened();
    t.recv(many(1, 100));
    t.expect(ack(1).window(0));
    t.nothing();
    t.grant(2000);
    t.expect(ack(1).window(2000));
    t.recv(many(1, 100));
    t.hears(pattern(1, 100));
}

/// Bytes within the initial window need not wait for a grant; the application gets them when it grants. They are
/// acknowledged when they arrive: otherwise the peer would retransmit them, and give up.
#[test]
fn the_first_bytes_wait_for_the_first_grant() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(many(1, 500));
    t.expect(ack(501));
    t.nothing();
    t.grant(200);
    t.hears(pattern(1, 200));
    t.nothing();
    t.grant(1000);
    t.hears(pattern(201, 300));
    t.nothing();
}

/// SHLD-14: the advertised window stays, even if less is granted (the harness checks every edge).
#[test]
fn the_right_edge_stays() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.grant(10_000); // of 65,535 that were advertised
    for at in 0..10 {
        t.recv(many(1 + 1000 * at, 1000));
    }
    let told = t.last();
    assert_eq!((told.ack, told.window), (Some(10_001), Some(55_535)));
}

/// §3.8.6.2.1, with scales: fields are rounded, but the edge does not move left by a whole unit.
#[test]
fn scaled_windows_never_move_left() {
    let mut t = Trace::opened_by(|settings| settings.receive_window_max = 1 << 24, syn().scale(3).mss(1460));
    t.grant(1_000_003);
    let mut at = 1;
    for count in [1, 700, 1, 1460, 13, 255, 256, 257, 1000, 1, 1, 1] {
        t.recv(many(at, count));
        t.pass(ms(40));
        at += count as i64;
    }
    let told = t.last();
    let edge = told.ack.expect("an acknowledgement") + (i64::from(told.window.expect("a window")) << 9);
    assert!(edge >= 65_536 + 1_000_003, "nothing is held back but less than a unit: {edge}");
}

#[test]
fn we_send_what_the_window_takes() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(2500));
    t.say(10_000);
    t.expect(many(1, 1000));
    t.expect(many(1001, 1000));
    t.pass(ms(1));
    t.quiet();
    t.recv(ack(1001).window(2500));
    t.expect(many(2001, 1000));
    t.quiet();
}

/// §3.10.7.4, fifth: SND.WL1 and SND.WL2.
#[test]
fn an_old_segment_does_not_change_the_window() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(1000);
    t.recv(bytes(1, "x").ack(1001).window(1000));
    t.peer().segments.clear();
    t.recv(ack(1001).seq(1).window(9000)); // sent before that one
    t.recv(ack(1).seq(2).window(9000)); // acknowledges less
    t.peer().segments.clear();
    t.say(3000);
    t.expect(many(1001, 1000));
    t.quiet();
}

/// §3.8.6: a pure window update.
#[test]
fn a_window_may_be_all_that_changes() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(1000));
    t.say(3000);
    t.expect(many(1, 1000));
    t.quiet();
    t.recv(ack(1).window(2000));
    t.expect(many(1001, 1000));
    t.quiet();
}

/// MUST-34, though SHLD-14 asks peers not to do so.
#[test]
fn a_peer_may_shrink_its_window() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(3000);
    for at in 0..3 {
        t.expect(many(1 + 1000 * at, 1000));
    }
    t.recv(ack(1).window(500));
    t.say(1000);
    t.quiet();
    t.recv(ack(1001).window(500)); // 1500 bytes are beyond it
    t.quiet();
    t.recv(ack(3001).window(500));
    assert_eq!(t.until_sent(), ms(200), "half a segment is small");
    t.expect(many(3001, 500));
}

/// §3.8.6.2.1: bytes beyond a window that shrank are not new; they are retransmitted until the peer accepts them.
#[test]
fn what_is_beyond_a_shrunken_window_is_sent_again() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(2000);
    t.expect(many(1, 1000));
    t.expect(many(1001, 1000));
    t.recv(ack(1001).window(0));
    t.quiet();
    for _ in 0..20 {
        t.until_sent();
        t.expect(many(1001, 1000));
        t.recv(ack(1001).window(0));
        t.quiet();
    }
    t.recv(ack(2001).window(5000));
    t.say(10);
    t.expect(many(2001, 10));
}

/// The window of an unacceptable acknowledgement is ignored.
#[test]
fn windows_of_unacceptable_acknowledgements_do_not_count() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(0));
    t.say(1000);
    t.recv(ack(5).window(9000));
    t.expect(ack(1));
    t.quiet();
}

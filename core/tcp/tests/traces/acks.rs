//! When to acknowledge (RFC 9293 §3.8.6.3; RFC 5681 §4.2).

use crate::trace::*;

/// MUST-40, SHLD-18, SHLD-19: at most 500 ms; 40 ms here.
#[test]
fn an_acknowledgement_may_wait_for_company() {
    let mut t = Trace::open();
    t.past_quick_acks();
    t.recv(bytes(17, "abc"));
    t.hears("abc");
    t.pass(ms(39));
    t.nothing();
    t.pass(ms(1));
    t.expect(ack(20).seq(1));
    t.pass(secs(10));
    t.nothing();
}

/// MUST-58: segments that arrive during the delay are acknowledged with the first, and do not extend the delay.
#[test]
fn one_acknowledgement_tells_of_many_segments() {
    let mut t = Trace::open();
    t.past_quick_acks();
    for at in 0..5 {
        t.recv(many(17 + at, 1));
        t.pass(ms(7));
    }
    t.quiet();
    t.pass(ms(5));
    t.expect(ack(22));
    t.quiet();
}

/// MUST-59: one acknowledgement per turn.
#[test]
fn segments_of_one_turn_are_acknowledged_together() {
    let mut t = Trace::open();
    t.recv_all((0..10).map(|at| many(1 + 1000 * at, 1000)));
    t.expect(ack(10_001));
    t.quiet();
}

/// SHLD-19, RFC 5681 §4.2: at least every second full segment. The first ones each, because their sender is in slow start.
#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut t = Trace::open();
    let mut at = 1;
    for _ in 0..16 {
        t.recv(many(at, 1000));
        at += 1000;
        t.expect(ack(at));
    }
    for _ in 0..10 {
        t.recv(many(at, 1000));
        t.quiet();
        t.recv(many(at + 1000, 1000));
        at += 2000;
        t.expect(ack(at));
    }
}

/// A single full segment is all that its sender may send, or a tail loss probe: its acknowledgement is not delayed for long.
#[test]
fn a_single_full_segment_is_acknowledged_soon() {
    let mut t = Trace::open();
    for at in 0..16 {
        t.recv(many(1 + 1000 * at, 1000));
    }
    t.forget();
    t.recv(many(16_001, 1000));
    t.pass(ms(1));
    t.quiet();
    t.pass(ms(1));
    t.expect(ack(17_001));
    t.recv(many(17_001, 999));
    t.pass(ms(39));
    t.quiet();
    t.pass(ms(1));
    t.expect(ack(18_000));
}

/// The first segments of any size, as in Linux: a peer with Nagle's algorithm that writes its first message in two parts
/// waits for the acknowledgement of the first.
#[test]
fn the_first_segments_are_acknowledged_at_once_however_small() {
    let mut t = Trace::open();
    for at in 1..17 {
        t.recv(many(at, 1));
        t.expect(ack(at + 1));
    }
    t.recv(many(17, 1));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(18));
}

/// Small segments only until this end has replied, as in Linux: later each request would cost one more frame.
#[test]
fn small_segments_wait_once_this_end_has_answered() {
    let mut t = Trace::open();
    t.say(3);
    t.expect(many(1, 3));
    t.recv(bytes(1, "question"));
    t.expect(ack(9));
    t.say(6);
    t.expect(many(4, 6).ack(9));
    t.recv(bytes(9, "question").ack(10));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(17));
    t.recv(many(17, 1000));
    t.expect(ack(1017));
}

#[test]
fn bytes_of_ours_take_the_acknowledgement_with_them() {
    let mut t = Trace::open();
    t.past_quick_acks();
    t.recv(bytes(17, "question"));
    t.say(6);
    t.expect(many(1, 6).ack(25).push(true));
    t.pass(ms(100));
    t.quiet();
}

/// RFC 5681 §4.2, MUST: segments out of order are acknowledged at once.
#[test]
fn what_is_out_of_order_is_told_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(11, "out of order"));
    t.expect(ack(1));
    t.recv(bytes(31, "and again"));
    t.expect(ack(1));
}

/// RFC 5681 §4.2: "when it fills in all or part of a gap".
#[test]
fn what_fills_a_gap_is_told_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(3, "cd"));
    t.recv(bytes(7, "gh"));
    t.last();
    t.recv(bytes(1, "a"));
    t.expect(ack(2));
    t.recv(bytes(2, "b"));
    t.expect(ack(5));
    t.recv(bytes(5, "ef"));
    t.expect(ack(9));
    t.quiet();
    assert_eq!(t.until_sent(), ms(2), "it may have been lost, and the peer may have nothing more to send");
    t.expect(ack(9));
    t.nothing_sent_later();
}

/// While packets are lost or reordered, the last acknowledgement of a turn is repeated once after 2 ms of silence: if it is
/// lost, a peer in recovery with nothing more to send hears nothing until its timeout.
#[test]
fn the_last_acknowledgement_is_repeated_once_after_trouble() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1460).sack_ok(true));
    t.recv(many(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.pass(ms(1));
    t.recv_all([many(1, 1000), many(2001, 1000)]);
    t.expect(ack(3001).sack(&[]));
    t.pass(ms(1));
    t.quiet();
    t.pass(ms(1));
    t.expect(ack(3001).sack(&[]));
    t.pass(ms(500));
    t.quiet();
    // Bytes in order, still within a second after the gap.
    t.recv_all([many(3001, 1000), many(4001, 1000)]);
    t.expect(ack(5001));
    assert_eq!(t.until_sent(), ms(2));
    t.expect(ack(5001));
    t.pass(ms(500));
    t.recv_all([many(5001, 1000), many(6001, 1000)]);
    t.expect(ack(7001));
    t.nothing_sent_later();
}

/// A repetition has the SACK blocks, but not the duplicate, which is reported once (RFC 2883).
#[test]
fn a_repetition_tells_of_blocks_and_not_of_duplicates() {
    let mut t = Trace::open_sack();
    t.recv(many(1001, 1000));
    t.last();
    t.recv(many(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001), (1001, 2001)]));
    assert_eq!(t.until_sent(), ms(2));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.nothing_sent_later();
}

/// Bytes that only waited for a grant were not out of order.
#[test]
fn nothing_is_repeated_without_trouble() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(many(1, 1000));
    t.expect(ack(1001));
    t.recv(many(1001, 1000));
    t.expect(ack(2001));
    t.nothing_sent_later();
}

#[test]
fn what_came_before_is_told_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.expect(ack(4));
    t.recv(bytes(1, "abc"));
    t.expect(ack(4));
    t.nothing_sent_later();
}

#[test]
fn an_end_is_told_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(1, "bye").fin());
    t.expect(ack(5));
    t.nothing_sent_later();
}

/// §3.10.7.4: otherwise two stacks would answer each other for ever.
#[test]
fn acknowledgements_are_not_acknowledged() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    t.recv(ack(11));
    t.recv(ack(11));
    t.recv(ack(11).window(100));
    t.nothing_sent_later();
}

/// MUST-61, SHLD-28: the last queued bytes have PSH; a segment without bytes has not.
#[test]
fn the_last_bytes_push() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(2500);
    t.expect(many(1, 1000).push(false));
    t.expect(many(1001, 1000).push(false));
    t.expect(many(2001, 500).push(true));
    t.recv(bytes(1, "x").fin().ack(2501));
    t.expect(ack(3).push(false));
}

/// MUST-60, §3.9.1.3: bytes are delivered when they arrive, with PSH or without.
#[test]
fn bytes_need_no_push_to_be_delivered() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").push(false));
    t.hears("abc");
}

/// The transport's contract: an application that watches learns what the peer has acknowledged.
#[test]
fn the_application_hears_what_was_acknowledged() {
    let mut t = Trace::open();
    t.watch();
    t.say(100);
    t.recv(ack(41));
    t.event(spillway_tcp::StackEvent::Acknowledged { through: 40 });
    t.recv(ack(41));
    t.recv(ack(20));
    t.recv(ack(101));
    t.event(spillway_tcp::StackEvent::Acknowledged { through: 100 });
    t.finish();
    t.recv(ack(102));
    assert!(t.peer().events.is_empty(), "the FIN is no byte");
}

//! When to acknowledge (RFC 9293 §3.8.6.3; RFC 5681 §4.2).

use crate::trace::*;

/// MUST-40, SHLD-18: the delay is less than 500 ms; it is 40 ms by default.
#[test]
fn a_small_segment_is_acknowledged_after_the_delay() {
    let mut t = Trace::open();
    t.use_up_quick_acks();
    t.recv(bytes(17, "abc"));
    t.expect_data("abc");
    t.advance(ms(39));
    t.expect_nothing();
    t.advance(ms(1));
    t.expect(ack(20).seq(1));
    t.advance(secs(10));
    t.expect_nothing();
}

/// MUST-58: segments that arrive during the delay are acknowledged with the first, and do not extend the delay.
#[test]
fn one_acknowledgement_covers_all_segments_of_the_delay() {
    let mut t = Trace::open();
    t.use_up_quick_acks();
    for at in 0..5 {
        t.recv(data(17 + at, 1));
        t.advance(ms(7));
    }
    t.expect_nothing_sent();
    t.advance(ms(5));
    t.expect(ack(22));
    t.expect_nothing_sent();
}

/// MUST-59: one acknowledgement per turn.
#[test]
fn segments_of_one_turn_are_acknowledged_together() {
    let mut t = Trace::open();
    t.recv_all((0..10).map(|at| data(1 + 1000 * at, 1000)));
    t.expect(ack(10_001));
    t.expect_nothing_sent();
}

/// SHLD-19, RFC 5681 §4.2. Each of the first 16 is acknowledged, because the peer is in slow start.
#[test]
fn every_second_full_segment_is_acknowledged() {
    let mut t = Trace::open();
    let mut at = 1;
    for _ in 0..16 {
        t.recv(data(at, 1000));
        at += 1000;
        t.expect(ack(at));
    }
    for _ in 0..10 {
        t.recv(data(at, 1000));
        t.expect_nothing_sent();
        t.recv(data(at + 1000, 1000));
        at += 2000;
        t.expect(ack(at));
    }
}

/// The segment may be all that its sender's window allows, or a tail loss probe.
#[test]
fn a_single_full_segment_is_acknowledged_after_2_ms() {
    let mut t = Trace::open();
    for at in 0..16 {
        t.recv(data(1 + 1000 * at, 1000));
    }
    t.discard();
    t.recv(data(16_001, 1000));
    t.advance(ms(1));
    t.expect_nothing_sent();
    t.advance(ms(1));
    t.expect(ack(17_001));
    t.recv(data(17_001, 999));
    t.advance(ms(39));
    t.expect_nothing_sent();
    t.advance(ms(1));
    t.expect(ack(18_000));
}

/// As in Linux: a peer with Nagle's algorithm that writes its first message in two parts waits for the
/// acknowledgement of the first part. The segments' size does not matter.
#[test]
fn the_first_16_segments_are_acknowledged_at_once() {
    let mut t = Trace::open();
    for at in 1..17 {
        t.recv(data(at, 1));
        t.expect(ack(at + 1));
    }
    t.recv(data(17, 1));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(18));
}

/// As in Linux: an immediate acknowledgement of each request would be one more frame beside the reply.
#[test]
fn after_a_reply_small_segments_are_acknowledged_after_the_delay() {
    let mut t = Trace::open();
    t.send_pattern(3);
    t.expect(data(1, 3));
    t.recv(bytes(1, "question"));
    t.expect(ack(9));
    t.send_pattern(6);
    t.expect(data(4, 6).ack(9));
    t.recv(bytes(9, "question").ack(10));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(17));
    // A full segment is acknowledged at once, because it is still among the first 16.
    t.recv(data(17, 1000));
    t.expect(ack(1017));
}

#[test]
fn sent_bytes_carry_the_acknowledgement() {
    let mut t = Trace::open();
    t.use_up_quick_acks();
    t.recv(bytes(17, "question"));
    t.send_pattern(6);
    t.expect(data(1, 6).ack(25).push(true));
    t.advance(ms(100));
    t.expect_nothing_sent();
}

/// RFC 5681 §4.2: "Out-of-order data segments SHOULD be acknowledged immediately".
#[test]
fn segments_out_of_order_are_acknowledged_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(11, "out of order"));
    t.expect(ack(1));
    t.recv(bytes(31, "and again"));
    t.expect(ack(1));
}

/// RFC 5681 §4.2: "when it fills in all or part of a gap".
#[test]
fn segments_that_fill_a_gap_are_acknowledged_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(3, "cd"));
    t.recv(bytes(7, "gh"));
    t.discard_segments(); // both acknowledgements
    t.recv(bytes(1, "a"));
    t.expect(ack(2));
    t.recv(bytes(2, "b"));
    t.expect(ack(5));
    t.recv(bytes(5, "ef"));
    t.expect(ack(9));
    t.expect_nothing_sent();
    assert_eq!(
        t.until_sent(),
        ms(2),
        "the last acknowledgement should be repeated once, in case it was lost"
    );
    t.expect(ack(9));
    t.expect_nothing_sent_later();
}

/// The acknowledgement is repeated after 2 ms of silence: if it was lost, a peer in recovery with nothing
/// more to send would wait for its timeout.
#[test]
fn after_reordering_the_last_acknowledgement_is_repeated_once() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1460).sack_ok(true));
    t.recv(data(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.advance(ms(1));
    t.recv_all([data(1, 1000), data(2001, 1000)]);
    t.expect(ack(3001).sack(&[]));
    t.advance(ms(1));
    t.expect_nothing_sent();
    t.advance(ms(1));
    t.expect(ack(3001).sack(&[]));
    t.advance(ms(500));
    t.expect_nothing_sent();
    // These bytes are in order, but arrive within a second after the gap.
    t.recv_all([data(3001, 1000), data(4001, 1000)]);
    t.expect(ack(5001));
    assert_eq!(t.until_sent(), ms(2));
    t.expect(ack(5001));
    t.advance(ms(500));
    t.recv_all([data(5001, 1000), data(6001, 1000)]);
    t.expect(ack(7001));
    t.expect_nothing_sent_later();
}

/// RFC 2883: a duplicate is reported once.
#[test]
fn a_repeated_acknowledgement_has_sack_blocks_but_no_dsack() {
    let mut t = Trace::open_sack();
    t.recv(data(1001, 1000));
    t.discard_segments(); // the acknowledgement
    t.recv(data(1001, 1000));
    t.expect(ack(1).sack(&[(1001, 2001), (1001, 2001)]));
    assert_eq!(t.until_sent(), ms(2));
    t.expect(ack(1).sack(&[(1001, 2001)]));
    t.expect_nothing_sent_later();
}

/// The application grants no bytes here, so the stack holds the bytes back, as it does with bytes out of
/// order. They must not be taken for bytes out of order, whose acknowledgement is repeated.
#[test]
fn without_reordering_no_acknowledgement_is_repeated() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(data(1, 1000));
    t.expect(ack(1001));
    t.recv(data(1001, 1000));
    t.expect(ack(2001));
    t.expect_nothing_sent_later();
}

#[test]
fn duplicates_are_acknowledged_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.expect(ack(4));
    t.recv(bytes(1, "abc"));
    t.expect(ack(4));
    t.expect_nothing_sent_later();
}

#[test]
fn a_fin_is_acknowledged_at_once() {
    let mut t = Trace::open();
    t.recv(bytes(1, "bye").fin());
    t.expect(ack(5));
    t.expect_nothing_sent_later();
}

/// §3.10.7.4: two stacks that acknowledge acknowledgements would answer each other endlessly.
#[test]
fn acknowledgements_are_not_acknowledged() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.recv(ack(11));
    t.recv(ack(11));
    t.recv(ack(11).window(100));
    t.expect_nothing_sent_later();
}

/// MUST-61, SHLD-28: segments without bytes have no PSH.
#[test]
fn the_last_queued_bytes_have_psh() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(2500);
    t.expect(data(1, 1000).push(false));
    t.expect(data(1001, 1000).push(false));
    t.expect(data(2001, 500).push(true));
    t.recv(bytes(1, "x").fin().ack(2501));
    t.expect(ack(3).push(false));
}

/// MUST-60, §3.9.1.3.
#[test]
fn bytes_without_psh_are_delivered() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").push(false));
    t.expect_data("abc");
}

/// The contract of `Transport::watch_acknowledged`.
#[test]
fn acknowledged_offsets_are_reported_to_a_watching_application() {
    let mut t = Trace::open();
    t.watch();
    t.send_pattern(100);
    t.recv(ack(41));
    t.expect_event(spillway_tcp::StackEvent::Acknowledged { through: 40 });
    t.recv(ack(41));
    t.recv(ack(20));
    t.recv(ack(101));
    t.expect_event(spillway_tcp::StackEvent::Acknowledged { through: 100 });
    t.finish();
    t.recv(ack(102));
    assert!(t.peer().events.is_empty(), "the FIN should not count as a byte");
}

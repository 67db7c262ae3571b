//! Small windows and small segments (RFC 9293 §3.7.4, §3.8.6.2; MUST-38, MUST-39).

use crate::trace::*;

/// MUST-39: an update is sent when the window has grown by a segment, or by half of the largest one.
#[test]
fn small_grants_are_not_told_at_once() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.recv_all((0..65).map(|at| many(1 + 1000 * at, 1000)));
    t.last();
    for _ in 0..3 {
        t.grant(300);
        t.quiet();
    }
    t.grant(300);
    t.expect(ack(65_001).window(535 + 1200));
}

/// A peer with more than half of its window left learns of growth from the next acknowledgement, or within the delay of one:
/// otherwise an application that grants for each batch would double the acknowledgements.
#[test]
fn a_window_that_is_half_open_is_not_told_at_once() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.recv(many(1, 10_000));
    t.last();
    t.grant(10_000);
    t.quiet();
    t.recv(many(10_001, 1000));
    t.expect(ack(11_001).window(64_535));
    t.recv_all((0..50).map(|at| many(11_001 + 1000 * at, 1000)));
    t.expect(ack(61_001).window(14_535));
    t.grant(14_000);
    t.quiet();
    t.grant(535);
    t.expect(ack(61_001).window(29_070)); // twice what was left
    t.nothing_sent_later();
}

/// §3.8.6.2.2: half of a small buffer.
#[test]
fn half_of_a_small_window_is_told() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.establish(syn().mss(1000));
    t.grant(200);
    t.recv(many(1, 200));
    t.hears(pattern(1, 200));
    t.last();
    t.grant(99);
    t.quiet();
    t.grant(1);
    t.expect(ack(201).window(100));
}

/// A small growth is advertised late, but it is: otherwise a peer with few bytes left could wait for ever.
#[test]
fn a_small_grant_is_told_within_the_delay_of_acknowledgements() {
    let mut t = Trace::open();
    t.recv(many(1, 1000));
    t.expect(ack(1001));
    t.grant(300);
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(1001).window(64_535 + 300));
}

/// MUST-38: a full segment is sent at once.
#[test]
fn full_segments_go_at_once() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(1000);
    t.expect(many(1, 1000));
}

/// MUST-38, §3.8.6.2.1: the rest of a window is not used, unless it is half of the largest window, or enough for all bytes.
#[test]
fn a_small_rest_of_the_window_waits() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(2400));
    t.say(3000);
    t.expect(many(1, 1000));
    t.expect(many(1001, 1000));
    t.quiet();
    t.recv(ack(2001).window(2400));
    t.expect(many(2001, 1000));
}

#[test]
fn half_of_the_largest_window_is_enough() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(800));
    t.say(3000);
    t.expect(many(1, 800));
    t.recv(ack(801).window(399));
    t.quiet();
    t.recv(ack(801).window(400));
    t.expect(many(801, 400));
}

#[test]
fn all_there_is_to_say_is_enough() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(1500);
    t.expect(many(1, 1000));
    t.expect(many(1001, 500).push(true));
    t.say(1);
    t.expect(many(1501, 1));
}

/// §3.8.6.2.1 (4): after 0.1 to 1 second, so that a sender does not wait for ever.
#[test]
fn a_small_window_is_used_after_a_while() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.recv(ack(1).window(10));
    t.say(100);
    t.quiet();
    assert_eq!(t.until_sent(), ms(200));
    t.expect(many(1, 10));
    t.quiet();
}

/// §3.7.4, MUST-17: Nagle's algorithm is off by default.
#[test]
fn small_segments_do_not_wait_for_others() {
    let mut t = Trace::open();
    for at in 0..5 {
        t.say(1);
        t.expect(many(1 + at, 1));
    }
}

/// SHLD-7.
#[test]
fn with_nagle_small_segments_wait_for_what_is_on_its_way() {
    let mut t = Trace::opened_by(|settings| settings.is_nagle = true, syn().mss(1000));
    t.say(1);
    t.expect(many(1, 1));
    t.say(1);
    t.say(400);
    t.quiet();
    t.recv(ack(2));
    t.expect(many(2, 401));
    t.say(1100);
    t.expect(many(403, 1000));
    t.quiet();
    t.recv(ack(1403));
    t.expect(many(1403, 100));
}

/// §3.7.4: bytes before the FIN do not wait.
#[test]
fn with_nagle_the_last_bytes_go_with_the_fin() {
    let mut t = Trace::opened_by(|settings| settings.is_nagle = true, syn().mss(1000));
    t.say(1);
    t.expect(many(1, 1));
    t.say(1);
    t.quiet();
    t.finish();
    t.expect(many(2, 1).fin());
}

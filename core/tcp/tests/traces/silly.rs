//! Small windows and small segments (RFC 9293 §3.7.4, §3.8.6.2; MUST-38, MUST-39).

use crate::trace::*;

/// MUST-39: an update is sent when the window has grown by a segment, or by half of the largest window.
#[test]
fn small_grants_are_not_advertised_at_once() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    // Leaves 535 bytes of the initial window, which is 65,535 bytes.
    t.recv_all((0..65).map(|at| data(1 + 1000 * at, 1000)));
    t.discard_segments();
    for _ in 0..3 {
        t.grant(300);
        t.expect_nothing_sent();
    }
    t.grant(300); // 1200 bytes in all: more than a segment
    t.expect(ack(65_001).window(535 + 1200));
}

/// While more than half of the window is left, a grant is advertised with the next acknowledgement or after
/// the acknowledgement delay. An application that grants for each batch would otherwise double the
/// acknowledgements.
#[test]
fn a_grant_is_not_advertised_while_half_of_the_window_is_left() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.recv(data(1, 10_000));
    t.discard_segments();
    t.grant(10_000);
    t.expect_nothing_sent();
    t.recv(data(10_001, 1000));
    t.expect(ack(11_001).window(65_535 - 1000)); // the grant made up for the first 10,000 bytes
    t.recv_all((0..50).map(|at| data(11_001 + 1000 * at, 1000)));
    t.expect(ack(61_001).window(65_535 - 51_000));
    t.grant(14_000);
    t.expect_nothing_sent();
    t.grant(535);
    t.expect(ack(61_001).window(2 * 14_535)); // as many bytes were granted as were left
    t.expect_nothing_sent_later();
}

/// §3.8.6.2.2: here the largest window has 200 bytes, so a growth by 100 is advertised.
#[test]
fn half_of_a_small_buffer_is_advertised_at_once() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.establish(syn().mss(1000));
    t.grant(200);
    t.recv(data(1, 200));
    t.expect_data(pattern(1, 200));
    t.discard_segments();
    t.grant(99);
    t.expect_nothing_sent();
    t.grant(1);
    t.expect(ack(201).window(100));
}

/// Without the advertisement, a peer with few bytes left in its window could wait for ever.
#[test]
fn a_small_grant_is_advertised_after_the_acknowledgement_delay() {
    let mut t = Trace::open();
    t.recv(data(1, 1000));
    t.expect(ack(1001));
    t.grant(300);
    assert_eq!(t.until_sent(), ms(40), "the grant should be advertised after the acknowledgement delay");
    t.expect(ack(1001).window(65_535 - 1000 + 300));
}

/// MUST-38.
#[test]
fn full_segments_are_sent_at_once() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(1000);
    t.expect(data(1, 1000));
}

/// MUST-38, §3.8.6.2.1: less than a segment is sent only if it is half of the largest window, or all bytes.
#[test]
fn a_small_rest_of_the_window_is_not_used() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(2400));
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.expect(data(1001, 1000));
    t.expect_nothing_sent();
    t.recv(ack(2001).window(2400));
    t.expect(data(2001, 1000));
}

#[test]
fn half_of_the_largest_window_is_used() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(800));
    t.send_pattern(3000);
    t.expect(data(1, 800));
    t.recv(ack(801).window(399));
    t.expect_nothing_sent();
    t.recv(ack(801).window(400));
    t.expect(data(801, 400));
}

#[test]
fn the_last_queued_bytes_are_sent_at_once() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(1500);
    t.expect(data(1, 1000));
    t.expect(data(1001, 500).push(true));
    t.send_pattern(1);
    t.expect(data(1501, 1));
}

/// §3.8.6.2.1 (4): the override time is 0.1 to 1 second.
#[test]
fn a_small_window_is_used_after_the_override_time() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.recv(ack(1).window(10));
    t.send_pattern(100);
    t.expect_nothing_sent();
    assert_eq!(t.until_sent(), ms(200), "the window should be used after the override time");
    t.expect(data(1, 10));
    t.expect_nothing_sent();
}

/// §3.7.4, MUST-17: Nagle's algorithm is off by default.
#[test]
fn without_nagle_small_segments_are_sent_at_once() {
    let mut t = Trace::open();
    for at in 0..5 {
        t.send_pattern(1);
        t.expect(data(1 + at, 1));
    }
}

/// SHLD-7.
#[test]
fn with_nagle_small_segments_wait_for_acknowledgements() {
    let mut t = Trace::open_with(|settings| settings.is_nagle = true, syn().mss(1000));
    t.send_pattern(1);
    t.expect(data(1, 1));
    t.send_pattern(1);
    t.send_pattern(400);
    t.expect_nothing_sent();
    t.recv(ack(2));
    t.expect(data(2, 401));
    t.send_pattern(1100);
    t.expect(data(403, 1000));
    t.expect_nothing_sent();
    t.recv(ack(1403));
    t.expect(data(1403, 100));
}

/// §3.7.4.
#[test]
fn with_nagle_the_last_bytes_are_sent_with_the_fin() {
    let mut t = Trace::open_with(|settings| settings.is_nagle = true, syn().mss(1000));
    t.send_pattern(1);
    t.expect(data(1, 1));
    t.send_pattern(1);
    t.expect_nothing_sent();
    t.finish();
    t.expect(data(2, 1).fin());
}

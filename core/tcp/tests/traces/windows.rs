//! Windows (RFC 9293 §3.8.6): the advertised window, and the peer's.

use crate::trace::*;

/// The window shrinks exactly by received bytes, and grows exactly by granted ones.
#[test]
fn the_window_follows_received_and_granted_bytes() {
    let mut t = Trace::open();
    t.recv(data(1, 1000));
    t.expect(ack(1001).window(64_535));
    t.recv(data(1001, 1000));
    t.expect(ack(2001).window(63_535));
    t.grant(2000);
    let delay = t.until_sent();
    assert_eq!(delay, ms(40), "the update should be delayed as an ACK, because most of the window is left");
    t.expect(ack(2001).window(65_535));
}

/// §3.8.6.
#[test]
fn without_a_grant_the_window_is_0() {
    let mut t = Trace::new(|settings| settings.initial_window = 0);
    t.recv(syn());
    t.expect(syn_ack().window(0));
    t.recv(ack(1));
    t.expect_opened();
    t.recv(data(1, 100));
    t.expect(ack(1).window(0));
    t.expect_nothing();
    t.grant(2000);
    t.expect(ack(1).window(2000));
    t.recv(data(1, 100));
    t.expect_data(pattern(1, 100));
}

/// The bytes are acknowledged before they are granted: otherwise the peer would retransmit them, and give up.
#[test]
fn bytes_of_the_initial_window_are_delivered_when_granted() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.recv(data(1, 500));
    t.expect(ack(501));
    t.expect_nothing();
    t.grant(200);
    t.expect_data(pattern(1, 200));
    t.expect_nothing();
    t.grant(1000);
    t.expect_data(pattern(201, 300));
    t.expect_nothing();
}

/// SHLD-14: the advertised right edge stays, even if less is granted. The scripted peer checks every edge.
#[test]
fn the_right_edge_does_not_move_left() {
    let mut t = Trace::new(|_| {});
    t.establish(syn());
    t.grant(10_000); // of 65,535 that were advertised
    for at in 0..10 {
        t.recv(data(1 + 1000 * at, 1000));
    }
    let last = t.take_last();
    assert_eq!((last.ack, last.window), (Some(10_001), Some(55_535)), "the right edge should stay");
}

/// The window field counts units of 512 bytes; rounding must not move the right edge left (RFC 7323 §2.4).
#[test]
fn the_edge_of_scaled_windows_does_not_move_left_by_a_unit() {
    const SCALE: u32 = 9; // for `receive_window_max`
    let mut t = Trace::open_with(|settings| settings.receive_window_max = 1 << 24, syn().scale(3).mss(1460));
    t.grant(1_000_003);
    let mut at = 1;
    for count in [1, 700, 1, 1460, 13, 255, 256, 257, 1000, 1, 1, 1] {
        t.recv(data(at, count));
        t.advance(ms(40));
        at += count as i64;
    }
    let last = t.take_last();
    let window = i64::from(last.window.expect("a window field")) << SCALE;
    let edge = last.ack.expect("an acknowledgement") + window;
    assert!(edge >= 1 + 65_535 + 1_000_003, "all granted bytes should be within the edge: {edge}");
}

#[test]
fn sent_bytes_stay_within_the_window() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(2500));
    t.send_pattern(10_000);
    t.expect(data(1, 1000));
    t.expect(data(1001, 1000));
    t.advance(ms(1));
    t.expect_nothing_sent();
    t.recv(ack(1001).window(2500));
    t.expect(data(2001, 1000));
    t.expect_nothing_sent();
}

/// §3.10.7.4, fifth: SND.WL1 and SND.WL2.
#[test]
fn an_old_segment_does_not_change_the_window() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(1000);
    t.recv(bytes(1, "x").ack(1001).window(1000));
    t.peer().segments.clear();
    t.recv(ack(1001).seq(1).window(9000)); // sent before the segment above
    t.recv(ack(1).seq(2).window(9000)); // acknowledges less than it
    t.peer().segments.clear();
    t.send_pattern(3000);
    t.expect(data(1001, 1000));
    t.expect_nothing_sent();
}

#[test]
fn a_pure_window_update_is_used() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(1000));
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.expect_nothing_sent();
    t.recv(ack(1).window(2000));
    t.expect(data(1001, 1000));
    t.expect_nothing_sent();
}

/// A peer should not shrink its window (SHLD-14), but a sender must cope with it (MUST-34).
#[test]
fn a_peer_may_shrink_its_window() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(3000);
    for at in 0..3 {
        t.expect(data(1 + 1000 * at, 1000));
    }
    t.recv(ack(1).window(500));
    t.send_pattern(1000);
    t.expect_nothing_sent();
    t.recv(ack(1001).window(500)); // 1500 bytes in flight are beyond the window
    t.expect_nothing_sent();
    t.recv(ack(3001).window(500));
    assert_eq!(
        t.until_sent(),
        ms(200),
        "the window of half a segment should be used after the override time"
    );
    t.expect(data(3001, 500));
}

/// MAY-7: bytes beyond a window that shrank were sent before, and are retransmitted until acknowledged.
#[test]
fn bytes_beyond_a_shrunken_window_are_retransmitted() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(2000);
    t.expect(data(1, 1000));
    t.expect(data(1001, 1000));
    t.recv(ack(1001).window(0));
    t.expect_nothing_sent();
    for _ in 0..20 {
        t.until_sent();
        t.expect(data(1001, 1000));
        t.recv(ack(1001).window(0));
        t.expect_nothing_sent();
    }
    t.recv(ack(2001).window(5000));
    t.send_pattern(10);
    t.expect(data(2001, 10));
}

#[test]
fn windows_of_unacceptable_acknowledgements_are_ignored() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(0));
    t.send_pattern(1000);
    t.recv(ack(5).window(9000));
    t.expect(ack(1));
    t.expect_nothing_sent();
}

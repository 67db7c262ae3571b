//! A peer's window that stays closed (RFC 9293 §3.8.6.1; MUST-35, MUST-36, MUST-37).

use spillway_transport::LostReason;

use crate::trace::*;

/// A sender with 3000 bytes for a peer whose window is closed.
fn blocked() -> Trace {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(0));
    t.send_pattern(3000);
    t.expect_nothing_sent();
    t
}

/// MUST-36. As in Linux, the probe has no bytes and the number before the window, so the peer must answer it.
#[test]
fn a_closed_window_is_probed() {
    let mut t = blocked();
    assert_eq!(t.until_sent(), secs(1), "the probe should follow after the retransmission timeout (SHLD-29)");
    t.expect(ack(1).seq(0));
}

/// SHLD-30.
#[test]
fn the_time_between_probes_grows_to_a_minute() {
    let mut t = blocked();
    let mut waits = Vec::new();
    for _ in 0..9 {
        waits.push(t.until_sent());
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
    }
    assert!(
        waits.windows(2).all(|pair| pair[1] >= pair[0]),
        "the time between probes should not shrink: {waits:?}"
    );
    assert_eq!(waits[8], secs(60), "the time between probes should grow to a minute: {waits:?}");
}

/// MUST-37: "as long as the receiving TCP peer continues to send acknowledgments in response".
#[test]
fn a_peer_that_answers_probes_may_keep_its_window_closed() {
    let mut t = blocked();
    for _ in 0..1500 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
        assert!(t.peer().events.is_empty(), "the peer should not be lost");
    }
    t.recv(ack(1).window(1000));
    t.expect(data(1, 1000));
}

#[test]
fn a_window_that_closes_later_is_probed() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(1000));
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.recv(ack(1001).window(0));
    for _ in 0..10 {
        t.until_sent();
        t.expect(ack(1).seq(1000));
        t.recv(ack(1001).window(0));
    }
    t.recv(ack(1001).window(5000));
    t.expect(data(1001, 1000));
    t.expect(data(2001, 1000));
}

#[test]
fn a_window_that_opens_by_less_than_a_segment_is_used_within_a_second() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(1000));
    t.send_pattern(3000);
    t.expect(data(1, 1000));
    t.recv(ack(1001).window(0));
    t.until_sent();
    t.expect(ack(1).seq(1000));
    for _ in 0..6 {
        t.recv(ack(1001).window(0));
        t.until_sent();
        t.expect(ack(1).seq(1000));
    }
    t.recv(ack(1001).window(3));
    t.expect_nothing_sent();
    // The interval of probes does not count, only the override timeout (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
    assert_eq!(t.until_sent(), ms(200));
    t.expect(data(1001, 3));
}

/// A sender that waits for the window is not idle: RFC 5681 §4.1 does not reduce its congestion window.
#[test]
fn a_closed_window_does_not_count_as_idle() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(40_000);
    for at in 1..21 {
        t.recv(ack(1 + 1000 * at).window(if at < 20 { 60_000 } else { 20_000 }));
    }
    t.advance(ms(10));
    t.recv(ack(40_001).window(0));
    t.send_pattern(40_000);
    t.discard();
    for _ in 0..5 {
        t.until_sent();
        t.expect(ack(1).seq(40_000));
        t.recv(ack(40_001).window(0));
    }
    t.recv(ack(40_001).window(60_000));
    let burst = t.peer().segments.drain(..).count();
    assert!(burst >= 20, "{burst} segments: the congestion window should be kept");
}

/// R2 (§3.8.3): a peer that does not answer is given up.
#[test]
fn a_peer_that_answers_no_probe_is_lost() {
    let mut t = blocked();
    t.advance(secs(240));
    t.expect_lost(LostReason::TimedOut);
    assert!(rst(1).ack(1).agrees_with(&t.take_last()), "a reset should be sent");
}

#[test]
fn without_queued_bytes_a_closed_window_is_not_probed() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000).window(0));
    t.expect_nothing_sent_later();
}

/// A window update counts although it acknowledges nothing.
#[test]
fn an_open_window_ends_the_probes() {
    let mut t = blocked();
    t.until_sent();
    t.expect(ack(1));
    t.recv(ack(1).window(5000));
    for at in 0..3 {
        t.expect(data(1 + 1000 * at, 1000));
    }
    t.recv(ack(3001).window(0));
    t.expect_nothing_sent_later();
}

#[test]
fn the_answer_to_a_probe_replaces_a_lost_window_update() {
    let mut t = blocked();
    // The update to 4000 is lost; the answer to the next probe repeats it.
    t.until_sent();
    t.expect(ack(1).seq(0));
    t.recv(ack(1).window(4000));
    t.expect(data(1, 1000));
}

/// Our window update may be lost, too. The answer to the peer's probe repeats the window.
#[test]
fn a_probe_of_the_peer_is_answered_with_our_window() {
    let mut t = Trace::new(|settings| settings.initial_window = 100);
    t.establish(syn());
    t.grant(100);
    t.recv(data(1, 100));
    t.grant(5000);
    t.discard_segments(); // lost
    t.recv(ack(1).seq(100));
    t.expect(ack(101).window(5000));
}

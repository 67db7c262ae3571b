//! Keep-alive probes of silent peers (RFC 9293 §3.8.4; MUST-24 to MUST-29).

use spillway_tcp::{KeepAlive, Settings};
use spillway_transport::LostReason;

use crate::trace::*;

fn with_keep_alive(settings: &mut Settings) {
    settings.keep_alive = Some(KeepAlive { idle: secs(7200), interval: secs(75), probes: 3 });
}

fn silent_peer() -> Trace {
    Trace::open_with(with_keep_alive, syn().mss(1000))
}

/// MUST-25.
#[test]
fn by_default_no_keep_alive_is_sent() {
    let mut t = Trace::open();
    t.expect_nothing_sent_later();
    assert_eq!(t.stack.connections(), 1);
}

/// MUST-24, MUST-26, MUST-27, SHLD-12: the probe has no bytes.
#[test]
fn a_silent_peer_is_probed_after_the_configured_time() {
    let mut t = silent_peer();
    assert_eq!(t.until_sent(), secs(7200));
    t.expect(ack(1).seq(0));
}

/// MUST-26.
#[test]
fn a_peer_that_sends_is_not_probed() {
    let mut t = silent_peer();
    for at in 0..20 {
        t.advance(secs(7000));
        t.recv(data(1 + at, 1));
        t.advance(ms(50));
        t.expect(ack(2 + at));
    }
    t.expect_nothing_sent();
}

#[test]
fn a_peer_that_answers_is_probed_again_after_the_idle_time() {
    let mut t = silent_peer();
    for _ in 0..5 {
        assert_eq!(t.until_sent(), secs(7200));
        t.expect(ack(1).seq(0));
        t.advance(ms(1));
        t.recv(ack(1));
        t.expect_nothing();
    }
}

/// MUST-29: "MUST NOT interpret failure to respond to any specific probe as a dead connection".
#[test]
fn a_lost_answer_does_not_end_the_connection() {
    let mut t = silent_peer();
    for _ in 0..5 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        for _ in 0..2 {
            assert_eq!(t.until_sent(), secs(75));
            t.expect(ack(1).seq(0));
        }
        t.advance(secs(1));
        t.recv(ack(1));
        t.expect_nothing();
    }
}

#[test]
fn a_peer_that_answers_no_probe_is_lost() {
    let mut t = silent_peer();
    t.advance(secs(7200 + 3 * 75 - 1));
    assert_eq!(t.peer().segments.len(), 3);
    assert!(t.peer().events.is_empty(), "the peer should not be lost yet");
    t.advance(secs(1));
    t.expect_lost(LostReason::TimedOut);
    assert!(rst(1).ack(1).agrees_with(&t.take_last()), "a reset should be sent");
    assert_eq!(t.counters().given_up, 1);
}

/// MUST-26: segments in flight probe the peer, too.
#[test]
fn no_keep_alive_is_sent_while_bytes_are_in_flight() {
    let mut t = silent_peer();
    t.advance(secs(7190));
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.advance(secs(20));
    while let Some(seg) = t.peer().segments.pop_front() {
        assert!(
            data(1, 10).agrees_with(&seg),
            "the bytes should be retransmitted, and no keep-alive sent: {seg}"
        );
    }
}

#[test]
fn a_reset_in_answer_to_a_probe_ends_the_connection() {
    let mut t = silent_peer();
    t.until_sent();
    t.expect(ack(1).seq(0));
    t.recv(rst(1));
    t.expect_lost(LostReason::Reset);
}

/// SHLD-12: probes with and without a byte are answered.
#[test]
fn keep_alive_probes_of_the_peer_are_answered() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
    t.advance(ms(40));
    t.expect(ack(4));
    for _ in 0..5 {
        t.advance(secs(7200));
        t.recv(ack(1).seq(3));
        t.expect(ack(4).seq(1));
        t.recv(bytes(3, "?"));
        t.expect(ack(4).seq(1));
    }
    t.expect_nothing();
}

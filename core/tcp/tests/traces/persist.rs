//! A window that stays closed (RFC 9293 §3.8.6.1; MUST-35, MUST-36, MUST-37).

use spillway_transport::LostReason;

use crate::trace::*;

/// A sender with 3000 bytes for a peer whose window is closed.
fn blocked() -> Trace {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(0));
    t.say(3000);
    t.quiet();
    t
}

/// MUST-36: the probe is not acceptable, as in Linux: it has the number before the window, and no bytes.
#[test]
fn a_shut_window_is_asked_about() {
    let mut t = blocked();
    assert_eq!(t.until_sent(), secs(1), "SHLD-29: the timeout");
    t.expect(ack(1).seq(0));
}

/// SHLD-30.
#[test]
fn questions_become_rarer() {
    let mut t = blocked();
    let mut waits = Vec::new();
    for _ in 0..9 {
        waits.push(t.until_sent());
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
    }
    assert!(waits.windows(2).all(|pair| pair[1] >= pair[0]), "{waits:?}");
    assert_eq!(waits[8], secs(60), "{waits:?}");
}

/// MUST-37: "as long as the receiving TCP peer continues to send acknowledgments in response".
#[test]
fn a_peer_that_answers_may_keep_its_window_shut_for_ever() {
    let mut t = blocked();
    for _ in 0..1500 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
        assert!(t.peer().events.is_empty());
    }
    t.recv(ack(1).window(1000));
    t.expect(many(1, 1000));
}

/// The same for a peer that has accepted some of the bytes.
#[test]
fn a_window_may_shut_later_and_open_again() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(1000));
    t.say(3000);
    t.expect(many(1, 1000));
    t.recv(ack(1001).window(0));
    for _ in 0..10 {
        t.until_sent();
        t.expect(ack(1).seq(1000));
        t.recv(ack(1001).window(0));
    }
    t.recv(ack(1001).window(5000));
    t.expect(many(1001, 1000));
    t.expect(many(2001, 1000));
}

/// A window that is small but open is used after a while.
#[test]
fn a_window_that_opens_a_little_is_used_in_the_end() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(1000));
    t.say(3000);
    t.expect(many(1, 1000));
    t.recv(ack(1001).window(0));
    t.until_sent();
    t.expect(ack(1).seq(1000));
    t.recv(ack(1001).window(3));
    t.quiet();
    t.until_sent();
    t.expect(many(1001, 3));
}

/// A reader that is slow for longer than a timeout does not cost its sender the congestion window: RFC 5681 §4.1 means a
/// sender with nothing to send.
#[test]
fn a_window_that_was_shut_is_no_silence_of_ours() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(40_000);
    for at in 1..21 {
        t.recv(ack(1 + 1000 * at).window(if at < 20 { 60_000 } else { 20_000 }));
    }
    t.pass(ms(10));
    t.recv(ack(40_001).window(0));
    t.say(40_000);
    t.forget();
    for _ in 0..5 {
        t.until_sent();
        t.expect(ack(1).seq(40_000));
        t.recv(ack(40_001).window(0));
    }
    t.recv(ack(40_001).window(60_000));
    let burst = t.peer().segments.drain(..).count();
    assert!(burst >= 20, "{burst} segments: the window of before");
}

/// R2 (§3.8.3): a peer that does not answer is given up.
#[test]
fn a_peer_that_does_not_answer_is_lost() {
    let mut t = blocked();
    t.pass(secs(240));
    t.lost(LostReason::TimedOut);
    assert!(rst(1).ack(1).agrees_with(&t.last()));
}

#[test]
fn nothing_to_say_nothing_to_ask() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(0));
    t.nothing_sent_later();
}

/// A window update counts, though it acknowledges nothing.
#[test]
fn a_window_that_opens_ends_the_questions() {
    let mut t = blocked();
    t.until_sent();
    t.expect(ack(1));
    t.recv(ack(1).window(5000));
    for at in 0..3 {
        t.expect(many(1 + 1000 * at, 1000));
    }
    t.recv(ack(3001).window(0));
    t.nothing_sent_later();
}

#[test]
fn a_lost_window_update_does_not_stop_us() {
    let mut t = blocked();
    // The update to 4000 is lost; the answer to the next probe repeats it.
    t.until_sent();
    t.expect(ack(1).seq(0));
    t.recv(ack(1).window(4000));
    t.expect(many(1, 1000));
}

/// Our own window updates may be lost, too: the peer's probe is answered.
#[test]
fn a_peer_whose_window_update_was_lost_hears_it_again() {
    let mut t = Trace::new(|settings| settings.initial_window = 100);
    t.establish(syn());
    t.grant(100);
    t.recv(many(1, 100));
    t.grant(5000);
    t.last(); // lost
    t.recv(ack(1).seq(100));
    t.expect(ack(101).window(5000));
}

//! Silent peers (RFC 9293 §3.8.4; MUST-24 to MUST-29).

use spillway_tcp::{KeepAlive, Settings};
use spillway_transport::LostReason;

use crate::trace::*;

fn asking(settings: &mut Settings) {
    settings.keep_alive = Some(KeepAlive { idle: secs(7200), interval: secs(75), probes: 3 });
}

fn silent() -> Trace {
    Trace::opened_by(asking, syn().mss(1000))
}

/// MUST-25.
#[test]
fn nobody_is_asked_unless_it_is_wanted() {
    let mut t = Trace::open();
    t.nothing_sent_later();
    assert_eq!(t.stack.connections(), 1);
}

/// MUST-24, MUST-26, MUST-27, SHLD-12: after the configured time, without bytes.
#[test]
fn a_silent_peer_is_asked() {
    let mut t = silent();
    assert_eq!(t.until_sent(), secs(7200));
    t.expect(ack(1).seq(0));
}

/// MUST-26: a peer that sends something is not silent.
#[test]
fn whoever_speaks_is_not_asked() {
    let mut t = silent();
    for at in 0..20 {
        t.pass(secs(7000));
        t.recv(many(1 + at, 1));
        t.pass(ms(50));
        t.expect(ack(2 + at));
    }
    t.quiet();
}

/// The peer acknowledges the probe; the next probe follows as late as the first.
#[test]
fn a_peer_that_answers_is_asked_again_later() {
    let mut t = silent();
    for _ in 0..5 {
        assert_eq!(t.until_sent(), secs(7200));
        t.expect(ack(1).seq(0));
        t.pass(ms(1));
        t.recv(ack(1));
        t.nothing();
    }
}

/// MUST-29: "MUST NOT interpret failure to respond to any specific probe as a dead connection".
#[test]
fn answers_may_be_lost() {
    let mut t = silent();
    for _ in 0..5 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        for _ in 0..2 {
            assert_eq!(t.until_sent(), secs(75));
            t.expect(ack(1).seq(0));
        }
        t.pass(secs(1));
        t.recv(ack(1));
        t.nothing();
    }
}

#[test]
fn a_peer_that_never_answers_is_lost() {
    let mut t = silent();
    t.pass(secs(7200 + 3 * 75 - 1));
    assert_eq!(t.peer().segments.len(), 3);
    assert!(t.peer().events.is_empty());
    t.pass(secs(1));
    t.lost(LostReason::TimedOut);
    assert!(rst(1).ack(1).agrees_with(&t.last()));
    assert_eq!(t.counters().given_up, 1);
}

/// MUST-26: not while segments are in flight, because these probe the peer.
#[test]
fn what_is_on_its_way_asks_as_well() {
    let mut t = silent();
    t.pass(secs(7190));
    t.say(10);
    t.expect(many(1, 10));
    t.pass(secs(20));
    while let Some(seg) = t.peer().segments.pop_front() {
        assert!(many(1, 10).agrees_with(&seg), "{seg}");
    }
}

/// A reset is an answer to a probe, too.
#[test]
fn a_peer_that_knows_nothing_of_us_resets() {
    let mut t = silent();
    t.until_sent();
    t.expect(ack(1).seq(0));
    t.recv(rst(1));
    t.lost(LostReason::Reset);
}

/// SHLD-12 from the other side: probes with and without a byte are answered.
#[test]
fn questions_are_answered() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.hears("abc");
    t.pass(ms(40));
    t.expect(ack(4));
    for _ in 0..5 {
        t.pass(secs(7200));
        t.recv(ack(1).seq(3));
        t.expect(ack(4).seq(1));
        t.recv(bytes(3, "?"));
        t.expect(ack(4).seq(1));
    }
    t.nothing();
}

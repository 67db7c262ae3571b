//! Connections that move while they end (Capybara §3.3): no segment is sent but those that are owed.

use spillway_transport::LostReason;

use crate::trace::*;

/// Behind a gate, the peer's bytes and its end have come, and ours is acknowledged.
fn ended_behind_the_gate(we_finish_first: bool) -> Trace {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.say(10);
    t.expect(many(1, 10));
    if we_finish_first {
        t.finish();
        t.expect(fin(11).ack(1));
        t.recv(bytes(1, "abc").fin().ack(11));
    } else {
        t.recv(bytes(1, "abc").fin().ack(11));
        t.last();
        t.finish();
        t.expect(fin(11).ack(1));
    }
    t.recv(ack(12).seq(5));
    t.forget();
    t
}

/// LAST-ACK and CLOSING, our end acknowledged: it is not said again, and what was released is acknowledged.
#[test]
fn an_end_that_was_acknowledged_is_not_said_again() {
    for we_finish_first in [false, true] {
        let mut t = ended_behind_the_gate(we_finish_first);
        t.moves(|_| {});
        t.pass(secs(10));
        t.forget();
        t.moves(|_| {});
        while let Some(seg) = t.peer().segments.pop_front() {
            assert!(ack(1).seq(12).agrees_with(&seg), "no other than that: {seg}");
        }
        t.release(4);
        t.expect(ack(5).seq(12));
        t.lost(LostReason::Closed);
    }
}

/// FIN-WAIT-2, and then the peer's end comes behind the gate: neither it nor we are to be forgotten.
#[test]
fn an_end_that_came_last_may_wait_behind_the_gate_elsewhere() {
    let mut t = Trace::open_gated(syn().mss(1460));
    t.finish();
    t.expect(fin(1));
    t.recv(ack(2));
    t.recv(bytes(1, "abc").fin().ack(2));
    t.forget();
    t.moves(|_| {});
    t.release(4);
    t.last();
    t.lost(LostReason::Closed);
}

/// A peer that answers may keep its window shut for ever (MUST-37), here and elsewhere.
#[test]
fn bytes_at_a_shut_window_are_no_sign_of_death_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(2000);
    t.forget();
    t.recv(ack(1001).window(0));
    for _ in 0..20 {
        t.until_sent();
        t.expect(many(1001, 1000));
        t.recv(ack(1001).window(0));
        t.moves(|_| {});
    }
    t.recv(ack(2001).window(5000));
    t.say(10);
    t.expect(many(2001, 10));
}

/// Nor is a window that was shut before anything was sent.
#[test]
fn a_shut_window_is_asked_about_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000).window(0));
    t.say(1000);
    for _ in 0..20 {
        t.until_sent();
        t.expect(ack(1).seq(0));
        t.recv(ack(1).window(0));
        t.moves(|_| {});
    }
    t.recv(ack(1).window(1000));
    t.expect(many(1, 1000));
}

/// Time goes on elsewhere: a peer that answers nothing is given up as soon as it would have been.
#[test]
fn a_dead_peer_is_dead_elsewhere() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(1000);
    for _ in 0..12 {
        t.pass(secs(10));
        t.moves(|_| {});
    }
    t.pass(secs(60));
    t.lost(LostReason::TimedOut);
}

//! Resets, SYNs in connections, and blind attacks with them (RFC 9293 §3.5.2, §3.5.3; RFC 5961 §3, §4).

use spillway_transport::LostReason;

use crate::trace::*;

/// RFC 5961 §3.2, 1.
#[test]
fn a_reset_outside_the_window_is_ignored() {
    for seq in [0, -1, 65_537, 1_000_000] {
        let mut t = Trace::open();
        t.recv(rst(seq));
        t.recv(rst(seq).ack(1));
        t.nothing();
    }
}

/// RFC 5961 §3.2, 2; MUST-12: the application learns that the stream has not ended in order.
#[test]
fn a_reset_at_the_next_number_resets() {
    for reset in [rst(1), rst(1).ack(1), rst(1).ack(99), rst(1).payload("why")] {
        let mut t = Trace::open();
        t.recv(reset);
        t.lost(LostReason::Reset);
        t.nothing();
        assert_eq!(t.stack.connections(), 0);
    }
}

/// RFC 5961 §3.2, 3: the real peer answers the challenge with an exact reset.
#[test]
fn a_reset_elsewhere_in_the_window_is_challenged() {
    for seq in [2, 1000, 65_535] {
        let mut t = Trace::open();
        t.recv(rst(seq));
        t.expect(ack(1).seq(1));
        t.nothing();
        t.recv(rst(1));
        t.lost(LostReason::Reset);
    }
}

/// RFC 5961 §7: challenges are limited, so that resets cannot provoke traffic.
#[test]
fn challenges_are_few() {
    let mut t = Trace::open();
    for _ in 0..100 {
        t.recv(rst(5));
        t.recv(syn().seq(500));
    }
    t.expect(ack(1));
    t.nothing();
    t.pass(ms(500));
    t.recv(rst(5));
    t.expect(ack(1));
    assert_eq!(t.counters().challenges, 2);
}

/// RFC 5961 §4.2: whatever its number, and with or without ACK.
#[test]
fn a_syn_in_a_connection_is_challenged() {
    for seq in [-1000, 0, 1, 5, 65_535, 1_000_000] {
        for one in [syn().seq(seq), syn_ack().seq(seq).ack(1)] {
            let mut t = Trace::open();
            t.recv(one);
            t.expect(ack(1).seq(1));
            t.nothing();
            t.recv(bytes(1, "still here"));
            t.hears("still here");
        }
    }
}

/// §3.5.1, figure 9: the peer has crashed, and connects again.
#[test]
fn a_peer_that_has_restarted_ends_the_old_connection_and_begins_a_new_one() {
    let mut t = Trace::open();
    t.recv(syn().seq(400_000));
    t.expect(ack(1).seq(1));
    t.recv(rst(1));
    t.lost(LostReason::Reset);
    t.peer().initial = 7777;
    t.peer().nxt = 0;
    t.peer().heard.clear();
    t.establish(syn());
}

/// §3.5.1, figure 10: we send to a peer that has forgotten the connection.
#[test]
fn a_peer_that_has_forgotten_us_resets() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    t.recv(rst(1)); // has the number of our acknowledgement
    t.lost(LostReason::Reset);
}

/// §3.10.7.4, second: in every state.
#[test]
fn resets_end_closing_connections() {
    let fin_wait_1 = |t: &mut Trace| t.finish();
    let fin_wait_2 = |t: &mut Trace| {
        t.finish();
        t.recv(ack(2));
    };
    let close_wait = |t: &mut Trace| t.recv(fin(1));
    let closing = |t: &mut Trace| {
        t.finish();
        t.recv(fin(1).ack(1));
    };
    let last_ack = |t: &mut Trace| {
        t.recv(fin(1));
        t.finish();
    };
    let states: [&dyn Fn(&mut Trace); 5] = [&fin_wait_1, &fin_wait_2, &close_wait, &closing, &last_ack];
    for begin in states {
        let mut t = Trace::open();
        begin(&mut t);
        t.peer().segments.clear();
        t.peer().events.clear();
        let next = t.peer().nxt;
        t.recv(rst(next + 5));
        t.expect(ack(next));
        t.recv(rst(next));
        t.lost(LostReason::Reset);
        t.nothing();
        t.recv(ack(1));
        t.expect(rst(1));
    }
}

/// §3.10.5: an abort sends a reset with the number that the peer expects, and forgets the connection.
#[test]
fn an_abort_is_told() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    t.abort();
    t.expect(rst(11).ack(1));
    t.nothing();
    assert_eq!(t.stack.connections(), 0);
    t.recv(ack(11));
    t.expect(rst(11));
}

/// RFC 7323 §3.2: resets have timestamps, too, if these were negotiated; some hosts drop resets without them.
#[test]
fn an_abort_has_timestamps() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "unread").stamp(1100));
    t.last();
    t.pass(ms(200));
    t.recv(ack(1).stamp(1300));
    t.abort();
    t.expect(rst(1).ack(7).stamp(200).echo(1300).sack(&[]));
}

/// §3.5.3: the peer's bytes belong to no connection.
#[test]
fn bytes_after_an_abort_are_reset() {
    let mut t = Trace::open();
    t.abort();
    t.expect(rst(1).ack(1));
    t.recv(bytes(1, "abc").ack(1));
    t.expect(rst(1));
}

/// §3.10.7.1: a reset is not answered.
#[test]
fn resets_are_never_answered() {
    let mut t = Trace::open();
    t.abort();
    t.expect(rst(1).ack(1));
    t.recv(rst(1));
    t.recv(rst(1).ack(1));
    t.recv(rst(9).payload("x"));
    t.nothing();
}

/// RFC 5961 §5: an attacker must guess a number in the window, and an acknowledgement as well.
#[test]
fn blind_bytes_are_challenged() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    for wrong in [12, 70_000, -70_000] {
        t.recv(bytes(1, "forged").ack(wrong));
    }
    t.expect(ack(1));
    t.nothing();
    assert_eq!((t.counters().unacceptable_acks, t.counters().challenges), (3, 1));
}

/// Another connection of the same peer is not affected.
#[test]
fn a_reset_ends_one_connection() {
    let mut t = Trace::open();
    t.at(1).establish(syn());
    t.recv(rst(1));
    t.lost(LostReason::Reset);
    t.at(0).recv(bytes(1, "here"));
    t.hears("here");
}

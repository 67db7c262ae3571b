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
        t.expect_nothing();
    }
}

/// RFC 5961 §3.2, 2; MUST-12: the application gets the reason `Reset`, not `Closed`.
#[test]
fn a_reset_at_rcv_nxt_ends_the_connection() {
    for reset in [rst(1), rst(1).ack(1), rst(1).ack(99), rst(1).payload("why")] {
        let mut t = Trace::open();
        t.recv(reset);
        t.expect_lost(LostReason::Reset);
        t.expect_nothing();
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
        t.expect_nothing();
        t.recv(rst(1));
        t.expect_lost(LostReason::Reset);
    }
}

/// RFC 5961 §7: challenges are limited, so that resets cannot provoke traffic.
#[test]
fn challenges_are_rate_limited() {
    let mut t = Trace::open();
    for _ in 0..100 {
        t.recv(rst(5));
        t.recv(syn().seq(500));
    }
    t.expect(ack(1));
    t.expect_nothing();
    t.advance(ms(500));
    t.recv(rst(5));
    t.expect(ack(1));
    assert_eq!(t.counters().challenges, 2);
}

/// RFC 5961 §4.2: neither the sequence number nor the ACK flag matters.
#[test]
fn a_syn_in_a_connection_is_challenged() {
    for seq in [-1000, 0, 1, 5, 65_535, 1_000_000] {
        for segment in [syn().seq(seq), syn_ack().seq(seq).ack(1)] {
            let mut t = Trace::open();
            t.recv(segment);
            t.expect(ack(1).seq(1));
            t.expect_nothing();
            t.recv(bytes(1, "still here"));
            t.expect_data("still here");
        }
    }
}

/// §3.5.1, figure 9: the peer has crashed, and connects again.
#[test]
fn a_restarted_peer_resets_the_old_connection_and_opens_a_new_one() {
    let mut t = Trace::open();
    t.recv(syn().seq(400_000));
    t.expect(ack(1).seq(1));
    t.recv(rst(1));
    t.expect_lost(LostReason::Reset);
    t.peer().initial = 7777;
    t.peer().nxt = 0;
    t.peer().received.clear();
    t.establish(syn());
}

/// §3.5.1, figure 10: this end sends to a peer that has lost the connection in a crash.
#[test]
fn a_reset_by_a_peer_without_the_connection_is_accepted() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.recv(rst(1)); // has the number of our acknowledgement
    t.expect_lost(LostReason::Reset);
}

/// §3.10.7.4, second: resets have the same effect in every state.
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
    for enter_state in states {
        let mut t = Trace::open();
        enter_state(&mut t);
        t.peer().segments.clear();
        t.peer().events.clear();
        let next = t.peer().nxt;
        t.recv(rst(next + 5));
        t.expect(ack(next));
        t.recv(rst(next));
        t.expect_lost(LostReason::Reset);
        t.expect_nothing();
        t.recv(ack(1));
        t.expect(rst(1));
    }
}

/// §3.10.5: an abort sends a reset with the number that the peer expects, and removes the connection.
#[test]
fn an_abort_sends_a_reset() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.abort();
    t.expect(rst(11).ack(1));
    t.expect_nothing();
    assert_eq!(t.stack.connections(), 0);
    t.recv(ack(11));
    t.expect(rst(11));
}

/// RFC 7323 §3.2: resets have timestamps, too, if these were negotiated; some hosts drop resets without them.
#[test]
fn the_reset_of_an_abort_has_timestamps() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "unread").timestamp(1100));
    t.discard_segments();
    t.advance(ms(200));
    t.recv(ack(1).timestamp(1300));
    t.abort();
    t.expect(rst(1).ack(7).timestamp(200).echo(1300).sack(&[]));
}

/// §3.5.3: the peer's bytes belong to no connection.
#[test]
fn bytes_after_an_abort_are_answered_by_a_reset() {
    let mut t = Trace::open();
    t.abort();
    t.expect(rst(1).ack(1));
    t.recv(bytes(1, "abc").ack(1));
    t.expect(rst(1));
}

/// §3.10.7.1.
#[test]
fn resets_are_never_answered() {
    let mut t = Trace::open();
    t.abort();
    t.expect(rst(1).ack(1));
    t.recv(rst(1));
    t.recv(rst(1).ack(1));
    t.recv(rst(9).payload("x"));
    t.expect_nothing();
}

/// RFC 5961 §5: an attacker must guess a number in the window, and an acknowledgement as well.
#[test]
fn bytes_with_a_wrong_acknowledgement_are_challenged() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    for wrong in [12, 70_000, -70_000] {
        t.recv(bytes(1, "forged").ack(wrong));
    }
    t.expect(ack(1));
    t.expect_nothing();
    assert_eq!(
        (t.counters().unacceptable_acks, t.counters().challenges),
        (3, 1),
        "one of three segments should be challenged"
    );
}

/// Another connection of the same peer is not affected.
#[test]
fn a_reset_ends_only_its_own_connection() {
    let mut t = Trace::open();
    t.select_peer(1).establish(syn());
    t.recv(rst(1));
    t.expect_lost(LostReason::Reset);
    t.select_peer(0).recv(bytes(1, "here"));
    t.expect_data("here");
}

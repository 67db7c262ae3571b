//! Gated acknowledgements (PostMan §4.2): every acknowledgement field is the lower of RCV.NXT and the gate. The harness
//! checks each segment; these tests make the stack send all kinds of them.

use spillway_transport::LostReason;

use crate::trace::*;

fn plain() -> Trace {
    Trace::open_gated(syn().mss(1460))
}

fn with_sack() -> Trace {
    Trace::open_gated(syn().mss(1460).sack_ok(true))
}

#[test]
fn bytes_are_delivered_and_not_acknowledged() {
    let mut t = plain();
    t.recv(bytes(1, "abc"));
    t.hears("abc");
    t.pass(secs(10));
    t.nothing();
    t.release(3);
    t.expect(ack(4));
    t.nothing_sent_later();
}

#[test]
fn a_gate_opens_by_steps() {
    let mut t = plain();
    t.recv(many(1, 1000));
    t.quiet();
    for (through, told) in [(1, 2), (500, 501), (999, 1000), (1000, 1001)] {
        t.release(through);
        t.expect(ack(told));
    }
    t.nothing_sent_later();
}

/// Bytes below an open gate are acknowledged as without a gate.
#[test]
fn a_gate_may_be_open_beforehand() {
    let mut t = plain();
    t.release(1_000_000);
    t.quiet();
    t.past_quick_acks();
    t.recv(bytes(17, "abc"));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(20));
}

#[test]
fn a_gate_never_closes() {
    let mut t = plain();
    t.recv(many(1, 100));
    t.release(100);
    t.expect(ack(101));
    t.release(20);
    t.release(0);
    t.quiet();
    t.recv(many(1, 100));
    t.expect(ack(101));
}

#[test]
fn our_bytes_tell_no_more_than_the_gate() {
    let mut t = plain();
    t.recv(bytes(1, "question"));
    t.say(6);
    t.expect(many(1, 6).ack(1));
    t.release(4);
    t.expect(ack(5).seq(7));
    t.say(6);
    t.expect(many(7, 6).ack(5));
    assert_eq!(t.until_sent(), secs(1));
    t.expect(many(1, 6).ack(5)); // and so do retransmissions
}

#[test]
fn challenges_tell_no_more_than_the_gate() {
    for forged in [rst(50), syn().seq(70), bytes(11, "x").ack(900_000)] {
        let mut t = plain();
        t.recv(many(1, 10));
        t.quiet();
        t.recv(forged);
        t.expect(ack(1));
        t.quiet();
    }
}

#[test]
fn keep_alives_tell_no_more_than_the_gate() {
    let keep_alive = Some(spillway_tcp::KeepAlive { idle: secs(5), interval: secs(5), probes: 3 });
    let mut t = Trace::new(|settings| settings.keep_alive = keep_alive);
    t.peer().stack_port = GATED;
    t.peer().gate = Some(1);
    t.establish(syn());
    t.grant(1000);
    t.recv(bytes(1, "abc"));
    assert_eq!(t.until_sent(), secs(5));
    t.expect(ack(1).seq(0));
}

#[test]
fn answers_to_probes_tell_no_more_than_the_gate() {
    let mut t = plain();
    t.recv(many(1, 10));
    t.recv(ack(1).seq(0)); // before the gate, as the peer knows it
    t.expect(ack(1));
    t.recv(ack(1).seq(10)); // before RCV.NXT
    t.expect(ack(1));
    t.recv(bytes(10, "\x0a"));
    t.expect(ack(1));
}

#[test]
fn our_end_tells_no_more_than_the_gate() {
    let mut t = plain();
    t.recv(many(1, 10));
    t.finish();
    t.expect(fin(1).ack(1));
    t.release(5);
    t.expect(ack(6).seq(2));
}

#[test]
fn an_abort_tells_no_more_than_the_gate() {
    let mut t = plain();
    t.recv(many(1, 10));
    t.release(5);
    t.expect(ack(6));
    t.abort();
    t.expect(rst(1).ack(6));
}

/// The stream's length plus one opens the gate for the FIN.
#[test]
fn an_end_behind_the_gate_is_heard_and_not_acknowledged() {
    let mut t = plain();
    t.recv(bytes(1, "abc").fin());
    t.hears("abc");
    t.finished();
    t.expect(ack(1));
    t.release(3);
    t.expect(ack(4));
    t.nothing_sent_later();
    t.release(4);
    t.expect(ack(5));
}

/// The peer's TCP must keep bytes that are not released, even when both ends have finished.
#[test]
fn a_connection_with_a_closed_gate_does_not_end() {
    let mut t = plain();
    t.recv(bytes(1, "abc").fin());
    t.finish();
    t.recv(ack(2));
    t.peer().segments.clear();
    t.peer().events.clear();
    t.pass(secs(3600));
    t.nothing();
    t.release(3);
    t.expect(ack(4));
    t.release(4);
    t.expect(ack(5));
    t.lost(LostReason::Closed);
}

/// The last acknowledgement may be lost: a repeated FIN is acknowledged again.
#[test]
fn the_end_that_was_released_last_is_acknowledged_again() {
    let mut t = plain();
    t.recv(fin(1));
    t.finish();
    t.recv(ack(2).seq(2));
    t.release(1);
    t.peer().segments.clear();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

/// Our FIN was sent while the gate was closed: its acknowledgement does not show that the peer's FIN was acknowledged.
#[test]
fn the_end_that_was_released_after_ours_is_acknowledged_again() {
    let mut t = plain();
    t.recv(fin(1));
    t.finish();
    t.peer().segments.clear();
    t.release(1); // opens the gate for the FIN; this acknowledgement is lost
    t.peer().segments.clear();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.finished();
    t.lost(LostReason::Closed);
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

#[test]
fn windows_count_from_the_gate() {
    let mut t = plain();
    t.recv(many(1, 10_000));
    t.release(4_000);
    t.expect(ack(4001).window(61_535));
    t.grant(6_000);
    assert_eq!(t.until_sent(), ms(40), "the peer has most of its window left");
    t.expect(ack(4001).window(65_535)); // the largest value of the field
    t.release(10_000);
    t.expect(ack(10_001).window(61_535));
}

/// The peer stops when its window is full, and only the gate lets it continue.
#[test]
fn a_full_window_waits_for_the_gate() {
    let mut t = plain();
    for at in 0..65 {
        t.recv(many(1 + 1000 * at, 1000));
    }
    t.recv(many(65_001, 535));
    t.grant(65_535);
    t.quiet();
    t.recv(many(65_536, 1)); // beyond the window: answered at once
    t.expect(ack(1).window(65_535));
    assert_eq!(t.peer().heard.len(), 65_535);
    t.release(65_535);
    t.expect(ack(65_536).window(65_535));
}

/// A retransmission while the gate is closed is acknowledged at the gate, and not reported as a duplicate.
#[test]
fn what_comes_again_behind_the_gate_is_no_duplicate() {
    let mut t = with_sack();
    t.recv(many(1, 1000));
    t.recv(many(1, 1000));
    t.expect(ack(1).sack(&[]));
    t.recv(many(501, 500));
    t.expect(ack(1).sack(&[]));
    assert_eq!(t.peer().heard.len(), 1000);
}

/// RFC 2883: below the gate it is reported.
#[test]
fn what_comes_again_below_the_gate_is_a_duplicate() {
    let mut t = with_sack();
    t.recv(many(1, 1000));
    t.release(1000);
    t.expect(ack(1001).sack(&[]));
    t.recv(many(1, 500));
    t.expect(ack(1001).sack(&[(1, 501)]));
}

/// Half of the segment is below the gate.
#[test]
fn a_duplicate_across_the_gate_is_not_told_before_it_is_open() {
    let mut t = with_sack();
    t.recv(many(1, 1000));
    t.release(500);
    t.expect(ack(501));
    t.recv(many(1, 1000));
    t.expect(ack(501).sack(&[]));
}

/// Segments that are out of order are reported: the peer retransmits what is missing.
#[test]
fn what_is_missing_is_told_whatever_the_gate() {
    let mut t = with_sack();
    t.recv(many(1, 1000));
    t.quiet();
    t.recv(many(2001, 1000));
    t.expect(ack(1).sack(&[(2001, 3001)]));
    t.recv(many(1001, 1000));
    t.expect(ack(1).sack(&[])); // everything is in order, and held back
    t.release(1500);
    t.expect(ack(1501).sack(&[]));
    t.release(3000);
    t.expect(ack(3001));
}

/// The last acknowledgement is not repeated while the gate holds bytes back: it would be a duplicate acknowledgement for a
/// segment that is not lost. The same holds for bytes that arrive between the acknowledgement and its repetition.
#[test]
fn nothing_is_repeated_while_the_gate_holds_bytes_back() {
    for is_late in [false, true] {
        let mut t = with_sack();
        t.release(1000);
        t.recv(many(501, 500));
        t.expect(ack(1).sack(&[(501, 1001)]));
        t.recv_all([many(1, 500)]);
        t.expect(ack(1001).sack(&[]));
        if is_late {
            t.pass(ms(1));
            t.recv(many(1001, 1000)); // waits behind the gate
        } else {
            assert_eq!(t.until_sent(), ms(2));
            t.expect(ack(1001));
            t.recv(many(2001, 1000));
            t.expect(ack(1001).sack(&[(2001, 3001)]));
            t.recv(many(1001, 1000)); // fills the gap, behind the gate
            t.expect(ack(1001).sack(&[]));
        }
        t.nothing_sent_later();
    }
}

/// RFC 7323 §4.3: timestamps of unacknowledged segments are not echoed, so that the peer's timeouts allow for the gate.
#[test]
fn the_echo_is_of_what_the_gate_lets_through() {
    let mut t = Trace::open_gated(syn().mss(1460).stamp(PEER_CLOCK));
    t.pass(ms(100));
    t.recv(many(1, 10).stamp(1100));
    t.pass(ms(100));
    t.recv(many(11, 10).stamp(1200));
    t.release(20);
    t.expect(ack(21).echo(1100));
}

/// A peer's reset is exact at RCV.NXT, or at the gate.
#[test]
fn resets_at_the_gate_count() {
    for seq in [1, 11] {
        let mut t = plain();
        t.recv(many(1, 10));
        t.hears(pattern(1, 10));
        t.recv(rst(seq));
        t.lost(LostReason::Reset);
    }
    let mut t = plain();
    t.recv(many(1, 10));
    t.recv(rst(5));
    t.quiet();
    t.recv(bytes(11, "here"));
    t.peer().events.pop_front();
    t.hears("here");
}

/// Only connections of the gated listener have a gate.
#[test]
fn other_listeners_have_no_gate() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.release(0);
    t.pass(ms(40));
    t.expect(ack(4));
}

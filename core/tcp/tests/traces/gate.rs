//! Gated acknowledgements (PostMan §4.2): every acknowledgement field is the lower of RCV.NXT and the gate.
//! These tests make the stack send all kinds of segments, and the scripted peer checks each of them.

use spillway_transport::LostReason;

use crate::trace::*;

fn gated() -> Trace {
    Trace::open_gated(syn().mss(1460))
}

fn gated_with_sack() -> Trace {
    Trace::open_gated(syn().mss(1460).sack_ok(true))
}

#[test]
fn bytes_behind_the_gate_are_delivered_but_not_acknowledged() {
    let mut t = gated();
    t.recv(bytes(1, "abc"));
    t.expect_data("abc");
    t.advance(secs(10));
    t.expect_nothing();
    t.release(3);
    t.expect(ack(4));
    t.expect_nothing_sent_later();
}

#[test]
fn each_release_acknowledges_up_to_the_gate() {
    let mut t = gated();
    t.recv(data(1, 1000));
    t.expect_nothing_sent();
    for (through, acknowledged) in [(1, 2), (500, 501), (999, 1000), (1000, 1001)] {
        t.release(through);
        t.expect(ack(acknowledged));
    }
    t.expect_nothing_sent_later();
}

#[test]
fn bytes_below_an_open_gate_are_acknowledged_after_the_delay() {
    let mut t = gated();
    t.release(1_000_000);
    t.expect_nothing_sent();
    t.use_up_quick_acks();
    t.recv(bytes(17, "abc"));
    assert_eq!(t.until_sent(), ms(40));
    t.expect(ack(20));
}

#[test]
fn a_smaller_release_does_not_close_the_gate() {
    let mut t = gated();
    t.recv(data(1, 100));
    t.release(100);
    t.expect(ack(101));
    t.release(20);
    t.release(0);
    t.expect_nothing_sent();
    t.recv(data(1, 100));
    t.expect(ack(101));
}

#[test]
fn sent_bytes_acknowledge_only_up_to_the_gate() {
    let mut t = gated();
    t.recv(bytes(1, "question"));
    t.send_pattern(6);
    t.expect(data(1, 6).ack(1));
    t.release(4);
    t.expect(ack(5).seq(7));
    t.send_pattern(6);
    t.expect(data(7, 6).ack(5));
    assert_eq!(t.until_sent(), secs(1));
    t.expect(data(1, 6).ack(5)); // retransmissions, too
}

#[test]
fn challenges_acknowledge_only_up_to_the_gate() {
    for forged in [rst(50), syn().seq(70), bytes(11, "x").ack(900_000)] {
        let mut t = gated();
        t.recv(data(1, 10));
        t.expect_nothing_sent();
        t.recv(forged);
        t.expect(ack(1));
        t.expect_nothing_sent();
    }
}

#[test]
fn keep_alives_acknowledge_only_up_to_the_gate() {
    let keep_alive = Some(spillway_tcp::KeepAlive { idle: secs(5), interval: secs(5), probes: 3 });
    let mut t = Trace::new(|settings| settings.keep_alive = keep_alive);
    t.peer().stack_port = GATED_PORT;
    t.peer().gate = Some(1);
    t.establish(syn());
    t.grant(1000);
    t.recv(bytes(1, "abc"));
    assert_eq!(t.until_sent(), secs(5));
    t.expect(ack(1).seq(0));
}

#[test]
fn answers_to_probes_acknowledge_only_up_to_the_gate() {
    let mut t = gated();
    t.recv(data(1, 10));
    t.recv(ack(1).seq(0)); // the number before the gate
    t.expect(ack(1));
    t.recv(ack(1).seq(10)); // the number before RCV.NXT
    t.expect(ack(1));
    t.recv(bytes(10, "\x0a"));
    t.expect(ack(1));
}

#[test]
fn our_fin_acknowledges_only_up_to_the_gate() {
    let mut t = gated();
    t.recv(data(1, 10));
    t.finish();
    t.expect(fin(1).ack(1));
    t.release(5);
    t.expect(ack(6).seq(2));
}

#[test]
fn an_abort_acknowledges_only_up_to_the_gate() {
    let mut t = gated();
    t.recv(data(1, 10));
    t.release(5);
    t.expect(ack(6));
    t.abort();
    t.expect(rst(1).ack(6));
}

/// A release of the stream's length plus one opens the gate for the FIN.
#[test]
fn a_fin_behind_the_gate_is_reported_but_not_acknowledged() {
    let mut t = gated();
    t.recv(bytes(1, "abc").fin());
    t.expect_data("abc");
    t.expect_finished();
    t.expect(ack(1));
    t.release(3);
    t.expect(ack(4));
    t.expect_nothing_sent_later();
    t.release(4);
    t.expect(ack(5));
}

/// The peer's TCP must keep bytes that are not released, even when both ends have finished.
#[test]
fn a_connection_does_not_end_until_its_gate_is_open() {
    let mut t = gated();
    t.recv(bytes(1, "abc").fin());
    t.finish();
    t.recv(ack(2));
    t.peer().segments.clear();
    t.peer().events.clear();
    t.advance(secs(3600));
    t.expect_nothing();
    t.release(3);
    t.expect(ack(4));
    t.release(4);
    t.expect(ack(5));
    t.expect_lost(LostReason::Closed);
}

/// The acknowledgement of the peer's FIN was lost.
#[test]
fn a_fin_repeated_after_its_release_is_acknowledged_again() {
    let mut t = gated();
    t.recv(fin(1));
    t.finish();
    t.recv(ack(2).seq(2));
    t.release(1);
    t.peer().segments.clear();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

/// Our FIN was sent while the gate was closed, so its acknowledgement does not show that the peer has
/// received the acknowledgement of its own FIN.
#[test]
fn a_fin_released_after_ours_was_sent_is_acknowledged_again() {
    let mut t = gated();
    t.recv(fin(1));
    t.finish();
    t.peer().segments.clear();
    t.release(1); // opens the gate for the FIN; this acknowledgement is lost
    t.peer().segments.clear();
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
    t.expect_finished();
    t.expect_lost(LostReason::Closed);
    t.recv(fin(1).ack(2));
    t.expect(ack(2));
}

#[test]
fn windows_count_from_the_gate() {
    let mut t = gated();
    t.recv(data(1, 10_000));
    t.release(4_000);
    t.expect(ack(4001).window(61_535));
    t.grant(6_000);
    assert_eq!(
        t.until_sent(),
        ms(40),
        "the update should wait, because the peer has most of its window left"
    );
    t.expect(ack(4001).window(65_535)); // the largest value of the field
    t.release(10_000);
    t.expect(ack(10_001).window(61_535));
}

/// A peer whose window is full continues only when the gate opens.
#[test]
fn a_full_window_reopens_with_the_gate() {
    let mut t = gated();
    for at in 0..65 {
        t.recv(data(1 + 1000 * at, 1000));
    }
    t.recv(data(65_001, 535));
    t.grant(65_535);
    t.expect_nothing_sent();
    t.recv(data(65_536, 1)); // beyond the window: answered at once
    t.expect(ack(1).window(65_535));
    assert_eq!(t.peer().received.len(), 65_535);
    t.release(65_535);
    t.expect(ack(65_536).window(65_535));
}

#[test]
fn a_retransmission_behind_the_gate_is_not_reported_as_a_duplicate() {
    let mut t = gated_with_sack();
    t.recv(data(1, 1000));
    t.recv(data(1, 1000));
    t.expect(ack(1).sack(&[]));
    t.recv(data(501, 500));
    t.expect(ack(1).sack(&[]));
    assert_eq!(t.peer().received.len(), 1000);
}

/// RFC 2883.
#[test]
fn a_retransmission_below_the_gate_is_reported_as_a_duplicate() {
    let mut t = gated_with_sack();
    t.recv(data(1, 1000));
    t.release(1000);
    t.expect(ack(1001).sack(&[]));
    t.recv(data(1, 500));
    t.expect(ack(1001).sack(&[(1, 501)]));
}

/// Half of the duplicate segment is below the gate.
#[test]
fn a_duplicate_across_the_gate_is_not_reported() {
    let mut t = gated_with_sack();
    t.recv(data(1, 1000));
    t.release(500);
    t.expect(ack(501));
    t.recv(data(1, 1000));
    t.expect(ack(501).sack(&[]));
}

/// Without the report, the peer would not retransmit the missing bytes.
#[test]
fn bytes_out_of_order_are_reported_behind_a_closed_gate() {
    let mut t = gated_with_sack();
    t.recv(data(1, 1000));
    t.expect_nothing_sent();
    t.recv(data(2001, 1000));
    t.expect(ack(1).sack(&[(2001, 3001)]));
    t.recv(data(1001, 1000));
    t.expect(ack(1).sack(&[])); // all bytes are in order, and held back
    t.release(1500);
    t.expect(ack(1501).sack(&[]));
    t.release(3000);
    t.expect(ack(3001));
}

/// A repetition would be a duplicate acknowledgement of a segment that is not lost. `is_late`: the bytes that
/// the gate holds back arrive between the acknowledgement and its repetition.
#[test]
fn no_acknowledgement_is_repeated_while_the_gate_holds_bytes_back() {
    for is_late in [false, true] {
        let mut t = gated_with_sack();
        t.release(1000);
        t.recv(data(501, 500));
        t.expect(ack(1).sack(&[(501, 1001)]));
        t.recv_all([data(1, 500)]);
        t.expect(ack(1001).sack(&[]));
        if is_late {
            t.advance(ms(1));
            t.recv(data(1001, 1000)); // held back by the gate
        } else {
            assert_eq!(t.until_sent(), ms(2));
            t.expect(ack(1001));
            t.recv(data(2001, 1000));
            t.expect(ack(1001).sack(&[(2001, 3001)]));
            t.recv(data(1001, 1000)); // fills the gap, held back by the gate
            t.expect(ack(1001).sack(&[]));
        }
        t.expect_nothing_sent_later();
    }
}

/// RFC 7323 §4.3: the round trips that the peer measures, and so its timeouts, include the delay by the gate.
#[test]
fn timestamps_of_segments_behind_the_gate_are_not_echoed() {
    let mut t = Trace::open_gated(syn().mss(1460).timestamp(PEER_CLOCK));
    t.advance(ms(100));
    t.recv(data(1, 10).timestamp(1100));
    t.advance(ms(100));
    t.recv(data(11, 10).timestamp(1200));
    t.release(20);
    t.expect(ack(21).echo(1100));
}

/// A reset is exact at RCV.NXT, and at the gate, which is what the stack's segments acknowledge.
#[test]
fn a_reset_at_the_gate_ends_the_connection() {
    for seq in [1, 11] {
        let mut t = gated();
        t.recv(data(1, 10));
        t.expect_data(pattern(1, 10));
        t.recv(rst(seq));
        t.expect_lost(LostReason::Reset);
    }
    let mut t = gated();
    t.recv(data(1, 10));
    t.recv(rst(5));
    t.expect_nothing_sent();
    t.recv(bytes(11, "here"));
    t.peer().events.pop_front();
    t.expect_data("here");
}

#[test]
fn connections_of_other_listeners_have_no_gate() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc"));
    t.release(0);
    t.advance(ms(40));
    t.expect(ack(4));
}

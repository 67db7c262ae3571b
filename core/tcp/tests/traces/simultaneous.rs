//! Simultaneous open and close (RFC 9293 §3.5 figure 7, §3.6 figure 13; MUST-10).

use spillway_transport::LostReason;

use crate::trace::*;

fn both_have_sent_a_syn() -> Trace {
    let mut t = Trace::new(|_| {});
    t.connect();
    t.expect(syn());
    t.recv(syn().mss(1000));
    t.expect(syn_ack().ack(1));
    t
}

#[test]
fn a_simultaneous_open_is_completed_by_a_syn_ack() {
    let mut t = both_have_sent_a_syn();
    t.recv(syn_ack().ack(1).mss(1000));
    t.expect_opened();
    t.send_pattern(3000);
    t.expect(data(1, 1000));
}

#[test]
fn a_simultaneous_open_is_completed_by_an_acknowledgement() {
    let mut t = both_have_sent_a_syn();
    t.recv(ack(1).seq(1));
    t.expect_opened();
    t.expect_nothing_sent();
}

/// Two stacks that answer SYN-ACKs by SYN-ACKs would answer each other endlessly.
#[test]
fn a_syn_ack_is_not_answered_by_another() {
    let mut t = both_have_sent_a_syn();
    for _ in 0..3 {
        t.recv(syn_ack().ack(1));
        while let Some(seg) = t.peer().segments.pop_front() {
            assert!(ack(1).agrees_with(&seg), "at most a bare acknowledgement should be sent: {seg}");
        }
    }
}

/// MUST-11: this end has opened the connection.
#[test]
fn a_reset_ends_a_simultaneous_open() {
    let mut t = both_have_sent_a_syn();
    t.recv(rst(1));
    t.expect_lost(LostReason::Refused);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn a_simultaneous_close_ends_the_connection() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1).ack(1));
    t.recv(fin(1).ack(1)); // the peer has not received our FIN
    t.expect_finished();
    t.expect(ack(2).seq(2));
    t.recv(ack(2));
    t.expect_lost(LostReason::Closed);
    t.expect_nothing();
}

/// If both ends answered acknowledgements in TIME-WAIT, each would cause another one, endlessly.
#[test]
fn two_ends_in_time_wait_do_not_answer_each_other() {
    let mut t = Trace::open();
    t.finish();
    t.recv(fin(1).ack(1));
    t.recv(ack(2));
    t.discard_segments();
    t.recv(ack(2));
    t.recv(ack(2));
    t.expect_nothing_sent();
}

#[test]
fn a_simultaneous_close_may_carry_bytes() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.finish();
    t.expect(data(1, 10));
    t.expect(fin(11));
    t.recv(bytes(1, "bye").fin().ack(11));
    t.expect_data("bye");
    t.expect_finished();
    t.expect(ack(5));
    t.recv(ack(12));
    t.expect_lost(LostReason::Closed);
}

/// Without the ACK flag the acknowledgement field is undefined. Linux leaves it at 0, which may be any number
/// relative to ours, so later window updates must not be compared with the field.
#[test]
fn the_acknowledgement_field_of_a_syn_without_ack_is_ignored() {
    for field in [0, 0x4000_0000, 0x8000_0000, 0xc000_0000_u32] {
        let mut t = Trace::new(|_| {});
        t.connect();
        t.expect(syn());
        let mut frame = t.frame_of(syn().mss(1000).window(500));
        frame[TCP_OFFSET + 8..TCP_OFFSET + 12].copy_from_slice(&field.to_be_bytes());
        frame::fix_checksums(&mut frame);
        t.recv_frame(&frame);
        t.expect(syn_ack().ack(1));
        t.recv(ack(1).seq(1).window(2000));
        t.expect_opened();
        t.send_pattern(3000);
        t.expect(data(1, 1000));
        t.expect(data(1001, 1000));
        t.expect_nothing_sent();
    }
}

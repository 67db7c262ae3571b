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
fn both_open_and_the_peer_says_so_with_a_syn() {
    let mut t = both_have_sent_a_syn();
    t.recv(syn_ack().ack(1).mss(1000));
    t.opened();
    t.say(3000);
    t.expect(many(1, 1000));
}

#[test]
fn both_open_and_the_peer_acknowledges() {
    let mut t = both_have_sent_a_syn();
    t.recv(ack(1).seq(1));
    t.opened();
    t.quiet();
}

/// Otherwise two such stacks would answer each other for ever.
#[test]
fn a_syn_that_acknowledges_ours_is_not_answered_with_another() {
    let mut t = both_have_sent_a_syn();
    for _ in 0..3 {
        t.recv(syn_ack().ack(1));
        while let Some(seg) = t.peer().segments.pop_front() {
            assert!(ack(1).agrees_with(&seg), "a bare acknowledgement at most: {seg}");
        }
    }
}

/// MUST-11: this end has opened the connection.
#[test]
fn a_reset_ends_what_both_have_opened() {
    let mut t = both_have_sent_a_syn();
    t.recv(rst(1));
    t.lost(LostReason::Refused);
    assert_eq!(t.stack.connections(), 0);
}

#[test]
fn both_close() {
    let mut t = Trace::open();
    t.finish();
    t.expect(fin(1).ack(1));
    t.recv(fin(1).ack(1)); // has not received ours
    t.finished();
    t.expect(ack(2).seq(2));
    t.recv(ack(2));
    t.lost(LostReason::Closed);
    t.nothing();
}

/// Both ends are in TIME-WAIT: a segment of one must not provoke a segment of the other.
#[test]
fn two_that_wait_do_not_answer_each_other() {
    let mut t = Trace::open();
    t.finish();
    t.recv(fin(1).ack(1));
    t.recv(ack(2));
    t.last();
    t.recv(ack(2));
    t.recv(ack(2));
    t.quiet();
}

#[test]
fn both_close_in_one_segment_each_with_bytes() {
    let mut t = Trace::open();
    t.say(10);
    t.finish();
    t.expect(many(1, 10));
    t.expect(fin(11));
    t.recv(bytes(1, "bye").fin().ack(11));
    t.hears("bye");
    t.finished();
    t.expect(ack(5));
    t.recv(ack(12));
    t.lost(LostReason::Closed);
}

/// Without ACK the acknowledgement field is undefined: Linux leaves it at 0, which may be anywhere relative to our numbers.
/// Windows of later segments must not be compared with it.
#[test]
fn a_number_that_acknowledges_nothing_is_not_remembered() {
    for field in [0, 0x4000_0000, 0x8000_0000, 0xc000_0000_u32] {
        let mut t = Trace::new(|_| {});
        t.connect();
        t.expect(syn());
        let mut frame = t.frame_of(syn().mss(1000).window(500));
        frame[frame::TCP_AT + 8..frame::TCP_AT + 12].copy_from_slice(&field.to_be_bytes());
        frame::mend(&mut frame);
        t.recv_frame(&frame);
        t.expect(syn_ack().ack(1));
        t.recv(ack(1).seq(1).window(2000));
        t.opened();
        t.say(3000);
        t.expect(many(1, 1000));
        t.expect(many(1001, 1000));
        t.quiet();
    }
}

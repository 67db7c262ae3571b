//! Which segments are acceptable (RFC 9293 §3.4, §3.10.7.4; RFC 5961 §5).

use crate::trace::*;

/// Established, with a window of 1000 bytes and `came` bytes received.
fn window_of_1000(came: usize) -> Trace {
    let mut t = Trace::new(|settings| settings.initial_window = 1000);
    t.establish(syn());
    t.grant(1000);
    if came > 0 {
        t.recv(many(1, came));
        t.peer().events.clear();
        t.pass(ms(40));
        t.peer().segments.clear();
    }
    t
}

/// §3.4: the four cases, with a window of 900 from 101 on.
#[test]
fn a_segment_counts_when_it_touches_the_window() {
    for (seq, count, new) in [
        (101, 0, 0),   // at its left edge, without bytes
        (1000, 0, 0),  // at its last number
        (101, 10, 10), // next in order
        (91, 20, 10),  // begins before it
        (1, 110, 10),  // much before it
        (101, 900, 900),
        (101, 1200, 900), // ends after it
        (1, 1200, 900),   // is larger than it
    ] {
        let mut t = window_of_1000(100);
        t.recv(many(seq, count));
        assert_eq!(t.peer().heard, pattern(1, 100 + new), "{seq}, {count}");
    }
}

#[test]
fn what_is_outside_the_window_is_answered_and_not_taken() {
    for (seq, count) in [(91, 10), (1, 100), (1001, 10), (5000, 1), (-3, 2)] {
        let mut t = window_of_1000(100);
        t.recv(many(seq, count));
        t.expect(ack(101).seq(1));
        t.nothing();
        assert_eq!(t.counters().unacceptable, 1, "{seq}, {count}");
    }
}

/// §3.10.7.4, first: "after sending the acknowledgment, drop the unacceptable segment".
#[test]
fn bare_segments_outside_the_window_are_answered_and_not_taken() {
    for seq in [50, 1001, 90_000] {
        let mut t = window_of_1000(100);
        t.say(10);
        t.expect(many(1, 10));
        t.recv(ack(11).seq(seq));
        t.expect(ack(101));
        assert_eq!(t.until_sent(), secs(1), "its acknowledgement was not taken");
        t.expect(many(1, 10));
    }
}

/// §3.10.7.4, fifth: "if the ACK bit is off, drop the segment".
#[test]
fn without_ack_nothing_counts() {
    let mut t = window_of_1000(100);
    t.recv(seg().no_flags().seq(101).payload("abc"));
    t.recv(seg().fin().seq(101));
    t.nothing();
    t.recv(bytes(101, "abc"));
    t.hears("abc");
}

/// §3.10.7.4, fifth: "if the ACK acks something not yet sent, then send an ACK, drop the segment".
#[test]
fn who_acknowledges_what_was_never_sent_is_answered_and_not_heard() {
    let mut t = window_of_1000(0);
    t.say(10);
    t.expect(many(1, 10));
    t.recv(bytes(1, "abc").ack(12));
    t.expect(ack(1).seq(11));
    t.nothing();
    assert_eq!(t.counters().unacceptable_acks, 1);
    t.recv(bytes(1, "abc").ack(11));
    t.hears("abc");
}

/// §3.10.7.4, fifth: a duplicate ACK "can be ignored", its bytes not.
#[test]
fn bytes_with_an_old_acknowledgement_count() {
    let mut t = window_of_1000(0);
    t.say(10);
    t.recv(ack(11));
    t.recv(bytes(1, "abc").ack(5));
    t.hears("abc");
}

/// RFC 5961 §5: blindly injected data has a guessed acknowledgement.
#[test]
fn bytes_with_an_acknowledgement_of_long_ago_do_not_count() {
    let mut t = Trace::open();
    for _ in 0..3 {
        t.say(30_000);
        while t.peer().stack_nxt != 1 + t.peer().said.len() as i64 {
            t.recv(seg());
        }
        t.recv(seg());
    }
    t.peer().segments.clear();
    t.recv(bytes(1, "forged").ack(90_001 - 65_536));
    t.expect(ack(1));
    t.nothing();
    assert_eq!(t.counters().challenges, 1);
    t.recv(bytes(1, "right").ack(90_001 - 65_000));
    t.hears("right");
}

/// Bytes beyond the window are cut off and not acknowledged (§3.10.7.4, seventh).
#[test]
fn what_is_beyond_the_window_comes_again() {
    let mut t = window_of_1000(0);
    t.recv(many(1, 1500));
    t.expect(ack(1001).window(0));
    t.grant(1000);
    t.expect(ack(1001).window(1000));
    t.recv(many(1001, 500));
    assert_eq!(t.peer().heard, pattern(1, 1500));
}

/// MUST-66: acknowledgements and resets count while the window is closed.
#[test]
fn a_shut_window_lets_acknowledgements_in() {
    let mut t = window_of_1000(1000);
    t.say(10);
    t.expect(many(1, 10).window(0));
    t.recv(bytes(1001, "x").ack(11));
    t.expect(ack(1001).window(0));
    t.pass(secs(5));
    t.nothing(); // nothing is retransmitted
    t.recv(rst(1001));
    t.lost(spillway_transport::LostReason::Reset);
}

/// §3.10.7.4: a byte that probes a closed window is answered, and retransmitted when the window is open.
#[test]
fn probes_of_a_shut_window_are_answered() {
    let mut t = window_of_1000(1000);
    for _ in 0..3 {
        t.recv(bytes(1001, "p"));
        t.expect(ack(1001).window(0));
    }
    t.nothing();
    t.grant(1000);
    t.expect(ack(1001).window(1000));
    t.recv(bytes(1001, "p"));
    t.hears("p");
}

/// Linux probes without a byte, with the number before the window.
#[test]
fn probes_before_the_window_are_answered() {
    let mut t = window_of_1000(1000);
    for _ in 0..3 {
        t.recv(ack(1).seq(1000));
        t.expect(ack(1001).window(0));
    }
}

/// MUST-3: "the receiver MUST check it"; MUST-2 is checked for every frame of these tests.
#[test]
fn damaged_segments_do_not_count() {
    let mut t = Trace::open();
    let frame = t.frame_of(bytes(1, "abc"));
    for at in (14..16).chain(18..22).chain(23..frame.len()) {
        let mut damaged = frame.clone();
        damaged[at] ^= 4;
        t.recv_frame(&damaged);
        t.nothing();
    }
    t.recv_frame(&frame);
    t.hears("abc");
}

/// §3.4: numbers wrap; the peer of these tests begins at 2^32 - 256.
#[test]
fn sequence_numbers_wrap() {
    let mut t = Trace::open();
    for at in 0..100 {
        t.recv(many(1 + 10 * at, 10));
    }
    assert_eq!(t.peer().heard, pattern(1, 1000));
}

/// A stream may be longer than the sequence space if windows are scaled: here the largest distance within a window.
#[test]
fn the_far_end_of_a_large_window_is_known_from_what_is_before_it() {
    let large = |settings: &mut spillway_tcp::Settings| {
        settings.receive_window_max = 1 << 30;
        settings.reassembly_bytes_max = 1 << 30;
    };
    let mut t = Trace::opened_by(large, syn().scale(14).sack_ok(true));
    t.grant((1 << 30) - 65_535);
    t.expect(ack(1).window(u16::MAX));
    t.recv(many((1 << 30) - 20_000, 10));
    t.expect(ack(1).sack(&[((1 << 30) - 20_000, (1 << 30) - 19_990)]));
    t.recv(many(1 - 100, 10));
    t.expect(ack(1));
}

/// Urgent bytes are delivered like others, any number of them (MUST-31); RFC 6093 §5 demands no more.
#[test]
fn urgent_bytes_are_bytes() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").urg(2));
    t.hears("abc");
    t.expect(ack(4));
    t.recv(bytes(4, "def").urg(60_000));
    t.hears("def");
    t.expect(ack(7));
    t.recv(bytes(7, "g").urg(0));
    t.hears("g");
    t.expect(ack(8));
    t.recv(ack(1).urg(5));
    t.pass(ms(40));
    t.nothing();
}

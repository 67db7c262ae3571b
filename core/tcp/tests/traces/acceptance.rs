//! Which segments are acceptable (RFC 9293 §3.4, §3.10.7.4; RFC 5961 §5).

use crate::trace::*;

/// An established connection whose window had 1000 bytes, of which `received` have arrived.
fn window_of_1000(received: usize) -> Trace {
    let mut t = Trace::new(|settings| settings.initial_window = 1000);
    t.establish(syn());
    t.grant(1000);
    if received > 0 {
        t.recv(data(1, received));
        t.peer().events.clear();
        t.advance(ms(40));
        t.peer().segments.clear();
    }
    t
}

/// §3.4: segments with and without data at an open window, here the sequence numbers 101 to 1000.
#[test]
fn segments_that_overlap_the_window_are_accepted() {
    for (seq, count, new) in [
        (101, 0, 0),   // without bytes, at the window's left edge
        (1000, 0, 0),  // without bytes, at the window's last number
        (1001, 0, 0),  // without bytes, behind a full window of which bytes were lost
        (101, 10, 10), // next in order
        (91, 20, 10),  // begins before the window
        (1, 110, 10),  // begins long before the window
        (101, 900, 900),
        (101, 1200, 900), // ends after the window
        (1, 1200, 900),   // is larger than the window
    ] {
        let mut t = window_of_1000(100);
        t.recv(data(seq, count));
        assert_eq!(
            t.peer().received,
            pattern(1, 100 + new),
            "the bytes inside the window should be received: {seq}, {count}"
        );
        assert_eq!(t.counters().unacceptable, 0, "no segment should count as unacceptable: {seq}, {count}");
    }
}

#[test]
fn bytes_outside_the_window_are_acknowledged_and_discarded() {
    for (seq, count) in [(91, 10), (1, 100), (1001, 10), (5000, 1), (-3, 2)] {
        let mut t = window_of_1000(100);
        t.recv(data(seq, count));
        t.expect(ack(101).seq(1));
        t.expect_nothing();
        assert_eq!(t.counters().unacceptable, 1, "the segment should count as unacceptable: {seq}, {count}");
    }
}

/// §3.10.7.4, first: "after sending the acknowledgment, drop the unacceptable segment".
#[test]
fn segments_without_data_outside_the_window_are_acknowledged_and_discarded() {
    for seq in [50, 1002, 90_000] {
        let mut t = window_of_1000(100);
        t.send_pattern(10);
        t.expect(data(1, 10));
        t.recv(ack(11).seq(seq));
        t.expect(ack(101));
        assert_eq!(t.until_sent(), secs(1), "the segment's acknowledgement should be ignored");
        t.expect(data(1, 10));
    }
}

/// §3.10.7.4, fifth: "if the ACK bit is off, drop the segment".
#[test]
fn segments_without_ack_are_ignored() {
    let mut t = window_of_1000(100);
    t.recv(seg().no_flags().seq(101).payload("abc"));
    t.recv(seg().fin().seq(101));
    t.expect_nothing();
    t.recv(bytes(101, "abc"));
    t.expect_data("abc");
}

/// §3.10.7.4, fifth: "if the ACK acks something not yet sent, then send an ACK, drop the segment".
#[test]
fn an_acknowledgement_of_bytes_never_sent_is_challenged() {
    let mut t = window_of_1000(0);
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.recv(bytes(1, "abc").ack(12));
    t.expect(ack(1).seq(11));
    t.expect_nothing();
    assert_eq!(t.counters().unacceptable_acks, 1);
    t.recv(bytes(1, "abc").ack(11));
    t.expect_data("abc");
}

/// §3.10.7.4, fifth: a duplicate ACK "can be ignored", but not the bytes of its segment.
#[test]
fn bytes_with_an_old_acknowledgement_are_delivered() {
    let mut t = window_of_1000(0);
    t.send_pattern(10);
    t.recv(ack(11));
    t.recv(bytes(1, "abc").ack(5));
    t.expect_data("abc");
}

/// RFC 5961 §5: blindly injected data has a guessed acknowledgement.
#[test]
fn bytes_with_an_acknowledgement_older_than_any_window_are_challenged() {
    let mut t = Trace::open();
    for _ in 0..3 {
        t.send_pattern(30_000);
        // The peer acknowledges what has arrived, until the stack has sent everything.
        while t.peer().stack_nxt != 1 + t.peer().sent.len() as i64 {
            t.recv(seg());
        }
        t.recv(seg());
    }
    t.peer().segments.clear();
    t.recv(bytes(1, "forged").ack(90_001 - 65_536));
    t.expect(ack(1));
    t.expect_nothing();
    assert_eq!(t.counters().challenges, 1);
    t.recv(bytes(1, "right").ack(90_001 - 65_000));
    t.expect_data("right");
}

/// Bytes beyond the window are cut off and not acknowledged (§3.10.7.4, seventh).
#[test]
fn bytes_beyond_the_window_are_cut_off() {
    let mut t = window_of_1000(0);
    t.recv(data(1, 1500));
    t.expect(ack(1001).window(0));
    t.grant(1000);
    t.expect(ack(1001).window(1000));
    t.recv(data(1001, 500));
    assert_eq!(t.peer().received, pattern(1, 1500));
}

/// While the window is closed, valid acknowledgements (§3.10.7.4) and resets (MUST-66) are accepted.
#[test]
fn acknowledgements_and_resets_are_accepted_at_a_closed_window() {
    let mut t = window_of_1000(1000);
    t.send_pattern(10);
    t.expect(data(1, 10).window(0));
    t.recv(bytes(1001, "x").ack(11));
    t.expect(ack(1001).window(0));
    t.advance(secs(5));
    t.expect_nothing(); // nothing is retransmitted
    t.recv(rst(1001));
    t.expect_lost(spillway_transport::LostReason::Reset);
}

/// §3.10.7.4: a byte that probes a closed window is answered. The peer retransmits the byte when the window is open.
#[test]
fn probes_of_a_closed_window_are_answered() {
    let mut t = window_of_1000(1000);
    for _ in 0..3 {
        t.recv(bytes(1001, "p"));
        t.expect(ack(1001).window(0));
    }
    t.expect_nothing();
    t.grant(1000);
    t.expect(ack(1001).window(1000));
    t.recv(bytes(1001, "p"));
    t.expect_data("p");
}

/// Linux probes a closed window without data, by the last sequence number before the window.
#[test]
fn probes_numbered_before_the_window_are_answered() {
    let mut t = window_of_1000(1000);
    for _ in 0..3 {
        t.recv(ack(1).seq(1000));
        t.expect(ack(1001).window(0));
    }
}

/// The receiver verifies the checksum (MUST-3). The scripted peer verifies the stack's checksums (MUST-2).
#[test]
fn damaged_segments_are_ignored() {
    let mut t = Trace::open();
    let frame = t.frame_of(bytes(1, "abc"));
    // IPv6 has no header checksum, and TCP's omits version, traffic class, flow label and hop limit.
    let uncovered: &[usize] = if crate::IS_IPV6 { &[14, 15, 16, 17, 21] } else { &[] };
    for at in (14..frame.len()).filter(|at| !uncovered.contains(at)) {
        let mut damaged = frame.clone();
        damaged[at] ^= 4;
        t.recv_frame(&damaged);
        t.expect_nothing();
    }
    t.recv_frame(&frame);
    t.expect_data("abc");
}

/// §3.4: numbers wrap; the peer of these tests begins at 2^32 - 256.
#[test]
fn sequence_numbers_wrap() {
    let mut t = Trace::open();
    for at in 0..100 {
        t.recv(data(1 + 10 * at, 10));
    }
    assert_eq!(t.peer().received, pattern(1, 1000));
}

/// The stack extends a sequence number to the 64-bit number that is nearest to RCV.NXT. A window of 2^30 bytes, the
/// largest of TCP, gives the largest distance.
#[test]
fn bytes_at_the_far_end_of_a_large_window_are_not_taken_for_old_ones() {
    let large = |settings: &mut spillway_tcp::Settings| {
        settings.receive_window_max = 1 << 30;
        settings.reassembly_bytes_max = 1 << 30;
    };
    let mut t = Trace::open_with(large, syn().scale(14).sack_ok(true));
    t.grant((1 << 30) - 65_535);
    t.expect(ack(1).window(u16::MAX));
    t.recv(data((1 << 30) - 20_000, 10));
    t.expect(ack(1).sack(&[((1 << 30) - 20_000, (1 << 30) - 19_990)]));
    t.recv(data(1 - 100, 10));
    t.expect(ack(1));
}

/// Urgent data of any length (MUST-31) is delivered in line, like ordinary data.
#[test]
fn urgent_bytes_are_delivered_in_order() {
    let mut t = Trace::open();
    t.recv(bytes(1, "abc").urg(2));
    t.expect_data("abc");
    t.expect(ack(4));
    t.recv(bytes(4, "def").urg(60_000));
    t.expect_data("def");
    t.expect(ack(7));
    t.recv(bytes(7, "g").urg(0));
    t.expect_data("g");
    t.expect(ack(8));
    t.recv(ack(1).urg(5));
    t.advance(ms(40));
    t.expect_nothing();
}

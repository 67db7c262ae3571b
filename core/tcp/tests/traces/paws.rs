//! Timestamps (RFC 7323 §3 to §5).

use std::net::IpAddr;

use crate::trace::*;

/// §5.3, R1: the segment is acknowledged, but its bytes are not delivered.
#[test]
fn a_segment_with_an_older_timestamp_is_dropped() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "abc").timestamp(2000));
    t.expect_data("abc");
    t.expect(ack(4));
    t.recv(bytes(4, "old").timestamp(1999));
    t.expect(ack(4));
    t.expect_nothing();
    assert_eq!(t.counters().old_timestamps, 1);
    t.recv(bytes(4, "new").timestamp(2000));
    t.expect_data("new");
}

/// §5.3, R1: the check does not apply to resets.
#[test]
fn a_reset_with_an_old_timestamp_is_accepted() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "abc").timestamp(2000));
    t.expect_data("abc");
    t.recv(rst(4).timestamp(1));
    t.expect_lost(spillway_transport::LostReason::Reset);
}

/// §3.2: a reset needs no timestamp.
#[test]
fn a_reset_without_a_timestamp_is_accepted() {
    let mut t = Trace::open_timestamps();
    t.recv(rst(1).no_timestamp());
    t.expect_lost(spillway_transport::LostReason::Reset);
}

/// §3.2: once negotiated, timestamps are required in every segment but resets.
#[test]
fn segments_without_the_timestamp_are_dropped() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "abc").no_timestamp());
    t.recv(fin(1).no_timestamp());
    t.expect_nothing();
    assert_eq!(t.counters().without_timestamp, 2);
}

/// §5.2.
#[test]
fn timestamps_may_wrap() {
    let mut t = Trace::open_with(|_| {}, syn().timestamp(u32::MAX - 5));
    for (seq, timestamp) in [(1, u32::MAX), (2, 0), (3, 7)] {
        t.recv(data(seq, 1).timestamp(timestamp));
        t.advance(ms(40));
    }
    t.recv(data(4, 1).timestamp(u32::MAX));
    assert_eq!(t.peer().received.len(), 3);
}

/// §5.5: the peer's clock may have wrapped.
#[test]
fn after_24_days_any_timestamp_is_accepted() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "abc").timestamp(2000));
    t.expect_data("abc");
    t.advance(secs(25 * 86_400));
    t.recv(bytes(4, "def").timestamp(1000));
    t.expect_data("def");
}

/// §5.5: an echo of the old timestamp would look like a round trip of weeks.
#[test]
fn after_24_days_the_new_timestamp_is_echoed() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "abc").timestamp(2000));
    t.expect_data("abc");
    t.advance(secs(25 * 86_400));
    t.peer().segments.clear();
    t.recv(bytes(4, "def").timestamp(1000));
    t.advance(ms(40));
    t.expect(ack(7).echo(1000));
    t.recv(bytes(7, "old").timestamp(999));
    assert_eq!(t.counters().old_timestamps, 1, "older timestamps should be dropped again");
}

/// §3.2.
#[test]
fn our_timestamps_count_milliseconds() {
    let mut t = Trace::open_timestamps();
    for (wait, clock) in [(5, 5), (20, 25), (1000, 1025)] {
        t.advance(ms(wait));
        t.send_pattern(1);
        let seg = t.next();
        assert_eq!(seg.timestamp, Some(Some(clock)));
        t.recv(ack(seg.seq.expect("a sequence number") + 1));
    }
}

/// A peer that was moved there from a kernel knows no timestamp to echo, and echoes 0: taken for a round trip of days,
/// this would delay retransmissions by minutes. Linux does not use it either.
#[test]
fn an_echo_of_zero_is_no_measurement() {
    let mut t = Trace::open_timestamps();
    let zero = 0_u32.wrapping_sub(t.peer().stack_clock());
    t.send_pattern(1);
    t.expect(data(1, 1));
    t.until_sent();
    t.expect(data(1, 1)); // the round trip of a retransmitted segment is measured by the echo alone
    t.recv(ack(2).echo(zero));
    t.send_pattern(1);
    t.expect(data(2, 1));
    assert!(t.until_sent() < secs(3), "the segment should be retransmitted soon");
    t.expect(data(2, 1));
}

/// §4.3 (A): the echoed timestamp is that of the first segment which the acknowledgement covers.
#[test]
fn a_delayed_acknowledgement_echoes_the_first_segment() {
    let mut t = Trace::open_timestamps();
    t.use_up_quick_acks();
    t.recv(bytes(17, "a").timestamp(1100));
    t.recv(bytes(18, "b").timestamp(1110));
    t.advance(ms(40));
    t.expect(ack(19).echo(1100));
}

/// §4.3 (B): while bytes are missing, the last segment that advanced the window is echoed.
#[test]
fn segments_out_of_order_are_not_echoed() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(1, "a").timestamp(1100));
    t.advance(ms(40));
    t.expect(ack(2).echo(1100));
    t.recv(bytes(3, "c").timestamp(1200));
    t.expect(ack(2).echo(1100));
    t.recv(bytes(4, "d").timestamp(1300));
    t.expect(ack(2).echo(1100));
}

/// §4.3 (C).
#[test]
fn a_segment_that_fills_a_hole_is_echoed() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(2, "b").timestamp(1200));
    t.discard_segments();
    t.recv(bytes(1, "a").timestamp(1250));
    t.expect(ack(3).echo(1250));
}

/// §5.3: if it were kept, PAWS would drop the peer's own segments.
#[test]
fn a_forged_timestamp_outside_the_window_is_not_kept() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(900_000, "x").timestamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").timestamp(1001));
    t.expect_data("right");
}

/// §5.3: a guessed sequence number in the window is not enough.
#[test]
fn a_forged_timestamp_out_of_order_is_not_kept() {
    let mut t = Trace::open_timestamps();
    t.recv(bytes(5000, "x").timestamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").timestamp(1001));
    t.expect_data("right");
}

/// The segment spans RCV.NXT, but its acknowledgement number is guessed.
#[test]
fn a_forged_timestamp_with_a_wrong_acknowledgement_is_not_kept() {
    let mut t = Trace::open_timestamps();
    t.recv(data(-9, 20).ack(900_000).timestamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").timestamp(1001));
    t.expect_data("right");
}

/// RFC 5961 §4 comes before §5.3: a restarted peer may have a clock that is behind, or no timestamps at all.
#[test]
fn a_syn_is_challenged_whatever_its_timestamp() {
    for syn in [syn().seq(70_000).timestamp(1), syn().seq(70_000).no_timestamp()] {
        let mut t = Trace::open_timestamps();
        t.recv(syn);
        t.expect(ack(1).seq(1));
        t.recv(rst(1).no_timestamp());
        t.expect_lost(spillway_transport::LostReason::Reset);
    }
}

/// §5.3: an old segment has no effect.
#[test]
fn an_acknowledgement_with_an_old_timestamp_is_ignored_at_a_closed_window() {
    let mut t = Trace::new(|settings| settings.initial_window = 3);
    t.establish(syn().timestamp(1000));
    t.grant(3);
    t.recv(bytes(1, "abc").timestamp(2000));
    t.send_pattern(10);
    t.discard_segments();
    t.recv(ack(11).timestamp(1500));
    t.advance(ms(900));
    t.peer().segments.clear();
    assert!(t.until_sent() < secs(1), "the unacknowledged bytes should be retransmitted");
    t.expect(data(1, 10));
}

/// Segments of the same millisecond have the same timestamp.
#[test]
fn equal_timestamps_are_accepted() {
    let mut t = Trace::open_timestamps();
    for at in 0..10 {
        t.recv(data(1 + at, 1).timestamp(1001));
    }
    assert_eq!(t.peer().received.len(), 10);
}

/// RFC 6528 and RFC 7323 §7: timestamps do not reveal the uptime.
#[test]
fn each_peer_gets_another_timestamp_offset() {
    let first = |ip: IpAddr| {
        let mut t = Trace::new(|_| {});
        t.peer().ip = ip;
        t.recv(syn().timestamp(1));
        t.peer().stack_clock()
    };
    assert_ne!(first(either("10.0.0.2", "fd00::2")), first(either("10.0.0.3", "fd00::3")));
}

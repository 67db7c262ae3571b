//! Timestamps (RFC 7323 §3 to §5).

use crate::trace::*;

/// §5.3, R1: acknowledged, and dropped.
#[test]
fn a_segment_older_than_what_came_before_is_dropped() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "abc").stamp(2000));
    t.hears("abc");
    t.expect(ack(4));
    t.recv(bytes(4, "old").stamp(1999));
    t.expect(ack(4));
    t.nothing();
    assert_eq!(t.counters().old_timestamps, 1);
    t.recv(bytes(4, "new").stamp(2000));
    t.hears("new");
}

/// §5.3, R1: the check does not apply to resets.
#[test]
fn an_old_reset_resets() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "abc").stamp(2000));
    t.hears("abc");
    t.recv(rst(4).stamp(1));
    t.lost(spillway_transport::LostReason::Reset);
}

/// §3.2: a reset needs no timestamp.
#[test]
fn a_reset_without_a_timestamp_resets() {
    let mut t = Trace::open_stamps();
    t.recv(rst(1).no_stamp());
    t.lost(spillway_transport::LostReason::Reset);
}

/// §3.2: once negotiated, other segments without a timestamp are dropped silently.
#[test]
fn segments_without_the_timestamp_are_dropped() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "abc").no_stamp());
    t.recv(fin(1).no_stamp());
    t.nothing();
    assert_eq!(t.counters().without_timestamp, 2);
}

/// §5.2: clocks wrap.
#[test]
fn timestamps_wrap() {
    let mut t = Trace::opened_by(|_| {}, syn().stamp(u32::MAX - 5));
    for (seq, stamp) in [(1, u32::MAX), (2, 0), (3, 7)] {
        t.recv(many(seq, 1).stamp(stamp));
        t.pass(ms(40));
    }
    t.recv(many(4, 1).stamp(u32::MAX));
    assert_eq!(t.peer().heard.len(), 3);
}

/// §5.5: after 24 days the clock may have wrapped, so any timestamp counts again.
#[test]
fn an_idle_connection_outlives_its_timestamps() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "abc").stamp(2000));
    t.hears("abc");
    t.pass(secs(25 * 86_400));
    t.recv(bytes(4, "def").stamp(1000));
    t.hears("def");
}

/// §5.5: from then on the new clock is echoed; the old one would look like a round trip of weeks.
#[test]
fn after_weeks_the_new_clock_is_echoed() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "abc").stamp(2000));
    t.hears("abc");
    t.pass(secs(25 * 86_400));
    t.peer().segments.clear();
    t.recv(bytes(4, "def").stamp(1000));
    t.pass(ms(40));
    t.expect(ack(7).echo(1000));
    t.recv(bytes(7, "old").stamp(999));
    assert_eq!(t.counters().old_timestamps, 1, "and protects again");
}

/// §3.2: the clock that is sent is the stack's own, in milliseconds.
#[test]
fn the_clock_goes_on_in_milliseconds() {
    let mut t = Trace::open_stamps();
    for (wait, clock) in [(5, 5), (20, 25), (1000, 1025)] {
        t.pass(ms(wait));
        t.say(1);
        let seg = t.next();
        assert_eq!(seg.stamp, Some(Some(clock)));
        t.recv(ack(seg.seq.expect("a number") + 1));
    }
}

/// §4.3 (A): a delayed acknowledgement echoes the first segment that it covers.
#[test]
fn a_delayed_acknowledgement_echoes_the_first() {
    let mut t = Trace::open_stamps();
    t.past_quick_acks();
    t.recv(bytes(17, "a").stamp(1100));
    t.recv(bytes(18, "b").stamp(1110));
    t.pass(ms(40));
    t.expect(ack(19).echo(1100));
}

/// §4.3 (B): while something is missing, the echo is of the last segment that advanced the window.
#[test]
fn out_of_order_the_echo_is_of_what_was_in_order() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(1, "a").stamp(1100));
    t.pass(ms(40));
    t.expect(ack(2).echo(1100));
    t.recv(bytes(3, "c").stamp(1200));
    t.expect(ack(2).echo(1100));
    t.recv(bytes(4, "d").stamp(1300));
    t.expect(ack(2).echo(1100));
}

/// §4.3 (C): a segment that fills a hole is echoed.
#[test]
fn what_fills_a_hole_is_echoed() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(2, "b").stamp(1200));
    t.last();
    t.recv(bytes(1, "a").stamp(1250));
    t.expect(ack(3).echo(1250));
}

/// §5.3: a segment outside the window does not set TS.Recent, however new it is.
#[test]
fn a_forged_clock_does_not_shut_the_peer_out() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(900_000, "x").stamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").stamp(1001));
    t.hears("right");
}

/// §5.3: nor does a segment in the window that is not next: a guess at the number is not enough.
#[test]
fn a_forged_clock_ahead_in_the_window_does_not_shut_the_peer_out() {
    let mut t = Trace::open_stamps();
    t.recv(bytes(5000, "x").stamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").stamp(1001));
    t.hears("right");
}

/// Nor does one with a guessed acknowledgement, though it spans the next number.
#[test]
fn a_forged_clock_with_a_wrong_acknowledgement_does_not_shut_the_peer_out() {
    let mut t = Trace::open_stamps();
    t.recv(many(-9, 20).ack(900_000).stamp(1_000_000_000));
    t.expect(ack(1));
    t.recv(bytes(1, "right").stamp(1001));
    t.hears("right");
}

/// RFC 5961 §4 before §5.3: a peer that has restarted may have a clock that is behind, or no timestamps at all.
#[test]
fn a_syn_is_challenged_whatever_its_clock() {
    for syn in [syn().seq(70_000).stamp(1), syn().seq(70_000).no_stamp()] {
        let mut t = Trace::open_stamps();
        t.recv(syn);
        t.expect(ack(1).seq(1));
        t.recv(rst(1).no_stamp());
        t.lost(spillway_transport::LostReason::Reset);
    }
}

/// §5.3: an old segment has no effect, not even while the window is closed.
#[test]
fn an_old_acknowledgement_at_a_shut_window_does_not_count() {
    let mut t = Trace::new(|settings| settings.initial_window = 3);
    t.establish(syn().stamp(1000));
    t.grant(3);
    t.recv(bytes(1, "abc").stamp(2000));
    t.say(10);
    t.last();
    t.recv(ack(11).stamp(1500));
    t.pass(ms(900));
    t.peer().segments.clear();
    assert!(t.until_sent() < secs(1), "it is sent again");
    t.expect(many(1, 10));
}

/// Segments of the same millisecond have the same timestamp.
#[test]
fn equal_timestamps_are_not_old() {
    let mut t = Trace::open_stamps();
    for at in 0..10 {
        t.recv(many(1 + at, 1).stamp(1001));
    }
    assert_eq!(t.peer().heard.len(), 10);
}

/// RFC 6528 and RFC 7323 §7: timestamps do not reveal the uptime.
#[test]
fn each_peer_sees_another_clock() {
    let first = |ip: [u8; 4]| {
        let mut t = Trace::new(|_| {});
        t.peer().ip = ip.into();
        t.recv(syn().stamp(1));
        t.peer().stack_clock()
    };
    assert_ne!(first([10, 0, 0, 2]), first([10, 0, 0, 3]));
}

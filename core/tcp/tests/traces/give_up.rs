//! Peers that stop answering (RFC 9293 §3.8.3; MUST-20, MUST-21; RFC 6298 §5).

use spillway_transport::LostReason;

use crate::trace::*;

/// RFC 6298 §5.5 to §5.7, MUST-19: exponential backoff.
#[test]
fn what_is_not_acknowledged_is_sent_again_ever_more_slowly() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    for wait in [1, 2, 4, 8, 16] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(many(1, 10).ack(1));
    }
    t.recv(ack(11));
    t.nothing_sent_later();
}

/// MUST-20, SHLD-11: R2 is two minutes; the peer gets a reset.
#[test]
fn a_connection_is_lost_after_two_minutes() {
    let mut t = Trace::open();
    t.say(10);
    t.pass(secs(119));
    assert!(t.peer().events.is_empty());
    t.pass(secs(10));
    t.lost(LostReason::TimedOut);
    assert!(rst(11).ack(1).agrees_with(&t.last()));
    assert_eq!((t.stack.connections(), t.counters().given_up), (0, 1));
}

/// MUST-21.
#[test]
fn the_time_can_be_set() {
    for limit in [5, 600] {
        let mut t = Trace::opened_by(|settings| settings.give_up_after = secs(limit), syn());
        t.say(10);
        t.pass(secs(limit - 1));
        assert!(t.peer().events.is_empty(), "{limit}");
        t.pass(secs(limit)); // at the next timeout
        t.lost(LostReason::TimedOut);
    }
}

/// Whatever else the peer sends: R2 is about this segment.
#[test]
fn answers_that_acknowledge_nothing_do_not_help() {
    let mut t = Trace::open();
    t.say(10);
    for at in 0..130 {
        t.pass(secs(1));
        if t.peer().events.iter().any(|event| matches!(event, spillway_tcp::StackEvent::Lost(_))) {
            assert!(at >= 119, "{at}");
            return;
        }
        t.recv(many(1 + at, 1).ack(1));
    }
    t.fail("it was never given up");
}

/// Each acknowledged byte restarts the time.
#[test]
fn progress_begins_the_time_anew() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(10_000);
    for at in 1..10 {
        t.pass(secs(100));
        t.recv(ack(1 + at * 1000));
    }
    assert!(t.peer().events.is_empty());
}

/// RFC 6298 §5.2, §5.3: the timer stops when everything is acknowledged, and restarts when a part is.
#[test]
fn the_timer_runs_from_the_last_progress() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(2000);
    t.peer().segments.clear();
    t.pass(ms(900));
    t.recv(ack(1001));
    t.quiet();
    let wait = t.until_sent();
    assert!(wait >= ms(900), "{wait:?}");
    t.expect(many(1001, 1000));
}

/// RFC 5681 §3.2, MUST-19: three duplicates.
#[test]
fn three_duplicates_send_the_first_again() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(8000);
    t.peer().segments.clear();
    t.recv(ack(1));
    t.recv(ack(1));
    t.quiet();
    t.recv(ack(1));
    t.expect(many(1, 1000));
}

/// RFC 5681 §2: a segment with bytes, or with another window, is not a duplicate.
#[test]
fn only_bare_acknowledgements_are_duplicates() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(8000);
    t.peer().segments.clear();
    for at in 0..5 {
        t.recv(many(1 + at, 1).ack(1));
        t.recv(ack(1).window(60_000 + at as u16));
    }
    while let Some(seg) = t.peer().segments.pop_front() {
        assert!(seg.payload == Some(vec![]), "{seg}");
    }
}

/// RFC 6928, MUST-19: slow start begins with ten segments, and doubles.
#[test]
fn slow_start() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(60_000);
    let burst = |t: &mut Trace| t.peer().segments.drain(..).count();
    assert_eq!(burst(&mut t), 10);
    t.pass(ms(10));
    for at in 1..11 {
        t.recv(ack(1 + 1000 * at));
    }
    assert_eq!(burst(&mut t), 20);
}

/// RFC 5681 §3.1, MUST-19: one segment after a timeout.
#[test]
fn after_a_timeout_there_is_one_segment_at_first() {
    let mut t = Trace::opened_by(|_| {}, syn().mss(1000));
    t.say(10_000);
    t.peer().segments.clear();
    t.until_sent();
    t.expect(many(1, 1000));
    t.quiet();
    t.recv(ack(1001));
    t.expect(many(1001, 1000));
    t.expect(many(2001, 1000));
    t.quiet();
}

/// RFC 6298 §3, Karn, MUST-18: a segment that was sent twice is not measured.
#[test]
fn what_was_sent_twice_is_not_measured() {
    let mut t = Trace::open();
    t.say(10);
    t.expect(many(1, 10));
    t.until_sent();
    t.expect(many(1, 10));
    t.pass(ms(1)); // 1001 ms after the first, 1 after the second
    t.recv(ack(11));
    t.say(10);
    t.expect(many(11, 10));
    assert!(t.until_sent() >= secs(1), "neither is believed");
}

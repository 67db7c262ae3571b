//! Retransmissions to a peer that does not answer, and the time until it is lost (RFC 9293 §3.8.3; MUST-20, MUST-21;
//! RFC 6298 §5).

use spillway_transport::LostReason;

use crate::trace::*;

/// RFC 6298 §5.5 to §5.7, MUST-19.
#[test]
fn retransmissions_back_off_exponentially() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    for wait in [1, 2, 4, 8, 16] {
        assert_eq!(t.until_sent(), secs(wait));
        t.expect(data(1, 10).ack(1));
    }
    t.recv(ack(11));
    t.expect_nothing_sent_later();
}

/// MUST-20, SHLD-11: R2 is two minutes. The peer gets a reset.
#[test]
fn a_peer_that_does_not_answer_is_lost_after_two_minutes() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.advance(secs(119));
    assert!(t.peer().events.is_empty(), "the peer should not be lost before two minutes");
    t.advance(secs(10));
    t.expect_lost(LostReason::TimedOut);
    assert!(rst(11).ack(1).agrees_with(&t.take_last()), "a reset should be sent");
    assert_eq!((t.stack.connections(), t.counters().given_up), (0, 1), "the peer should be given up");
}

/// MUST-21.
#[test]
fn the_time_until_a_peer_is_lost_can_be_set() {
    for limit in [5, 600] {
        let mut t = Trace::open_with(|settings| settings.user_timeout = secs(limit), syn());
        t.send_pattern(10);
        t.advance(secs(limit - 1));
        assert!(t.peer().events.is_empty(), "the peer should not be lost before the limit of {limit}");
        t.advance(secs(limit)); // includes the next retransmission timeout
        t.expect_lost(LostReason::TimedOut);
    }
}

#[test]
fn connections_that_this_end_opens_may_have_a_timeout_of_their_own() {
    let mut t = Trace::new(|settings| settings.opened_user_timeout = Some(secs(30)));
    t.connect();
    t.recv(syn_ack());
    t.expect_opened();
    t.send_pattern(10);
    t.advance(secs(29));
    assert!(t.peer().events.is_empty(), "the peer should not be lost before 30 s");
    t.advance(secs(30)); // includes the next retransmission timeout
    t.expect_lost(LostReason::TimedOut);
}

/// R2 counts from the first transmission of unacknowledged bytes, even if the peer sends other segments.
#[test]
fn a_peer_that_sends_but_acknowledges_nothing_is_lost() {
    let mut t = Trace::open();
    t.send_pattern(10);
    for at in 0..130 {
        t.advance(secs(1));
        if t.peer().events.iter().any(|event| matches!(event, spillway_tcp::StackEvent::Lost(_))) {
            assert!(at >= 119, "the peer should be lost after two minutes at the earliest: {at}");
            return;
        }
        t.recv(data(1 + at, 1).ack(1));
    }
    t.fail("the connection should be lost");
}

#[test]
fn each_acknowledgement_restarts_the_time() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(10_000);
    for at in 1..10 {
        t.advance(secs(100));
        t.recv(ack(1 + at * 1000));
    }
    assert!(t.peer().events.is_empty(), "the peer should not be lost");
}

/// RFC 6298 §5.3.
#[test]
fn each_acknowledgement_restarts_the_retransmission_timer() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(2000);
    t.peer().segments.clear();
    t.advance(ms(900));
    t.recv(ack(1001));
    t.expect_nothing_sent();
    let wait = t.until_sent();
    assert!(wait >= ms(900), "the timer should restart: {wait:?}");
    t.expect(data(1001, 1000));
}

/// RFC 5681 §3.2, MUST-19.
#[test]
fn three_duplicates_retransmit_the_first_segment() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(8000);
    t.peer().segments.clear();
    t.recv(ack(1));
    t.recv(ack(1));
    t.expect_nothing_sent();
    t.recv(ack(1));
    t.expect(data(1, 1000));
}

/// RFC 5681 §2.
#[test]
fn segments_with_bytes_or_another_window_are_not_duplicates() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(8000);
    t.peer().segments.clear();
    for at in 0..5 {
        t.recv(data(1 + at, 1).ack(1));
        t.recv(ack(1).window(60_000 + at as u16));
    }
    while let Some(seg) = t.peer().segments.pop_front() {
        assert!(seg.payload == Some(vec![]), "the segment should have no bytes: {seg}");
    }
}

/// RFC 6928, MUST-19.
#[test]
fn slow_start_begins_with_ten_segments_and_doubles() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(60_000);
    let burst = |t: &mut Trace| t.peer().segments.drain(..).count();
    assert_eq!(burst(&mut t), 10);
    t.advance(ms(10));
    for at in 1..11 {
        t.recv(ack(1 + 1000 * at));
    }
    assert_eq!(burst(&mut t), 20);
}

/// RFC 5681 §3.1, MUST-19.
#[test]
fn after_a_timeout_one_segment_is_sent() {
    let mut t = Trace::open_with(|_| {}, syn().mss(1000));
    t.send_pattern(10_000);
    t.peer().segments.clear();
    t.until_sent();
    t.expect(data(1, 1000));
    t.expect_nothing_sent();
    t.recv(ack(1001));
    t.expect(data(1001, 1000));
    t.expect(data(2001, 1000));
    t.expect_nothing_sent();
}

/// RFC 6298 §3, Karn, MUST-18.
#[test]
fn a_retransmitted_segment_is_not_measured() {
    let mut t = Trace::open();
    t.send_pattern(10);
    t.expect(data(1, 10));
    t.until_sent();
    t.expect(data(1, 10));
    t.advance(ms(1)); // 1001 ms after the first transmission, 1 ms after the second
    t.recv(ack(11));
    t.send_pattern(10);
    t.expect(data(11, 10));
    assert!(t.until_sent() >= secs(1), "neither time should be used as the round trip");
}

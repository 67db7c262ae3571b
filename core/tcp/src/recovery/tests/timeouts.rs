//! The retransmission timeout: RFC 6298, RFC 5681 §3.1, RFC 2018 §5 and §8.

use super::*;

#[test]
fn the_timer_starts_with_the_first_segment_in_flight() {
    let mut trace = Trace::without_probes();
    assert_eq!(trace.next_timer_ms(), None);
    trace.at(110).send(1).at(150).send(1);
    assert_eq!(
        trace.next_timer_ms(),
        Some(410),
        "the timer should start with the first segment (RFC 6298 §5.1)"
    );
}

#[test]
fn the_timer_stops_when_all_is_acknowledged() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(2).at(210).ack(2);
    assert_eq!(trace.next_timer_ms(), None, "the timer should stop when all is acknowledged (RFC 6298 §5.2)");
}

#[test]
fn each_acknowledgement_of_new_bytes_restarts_the_timer() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3).at(210).ack(1);
    assert_eq!(
        trace.next_timer_ms(),
        Some(510),
        "new acknowledged bytes should restart the timer (RFC 6298 §5.3)"
    );
    trace.at(250).duplicates(1);
    assert_eq!(
        trace.next_timer_ms(),
        Some(510),
        "a duplicate, which acknowledges no new bytes, should not restart the timer"
    );
}

#[test]
fn nothing_is_retransmitted_before_the_timeout() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1);
    assert_eq!(trace.at(409).handle_timer(), TimeoutOutcome::Nothing);
    assert_eq!(trace.retransmit(), []);
    assert_eq!(trace.at(410).handle_timer(), TimeoutOutcome::Retransmit);
    assert_eq!(trace.retransmit(), [(0, 1)]);
}

#[test]
fn after_a_timeout_only_the_first_segment_is_retransmitted() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(8).at(410).handle_timer();
    assert_eq!(trace.recovery.phase(), Phase::Loss);
    assert_eq!(trace.recovery.cwnd(), 1000, "the window should be the loss window (RFC 5681 §3.1)");
    assert_eq!(trace.recovery.ssthresh(), 4000, "the threshold should be half of the bytes in flight");
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(trace.recovery.send_room(), 0, "lost segments should be sent before new data");
}

#[test]
fn the_timeout_doubles_up_to_its_maximum() {
    let mut trace = Trace::with(&Settings { rto_max: Duration::from_secs(2), ..newreno() }, false);
    trace.at(1000).send(1);
    for (fires, backed_off) in [(1300, 600), (1900, 1200), (3100, 2000), (5100, 2000), (7100, 2000)] {
        assert_eq!(trace.next_timer_ms(), Some(fires));
        assert_eq!(trace.at(fires).handle_timer(), TimeoutOutcome::Retransmit);
        assert_eq!(
            trace.recovery.rto(),
            Duration::from_millis(backed_off),
            "the timeout should double (RFC 6298 §5.5)"
        );
        assert_eq!(trace.retransmit(), [(0, 1)]);
    }
    assert_eq!(
        (trace.recovery.timeouts(), trace.recovery.backoffs()),
        (5, 5),
        "five timeouts should be counted"
    );
}

#[test]
fn without_timestamps_a_retransmitted_segment_is_not_measured() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    trace.at(420).ack(1);
    assert_eq!(
        trace.recovery.srtt(),
        Some(Duration::from_millis(100)),
        "nothing should be measured: the round trip took 10 ms or 310 ms (Karn)"
    );
    assert_eq!(trace.recovery.rto(), Duration::from_millis(600), "the timeout should stay backed off");
    assert_eq!(trace.recovery.timeouts(), 0, "acknowledged bytes should reset the count of timeouts");
    trace.at(430).send(1).at(530).ack(2);
    assert_eq!(
        trace.recovery.rto(),
        Duration::from_millis(300),
        "a measured round trip should end the backoff"
    );
}

#[test]
fn segments_acknowledged_with_a_retransmission_are_not_measured() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3).at(410).handle_timer();
    trace.retransmit();
    trace.at(415).ack(3);
    assert_eq!(
        trace.recovery.srtt(),
        Some(Duration::from_millis(100)),
        "nothing should be measured: the acknowledgement waited for the retransmission of the first segment"
    );
}

#[test]
fn timestamps_measure_a_retransmitted_segment() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    trace.at(510).handle_ack(&Ack { rtt: Some(Duration::from_millis(100)), ..ack(seq_at(1)) });
    assert_eq!(
        (trace.recovery.backoffs(), trace.recovery.counters().undone),
        (0, 0),
        "nothing should count as undone"
    );
    assert!(
        trace.recovery.rto() < Duration::from_millis(301),
        "the timestamp should count: the timeout should fall"
    );
}

#[test]
fn an_unambiguous_send_time_is_used_instead_of_the_timestamp() {
    let mut trace = Trace::without_probes();
    trace.at(1000).send(1).now = Time(1_000_400_000);
    trace.handle_ack(&Ack { rtt: Some(Duration::from_millis(1)), ..ack(seq_at(1)) });
    assert_eq!(trace.recovery.rtt.smallest(), Some(Duration::from_micros(400)));
}

#[test]
fn a_timestamp_echoed_in_the_same_millisecond_counts_as_measured() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    trace.handle_ack(&Ack { rtt: Some(Duration::ZERO), ..ack(seq_at(1)) });
    assert_eq!(trace.recovery.backoffs(), 0, "the echo should count as measured");
}

#[test]
fn of_several_acknowledged_segments_the_first_is_measured() {
    let mut trace = Trace::without_probes();
    trace.at(1000).send(1).at(1060).send(1).at(1100).ack(2);
    assert_eq!(
        trace.recovery.srtt(),
        Some(Duration::from_millis(100)),
        "the round trip should include the delay of the acknowledgement"
    );
}

#[test]
fn an_acknowledgement_of_part_of_a_segment_is_not_measured() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(111).handle_ack(&ack(BASE + 300));
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(trace.recovery.in_flight(), 700);
}

#[test]
fn a_round_trip_of_zero_is_not_measured() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).ack(1);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
}

#[test]
fn a_second_timeout_of_the_same_segment_keeps_the_threshold() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10).at(410).handle_timer();
    trace.retransmit();
    trace.at(1010).handle_timer();
    assert_eq!(
        trace.recovery.ssthresh(),
        5000,
        "the threshold should stay (RFC 5681 §3.1, after equation 4)"
    );
}

#[test]
fn a_timeout_of_another_segment_lowers_the_threshold_again() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(410).handle_timer();
    trace.retransmit();
    trace.at(420).ack(1);
    trace.retransmit();
    trace.wait_for_timeout();
    assert_eq!(trace.recovery.ssthresh(), 2000);
}

/// The first acknowledgement was lost, and the acknowledgement of the retransmission echoes the timestamp of the first
/// copy (RFC 7323 §4.3): the measured time includes the timeout, so it is not a round trip.
#[test]
fn a_segment_received_twice_is_not_measured_by_timestamps() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).wait_for_timeout();
    trace.retransmit();
    trace.at(700).handle_ack(&Ack {
        rtt: Some(Duration::from_millis(590)),
        dsack: Some((seq_at(0), seq_at(1))),
        ..ack(seq_at(1))
    });
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(
        trace.recovery.counters().undone,
        1,
        "the timestamp should still prove that the timeout was spurious (RFC 3522)"
    );
    assert_eq!(trace.recovery.rto(), Duration::from_millis(300));
}

#[test]
fn after_a_timeout_the_window_grows_by_a_segment_for_each_acknowledgement() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(410).handle_timer();
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(510).ack(1);
    assert_eq!(trace.recovery.cwnd(), 2000);
    assert_eq!(trace.retransmit(), [(1, 2), (2, 3)]);
    trace.at(610).ack(3);
    assert_eq!(
        trace.recovery.cwnd(),
        3000,
        "the window should grow by one segment, not by the two acknowledged (RFC 3465 §2.3)"
    );
    assert_eq!(trace.retransmit(), [(3, 4), (4, 5), (5, 6)]);
}

#[test]
fn the_recovery_after_a_timeout_ends_when_all_bytes_sent_before_it_are_acknowledged() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(4).at(410).handle_timer();
    trace.retransmit();
    assert!(!trace.at(510).ack(3).is_recovered, "the recovery should go on");
    trace.retransmit();
    assert!(trace.at(610).ack(4).is_recovered, "the recovery should end");
    assert_eq!(trace.recovery.phase(), Phase::Open);
}

#[test]
fn a_timeout_discards_the_sack_information() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(4);
    trace.at(210).sack(0, &[(2, 3)]);
    assert_eq!(trace.recovery.pipe(), 3000);
    trace.wait_for_timeout();
    assert_eq!(
        (trace.recovery.pipe(), trace.recovery.in_flight()),
        (0, 4000),
        "all SACK marks should be removed, and all segments count as lost (RFC 2018 §5)"
    );
}

#[test]
fn sacked_segments_that_the_peer_discarded_are_retransmitted() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    trace.at(210).sack(0, &[(1, 3)]);
    // RFC 2018 §8: the peer has discarded the segments that it had SACKed.
    assert_eq!(trace.wait_for_timeout().retransmit(), [(0, 1)]);
    trace.ack(1);
    assert_eq!(trace.retransmit(), [(1, 2), (2, 3)]);
}

#[test]
fn duplicates_after_a_timeout_start_no_fast_recovery() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(6).at(410).handle_timer();
    trace.retransmit();
    trace.at(420).duplicates(5);
    assert_eq!(trace.recovery.phase(), Phase::Loss);
    assert_eq!(
        trace.recovery.counters().fast_recoveries,
        0,
        "no fast recovery should start (RFC 6582 §3.2, step 4)"
    );
}

#[test]
fn a_lost_syn_reduces_the_initial_window_but_not_the_threshold() {
    let mut recovery = Sender::new(ms(0), &newreno(), MSS, true, FIRST);
    recovery.on_sent(ms(0), BASE);
    assert_eq!(
        recovery.poll_timeout(),
        Some(ms(1000)),
        "the first timeout of a SYN should be one second (RFC 6298 §2.1)"
    );
    recovery.handle_timeout(ms(1000));
    assert_eq!(recovery.next_retransmission(MSS), Some((FIRST, BASE)));
    recovery.on_retransmitted(ms(1000), FIRST, BASE);
    recovery.on_ack(ms(1010), &ack(BASE));
    assert_eq!(
        recovery.cwnd(),
        1000,
        "the initial window should be one segment after a lost SYN (RFC 5681 §3.1)"
    );
    assert_eq!(recovery.ssthresh(), u64::MAX, "slow start should continue");
    assert_eq!(
        recovery.rto(),
        Duration::from_secs(3),
        "the timeout should be 3 s after a lost SYN (RFC 6298 §5.7)"
    );
    assert_eq!(recovery.phase(), Phase::Open);
}

#[test]
fn the_acknowledgement_of_the_syn_is_measured_and_does_not_grow_the_window() {
    let trace = Trace::without_probes();
    assert_eq!(trace.recovery.cwnd(), 10_000);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(trace.recovery.rttvar(), Duration::from_millis(50));
    assert_eq!(trace.recovery.rto(), Duration::from_millis(300));
}

#[test]
fn the_time_and_number_of_timeouts_since_progress_are_reported() {
    let mut trace = Trace::without_probes();
    assert_eq!(trace.recovery.last_progress_at(), None);
    trace.at(150).send(2);
    assert_eq!(trace.recovery.last_progress_at(), Some(ms(150)));
    trace.at(200).send(1).at(250).ack(1);
    assert_eq!(trace.recovery.last_progress_at(), Some(ms(250)));
    trace.at(550).handle_timer();
    assert_eq!(
        (trace.recovery.last_progress_at(), trace.recovery.timeouts()),
        (Some(ms(250)), 1),
        "the last progress should be at 250 ms"
    );
    trace.at(560).ack(3);
    assert_eq!(
        (trace.recovery.last_progress_at(), trace.recovery.timeouts()),
        (None, 0),
        "nothing should be in flight"
    );
}

#[test]
fn beyond_a_closed_window_only_the_first_segment_is_retransmitted() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(4);
    trace.at(210).handle_ack(&Ack { peer_window: 0, ..ack(seq_at(1)) });
    trace.at(510).handle_timer();
    assert_eq!(
        trace.retransmit(),
        [(1, 2)],
        "one retransmission should probe the window (RFC 9293 §3.8.6.1)"
    );
    trace.at(520).handle_ack(&Ack { peer_window: 1000, ..ack(seq_at(2)) });
    assert_eq!(trace.retransmit(), [(2, 3)]);
    trace.at(530).handle_ack(&Ack { peer_window: 500, ..ack(seq_at(2)) });
    assert_eq!(trace.retransmit(), []);
}

#[test]
fn retransmitting_the_first_segment_restarts_the_timeout() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(6);
    trace.at(300).sack(0, &[(1, 4)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(
        trace.recovery.timers.get(Timer::Retransmission),
        Some(ms(600)),
        "the timeout should be 300 ms after the fast retransmit"
    );
}

#[test]
fn a_fin_is_retransmitted_like_a_byte() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1);
    trace.recovery.on_sent(ms(110), seq_at(1) + 1);
    assert_eq!(trace.recovery.in_flight(), 1001);
    trace.at(410).handle_timer();
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(420).ack(1);
    assert_eq!(trace.recovery.next_retransmission(MSS), Some((seq_at(1), seq_at(1) + 1)));
}

//! The retransmission timeout: RFC 6298, RFC 5681 §3.1, RFC 2018 §8.

use super::*;

#[test]
fn the_timer_runs_from_the_first_segment_not_the_last() {
    let mut trace = Trace::new();
    assert_eq!(trace.timeout_ms(), None);
    trace.at(110).send(1).at(150).send(1);
    assert_eq!(trace.timeout_ms(), Some(410), "§5.1");
}

#[test]
fn the_timer_stops_when_all_is_acknowledged() {
    let mut trace = Trace::new();
    trace.at(110).send(2).at(210).ack(2);
    assert_eq!(trace.timeout_ms(), None, "§5.2");
}

#[test]
fn the_timer_begins_anew_with_each_acknowledgement_of_something_new() {
    let mut trace = Trace::new();
    trace.at(110).send(3).at(210).ack(1);
    assert_eq!(trace.timeout_ms(), Some(510), "§5.3");
    trace.at(250).duplicates(1);
    assert_eq!(trace.timeout_ms(), Some(510), "a duplicate is nothing new");
}

#[test]
fn nothing_happens_before_its_time() {
    let mut trace = Trace::new();
    trace.at(110).send(1);
    assert_eq!(trace.at(409).timeout(), TimeoutOutcome::Nothing);
    assert_eq!(trace.resend(), []);
    assert_eq!(trace.at(410).timeout(), TimeoutOutcome::Retransmit);
    assert_eq!(trace.resend(), [(0, 1)]);
}

#[test]
fn after_a_timeout_the_first_goes_alone() {
    let mut trace = Trace::new();
    trace.at(110).send(8).at(410).timeout();
    assert_eq!(trace.recovery.phase(), Phase::Loss);
    assert_eq!(trace.recovery.cwnd(), 1000, "RFC 5681 §3.1: the loss window");
    assert_eq!(trace.recovery.ssthresh(), 4000, "half of what was in flight");
    assert_eq!(trace.resend(), [(0, 1)]);
    assert_eq!(trace.recovery.send_room(), 0, "what is lost goes before new data");
}

#[test]
fn each_timeout_is_twice_as_long_up_to_the_longest() {
    let mut trace = Trace::with(&Settings { rto_max: Duration::from_secs(2), ..newreno() }, false);
    trace.at(1000).send(1);
    for (fires, backed_off) in [(1300, 600), (1900, 1200), (3100, 2000), (5100, 2000), (7100, 2000)] {
        assert_eq!(trace.timeout_ms(), Some(fires));
        assert_eq!(trace.at(fires).timeout(), TimeoutOutcome::Retransmit);
        assert_eq!(trace.recovery.rto(), Duration::from_millis(backed_off), "§5.5");
        assert_eq!(trace.resend(), [(0, 1)]);
    }
    assert_eq!((trace.recovery.timeouts(), trace.recovery.backoffs()), (5, 5));
}

#[test]
fn what_was_sent_twice_measures_nothing() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(1).at(410).timeout();
    trace.resend();
    trace.at(420).ack(1);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)), "Karn: 10 ms or 310 ms?");
    assert_eq!(trace.recovery.rto(), Duration::from_millis(600), "the timeout stays backed off");
    assert_eq!(trace.recovery.timeouts(), 0, "but there was progress");
    trace.at(430).send(1).at(530).ack(2);
    assert_eq!(trace.recovery.rto(), Duration::from_millis(300), "until a round trip is measured");
}

#[test]
fn what_comes_with_something_sent_twice_measures_nothing() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3).at(410).timeout();
    trace.resend();
    trace.at(415).ack(3);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)), "it waited for the one before it");
}

#[test]
fn timestamps_measure_what_was_sent_twice_as_well() {
    let mut trace = Trace::new();
    trace.at(110).send(1).at(410).timeout();
    trace.resend();
    trace.at(510).take(&Ack { rtt: Some(Duration::from_millis(100)), ..ack(at(1)) });
    assert_eq!((trace.recovery.backoffs(), trace.recovery.counters().undone), (0, 0));
    assert!(trace.recovery.rto() < Duration::from_millis(301));
}

#[test]
fn send_times_are_more_exact_than_timestamps() {
    let mut trace = Trace::new();
    trace.at(1000).send(1).now = Time(1_000_400_000);
    trace.take(&Ack { rtt: Some(Duration::from_millis(1)), ..ack(at(1)) });
    assert_eq!(trace.recovery.rtt.smallest(), Some(Duration::from_micros(400)));
}

#[test]
fn a_timestamp_of_the_same_millisecond_is_one_all_the_same() {
    let mut trace = Trace::new();
    trace.at(110).send(1).at(410).timeout();
    trace.resend();
    trace.take(&Ack { rtt: Some(Duration::ZERO), ..ack(at(1)) });
    assert_eq!(trace.recovery.backoffs(), 0, "something was measured");
}

#[test]
fn the_first_of_several_segments_is_the_one_measured() {
    let mut trace = Trace::new();
    trace.at(1000).send(1).at(1060).send(1).at(1100).ack(2);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)), "a delayed acknowledgement counts");
}

#[test]
fn an_acknowledgement_of_part_of_a_segment_measures_nothing() {
    let mut trace = Trace::new();
    trace.at(110).send(1).at(111).take(&ack(BASE + 300));
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(trace.recovery.in_flight(), 700);
}

#[test]
fn a_clock_that_stood_still_measured_nothing() {
    let mut trace = Trace::new();
    trace.at(110).send(1).ack(1);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
}

#[test]
fn the_same_segment_lost_again_lowers_the_threshold_no_further() {
    let mut trace = Trace::new();
    trace.at(110).send(10).at(410).timeout();
    trace.resend();
    trace.at(1010).timeout();
    assert_eq!(trace.recovery.ssthresh(), 5000, "RFC 5681 §3.1, after equation 4");
}

#[test]
fn another_segment_that_times_out_lowers_it_again() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(410).timeout();
    trace.resend();
    trace.at(420).ack(1);
    trace.resend();
    trace.time_out();
    assert_eq!(trace.recovery.ssthresh(), 2000);
}

/// The first acknowledgement was lost, and the one of the retransmission echoes the timestamp of the first copy (RFC 7323
/// §4.3): it measures a timeout, not a round trip.
#[test]
fn what_came_twice_is_not_measured_by_timestamps() {
    let mut trace = Trace::new();
    trace.at(110).send(1).time_out();
    trace.resend();
    trace.at(700).take(&Ack {
        rtt: Some(Duration::from_millis(590)),
        dsack: Some((at(0), at(1))),
        ..ack(at(1))
    });
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(
        trace.recovery.counters().undone,
        1,
        "though it tells that the timeout was for nothing (RFC 3522)"
    );
    assert_eq!(trace.recovery.rto(), Duration::from_millis(300));
}

#[test]
fn after_a_timeout_the_window_grows_by_a_segment_for_each_acknowledgement() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(410).timeout();
    assert_eq!(trace.resend(), [(0, 1)]);
    trace.at(510).ack(1);
    assert_eq!(trace.recovery.cwnd(), 2000);
    assert_eq!(trace.resend(), [(1, 2), (2, 3)]);
    trace.at(610).ack(3);
    assert_eq!(trace.recovery.cwnd(), 3000, "one, however much is acknowledged (RFC 3465 §2.3)");
    assert_eq!(trace.resend(), [(3, 4), (4, 5), (5, 6)]);
}

#[test]
fn the_recovery_after_a_timeout_ends_where_it_began() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(4).at(410).timeout();
    trace.resend();
    assert!(!trace.at(510).ack(3).is_recovered);
    trace.resend();
    assert!(trace.at(610).ack(4).is_recovered);
    assert_eq!(trace.recovery.phase(), Phase::Open);
}

#[test]
fn a_timeout_forgets_what_was_sacked() {
    let mut trace = Trace::new();
    trace.at(110).send(4);
    trace.at(210).sack(0, &[(2, 3)]);
    assert_eq!(trace.recovery.pipe(), 3000);
    trace.time_out();
    assert_eq!(
        (trace.recovery.pipe(), trace.recovery.in_flight()),
        (0, 4000),
        "RFC 2018 §8: all of it is lost"
    );
}

#[test]
fn a_peer_that_takes_back_what_it_sacked_gets_it_again() {
    let mut trace = Trace::new();
    trace.at(110).send(3);
    trace.at(210).sack(0, &[(1, 3)]);
    // The first segment is retransmitted; the peer has discarded the others.
    assert_eq!(trace.time_out().resend(), [(0, 1)]);
    trace.ack(1);
    assert_eq!(trace.resend(), [(1, 2), (2, 3)]);
}

#[test]
fn duplicates_after_a_timeout_begin_no_fast_recovery() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(6).at(410).timeout();
    trace.resend();
    trace.at(420).duplicates(5);
    assert_eq!(trace.recovery.phase(), Phase::Loss);
    assert_eq!(trace.recovery.counters().fast_recoveries, 0, "RFC 6582 §3.2, step 4");
}

#[test]
fn a_lost_syn_costs_the_initial_window_and_nothing_else() {
    let mut recovery = Sender::new(ms(0), &newreno(), MSS, true, FIRST);
    recovery.on_sent(ms(0), BASE);
    assert_eq!(recovery.poll_timeout(), Some(ms(1000)), "RFC 6298 §2.1");
    recovery.handle_timeout(ms(1000));
    assert_eq!(recovery.next_retransmission(MSS), Some((FIRST, BASE)));
    recovery.on_retransmitted(ms(1000), FIRST, BASE);
    recovery.on_ack(ms(1010), &ack(BASE));
    assert_eq!(recovery.cwnd(), 1000, "RFC 5681 §3.1");
    assert_eq!(recovery.ssthresh(), u64::MAX, "slow start goes on");
    assert_eq!(recovery.rto(), Duration::from_secs(3), "RFC 6298 §5.7");
    assert_eq!(recovery.phase(), Phase::Open);
}

#[test]
fn the_acknowledgement_of_the_syn_is_a_round_trip_and_no_growth() {
    let trace = Trace::new();
    assert_eq!(trace.recovery.cwnd(), 10_000);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
    assert_eq!(trace.recovery.rttvar(), Duration::from_millis(50));
    assert_eq!(trace.recovery.rto(), Duration::from_millis(300));
}

#[test]
fn what_the_caller_needs_to_give_up() {
    let mut trace = Trace::new();
    assert_eq!(trace.recovery.first_unacked_since(), None);
    trace.at(150).send(2);
    assert_eq!(trace.recovery.first_unacked_since(), Some(ms(150)));
    trace.at(200).send(1).at(250).ack(1);
    assert_eq!(trace.recovery.first_unacked_since(), Some(ms(250)));
    trace.at(550).timeout();
    assert_eq!((trace.recovery.first_unacked_since(), trace.recovery.timeouts()), (Some(ms(250)), 1));
    trace.at(560).ack(3);
    assert_eq!((trace.recovery.first_unacked_since(), trace.recovery.timeouts()), (None, 0));
}

#[test]
fn beyond_a_window_that_was_shut_only_the_first_is_sent_again() {
    let mut trace = Trace::new();
    trace.at(110).send(4);
    trace.at(210).take(&Ack { peer_window: 0, ..ack(at(1)) });
    trace.at(510).timeout();
    assert_eq!(trace.resend(), [(1, 2)], "it asks for the window (RFC 9293 §3.8.6.1)");
    trace.at(520).take(&Ack { peer_window: 1000, ..ack(at(2)) });
    assert_eq!(trace.resend(), [(2, 3)]);
    trace.at(530).take(&Ack { peer_window: 500, ..ack(at(2)) });
    assert_eq!(trace.resend(), []);
}

#[test]
fn sending_the_first_again_gives_it_its_time() {
    let mut trace = Trace::new();
    trace.at(110).send(6);
    trace.at(300).sack(0, &[(1, 4)]);
    assert_eq!(trace.resend(), [(0, 1)]);
    assert_eq!(
        trace.recovery.timers.get(Timer::Retransmission),
        Some(ms(600)),
        "300 ms after the fast retransmit"
    );
}

#[test]
fn a_fin_is_a_number_like_others() {
    let mut trace = Trace::new();
    trace.at(110).send(1);
    trace.recovery.on_sent(ms(110), at(1) + 1);
    assert_eq!(trace.recovery.in_flight(), 1001);
    trace.at(410).timeout();
    assert_eq!(trace.resend(), [(0, 1)]);
    trace.at(420).ack(1);
    assert_eq!(trace.recovery.next_retransmission(MSS), Some((at(1), at(1) + 1)));
}

//! Recovery with SACK: RFC 6675, RFC 2018, the time-based detection of RFC 8985 §6, RFC 9937.

use super::*;

#[test]
fn three_segments_sacked_above_a_hole_start_a_recovery() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10);
    trace.at(210).sack(0, &[(1, 2)]);
    trace.sack(0, &[(1, 3)]);
    assert_eq!(trace.recovery.phase(), Phase::Open);
    trace.sack(0, &[(1, 4)]);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    assert_eq!(trace.retransmit(), [(0, 1)]);
}

#[test]
fn one_acknowledgement_may_mark_several_segments_lost() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10);
    trace.at(210).sack(0, &[(5, 8)]);
    trace.retransmit();
    assert_eq!(
        trace.recovery.scoreboard.lost(),
        5000,
        "all five should be lost: more than two segments are SACKed above each (RFC 6675 §4, IsLost)"
    );
}

#[test]
fn segments_shorter_than_the_mss_count_toward_the_threshold() {
    let mut trace = Trace::without_probes();
    for message in 1..=10 {
        trace.recovery.on_sent(ms(110), BASE + 64 * message);
    }
    let sack = [(BASE + 64, BASE + 4 * 64)];
    trace.at(210).handle_ack(&Ack { sack: &sack, is_duplicate: true, ..ack(BASE) });
    assert_eq!(trace.recovery.next_retransmission(MSS), Some((BASE, BASE + 64)));
}

#[test]
fn limited_transmit_sends_new_segments_before_a_loss_is_detected() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 2)]);
    assert_eq!(trace.fill(), 1, "limited transmit should send one segment (RFC 3042)");
    trace.sack(0, &[(1, 3)]);
    assert_eq!(trace.fill(), 1);
}

#[test]
fn every_hole_is_retransmitted_once_in_order() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(20);
    let mut sent = Vec::new();
    // All segments but 0, 4, 8 and 12 arrive, in order: `last` is the end of those that have arrived.
    for last in [4, 8, 12, 16, 17, 18, 19, 20] {
        let blocks = [(13, last), (9, last.min(12)), (5, last.min(8)), (1, last.min(4))];
        let blocks: Vec<_> = blocks.into_iter().filter(|block| block.0 < block.1).take(4).collect();
        trace.at(210 + last).sack(0, &blocks);
        sent.extend(trace.retransmit());
    }
    assert_eq!(sent, [(0, 1), (4, 5), (8, 9), (12, 13)]);
    assert_eq!(trace.recovery.counters().fast_recoveries, 1);
}

#[test]
fn proportional_rate_reduction_sends_one_segment_for_two_delivered() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    let mut sent = 0;
    for last in 2..=10 {
        trace.at(210 + last).sack(0, &[(1, last)]);
        sent += trace.retransmit().len() as u64 + trace.fill();
    }
    // Two by limited transmit, the fast retransmit, then one for every two segments that arrive (RFC 9937).
    assert_eq!((sent, trace.recovery.phase()), (5, Phase::Recovery));
    assert!(
        trace.recovery.pipe() <= trace.recovery.ssthresh() + 1000,
        "the pipe should be at most a segment above the threshold"
    );
    assert_eq!(trace.at(310).ack(10).bytes, 10_000);
}

#[test]
fn after_a_large_loss_no_more_is_sent_than_was_delivered() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(20);
    trace.at(210).sack(0, &[(17, 20)]);
    assert_eq!(trace.recovery.pipe(), 0);
    assert_eq!(
        trace.retransmit().len(),
        3,
        "as much should be sent as was delivered (RFC 9937, the conservative bound)"
    );
    trace.at(310).ack(1);
    assert_eq!(
        trace.retransmit().len(),
        2,
        "one segment more than was delivered should be sent, because no further loss was found"
    );
}

#[test]
fn a_recovery_ends_with_the_window_at_the_threshold() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    trace.at(300).ack(6);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    assert!(trace.at(310).ack(10).is_recovered, "the recovery should end");
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.ssthresh()),
        (5000, 5000),
        "the window should be at the threshold, half of ten segments"
    );
}

#[test]
fn losses_reduce_the_window_once_for_each_window_of_data() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    trace.sack(0, &[(5, 9), (1, 4)]);
    trace.retransmit();
    trace.at(310).ack(10);
    assert_eq!(trace.recovery.counters().fast_recoveries, 1);
    trace.fill();
    trace.at(410).sack(10, &[(11, 14)]);
    assert_eq!(trace.recovery.counters().fast_recoveries, 2);
}

#[test]
fn a_loss_of_data_sent_in_a_recovery_starts_another() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 9)]);
    trace.retransmit();
    assert_eq!(trace.fill(), 3);
    trace.at(215).sack(0, &[(1, 10)]);
    assert_eq!(trace.fill(), 1);
    trace.at(310).sack(10, &[(11, 14)]);
    assert_eq!(
        (trace.recovery.phase(), trace.recovery.counters().fast_recoveries),
        (Phase::Recovery, 2),
        "a second recovery should have begun"
    );
    assert_eq!(trace.retransmit(), [(10, 11)]);
}

#[test]
fn without_new_data_unsacked_segments_are_retransmitted_early() {
    let mut trace = Trace::without_probes();
    trace.recovery.reordering.set_seen(); // otherwise the reordering window is zero
    trace.at(110).send(7);
    trace.at(210).sack(0, &[(5, 6), (1, 4)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(
        trace.recovery.spare_retransmission(MSS),
        None,
        "nothing should be offered while the window is full"
    );
    trace.at(211).sack(0, &[(5, 7), (1, 4)]);
    assert_eq!(trace.retransmit(), [], "two SACKed segments above a hole should not suffice");
    assert_eq!(
        trace.recovery.spare_retransmission(MSS),
        Some((seq_at(4), seq_at(5))),
        "the first segment without SACK should be sent (RFC 6675 §4, NextSeg rule 3)"
    );
    trace.recovery.on_retransmitted(ms(211), seq_at(4), seq_at(5));
    assert_eq!(trace.recovery.spare_retransmission(MSS), None, "each segment should be offered only once");
    assert!(trace.at(311).ack(7).is_recovered, "the recovery should end");
}

#[test]
fn each_recovery_retransmits_the_last_segment_once() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(8);
    trace.at(210).sack(0, &[(1, 7)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(
        trace.recovery.spare_retransmission(MSS),
        Some((seq_at(7), seq_at(8))),
        "the last segment should be retransmitted (RFC 6675 §4, NextSeg rule 4)"
    );
    trace.recovery.on_retransmitted(ms(210), seq_at(7), seq_at(8));
    assert_eq!(trace.recovery.spare_retransmission(MSS), None);
}

#[test]
fn outside_a_recovery_there_is_no_spare_retransmission() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    assert_eq!(trace.recovery.spare_retransmission(MSS), None);
}

#[test]
fn a_lost_retransmission_is_detected_when_later_segments_are_sacked() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    for (at_ms, last) in [(212, 6), (214, 8), (240, 10)] {
        trace.at(at_ms).sack(0, &[(1, last)]);
        trace.fill();
    }
    assert!(trace.recovery.nxt() > seq_at(11), "later segments should have been sent");
    // The segments sent at 240 ms have arrived, the retransmission of 210 ms has not.
    let end = (trace.recovery.nxt() - BASE) / 1000;
    trace.at(340).sack(0, &[(1, end)]);
    assert_eq!(trace.retransmit(), [(0, 1)], "the hole should be retransmitted again without a timeout");
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn with_two_segments_in_flight_the_reordering_timer_detects_the_loss() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(2);
    trace.at(210).sack(0, &[(1, 2)]);
    assert_eq!(
        (trace.retransmit(), trace.next_timer_ms()),
        (Vec::new(), Some(235)),
        "the reordering window should be a quarter of a round trip"
    );
    assert_eq!(trace.at(235).handle_timer(), TimeoutOutcome::Overdue);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert!(trace.at(335).ack(2).is_recovered, "the recovery should end");
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

/// RFC 8985 §6.2: once three segments in total are SACKed, on a path without reordering, all sent before them are lost.
#[test]
fn without_reordering_three_sacked_segments_mark_every_hole_lost() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(5, &[(6, 8), (9, 10)]);
    assert_eq!(
        trace.recovery.scoreboard.lost(),
        2000,
        "a hole below three SACKed segments should be lost, and one below a single one"
    );
    assert_eq!(trace.retransmit(), [(5, 6), (8, 9)]);
    assert!(trace.next_timer_ms() > Some(400), "only the retransmission timer should run");
}

/// RFC 8985 §6.2: in recovery the reordering window is zero, for retransmissions, too.
#[test]
fn in_a_recovery_segments_sent_before_a_sacked_one_are_lost() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 5)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(211).sack(0, &[(6, 7), (1, 5)]);
    assert_eq!(
        trace.recovery.scoreboard.lost(),
        2000,
        "segment 5 should be lost as well, though only one segment above it has arrived"
    );
}

/// If the path reorders, a segment counts as lost only after the reordering window, in a recovery as well. When the
/// timer then detects a loss, the bytes delivered limit what is sent, not the bytes lost (RFC 9937).
#[test]
fn segments_that_the_timer_marks_lost_are_not_retransmitted_in_a_burst() {
    let mut trace = Trace::without_probes();
    trace.recovery.reordering.set_seen();
    trace.at(110).send(20);
    trace.at(210).sack(0, &[(1, 4)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(211).sack(0, &[(18, 19), (1, 4)]);
    assert_eq!(trace.retransmit().len(), 0, "no other segment should be overdue yet");
    assert_eq!(trace.next_timer_ms(), Some(236), "the reordering window should be a quarter of a round trip");
    assert_eq!(trace.at(236).handle_timer(), TimeoutOutcome::Overdue);
    assert_eq!(trace.recovery.scoreboard.lost(), 15_000);
    assert_eq!(
        trace.retransmit().len(),
        3,
        "three should be sent: four segments were delivered, and one was retransmitted"
    );
}

/// RFC 8985 §6.2: each round with a needless retransmission adds a quarter of a round trip.
#[test]
fn needless_retransmissions_extend_the_reordering_window() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10).at(210).ack(5);
    assert_eq!(trace.recovery.reordering.quarters(), 1);
    trace.at(211).dsack(5, (4, 5));
    assert_eq!(trace.recovery.reordering.quarters(), 2);
    trace.at(212).dsack(5, (3, 4));
    assert_eq!(
        trace.recovery.reordering.quarters(),
        2,
        "the window should grow at most once in each round trip"
    );
}

#[test]
fn a_segment_that_is_a_little_late_is_not_lost() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    trace.at(210).sack(0, &[(1, 2)]);
    trace.at(220).ack(2);
    assert!(
        trace.next_timer_ms() > Some(500),
        "the reordering timer should have stopped: only the retransmission timer runs"
    );
    trace.at(230).ack(3);
    assert_eq!(trace.recovery.counters(), Counters::default());
    assert_eq!(trace.next_timer_ms(), None);
}

#[test]
fn a_segment_sent_long_before_a_sacked_one_is_lost_at_once() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(160).send(1);
    trace.at(260).sack(0, &[(1, 2)]);
    assert_eq!(trace.retransmit(), [(0, 1)], "50 ms should suffice: more than a quarter of a round trip");
}

#[test]
fn reordering_raises_the_duplicate_threshold() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(30);
    trace.at(210).sack(0, &[(1, 3)]);
    trace.ack(3);
    trace.sack(3, &[(4, 6)]);
    trace.at(211).ack(6);
    assert_eq!(
        trace.recovery.threshold, 3,
        "two segments before an earlier one should not raise the threshold above 3"
    );
    for last in 8..=12 {
        trace.sack(6, &[(7, last)]);
    }
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    trace.retransmit();
    // The segment was not lost: the peer has received it twice.
    trace.at(212).ack(12);
    let undone = trace.at(213).dsack(12, (6, 7)).is_undone;
    assert!(undone, "the recovery should be undone");
    assert!(trace.recovery.threshold >= 6, "the threshold should cover the reordering");
    for last in 14..=17 {
        trace.at(214).sack(12, &[(13, last)]);
        assert_eq!(
            trace.recovery.phase(),
            Phase::Open,
            "four SACKed segments should not reach the threshold"
        );
    }
}

#[test]
fn a_timeout_resets_the_duplicate_threshold() {
    let mut trace = Trace::without_probes();
    trace.recovery.threshold = 50;
    trace.at(110).send(3).at(410).handle_timer();
    assert_eq!(trace.recovery.threshold, THRESHOLD_MIN);
}

#[test]
fn sack_blocks_of_bytes_never_sent_are_ignored() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10);
    let nonsense = [(seq_at(3), seq_at(11)), (seq_at(8), seq_at(8)), (seq_at(9), seq_at(5)), (0, u64::MAX)];
    trace.at(210).handle_ack(&Ack { sack: &nonsense, is_duplicate: true, ..ack(BASE) });
    assert_eq!(
        (trace.recovery.pipe(), trace.recovery.phase()),
        (10_000, Phase::Open),
        "nothing should count as sacked"
    );
}

#[test]
fn a_sack_block_that_starts_at_or_below_the_acknowledgement_is_ignored() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10);
    trace.at(210).sack(2, &[(2, 5)]);
    trace.sack(2, &[(1, 6)]);
    assert_eq!(trace.recovery.pipe(), 8000);
}

#[test]
fn acknowledgements_of_bytes_never_sent_are_ignored() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(2);
    for una in [seq_at(3), u64::MAX, 0, FIRST] {
        assert_eq!(trace.handle_ack(&ack(una)), Acked::default());
    }
    assert_eq!(
        (trace.recovery.una(), trace.recovery.in_flight()),
        (BASE, 2000),
        "nothing should count as acknowledged"
    );
}

#[test]
fn a_sack_block_may_cover_parts_of_segments() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(4);
    let sack = [(seq_at(1) + 500, seq_at(2) + 250)];
    trace.at(210).handle_ack(&Ack { sack: &sack, is_duplicate: true, ..ack(BASE) });
    assert_eq!(trace.recovery.pipe(), 3250);
    assert_eq!(trace.recovery.scoreboard.segments.len(), 6);
}

#[test]
fn repeated_sack_blocks_deliver_no_bytes() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(10);
    assert_eq!(trace.at(210).sack(0, &[(5, 6)]).delivered, 1000);
    assert_eq!(trace.sack(0, &[(5, 6)]).delivered, 0);
    assert_eq!(trace.sack(0, &[(4, 7)]).delivered, 2000);
    assert_eq!(trace.sack(0, &[(4, 7), (8, 9)]).delivered, 1000);
}

#[test]
fn a_segment_longer_than_the_mss_is_retransmitted_in_parts() {
    let mut trace = Trace::without_probes();
    trace.recovery.on_sent(ms(110), seq_at(3));
    trace.at(110).send(5);
    trace.at(210).sack(0, &[(3, 8)]);
    assert_eq!(trace.retransmit(), [(0, 1), (1, 2), (2, 3)]);
    trace.at(310).ack(8);
    assert_eq!(trace.recovery.in_flight(), 0);
}

#[test]
fn segments_too_long_for_the_path_mtu_do_not_reduce_the_window() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(4);
    trace.recovery.set_mss(500);
    assert_eq!(
        trace.recovery.pipe(),
        0,
        "all segments should be lost, because they exceed the new MTU (RFC 1191)"
    );
    assert_eq!(trace.recovery.next_retransmission(500), Some((BASE, BASE + 500)));
    let mut parts = 0;
    while let Some((from, to)) = trace.recovery.next_retransmission(500) {
        trace.recovery.on_retransmitted(ms(120), from, to);
        parts += 1;
    }
    assert_eq!((parts, trace.recovery.cwnd(), trace.recovery.phase()), (8, 10_000, Phase::Open));
    trace.at(220).ack(4);
    assert_eq!(trace.recovery.counters().fast_recoveries, 0);
}

#[test]
fn segments_are_bounded_and_further_messages_extend_the_last_one() {
    let mut trace = Trace::without_probes();
    for message in 1..=10_000 {
        trace.recovery.on_sent(ms(110), BASE + message);
    }
    assert!(
        trace.recovery.scoreboard.segments.len() < scoreboard::SEGMENTS_MAX,
        "segments should be within their bound"
    );
    assert_eq!(trace.recovery.in_flight(), 10_000);
    // The long last segment is retransmitted to its end, at most an MSS at a time.
    trace.at(410).handle_timer();
    let mut acknowledged = 0;
    while acknowledged < 10_000 {
        let (from, to) = trace.recovery.next_retransmission(MSS).expect("lost bytes to retransmit");
        assert_eq!(from, BASE + acknowledged);
        trace.recovery.on_retransmitted(ms(410), from, to);
        acknowledged = to - BASE;
        trace.handle_ack(&ack(to));
    }
    assert_eq!(trace.recovery.in_flight(), 0);
}

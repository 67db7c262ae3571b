//! Window reductions that are undone because the retransmission was needless: RFC 2883 and 3708, RFC 3522
//! (Eifel), RFC 5682 (F-RTO).

use super::*;

#[test]
fn a_dsack_of_the_retransmission_undoes_the_reduction() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(215).ack(10);
    assert_eq!(trace.recovery.cwnd(), 5000);
    assert!(trace.at(310).dsack(10, (0, 1)).is_undone, "the DSACK should undo the reduction");
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.ssthresh()),
        (10_000, u64::MAX),
        "the window should be as before"
    );
    assert_eq!(
        (trace.recovery.counters().undone, trace.recovery.counters().duplicates),
        (1, 1),
        "one undone reduction should be counted"
    );
}

#[test]
fn dsacks_undo_only_when_they_cover_all_retransmissions() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(2, 6)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(212).sack(0, &[(2, 8)]);
    assert_eq!(trace.retransmit(), [(1, 2)]);
    trace.at(310).ack(10);
    assert!(!trace.dsack(10, (0, 1)).is_undone, "a DSACK of one of two should not undo");
    assert_eq!(trace.recovery.cwnd(), 5000);
    assert!(
        trace.dsack(10, (1, 2)).is_undone,
        "the reduction should be undone: both retransmissions were duplicates"
    );
}

/// A receiver that takes both retransmissions in one turn may report them as one range.
#[test]
fn one_dsack_may_cover_two_adjacent_retransmissions() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(2, 6)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(212).sack(0, &[(2, 8)]);
    assert_eq!(trace.retransmit(), [(1, 2)]);
    trace.at(310).ack(10);
    assert!(trace.dsack(10, (0, 2)).is_undone, "a DSACK of both should undo");
}

#[test]
fn a_dsack_of_data_sent_after_the_recovery_undoes_nothing() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    trace.at(310).ack(10);
    trace.send(2);
    assert!(
        !trace.at(410).dsack(11, (10, 11)).is_undone,
        "nothing should be undone: the duplicated segment was sent after the recovery"
    );
}

#[test]
fn duplicates_without_a_recovery_are_only_counted() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    trace.at(210).ack(3);
    assert!(!trace.dsack(3, (1, 2)).is_undone, "nothing should be undone without a recovery");
    assert_eq!(trace.recovery.counters().duplicates, 1);
}

#[test]
fn a_timestamp_older_than_the_retransmission_proves_it_needless() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    // The acknowledgement is of the first transmission, 110 ms ago; the second was 10 ms ago.
    let ack = Ack { rtt: Some(Duration::from_millis(110)), ..ack(seq_at(4)) };
    assert!(trace.at(220).handle_ack(&ack).is_undone, "the older timestamp should undo");
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.phase()),
        (10_000, Phase::Open),
        "the window should be as before"
    );
    assert_eq!(trace.retransmit(), []);
}

#[test]
fn the_timestamp_of_the_retransmission_undoes_nothing() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    let ack = Ack { rtt: Some(Duration::from_millis(101)), ..ack(seq_at(10)) };
    let acked = trace.at(310).handle_ack(&ack);
    assert!(
        acked.is_recovered && !acked.is_undone,
        "nothing should be undone: 1 ms more than the retransmission's age is within the clocks' precision"
    );
}

#[test]
fn the_next_recovery_is_undone_only_by_a_first_transmission() {
    // Round trips of the retransmission, which is 200 ms old, and of the first transmission before it.
    for (rtt_ms, is_undone) in [(200, false), (205, true)] {
        let mut trace = Trace::without_probes();
        trace.at(110).fill();
        trace.at(210).sack(0, &[(1, 4)]);
        assert_eq!(trace.retransmit(), [(0, 1)]);
        // Five segments beyond the end of the first recovery: the first of them is lost as well, and retransmitted in
        // that recovery.
        trace.send(5);
        trace.at(212).sack(0, &[(1, 10), (11, 15)]);
        assert!(trace.retransmit().contains(&(10, 11)), "the segment should be retransmitted");
        let first = trace.recovery.counters();
        // The first recovery ends with its last segment, and the hole beyond it begins the second.
        trace.at(312).sack(10, &[(11, 15)]);
        assert_eq!(trace.recovery.counters().fast_recoveries, first.fast_recoveries + 1);
        trace.at(412).handle_ack(&Ack { rtt: Some(Duration::from_millis(rtt_ms)), ..ack(seq_at(15)) });
        assert_eq!(trace.recovery.counters().undone, first.undone + u32::from(is_undone));
    }
}

#[test]
fn a_timeout_while_acknowledgements_were_held_back_is_undone() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(410).handle_timer();
    trace.retransmit();
    assert_eq!(trace.recovery.cwnd(), 1000);
    // The delayed acknowledgements arrive. They cover segments that were sent only once, so the timeout was spurious
    // (RFC 5682).
    assert!(trace.at(610).ack(10).is_undone, "the timeout should be undone");
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.ssthresh()),
        (20_000, u64::MAX),
        "slow start should continue with the window from before the timeout"
    );
    assert_eq!(
        (trace.recovery.backoffs(), trace.recovery.phase()),
        (0, Phase::Open),
        "the backoff should be over"
    );
}

#[test]
fn timestamps_undo_the_timeout_of_a_single_segment() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    let ack = Ack { rtt: Some(Duration::from_millis(500)), ..ack(seq_at(1)) };
    assert!(trace.at(610).handle_ack(&ack).is_undone, "the timeout should be undone");
    assert!(
        trace.recovery.rto() > Duration::from_millis(500),
        "the timeout should include the long round trip"
    );
}

#[test]
fn a_dsack_undoes_the_timeout_without_timestamps() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    assert!(
        !trace.at(610).ack(1).is_undone,
        "nothing should be undone: the acknowledgement may be of either transmission"
    );
    assert!(trace.at(611).dsack(1, (0, 1)).is_undone, "the DSACK should undo the timeout");
    assert_eq!(trace.recovery.cwnd(), 10_000);
}

#[test]
fn a_timeout_after_a_real_loss_is_not_undone() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(410).handle_timer();
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert!(!trace.at(510).ack(1).is_undone, "a real loss should not be undone");
    assert_eq!(
        (trace.retransmit(), trace.recovery.phase()),
        (Vec::from([(1, 2), (2, 3)]), Phase::Loss),
        "the lost segments should be retransmitted"
    );
}

#[test]
fn segments_sacked_before_the_timeout_do_not_undo_it() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    trace.at(210).sack(0, &[(1, 2)]);
    trace.wait_for_timeout().retransmit();
    trace.now = trace.now + Duration::from_millis(100);
    assert!(
        !trace.ack(2).is_undone,
        "nothing should be undone: the second segment was SACKed before the timeout"
    );
}

#[test]
fn new_data_sent_after_the_timeout_does_not_undo_it() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.retransmit();
    trace.recovery.on_sent(ms(411), seq_at(2));
    assert!(!trace.at(510).ack(2).is_undone, "new data should not undo the timeout");
}

#[test]
fn without_sack_a_larger_acknowledgement_does_not_undo_the_timeout() {
    let mut trace = Trace::without_sack();
    trace.at(110).fill();
    trace.at(410).handle_timer();
    trace.retransmit();
    assert!(
        !trace.at(510).ack(10).is_undone,
        "nothing should be undone: the receiver may have held the other segments until the first arrived"
    );
}

#[test]
fn undoing_restores_the_state_of_cubic() {
    let mut trace = Trace::with(&Settings { tail_loss_probe: false, ..Settings::default() }, true);
    trace.at(110).fill();
    let before = trace.recovery.congestion;
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    assert_ne!(trace.recovery.congestion.selected, before.selected);
    let ack = Ack { rtt: Some(Duration::from_millis(110)), ..ack(seq_at(4)) };
    assert!(trace.at(220).handle_ack(&ack).is_undone, "the reduction should be undone");
    assert_eq!(trace.recovery.congestion.selected, before.selected);
}

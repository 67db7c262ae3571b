//! Fast retransmit and recovery without SACK: RFC 5681 §3.2, RFC 6582, RFC 3042.

use super::*;

#[test]
fn the_third_duplicate_retransmits_the_first_segment() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(2);
    assert_eq!(
        (trace.retransmit(), trace.recovery.phase()),
        (Vec::new(), Phase::Open),
        "two duplicates should not start a recovery"
    );
    trace.duplicates(1);
    assert_eq!((trace.retransmit(), trace.recovery.phase()), (Vec::from([(0, 1)]), Phase::Recovery));
    assert_eq!(trace.recovery.ssthresh(), 5000);
}

#[test]
fn the_first_two_duplicates_send_one_new_segment_each() {
    let mut trace = Trace::without_sack();
    trace.at(110).fill();
    trace.at(210).duplicates(1);
    assert_eq!(trace.fill(), 1, "limited transmit should send one segment (RFC 3042)");
    trace.duplicates(1);
    assert_eq!(trace.fill(), 1);
    assert_eq!(trace.recovery.in_flight(), 12_000, "two segments should be sent beyond the window");
}

#[test]
fn duplicates_are_counted_for_short_segments_as_well() {
    let mut trace = Trace::without_sack();
    for message in 1..=8 {
        trace.recovery.on_sent(ms(110), BASE + 64 * message);
    }
    trace.at(210).duplicates(3);
    assert_eq!(trace.recovery.next_retransmission(MSS), Some((BASE, BASE + 64)));
}

#[test]
fn an_acknowledgement_of_new_bytes_resets_the_count_of_duplicates() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(2);
    trace.ack(1);
    trace.duplicates(2);
    assert_eq!(trace.recovery.phase(), Phase::Open);
}

#[test]
fn a_partial_acknowledgement_retransmits_the_next_hole() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(3);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(310).ack(4);
    assert_eq!(trace.retransmit(), [(4, 5)], "the next hole should be retransmitted (RFC 6582 §3.2, step 3)");
    trace.at(410).ack(7);
    assert_eq!(trace.retransmit(), [(7, 8)]);
    assert!(trace.at(510).ack(10).is_recovered, "the recovery should end");
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.phase()),
        (5000, Phase::Open),
        "the window should be half of ten segments"
    );
    assert_eq!(trace.recovery.counters().fast_recoveries, 1, "one window of data should cause one reduction");
}

#[test]
fn further_duplicates_send_new_segments() {
    let mut trace = Trace::without_sack();
    trace.at(110).fill();
    trace.at(210).duplicates(3);
    trace.retransmit();
    let mut sent = 0;
    for _ in 0..6 {
        trace.duplicates(1);
        sent += trace.fill();
    }
    assert_eq!(sent, 4, "the new window should be filled, besides the retransmission");
}

#[test]
fn duplicates_caused_by_retransmissions_start_no_second_recovery() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(6).at(210).duplicates(3);
    trace.retransmit();
    trace.at(310).ack(6);
    trace.send(4).at(320).duplicates(4);
    assert_eq!(
        trace.recovery.phase(),
        Phase::Open,
        "duplicates at `recover` should start no recovery (RFC 6582 §3.2, step 2)"
    );
    trace.at(330).ack(7);
    trace.duplicates(3);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
}

#[test]
fn the_threshold_is_at_least_two_segments() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3).at(210).duplicates(3);
    assert_eq!(
        trace.recovery.ssthresh(),
        2000,
        "the threshold should be two segments at least (RFC 5681, equation 4)"
    );
}

#[test]
fn sack_blocks_are_ignored_if_sack_was_not_negotiated() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10);
    trace.at(210).sack(0, &[(5, 9)]);
    assert_eq!(
        (trace.recovery.pipe(), trace.recovery.phase()),
        (9000, Phase::Open),
        "only one duplicate should be counted"
    );
}

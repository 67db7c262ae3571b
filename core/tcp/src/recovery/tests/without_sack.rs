//! Fast retransmit and recovery without SACK: RFC 5681 §3.2, RFC 6582, RFC 3042.

use super::*;

#[test]
fn the_third_duplicate_sends_the_first_again() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(2);
    assert_eq!((trace.resend(), trace.recovery.phase()), (Vec::new(), Phase::Open));
    trace.duplicates(1);
    assert_eq!((trace.resend(), trace.recovery.phase()), (Vec::from([(0, 1)]), Phase::Recovery));
    assert_eq!(trace.recovery.ssthresh(), 5000);
}

#[test]
fn the_first_two_duplicates_let_a_new_segment_out_each() {
    let mut trace = Trace::without_sack();
    trace.at(110).fill();
    trace.at(210).duplicates(1);
    assert_eq!(trace.fill(), 1, "RFC 3042");
    trace.duplicates(1);
    assert_eq!(trace.fill(), 1);
    assert_eq!(trace.recovery.in_flight(), 12_000, "two beyond the window");
}

#[test]
fn three_duplicates_of_short_segments_are_three() {
    let mut trace = Trace::without_sack();
    for message in 1..=8 {
        trace.recovery.on_sent(ms(110), BASE + 64 * message);
    }
    trace.at(210).duplicates(3);
    assert_eq!(trace.recovery.next_retransmission(MSS), Some((BASE, BASE + 64)));
}

#[test]
fn an_acknowledgement_in_between_counts_duplicates_anew() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(2);
    trace.ack(1);
    trace.duplicates(2);
    assert_eq!(trace.recovery.phase(), Phase::Open);
}

#[test]
fn a_partial_acknowledgement_shows_the_next_hole() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10).at(210).duplicates(3);
    assert_eq!(trace.resend(), [(0, 1)]);
    trace.at(310).ack(4);
    assert_eq!(trace.resend(), [(4, 5)], "RFC 6582 §3.2, step 3");
    trace.at(410).ack(7);
    assert_eq!(trace.resend(), [(7, 8)]);
    assert!(trace.at(510).ack(10).is_recovered);
    assert_eq!((trace.recovery.cwnd(), trace.recovery.phase()), (5000, Phase::Open));
    assert_eq!(trace.recovery.counters().fast_recoveries, 1, "one reduction for one window of data");
}

#[test]
fn further_duplicates_let_new_data_out() {
    let mut trace = Trace::without_sack();
    trace.at(110).fill();
    trace.at(210).duplicates(3);
    trace.resend();
    let mut sent = 0;
    for _ in 0..6 {
        trace.duplicates(1);
        sent += trace.fill();
    }
    assert_eq!(sent, 4, "as many as the new window has besides the one sent again");
}

#[test]
fn duplicates_by_what_was_sent_again_needlessly_begin_no_other_recovery() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(6).at(210).duplicates(3);
    trace.resend();
    trace.at(310).ack(6);
    trace.send(4).at(320).duplicates(4);
    assert_eq!(trace.recovery.phase(), Phase::Open, "RFC 6582 §3.2, step 2: not above `recover`");
    trace.at(330).ack(7);
    trace.duplicates(3);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
}

#[test]
fn a_window_of_two_segments_is_the_least() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3).at(210).duplicates(3);
    assert_eq!(trace.recovery.ssthresh(), 2000, "RFC 5681, equation 4");
}

#[test]
fn sack_blocks_of_a_peer_that_has_no_sack_are_nothing() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(10);
    trace.at(210).sack(0, &[(5, 9)]);
    assert_eq!((trace.recovery.pipe(), trace.recovery.phase()), (9000, Phase::Open), "one duplicate");
}

//! Tail loss probes: RFC 8985 §7.
//!
//! In these traces SRTT is 100 ms and the retransmission timeout is 300 ms. Data is first sent at 110 ms, so that the
//! probe is due at 312 ms, and the timeout at 410 ms.

use super::*;

/// The probe timeout: two round trips, and 2 ms of slack as in Linux.
const PROBE_TIMEOUT_MS: u64 = 2 * 100 + 2;

/// With SACK, and with tail loss probes, which the default settings include.
fn trace() -> Trace {
    let has_sack = true;
    Trace::with(&newreno(), has_sack)
}

/// Sends the probe of a stack without new data: the last segment again.
fn send_probe(trace: &mut Trace) -> (Seq, Seq) {
    assert!(trace.recovery.wants_probe(), "a probe should be due");
    let (from, to) = trace.recovery.last_segment().expect("a segment in flight");
    trace.recovery.on_retransmitted(trace.now, from, to);
    trace.recovery.on_probe(trace.now);
    (from, to)
}

#[test]
fn a_probe_is_due_two_round_trips_after_the_last_segment() {
    let mut trace = trace();
    trace.at(110).send(2).at(120).send(1);
    assert_eq!(trace.next_timer_ms(), Some(120 + PROBE_TIMEOUT_MS));
}

#[test]
fn the_probe_of_a_single_segment_is_sent_at_the_latest_at_the_time_of_the_timeout() {
    // The peer may delay the acknowledgement of a single segment by 200 ms, so the probe would be due after about 400
    // ms; but the timeout is due after 300 ms.
    let mut trace = trace();
    trace.at(110).send(1);
    assert_eq!(trace.next_timer_ms(), Some(410));
    assert_eq!(trace.at(410).handle_timer(), TimeoutOutcome::Probe);
}

#[test]
fn without_new_data_the_probe_repeats_the_last_segment() {
    let mut trace = trace();
    trace.at(110).send(3);
    assert_eq!(trace.at(110 + PROBE_TIMEOUT_MS).handle_timer(), TimeoutOutcome::Probe);
    assert_eq!(send_probe(&mut trace), (seq_at(2), seq_at(3)));
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.phase()),
        (10_000, Phase::Open),
        "the probe should not count as a loss"
    );
    assert!(!trace.recovery.wants_probe(), "a probe should be sent once");
    assert_eq!(trace.recovery.counters().probes, 1);
}

#[test]
fn a_probe_restarts_the_timeout_and_is_not_followed_by_another() {
    let mut trace = trace();
    trace.at(110).send(3).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    assert_eq!(trace.next_timer_ms(), Some(612), "the probe should restart the timeout (RFC 8985 §7.3)");
    trace.send(1);
    assert_eq!(
        trace.next_timer_ms(),
        Some(612),
        "no second probe should be due before the first is acknowledged"
    );
    assert_eq!(trace.at(612).handle_timer(), TimeoutOutcome::Retransmit);
}

#[test]
fn new_data_is_sent_as_the_probe_and_reveals_the_loss() {
    let mut trace = trace();
    trace.at(110).send(3).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    trace.send(1);
    trace.recovery.on_probe(ms(110 + PROBE_TIMEOUT_MS));
    trace.at(412).sack(0, &[(3, 4)]);
    assert_eq!(
        trace.recovery.scoreboard.lost(),
        3000,
        "all three should be lost: they were sent long before the probe, which has arrived"
    );
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn a_sacked_probe_reveals_the_losses_before_it() {
    let mut trace = trace();
    trace.at(110).send(3).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    trace.at(412).sack(0, &[(2, 3)]);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    trace.at(512).ack(1);
    assert_eq!(trace.retransmit(), [(1, 2)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn a_dsack_of_the_probe_leaves_the_window_unchanged() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    trace.at(412).dsack(10, (9, 10));
    assert_eq!(
        (trace.recovery.ssthresh(), trace.recovery.probe),
        (u64::MAX, None),
        "the window should stay, because nothing was lost (RFC 8985 §7.4.2)"
    );
}

#[test]
fn a_probe_that_repaired_a_loss_reduces_the_window() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    trace.send(1);
    trace.at(412).ack(11);
    assert_eq!(
        (trace.recovery.cwnd() / 1000, trace.recovery.ssthresh()),
        (5, 5000),
        "a repaired loss should halve the window (RFC 8985 §7.4.2)"
    );
}

#[test]
fn an_acknowledgement_up_to_the_probe_does_not_show_whether_a_loss_was_repaired() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    trace.at(412).ack(10);
    assert!(
        trace.recovery.probe.is_some(),
        "the outcome should be open: the original segment or the probe may have arrived"
    );
    trace.at(413).handle_ack(&Ack { is_duplicate: true, ..ack(seq_at(10)) });
    assert_eq!(
        (trace.recovery.probe, trace.recovery.ssthresh()),
        (None, u64::MAX),
        "the window should stay: both copies have arrived"
    );
}

#[test]
fn the_round_trip_of_a_probe_is_not_measured() {
    let mut trace = trace();
    trace.at(110).send(2).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    send_probe(&mut trace);
    trace.at(320).ack(2);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
}

#[test]
fn without_sack_no_probe_is_sent() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3);
    assert_eq!(trace.next_timer_ms(), Some(410));
}

#[test]
fn without_the_setting_no_probe_is_sent() {
    // Unlike `trace()`, this trace has `tail_loss_probe` switched off.
    let mut trace = Trace::without_probes();
    trace.at(110).send(3);
    assert_eq!(trace.next_timer_ms(), Some(410));
}

/// During a recovery acknowledgements stop, because that of the retransmission was lost. Then a probe is
/// sent, and its acknowledgement covers all bytes.
#[test]
fn a_recovery_whose_acknowledgements_stop_sends_a_probe() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(
        trace.next_timer_ms(),
        Some(110 + 300),
        "a probe should be due at the time of the timeout: the SACK did not restart the timeout, so \
         that it comes before 210 + PROBE_TIMEOUT_MS"
    );
    assert_eq!(trace.at(210 + PROBE_TIMEOUT_MS).handle_timer(), TimeoutOutcome::Probe);
    trace.send(1);
    trace.recovery.on_probe(ms(210 + PROBE_TIMEOUT_MS));
    trace.at(512).ack(11);
    assert_eq!((trace.recovery.phase(), trace.recovery.cwnd()), (Phase::Open, 5000));
    assert_eq!(trace.recovery.counters().timeouts, 0);
    trace.send(2);
    assert_eq!(
        trace.next_timer_ms(),
        Some(512 + PROBE_TIMEOUT_MS),
        "probes should be sent after the recovery as well"
    );
}

/// The retransmission was lost; the probe, sent later, arrives and reveals the loss.
#[test]
fn a_probe_in_a_recovery_reveals_a_lost_retransmission() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    trace.retransmit();
    trace.at(210 + PROBE_TIMEOUT_MS).handle_timer();
    trace.send(1);
    trace.recovery.on_probe(ms(210 + PROBE_TIMEOUT_MS));
    trace.at(512).sack(0, &[(1, 11)]);
    assert_eq!(trace.retransmit(), [(0, 1)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn a_recovery_whose_acknowledgements_stop_sends_one_probe_before_the_timeout() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    trace.retransmit();
    trace.at(210 + PROBE_TIMEOUT_MS).handle_timer();
    assert_eq!(
        send_probe(&mut trace),
        (seq_at(9), seq_at(10)),
        "the last segment should be repeated: there is no new data to send"
    );
    assert_eq!(
        trace.next_timer_ms(),
        Some(210 + PROBE_TIMEOUT_MS + 300),
        "the probe should restart the timeout (RFC 8985 §7.3)"
    );
    assert_eq!(trace.at(712).handle_timer(), TimeoutOutcome::Retransmit);
}

#[test]
fn a_syn_is_not_probed() {
    let has_sack = true;
    let mut recovery = Sender::new(ms(0), &newreno(), MSS, has_sack, FIRST);
    recovery.on_sent(ms(0), BASE); // the SYN, whose sequence number is FIRST
    assert_eq!(recovery.handle_timeout(ms(1000)), TimeoutOutcome::Retransmit);
}

#[test]
fn an_acknowledgement_postpones_the_probe() {
    let mut trace = trace();
    trace.at(110).send(4).at(210).ack(2);
    assert_eq!(trace.next_timer_ms(), Some(210 + PROBE_TIMEOUT_MS));
    trace.at(300).ack(4);
    assert_eq!(trace.next_timer_ms(), None);
}

#[test]
fn a_probe_that_was_not_sent_does_not_stop_the_timeout() {
    let mut trace = trace();
    trace.at(110).send(3).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    assert_eq!(trace.next_timer_ms(), Some(612));
    assert_eq!(trace.at(612).handle_timer(), TimeoutOutcome::Retransmit);
    assert!(!trace.recovery.wants_probe(), "no probe should be due");
}

#[test]
fn an_acknowledgement_cancels_a_due_probe() {
    let mut trace = trace();
    trace.at(110).send(3).at(110 + PROBE_TIMEOUT_MS).handle_timer();
    trace.at(313).ack(1);
    assert!(!trace.recovery.wants_probe(), "an acknowledgement should cancel the probe");
}

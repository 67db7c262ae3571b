//! Tail loss probes: RFC 8985 §7.

use super::*;

fn trace() -> Trace {
    Trace::with(&newreno(), true)
}

/// After the timer has expired: sends what a stack without new data sends.
fn probe_again(trace: &mut Trace) -> (Seq, Seq) {
    assert!(trace.recovery.wants_probe());
    let (from, to) = trace.recovery.last_segment().expect("something is out");
    trace.recovery.on_retransmitted(trace.now, from, to);
    trace.recovery.on_probe(trace.now);
    (from, to)
}

#[test]
fn two_round_trips_after_the_last_of_several_segments() {
    let mut trace = trace();
    trace.at(110).send(2).at(120).send(1);
    assert_eq!(trace.timeout_ms(), Some(120 + 200 + 2));
}

#[test]
fn a_single_segment_may_wait_for_a_delayed_acknowledgement() {
    // Its timeout would be after 300 ms, its probe after 400 ms: the probe replaces the timeout.
    let mut trace = trace();
    trace.at(110).send(1);
    assert_eq!(trace.timeout_ms(), Some(410));
    assert_eq!(trace.at(410).timeout(), TimeoutOutcome::Probe);
}

#[test]
fn the_probe_is_the_last_segment() {
    let mut trace = trace();
    trace.at(110).send(3);
    assert_eq!(trace.at(312).timeout(), TimeoutOutcome::Probe);
    assert_eq!(probe_again(&mut trace), (at(2), at(3)));
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.phase()),
        (10_000, Phase::Open),
        "nothing is known yet"
    );
    assert!(!trace.recovery.wants_probe());
    assert_eq!(trace.recovery.counters().probes, 1);
}

#[test]
fn the_timeout_begins_anew_with_the_probe_and_there_is_one() {
    let mut trace = trace();
    trace.at(110).send(3).at(312).timeout();
    probe_again(&mut trace);
    assert_eq!(trace.timeout_ms(), Some(612), "§7.3");
    trace.send(1);
    assert_eq!(trace.timeout_ms(), Some(612), "not another before this one is answered");
    assert_eq!(trace.at(612).timeout(), TimeoutOutcome::Retransmit);
}

#[test]
fn new_data_is_the_better_probe() {
    let mut trace = trace();
    trace.at(110).send(3).at(312).timeout();
    trace.send(1);
    trace.recovery.on_probe(ms(312));
    trace.at(412).sack(0, &[(3, 4)]);
    assert_eq!(trace.recovery.scoreboard.lost(), 3000, "sent long before what has arrived");
    assert_eq!(trace.resend(), [(0, 1)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn a_probe_that_is_sacked_shows_what_is_lost_before_it() {
    let mut trace = trace();
    trace.at(110).send(3).at(312).timeout();
    probe_again(&mut trace);
    trace.at(412).sack(0, &[(2, 3)]);
    assert_eq!(trace.recovery.phase(), Phase::Recovery);
    assert_eq!(trace.resend(), [(0, 1)]);
    trace.at(512).ack(1);
    assert_eq!(trace.resend(), [(1, 2)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn a_probe_that_came_twice_ends_well() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(312).timeout();
    probe_again(&mut trace);
    trace.at(412).dsack(10, (9, 10));
    assert_eq!(
        (trace.recovery.ssthresh(), trace.recovery.probe),
        (u64::MAX, None),
        "§7.4.2: nothing was lost"
    );
}

#[test]
fn a_probe_that_repaired_a_loss_costs_what_a_loss_costs() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(312).timeout();
    probe_again(&mut trace);
    trace.send(1);
    trace.at(412).ack(11);
    assert_eq!((trace.recovery.cwnd() / 1000, trace.recovery.ssthresh()), (5, 5000), "§7.4.2");
}

#[test]
fn the_acknowledgement_of_just_the_probe_leaves_it_open() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(312).timeout();
    probe_again(&mut trace);
    trace.at(412).ack(10);
    assert!(trace.recovery.probe.is_some(), "it may have been the first that was acknowledged");
    trace.at(413).take(&Ack { is_duplicate: true, ..ack(at(10)) });
    assert_eq!((trace.recovery.probe, trace.recovery.ssthresh()), (None, u64::MAX), "both came");
}

#[test]
fn a_round_trip_of_a_probe_is_not_measured() {
    let mut trace = trace();
    trace.at(110).send(2).at(312).timeout();
    probe_again(&mut trace);
    trace.at(320).ack(2);
    assert_eq!(trace.recovery.srtt(), Some(Duration::from_millis(100)));
}

#[test]
fn no_probe_without_sack() {
    let mut trace = Trace::without_sack();
    trace.at(110).send(3);
    assert_eq!(trace.timeout_ms(), Some(410));
}

#[test]
fn no_probe_when_they_are_off() {
    let mut trace = Trace::new();
    trace.at(110).send(3);
    assert_eq!(trace.timeout_ms(), Some(410));
}

/// The only answer to the retransmission was lost: the probe's acknowledgement covers everything.
#[test]
fn a_recovery_that_falls_silent_is_probed() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    assert_eq!(trace.resend(), [(0, 1)]);
    assert_eq!(trace.timeout_ms(), Some(410), "when the timeout would have been");
    assert_eq!(trace.at(412).timeout(), TimeoutOutcome::Probe);
    trace.send(1);
    trace.recovery.on_probe(ms(412));
    trace.at(512).ack(11);
    assert_eq!((trace.recovery.phase(), trace.recovery.cwnd()), (Phase::Open, 5000));
    assert_eq!(trace.recovery.counters().timeouts, 0);
    trace.send(2);
    assert_eq!(trace.timeout_ms(), Some(512 + 202), "and again after it");
}

/// The retransmission itself was lost: the probe, which was sent later, arrives and shows it.
#[test]
fn a_probe_in_a_recovery_shows_that_a_retransmission_was_lost() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    trace.resend();
    trace.at(412).timeout();
    trace.send(1);
    trace.recovery.on_probe(ms(412));
    trace.at(512).sack(0, &[(1, 11)]);
    assert_eq!(trace.resend(), [(0, 1)]);
    assert_eq!(trace.recovery.counters().timeouts, 0);
}

#[test]
fn one_probe_in_a_silent_recovery_then_the_timeout() {
    let mut trace = trace();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 10)]);
    trace.resend();
    trace.at(412).timeout();
    assert_eq!(probe_again(&mut trace), (at(9), at(10)), "with nothing new to send");
    assert_eq!(trace.timeout_ms(), Some(412 + 300), "§7.3");
    assert_eq!(trace.at(712).timeout(), TimeoutOutcome::Retransmit);
}

#[test]
fn no_probe_for_a_syn() {
    let mut recovery = Sender::new(ms(0), &newreno(), MSS, true, FIRST);
    recovery.on_sent(ms(0), BASE);
    assert_eq!(recovery.handle_timeout(ms(1000)), TimeoutOutcome::Retransmit);
}

#[test]
fn an_acknowledgement_puts_the_probe_off() {
    let mut trace = trace();
    trace.at(110).send(4).at(210).ack(2);
    assert_eq!(trace.timeout_ms(), Some(210 + 202));
    trace.at(300).ack(4);
    assert_eq!(trace.timeout_ms(), None);
}

#[test]
fn a_probe_that_nobody_sends_does_not_stop_the_timeout() {
    let mut trace = trace();
    trace.at(110).send(3).at(312).timeout();
    assert_eq!(trace.timeout_ms(), Some(612));
    assert_eq!(trace.at(612).timeout(), TimeoutOutcome::Retransmit);
    assert!(!trace.recovery.wants_probe());
}

#[test]
fn an_acknowledgement_calls_a_wanted_probe_off() {
    let mut trace = trace();
    trace.at(110).send(3).at(312).timeout();
    trace.at(313).ack(1);
    assert!(!trace.recovery.wants_probe());
}

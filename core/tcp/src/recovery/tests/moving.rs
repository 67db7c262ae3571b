//! Export and import: an imported connection continues as it would have, and no state is trusted.

use proptest::prelude::*;

use super::*;

/// The connection on another host: with another clock and the same settings.
fn moved(trace: &Trace, settings: &Settings, now: Time) -> Trace {
    let state = trace.recovery.export(trace.now);
    let recovery = Sender::import(now, settings, &state).expect("what was exported is consistent");
    assert_eq!(recovery.export(now), state);
    Trace { recovery, now, has_sack: trace.has_sack }
}

fn in_recovery(settings: &Settings) -> Trace {
    let mut trace = Trace::with(settings, true);
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 2), (4, 6)]);
    trace.resend();
    trace
}

#[test]
fn a_recovery_goes_on_elsewhere() {
    for settings in [newreno(), Settings::default()] {
        let mut here = in_recovery(&settings);
        let mut there = moved(&here, &settings, ms(1_000_000));
        for step in 0..30 {
            let una = step / 3;
            assert_eq!((here.resend(), here.fill()), (there.resend(), there.fill()));
            here.now = here.now + Duration::from_millis(10);
            there.now = there.now + Duration::from_millis(10);
            assert_eq!(here.sack(una, &[(una + 2, una + 5)]), there.sack(una, &[(una + 2, una + 5)]));
            assert_eq!(here.recovery.cwnd(), there.recovery.cwnd());
            assert_eq!(here.recovery.phase(), there.recovery.phase());
        }
    }
}

#[test]
fn timers_go_on_where_they_were() {
    let settings = newreno();
    let mut here = Trace::with(&settings, true);
    here.at(110).send(3).at(200);
    let mut there = moved(&here, &settings, ms(50_000));
    assert_eq!(there.timeout_ms(), Some(50_000 + 312 - 200));
    assert_eq!(there.at(50_112).timeout(), TimeoutOutcome::Probe);
    assert_eq!(there.recovery.last_segment(), Some((at(2), at(3))));
}

#[test]
fn a_probe_that_was_wanted_is_wanted_again() {
    let settings = newreno();
    let mut here = Trace::with(&settings, true);
    here.at(110).send(3).at(312).timeout();
    let state = here.recovery.export(here.now);
    let mut there = Sender::import(ms(7), &settings, &state).expect("it is consistent");
    assert_eq!(there.handle_timeout(ms(7)), TimeoutOutcome::Probe);
}

#[test]
fn a_timeout_is_undone_elsewhere() {
    let settings = Settings { tail_loss_probe: false, ..Settings::default() };
    let mut here = Trace::with(&settings, true);
    here.at(110).fill();
    here.at(410).timeout();
    here.resend();
    let mut there = moved(&here, &settings, ms(90_000));
    assert!(there.at(90_100).ack(10).is_undone);
    assert_eq!(there.recovery.ssthresh(), u64::MAX);
}

#[test]
fn a_send_time_before_the_clock_began_measures_nothing() {
    let settings = newreno();
    let mut here = Trace::with(&settings, true);
    here.at(5000).send(1).at(5090);
    let state = here.recovery.export(here.now);
    let mut there = Sender::import(ms(20), &settings, &state).expect("it is consistent");
    there.on_ack(ms(30), &ack(at(1)));
    assert_eq!(there.srtt(), Some(Duration::from_millis(100)), "it took 100 ms, not 30");
}

#[test]
fn another_host_has_its_own_algorithm_and_bounds() {
    let state = in_recovery(&Settings::default()).recovery.export(ms(210));
    let own = Settings { algorithm: Algorithm::NewReno, window_bytes_max: 3000, ..Settings::default() };
    let recovery = Sender::import(ms(0), &own, &state).expect("it is consistent");
    assert_eq!(recovery.cwnd(), 3000);
    assert!(matches!(recovery.export(ms(0)).controller, ControllerState::NewReno { .. }));
}

#[test]
fn contradictions_are_refused() {
    let good = in_recovery(&newreno()).recovery.export(ms(210));
    let refused = |change: &dyn Fn(&mut RecoveryState)| {
        let mut state = good.clone();
        change(&mut state);
        Sender::import(ms(0), &newreno(), &state).is_none()
    };
    assert!(!refused(&|_| {}));
    assert!(refused(&|state| state.nxt += 1), "the segments end before");
    assert!(refused(&|state| state.una = state.nxt + 1));
    assert!(refused(&|state| state.mss = 0));
    assert!(refused(&|state| state.mss = u32::MAX));
    assert!(refused(&|state| state.segments.clear()));
    assert!(refused(&|state| state.segments[1].end = state.segments[0].end), "nothing in it");
    assert!(refused(&|state| state.segments.swap(0, 1)));
    assert!(refused(&|state| state.segments[0].transmissions = 0), "on the way, and never sent");
    assert!(refused(&|state| state.recovery_point = state.nxt + 1));
    assert!(refused(&|state| state.has_sack = false), "but there are SACKed segments");
    assert!(refused(&|state| {
        state.segments[1].sacked = true;
        state.segments[1].lost = true;
    }));
    assert!(refused(&|state| {
        state.segments[7].lost = false;
        state.segments[7].retransmitted = true;
    }));
    assert!(refused(&|state| {
        let end = state.nxt;
        let last = *state.segments.last().expect("there are some");
        state.segments.extend((1..=5000).map(|more| SegmentState { end: end + more, ..last }));
        state.nxt = end + 5000;
    }));
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), Just(1), Just(u64::MAX), 0..100_000_u64, any::<u64>(), at(0)..at(20)]
}

proptest! {
    /// With one to four random numbers in place of its own, a state is refused or runs.
    #[test]
    fn whatever_is_imported_runs(
        is_cubic: bool,
        changes in proptest::collection::vec((0..34_usize, number()), 1..5),
        now_ms in 0..1_000_000_u64,
        acks in proptest::collection::vec((0..15_u64, 0..15_u64, 0..3000_u64), 1..20),
    ) {
        let settings = if is_cubic { Settings::default() } else { newreno() };
        let mut state = in_recovery(&settings).recovery.export(ms(210));
        if let ControllerState::Cubic { epoch, .. } = &mut state.controller {
            *epoch = Some(EpochState { age_ns: 100, paused_ns: None, origin: 5000, k: 7, w_est: 4000 });
        }
        for (field, value) in changes {
            change(&mut state, field, value);
        }
        let mut now = ms(now_ms);
        let Some(mut recovery) = Sender::import(now, &settings, &state) else { return Ok(()) };
        recovery.scoreboard.check();
        prop_assert!(recovery.in_flight() == 0 || recovery.poll_timeout().is_some());
        for (una, sack, passed) in acks {
            let from = recovery.una() + 1000 * sack;
            let blocks = [(from, from + 1000)];
            recovery.on_ack(now, &Ack { sack: &blocks, is_duplicate: una == 0, ..ack(recovery.una() + 500 * una) });
            while let Some((from, to)) = recovery.next_retransmission(1000) {
                recovery.on_retransmitted(now, from, to);
            }
            if recovery.send_room() > 0 && recovery.in_flight() < 1 << 20 {
                recovery.on_sent(now, recovery.nxt() + 1000);
            }
            now = now + Duration::from_millis(passed);
            recovery.handle_timeout(now);
            recovery.on_probe(now);
            recovery.scoreboard.check();
        }
    }
}

fn change(state: &mut RecoveryState, field: usize, value: u64) {
    let at = value as usize % state.segments.len().max(1);
    let short = value as u32;
    match field {
        0 => state.una = value,
        1 => state.nxt = value,
        2 => state.mss = short,
        3 => state.peer_window = value,
        4 => state.cwnd = value,
        5 => state.ssthresh = value,
        6 => state.srtt_ns = value,
        7 => state.rttvar_ns = value,
        8 => state.rtt_min_ns = value,
        9 => state.backoffs = short,
        10 => state.timeouts = short,
        11 => state.phase = [Phase::Open, Phase::Recovery, Phase::Loss][value as usize % 3],
        12 => state.recovery_point = value,
        13 => state.reduction[value as usize % 3] = value,
        14 => state.high_rxt = value,
        15 => state.duplicated = (value, short),
        16 => state.threshold = short,
        17 => state.limited_to = value,
        18 => state.sent_age_ns = value,
        19 => state.progress_age_ns = value,
        20 => state.latest_age_ns = value,
        21 => state.rto_in_ns = Some(value).filter(|value| value % 3 > 0),
        22 => state.probe_in_ns = Some(value),
        23 => state.probe = Some((value, value.is_multiple_of(2))),
        24 => state.is_handshake = true,
        25 => state.segments[at].age_ns = value,
        26 => state.segments[at].transmissions = value as u8,
        27 => state.segments[at].sacked ^= true,
        28 => state.segments[at].lost ^= true,
        29 => state.segments[at].retransmitted ^= true,
        30 => state.segments[at].end = value,
        31 => {
            if let Some(undo) = &mut state.undo {
                (undo.cwnd, undo.ssthresh, undo.from, undo.open) = (value, value, value, short);
            }
        }
        32 => {
            if let ControllerState::Cubic { w_max, cwnd_prior, .. } = &mut state.controller {
                (*w_max, *cwnd_prior) = (value, value);
            }
        }
        _ => {
            if let ControllerState::Cubic { epoch: Some(epoch), .. } = &mut state.controller {
                (epoch.origin, epoch.k, epoch.w_est, epoch.age_ns) = (value, value, value, value);
                epoch.paused_ns = Some(value);
            }
        }
    }
}

//! Export and import: an imported connection behaves as on the first host; a contradictory state is refused.

use proptest::prelude::*;

use super::*;

/// Moves the connection to another host, with another clock and the same settings.
fn moved(trace: &Trace, settings: &Settings, now: Time) -> Trace {
    let state = trace.recovery.export(trace.now);
    let recovery = Sender::import(now, settings, &state).expect("an exported state should be importable");
    assert_eq!(recovery.export(now), state);
    Trace { recovery, now, has_sack: trace.has_sack }
}

fn in_recovery(settings: &Settings) -> Trace {
    let mut trace = Trace::with(settings, true);
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 2), (4, 6)]);
    trace.retransmit();
    trace
}

#[test]
fn an_imported_recovery_continues() {
    for settings in [newreno(), Settings::default()] {
        let mut original = in_recovery(&settings);
        let mut imported = moved(&original, &settings, ms(1_000_000));
        for step in 0..30 {
            let una = step / 3;
            assert_eq!((original.retransmit(), original.fill()), (imported.retransmit(), imported.fill()));
            original.now = original.now + Duration::from_millis(10);
            imported.now = imported.now + Duration::from_millis(10);
            assert_eq!(original.sack(una, &[(una + 2, una + 5)]), imported.sack(una, &[(una + 2, una + 5)]));
            assert_eq!(original.recovery.cwnd(), imported.recovery.cwnd());
            assert_eq!(original.recovery.phase(), imported.recovery.phase());
        }
    }
}

#[test]
fn imported_timers_keep_their_remaining_time() {
    let settings = newreno();
    let mut original = Trace::with(&settings, true);
    original.at(110).send(3).at(200);
    let mut imported = moved(&original, &settings, ms(50_000));
    assert_eq!(imported.next_timer_ms(), Some(50_000 + 312 - 200));
    assert_eq!(imported.at(50_112).handle_timer(), TimeoutOutcome::Probe);
    assert_eq!(imported.recovery.last_segment(), Some((seq_at(2), seq_at(3))));
}

#[test]
fn a_due_probe_is_due_after_the_import() {
    let settings = newreno();
    let mut original = Trace::with(&settings, true);
    original.at(110).send(3).at(312).handle_timer();
    let state = original.recovery.export(original.now);
    let mut imported =
        Sender::import(ms(7), &settings, &state).expect("an exported state should be importable");
    assert_eq!(imported.handle_timeout(ms(7)), TimeoutOutcome::Probe);
}

#[test]
fn a_timeout_is_undone_after_the_import() {
    let settings = Settings { tail_loss_probe: false, ..Settings::default() };
    let mut original = Trace::with(&settings, true);
    original.at(110).fill();
    original.at(410).handle_timer();
    original.retransmit();
    let mut imported = moved(&original, &settings, ms(90_000));
    assert!(imported.at(90_100).ack(10).is_undone, "the timeout should be undone");
    assert_eq!(imported.recovery.ssthresh(), u64::MAX);
}

#[test]
fn a_segment_sent_before_the_start_of_the_clock_is_not_measured() {
    let settings = newreno();
    let mut original = Trace::with(&settings, true);
    original.at(5000).send(1).at(5090);
    let state = original.recovery.export(original.now);
    let mut imported =
        Sender::import(ms(20), &settings, &state).expect("an exported state should be importable");
    imported.on_ack(ms(30), &ack(seq_at(1)));
    assert_eq!(
        imported.srtt(),
        Some(Duration::from_millis(100)),
        "nothing should be measured: of 100 ms, only 30 ms are after zero of this clock"
    );
}

#[test]
fn the_import_applies_the_algorithm_and_bounds_of_its_host() {
    let state = in_recovery(&Settings::default()).recovery.export(ms(210));
    let other = Settings { algorithm: Algorithm::NewReno, window_bytes_max: 3000, ..Settings::default() };
    let recovery = Sender::import(ms(0), &other, &state).expect("an exported state should be importable");
    assert_eq!(recovery.cwnd(), 3000);
    assert!(
        matches!(recovery.export(ms(0)).controller, ControllerState::NewReno { .. }),
        "the host's algorithm should apply"
    );
}

#[test]
fn contradictory_states_are_refused() {
    let good = in_recovery(&newreno()).recovery.export(ms(210));
    let is_refused = |change: &dyn Fn(&mut RecoveryState)| {
        let mut state = good.clone();
        change(&mut state);
        Sender::import(ms(0), &newreno(), &state).is_none()
    };
    assert!(!is_refused(&|_| {}), "the unchanged state should be accepted");
    assert!(is_refused(&|state| state.nxt += 1), "SND.NXT beyond the last segment should be refused");
    assert!(
        is_refused(&|state| state.una = state.nxt + 1),
        "a lowest number above the highest should be refused"
    );
    assert!(is_refused(&|state| state.mss = 0), "a segment size of 0 should be refused");
    assert!(is_refused(&|state| state.mss = u32::MAX), "a huge segment size should be refused");
    assert!(is_refused(&|state| state.segments.clear()), "missing segments should be refused");
    assert!(
        is_refused(&|state| state.segments[1].end = state.segments[0].end),
        "an empty segment should be refused"
    );
    assert!(is_refused(&|state| state.segments.swap(0, 1)), "segments out of order should be refused");
    assert!(
        is_refused(&|state| state.segments[0].transmissions = 0),
        "a segment in flight that was never sent should be refused"
    );
    assert!(
        is_refused(&|state| state.recovery_point = state.nxt + 1),
        "a recovery point beyond the end should be refused"
    );
    assert!(is_refused(&|state| state.has_sack = false), "SACKed segments without SACK should be refused");
    assert!(
        is_refused(&|state| {
            state.segments[1].sacked = true;
            state.segments[1].lost = true;
        }),
        "a segment that is sacked and lost should be refused"
    );
    assert!(
        is_refused(&|state| {
            state.segments[7].lost = false;
            state.segments[7].retransmitted = true;
        }),
        "a retransmitted segment that is not lost should be refused"
    );
    assert!(
        is_refused(&|state| {
            let end = state.nxt;
            let last = *state.segments.last().expect("segments in flight");
            state.segments.extend((1..=5000).map(|byte| SegmentState { end: end + byte, ..last }));
            state.nxt = end + 5000;
        }),
        "more segments than the bound should be refused"
    );
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), Just(1), Just(u64::MAX), 0..100_000_u64, any::<u64>(), seq_at(0)..seq_at(20)]
}

proptest! {
    /// One to four fields of the state are replaced by random numbers.
    #[test]
    fn an_altered_state_is_refused_or_runs(
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
            replace_field(&mut state, field, value);
        }
        let mut now = ms(now_ms);
        let Some(mut recovery) = Sender::import(now, &settings, &state) else { return Ok(()) };
        recovery.scoreboard.check();
        prop_assert!(
            recovery.in_flight() == 0 || recovery.poll_timeout().is_some(),
            "a connection with bytes in flight should have a timer"
        );
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

fn replace_field(state: &mut RecoveryState, field: usize, value: u64) {
    let index = value as usize % state.segments.len().max(1);
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
        25 => state.segments[index].age_ns = value,
        26 => state.segments[index].transmissions = value as u8,
        27 => state.segments[index].sacked ^= true,
        28 => state.segments[index].lost ^= true,
        29 => state.segments[index].retransmitted ^= true,
        30 => state.segments[index].end = value,
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

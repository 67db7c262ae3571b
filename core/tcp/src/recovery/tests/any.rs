//! Random operations with valid and invalid acknowledgements, in any order: no panic, and the invariants hold.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send(u64),
    Ack {
        una: i64,
        sack: Vec<(i64, i64)>,
        dsack: Option<(i64, i64)>,
        is_duplicate: bool,
        rtt_us: Option<u64>,
        window: u64,
    },
    Retransmit,
    /// Retransmits a range that [`Recovery::spare_retransmission`] offers when there are no new bytes to send.
    SpareRetransmission,
    /// Microseconds that pass.
    Pass(u64),
    Mss(u32),
    Idle,
    HasSack(bool),
    ExportAndImport,
}

/// An offset from SND.UNA: often a multiple of half a segment (500 bytes), sometimes far away.
fn offset() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => (0..60_i64).prop_map(|segments| segments * 500),
        4 => 0..40_000_i64,
        1 => -2000..1_i64,
        1 => Just(i64::MAX),
        1 => Just(i64::MIN),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let plausible =
        || (offset(), 1..6_i64).prop_map(|(from, halves)| (from, from.saturating_add(halves * 500)));
    let block = || prop_oneof![6 => plausible(), 1 => (offset(), offset())];
    let rtt = proptest::option::of(prop_oneof![1..1_000_000_u64, Just(u64::MAX / 2)]);
    let ack = (
        offset(),
        proptest::collection::vec(block(), 0..5),
        proptest::option::weighted(0.2, block()),
        any::<bool>(),
        rtt,
        prop_oneof![5 => Just(1_u64 << 20), 1 => 0..5000_u64, 1 => Just(u64::MAX)],
    );
    prop_oneof![
        8 => prop_oneof![Just(1000_u64), 1..3000_u64].prop_map(Step::Send),
        12 => ack.prop_map(|(una, sack, dsack, is_duplicate, rtt_us, window)| {
            Step::Ack { una, sack, dsack, is_duplicate, rtt_us, window }
        }),
        6 => Just(Step::Retransmit),
        2 => Just(Step::SpareRetransmission),
        6 => prop_oneof![0..50_000_u64, 0..3_000_000_u64, Just(86_400_000_000_u64)].prop_map(Step::Pass),
        1 => prop_oneof![Just(0_u32), 1..100_u32, 500..9000_u32, Just(u32::MAX)].prop_map(Step::Mss),
        1 => Just(Step::Idle),
        1 => any::<bool>().prop_map(Step::HasSack),
        1 => Just(Step::ExportAndImport),
    ]
}

fn check_invariants(recovery: &Sender, now: Time) {
    let scoreboard = &recovery.scoreboard;
    assert!(recovery.pipe() <= recovery.in_flight(), "the pipe should be within the bytes in flight");
    assert!(
        recovery.cwnd() >= u64::from(recovery.mss()).min(recovery.limits.window_max(recovery.mss())),
        "the window should be at least a segment"
    );
    assert!(
        recovery.cwnd() <= recovery.limits.window_max(recovery.mss()),
        "the window should be at most its maximum"
    );
    assert!(
        recovery.ssthresh() >= 2 * u64::from(recovery.mss()),
        "the threshold should be at least two segments"
    );
    assert_eq!(
        recovery.poll_timeout().is_some(),
        recovery.in_flight() > 0,
        "a timer should run while bytes are in flight"
    );
    assert!(recovery.rto() <= Settings::default().rto_max, "the timeout should be at most its maximum");
    assert_eq!(recovery.last_progress_at().is_some(), recovery.in_flight() > 0);
    assert!(
        scoreboard.segments.len() <= scoreboard::SEGMENTS_MAX,
        "the scoreboard should be within its bound"
    );
    scoreboard.check();
    // Acknowledgements take the fast path: no segment is marked or was sent twice, and no probe is out.
    if recovery.is_quiet {
        let is_sent_once = |segment: &scoreboard::Segment| segment.transmissions == 1 && !segment.was_sacked;
        assert!(
            scoreboard.is_plain() && scoreboard.segments.iter().all(is_sent_once),
            "all segments should be plain and sent once"
        );
        assert!(
            recovery.phase() == Phase::Open && recovery.probe.is_none() && !recovery.wants_probe(),
            "no recovery or probe should be pending"
        );
        assert!(
            !recovery.timers.is_set(Timer::Reordering)
                && recovery.backoffs() == 0
                && recovery.pipe() == recovery.in_flight(),
            "no timer or backoff should be pending"
        );
    }
    if let Some((from, to)) = recovery.next_retransmission(700) {
        assert!(
            recovery.una() <= from && from < to && to <= recovery.nxt() && to - from <= 700,
            "a retransmission should be of bytes in flight, a segment at most"
        );
        assert_eq!(recovery.send_room(), 0, "lost bytes should be sent before new ones");
    }
    if let Some((from, to)) = recovery.spare_retransmission(700) {
        assert!(
            recovery.una() <= from && from < to && to <= recovery.nxt() && to - from <= 700,
            "a spare retransmission should be of bytes in flight, a segment at most"
        );
    }
    assert!(recovery.export(now).nxt == recovery.nxt(), "the exported state should have the next number");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn random_acknowledgements_keep_the_invariants(
        steps in proptest::collection::vec(step(), 1..150), is_cubic: bool, mut has_sack: bool,
    ) {
        let algorithm = if is_cubic { Algorithm::Cubic } else { Algorithm::NewReno };
        let settings = Settings { algorithm, window_bytes_max: 1 << 18, ..Settings::default() };
        let mut now = ms(0);
        let mut recovery = Sender::new(now, &settings, 1000, has_sack, FIRST);
        recovery.on_sent(now, FIRST + 1);
        for step in steps {
            let seq = |offset: i64, recovery: &Sender| recovery.una().saturating_add_signed(offset);
            match step {
                Step::Send(bytes) => {
                    if recovery.in_flight() < 1 << 19 {
                        recovery.on_sent(now, recovery.nxt() + bytes);
                    }
                }
                Step::Ack { una, sack, dsack, is_duplicate, rtt_us, window } => {
                    let range = |&(from, to): &(i64, i64)| (seq(from, &recovery), seq(to, &recovery));
                    let older = |(from, to): (Seq, Seq)| (from.saturating_sub(3000), to.saturating_sub(3000));
                    let sack: Vec<_> = sack.iter().map(range).collect();
                    let dsack = dsack.as_ref().map(range).map(older);
                    // About a third of the acknowledgements are for no new bytes; the drawn offset decides.
                    let una = if una % 3 == 0 { recovery.una() } else { seq(una, &recovery) };
                    let ack = Ack {
                        una,
                        sack: &sack,
                        dsack,
                        is_duplicate,
                        has_sack,
                        rtt: rtt_us.map(Duration::from_micros),
                        peer_window: window,
                    };
                    recovery.on_ack(now, &ack);
                }
                Step::Retransmit => {
                    if let Some((from, to)) = recovery.next_retransmission(800) {
                        recovery.on_retransmitted(now, from, to);
                    }
                }
                Step::SpareRetransmission => {
                    if let Some((from, to)) = recovery.spare_retransmission(800) {
                        recovery.on_retransmitted(now, from, to);
                    }
                }
                Step::Pass(us) => {
                    now = now + Duration::from_micros(us);
                    recovery.handle_timeout(now);
                    if recovery.wants_probe() {
                        // The elapsed time decides which probe is sent, and whether it is reported as a probe.
                        if us % 2 == 0 {
                            recovery.on_sent(now, recovery.nxt() + 100);
                        } else if let Some((from, to)) = recovery.last_segment() {
                            recovery.on_retransmitted(now, from, to);
                        }
                        if us % 5 != 0 {
                            recovery.on_probe(now);
                        }
                    }
                }
                Step::Mss(mss) => recovery.set_mss(mss),
                Step::Idle => recovery.on_idle(now),
                Step::HasSack(negotiated) => has_sack = negotiated,
                Step::ExportAndImport => {
                    let state = recovery.export(now);
                    let moved = Sender::import(now, &settings, &state);
                    let moved = moved.expect("an exported state should be importable");
                    prop_assert_eq!(&moved.export(now), &state);
                    recovery = moved;
                }
            }
            check_invariants(&recovery, now);
        }
    }
}

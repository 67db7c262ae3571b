//! The congestion window: RFC 5681 §3.1 and §4.1, RFC 6928, RFC 9438; CUBIC against its formulas in floating point.

use super::congestion::cubic::Cubic;
use super::congestion::{Controller, Window};
use super::*;

fn initial_window_of(mss: u32) -> u64 {
    Sender::new(ms(0), &newreno(), mss, true, FIRST).cwnd()
}

#[test]
fn the_initial_window_depends_on_the_segment_size() {
    assert_eq!(initial_window_of(1000), 10_000, "the initial window should be ten segments (RFC 6928 §2)");
    assert_eq!(initial_window_of(1460), 14_600);
    assert_eq!(initial_window_of(4000), 14_600);
    assert_eq!(initial_window_of(9000), 18_000);
    assert_eq!(initial_window_of(100), 1000);
}

#[test]
fn the_initial_window_follows_the_negotiated_segment_size() {
    let mut recovery = Sender::new(ms(0), &newreno(), 536, true, FIRST);
    recovery.on_sent(ms(0), BASE);
    recovery.set_mss(1460);
    recovery.on_ack(ms(10), &ack(BASE));
    assert_eq!(recovery.cwnd(), 14_600);
}

#[test]
fn slow_start_doubles_the_window_each_round_trip() {
    let mut trace = Trace::without_probes();
    let mut acknowledged = 0;
    for (round, window) in [(1, 20), (2, 40), (3, 80)] {
        trace.at(100 + 100 * round);
        acknowledged += trace.fill();
        trace.at(150 + 100 * round).ack(acknowledged);
        assert_eq!(trace.recovery.cwnd(), 1000 * window);
    }
}

#[test]
fn an_unused_window_does_not_grow() {
    let mut trace = Trace::without_probes();
    for round in 1..20 {
        trace.at(100 * round).send(2).at(100 * round + 50).ack(2 * round);
    }
    assert_eq!(trace.recovery.cwnd(), 10_000);
}

#[test]
fn in_slow_start_a_half_used_window_grows() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(6).at(210).ack(6);
    assert_eq!(trace.recovery.cwnd(), 16_000);
}

#[test]
fn after_a_loss_the_window_grows_by_one_segment_per_round_trip() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(0, &[(1, 4)]);
    trace.retransmit();
    trace.at(310).ack(10);
    let mut acknowledged = 10;
    for round in 1..=4 {
        assert_eq!(trace.recovery.cwnd(), 4000 + 1000 * round);
        trace.at(310 + 100 * round);
        for _ in 0..trace.fill() {
            acknowledged += 1;
            trace.ack(acknowledged);
        }
    }
}

#[test]
fn acknowledgements_of_single_bytes_do_not_speed_up_growth() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    for byte in 1..=500 {
        trace.at(210).handle_ack(&ack(BASE + byte));
    }
    assert_eq!(trace.recovery.cwnd(), 10_500, "bytes should be counted, not acknowledgements (RFC 3465)");
}

#[test]
fn after_an_idle_timeout_the_window_returns_to_the_initial_one() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).ack(10);
    assert_eq!(trace.recovery.cwnd(), 20_000);
    let now = trace.at(400).now;
    trace.recovery.on_idle(now);
    assert_eq!(trace.recovery.cwnd(), 20_000, "290 ms, less than a timeout, should not count as idle");
    let now = trace.at(500).now;
    trace.recovery.on_idle(now);
    assert_eq!(
        (trace.recovery.cwnd(), trace.recovery.ssthresh()),
        (10_000, u64::MAX),
        "the window should return to the initial one (RFC 5681 §4.1)"
    );
}

#[test]
fn a_connection_with_bytes_in_flight_is_not_idle() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).ack(9);
    trace.recovery.on_idle(ms(5000));
    assert_eq!(trace.recovery.cwnd(), 19_000);
}

#[test]
fn the_window_is_bounded() {
    let settings = Settings { window_bytes_max: 15_500, tail_loss_probe: false, ..newreno() };
    let mut trace = Trace::with(&settings, true);
    trace.at(110).fill();
    trace.at(210).ack(10);
    assert_eq!((trace.recovery.cwnd(), trace.fill()), (15_500, 15));
    // SACKed bytes have left the network, but count as in flight until they are acknowledged.
    trace.at(310).sack(10, &[(11, 13)]);
    assert_eq!(trace.recovery.send_room(), 500);
}

#[test]
fn a_larger_segment_size_raises_the_window_to_one_segment() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(1).at(410).handle_timer();
    trace.recovery.set_mss(9000);
    assert_eq!(trace.recovery.cwnd(), 9000);
}

fn window(cwnd: u64) -> Window {
    Window { cwnd, ssthresh: cwnd, mss: 1460 }
}

const RTT: Duration = Duration::from_millis(50);

/// Runs one stage of congestion avoidance. Each round trip sends the whole window, and every segment is acknowledged.
/// Returns CUBIC's window and that of the formulas after each round trip, in segments.
fn compare(cwnd: u64, cubic: &mut Cubic, seconds: u64) -> Vec<(f64, f64)> {
    const MSS: f64 = 1460.0;
    let mut window = window(cwnd);
    let (w_max, prior) = (cubic.w_max as f64 / MSS, cubic.cwnd_prior as f64 / MSS);
    let mut reference = cwnd as f64 / MSS;
    let k = if w_max > reference { ((w_max - reference) / 0.4).cbrt() } else { 0.0 };
    let origin = w_max.max(reference);
    let mut w_est = reference;
    let (mut windows, mut now) = (Vec::new(), ms(1000));
    let start = now;
    while now.since(start).as_secs() < seconds {
        let segments = window.cwnd / 1460;
        for _ in 0..segments {
            now = now + RTT / segments as u32;
            cubic.on_ack(now, &mut window, 1460, RTT);
            // The formulas of RFC 9438 §4.2 and §4.3; `t` counts from the first acknowledgement.
            let t = now.since(start).as_secs_f64() - RTT.as_secs_f64() / (cwnd / 1460) as f64;
            w_est += if w_est < prior { 9.0 / 17.0 } else { 1.0 } / reference;
            let w_cubic = |t: f64| 0.4 * (t - k).powi(3) + origin;
            if w_cubic(t) < w_est {
                reference = reference.max(w_est);
            } else {
                let target = w_cubic(t + RTT.as_secs_f64()).clamp(reference, 1.5 * reference);
                reference += (target - reference) / reference;
            }
        }
        windows.push((window.cwnd as f64 / MSS, reference));
    }
    windows
}

fn assert_within_a_percent(windows: &[(f64, f64)]) {
    for (round, (ours, reference)) in windows.iter().enumerate() {
        assert!(
            (ours / reference - 1.0).abs() < 0.01,
            "round {round}: {ours} segments should be within a percent of {reference}, by the formulas"
        );
    }
}

#[test]
fn cubic_follows_the_formulas_around_a_plateau() {
    let mut cubic = Cubic { w_max: 1460 * 1000, cwnd_prior: 1460 * 1000, epoch: None };
    let windows = compare(1460 * 700, &mut cubic, 16);
    assert_within_a_percent(&windows);
    assert!(
        windows.last().is_some_and(|(ours, _)| *ours > 1100.0),
        "the window should grow beyond the plateau"
    );
}

#[test]
fn cubic_follows_the_formulas_without_a_plateau() {
    assert_within_a_percent(&compare(1460 * 100, &mut Cubic::default(), 12));
}

#[test]
fn a_small_window_grows_as_with_reno() {
    let mut cubic = Cubic { w_max: 1460 * 20, cwnd_prior: 1460 * 20, epoch: None };
    assert_within_a_percent(&compare(1460 * 14, &mut cubic, 3));
}

#[test]
fn cubic_reduces_the_window_to_seven_tenths() {
    let (mut cubic, mut window) = (Cubic::default(), window(1_000_000));
    cubic.on_loss(&mut window, 1_000_000);
    assert_eq!(
        (window.ssthresh, cubic.w_max, cubic.cwnd_prior),
        (700_000, 1_000_000, 1_000_000),
        "the threshold should be seven tenths of the window (RFC 9438 §4.6)"
    );
}

#[test]
fn cubic_reduces_the_window_rather_than_the_bytes_in_flight() {
    let (mut cubic, mut large) = (Cubic::default(), window(1_000_000));
    cubic.on_loss(&mut large, 1460);
    assert_eq!(
        large.ssthresh, 700_000,
        "the window should count, because it grows only while it is used (RFC 9438 §4.6)"
    );
    let mut small = window(1460);
    cubic.on_loss(&mut small, 1460);
    assert_eq!(small.ssthresh, 2920, "the threshold should be at least two segments");
}

/// RFC 9438 §4.6: otherwise a bulk transfer after the message would need tens of round trips of congestion avoidance.
#[test]
fn the_loss_of_a_single_message_reduces_the_window_by_three_tenths() {
    for by_timeout in [false, true] {
        let mut trace = Trace::with(&Settings { tail_loss_probe: false, ..Settings::default() }, true);
        trace.at(110).send(1);
        if by_timeout {
            trace.wait_for_timeout();
        } else {
            trace.at(200).send(1).at(300).sack(0, &[(1, 2)]);
        }
        assert_eq!(
            (trace.retransmit(), trace.recovery.ssthresh()),
            (Vec::from([(0, 1)]), 7000),
            "the window should shrink by three tenths; by_timeout: {by_timeout}"
        );
    }
}

/// RFC 5681 §3.1: the bytes that were in flight before an acknowledgement of many segments count, not the remaining
/// ones.
#[test]
fn the_threshold_counts_bytes_acknowledged_together_with_the_loss() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).sack(6, &[(7, 10)]);
    assert_eq!(trace.retransmit(), [(6, 7)]);
    assert_eq!(
        trace.recovery.ssthresh(),
        5000,
        "the threshold should be half of the ten that were in flight (NewReno)"
    );
}

/// A timeout in recovery reduces the window that the recovery aims at, not the few segments in the network.
#[test]
fn a_timeout_in_a_recovery_reduces_the_threshold() {
    let mut trace = Trace::with(&Settings { tail_loss_probe: false, ..Settings::default() }, true);
    trace.at(110).fill();
    trace.at(210).sack(0, &[(5, 10)]);
    trace.retransmit();
    assert_eq!(trace.recovery.ssthresh(), 7000);
    trace.wait_for_timeout();
    assert_eq!(trace.recovery.ssthresh(), 4900);
}

/// As in Linux: the used part of the window is the maximum of the bytes in flight in the round.
#[test]
fn a_round_that_used_most_of_the_window_grows_it() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(9);
    let windows = [2, 4, 6, 8, 9].map(|una| {
        trace.at(210).ack(una);
        trace.recovery.cwnd() / 1000
    });
    assert_eq!(windows, [12, 14, 16, 18, 18], "the window should grow to twice the bytes used");
    trace.at(220).send(2).at(320).ack(11);
    assert_eq!(trace.recovery.cwnd() / 1000, 18, "bytes of an earlier round should not count");
}

#[test]
fn waiting_for_the_window_of_the_peer_does_not_count_as_idle() {
    let mut trace = Trace::without_probes();
    trace.at(110).fill();
    trace.at(210).ack(10);
    trace.recovery.on_blocked(ms(10_000));
    trace.recovery.on_idle(ms(10_100));
    assert_eq!(
        trace.recovery.cwnd(),
        20_000,
        "waiting should not count as idle: RFC 5681 §4.1 means a sender without data"
    );
    trace.recovery.on_idle(ms(10_400));
    assert_eq!(trace.recovery.cwnd(), 10_000);
}

/// RFC 9406: round trips of 100 ms, then a queue that makes them longer.
#[test]
fn longer_round_trips_end_the_first_slow_start_without_a_loss() {
    let windows = |hystart: bool| {
        let mut trace =
            Trace::with(&Settings { tail_loss_probe: false, hystart, ..Settings::default() }, true);
        let (mut una, mut at_ms) = (0, 110);
        let mut windows = Vec::new();
        for rtt_ms in [100, 100, 130, 130, 130, 130, 130, 130] {
            let sent = trace.at(at_ms).fill();
            at_ms += rtt_ms;
            for _ in 0..sent {
                una += 1;
                trace.at(at_ms).ack(una);
            }
            windows.push((trace.recovery.cwnd() / 1000, trace.recovery.ssthresh() < u64::MAX));
            at_ms += 1;
        }
        windows
    };
    assert_eq!(windows(false)[..6], [20, 40, 80, 160, 320, 640].map(|window| (window, false)));
    let with_hystart = windows(true);
    assert_eq!(with_hystart[..2], [(20, false), (40, false)]);
    assert!(
        with_hystart[4].0 < 200 && !with_hystart[4].1,
        "slow start should be conservative: {with_hystart:?}"
    );
    assert!(with_hystart[7].1 && with_hystart[7].0 < 300, "slow start should have ended: {with_hystart:?}");
}

#[test]
fn cubic_lowers_the_plateau_if_the_window_did_not_reach_it() {
    let mut cubic = Cubic { w_max: 1_000_000, ..Cubic::default() };
    let mut window = window(800_000);
    cubic.on_loss(&mut window, 800_000);
    assert_eq!(cubic.w_max, 680_000, "the plateau should be 0.85 of the window (RFC 9438 §4.7)");
    let mut reached = Cubic { w_max: 1_000_000, ..Cubic::default() };
    window.cwnd = 1_000_000;
    reached.on_loss(&mut window, 1_000_000);
    assert_eq!(reached.w_max, 1_000_000);
}

#[test]
fn a_timeout_discards_the_plateau_of_cubic() {
    let mut cubic = Cubic { w_max: 1_000_000, ..Cubic::default() };
    let mut window = window(1_000_000);
    cubic.on_timeout(&mut window, 1_000_000);
    assert_eq!((window.ssthresh, cubic.w_max), (700_000, 0));
    window.cwnd = 700_000;
    cubic.on_ack(ms(5000), &mut window, 1460, RTT);
    let epoch = cubic.epoch.expect("a stage of congestion avoidance");
    assert_eq!((epoch.k, epoch.origin), (0, 700_000), "the plateau should be discarded (RFC 9438 §4.8)");
}

#[test]
fn the_time_of_cubic_pauses_while_the_window_is_not_the_limit() {
    let (mut cubic, mut window) = (Cubic { w_max: 1_000_000, ..Cubic::default() }, window(700_000));
    cubic.on_ack(ms(1000), &mut window, 1460, RTT);
    cubic.on_unlimited(ms(1100));
    cubic.on_unlimited(ms(30_000));
    let before = window.cwnd;
    cubic.on_ack(ms(60_000), &mut window, 1460, RTT);
    assert!(window.cwnd < before + 1460, "an idle minute should not count as growth (RFC 9438 §4.2)");
    assert_eq!(cubic.epoch.expect("a stage of congestion avoidance").start, ms(59_900));
}

#[test]
fn cubic_grows_by_at_most_half_per_round_trip() {
    let (mut cubic, mut window) = (Cubic::default(), window(14_600));
    cubic.on_ack(ms(0), &mut window, 1460, RTT);
    let before = window.cwnd;
    for _ in 0..before / 1460 {
        cubic.on_ack(ms(100_000), &mut window, 1460, RTT);
    }
    assert!(
        window.cwnd <= before + before / 2 + 1460,
        "the window should grow by half at most (RFC 9438 §4.2)"
    );
}

#[test]
fn an_idle_connection_keeps_little_memory() {
    let mut trace = Trace::without_probes();
    trace.at(110).send(2000).at(210).ack(2000);
    assert!(
        trace.recovery.scoreboard.segments.capacity() <= 16,
        "an idle connection should keep room for 16 segments at most"
    );
    assert!(size_of::<Recovery>() <= 704, "{} bytes should be at most 704", size_of::<Recovery>());
}

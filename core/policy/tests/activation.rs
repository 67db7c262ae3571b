//! When a group moves to helpers and back. Latencies are measured against the default SLA of 1 ms.

mod trace;

use std::time::Duration;

use spillway_policy::{Activation, ActivationSettings, Carrier, Override};
use spillway_transport::Time;
use trace::{Group, MS, US};

const WITHIN_SLA: Duration = Duration::from_micros(200);

fn group(members: usize) -> Group {
    Group::new(members, 40, ActivationSettings::default(), 1)
}

/// The same latency on all carriers.
fn always(latency: Duration) -> impl FnMut(u64, Carrier) -> Option<Duration> {
    move |_, _| Some(latency)
}

#[test]
fn burst_is_relieved_within_a_second_and_each_member_moves_once() {
    for seed in 0..20 {
        let mut group = Group::new(400, 40, ActivationSettings::default(), seed);
        group.run_queue(5_000, |_| 0.6);
        assert!(group.notices.is_empty(), "a calm group should have no notices");
        let relieved_ms = group.run_queue(15_000, |_| 1.5).unwrap() - 5_000;
        group.print();
        let moved_ms = *group.orders_ms.last().unwrap() - 5_000;
        // Until all have moved, the queue grows by 0.5 of the direct capacity; then it shrinks by 5 - 1.5 = 3.5.
        let floor_ms = (0.5 * moved_ms as f64 / 3.5) as u64;
        assert!(
            relieved_ms <= floor_ms + 1_000,
            "relief should take at most {floor_ms} + 1,000 ms, not {relieved_ms}"
        );
        assert_eq!(group.labels(), ["canaries_move", "rest_moves", "cured"]);
        assert_eq!(
            (group.moves(), group.moves_max(), group.helped()),
            (400, 1, 400),
            "each of 400 members should move once"
        );
    }
}

#[test]
fn only_canaries_move_when_that_relieves_the_server() {
    let mut group = group(400);
    group.run_queue(5_000, |_| 0.6);
    // Slightly overloaded until just after the canaries have moved.
    group.run_queue(30_000, |ms| if ms < 5_200 { 1.05 } else { 0.93 });
    group.print();
    assert_eq!(group.labels()[..2], ["canaries_move", "calm_again"]);
    assert!(group.helped() >= 20, "the canaries, 5 % of 400, should stay helped");
}

#[test]
fn second_late_period_within_ten_seconds_moves_all_members() {
    for (period_ms, helped) in [(4_000, 200), (12_000, 10)] {
        let mut group = group(200);
        group.run(2_000, always(WITHIN_SLA));
        let stalls = |ms: u64, _| {
            let is_late = (0..2).any(|n| (2_000 + n * period_ms..2_160 + n * period_ms).contains(&ms));
            Some(if is_late { 5 * MS } else { WITHIN_SLA })
        };
        group.run(3_500, stalls);
        assert_eq!((group.labels(), group.helped()), (vec!["canaries_move", "calm_again"], 10));
        group.run(2_000 + period_ms + 2_000, stalls);
        group.print();
        assert_eq!(
            group.helped(),
            helped,
            "all members should move only if late again within 10 s, here after {period_ms} ms: {:?}",
            group.labels()
        );
    }
}

#[test]
fn calm_causes_no_release_after_the_helped_members_have_left() {
    let mut group = group(400);
    group.run_queue(5_000, |_| 0.6);
    group.run_queue(10_000, |ms| if ms < 5_200 { 1.05 } else { 0.93 });
    assert_eq!(group.labels()[..2], ["canaries_move", "calm_again"]);
    let decisions = group.labels().len();
    group.leave(Carrier::Helped, 400);
    group.leave(Carrier::Direct, 200);
    group.run_queue(60_000, |_| 0.4);
    group.print();
    assert_eq!(group.labels().len(), decisions, "a group without helped members should not be released");
}

#[test]
fn back_off_grows_while_help_does_not_cure_the_server() {
    let mut group = group(60);
    group.run(2_000, always(WITHIN_SLA));
    group.run(1_200_000, always(5 * MS));
    group.print();
    let labels = group.labels();
    assert_eq!(labels[..3], ["canaries_move", "rest_moves", "backs_off"]);
    assert!(
        group.times_of("rest_moves").len() <= 2,
        "all members should move once, and once more after the longest back-off of ten minutes"
    );
    let back_offs = group.times_of("backs_off");
    let waits: Vec<u64> = back_offs.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() >= 4, "the policy should back off at least five times in 20 minutes: {waits:?}");
    for pair in waits[..4].windows(2) {
        assert!(pair[1] * 10 > pair[0] * 11, "each wait should be longer than the last: {waits:?}");
    }
    // All members twice to helpers and back, and 60 moves of canaries.
    assert!(
        group.moves() <= 60 * 4 + 60,
        "60 members should move at most 300 times in 20 minutes, not {} times",
        group.moves()
    );
    assert_eq!(group.helped(), 0);
}

#[test]
fn burst_after_a_failed_attempt_is_relieved() {
    let mut group = group(200);
    group.run(2_000, always(WITHIN_SLA));
    group.run(10_000, always(5 * MS));
    group.run(60_000, always(WITHIN_SLA));
    assert_eq!((group.labels().last(), group.helped()), (Some(&"backs_off"), 0));
    let relieved_ms = group.run_queue(70_000, |_| 1.5).unwrap();
    group.print();
    assert!(
        relieved_ms < 61_200 && group.helped() == 200,
        "all members should be helped within 1.2 s of the burst at 60 s: {relieved_ms}"
    );
}

#[test]
fn slow_helper_gets_only_canaries() {
    let mut group = group(200);
    group.run(2_000, always(WITHIN_SLA));
    let worse = |_, carrier| Some(if carrier == Carrier::Helped { 20 * MS } else { 3 * MS });
    group.run(12_000, worse);
    group.print();
    assert_eq!(group.labels(), ["canaries_move", "backs_off"]);
    assert!(group.moves() <= 22, "5 % of the members should move, and return: {}", group.moves());
    assert_eq!(group.helped(), 0);
}

#[test]
fn silent_helper_gets_only_canaries() {
    let mut group = group(200);
    group.run(2_000, always(WITHIN_SLA));
    group.run(12_000, |_, carrier| (carrier == Carrier::Direct).then_some(3 * MS));
    group.print();
    assert_eq!(group.labels(), ["canaries_move", "backs_off"]);
}

#[test]
fn helper_that_becomes_slow_later_causes_back_off() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(10_000, |_| 1.5);
    assert_eq!(group.helped(), 200);
    group.run(30_000, |_, carrier| Some(if carrier == Carrier::Helped { 2_000 * MS } else { WITHIN_SLA }));
    group.print();
    assert_eq!((group.labels().last(), group.helped()), (Some(&"backs_off"), 0));
}

#[test]
fn short_stalls_move_only_canaries() {
    let mut group = group(400);
    group.run(60_000, |ms, _| {
        Some(if (5_000..5_180).contains(&(ms % 15_000)) { 30 * MS } else { WITHIN_SLA })
    });
    group.print();
    assert!(group.moves() <= 42, "5 % of the members should move, and return: {}", group.moves());
    assert!(group.times_of("rest_moves").is_empty(), "only canaries should move");
}

#[test]
fn unanswered_requests_prevent_a_release() {
    let mut group = group(100);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 100);
    // One in fifty requests is answered quickly; the others are never answered, and their clients wait.
    let mut requests = 0;
    group.run(200_000, |_, _| {
        requests += 1;
        (requests % 50 == 0).then_some(WITHIN_SLA)
    });
    group.print();
    assert!(group.times_of("released").is_empty(), "unanswered requests should prevent a release");
}

#[test]
fn silent_server_counts_as_late() {
    let mut group = group(100);
    group.run(2_000, always(WITHIN_SLA));
    group.run(3_000, |_, _| None);
    assert_eq!(group.labels().first(), Some(&"canaries_move"));
    let mut alone = Group::new(1, 40, ActivationSettings { canary_percent: 100, ..Default::default() }, 3);
    alone.run(2_000, always(WITHIN_SLA));
    alone.run(5_000, |_, _| None);
    assert_eq!(alone.labels().first(), Some(&"rest_moves"), "one waiting request should suffice");
}

#[test]
fn oscillating_load_moves_each_member_at_most_twice() {
    for period_ms in [2_000, 5_000, 10_000, 20_000] {
        for seed in 0..5 {
            let mut group = Group::new(100, 40, ActivationSettings::default(), seed);
            let wave = |ms: u64| (ms as f64 * std::f64::consts::TAU / period_ms as f64).sin();
            group.run_queue(62_000, |ms| 1.0 + 0.2 * wave(ms));
            assert!(
                group.moves_max() <= 2,
                "no member should move more than twice: {period_ms} ms, seed {seed}: {}",
                group.moves_max()
            );
            assert!(
                group.moves() <= 110,
                "100 members should move once, and at most 10 moves be more: {period_ms} ms, seed {seed}: {}",
                group.moves()
            );
        }
    }
}

#[test]
fn server_drain_ends_help_and_calm_at_an_unchanged_request_rate_does_not() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    group.run_queue(10_000, |_| 0.2);
    for _ in 0..10 {
        group.send_server_drain(Carrier::Helped, 20);
        group.run_queue(group.now_ms + 100, |_| 0.2);
    }
    assert_eq!((group.helped(), group.times_of("released").len()), (0, 1), "the group should return once");
    group.run_queue(30_000, |_| 0.2);
    assert_eq!(group.moves_max(), 2);

    let mut alone = Group::new(200, 40, ActivationSettings::default(), 2);
    alone.run_queue(2_000, |_| 0.6);
    alone.run_queue(6_000, |_| 1.5);
    assert_eq!(alone.helped(), 200);
    // The latency falls, but not the number of requests.
    let mut requests = 0;
    alone.run(80_000, |_, _| {
        requests += 1;
        Some(if requests % 2 == 0 { WITHIN_SLA } else { 200 * US })
    });
    assert_eq!(alone.helped(), 200, "the group should stay helped at the request rate at which it moved");
}

#[test]
fn idle_group_returns_and_then_needs_no_timeout() {
    let mut group = group(50);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 50);
    while group.now_ms < 60_000 {
        group.step_without_requests();
    }
    group.print();
    assert_eq!(
        (group.helped(), group.labels().last()),
        (0, Some(&"released")),
        "the idle group should have returned"
    );
    assert_eq!(group.activation.poll_timeout(), None, "an idle direct group should need no looks");
}

#[test]
fn full_helpers_cause_few_attempts_and_no_moves() {
    let mut group = group(200);
    group.helpers_are_full = true;
    group.run(2_000, always(WITHIN_SLA));
    group.run(62_000, always(5 * MS));
    group.print();
    assert_eq!(group.moves(), 0);
    assert!(
        group.orders_ms.len() <= 100,
        "200 members should get at most 100 orders in a minute, not {}",
        group.orders_ms.len()
    );
    assert!(group.times_of("no_helpers").len() >= 3, "attempts should be repeated at least three times");
}

#[test]
fn moves_completed_after_their_timeout_are_kept() {
    let mut group = Group::new(1, 40, ActivationSettings::default(), 2);
    group.move_ms = 5_500;
    group.run(2_000, always(WITHIN_SLA));
    group.run(20_000, |_, carrier| Some(if carrier == Carrier::Direct { 60 * MS } else { WITHIN_SLA }));
    group.print();
    assert_eq!(group.labels(), ["others_first", "rest_moves", "no_helpers"]);
    assert_eq!((group.helped(), group.moves(), group.orders_ms.len()), (1, 1, 1), "a late move should count");
}

#[test]
fn no_orders_to_helpers_are_given_while_none_is_known() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 200);
    group.activation.set_helpers_available(false);
    group.lose_helpers();
    let orders = group.orders_ms.len();
    group.run_queue(12_000, |_| 1.5);
    assert_eq!((group.orders_ms.len(), group.helped()), (orders, 0), "no order should be given");
    assert_eq!(group.labels().last(), Some(&"no_helpers"));
    group.activation.set_helpers_available(true);
    group.run_queue(14_000, |_| 1.5);
    group.print();
    assert_eq!(group.helped(), 200);
}

#[test]
fn burst_without_helpers_causes_one_notice() {
    let mut group = group(50);
    group.activation.set_helpers_available(false);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(12_000, |_| 1.5);
    assert_eq!((group.labels(), group.orders_ms.len()), (vec!["no_helpers"], 0));
}

#[test]
fn many_processes_with_one_connection_each_do_not_move_at_once() {
    let mut groups: Vec<Group> =
        (0..400).map(|seed| Group::new(1, 20, ActivationSettings::default(), seed)).collect();
    let (mut queue_ms, mut last_late_ms, mut moves_ms) = (0.0_f64, 0, Vec::new());
    for now_ms in 0..12_000 {
        let load = if now_ms < 3_000 { 0.6 } else { 1.5 };
        let helped: usize = groups.iter().map(Group::helped).sum();
        queue_ms = (queue_ms + load * (1.0 - helped as f64 / 400.0 * 0.8) - 1.0).max(0.0);
        let queue = Duration::from_secs_f64(queue_ms / 1000.0);
        if queue > MS {
            last_late_ms = now_ms;
        }
        for group in &mut groups {
            group
                .step(|carrier| Some(queue + if carrier == Carrier::Helped { 500 * US } else { WITHIN_SLA }));
            moves_ms.extend((0..group.orders_in_step).map(|_| now_ms));
        }
    }
    let (first, last) = (moves_ms[0], moves_ms[moves_ms.len() - 1]);
    let within = |from: u64, to: u64| moves_ms.iter().filter(|ms| (from..to).contains(*ms)).count();
    let busiest = (first..last).map(|ms| within(ms, ms + 100)).max().unwrap();
    let early = within(first, first + 200);
    println!(
        "{} moves, {early} in the first 200 ms, at most {busiest} in 100 ms, {first} to {last} ms",
        moves_ms.len()
    );
    // 5 % of 400 processes are 20; each process draws for itself.
    assert!((5..=60).contains(&early), "a few percent should move in the first 200 ms: {early}");
    assert!(busiest <= 260, "not all 400 should move within the same 100 ms: {busiest}");
    let helped: usize = groups.iter().map(Group::helped).sum();
    assert!(
        helped >= 380 && last_late_ms < 4_300,
        "at least 380 should be helped, not {helped}, and none late after 4,300 ms, not {last_late_ms}"
    );
    assert!(groups.iter().all(|group| group.moves_max() <= 2), "no member should move more than twice");
}

#[test]
fn override_replaces_the_policy_at_any_stage() {
    for seed in 0..10 {
        let mut group = Group::new(50, 40, ActivationSettings::default(), seed);
        group.run(1_000, always(WITHIN_SLA));
        group.set_override(Override::On, None);
        group.run(2_000, always(WITHIN_SLA));
        assert_eq!(group.helped(), 50, "on: all should be helped although no member is late");
        group.run(8_000, |_, carrier| Some(if carrier == Carrier::Helped { 50 * MS } else { WITHIN_SLA }));
        assert_eq!(group.helped(), 50, "on: all should be helped although helpers are slow");
        group.set_override(Override::Off, None);
        // Each seed sets the next override at a different stage.
        group.run(8_000 + 137 * seed, always(WITHIN_SLA));
        group.run(20_000, always(50 * MS));
        assert_eq!(group.helped(), 0, "off: all should be direct although all are late");
        group.set_override(Override::Auto, None);
        group.run_queue(30_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "auto: the policy should decide");
        group.set_override(Override::Off, Some(Duration::from_secs(5)));
        group.run_queue(34_900, |_| 1.5);
        assert_eq!(group.helped(), 0);
        group.run_queue(38_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "the override should end after 5 s");
        assert_eq!(group.counters().overrides, 4);
    }
}

#[test]
fn member_joined_without_helpers_is_helped_when_one_is_known() {
    for relief in [Override::Auto, Override::On] {
        let mut group = group(50);
        group.run_queue(2_000, |_| 0.6);
        group.set_override(relief, None);
        group.run_queue(6_000, |_| 1.5);
        assert_eq!(group.helped(), 50);
        group.activation.set_helpers_available(false);
        assert_eq!(group.join(), Carrier::Direct);
        group.run_queue(8_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "the new member should be direct while no helper is known");
        group.activation.set_helpers_available(true);
        group.run_queue(9_000, |_| 1.5);
        assert_eq!(group.helped(), 51, "the new member should be helped with override {relief}");
    }
}

#[test]
fn members_join_on_the_carrier_of_the_group() {
    let mut group = group(100);
    let now = |group: &Group| trace::at(group.now_ms);
    group.run_queue(2_000, |_| 0.6);
    let direct = group.activation.join(now(&group)).unwrap();
    assert_eq!(direct.1, Carrier::Direct);
    group.activation.leave(now(&group), direct.0);
    group.run_queue(6_000, |_| 1.5);
    let helped = group.activation.join(now(&group)).unwrap();
    assert_eq!((helped.1, group.activation.carrier(helped.0)), (Carrier::Helped, Some(Carrier::Helped)));
    group.activation.leave(now(&group), helped.0);
    assert_eq!(group.activation.carrier(helped.0), None);
    group.activation.record_latency(now(&group), helped.0, 5 * MS);
    group.activation.carried(now(&group), helped.0, Carrier::Direct);
    assert_eq!(group.activation.status(now(&group)).members, 100);
}

#[test]
fn server_drain_moves_direct_members_to_helpers_and_helped_ones_back() {
    let mut group = group(100);
    group.run(2_000, always(WITHIN_SLA));
    group.send_server_drain(Carrier::Direct, 100);
    group.run(3_000, always(WITHIN_SLA));
    assert_eq!((group.helped(), group.labels()), (100, vec!["server_asks"]));
    while group.now_ms < 60_000 {
        group.step_without_requests();
    }
    assert_eq!(group.helped(), 100, "only the server should end help that it has requested");
    group.send_server_drain(Carrier::Helped, 100);
    group.run(61_000, always(WITHIN_SLA));
    assert_eq!((group.helped(), group.labels()), (0, vec!["server_asks", "released"]));

    let mut refused = Group::new(100, 40, ActivationSettings::default(), 5);
    refused.run(2_000, always(WITHIN_SLA));
    refused.run(2_700, always(5 * MS));
    assert!(refused.helped() > 0, "late replies should move members");
    refused.send_server_drain(Carrier::Helped, 1);
    refused.run(10_000, always(5 * MS));
    assert_eq!((refused.helped(), refused.labels().last()), (0, Some(&"backs_off")));
}

#[test]
fn each_request_given_up_counts_also_when_several_waited_on_one_connection() {
    let mut activation = Activation::new(Time(0), ActivationSettings::default(), 1).unwrap();
    let (member, _) = activation.join(Time(0)).unwrap();
    activation.set_oldest_request(member, Some(Time(0)));
    for _ in 0..3 {
        activation.record_given_up(Time(1_000_000_000), member, Duration::from_secs(1));
    }
    assert_eq!(activation.counters().gave_up, 3);
    activation.leave(Time(1_000_000_000), member);
    activation.record_given_up(Time(1_000_000_000), member, Duration::from_secs(1));
    assert_eq!(activation.counters().gave_up, 3, "a member that has left should not count");
}

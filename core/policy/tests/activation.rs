//! When help is called and given up: each test is a series of events.

mod trace;

use std::time::Duration;

use spillway_policy::{ActivationSettings, Carrier, Override};
use trace::{Group, MS, US};

const CALM: Duration = Duration::from_micros(200);

fn group(members: usize) -> Group {
    Group::new(members, 40, ActivationSettings::default(), 1)
}

/// The same latency on all carriers.
fn always(latency: Duration) -> impl FnMut(u64, Carrier) -> Option<Duration> {
    move |_, _| Some(latency)
}

#[test]
fn a_burst_is_relieved_within_a_second_and_everybody_moves_once() {
    for seed in 0..20 {
        let mut group = Group::new(400, 40, ActivationSettings::default(), seed);
        group.run_queue(5_000, |_| 0.6);
        assert!(group.notices.is_empty());
        let relieved_ms = group.run_queue(15_000, |_| 1.5).unwrap() - 5_000;
        group.print();
        let moved_ms = *group.orders_ms.last().unwrap() - 5_000;
        // The excess is 0.5 of the direct capacity until all have moved; the helped capacity is 5, so 3.5 are left for it.
        let floor_ms = (0.5 * moved_ms as f64 / 3.5) as u64;
        assert!(relieved_ms <= floor_ms + 1_000, "{relieved_ms} ms, floor {floor_ms}");
        assert_eq!(group.course(), ["canaries_move", "rest_moves", "cured"]);
        assert_eq!((group.switches(), group.switches_max(), group.helped()), (400, 1, 400));
    }
}

#[test]
fn a_few_move_first_and_are_all_that_move_when_that_is_enough() {
    let mut group = group(400);
    group.run_queue(5_000, |_| 0.6);
    // Slightly overloaded until just after the canaries have moved.
    group.run_queue(30_000, |ms| if ms < 5_200 { 1.05 } else { 0.93 });
    group.print();
    assert_eq!(group.course()[..2], ["canaries_move", "calm_again"]);
    assert!(group.helped() >= 20, "they stay");
}

#[test]
fn who_is_late_again_and_again_for_a_moment_is_helped_whole() {
    for (again_ms, helped) in [(4_000, 200), (12_000, 10)] {
        let mut group = group(200);
        group.run(2_000, always(CALM));
        let stalls = |ms: u64, _| {
            let is_late = (0..2).any(|n| (2_000 + n * again_ms..2_160 + n * again_ms).contains(&ms));
            Some(if is_late { 5 * MS } else { CALM })
        };
        group.run(3_500, stalls);
        assert_eq!((group.course(), group.helped()), (vec!["canaries_move", "calm_again"], 10));
        group.run(2_000 + again_ms + 2_000, stalls);
        group.print();
        assert_eq!(group.helped(), helped, "again after {again_ms} ms: {:?}", group.course());
    }
}

#[test]
fn a_calm_releases_nobody_when_the_few_that_were_helped_have_left() {
    let mut group = group(400);
    group.run_queue(5_000, |_| 0.6);
    group.run_queue(10_000, |ms| if ms < 5_200 { 1.05 } else { 0.93 });
    assert_eq!(group.course()[..2], ["canaries_move", "calm_again"]);
    let decided = group.course().len();
    group.leave(Carrier::Helped, 400);
    group.leave(Carrier::Direct, 200);
    group.run_queue(60_000, |_| 0.4);
    group.print();
    assert_eq!(group.course().len(), decided, "there is nobody to release");
}

#[test]
fn a_server_that_is_slow_for_other_reasons_is_left_alone_ever_longer() {
    let mut group = group(60);
    group.run(2_000, always(CALM));
    group.run(1_200_000, always(5 * MS));
    group.print();
    let course = group.course();
    assert_eq!(course[..3], ["canaries_move", "rest_moves", "backs_off"]);
    assert!(
        group.when("rest_moves").len() <= 2,
        "all have moved once, or twice when ten minutes have passed"
    );
    let ends = group.when("backs_off");
    let waits: Vec<u64> = ends.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(waits.len() >= 4, "{waits:?}");
    for two in waits[..4].windows(2) {
        assert!(two[1] * 10 > two[0] * 11, "longer each time: {waits:?}");
    }
    assert!(group.switches() <= 60 * 4 + 60, "{} moves of 60 in 20 minutes", group.switches());
    assert_eq!(group.helped(), 0);
}

#[test]
fn whoever_was_in_vain_is_relieved_all_the_same_when_a_real_burst_comes_later() {
    let mut group = group(200);
    group.run(2_000, always(CALM));
    group.run(10_000, always(5 * MS));
    group.run(60_000, always(CALM));
    assert_eq!((group.course().last(), group.helped()), (Some(&"backs_off"), 0));
    let relieved_ms = group.run_queue(70_000, |_| 1.5).unwrap();
    group.print();
    assert!(relieved_ms < 61_200 && group.helped() == 200, "{relieved_ms}");
}

#[test]
fn a_helper_that_makes_it_worse_is_left_after_a_few_have_tried() {
    let mut group = group(200);
    group.run(2_000, always(CALM));
    let worse = |_, carrier| Some(if carrier == Carrier::Helped { 20 * MS } else { 3 * MS });
    group.run(12_000, worse);
    group.print();
    assert_eq!(group.course(), ["canaries_move", "backs_off"]);
    assert!(group.switches() <= 22, "5 % there and back: {}", group.switches());
    assert_eq!(group.helped(), 0);
}

#[test]
fn a_helper_that_answers_nothing_is_left_too() {
    let mut group = group(200);
    group.run(2_000, always(CALM));
    group.run(12_000, |_, carrier| (carrier == Carrier::Direct).then_some(3 * MS));
    group.print();
    assert_eq!(group.course(), ["canaries_move", "backs_off"]);
}

#[test]
fn a_helper_that_goes_bad_later_is_left_too() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(10_000, |_| 1.5);
    assert_eq!(group.helped(), 200);
    group.run(30_000, |_, carrier| Some(if carrier == Carrier::Helped { 2_000 * MS } else { CALM }));
    group.print();
    assert_eq!((group.course().last(), group.helped()), (Some(&"backs_off"), 0));
}

#[test]
fn stalls_move_a_few_at_most() {
    let mut group = group(400);
    group.run(60_000, |ms, _| Some(if (5_000..5_180).contains(&(ms % 15_000)) { 30 * MS } else { CALM }));
    group.print();
    assert!(group.switches() <= 42, "{}", group.switches());
    assert!(group.when("rest_moves").is_empty());
}

#[test]
fn clients_that_gave_up_are_no_calm() {
    let mut group = group(100);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 100);
    // One in fifty requests is answered quickly; the others are never answered, and their clients wait.
    let mut asked = 0;
    group.run(200_000, |_, _| {
        asked += 1;
        (asked % 50 == 0).then_some(CALM)
    });
    group.print();
    assert!(group.when("released").is_empty(), "little is answered while much waits");
}

#[test]
fn a_server_that_answers_nothing_is_late() {
    let mut group = group(100);
    group.run(2_000, always(CALM));
    group.run(3_000, |_, _| None);
    assert_eq!(group.course().first(), Some(&"canaries_move"));
    let mut alone = Group::new(1, 40, ActivationSettings { canary_percent: 100, ..Default::default() }, 3);
    alone.run(2_000, always(CALM));
    alone.run(5_000, |_, _| None);
    assert_eq!(alone.course().first(), Some(&"rest_moves"), "however few can wait");
}

#[test]
fn a_load_that_oscillates_around_the_threshold_switches_nobody_to_and_fro() {
    for period_ms in [2_000, 5_000, 10_000, 20_000] {
        for seed in 0..5 {
            let mut group = Group::new(100, 40, ActivationSettings::default(), seed);
            let wave = |ms: u64| (ms as f64 * std::f64::consts::TAU / period_ms as f64).sin();
            group.run_queue(62_000, |ms| 1.0 + 0.2 * wave(ms));
            assert!(group.switches_max() <= 2, "{period_ms} ms, seed {seed}: {}", group.switches_max());
            assert!(group.switches() <= 110, "{period_ms} ms, seed {seed}: {}", group.switches());
        }
    }
}

#[test]
fn after_the_burst_the_server_sends_them_back_or_a_long_calm_does() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    group.run_queue(10_000, |_| 0.2);
    for _ in 0..10 {
        group.server_drains(Carrier::Helped, 20);
        group.run_queue(group.now_ms + 100, |_| 0.2);
    }
    assert_eq!((group.helped(), group.when("released").len()), (0, 1));
    group.run_queue(30_000, |_| 0.2);
    assert_eq!(group.switches_max(), 2);

    let mut alone = Group::new(200, 40, ActivationSettings::default(), 2);
    alone.run_queue(2_000, |_| 0.6);
    alone.run_queue(6_000, |_| 1.5);
    assert_eq!(alone.helped(), 200);
    // The number of requests does not fall, only the latency does.
    let mut asked = 0;
    alone.run(80_000, |_, _| {
        asked += 1;
        Some(if asked % 2 == 0 { CALM } else { 200 * US })
    });
    assert_eq!(alone.helped(), 200, "as many requests as when help was called: they stay");
}

#[test]
fn a_group_with_nothing_to_ask_returns_by_itself_and_then_rests() {
    let mut group = group(50);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 50);
    while group.now_ms < 60_000 {
        group.obey_only();
    }
    group.print();
    assert_eq!((group.helped(), group.course().last()), (0, Some(&"released")));
    assert_eq!(group.activation.poll_timeout(), None, "nothing to look at");
}

#[test]
fn when_all_helpers_are_full_everybody_stays_and_few_ask() {
    let mut group = group(200);
    group.are_full = true;
    group.run(2_000, always(CALM));
    group.run(62_000, always(5 * MS));
    group.print();
    assert_eq!(group.switches(), 0);
    assert!(group.orders_ms.len() <= 100, "{} attempts of 200 clients in a minute", group.orders_ms.len());
    assert!(group.when("no_helpers").len() >= 3);
}

#[test]
fn moves_that_arrive_after_their_timeout_are_kept() {
    let mut group = Group::new(1, 40, ActivationSettings::default(), 2);
    group.move_ms = 5_500;
    group.run(2_000, always(CALM));
    group.run(20_000, |_, carrier| Some(if carrier == Carrier::Direct { 60 * MS } else { CALM }));
    group.print();
    assert_eq!(group.course(), ["others_first", "rest_moves", "no_helpers"]);
    assert_eq!((group.helped(), group.switches(), group.orders_ms.len()), (1, 1, 1));
}

#[test]
fn when_all_helpers_die_nobody_is_told_to_go_to_one_until_there_is_one() {
    let mut group = group(200);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(6_000, |_| 1.5);
    assert_eq!(group.helped(), 200);
    group.activation.helpers(false);
    group.lose_helpers();
    let orders = group.orders_ms.len();
    group.run_queue(12_000, |_| 1.5);
    assert_eq!((group.orders_ms.len(), group.helped()), (orders, 0));
    assert_eq!(group.course().last(), Some(&"no_helpers"));
    group.activation.helpers(true);
    group.run_queue(14_000, |_| 1.5);
    group.print();
    assert_eq!(group.helped(), 200);
}

#[test]
fn without_a_helper_a_burst_is_said_once() {
    let mut group = group(50);
    group.activation.helpers(false);
    group.run_queue(2_000, |_| 0.6);
    group.run_queue(12_000, |_| 1.5);
    assert_eq!((group.course(), group.orders_ms.len()), (vec!["no_helpers"], 0));
}

#[test]
fn many_processes_with_one_connection_each_send_a_few_first_and_do_not_act_as_one() {
    let mut groups: Vec<Group> =
        (0..400).map(|seed| Group::new(1, 20, ActivationSettings::default(), seed)).collect();
    let (mut queue_ms, mut last_late_ms, mut moved) = (0.0_f64, 0, Vec::new());
    for now_ms in 0..12_000 {
        let load = if now_ms < 3_000 { 0.6 } else { 1.5 };
        let helped: usize = groups.iter().map(Group::helped).sum();
        queue_ms = (queue_ms + load * (1.0 - helped as f64 / 400.0 * 0.8) - 1.0).max(0.0);
        let queue = Duration::from_secs_f64(queue_ms / 1000.0);
        if queue > MS {
            last_late_ms = now_ms;
        }
        for group in &mut groups {
            group.step(|carrier| Some(queue + if carrier == Carrier::Helped { 500 * US } else { CALM }));
            moved.extend((0..group.moved).map(|_| now_ms));
        }
    }
    let (first, last) = (moved[0], moved[moved.len() - 1]);
    let within = |from: u64, to: u64| moved.iter().filter(|ms| (from..to).contains(*ms)).count();
    let busiest = (first..last).map(|ms| within(ms, ms + 100)).max().unwrap();
    let early = within(first, first + 200);
    println!(
        "{} moves, {early} in the first 200 ms, at most {busiest} in 100 ms, {first} to {last} ms",
        moved.len()
    );
    assert!((5..=60).contains(&early), "a few percent first: {early}");
    assert!(busiest <= 260, "{busiest} of 400 in the same 100 ms");
    let helped: usize = groups.iter().map(Group::helped).sum();
    assert!(helped >= 380 && last_late_ms < 4_300, "{helped} helped, late until {last_late_ms}");
    assert!(groups.iter().all(|group| group.switches_max() <= 2));
}

#[test]
fn the_operators_word_overrides_everything_at_any_time() {
    for seed in 0..10 {
        let mut group = Group::new(50, 40, ActivationSettings::default(), seed);
        group.run(1_000, always(CALM));
        group.say(Override::On, None);
        group.run(2_000, always(CALM));
        assert_eq!(group.helped(), 50, "helped although nobody is late");
        group.run(8_000, |_, carrier| Some(if carrier == Carrier::Helped { 50 * MS } else { CALM }));
        assert_eq!(group.helped(), 50, "and although it is of no use");
        group.say(Override::Off, None);
        // The override comes at different stages.
        group.run(8_000 + 137 * seed, always(CALM));
        group.run(20_000, always(50 * MS));
        assert_eq!(group.helped(), 0, "nobody is helped although all are late");
        group.say(Override::Auto, None);
        group.run_queue(30_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "and then policies decide");
        group.say(Override::Off, Some(Duration::from_secs(5)));
        group.run_queue(34_900, |_| 1.5);
        assert_eq!(group.helped(), 0);
        group.run_queue(38_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "for a time");
        assert_eq!(group.counters().words, 4);
    }
}

#[test]
fn who_joins_while_no_helper_is_known_follows_the_group_when_there_is_one() {
    for word in [Override::Auto, Override::On] {
        let mut group = group(50);
        group.run_queue(2_000, |_| 0.6);
        group.say(word, None);
        group.run_queue(6_000, |_| 1.5);
        assert_eq!(group.helped(), 50);
        group.activation.helpers(false);
        assert_eq!(group.join(), Carrier::Direct);
        group.run_queue(8_000, |_| 1.5);
        assert_eq!(group.helped(), 50, "nobody can go");
        group.activation.helpers(true);
        group.run_queue(9_000, |_| 1.5);
        assert_eq!(group.helped(), 51, "{word}");
    }
}

#[test]
fn who_joins_goes_where_the_group_is_and_who_leaves_is_forgotten() {
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
    group.activation.measured(now(&group), helped.0, 5 * MS);
    group.activation.carried(now(&group), helped.0, Carrier::Direct);
    assert_eq!(group.activation.status(now(&group)).members, 100);
}

#[test]
fn the_server_may_ask_for_help_and_refuse_it() {
    let mut group = group(100);
    group.run(2_000, always(CALM));
    group.server_drains(Carrier::Direct, 100);
    group.run(3_000, always(CALM));
    assert_eq!((group.helped(), group.course()), (100, vec!["server_asks"]));
    while group.now_ms < 60_000 {
        group.obey_only();
    }
    assert_eq!(group.helped(), 100, "who asked for it ends it");
    group.server_drains(Carrier::Helped, 100);
    group.run(61_000, always(CALM));
    assert_eq!((group.helped(), group.course()), (0, vec!["server_asks", "released"]));

    let mut refused = Group::new(100, 40, ActivationSettings::default(), 5);
    refused.run(2_000, always(CALM));
    refused.run(2_700, always(5 * MS));
    assert!(refused.helped() > 0);
    refused.server_drains(Carrier::Helped, 1);
    refused.run(10_000, always(5 * MS));
    assert_eq!((refused.helped(), refused.course().last()), (0, Some(&"backs_off")));
}

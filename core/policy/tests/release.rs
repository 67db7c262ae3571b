//! When a server sends its helped sessions back: each test is a series of looks, one a second.

use std::time::Duration;

use spillway_policy::Override;
use spillway_policy::release::{Release, ReleaseNotice, ReleaseSettings, Sample, Stop};
use spillway_transport::Time;

const LOW: Duration = Duration::from_micros(100);
const HIGH: Duration = Duration::from_millis(3);

/// A server whose sessions follow each *drain* at once.
struct Server {
    release: Release,
    now_s: u64,
    sessions: u32,
    helped: u32,
    notices: Vec<ReleaseNotice>,
    drains: Vec<Time>,
}

impl Server {
    fn new(settings: ReleaseSettings) -> Server {
        let release = Release::new(Time(0), settings, 7);
        Server { release, now_s: 0, sessions: 200, helped: 0, notices: Vec::new(), drains: Vec::new() }
    }

    fn default() -> Server {
        Server::new(ReleaseSettings::default())
    }

    /// Runs `seconds` seconds with `requests` requests each.
    fn run(&mut self, seconds: u64, requests: u64, service: Duration, busy_percent: Option<u32>) {
        for _ in 0..seconds {
            self.now_s += 1;
            let now = Time(self.now_s * 1_000_000_000);
            let helped = requests * u64::from(self.helped) / u64::from(self.sessions);
            let service = (requests > 0).then_some(service);
            let helped_sessions = self.helped;
            self.release.look(now, Sample { requests, helped, service, busy_percent, helped_sessions });
            for ms in 0..1000 {
                let now = now + Duration::from_millis(ms);
                while self.release.poll(now) {
                    self.helped = self.helped.saturating_sub(1);
                    self.drains.push(now);
                }
            }
            self.notices.extend(self.release.poll_notice());
        }
    }

    /// A server after a relieved burst: help began at 10,000 requests/s.
    fn after_a_burst() -> Server {
        let mut server = Server::default();
        server.run(20, 6_000, LOW, None);
        server.run(2, 10_000, HIGH, None);
        server.helped = server.sessions;
        server.run(10, 15_000, LOW, None);
        server
    }
}

#[test]
fn both_low_for_a_while_releases_over_a_while() {
    let mut server = Server::after_a_burst();
    server.run(10, 5_000, LOW, None);
    assert!(server.notices.is_empty() && server.helped == 200, "not yet");
    server.run(10, 5_000, LOW, None);
    let [ReleaseNotice::Begins { sessions: 200, per_s: 5_000, low_per_s: 6_000, .. }, ReleaseNotice::Ends] =
        server.notices[..]
    else {
        panic!("{:?}", server.notices)
    };
    assert_eq!((server.helped, server.release.counters().drains), (0, 200));
    let (first, last) = (server.drains[0], server.drains[199]);
    let took = last.since(first);
    assert!((4..8).contains(&took.as_secs()), "spread: {took:?}");
}

#[test]
fn a_burst_that_was_relieved_between_two_looks_counts_with_what_was_direct() {
    let mut server = Server::default();
    server.run(20, 5_000, LOW, None);
    server.helped = server.sessions * 3 / 10;
    server.run(1, 11_000, HIGH, None); // 7,700 of them direct
    server.helped = server.sessions;
    server.run(10, 15_000, LOW, None);
    assert_eq!(server.release.low_per_s(), Some(7_700 * 60 / 100));
}

#[test]
fn one_of_the_two_is_not_enough() {
    let mut server = Server::after_a_burst();
    server.run(100, 15_000, LOW, None); // latency is low because helpers help
    server.run(100, 5_000, HIGH, None); // throughput is low because clients have given up
    server.run(100, 6_100, LOW, None);
    assert!(server.notices.is_empty() && server.helped == 200);
    for _ in 0..50 {
        server.run(9, 5_000, LOW, None);
        server.run(1, 9_000, LOW, None);
    }
    assert!(server.notices.is_empty(), "never for long enough");
}

#[test]
fn a_release_that_is_too_much_stops_and_the_next_waits_longer() {
    let mut server = Server::after_a_burst();
    server.run(12, 5_000, LOW, None);
    assert!((1..200).contains(&server.helped), "half way");
    server.run(2, 5_000, HIGH, None);
    let helped = server.helped;
    assert!(helped > 20, "some are left");
    let Some(ReleaseNotice::Stops { why: Stop::Latency, sessions, low_for }) = server.notices.last() else {
        panic!("{:?}", server.notices)
    };
    assert_eq!((*sessions, low_for.as_secs()), (helped, 20));
    server.run(20, 5_000, LOW, None);
    assert_eq!(server.helped, helped);
    server.run(10, 5_000, LOW, None);
    assert_eq!(server.helped, 0);
}

#[test]
fn one_look_alone_stops_no_release_whatever_an_earlier_one_saw() {
    let mut server = Server::after_a_burst();
    server.run(12, 5_000, LOW, None);
    server.run(2, 5_000, HIGH, None);
    assert_eq!(server.release.counters().stopped, 1);
    while server.release.counters().releases == 1 {
        server.run(1, 5_000, LOW, None);
    }
    server.run(1, 5_000, HIGH, None);
    server.run(20, 5_000, LOW, None);
    assert_eq!((server.helped, server.release.counters().stopped), (0, 1));
}

#[test]
fn load_that_comes_back_soon_makes_the_next_release_wait_longer_and_that_is_forgotten() {
    let mut server = Server::after_a_burst();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let began = server.now_s;
        while server.helped > 0 {
            server.run(1, 5_000, LOW, None);
            assert!(server.now_s - began < 700);
        }
        waits.push(server.now_s - began);
        server.run(10, 9_900, LOW, None);
        server.helped = server.sessions;
        server.run(2, 15_000, LOW, None);
    }
    assert!(waits.is_sorted_by(|a, b| a < b || *a > 600), "{waits:?}");
    assert!(waits[7] > 600, "up to ten minutes: {waits:?}");
    assert_eq!(server.release.counters().too_soon, 8);
    server.run(6_000, 15_000, LOW, None);
    server.run(22, 5_000, LOW, None);
    assert_eq!(server.helped, 0, "an hour and a half later it is as at first");
}

#[test]
fn what_direct_load_would_cost_counts_not_what_helped_load_does() {
    // 10,000 direct requests/s use 98 % of the CPU; 8,000 helped ones use 10 %.
    let mut server = Server::new(ReleaseSettings { low_percent: 90, ..Default::default() });
    server.run(20, 10_000, LOW, Some(98));
    server.helped = server.sessions;
    server.run(60, 8_000, LOW, Some(10));
    assert!(server.notices.is_empty(), "80 % busy, it would be");
    server.run(12, 5_000, LOW, Some(7));
    assert!(server.helped < 200, "half as busy is low");
}

#[test]
fn a_capacity_may_be_given_and_without_any_measure_only_quiet_is_low() {
    let mut known = Server::new(ReleaseSettings { capacity_per_s: Some(20_000), ..Default::default() });
    known.helped = known.sessions;
    known.run(20, 11_000, LOW, None);
    assert_eq!(known.helped, 0);
    let mut unknown = Server::default();
    unknown.helped = unknown.sessions;
    unknown.run(60, 11_000, LOW, None);
    unknown.run(60, 1_200, LOW, None);
    assert_eq!(unknown.helped, 200);
    unknown.run(20, 1_000, LOW, None);
    assert_eq!(unknown.helped, 0);
    let mut idle = Server::after_a_burst();
    idle.run(20, 0, LOW, None);
    assert_eq!(idle.helped, 0);
}

#[test]
fn the_operators_word_overrides_it() {
    let mut server = Server::after_a_burst();
    server.release.say(Override::On);
    server.run(100, 100, LOW, None);
    assert_eq!(server.helped, 200);
    server.release.say(Override::Off);
    server.run(10, 15_000, HIGH, Some(100));
    assert_eq!(server.helped, 0);
    server.helped = 5;
    server.run(10, 15_000, HIGH, Some(100));
    assert_eq!(server.helped, 0, "whoever comes later too");
}

#[test]
fn any_samples_at_any_time_are_taken() {
    let mut release = Release::new(Time(5), ReleaseSettings::default(), 1);
    let odd = [0, 1, 77, u64::MAX];
    for (n, ns) in odd.into_iter().cycle().take(64).enumerate() {
        let sample = Sample {
            requests: odd[n % 3],
            helped: odd[(n / 3) % 4],
            service: Some(Duration::from_nanos(odd[(n / 5) % 4])),
            busy_percent: Some(if n % 2 == 0 { u32::MAX } else { 0 }),
            helped_sessions: if n % 7 == 0 { 0 } else { u32::MAX },
        };
        release.look(Time(ns), sample);
        release.poll(Time(ns));
        let _ = (release.poll_timeout(), release.poll_notice().map(|notice| notice.to_string()));
    }
}

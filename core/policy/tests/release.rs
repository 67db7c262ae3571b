//! When a server sends its helped sessions back. The server takes a sample each second (a *look*).

use std::time::Duration;

use spillway_policy::Override;
use spillway_policy::release::{Release, ReleaseNotice, ReleaseSettings, Sample, Stop};
use spillway_transport::Time;

/// Latencies below and above the default `service_max` of 500 µs.
const LOW: Duration = Duration::from_micros(100);
const HIGH: Duration = Duration::from_millis(3);

/// A server whose sessions follow each *drain* at once.
struct Server {
    release: Release,
    now_s: u64,
    sessions: u32,
    helped_sessions: u32,
    notices: Vec<ReleaseNotice>,
    drains: Vec<Time>,
}

impl Server {
    fn new(settings: ReleaseSettings) -> Server {
        let release = Release::new(Time(0), settings, 7).unwrap();
        Server {
            release,
            now_s: 0,
            sessions: 200,
            helped_sessions: 0,
            notices: Vec::new(),
            drains: Vec::new(),
        }
    }

    fn default() -> Server {
        Server::new(ReleaseSettings::default())
    }

    /// Runs for this time with `requests` requests in each second. `latency`: time from a request's arrival to its reply.
    fn run(&mut self, seconds: u64, requests: u64, latency: Duration, busy_percent: Option<u32>) {
        for _ in 0..seconds {
            self.now_s += 1;
            let now = Time(self.now_s * 1_000_000_000);
            let helped = requests * u64::from(self.helped_sessions) / u64::from(self.sessions); // requests
            let service = (requests > 0).then_some(latency);
            let helped_sessions = self.helped_sessions;
            self.release.sample(now, Sample { requests, helped, service, busy_percent, helped_sessions });
            for ms in 0..1000 {
                let now = now + Duration::from_millis(ms);
                while self.release.poll_drain(now) {
                    self.helped_sessions = self.helped_sessions.saturating_sub(1);
                    self.drains.push(now);
                }
            }
            self.notices.extend(self.release.poll_notice());
        }
    }

    /// A server during a relieved burst: help began at 10,000 requests/s, so throughput is low up to 6,000.
    fn during_a_relieved_burst() -> Server {
        let mut server = Server::default();
        server.run(20, 6_000, LOW, None);
        server.run(2, 10_000, HIGH, None);
        server.helped_sessions = server.sessions;
        server.run(10, 15_000, LOW, None);
        server
    }
}

#[test]
fn low_throughput_and_latency_release_sessions_gradually() {
    let mut server = Server::during_a_relieved_burst();
    server.run(10, 5_000, LOW, None);
    assert!(
        server.notices.is_empty() && server.helped_sessions == 200,
        "the first 10 s should not be long enough"
    );
    server.run(10, 5_000, LOW, None);
    let [ReleaseNotice::Begins { sessions: 200, per_s: 5_000, low_per_s: 6_000, .. }, ReleaseNotice::Ends] =
        server.notices[..]
    else {
        panic!("{:?}", server.notices)
    };
    assert_eq!(
        (server.helped_sessions, server.release.counters().drains),
        (0, 200),
        "all 200 sessions should be released"
    );
    let took = server.drains[199].since(server.drains[0]);
    assert!((4..8).contains(&took.as_secs()), "200 drains should take about 5 s: {took:?}");
}

#[test]
fn direct_requests_in_the_look_in_which_help_begins_are_counted() {
    let mut server = Server::default();
    server.run(20, 5_000, LOW, None);
    server.helped_sessions = server.sessions * 3 / 10;
    server.run(1, 11_000, HIGH, None); // 7,700 of them direct
    server.helped_sessions = server.sessions;
    server.run(10, 15_000, LOW, None);
    assert_eq!(server.release.low_per_s(), Some(7_700 * 60 / 100));
}

#[test]
fn low_throughput_or_low_latency_alone_releases_no_session() {
    let mut server = Server::during_a_relieved_burst();
    server.run(100, 15_000, LOW, None); // latency is low because helpers relieve the server
    server.run(100, 5_000, HIGH, None); // throughput is low because clients have given up
    server.run(100, 6_100, LOW, None);
    assert!(server.notices.is_empty() && server.helped_sessions == 200, "no session should be released");
    for _ in 0..50 {
        server.run(9, 5_000, LOW, None);
        server.run(1, 9_000, LOW, None);
    }
    assert!(server.notices.is_empty(), "9 s of low load should not be long enough");
}

#[test]
fn high_latency_stops_a_release_and_delays_the_next() {
    let mut server = Server::during_a_relieved_burst();
    server.run(12, 5_000, LOW, None);
    assert!((1..200).contains(&server.helped_sessions), "the release should have begun and not ended");
    server.run(2, 5_000, HIGH, None);
    let helped = server.helped_sessions;
    assert!(helped > 20, "the release should stop before its end: {helped} sessions are helped");
    let Some(ReleaseNotice::Stops { why: Stop::Latency, sessions, low_for }) = server.notices.last() else {
        panic!("{:?}", server.notices)
    };
    assert_eq!((*sessions, low_for.as_secs()), (helped, 20), "the wait should be twice as long");
    server.run(20, 5_000, LOW, None);
    assert_eq!(server.helped_sessions, helped);
    server.run(10, 5_000, LOW, None);
    assert_eq!(server.helped_sessions, 0);
}

#[test]
fn single_look_with_high_latency_does_not_stop_a_release() {
    let mut server = Server::during_a_relieved_burst();
    server.run(12, 5_000, LOW, None);
    // Two looks stop the first release. They must not count in the second one, during which there is a single look with
    // high latency.
    server.run(2, 5_000, HIGH, None);
    assert_eq!(server.release.counters().stopped, 1);
    while server.release.counters().releases == 1 {
        server.run(1, 5_000, LOW, None);
    }
    server.run(1, 5_000, HIGH, None);
    server.run(20, 5_000, LOW, None);
    assert_eq!(
        (server.helped_sessions, server.release.counters().stopped),
        (0, 1),
        "the release should have stopped once"
    );
}

#[test]
fn early_release_doubles_the_wait_for_the_next_and_the_wait_decays() {
    let mut server = Server::during_a_relieved_burst();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let began_s = server.now_s;
        while server.helped_sessions > 0 {
            server.run(1, 5_000, LOW, None);
            assert!(
                server.now_s - began_s < 700,
                "sessions should be released within 700 s: the longest wait is ten minutes"
            );
        }
        waits.push(server.now_s - began_s);
        // Ten looks with direct load, as many as are remembered: help begins at 9,900 requests/s, so 5,000 stays low.
        server.run(10, 9_900, LOW, None);
        server.helped_sessions = server.sessions;
        server.run(2, 15_000, LOW, None);
    }
    assert!(
        waits.is_sorted_by(|earlier, later| earlier < later || *earlier > 600),
        "waits should grow: {waits:?}"
    );
    assert!(waits[7] > 600, "the wait should reach ten minutes: {waits:?}");
    assert_eq!(server.release.counters().too_soon, 8);
    server.run(6_000, 15_000, LOW, None);
    server.run(22, 5_000, LOW, None);
    assert_eq!(server.helped_sessions, 0, "after 100 minutes the wait should be as long as the first");
}

#[test]
fn cpu_use_is_estimated_for_direct_load() {
    // 10,000 direct requests/s use 98 % of the CPU; 8,000 helped ones use 10 %.
    let mut server = Server::new(ReleaseSettings { low_percent: 90, ..Default::default() });
    server.run(20, 10_000, LOW, Some(98));
    server.helped_sessions = server.sessions;
    server.run(60, 8_000, LOW, Some(10));
    assert!(server.notices.is_empty(), "an estimate of 80 % of the CPU should prevent a release");
    server.run(12, 5_000, LOW, Some(7));
    assert!(server.helped_sessions < 200, "an estimate of half of the CPU should permit a release");
}

#[test]
fn low_throughput_is_relative_to_capacity_or_highest_helped_rate() {
    let mut with_capacity =
        Server::new(ReleaseSettings { capacity_per_s: Some(20_000), ..Default::default() });
    with_capacity.helped_sessions = with_capacity.sessions;
    with_capacity.run(20, 11_000, LOW, None);
    assert_eq!(with_capacity.helped_sessions, 0);
    let mut without_reference = Server::default();
    without_reference.helped_sessions = without_reference.sessions;
    // Without a capacity or direct load before, throughput is low up to a tenth of the highest helped rate: 1,100.
    without_reference.run(60, 11_000, LOW, None);
    without_reference.run(60, 1_200, LOW, None);
    assert_eq!(without_reference.helped_sessions, 200);
    without_reference.run(20, 1_000, LOW, None);
    assert_eq!(without_reference.helped_sessions, 0);
    let mut idle = Server::during_a_relieved_burst();
    idle.run(20, 0, LOW, None);
    assert_eq!(idle.helped_sessions, 0);
}

#[test]
fn override_replaces_the_release_policy() {
    let mut server = Server::during_a_relieved_burst();
    server.release.set_override(Override::On); // relief on: no session is released
    server.run(100, 100, LOW, None);
    assert_eq!(server.helped_sessions, 200);
    server.release.set_override(Override::Off); // relief off: all sessions are released
    server.run(10, 15_000, HIGH, Some(100));
    assert_eq!(server.helped_sessions, 0);
    server.helped_sessions = 5;
    server.run(10, 15_000, HIGH, Some(100));
    assert_eq!(server.helped_sessions, 0, "off: sessions that are helped later should return, too");
}

#[test]
fn extreme_samples_and_times_do_not_panic() {
    let mut release = Release::new(Time(5), ReleaseSettings::default(), 1).unwrap();
    let values = [0, 1, 77, u64::MAX];
    for (step, ns) in values.into_iter().cycle().take(64).enumerate() {
        let sample = Sample {
            requests: values[(step / 2) % 4],
            helped: values[(step / 3) % 4],
            service: Some(Duration::from_nanos(values[(step / 5) % 4])),
            busy_percent: Some(if step % 2 == 0 { u32::MAX } else { 0 }),
            helped_sessions: if step % 7 == 0 { 0 } else { u32::MAX },
        };
        release.sample(Time(ns), sample);
        release.poll_drain(Time(ns));
        let _ = (release.poll_timeout(), release.poll_notice().map(|notice| notice.to_string()));
    }
}

#[test]
fn settings_out_of_their_bounds_are_rejected_by_name() {
    let error = |change: fn(&mut ReleaseSettings)| {
        let mut settings = ReleaseSettings::default();
        change(&mut settings);
        Release::new(Time(0), settings, 1).unwrap_err().to_string()
    };
    assert_eq!(error(|s| s.low_percent = 0), "low_percent must be 1 to 95");
    assert_eq!(error(|s| s.low_percent = 96), "low_percent must be 1 to 95");
    assert_eq!(error(|s| s.busy_percent_max = 101), "busy_percent_max must be 1 to 100");
    assert_eq!(error(|s| s.low_for = Duration::ZERO), "low_for must be 1ms to 50 days");
    assert_eq!(error(|s| s.spread = Duration::from_secs(601)), "spread must be up to 10min");
    // `spillway run --release-after` accepts times up to 2^32 - 1 ms.
    let low_for = Duration::from_millis(u32::MAX.into());
    assert_eq!(ReleaseSettings { low_for, ..Default::default() }.check(), Ok(()));
}

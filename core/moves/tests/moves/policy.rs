//! Moves by a policy: all connections begin at server 1, which cannot serve them alone.

use std::time::Duration;

use spillway_moves::{MovePolicy, Override, PolicySettings, ProactiveSettings, ReactiveSettings, Reason};
use spillway_policy::migration::MoveLimits;

use crate::rack::Rack;

/// Each of the 13 clients sends a frame in each turn, if the server keeps up.
const OTHERS: u8 = 12;
const FRAMES_MAX: usize = 9;
const MOVES_PER_S_MAX: u32 = 20;

const REACTIVE: MovePolicy =
    MovePolicy::Reactive(ReactiveSettings { load_start: 850_000, load_stop: 750_000 });

fn proactive() -> MovePolicy {
    MovePolicy::Proactive(ProactiveSettings::default())
}

fn rack(policy: MovePolicy) -> Rack {
    let mut rack = Rack::new(100);
    let limits = MoveLimits { moves_per_s_max: MOVES_PER_S_MAX, ..MoveLimits::default() };
    for number in [1, 2] {
        let settings = PolicySettings { policy, limits, ..PolicySettings::default() };
        rack.host(number).server.set_policy(settings, u64::from(number)).unwrap();
    }
    rack
}

/// Connects the clients, and limits what the servers can do.
fn overload(rack: &mut Rack) {
    rack.connect_others(OTHERS);
    [1, 2].iter().for_each(|number| rack.host(*number).frames_max = FRAMES_MAX);
}

fn check(rack: &mut Rack) {
    let limits = MoveLimits::default();
    for number in [1, 2] {
        let times: Vec<_> = rack.host(number).decisions.iter().map(|(at, ..)| *at).collect();
        for (index, at) in times.iter().enumerate() {
            let within =
                times[index..].iter().filter(|later| later.since(*at) < Duration::from_secs(1)).count();
            assert!(within <= MOVES_PER_S_MAX as usize, "server {number}: {within} moves in a second");
        }
    }
    let mut all: Vec<_> = [1, 2].iter().flat_map(|number| rack.host(*number).decisions.clone()).collect();
    all.sort_by_key(|(at, flow, _)| (*flow, *at));
    for pair in all.windows(2).filter(|pair| pair[0].1 == pair[1].1) {
        let between = pair[1].0.since(pair[0].0);
        assert!(between >= limits.return_min, "{} goes back after {between:?}", pair[0].1.client());
    }
    assert!([1, 2].iter().all(|number| rack.counters(*number).lost == 0));
    assert!(rack.others.iter().all(|client| client.lost.is_none()) && rack.client.lost.is_none());
}

/// Connections leave the hot server within the limits, and every byte returns.
fn unload(policy: MovePolicy, is_expected: fn(&Reason) -> bool) {
    let mut rack = rack(policy);
    overload(&mut rack);
    rack.run_until("connections move", |rack| rack.host(2).echo.here.len() >= 2);
    rack.run(Duration::from_secs(3));
    let counts = rack.host(1).server.decision_counts();
    assert!(
        rack.host(1).decisions.iter().all(|(_, _, decision)| is_expected(&decision.reason)),
        "{counts:?}"
    );
    let here = [1, 2].map(|number| rack.host(number).echo.here.len());
    assert!(here.iter().all(|here| *here >= 2), "{here:?}");
    assert!(rack.host(2).server.load() > 100_000, "server 2 should state its load");
    check(&mut rack);
    let seen: Vec<u64> = rack.others.iter().map(|client| client.returned).collect();
    rack.run_until("all streams continue", |rack| {
        rack.others.iter().zip(&seen).all(|(client, seen)| client.returned > seen + 10_000)
    });
}

#[test]
fn proactive_policy_unloads_the_hot_server_within_the_limits() {
    unload(proactive(), |reason| matches!(reason, Reason::AboveMean { others: 1, .. }));
}

#[test]
fn reactive_policy_unloads_the_hot_server_within_the_limits() {
    unload(REACTIVE, |reason| matches!(reason, Reason::Load { .. }));
}

#[test]
fn override_off_forbids_moves_and_auto_permits_them_again() {
    let mut rack = rack(proactive());
    let now = rack.now;
    rack.host(1).server.set_override(now, Override::Off, None);
    overload(&mut rack);
    rack.run(Duration::from_secs(2));
    assert_eq!((rack.host(1).decisions.len(), rack.host(2).echo.here.len()), (0, 0));
    let now = rack.now;
    rack.host(1).server.set_override(now, Override::Auto, None);
    rack.run_until("connections move", |rack| rack.host(2).echo.here.len() >= 2);
    check(&mut rack);
}

#[test]
fn override_on_ignores_the_thresholds() {
    let mut rack = rack(proactive());
    rack.connect_others(OTHERS);
    // A third of what both servers can serve: below all thresholds.
    [1, 2].iter().for_each(|number| rack.host(*number).frames_max = FRAMES_MAX * 4);
    rack.run(Duration::from_secs(2));
    assert_eq!(rack.host(1).decisions.len(), 0, "{:?}", rack.host(1).decisions);
    let now = rack.now;
    rack.host(1).server.set_override(now, Override::On, Some(Duration::from_secs(1)));
    rack.run_until("connections move", |rack| rack.host(2).echo.here.len() >= 2);
    let counts = rack.host(1).server.decision_counts();
    assert_eq!((counts.load, counts.above_mean, counts.manual_override > 0), (0, 0, true));
    rack.run(Duration::from_secs(1));
    let now = rack.now;
    assert_eq!(rack.host(1).server.manual_override(now), Override::Auto, "the override has ended");
    check(&mut rack);
}

#[test]
fn without_a_policy_no_connection_moves() {
    let mut rack = Rack::new(100);
    overload(&mut rack);
    let now = rack.now;
    rack.host(1).server.set_override(now, Override::On, None);
    rack.run(Duration::from_secs(2));
    assert_eq!(rack.host(1).decisions.len(), 0);
    assert!(rack.host(1).server.load() > 900_000, "the load should be measured without a policy, too");
    assert_eq!(rack.host(1).server.manual_override(now), Override::Auto);
}

//! Two stacks connected by a ring in virtual time, with injected faults. A seed determines the whole run.

#[path = "linux/application.rs"]
mod application;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use application::{Role, Roles};
use spillway_tcp::isn::Key;
use spillway_tcp::{Counters, Listener, Settings, Stack};
use spillway_transport::{LostReason, Time};
use spillway_wire::packet::ethernet::Mac;
use spillway_xdp::{Device, Driver, Endpoint, Faults, FaultsOptions, Hosted, Ring};

const PORT: u16 = 7000;
const STEP: Duration = Duration::from_micros(50);
/// Bound of virtual time, far above that of the slowest run.
const PATIENCE: Time = Time(600_000_000_000);
/// Bound of turns, which detects a livelock in which virtual time hardly advances.
const TURNS_MAX: u64 = 2_000_000;

struct End {
    driver: Driver<Faults<Ring>>,
    hosted: Hosted<Roles>,
    count: Arc<AtomicUsize>,
}

impl End {
    fn new(number: u8, ring: Ring, faults: FaultsOptions, listeners: Vec<Role>, open: Vec<Role>) -> End {
        let address = |number| Ipv4Addr::new(10, 0, 0, number);
        let target = SocketAddr::from((address(3 - number), PORT));
        let mut settings =
            Settings::new(Mac([2, 0, 0, 0, 0, number]), address(number), 24, Key([number; 16]));
        for (port, role) in (PORT..).zip(&listeners) {
            let address = SocketAddr::from((address(number), port));
            settings.listeners.push(Listener { address, is_gated: matches!(role, Role::Gated(_)) });
        }
        let to_open = open
            .into_iter()
            .zip(0_u16..)
            .map(|(role, index)| (SocketAddr::new(target.ip(), PORT + index), role));
        let application = Roles::new(listeners, to_open.collect());
        let count = application.count();
        let stack = Stack::new(Time::ZERO, settings).unwrap();
        let driver = Driver::new(Faults::new(ring, faults));
        End { driver, hosted: Hosted { stack, application }, count }
    }
}

/// The results of a run, which depend only on its seed.
#[derive(Debug, PartialEq)]
struct Outcome {
    ended: Time,
    counters: [Counters; 2],
    tallies: [application::Tally; 2],
}

fn play(seed: u64, faults: FaultsOptions) -> Outcome {
    let faults = FaultsOptions { seed, ..faults };
    // Every third run has a short ring, which bursts overflow.
    let (near, far) = Ring::pair(if seed.is_multiple_of(3) { 16 } else { 512 });
    let bytes = 20_000 + seed * 7919 % 100_000;
    let gate = Duration::from_millis(seed % 30);
    let serves = vec![Role::Echo, Role::Source(bytes), Role::Sink, Role::Gated(gate), Role::Slow(3000)];
    let asks = vec![Role::Ask(20), Role::Sink, Role::Source(bytes), Role::Ask(10), Role::Source(bytes / 4)];
    let none = FaultsOptions::default();
    let mut ends = [End::new(1, near, faults, serves, vec![]), End::new(2, far, none, vec![], asks)];
    let (mut now, mut turns) = (Time::ZERO, 0_u64);
    loop {
        let mut frames = 0;
        for end in &mut ends {
            let before = end.driver.counters();
            end.driver.turn(now, &mut end.hosted).unwrap();
            let after = end.driver.counters();
            frames += after.received + after.sent + after.lost - before.received - before.sent - before.lost;
        }
        if ends.iter().all(|end| end.count.load(Ordering::Relaxed) == 0) {
            break;
        }
        turns += 1;
        assert!(now < PATIENCE && turns < TURNS_MAX, "stuck at {now:?}, seed {seed}, {faults:?}");
        now = now + STEP;
        if frames == 0 {
            // `wait` releases held frames. Without held frames, time advances to the next timer.
            let held = ends.iter().map(|end| end.driver.device().held()).sum::<usize>();
            for end in &mut ends {
                end.driver.device_mut().wait(None, &[]).unwrap();
            }
            if held == 0 {
                let next = ends.iter().filter_map(|end| end.hosted.poll_timeout()).min();
                now = now.max(next.unwrap_or_else(|| panic!("nobody waits for anything, seed {seed}")));
            }
        }
    }
    let outcome = Outcome {
        ended: now,
        counters: [0, 1].map(|at: usize| *ends[at].hosted.stack.counters()),
        tallies: [0, 1].map(|at: usize| ends[at].hosted.application.tally.clone()),
    };
    for (counters, tally) in outcome.counters.iter().zip(&outcome.tallies) {
        assert_eq!((tally.opened, tally.wrong, counters.given_up), (5, 0, 0), "seed {seed}: {outcome:?}");
        assert_eq!(tally.lost_by(LostReason::Closed), 5, "seed {seed}: {outcome:?}");
    }
    let echoed = (20 + 10) * application::MESSAGE_BYTES as u64;
    let received = [0, 1].map(|at: usize| outcome.tallies[at].received);
    assert_eq!(received, [echoed + bytes + bytes / 4, echoed + bytes], "seed {seed}: {outcome:?}");
    outcome
}

/// Sets of faults, from none to severe. Only the last set flips bits, because ARP packets have no checksum.
const WEATHERS: [FaultsOptions; 5] = [
    FaultsOptions {
        seed: 0,
        loss: 0.0,
        duplication: 0.0,
        reordering: 0.0,
        reordering_frames: 0,
        corruption: 0.0,
    },
    FaultsOptions {
        seed: 0,
        loss: 0.01,
        duplication: 0.01,
        reordering: 0.05,
        reordering_frames: 3,
        corruption: 0.0,
    },
    FaultsOptions {
        seed: 0,
        loss: 0.0,
        duplication: 0.2,
        reordering: 0.4,
        reordering_frames: 20,
        corruption: 0.0,
    },
    FaultsOptions {
        seed: 0,
        loss: 0.1,
        duplication: 0.05,
        reordering: 0.2,
        reordering_frames: 10,
        corruption: 0.0,
    },
    FaultsOptions {
        seed: 0,
        loss: 0.02,
        duplication: 0.02,
        reordering: 0.05,
        reordering_frames: 3,
        corruption: 0.02,
    },
];

#[test]
fn every_byte_arrives_in_every_weather() {
    // For long searches: SPILLWAY_SEED is the first seed, SPILLWAY_SEEDS the number of seeds.
    let number_of = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (first, seeds) = (number_of("SPILLWAY_SEED").unwrap_or(0), number_of("SPILLWAY_SEEDS").unwrap_or(40));
    for (number, weather) in WEATHERS.into_iter().enumerate() {
        for seed in first..first.saturating_add(seeds) {
            play(seed * 5 + number as u64, weather);
        }
    }
}

#[test]
fn the_seed_is_everything() {
    for seed in 0..5 {
        assert_eq!(play(seed, WEATHERS[3]), play(seed, WEATHERS[3]));
    }
}

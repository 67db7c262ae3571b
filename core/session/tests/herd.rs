//! Hundreds of clients lose their last helper at the same moment, in virtual time, and return to their server.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_session::{Pace, Routes};
use spillway_transport::Time;

const MS: u64 = 1_000_000;
/// Milliseconds of a bin in which arrivals are counted.
const BIN_MS: u64 = 100;

fn at(ms: u64) -> Time {
    Time(ms * MS)
}

/// The behaviour of helpers and the server.
struct World {
    /// The number of helpers' routes; the server's own port is the route after them.
    helpers: usize,
    /// When helpers begin to answer again, if ever.
    helpers_up_at: Option<Time>,
    /// Time until an attempt at a dead helper fails.
    failure_delay: Duration,
    /// Number of clients that the server accepts in each bin; it refuses the others.
    accepts_per_bin: usize,
}

struct Client {
    routes: Routes,
    random: u64,
    /// Time of the next attempt, or of the failure of the present one if `is_trying`.
    next: Time,
    is_trying: bool,
    waits: Vec<Duration>,
    last_attempt_at: Time,
}

/// The results of all clients.
struct Outcome {
    /// Attempts at the server in each bin.
    arrivals: BTreeMap<u64, usize>,
    /// When each client was attached again, and whether to a helper.
    returned: Vec<(Time, bool)>,
    /// Waits of each client before its attempts at the server.
    waits: Vec<Vec<Duration>>,
}

fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// All clients lose their helper at random times from 0 to `spread`.
fn run(world: &World, clients: usize, spread: Duration, pace: Pace) -> Outcome {
    let server_port = world.helpers;
    let mut clients: Vec<Client> = (0..clients as u64)
        .map(|number| {
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1) | 1;
            let mut routes = Routes::new(server_port + 1, Some(server_port), pace);
            routes.choose(number as usize % server_port);
            routes.attached();
            let lost = Time::ZERO + spread.mul_f64(random(&mut seed));
            Client {
                routes,
                random: seed,
                next: lost,
                is_trying: true,
                waits: Vec::new(),
                last_attempt_at: lost,
            }
        })
        .collect();
    let (mut arrivals, mut accepted) = (BTreeMap::new(), BTreeMap::new());
    let mut returned = vec![None; clients.len()];
    while let Some(index) =
        (0..clients.len()).filter(|index| returned[*index].is_none()).min_by_key(|index| clients[*index].next)
    {
        let client = &mut clients[index];
        let now = client.next;
        assert!(now < at(600_000), "every client should return within 10 minutes");
        if client.is_trying {
            // The attempt fails now.
            let attempt = client.routes.lost(now, || random(&mut client.random));
            (client.next, client.is_trying) = (attempt.at.max(now), false);
            continue;
        }
        client.routes.take_return(now);
        let is_helper = client.routes.present() != server_port;
        let (mut is_accepted, mut failure_delay) = (false, world.failure_delay);
        if is_helper {
            is_accepted = world.helpers_up_at.is_some_and(|recovered_at| recovered_at <= now);
        } else {
            let bin = now.since(Time::ZERO).as_millis() as u64 / BIN_MS;
            *arrivals.entry(bin).or_insert(0) += 1;
            client.waits.push(now.since(client.last_attempt_at));
            client.last_attempt_at = now;
            let accepted_in_bin: &mut usize = accepted.entry(bin).or_default();
            if *accepted_in_bin < world.accepts_per_bin {
                *accepted_in_bin += 1;
                is_accepted = true;
            }
            failure_delay = Duration::from_millis(1);
        }
        if is_accepted {
            client.routes.attached();
            returned[index] = Some((now, is_helper));
        } else {
            // The time to return to the server may come while a helper does not answer.
            let fails_at = now + failure_delay;
            match client.routes.return_at().filter(|return_at| is_helper && *return_at < fails_at) {
                Some(return_at) => client.next = return_at.max(now),
                None => (client.next, client.is_trying) = (fails_at, true),
            }
        }
    }
    let waits = clients.into_iter().map(|client| client.waits).collect();
    Outcome { arrivals, returned: returned.into_iter().flatten().collect(), waits }
}

#[test]
fn returns_to_the_server_are_spread_over_the_window() {
    for failure_delay in [0, 1000] {
        for helpers in [1, 3] {
            let world = World {
                helpers,
                helpers_up_at: None,
                failure_delay: Duration::from_millis(failure_delay),
                accepts_per_bin: 500,
            };
            let outcome = run(&world, 500, Duration::from_millis(5), Pace::default());
            // 500 attempts in one second are 50 in each bin on average.
            let arrivals_max = outcome.arrivals.values().max().unwrap();
            assert!(
                *arrivals_max < 100,
                "with {helpers} helpers, fewer than 100 clients should arrive in each {BIN_MS} ms: {:?}",
                outcome.arrivals
            );
            // The window begins when the last helper has failed.
            let latest = at(1_000 + helpers as u64 * (failure_delay + 5));
            assert!(
                outcome.returned.iter().all(|(time, helped)| !helped && *time <= latest),
                "all clients should return to the server by {latest:?}: {:?}",
                outcome.returned
            );
            assert_eq!(outcome.arrivals.values().sum::<usize>(), 500, "each client should make one attempt");
        }
    }
}

#[test]
fn a_slow_server_gets_attempts_at_a_falling_rate_and_accepts_all_clients() {
    let pace = Pace::default();
    let world = World { helpers: 2, helpers_up_at: None, failure_delay: Duration::ZERO, accepts_per_bin: 10 };
    let outcome = run(&world, 500, Duration::from_millis(5), pace);
    assert_eq!(outcome.returned.len(), 500);
    for waits in &outcome.waits {
        for (attempt, wait) in waits.iter().enumerate() {
            let window = pace.window_max.min(pace.window * 2u32.pow(attempt as u32));
            // The margin covers failed attempts, which take 1 ms each.
            assert!(
                *wait <= window + Duration::from_millis(7),
                "attempt {attempt} should come within {window:?}, not {wait:?}"
            );
        }
    }
    // About 50 attempts in a bin in the first window, fewer in the longer ones.
    assert!(
        outcome.arrivals.values().all(|count| *count < 100),
        "no bin should have twice the expected 50 attempts: {:?}",
        outcome.arrivals
    );
    let attempts: usize = outcome.arrivals.values().sum();
    assert!(attempts < 5 * 500, "500 clients should make fewer than 2,500 attempts, not {attempts}");
}

#[test]
fn a_recovered_helper_carries_the_clients_that_have_not_returned() {
    let world = World {
        helpers: 1,
        helpers_up_at: Some(at(300)),
        failure_delay: Duration::ZERO,
        accepts_per_bin: 500,
    };
    let outcome = run(&world, 500, Duration::from_millis(5), Pace::default());
    let helped = outcome.returned.iter().filter(|(_, helped)| *helped).count();
    // The helper answers after 0.3 of the window of 1 s, when 350 clients on average have not returned; each tries it
    // within 0.5 s.
    assert!((200..450).contains(&helped), "200 to 449 of 500 clients should be helped again, not {helped}");
    // Clients try helpers at least every half second.
    assert!(
        outcome.returned.iter().all(|(time, _)| *time <= at(1_000)),
        "all clients should be back by 0.8 s, with 0.2 s of margin: {:?}",
        outcome.returned
    );
}

#[test]
fn clients_move_to_another_helper_within_2_ms() {
    let mut longest_ms = 0;
    for number in 0..500_u64 {
        let mut seed = (number + 1) * 0x9e37_79b9;
        let mut routes = Routes::new(3, Some(2), Pace::default());
        routes.attached();
        let next = routes.lost(at(0), || random(&mut seed));
        assert_eq!((next.route, routes.return_at()), (1, None));
        longest_ms = longest_ms.max(next.at.since(at(0)).as_millis());
    }
    assert!(longest_ms <= 2, "the longest wait should be at most 2 ms, not {longest_ms} ms");
}

#[test]
fn clients_of_a_draining_helper_leave_spread_over_its_deadline() {
    let deadline = Duration::from_secs(12);
    let mut leaving_by_second: BTreeMap<u64, usize> = BTreeMap::new();
    for number in 0..500_u64 {
        let mut seed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        random(&mut seed);
        let mut routes = Routes::new(2, Some(1), Pace::default());
        routes.attached();
        let leave_at = routes.drained(at(0), deadline, random(&mut seed)).unwrap();
        assert!(
            leave_at <= Time::ZERO + deadline * 3 / 4,
            "clients should leave within three quarters of the deadline"
        );
        assert_eq!(routes.lost(leave_at, || 0.5).route, 1);
        *leaving_by_second.entry(leave_at.since(Time::ZERO).as_secs()).or_default() += 1;
    }
    assert_eq!(
        leaving_by_second.len(),
        9,
        "clients should leave in each of 9 seconds of the deadline: {leaving_by_second:?}"
    );
    assert!(
        leaving_by_second.values().all(|count| *count < 100),
        "no second should have twice the mean of 56 clients: {leaving_by_second:?}"
    );
}

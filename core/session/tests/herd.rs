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
    /// How long an attempt at a dead helper takes to fail.
    fails_after: Duration,
    /// How many clients the server accepts in each bin; it refuses the others.
    takes: usize,
}

struct Client {
    routes: Routes,
    random: u64,
    /// Time of the next attempt, or of the failure of the present one if `is_trying`.
    next: Time,
    is_trying: bool,
    waited: Vec<Duration>,
    asked_at: Time,
}

/// The results of all clients.
struct Outcome {
    /// Attempts at the server in each bin.
    arrivals: BTreeMap<u64, usize>,
    /// When each client was attached again, and whether to a helper.
    back: Vec<(Time, bool)>,
    /// How long clients waited for each attempt at the server.
    waited: Vec<Vec<Duration>>,
}

fn random(state: &mut u64) -> f64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// All clients lose their helper at random times from 0 to `spread`.
fn run(world: &World, clients: usize, spread: Duration, pace: Pace) -> Outcome {
    let own = world.helpers;
    let mut clients: Vec<Client> = (0..clients as u64)
        .map(|number| {
            let mut seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1) | 1;
            let mut routes = Routes::new(own + 1, Some(own), pace);
            routes.choose(number as usize % own);
            routes.attached();
            let lost = Time::ZERO + spread.mul_f64(random(&mut seed));
            Client { routes, random: seed, next: lost, is_trying: true, waited: Vec::new(), asked_at: lost }
        })
        .collect();
    let (mut arrivals, mut taken) = (BTreeMap::new(), BTreeMap::new());
    let mut back = vec![None; clients.len()];
    while let Some(index) =
        (0..clients.len()).filter(|index| back[*index].is_none()).min_by_key(|index| clients[*index].next)
    {
        let client = &mut clients[index];
        let now = client.next;
        assert!(now < at(600_000), "somebody never returns");
        if client.is_trying {
            // The attempt has failed.
            let attempt = client.routes.lost(now, || random(&mut client.random));
            (client.next, client.is_trying) = (attempt.at.max(now), false);
            continue;
        }
        client.routes.take_turn(now);
        let is_helper = client.routes.at() != own;
        let (mut taken_now, mut fails_after) = (false, world.fails_after);
        if is_helper {
            taken_now = world.helpers_up_at.is_some_and(|up| up <= now);
        } else {
            let bin = now.since(Time::ZERO).as_millis() as u64 / BIN_MS;
            *arrivals.entry(bin).or_insert(0) += 1;
            client.waited.push(now.since(client.asked_at));
            client.asked_at = now;
            let taken: &mut usize = taken.entry(bin).or_default();
            if *taken < world.takes {
                *taken += 1;
                taken_now = true;
            }
            fails_after = Duration::from_millis(1);
        }
        if taken_now {
            client.routes.attached();
            back[index] = Some((now, is_helper));
        } else {
            // The time to return to the server may come while a helper does not answer.
            let fails = now + fails_after;
            match client.routes.turn().filter(|turn| is_helper && *turn < fails) {
                Some(turn) => client.next = turn.max(now),
                None => (client.next, client.is_trying) = (fails, true),
            }
        }
    }
    let waited = clients.into_iter().map(|client| client.waited).collect();
    Outcome { arrivals, back: back.into_iter().flatten().collect(), waited }
}

#[test]
fn arrivals_at_the_server_are_spread_over_the_window() {
    for fails_after in [0, 1000] {
        for helpers in [1, 3] {
            let world = World {
                helpers,
                helpers_up_at: None,
                fails_after: Duration::from_millis(fails_after),
                takes: 500,
            };
            let outcome = run(&world, 500, Duration::from_millis(5), Pace::default());
            // 500 attempts in one second are 50 in each bin on average.
            let most = outcome.arrivals.values().max().unwrap();
            assert!(*most < 100, "{helpers} helpers: {most} in {BIN_MS} ms: {:?}", outcome.arrivals);
            // The window begins when the last helper has failed.
            let latest = at(1_000 + helpers as u64 * (fails_after + 5));
            assert!(
                outcome.back.iter().all(|(time, helped)| !helped && *time <= latest),
                "{:?}",
                outcome.back
            );
            assert_eq!(outcome.arrivals.values().sum::<usize>(), 500, "one attempt each");
        }
    }
}

#[test]
fn a_server_that_takes_few_at_a_time_is_asked_ever_more_slowly_and_takes_all() {
    let pace = Pace::default();
    let world = World { helpers: 2, helpers_up_at: None, fails_after: Duration::ZERO, takes: 10 };
    let outcome = run(&world, 500, Duration::from_millis(5), pace);
    assert_eq!(outcome.back.len(), 500);
    for waited in &outcome.waited {
        for (turn, time) in waited.iter().enumerate() {
            let window = pace.window_max.min(pace.window * 2u32.pow(turn as u32));
            // The margin covers failed attempts, which take 1 ms each.
            assert!(*time <= window + Duration::from_millis(7), "turn {turn} after {time:?}");
        }
    }
    // About 50 attempts in a bin in the first window, fewer in each longer one.
    assert!(outcome.arrivals.values().all(|count| *count < 100), "{:?}", outcome.arrivals);
    let attempts: usize = outcome.arrivals.values().sum();
    assert!(attempts < 5 * 500, "{attempts} attempts");
}

#[test]
fn a_helper_that_comes_back_takes_those_who_have_not_returned() {
    let world = World { helpers: 1, helpers_up_at: Some(at(300)), fails_after: Duration::ZERO, takes: 500 };
    let outcome = run(&world, 500, Duration::from_millis(5), Pace::default());
    let helped = outcome.back.iter().filter(|(_, helped)| *helped).count();
    assert!((200..450).contains(&helped), "{helped} of 500");
    // Clients try helpers at least every half second.
    assert!(outcome.back.iter().all(|(time, _)| *time <= at(1_000)), "{:?}", outcome.back);
}

#[test]
fn where_another_helper_lives_all_are_there_at_once() {
    let mut late = 0;
    for number in 0..500_u64 {
        let mut seed = (number + 1) * 0x9e37_79b9;
        let mut routes = Routes::new(3, Some(2), Pace::default());
        routes.attached();
        let next = routes.lost(at(0), || random(&mut seed));
        assert_eq!((next.route, routes.turn()), (1, None));
        late = late.max(next.at.since(at(0)).as_millis());
    }
    assert!(late <= 2, "{late} ms");
}

#[test]
fn clients_of_a_helper_that_goes_leave_it_over_its_deadline() {
    let deadline = Duration::from_secs(12);
    let mut leaving: BTreeMap<u64, usize> = BTreeMap::new();
    for number in 0..500_u64 {
        let mut seed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        random(&mut seed);
        let mut routes = Routes::new(2, Some(1), Pace::default());
        routes.attached();
        let leaves = routes.drained(at(0), deadline, random(&mut seed)).unwrap();
        assert!(leaves <= Time::ZERO + deadline * 3 / 4);
        assert_eq!(routes.lost(leaves, || 0.5).route, 1);
        *leaving.entry(leaves.since(Time::ZERO).as_secs()).or_default() += 1;
    }
    assert_eq!(leaving.len(), 9, "{leaving:?}");
    assert!(leaving.values().all(|count| *count < 100), "{leaving:?}");
}

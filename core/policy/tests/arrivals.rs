//! Many clients that choose at the same moment must spread evenly, although each has only two helpers' load replies,
//! which are slightly old. A simulation: load queries and replies are delayed, and clients decide and connect.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_parts::Random;
use spillway_policy::{Capacity, Choice, Decision, Gauge, Usage};
use spillway_transport::Time;
use spillway_wire::load::LoadReport;

/// CPU cost of each client, as a share of a core.
const COST: f64 = 1.0 / 1_500.0;

const CAPACITY: Capacity = Capacity { cpu: 1.0, network: None, clients: 50_000, memory: 1 << 30 };

/// A random time from `min_us` to `max_us`.
fn delay(random: &mut Random, min_us: u64, max_us: u64) -> Duration {
    Duration::from_micros(min_us + random.word() % (max_us - min_us + 1))
}

struct Helper {
    gauge: Gauge,
    clients: u32,
    /// CPU time used up to `until`, in seconds.
    cpu: f64,
    until: Time,
}

impl Helper {
    /// A helper that has served these clients for five seconds.
    fn serving(clients: u32, seed: u64) -> Helper {
        let mut helper = Helper { gauge: Gauge::new(CAPACITY, seed), clients, cpu: 0.0, until: Time::ZERO };
        (0..50).for_each(|window| helper.run(Time::ZERO + Duration::from_millis(100 * window)));
        helper
    }

    fn run(&mut self, now: Time) {
        self.cpu += now.since(self.until).as_secs_f64() * COST * f64::from(self.clients);
        self.until = now;
        if self.gauge.is_measurement_due(now) {
            let cpu = Duration::from_secs_f64(self.cpu);
            self.gauge.measured(now, Usage { cpu, clients: self.clients, ..Usage::default() });
        }
    }
}

/// How clients use the tentative load in a reply.
#[derive(Clone, Copy, PartialEq)]
enum TentativeUse {
    /// With a random factor, as [`Choice`] does.
    RandomFactor,
    Ignored,
    /// Added to the load, without randomness.
    Added,
}

impl TentativeUse {
    fn apply(self, load: LoadReport) -> LoadReport {
        match self {
            TentativeUse::RandomFactor => load,
            TentativeUse::Ignored => LoadReport { tentative: 0, ..load },
            TentativeUse::Added => LoadReport { load: load.load + load.tentative, tentative: 0, ..load },
        }
    }
}

enum Event {
    SendQueries(usize),
    Query { client: usize, place: usize },
    Reply { client: usize, place: usize, load: Box<LoadReport> },
    Connect { client: usize, helper: usize },
}

/// Events ordered by time, then by insertion.
#[derive(Default)]
struct EventQueue {
    times: BinaryHeap<Reverse<(Time, usize)>>,
    events: Vec<Option<Event>>,
}

impl EventQueue {
    fn push(&mut self, at: Time, event: Event) {
        self.times.push(Reverse((at, self.events.len())));
        self.events.push(Some(event));
    }

    fn pop(&mut self) -> Option<(Time, Event)> {
        let Reverse((at, index)) = self.times.pop()?;
        Some((at, self.events[index].take().expect("each event is taken once")))
    }
}

fn address(client: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (client >> 8) as u8, client as u8], 40_000))
}

/// Clients of the fullest helper divided by the mean, after `clients` clients, each of which queries two helpers, have
/// connected.
fn max_over_mean(
    seed: u64,
    initial_clients: &[u32],
    clients: usize,
    arrival_time: Duration,
    tentative_use: TentativeUse,
) -> f64 {
    let mut random = Random::new(seed);
    let mut helpers: Vec<Helper> =
        initial_clients.iter().map(|clients| Helper::serving(*clients, random.word())).collect();
    let start = Time::ZERO + Duration::from_secs(5);
    let mut events = EventQueue::default();
    let mut choices: Vec<Option<Choice>> = (0..clients).map(|_| None).collect();
    for client in 0..clients {
        events.push(start + arrival_time.mul_f64(random.unit()), Event::SendQueries(client));
    }
    while let Some((now, event)) = events.pop() {
        match event {
            Event::SendQueries(client) => {
                let choice = Choice::new(helpers.len(), 2, &mut || random.unit());
                for place in 0..choice.helpers_asked().len() {
                    events.push(now + delay(&mut random, 50, 400), Event::Query { client, place });
                }
                choices[client] = Some(choice);
            }
            Event::Query { client, place } => {
                let choice =
                    choices[client].as_ref().expect("a client should have chosen helpers before it queries");
                let helper =
                    &mut helpers[choice.helper(place).expect("a queried place should have a helper")];
                helper.run(now);
                helper.gauge.client_sent_query(now, address(client), choice.helpers_asked().len() as u8);
                let load = Box::new(tentative_use.apply(helper.gauge.load(now, helper.clients, 0)));
                events.push(now + delay(&mut random, 50, 2_000), Event::Reply { client, place, load });
            }
            Event::Reply { client, place, load } => {
                let choice = choices[client].as_mut().expect("a reply should follow a query");
                choice.answered(place, *load);
                if choice.is_complete() {
                    let Decision::Lowest(place) = choice.decide(&mut || random.unit()) else {
                        panic!("a helper that is not full should be chosen");
                    };
                    let helper = choice.helper(place).expect("the chosen place should have a helper");
                    events.push(now + delay(&mut random, 100, 1_000), Event::Connect { client, helper });
                }
            }
            Event::Connect { client, helper } => {
                let helper = &mut helpers[helper];
                helper.run(now);
                helper.gauge.client_connected(now, address(client));
                helper.clients += 1;
            }
        }
    }
    let total: u32 = helpers.iter().map(|helper| helper.clients).sum();
    let most = helpers.iter().map(|helper| helper.clients).max().unwrap();
    f64::from(most) * helpers.len() as f64 / f64::from(total)
}

/// Mean and maximum of [`max_over_mean`] over 20 seeds.
fn over_seeds(initial_clients: &[u32], arrival_ms: u64, tentative_use: TentativeUse) -> (f64, f64) {
    let arrival_time = Duration::from_millis(arrival_ms);
    let ratios: Vec<f64> =
        (0..20).map(|seed| max_over_mean(seed, initial_clients, 1000, arrival_time, tentative_use)).collect();
    let (mean, worst) = (ratios.iter().sum::<f64>() / 20.0, ratios.iter().copied().fold(0.0, f64::max));
    println!("{initial_clients:?} within {arrival_ms} ms: mean {mean:.3}, worst {worst:.3}");
    (mean, worst)
}

#[test]
fn simultaneous_clients_spread_evenly() {
    for initial_clients in [[0; 4], [100; 4]] {
        for arrival_ms in [0, 10, 200, 2_000] {
            let (mean, worst) = over_seeds(&initial_clients, arrival_ms, TentativeUse::RandomFactor);
            assert!(
                mean <= 1.09 && worst <= 1.15,
                "{initial_clients:?} within {arrival_ms} ms: mean {mean:.3} and worst {worst:.3} should be lower"
            );
        }
    }
}

#[test]
fn helper_with_few_clients_is_not_overrun() {
    for initial_clients in [[0, 40, 40, 40], [0, 10, 20, 30], [200, 0, 0, 0]] {
        for arrival_ms in [0, 10, 200] {
            let (mean, worst) = over_seeds(&initial_clients, arrival_ms, TentativeUse::RandomFactor);
            assert!(
                mean <= 1.2 && worst <= 1.3,
                "{initial_clients:?} within {arrival_ms} ms: mean {mean:.3} and worst {worst:.3} should be lower"
            );
        }
    }
}

/// The random factor spreads clients much more evenly than ignoring tentative load or adding it does.
#[test]
fn tentative_load_ignored_or_added_overruns_the_least_loaded_helper() {
    for arrival_ms in [0, 1] {
        let (random, _) = over_seeds(&[0, 40, 40, 40], arrival_ms, TentativeUse::RandomFactor);
        let (ignored, _) = over_seeds(&[0, 40, 40, 40], arrival_ms, TentativeUse::Ignored);
        assert!(
            ignored > random + 0.3,
            "{ignored:.3} (ignored) should exceed {random:.3} (random factor) by 0.3"
        );
        let (added, _) = over_seeds(&[0, 40, 40, 40], arrival_ms, TentativeUse::Added);
        assert!(added > random + 0.2, "{added:.3} (added) should exceed {random:.3} (random factor) by 0.2");
    }
}

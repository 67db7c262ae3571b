//! Many clients that choose at the same moment must spread evenly, although each has only the answers of two helpers, which
//! are slightly old. A simulation: gauges answer delayed questions, and clients decide and connect.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_parts::Random;
use spillway_policy::{Capacity, Choice, Decision, Gauge, Used};
use spillway_transport::Time;
use spillway_wire::load::Load;

/// CPU cost of each client, as a share of a core.
const COST: f64 = 1.0 / 1_500.0;

const CAPACITY: Capacity = Capacity { cpu: 1.0, network: None, clients: 50_000, memory: 1 << 30 };

/// A random time from `min_us` to `max_us`.
fn delay(rng: &mut Random, min_us: u64, max_us: u64) -> Duration {
    Duration::from_micros(min_us + rng.word() % (max_us - min_us + 1))
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
    fn with(clients: u32, seed: u64) -> Helper {
        let mut helper = Helper { gauge: Gauge::new(CAPACITY, seed), clients, cpu: 0.0, until: Time::ZERO };
        (0..50).for_each(|window| helper.run(Time::ZERO + Duration::from_millis(100 * window)));
        helper
    }

    fn run(&mut self, now: Time) {
        self.cpu += now.since(self.until).as_secs_f64() * COST * f64::from(self.clients);
        self.until = now;
        if self.gauge.is_measurement_due(now) {
            let cpu = Duration::from_secs_f64(self.cpu);
            self.gauge.measured(now, Used { cpu, clients: self.clients, ..Used::default() });
        }
    }
}

/// How clients use the load in an answer.
#[derive(Clone, Copy, PartialEq)]
enum Hearing {
    AsMeant,
    /// Clients ignore the tentative load.
    NothingExpected,
    /// Clients add the tentative load to the load, without randomness.
    AtItsWord,
}

impl Hearing {
    fn of(self, load: Load) -> Load {
        match self {
            Hearing::AsMeant => load,
            Hearing::NothingExpected => Load { tentative: 0, ..load },
            Hearing::AtItsWord => Load { load: load.load + load.tentative, tentative: 0, ..load },
        }
    }
}

enum What {
    Asks(usize),
    Question { client: usize, place: usize },
    Answer { client: usize, place: usize, load: Box<Load> },
    Comes { client: usize, helper: usize },
}

/// Events in the order of time, then of insertion.
#[derive(Default)]
struct Agenda {
    times: BinaryHeap<Reverse<(Time, usize)>>,
    all: Vec<Option<What>>,
}

impl Agenda {
    fn put(&mut self, at: Time, what: What) {
        self.times.push(Reverse((at, self.all.len())));
        self.all.push(Some(what));
    }

    fn take(&mut self) -> Option<(Time, What)> {
        let Reverse((at, index)) = self.times.pop()?;
        Some((at, self.all[index].take().expect("each once")))
    }
}

fn address(client: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (client >> 8) as u8, client as u8], 40_000))
}

/// Clients of the fullest helper divided by the mean, after `clients` clients, each asking two helpers, have connected.
fn max_over_mean(seed: u64, before: &[u32], clients: usize, within: Duration, hearing: Hearing) -> f64 {
    let mut rng = Random::new(seed);
    let mut helpers: Vec<Helper> = before.iter().map(|clients| Helper::with(*clients, rng.word())).collect();
    let start = Time::ZERO + Duration::from_secs(5);
    let mut agenda = Agenda::default();
    let mut choices: Vec<Option<Choice>> = (0..clients).map(|_| None).collect();
    for client in 0..clients {
        agenda.put(start + within.mul_f64(rng.unit()), What::Asks(client));
    }
    while let Some((now, what)) = agenda.take() {
        match what {
            What::Asks(client) => {
                let choice = Choice::new(helpers.len(), 2, &mut || rng.unit());
                for place in 0..choice.asked().len() {
                    agenda.put(now + delay(&mut rng, 50, 400), What::Question { client, place });
                }
                choices[client] = Some(choice);
            }
            What::Question { client, place } => {
                let choice = choices[client].as_ref().expect("it asked");
                let helper = &mut helpers[choice.helper(place).expect("a place")];
                helper.run(now);
                helper.gauge.asked(now, address(client), choice.asked().len() as u8);
                let load = Box::new(hearing.of(helper.gauge.load(now, helper.clients, 0)));
                agenda.put(now + delay(&mut rng, 50, 2_000), What::Answer { client, place, load });
            }
            What::Answer { client, place, load } => {
                let choice = choices[client].as_mut().expect("it asked");
                choice.answered(place, *load);
                if choice.is_complete() {
                    let Decision::Lowest(place) = choice.decide(&mut || rng.unit()) else {
                        panic!("all answered, none is full");
                    };
                    let helper = choice.helper(place).expect("a place");
                    agenda.put(now + delay(&mut rng, 100, 1_000), What::Comes { client, helper });
                }
            }
            What::Comes { client, helper } => {
                let helper = &mut helpers[helper];
                helper.run(now);
                helper.gauge.came(now, address(client));
                helper.clients += 1;
            }
        }
    }
    let total: u32 = helpers.iter().map(|helper| helper.clients).sum();
    let most = helpers.iter().map(|helper| helper.clients).max().expect("there are helpers");
    f64::from(most) * helpers.len() as f64 / f64::from(total)
}

/// Mean and maximum of [`max_over_mean`] over 20 seeds.
fn over_seeds(before: &[u32], within_ms: u64, hearing: Hearing) -> (f64, f64) {
    let within = Duration::from_millis(within_ms);
    let all: Vec<f64> = (0..20).map(|seed| max_over_mean(seed, before, 1000, within, hearing)).collect();
    let (mean, worst) = (all.iter().sum::<f64>() / 20.0, all.iter().copied().fold(0.0, f64::max));
    println!("{before:?} within {within_ms} ms: mean {mean:.3}, worst {worst:.3}");
    (mean, worst)
}

#[test]
fn a_thousand_that_come_at_once_spread_evenly() {
    for before in [[0; 4], [100; 4]] {
        for within_ms in [0, 10, 200, 2_000] {
            let (mean, worst) = over_seeds(&before, within_ms, Hearing::AsMeant);
            assert!(mean <= 1.09 && worst <= 1.15, "{before:?} within {within_ms} ms: {mean:.3}, {worst:.3}");
        }
    }
}

#[test]
fn one_that_has_just_started_is_not_run_over() {
    for before in [[0, 40, 40, 40], [0, 10, 20, 30], [200, 0, 0, 0]] {
        for within_ms in [0, 10, 200] {
            let (mean, worst) = over_seeds(&before, within_ms, Hearing::AsMeant);
            assert!(mean <= 1.2 && worst <= 1.3, "{before:?} within {within_ms} ms: {mean:.3}, {worst:.3}");
        }
    }
}

/// Ignoring tentative load is much worse than a random estimate of it, and so is adding the load without randomness.
#[test]
fn without_tentative_arrivals_all_go_to_whoever_is_ahead() {
    for within_ms in [0, 1] {
        let (with, _) = over_seeds(&[0, 40, 40, 40], within_ms, Hearing::AsMeant);
        let (without, _) = over_seeds(&[0, 40, 40, 40], within_ms, Hearing::NothingExpected);
        assert!(without > with + 0.3, "{without:.3} without, {with:.3} with");
        let (at_its_word, _) = over_seeds(&[0, 40, 40, 40], within_ms, Hearing::AtItsWord);
        assert!(at_its_word > with + 0.2, "{at_its_word:.3} at its word, {with:.3} with");
    }
}

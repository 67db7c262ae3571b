//! The load of one helper thread, and the expected arrivals (PostMan §5.2: "each helper monitors its own CPU and network
//! utilization").

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::{Load, SHARE_MAX, WEIGHT_MAX};

use crate::lots::Lots;

/// Minimum length of a measurement window.
const WINDOW: Duration = Duration::from_millis(100);
/// Weight of a new window in the smoothed shares. Earlier windows fade within a second.
const FRESH: f64 = 0.4;
/// Weight of a new window in the smoothed cost of a client, smaller because the cost must survive quiet times.
const FRESH_COST: f64 = 0.05;
/// Minimum number of clients to measure the cost of one.
const CLIENTS_TO_LEARN_FROM: f64 = 4.0;
/// The estimated cost of a client, as a share of a core, before any measurement; and the maximum of a measured cost.
const COST_GUESS: f64 = 1.0 / 2_000.0;
const COST_MAX: f64 = 1.0 / 20.0;
/// A client that has not connected this long after its question has chosen another helper.
const TENTATIVE: Duration = Duration::from_millis(100);
/// Bound on remembered questions; further ones are answered but not counted.
const TENTATIVE_MAX: usize = 4096;
/// The weight of a question that only this helper was asked.
const WHOLE: u64 = 1 << 16;

/// One thread's capacity of each resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Share of a core that the thread may use; 1 without a limit.
    pub cpu: f64,
    /// Bytes a second, in and out together; `None` if unknown.
    pub network: Option<u64>,
    /// Maximum number of clients.
    pub clients: u32,
    /// Maximum bytes buffered for clients.
    pub memory: usize,
}

/// Cumulative and present use of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time of the thread since its start.
    pub cpu: Duration,
    /// Bytes to and from clients since the start.
    pub bytes: u64,
    /// Present number of clients.
    pub clients: u32,
    /// Bytes buffered for clients at present.
    pub memory: usize,
}

/// The load gauge of one thread. The caller supplies time and measurements.
#[derive(Clone, Debug)]
pub struct Gauge {
    capacity: Capacity,
    last: Option<(Time, Used)>,
    /// Smoothed shares of core and network in use, and the equally smoothed number of clients that caused them.
    cpu: f64,
    network: f64,
    clients: f64,
    /// Cost of one client as a share of the core and of the network.
    cpu_cost: f64,
    network_cost: f64,
    /// Clients that have asked, in the order of the times at which they stop counting.
    asked: VecDeque<Asked>,
    /// The sum of the weights in `asked`.
    expected: u64,
    lots: Lots,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    until: Time,
    who: u64,
    weight: u64,
}

impl Gauge {
    /// A gauge without measurements. `seed` must differ between all threads of all helpers.
    pub fn new(capacity: Capacity, seed: u64) -> Gauge {
        Gauge {
            capacity,
            last: None,
            cpu: 0.0,
            network: 0.0,
            clients: 0.0,
            cpu_cost: COST_GUESS,
            network_cost: 0.0,
            asked: VecDeque::new(),
            expected: 0,
            lots: Lots::new(seed),
        }
    }

    /// Changes the capacity.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// Whether a window is over, so that [`measured`](Self::measured) should be called. A sleeping thread need not wake for
    /// it, because it has no load.
    pub fn is_measurement_due(&self, now: Time) -> bool {
        self.last.is_none_or(|(since, _)| now.since(since) >= WINDOW)
    }

    /// Ends the window that began with the last call.
    pub fn measured(&mut self, now: Time, used: Used) {
        let Some((since, before)) = self.last.replace((now, used)) else { return };
        let seconds = now.since(since).as_secs_f64();
        if seconds <= 0.0 {
            self.last = Some((since, before));
            return;
        }
        let cpu = used.cpu.saturating_sub(before.cpu).as_secs_f64() / seconds / self.capacity.cpu.max(0.001);
        let bytes = used.bytes.saturating_sub(before.bytes) as f64;
        let network = self.capacity.network.map_or(0.0, |most| bytes / seconds / (most.max(1) as f64));
        let clients = f64::midpoint(f64::from(before.clients), f64::from(used.clients));
        // A long window, in which the thread slept, counts as the windows of minimum length that it contains.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 32")]
        let windows = (seconds / WINDOW.as_secs_f64()).clamp(1.0, 32.0) as u32;
        let fresh = 1.0 - (0..windows).fold(1.0, |stale, _| stale * (1.0 - FRESH));
        self.cpu += (cpu - self.cpu) * fresh;
        self.network += (network - self.network) * fresh;
        self.clients += (clients - self.clients) * fresh;
        if clients >= CLIENTS_TO_LEARN_FROM {
            self.cpu_cost += ((cpu / clients).min(COST_MAX) - self.cpu_cost) * FRESH_COST;
            self.network_cost += ((network / clients).min(COST_MAX) - self.network_cost) * FRESH_COST;
        }
    }

    /// A client has asked for the load; it will come with probability 1 / `asked`. Repeated questions count once.
    pub fn asked(&mut self, now: Time, who: SocketAddr, asked: u8) {
        self.forget(now);
        let who = short(who);
        if self.asked.len() >= TENTATIVE_MAX || self.asked.iter().any(|one| one.who == who && one.weight > 0)
        {
            return;
        }
        let weight = WHOLE / u64::from(asked.max(1));
        self.asked.push_back(Asked { until: now + TENTATIVE, who, weight });
        self.expected += weight;
    }

    /// A client has connected and is no longer expected. It counts in [`load`](Self::load) even before the next measurement.
    pub fn came(&mut self, now: Time, who: SocketAddr) {
        self.forget(now);
        let who = short(who);
        if let Some(one) = self.asked.iter_mut().find(|one| one.who == who && one.weight > 0) {
            self.expected -= core::mem::take(&mut one.weight);
        }
    }

    fn forget(&mut self, now: Time) {
        while let Some(one) = self.asked.front().filter(|one| one.until <= now) {
            self.expected -= one.weight;
            self.asked.pop_front();
        }
    }

    /// The load with this number of clients and bytes of memory, as an answer to a question; without flags and nonce.
    pub fn load(&mut self, now: Time, clients: u32, memory: usize) -> Load {
        self.forget(now);
        Load { lot: self.lots.draw(), ..self.figures(clients, memory) }
    }

    /// The load as in [`load`](Self::load), without drawing a lot; for display.
    pub fn figures(&self, clients: u32, memory: usize) -> Load {
        // Clients that came or left since the measurement count with the known cost of a client.
        let unmeasured = f64::from(clients) - self.clients;
        let cpu = (self.cpu + unmeasured * self.cpu_cost).max(0.0);
        let network = (self.network + unmeasured * self.network_cost).max(0.0);
        let one = 1.0 / f64::from(self.capacity.clients.max(1));
        let connections = f64::from(clients) * one;
        let memory = memory as f64 / self.capacity.memory.max(1) as f64;
        let load = [cpu, network, connections, memory].into_iter().fold(0.0, f64::max);
        let expected = self.expected as f64 / WHOLE as f64;
        let cost = [self.cpu_cost, self.network_cost, one].into_iter().fold(0.0, f64::max);
        Load {
            cpu: share(cpu),
            network: share(network),
            connections: share(connections),
            memory: share(memory),
            load: weight(load),
            tentative: weight(expected * cost),
            ..Load::default()
        }
    }

    /// The load for shedding: measured and smoothed, without expected clients. 1 is the full capacity.
    pub fn measured_load(&self, memory: usize) -> f64 {
        let memory = memory as f64 / self.capacity.memory.max(1) as f64;
        [self.cpu, self.network, memory].into_iter().fold(0.0, f64::max)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most SHARE_MAX; `as` turns negative numbers into 0"
)]
fn share(of_one: f64) -> u16 {
    (of_one * f64::from(SHARE_MAX) + 0.5).min(f64::from(SHARE_MAX)) as u16
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most WEIGHT_MAX; `as` turns negative numbers into 0"
)]
fn weight(of_one: f64) -> u32 {
    (of_one * f64::from(WEIGHT_MAX) + 0.5).min(f64::from(WEIGHT_MAX)) as u32
}

/// Hash of an address. A collision counts two clients as one.
fn short(who: SocketAddr) -> u64 {
    let ip = match who.ip().to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = (ip >> 64) as u64 ^ (ip as u64).rotate_left(16) ^ u64::from(who.port());
    folded.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity =
        Capacity { cpu: 1.0, network: Some(1_000_000), clients: 10_000, memory: 1_000 };

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn client(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    /// Uses these shares of each second, from the start to `until_ms`.
    fn use_up(gauge: &mut Gauge, until_ms: u64, cpu: f64, bytes: f64, clients: u32) {
        for ms in (0..=until_ms).step_by(100) {
            assert!(
                gauge.is_measurement_due(at(ms)) && !gauge.is_measurement_due(at(ms.saturating_sub(1)))
                    || ms == 0
            );
            let seconds = ms as f64 / 1000.0;
            let cpu = Duration::from_secs_f64(cpu * seconds);
            gauge.measured(at(ms), Used { cpu, bytes: (bytes * seconds) as u64, clients, memory: 0 });
        }
    }

    #[test]
    fn the_scarcest_resource_is_the_load() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 3_000, 0.5, 200_000.0, 100);
        let load = gauge.load(at(3_000), 100, 10);
        assert_eq!((load.cpu, load.network, load.connections, load.memory), (500, 200, 10, 10));
        assert!((499_000..500_001).contains(&load.load), "{load:?}");
        assert_eq!(gauge.load(at(3_000), 100, 900).load, 900_000, "memory now");
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 3_000, 0.1, 5_000_000.0, 100);
        assert_eq!(gauge.load(at(3_000), 100, 0).network, 1_000, "never more than all");
        let mut gauge = Gauge::new(Capacity { cpu: 0.5, network: None, ..CAPACITY }, 1);
        use_up(&mut gauge, 3_000, 0.25, 5_000_000.0, 100);
        let load = gauge.load(at(3_000), 100, 0);
        assert_eq!((load.cpu, load.network), (500, 0), "of what it may have");
    }

    #[test]
    fn a_burst_shows_within_two_windows_and_sleep_is_rest() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        let used = |cpu_ms: u64| Used { cpu: Duration::from_millis(cpu_ms), clients: 10, ..Used::default() };
        gauge.measured(at(0), used(0));
        gauge.measured(at(100), used(100));
        gauge.measured(at(200), used(200));
        assert!(gauge.load(at(200), 10, 0).cpu > 600);
        // The thread slept for ten seconds, which is one window: earlier load is forgotten.
        gauge.measured(at(10_200), used(210));
        assert!(gauge.load(at(10_200), 10, 0).cpu < 5);
    }

    #[test]
    fn who_has_just_come_counts_before_it_is_measured_and_who_has_gone_does_not() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 10_000, 0.2, 0.0, 100);
        let now = at(10_000);
        let cpu = |gauge: &mut Gauge, clients| gauge.load(now, clients, 0).cpu;
        assert!((198..=200).contains(&cpu(&mut gauge, 100)));
        assert!((395..=400).contains(&cpu(&mut gauge, 200)), "0.2 % each: {}", cpu(&mut gauge, 200));
        assert!((95..=105).contains(&cpu(&mut gauge, 50)));
        assert_eq!(cpu(&mut Gauge::new(CAPACITY, 1), 200), 100, "as long as nothing is known: a guess");
    }

    #[test]
    fn whoever_asks_is_expected_until_it_comes_or_has_gone_elsewhere() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        let tentative = |gauge: &mut Gauge, ms| gauge.load(at(ms), 0, 0).tentative;
        (0..10).for_each(|port| gauge.asked(at(0), client(port), 2));
        assert_eq!(tentative(&mut gauge, 1), 2_500, "ten halves, each at 1/2000 of a core");
        gauge.asked(at(2), client(3), 2);
        assert_eq!(tentative(&mut gauge, 2), 2_500, "not twice");
        gauge.came(at(3), client(3));
        gauge.came(at(3), client(3));
        gauge.came(at(3), client(77));
        assert_eq!(tentative(&mut gauge, 3), 2_250);
        gauge.asked(at(50), client(20), 1);
        assert_eq!(tentative(&mut gauge, 99), 2_750);
        assert_eq!(tentative(&mut gauge, 100), 500, "they went elsewhere");
        assert_eq!(tentative(&mut gauge, 150), 0);
        assert!(gauge.asked.is_empty());
    }

    #[test]
    fn questions_are_remembered_up_to_a_bound() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        for number in 0..10_000_u16 {
            gauge.asked(at(0), client(number), 1);
        }
        assert_eq!(gauge.asked.len(), TENTATIVE_MAX);
        gauge.asked(at(100), client(1), 1);
        assert_eq!((gauge.asked.len(), gauge.expected), (1, WHOLE));
    }
}

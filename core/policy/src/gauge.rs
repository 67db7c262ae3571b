//! How loaded one thread of a helper is, with what is about to come (PostMan §5.2: "each helper monitors its own CPU and
//! network utilization").

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::{Load, SHARE_MAX, WEIGHT_MAX};

use crate::lots::Lots;

/// Windows of measurement are no shorter.
const WINDOW: Duration = Duration::from_millis(100);
/// What one window counts against those before it. A second later they have faded.
const FRESH: f64 = 0.4;
/// The same, for what a client costs, which is to outlast quiet times.
const FRESH_COST: f64 = 0.05;
/// Fewer clients tell nothing of what one costs.
const CLIENTS_TO_LEARN_FROM: f64 = 4.0;
/// What a client costs of a core as long as nobody knows, and at most.
const COST_GUESS: f64 = 1.0 / 2_000.0;
const COST_MAX: f64 = 1.0 / 20.0;
/// Whoever has asked and not come until then went elsewhere: it has waited for its answers, and connected.
const TENTATIVE: Duration = Duration::from_millis(100);
/// Questions that are remembered; those beyond are answered and not counted.
const TENTATIVE_MAX: usize = 4096;
/// The weight of a question to this helper alone.
const WHOLE: u64 = 1 << 16;

/// What there is of each resource, for one thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Share of a core that the thread can have: 1 where nobody limits it.
    pub cpu: f64,
    /// Bytes each second, in and out together; none: not known.
    pub network: Option<u64>,
    /// Clients.
    pub clients: u32,
    /// Bytes buffered for them.
    pub memory: usize,
}

/// What was used up to now, and what is used now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time of the thread since its start.
    pub cpu: Duration,
    /// Bytes to and from clients since the start.
    pub bytes: u64,
    /// Clients now.
    pub clients: u32,
    /// Bytes buffered for them now.
    pub memory: usize,
}

/// The gauge of one thread. Time and measurements come from outside.
#[derive(Clone, Debug)]
pub struct Gauge {
    capacity: Capacity,
    last: Option<(Time, Used)>,
    /// Shares of core and network, smoothed; and, smoothed alike, how many clients they are from.
    cpu: f64,
    network: f64,
    clients: f64,
    /// What one client costs of a core and of the network.
    cpu_cost: f64,
    network_cost: f64,
    /// Who has asked, by the time when it does not count any more.
    asked: VecDeque<Asked>,
    /// The sum of their weights.
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
    /// Nothing is known yet. `seed` is another one for each thread of each helper.
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

    /// What there is has changed.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// Whether a window is over, so that [`measured`](Self::measured) wants to be called. Nobody needs to wake up for it:
    /// a thread that sleeps has no load.
    pub fn wants_measure(&self, now: Time) -> bool {
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
        // A window that was long, because the thread slept, counts like all the windows that it could have been.
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

    /// A client has asked, and will come with a chance of one in `asked`. One that asks again is not counted twice.
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

    /// A client has come: it is expected no more. It is in the next measurement, and in [`load`](Self::load) before.
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

    /// The load now, with so many clients and so much memory, as an answer to a question; without flags and nonce.
    pub fn load(&mut self, now: Time, clients: u32, memory: usize) -> Load {
        self.forget(now);
        Load { lot: self.lots.draw(), ..self.figures(clients, memory) }
    }

    /// The figures of the load, to look at.
    pub fn figures(&self, clients: u32, memory: usize) -> Load {
        // What has come and gone since is not in the measurements, but what it costs is known.
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

    /// The load as shedding sees it: measured and smoothed, without anything expected. 1 is all that there is.
    pub fn measured_load(&self, memory: usize) -> f64 {
        let memory = memory as f64 / self.capacity.memory.max(1) as f64;
        [self.cpu, self.network, memory].into_iter().fold(0.0, f64::max)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most SHARE_MAX; `as` saturates at 0"
)]
fn share(of_one: f64) -> u16 {
    (of_one * f64::from(SHARE_MAX) + 0.5).min(f64::from(SHARE_MAX)) as u16
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most WEIGHT_MAX; `as` saturates at 0"
)]
fn weight(of_one: f64) -> u32 {
    (of_one * f64::from(WEIGHT_MAX) + 0.5).min(f64::from(WEIGHT_MAX)) as u32
}

/// Names an address. Two that have the same name are taken for one: a client too few is expected.
fn short(who: SocketAddr) -> u64 {
    let ip = match who.ip().to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
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

    /// Uses so much of each second, from the beginning to `until_ms`.
    fn use_up(gauge: &mut Gauge, until_ms: u64, cpu: f64, bytes: f64, clients: u32) {
        for ms in (0..=until_ms).step_by(100) {
            assert!(gauge.wants_measure(at(ms)) && !gauge.wants_measure(at(ms.saturating_sub(1))) || ms == 0);
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
        // It slept for ten seconds: one window, and the past is forgotten.
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

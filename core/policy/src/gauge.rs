//! The load of one helper thread, and the expected arrivals (PostMan §5.2: "each helper monitors its own CPU and
//! network utilization").

use alloc::collections::VecDeque;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::load::{LOAD_MAX, LoadReport, SHARE_MAX};

use crate::lots::Lots;

/// Minimum length of a measurement window.
const WINDOW: Duration = Duration::from_millis(100);
/// Weight of a new window in the smoothed shares: earlier windows count less than 1 % after a second.
const WINDOW_WEIGHT: f64 = 0.4;
/// Weight of a new window in the smoothed cost of a client, smaller because the cost must survive quiet times.
const COST_WINDOW_WEIGHT: f64 = 0.05;
/// Minimum number of clients to measure the cost of one.
const COST_CLIENTS_MIN: f64 = 4.0;
/// Estimated cost of a client before any measurement, as a share of a core.
const COST_INITIAL: f64 = 1.0 / 2_000.0;
/// Maximum of a measured cost of a client, as a share of the core or of the network.
const COST_MAX: f64 = 1.0 / 20.0;
/// A client that has not connected this long after its load query counts as a client of another helper.
const TENTATIVE_TIME: Duration = Duration::from_millis(100);
/// Maximum number of remembered queries; further ones are answered but not counted.
const TENTATIVE_MAX: usize = 4096;
/// The weight of a query by a client that queried only this helper.
const WEIGHT_ONE: u64 = 1 << 16;

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

/// What one thread has used since its start, and uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
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
    last: Option<(Time, Usage)>,
    /// Shares of core and network in use, and the number of clients that caused this use, all smoothed in the same way.
    cpu: f64,
    network: f64,
    clients: f64,
    /// Cost of one client as a share of the core and of the network.
    cpu_cost: f64,
    network_cost: f64,
    /// Clients that have sent a load query and may connect, in the order of the times at which they are no longer
    /// expected.
    tentative_clients: VecDeque<TentativeClient>,
    /// The sum of the weights in `tentative_clients`.
    expected: u64,
    lots: Lots,
}

#[derive(Clone, Copy, Debug)]
struct TentativeClient {
    until: Time,
    client: u64,
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
            cpu_cost: COST_INITIAL,
            network_cost: 0.0,
            tentative_clients: VecDeque::new(),
            expected: 0,
            lots: Lots::new(seed),
        }
    }

    /// Changes the capacity.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
    }

    /// Whether a window is over, so that [`measured`](Self::measured) should be called. A sleeping thread need not wake
    /// for the call, because it has no load.
    pub fn is_measurement_due(&self, now: Time) -> bool {
        self.last.is_none_or(|(since, _)| now.since(since) >= WINDOW)
    }

    /// Ends the measurement window that began with the last call, and begins the next one.
    pub fn measured(&mut self, now: Time, used: Usage) {
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
        let new_weight = 1.0 - (0..windows).fold(1.0, |old_weight, _| old_weight * (1.0 - WINDOW_WEIGHT));
        self.cpu += (cpu - self.cpu) * new_weight;
        self.network += (network - self.network) * new_weight;
        self.clients += (clients - self.clients) * new_weight;
        if clients >= COST_CLIENTS_MIN {
            self.cpu_cost += ((cpu / clients).min(COST_MAX) - self.cpu_cost) * COST_WINDOW_WEIGHT;
            self.network_cost += ((network / clients).min(COST_MAX) - self.network_cost) * COST_WINDOW_WEIGHT;
        }
    }

    /// A client has sent load queries to `helpers_asked` helpers, of which this is one, and connects here with
    /// probability 1 / `helpers_asked`. Repeated queries count once.
    pub fn client_sent_query(&mut self, now: Time, client: SocketAddr, helpers_asked: u8) {
        self.forget_expired(now);
        let client = address_hash(client);
        if self.tentative_clients.len() >= TENTATIVE_MAX
            || self.tentative_clients.iter().any(|pending| pending.client == client && pending.weight > 0)
        {
            return;
        }
        let weight = WEIGHT_ONE / u64::from(helpers_asked.max(1));
        self.tentative_clients.push_back(TentativeClient { until: now + TENTATIVE_TIME, client, weight });
        self.expected += weight;
    }

    /// A client has connected: it is no longer expected, and counts in [`load`](Self::load) before it is measured.
    pub fn client_connected(&mut self, now: Time, client: SocketAddr) {
        self.forget_expired(now);
        let client = address_hash(client);
        if let Some(pending) =
            self.tentative_clients.iter_mut().find(|pending| pending.client == client && pending.weight > 0)
        {
            self.expected -= core::mem::take(&mut pending.weight);
        }
    }

    fn forget_expired(&mut self, now: Time) {
        while let Some(pending) = self.tentative_clients.front().filter(|pending| pending.until <= now) {
            self.expected -= pending.weight;
            self.tentative_clients.pop_front();
        }
    }

    /// The load with this number of clients and bytes of memory, as a reply to a load query, without flags and nonce.
    pub fn load(&mut self, now: Time, clients: u32, memory: usize) -> LoadReport {
        self.forget_expired(now);
        LoadReport { random: self.lots.draw(), ..self.load_for_display(clients, memory) }
    }

    /// As [`load`](Self::load), but without a random number; for display.
    pub fn load_for_display(&self, clients: u32, memory: usize) -> LoadReport {
        // Clients that connected or left since the measurement count with the smoothed cost of a client.
        let unmeasured = f64::from(clients) - self.clients;
        let cpu = (self.cpu + unmeasured * self.cpu_cost).max(0.0);
        let network = (self.network + unmeasured * self.network_cost).max(0.0);
        let client_share = 1.0 / f64::from(self.capacity.clients.max(1));
        let connections = f64::from(clients) * client_share;
        let memory = memory as f64 / self.capacity.memory.max(1) as f64;
        let load = [cpu, network, connections, memory].into_iter().fold(0.0, f64::max);
        let expected = self.expected as f64 / WEIGHT_ONE as f64;
        let cost = [self.cpu_cost, self.network_cost, client_share].into_iter().fold(0.0, f64::max);
        LoadReport {
            cpu: share(cpu),
            network: share(network),
            connections: share(connections),
            memory: share(memory),
            load: millionths(load),
            tentative: millionths(expected * cost),
            ..LoadReport::default()
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
fn share(fraction: f64) -> u16 {
    (fraction * f64::from(SHARE_MAX) + 0.5).min(f64::from(SHARE_MAX)) as u16
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most LOAD_MAX; `as` turns negative numbers into 0"
)]
fn millionths(fraction: f64) -> u32 {
    (fraction * f64::from(LOAD_MAX) + 0.5).min(f64::from(LOAD_MAX)) as u32
}

/// Hash of an address. A collision counts two clients as one.
fn address_hash(client: SocketAddr) -> u64 {
    let ip = match client.ip().to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = (ip >> 64) as u64 ^ (ip as u64).rotate_left(16) ^ u64::from(client.port());
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

    /// Measures a thread that uses this share of a core and these bytes a second, from the start to `until_ms`.
    fn use_up(gauge: &mut Gauge, until_ms: u64, cpu: f64, bytes: f64, clients: u32) {
        for ms in (0..=until_ms).step_by(100) {
            assert!(
                gauge.is_measurement_due(at(ms)) && !gauge.is_measurement_due(at(ms.saturating_sub(1)))
                    || ms == 0,
                "a measurement should be due at the end of the window only"
            );
            let seconds = ms as f64 / 1000.0;
            let cpu = Duration::from_secs_f64(cpu * seconds);
            gauge.measured(at(ms), Usage { cpu, bytes: (bytes * seconds) as u64, clients, memory: 0 });
        }
    }

    #[test]
    fn load_is_the_highest_share_of_any_resource() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 3_000, 0.5, 200_000.0, 100);
        let load = gauge.load(at(3_000), 100, 10);
        assert_eq!((load.cpu, load.network, load.connections, load.memory), (500, 200, 10, 10));
        assert!((499_000..500_001).contains(&load.load), "the load should be the highest share: {load:?}");
        assert_eq!(gauge.load(at(3_000), 100, 900).load, 900_000, "memory should count without smoothing");
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 3_000, 0.1, 5_000_000.0, 100);
        assert_eq!(gauge.load(at(3_000), 100, 0).network, 1_000, "a share should be at most 1,000 per mille");
        let mut gauge = Gauge::new(Capacity { cpu: 0.5, network: None, ..CAPACITY }, 1);
        use_up(&mut gauge, 3_000, 0.25, 5_000_000.0, 100);
        let load = gauge.load(at(3_000), 100, 0);
        assert_eq!((load.cpu, load.network), (500, 0), "a quarter of a core should be half of the half core");
    }

    #[test]
    fn burst_shows_within_two_windows_and_sleep_clears_it() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        let used =
            |cpu_ms: u64| Usage { cpu: Duration::from_millis(cpu_ms), clients: 10, ..Usage::default() };
        gauge.measured(at(0), used(0));
        gauge.measured(at(100), used(100));
        gauge.measured(at(200), used(200));
        assert!(gauge.load(at(200), 10, 0).cpu > 600, "a burst should show within two windows");
        // The thread slept for ten seconds, in one long window: earlier load is forgotten.
        gauge.measured(at(10_200), used(210));
        // 10 ms in 10 s are 1 per mille.
        assert!(gauge.load(at(10_200), 10, 0).cpu < 5, "a sleep should clear the load");
    }

    #[test]
    fn connects_and_leaves_count_before_the_next_measurement() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        use_up(&mut gauge, 10_000, 0.2, 0.0, 100);
        let now = at(10_000);
        let cpu = |gauge: &mut Gauge, clients| gauge.load(now, clients, 0).cpu;
        // 100 clients use 0.2 of a core, 2 per mille each; smoothing leaves an error of a few per cent.
        assert!(
            (198..=200).contains(&cpu(&mut gauge, 100)),
            "100 clients should cost what was measured, 200"
        );
        assert!(
            (395..=400).contains(&cpu(&mut gauge, 200)),
            "200 clients should cost 0.2 % each: {}",
            cpu(&mut gauge, 200)
        );
        assert!((95..=105).contains(&cpu(&mut gauge, 50)), "50 clients should cost half of what 100 do");
        assert_eq!(cpu(&mut Gauge::new(CAPACITY, 1), 200), 100, "200 clients should have the initial cost");
    }

    #[test]
    fn client_that_sent_a_query_is_expected_until_it_connects_or_100_ms_have_passed() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        let tentative = |gauge: &mut Gauge, ms| gauge.load(at(ms), 0, 0).tentative;
        (0..10).for_each(|port| gauge.client_sent_query(at(0), client(port), 2));
        assert_eq!(
            tentative(&mut gauge, 1),
            2_500,
            "ten clients should count with probability 1/2 and 1/2000 of a core each"
        );
        gauge.client_sent_query(at(2), client(3), 2);
        assert_eq!(tentative(&mut gauge, 2), 2_500, "a repeated query should count once");
        gauge.client_connected(at(3), client(3));
        gauge.client_connected(at(3), client(3));
        gauge.client_connected(at(3), client(77));
        assert_eq!(tentative(&mut gauge, 3), 2_250);
        gauge.client_sent_query(at(50), client(20), 1);
        assert_eq!(tentative(&mut gauge, 99), 2_750);
        assert_eq!(tentative(&mut gauge, 100), 500, "queries should count for 100 ms");
        assert_eq!(tentative(&mut gauge, 150), 0);
        assert!(gauge.tentative_clients.is_empty(), "expired queries should be forgotten");
    }

    #[test]
    fn number_of_remembered_queries_is_bounded() {
        let mut gauge = Gauge::new(CAPACITY, 1);
        for number in 0..10_000_u16 {
            gauge.client_sent_query(at(0), client(number), 1);
        }
        assert_eq!(gauge.tentative_clients.len(), TENTATIVE_MAX);
        gauge.client_sent_query(at(100), client(1), 1);
        assert_eq!(
            (gauge.tentative_clients.len(), gauge.expected),
            (1, WEIGHT_ONE),
            "expired queries should make room"
        );
    }
}

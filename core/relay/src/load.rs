//! Load of this relay's thread: replies to load queries, and shedding of library clients (PostMan §5.2).

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{KeyRing, LoadRejection, prove_load, verify_query};
use spillway_policy::{Capacity, Gauge, Shedding, Usage};
use spillway_transport::Time;
use spillway_wire::load::{LOAD_REPLY_BYTES, LoadReport};

use crate::config::{Config, ServiceConfig};
use crate::counters::{Flow, LoadQueries};
use crate::memory::Memory;
use crate::reasons::Refusal;

/// Network overhead per small message: headers of Ethernet, IP and TCP with timestamps.
const HEADER_BYTES: u64 = 66;

/// Measures the load, answers load queries, and decides when clients are shed.
#[derive(Debug)]
pub(crate) struct LoadControl {
    answers: bool,
    gauge: Gauge,
    shedding: Option<Shedding>,
    /// Slot at which the search for the next client to shed begins.
    next_slot: u32,
    /// Keys for services without client keys.
    loopback_ring: KeyRing,
}

/// Library clients to send to other helpers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shed {
    pub(crate) count: u32,
    /// Clients that have been connected for less than this time stay.
    pub(crate) age_min: Duration,
    pub(crate) load: f64,
}

/// Whether a service accepts clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Availability {
    /// Whether the relay accepts one more client of the service.
    pub(crate) admission: Result<(), Refusal>,
    pub(crate) has_link: bool,
    /// The service drains, or its override is `off`.
    pub(crate) is_closed: bool,
}

/// Why a load query got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    Off,
    Address,
    Malformed,
    Key,
    Proof,
}

impl Unanswered {
    pub(crate) fn count(self, counters: &mut LoadQueries) {
        *match self {
            Unanswered::Off => &mut counters.off,
            Unanswered::Address => &mut counters.address,
            Unanswered::Malformed => &mut counters.malformed,
            Unanswered::Key => &mut counters.key,
            Unanswered::Proof => &mut counters.proof,
        } += 1;
    }
}

fn capacity(config: &Config) -> Capacity {
    Capacity {
        cpu: config.load.cpu,
        network: config.load.network_bytes,
        clients: config.clients_max,
        memory: config.memory_bytes_max,
    }
}

impl LoadControl {
    /// `seed` must differ between the threads of all helpers.
    pub(crate) fn new(config: &Config, seed: u64) -> LoadControl {
        LoadControl {
            answers: config.load.answers,
            gauge: Gauge::new(capacity(config), seed),
            shedding: config.load.shedding.map(Shedding::new),
            next_slot: 0,
            loopback_ring: KeyRing::loopback_only(),
        }
    }

    pub(crate) fn change(&mut self, config: &Config) {
        self.answers = config.load.answers;
        self.gauge.set_capacity(capacity(config));
        match (&mut self.shedding, config.load.shedding) {
            (Some(shedding), Some(settings)) => shedding.set(settings),
            (shedding, settings) => *shedding = settings.map(Shedding::new),
        }
    }

    pub(crate) fn is_measurement_due(&self, now: Time) -> bool {
        self.gauge.is_measurement_due(now)
    }

    /// Adds a measurement: total CPU time and total traffic of the thread since its start.
    pub(crate) fn measured(
        &mut self,
        now: Time,
        cpu: Duration,
        traffic: impl Iterator<Item = Flow>,
        clients: u32,
        memory: &Memory,
    ) {
        let bytes = traffic.map(|flow| flow.bytes + HEADER_BYTES * flow.segments).sum();
        self.gauge.measured(now, Usage { cpu, bytes, clients, memory: memory.total() });
    }

    /// The clients to shed now. `clients`: counts the authenticated library clients; called only during an overload.
    #[must_use]
    pub(crate) fn shed(&mut self, now: Time, memory: &Memory, clients: impl FnOnce() -> u32) -> Option<Shed> {
        let load = self.gauge.measured_load(memory.total());
        let shedding = self.shedding.as_mut()?;
        let count = shedding.look(now, load, clients);
        (count > 0).then(|| Shed { count, age_min: shedding.settings().age_min, load })
    }

    pub(crate) fn next_slot(&self) -> u32 {
        self.next_slot
    }

    /// The client in this slot was shed: the next search begins after it.
    pub(crate) fn client_shed(&mut self, slot: u32) {
        self.next_slot = slot.wrapping_add(1);
    }

    /// Whether the load is too high for new clients.
    fn is_full(&self, now: Time, memory: &Memory) -> bool {
        let load = self.gauge.measured_load(memory.total());
        self.shedding.as_ref().is_some_and(|shedding| shedding.is_full(now, load))
    }

    pub(crate) fn client_connected(&mut self, now: Time, client: SocketAddr) {
        self.gauge.client_connected(now, client);
    }

    pub(crate) fn load(&self, now: Time, clients: u32, memory: &Memory) -> LoadReport {
        LoadReport { full: self.is_full(now, memory), ..self.gauge.load_for_display(clients, memory.total()) }
    }

    /// Answers a load query. Calls `availability` only after the query was verified, so that other datagrams cost
    /// little.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        (from, query): (SocketAddr, &[u8]),
        service: &ServiceConfig,
        availability: impl FnOnce() -> Availability,
        (clients, memory): (u32, &Memory),
    ) -> Result<[u8; LOAD_REPLY_BYTES], Unanswered> {
        let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
        if !self.answers {
            return Err(Unanswered::Off);
        }
        if !service.clients.iter().any(|range| range.contains(peer.ip()))
            || (service.client_keys.is_none() && !peer.ip().is_loopback())
        {
            return Err(Unanswered::Address);
        }
        let ring = service.client_keys.as_ref().unwrap_or(&self.loopback_ring);
        let (parsed, key) = verify_query(ring, query).map_err(|why| match why {
            LoadRejection::UnknownKey(_) => Unanswered::Key,
            LoadRejection::Proof | LoadRejection::Stale => Unanswered::Proof,
            LoadRejection::Malformed(_) => Unanswered::Malformed,
        })?;
        let availability = availability();
        let load = LoadReport {
            full: matches!(availability.admission, Err(Refusal::ClientsMax | Refusal::Memory))
                || self.is_full(now, memory),
            draining: availability.is_closed,
            down: !availability.has_link || !service.serves(parsed.server),
            nonce: parsed.nonce,
            ..LoadReport::default()
        };
        if load.accepts_clients() {
            self.gauge.client_sent_query(now, peer, parsed.helpers_asked);
        }
        let figures = self.gauge.load(now, clients, memory.total());
        let (full, draining, down, nonce) = (load.full, load.draining, load.down, load.nonce);
        Ok(prove_load(key, &LoadReport { full, draining, down, nonce, ..figures }))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn service() -> ServiceConfig {
        ServiceConfig::new("cache", "127.0.0.1:11411".parse().unwrap())
    }

    #[test]
    fn invalid_queries_get_no_reply_and_do_not_check_availability() {
        let config = Config::new(vec![service()]);
        let mut load = LoadControl::new(&config, 1);
        let memory = Memory::new(1 << 20);
        let answer_query = |load: &mut LoadControl, from: &str, query: &[u8]| {
            let from = (from.parse().unwrap(), query);
            load.answer(
                Time(0),
                from,
                &service(),
                || panic!("availability should not be checked"),
                (0, &memory),
            )
        };
        assert_eq!(answer_query(&mut load, "127.0.0.1:9", b"no query"), Err(Unanswered::Malformed));
        assert_eq!(
            answer_query(&mut load, "10.0.0.1:9", b"no query"),
            Err(Unanswered::Address),
            "without keys only queries from loopback should be answered"
        );
        let without_answers =
            Config { load: crate::LoadConfig { answers: false, ..config.load.clone() }, ..config };
        load.change(&without_answers);
        assert_eq!(answer_query(&mut load, "127.0.0.1:9", b"no query"), Err(Unanswered::Off));
    }

    #[test]
    fn network_load_includes_headers() {
        let mut config = Config::new(vec![service()]);
        config.load.network_bytes = Some(1_000);
        let mut load = LoadControl::new(&config, 1);
        let memory = Memory::new(1 << 20);
        assert!(load.is_measurement_due(Time(0)), "the first measurement should be due at once");
        load.measured(Time(0), Duration::ZERO, [].into_iter(), 0, &memory);
        let flow = Flow { bytes: 340, segments: 10 };
        load.measured(Time(60_000_000_000), Duration::ZERO, [flow].into_iter(), 0, &memory);
        // 340 + 10 × 66 = 1,000 bytes in 60 s, with a capacity of 1,000 bytes a second.
        assert!(
            !load.is_measurement_due(Time(60_000_000_001)),
            "no measurement should be due just after the last"
        );
        assert!(
            (0.015..0.018).contains(&load.gauge.measured_load(0)),
            "1,000 bytes with headers should be 1/60 of the capacity of 60 s: {}",
            load.gauge.measured_load(0)
        );
        assert_eq!(load.shed(Time(60_000_000_000), &memory, || 100), None);
    }
}

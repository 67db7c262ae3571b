//! Load of this relay's thread: replies to load queries, and shedding of library clients (PostMan §5.2).

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{KeyRing, LoadRejection, prove_load, verify_ask};
use spillway_policy::{Capacity, Gauge, Shedding, Used};
use spillway_transport::Time;
use spillway_wire::load::{LOAD_BYTES, Load};

use crate::config::{Config, ServiceConfig};
use crate::counters::{Flow, Questions};
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
    pub(crate) room: Result<(), Refusal>,
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
    pub(crate) fn count(self, questions: &mut Questions) {
        *match self {
            Unanswered::Off => &mut questions.off,
            Unanswered::Address => &mut questions.address,
            Unanswered::Malformed => &mut questions.malformed,
            Unanswered::Key => &mut questions.key,
            Unanswered::Proof => &mut questions.proof,
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

    /// Adds a measurement: the thread's total CPU time and total traffic since its start.
    pub(crate) fn measured(
        &mut self,
        now: Time,
        cpu: Duration,
        flows: impl Iterator<Item = Flow>,
        clients: u32,
        memory: &Memory,
    ) {
        let bytes = flows.map(|flow| flow.bytes + HEADER_BYTES * flow.segments).sum();
        self.gauge.measured(now, Used { cpu, bytes, clients, memory: memory.total() });
    }

    /// The clients to shed now, given the number of library clients.
    #[must_use]
    pub(crate) fn shed(&mut self, now: Time, memory: &Memory, library_clients: u32) -> Option<Shed> {
        let load = self.gauge.measured_load(memory.total());
        let shedding = self.shedding.as_mut()?;
        let count = shedding.look(now, load, library_clients);
        (count > 0).then(|| Shed { count, age_min: shedding.settings().young, load })
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
        self.gauge.came(now, client);
    }

    pub(crate) fn load(&self, now: Time, clients: u32, memory: &Memory) -> Load {
        Load { full: self.is_full(now, memory), ..self.gauge.figures(clients, memory.total()) }
    }

    /// Answers a load query. Calls `availability` only after the query was verified, so that other datagrams cost
    /// little.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        (from, question): (SocketAddr, &[u8]),
        service: &ServiceConfig,
        availability: impl FnOnce() -> Availability,
        (clients, memory): (u32, &Memory),
    ) -> Result<[u8; LOAD_BYTES], Unanswered> {
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
        let (ask, key) = verify_ask(ring, question).map_err(|why| match why {
            LoadRejection::UnknownKey(_) => Unanswered::Key,
            LoadRejection::Proof | LoadRejection::Stale => Unanswered::Proof,
            LoadRejection::Malformed(_) => Unanswered::Malformed,
        })?;
        let availability = availability();
        let load = Load {
            full: matches!(availability.room, Err(Refusal::ClientsMax | Refusal::Memory))
                || self.is_full(now, memory),
            draining: availability.is_closed,
            down: !availability.has_link || !service.serves(ask.server),
            nonce: ask.nonce,
            ..Load::default()
        };
        if load.takes_clients() {
            self.gauge.asked(now, peer, ask.asked);
        }
        let figures = self.gauge.load(now, clients, memory.total());
        let (full, draining, down, nonce) = (load.full, load.draining, load.down, load.nonce);
        Ok(prove_load(key, &Load { full, draining, down, nonce, ..figures }))
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
        let ask = |load: &mut LoadControl, from: &str, question: &[u8]| {
            let from = (from.parse().unwrap(), question);
            load.answer(Time(0), from, &service(), || panic!("availability was checked"), (0, &memory))
        };
        assert_eq!(ask(&mut load, "127.0.0.1:9", b"what"), Err(Unanswered::Malformed));
        assert_eq!(ask(&mut load, "10.0.0.1:9", b"what"), Err(Unanswered::Address), "keyless: loopback only");
        let silent = Config { load: crate::LoadConfig { answers: false, ..config.load.clone() }, ..config };
        load.change(&silent);
        assert_eq!(ask(&mut load, "127.0.0.1:9", b"what"), Err(Unanswered::Off));
    }

    #[test]
    fn network_load_includes_headers() {
        let mut config = Config::new(vec![service()]);
        config.load.network_bytes = Some(1_000);
        let mut load = LoadControl::new(&config, 1);
        let memory = Memory::new(1 << 20);
        assert!(load.is_measurement_due(Time(0)));
        load.measured(Time(0), Duration::ZERO, [].into_iter(), 0, &memory);
        let flow = Flow { bytes: 340, segments: 10 };
        load.measured(Time(60_000_000_000), Duration::ZERO, [flow].into_iter(), 0, &memory);
        // 1,000 bytes in 60 s of 1,000 bytes a second.
        assert!(!load.is_measurement_due(Time(60_000_000_001)));
        assert!((0.015..0.018).contains(&load.gauge.measured_load(0)), "{}", load.gauge.measured_load(0));
        assert_eq!(load.shed(Time(60_000_000_000), &memory, 100), None);
    }
}

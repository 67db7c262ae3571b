//! The load of this relay's thread: what clients learn of it when they ask (PostMan §5.2), and when library clients are sent
//! away because it is too high.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{KeyRing, LoadRefusal, prove_load, verify_ask};
use spillway_policy::{Capacity, Gauge, Shedding, Used};
use spillway_transport::Time;
use spillway_wire::load::{LOAD_BYTES, Load};

use crate::config::{Config, ServiceConfig};
use crate::counters::{Flow, Questions};
use crate::memory::Memory;
use crate::reasons::Refusal;

/// What each small message costs the network beside its bytes: headers of Ethernet, IP and TCP, with timestamps.
const HEADER_BYTES: u64 = 66;

/// Measures the load, answers questions about it, and decides when it is too high.
#[derive(Debug)]
pub(crate) struct LoadControl {
    /// Library clients that ask are answered.
    answers: bool,
    gauge: Gauge,
    shedding: Option<Shedding>,
    /// The slot where the next client to be sent away is looked for.
    next_slot: u32,
    /// For services without client keys.
    loopback_ring: KeyRing,
}

/// Library clients that are to be sent away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shed {
    pub(crate) count: u32,
    /// Younger ones stay.
    pub(crate) young: Duration,
    pub(crate) load: f64,
}

/// Whether a service takes a client that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doors {
    pub(crate) room: Result<(), Refusal>,
    pub(crate) has_link: bool,
    /// It is drained, or off.
    pub(crate) is_closed: bool,
}

/// Why a question got no answer.
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
    /// `seed`: another one for each thread of each helper.
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

    pub(crate) fn wants_measure(&self, now: Time) -> bool {
        self.gauge.wants_measure(now)
    }

    /// CPU time that the thread has used, and what it has carried in `flows`, up to now.
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

    /// How many of this many library clients are to be sent away now; none if it is not the time.
    #[must_use]
    pub(crate) fn shed(&mut self, now: Time, memory: &Memory, library_clients: u32) -> Option<Shed> {
        let load = self.gauge.measured_load(memory.total());
        let shedding = self.shedding.as_mut()?;
        let count = shedding.look(now, load, library_clients);
        (count > 0).then(|| Shed { count, young: shedding.settings().young, load })
    }

    /// The slot where the next client to be sent away is looked for.
    pub(crate) fn next_slot(&self) -> u32 {
        self.next_slot
    }

    /// The client in this slot is sent away.
    pub(crate) fn sent_away(&mut self, slot: u32) {
        self.next_slot = slot.wrapping_add(1);
    }

    /// Whether clients are told that no more are taken because of the load.
    fn is_full(&self, now: Time, memory: &Memory) -> bool {
        let load = self.gauge.measured_load(memory.total());
        self.shedding.as_ref().is_some_and(|shedding| shedding.is_full(now, load))
    }

    /// A library client has come.
    pub(crate) fn came(&mut self, now: Time, client: SocketAddr) {
        self.gauge.came(now, client);
    }

    /// The load now.
    pub(crate) fn load(&self, now: Time, clients: u32, memory: &Memory) -> Load {
        Load { full: self.is_full(now, memory), ..self.gauge.figures(clients, memory.total()) }
    }

    /// A client asks. `doors` is not looked at before the question is known to be a client's.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        (from, question): (SocketAddr, &[u8]),
        service: &ServiceConfig,
        doors: impl FnOnce() -> Doors,
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
            LoadRefusal::UnknownKey(_) => Unanswered::Key,
            LoadRefusal::Proof | LoadRefusal::Stale => Unanswered::Proof,
            LoadRefusal::Malformed(_) => Unanswered::Malformed,
        })?;
        let doors = doors();
        let load = Load {
            full: matches!(doors.room, Err(Refusal::ClientsMax | Refusal::Memory))
                || self.is_full(now, memory),
            draining: doors.is_closed,
            down: !doors.has_link || !service.serves(ask.server),
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
    fn a_question_that_no_client_can_have_asked_gets_no_answer_and_looks_at_nothing() {
        let config = Config::new(vec![service()]);
        let mut load = LoadControl::new(&config, 1);
        let memory = Memory::new(1 << 20);
        let ask = |load: &mut LoadControl, from: &str, question: &[u8]| {
            let from = (from.parse().unwrap(), question);
            load.answer(Time(0), from, &service(), || panic!("not looked at"), (0, &memory))
        };
        assert_eq!(ask(&mut load, "127.0.0.1:9", b"what"), Err(Unanswered::Malformed));
        assert_eq!(ask(&mut load, "10.0.0.1:9", b"what"), Err(Unanswered::Address), "keyless: loopback only");
        let quiet = Config { load: crate::LoadConfig { answers: false, ..config.load.clone() }, ..config };
        load.change(&quiet);
        assert_eq!(ask(&mut load, "127.0.0.1:9", b"what"), Err(Unanswered::Off));
    }

    #[test]
    fn what_is_carried_counts_with_its_headers() {
        let mut config = Config::new(vec![service()]);
        config.load.network_bytes = Some(1_000);
        let mut load = LoadControl::new(&config, 1);
        let memory = Memory::new(1 << 20);
        assert!(load.wants_measure(Time(0)));
        load.measured(Time(0), Duration::ZERO, [].into_iter(), 0, &memory);
        let flow = Flow { bytes: 340, segments: 10 };
        load.measured(Time(60_000_000_000), Duration::ZERO, [flow].into_iter(), 0, &memory);
        // 1,000 bytes in 60 s of 1,000 bytes a second.
        assert!(!load.wants_measure(Time(60_000_000_001)));
        assert!((0.015..0.018).contains(&load.gauge.measured_load(0)), "{}", load.gauge.measured_load(0));
        assert_eq!(load.shed(Time(60_000_000_000), &memory, 100), None);
    }
}

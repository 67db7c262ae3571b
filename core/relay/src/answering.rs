//! Questions of load (PostMan §5.2): who gets an answer, and what it says.

use core::net::SocketAddr;
use core::time::Duration;

use spillway_auth::{LoadRefusal, prove_load, verify_ask};
use spillway_policy::{Capacity, Used};
use spillway_transport::Time;
use spillway_wire::load::{LOAD_BYTES, Load};

use crate::clients::is_served;
use crate::config::Config;
use crate::notice::Refusal;
use crate::relay::Relay;
use crate::slots::Sort;

/// What each small message costs the network beside its bytes: headers of Ethernet, IP and TCP, with timestamps.
const HEADER_BYTES: u64 = 66;

/// Why a question got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unanswered {
    Off,
    Address,
    Malformed,
    Key,
    Proof,
}

impl Config {
    /// What there is for one relay.
    pub(crate) fn capacity(&self) -> Capacity {
        Capacity {
            cpu: self.load.cpu,
            network: self.load.network_bytes,
            clients: self.clients_max,
            memory: self.memory_bytes_max,
        }
    }
}

impl Relay {
    /// Whether [`measured`](Self::measured) wants to be called, before a question is answered and at the end of each turn.
    pub fn wants_measure(&self, now: Time) -> bool {
        self.gauge.wants_measure(now)
    }

    /// The relay's thread has used so much CPU time up to now. If that is too much, library clients are sent away.
    pub fn measured(&mut self, now: Time, cpu: Duration) {
        let mut bytes = 0;
        for flow in self.services.iter().flat_map(|s| [s.counters.requests, s.counters.replies]) {
            bytes += flow.bytes + HEADER_BYTES * flow.segments;
        }
        let used = Used { cpu, bytes, clients: self.clients, memory: self.memory.total() };
        self.gauge.measured(now, used);
        self.look_at_load(now);
    }

    /// How loaded it is now.
    pub fn load(&self) -> Load {
        let figures = self.gauge.figures(self.clients, self.memory.total());
        Load { full: self.is_full(self.now), draining: self.going, ..figures }
    }

    /// A client asks how loaded it is. Returns the length of the answer; 0 for none.
    pub(crate) fn answer(
        &mut self,
        now: Time,
        listener: u16,
        from: SocketAddr,
        question: &[u8],
        answer: &mut [u8],
    ) -> usize {
        self.now = now;
        let listener = self.listeners.get(usize::from(listener)).and_then(|listener| listener.of);
        // A listener that no service uses any more, or one of plain clients: nobody has a reason to ask there.
        let Some((service, Sort::Library)) = listener else { return 0 };
        let counted = match self.answer_of(now, service, from, question) {
            Ok(bytes) => {
                if let Some(room) = answer.get_mut(..bytes.len()) {
                    room.copy_from_slice(&bytes);
                    self.services[usize::from(service)].counters.questions.answered += 1;
                    return bytes.len();
                }
                Unanswered::Malformed
            }
            Err(why) => why,
        };
        let questions = &mut self.services[usize::from(service)].counters.questions;
        *match counted {
            Unanswered::Off => &mut questions.off,
            Unanswered::Address => &mut questions.address,
            Unanswered::Malformed => &mut questions.malformed,
            Unanswered::Key => &mut questions.key,
            Unanswered::Proof => &mut questions.proof,
        } += 1;
        0
    }

    fn answer_of(
        &mut self,
        now: Time,
        service: u16,
        from: SocketAddr,
        question: &[u8],
    ) -> Result<[u8; LOAD_BYTES], Unanswered> {
        let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
        let config = &self.config.services[usize::from(service)];
        if !self.config.load.answers {
            return Err(Unanswered::Off);
        }
        let is_loopback = peer.ip().is_loopback();
        if !config.clients.iter().any(|range| range.contains(peer.ip()))
            || (config.client_keys.is_none() && !is_loopback)
        {
            return Err(Unanswered::Address);
        }
        let ring = config.client_keys.as_ref().unwrap_or(&self.loopback_ring);
        let (ask, key) = verify_ask(ring, question).map_err(|why| match why {
            LoadRefusal::UnknownKey(_) => Unanswered::Key,
            LoadRefusal::Proof | LoadRefusal::Stale => Unanswered::Proof,
            LoadRefusal::Malformed(_) => Unanswered::Malformed,
        })?;
        let admitted = self.admit_anybody(service);
        let load = Load {
            full: matches!(admitted, Err(Refusal::ClientsMax | Refusal::Memory)) || self.is_full(now),
            draining: self.is_leaving(service) || self.is_off(service),
            down: self.choose_link(service).is_none() || !is_served(config, ask.server),
            nonce: ask.nonce,
            ..Load::default()
        };
        if load.takes_clients() {
            self.gauge.asked(now, peer, ask.asked);
        }
        let figures = self.gauge.load(now, self.clients, self.memory.total());
        let (full, draining, down, nonce) = (load.full, load.draining, load.down, load.nonce);
        Ok(prove_load(key, &Load { full, draining, down, nonce, ..figures }))
    }
}

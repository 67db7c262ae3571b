//! A helper's link between clients and a server, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{
    Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role,
    ServerConfig, ServerEvent, ServerLink,
};
use spillway_transport::Time;

use super::load::{Arrivals, Course, spread};
use super::server::{Core, Costs, Quota};
use crate::agenda::Agenda;
use crate::names::{address, helper_key};
use crate::rng::Rng;

/// `get` and a key of 32 bytes.
const REQUEST: [u8; 38] = [b'x'; 38];
/// A value of 64 bytes, with memcached's header and trailer.
const REPLY: [u8; 122] = [b'x'; 122];
/// One-way delay between helper and server.
const WIRE: Duration = Duration::from_micros(25);
/// Maximum lateness of a timer.
const TIMER_LATE_NS: u64 = 30_000;
/// Delay of a request outside the link: a constant, and the mean of a random addition.
const ELSEWHERE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(50));

/// The server's properties in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// CPU costs of the server.
    pub costs: Costs,
    /// Quota of the server's host; `None` for a core of its own.
    pub quota: Option<Quota>,
}

/// The figures of one step of a course.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Replies per second.
    pub per_s: f64,
    /// Latency of the requests that were sent in this step, microseconds.
    pub p50_us: f64,
    /// Latency of the requests that were sent in this step, microseconds.
    pub p99_us: f64,
    /// The server's CPU time per request, microseconds.
    pub server_us: f64,
    /// Mean, for batches to the server.
    pub messages_per_batch: f64,
    /// Mean time between batches, microseconds.
    pub interval_us: f64,
}

enum WorldEvent {
    Request(u32),
    HelperTimer(Time),
    BatchAtServer(Vec<u8>),
    ServerDone,
    RepliesAtHelper(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Time,
    step: usize,
    client: u32,
}

#[derive(Default)]
struct Tally {
    latencies_ns: Vec<u64>,
    server: Duration,
    batches: u64,
    messages: u64,
}

struct World<'a> {
    course: &'a Course,
    costs: Costs,
    now: Time,
    rng: Rng,
    agenda: Agenda<WorldEvent>,
    opener: OpenerLink,
    server: ServerLink,
    /// Virtual connection of each client.
    ids: Vec<Id>,
    /// Unanswered requests, by id.
    asked: Vec<VecDeque<Asked>>,
    timer: Option<Time>,
    core: Core,
    inbox: Vec<u8>,
    batches_in: u32,
    busy: bool,
    tally: Vec<Tally>,
}

/// Plays a course under a policy, from a seed, until every request is answered.
///
/// # Panics
///
/// If an end of the link fails, or sets a timeout in the past.
pub fn play(course: &Course, policy: PolicyKind, setting: &Setting, seed: u64) -> Vec<Figures> {
    let mut world = World::new(course, policy, setting, seed);
    while let Some((at, what)) = world.agenda.take() {
        world.now = at;
        world.handle(what);
    }
    assert!(world.asked.iter().all(VecDeque::is_empty), "a request has no reply");
    world.tally.iter_mut().zip(&course.steps).map(|(tally, step)| tally.figures(step.length)).collect()
}

/// Batches are not encrypted here: the model's costs replace the cost of encryption.
fn fresh(first: u8) -> LinkRandomness {
    LinkRandomness::from_random([first; LinkRandomness::BYTES])
}

impl<'a> World<'a> {
    fn new(course: &'a Course, policy: PolicyKind, setting: &Setting, seed: u64) -> World<'a> {
        let limits = Limits::default();
        let opener = OpenerConfig {
            role: Role::Helper,
            key: helper_key(),
            limits,
            policy,
            encryption: Encryption::Off,
        };
        let mut ring = KeyRing::new();
        ring.accept(Role::Helper, helper_key());
        let server = Arc::new(ServerConfig { ring, limits, ..ServerConfig::default() });
        let mut rng = Rng::new(seed);
        let requests = course.requests(&mut rng.fork());
        let mut world = World {
            course,
            costs: setting.costs,
            now: Time::ZERO,
            rng,
            agenda: Agenda::default(),
            opener: OpenerLink::new(&opener, Time::ZERO, fresh(7)),
            server: ServerLink::new(server, Time::ZERO, address(1, 40_000), address(0, 11_411), fresh(8)),
            ids: Vec::new(),
            asked: Vec::new(),
            timer: None,
            core: Core::new(setting.quota),
            inbox: Vec::new(),
            batches_in: 0,
            busy: false,
            tally: course.steps.iter().map(|_| Tally::default()).collect(),
        };
        world.connect();
        for (at, client) in requests {
            world.agenda.add(at, WorldEvent::Request(client));
        }
        world
    }

    /// Establishes the link and opens a virtual connection for each client, in no time.
    fn connect(&mut self) {
        let mut opened = false;
        loop {
            let (to_server, to_opener) = (self.opener.flush(self.now), self.server.flush(self.now));
            if to_server.is_none() && to_opener.is_none() {
                if opened {
                    break;
                }
                opened = true;
                let open = |n: u32| self.opener.open(address(3, n as u16 + 1), None).expect("a free id");
                self.ids = (0..self.course.clients).map(open).collect();
            }
            self.inbox.extend_from_slice(to_server.as_ref().map_or(&[], |chunk| chunk.as_slice()));
            self.read_requests();
            if let Some(chunk) = to_opener {
                self.read_replies(chunk.as_slice());
            }
        }
        self.asked = vec![VecDeque::new(); self.ids.len() + 1];
    }

    fn handle(&mut self, what: WorldEvent) {
        match what {
            WorldEvent::Request(client) => {
                let Some(step) = self.course.step_at(self.now) else { return };
                let id = self.ids[client as usize];
                self.asked[id.0 as usize].push_back(Asked { at: self.now, step, client });
                assert_eq!(self.opener.compose(id, &REQUEST), REQUEST.len(), "within credit");
                self.helper_turn();
            }
            WorldEvent::HelperTimer(at) => {
                if self.timer == Some(at) {
                    self.timer = None;
                    self.helper_turn();
                }
            }
            WorldEvent::BatchAtServer(bytes) => {
                self.inbox.extend(bytes);
                self.batches_in += 1;
                if !self.busy {
                    self.busy = true;
                    self.serve(self.costs.wake);
                }
            }
            WorldEvent::ServerDone => {
                if let Some(replies) = self.server.flush(self.now) {
                    self.agenda
                        .add(self.now + WIRE, WorldEvent::RepliesAtHelper(replies.as_slice().to_vec()));
                    self.server.recycle(replies);
                }
                self.busy = !self.inbox.is_empty();
                if self.busy {
                    self.serve(Duration::ZERO);
                }
            }
            WorldEvent::RepliesAtHelper(bytes) => {
                self.read_replies(&bytes);
                self.helper_turn();
            }
        }
    }

    fn helper_turn(&mut self) {
        let step = self.step_now();
        while let Some(batch) = {
            let before = self.opener.counters().messages_sent;
            let batch = self.opener.poll_transmit(self.now);
            self.tally[step].batches += u64::from(batch.is_some());
            self.tally[step].messages += self.opener.counters().messages_sent - before;
            batch
        } {
            self.agenda.add(self.now + WIRE, WorldEvent::BatchAtServer(batch.as_slice().to_vec()));
            self.opener.recycle(batch);
        }
        let next = self.opener.poll_timeout();
        if let Some(at) = next {
            assert!(at > self.now, "a timeout in the past");
        }
        if next != self.timer {
            self.timer = next;
            if let Some(at) = next {
                let late = Duration::from_nanos(self.rng.below(TIMER_LATE_NS));
                self.agenda.add(at + late, WorldEvent::HelperTimer(at));
            }
        }
    }

    /// Serves all batches that have arrived.
    fn serve(&mut self, wake: Duration) {
        let messages = self.read_requests();
        let batches = std::mem::take(&mut self.batches_in);
        let cost = wake + self.costs.send + self.costs.batch * batches + self.costs.message * messages;
        let step = self.step_now();
        self.tally[step].server += cost;
        let done = self.core.work(self.now, cost);
        self.agenda.add(done, WorldEvent::ServerDone);
    }

    /// Answers every request in the inbox; returns their number.
    fn read_requests(&mut self) -> u32 {
        let inbox = std::mem::take(&mut self.inbox);
        let (mut input, mut messages) = (&inbox[..], 0);
        while let Some(event) = self.server.decompose(self.now, &mut input).expect("a good helper") {
            match event {
                ServerEvent::Connect { id, .. } => self.server.accept(id),
                ServerEvent::Data { id, bytes } => {
                    let length = bytes.len();
                    for _ in 0..length / REQUEST.len() {
                        messages += 1;
                        assert_eq!(self.server.compose(id, &REPLY), REPLY.len(), "within credit");
                    }
                    self.server.consumed(id, length).expect("consumed at most what was received");
                }
                _ => {}
            }
        }
        messages
    }

    fn read_replies(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        let mut answered = Vec::new();
        while let Some(event) = self.opener.decompose(self.now, &mut input).expect("a good server") {
            if let OpenerEvent::Data { id, bytes } = event {
                answered.push((id, bytes.len()));
            }
        }
        for (id, length) in answered {
            self.opener.consumed(id, length).expect("consumed at most what was received");
            for _ in 0..length / REPLY.len() {
                self.answer(id);
            }
        }
    }

    fn answer(&mut self, id: Id) {
        let asked = self.asked[id.0 as usize].pop_front().expect("a reply without a request");
        let elsewhere = ELSEWHERE.0 + spread(&mut self.rng, ELSEWHERE.1);
        let latency = self.now.since(asked.at) + elsewhere;
        self.tally[asked.step].latencies_ns.push(latency.as_nanos() as u64); // some seconds at most
        if let Arrivals::Closed(think) = self.course.arrivals {
            let again = self.now + elsewhere + spread(&mut self.rng, think);
            self.agenda.add(again, WorldEvent::Request(asked.client));
        }
    }

    /// Work after the end counts for the last step.
    fn step_now(&self) -> usize {
        self.course.step_at(self.now).unwrap_or(self.tally.len() - 1)
    }
}

impl Tally {
    fn figures(&mut self, length: Duration) -> Figures {
        self.latencies_ns.sort_unstable();
        let requests = self.latencies_ns.len().max(1);
        let quantile = |of_100: usize| {
            let at = (requests * of_100).div_ceil(100) - 1;
            self.latencies_ns.get(at).map_or(0.0, |ns| *ns as f64 / 1e3)
        };
        Figures {
            per_s: self.latencies_ns.len() as f64 / length.as_secs_f64(),
            p50_us: quantile(50),
            p99_us: quantile(99),
            server_us: self.server.as_secs_f64() * 1e6 / requests as f64,
            messages_per_batch: self.messages as f64 / self.batches.max(1) as f64,
            interval_us: length.as_secs_f64() * 1e6 / self.batches.max(1) as f64,
        }
    }
}

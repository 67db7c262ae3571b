//! The link of a helper between its clients and a server, in virtual time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{
    Encryption, Id, Limits, LinkRandomness, OpenerConfig, OpenerEvent, OpenerLink, PolicyKind, Role,
    ServerConfig, ServerEvent, ServerLink,
};
use spillway_transport::Time;

use super::load::{Arrivals, LoadCourse, exponential};
use super::server::{Core, Costs, Quota};
use crate::agenda::Agenda;
use crate::names::{address, helper_key};
use crate::rng::Rng;

/// Has the length of memcached's `get` with a key of 32 bytes.
const REQUEST: [u8; 38] = [b'x'; 38];
/// Has about the length of memcached's reply with a key of 32 bytes and a value of 64.
const REPLY: [u8; 122] = [b'x'; 122];
/// One-way delay between helper and server.
const LINK_DELAY: Duration = Duration::from_micros(25);
/// Maximum lateness of a timer.
const TIMER_LATE_NS: u64 = 30_000;
/// Delay of a request outside the link: a constant part, and the mean of a random part.
const OTHER_DELAY: (Duration, Duration) = (Duration::from_micros(100), Duration::from_micros(50));

/// The server's properties in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The server's CPU costs.
    pub costs: Costs,
    /// Quota of the server's host; `None`: the server has a core of its own.
    pub quota: Option<Quota>,
}

/// The figures of one step of a course.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Replies per second.
    pub per_s: f64,
    /// Median latency of the requests that were sent in this step, microseconds.
    pub p50_us: f64,
    /// The 99th percentile of these latencies, microseconds.
    pub p99_us: f64,
    /// The server's CPU time per request, microseconds.
    pub server_us: f64,
    /// Mean number of messages in a batch to the server.
    pub messages_per_batch: f64,
    /// Mean time between batches to the server, microseconds.
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
struct SentRequest {
    at: Time,
    step: usize,
    client: u32,
}

#[derive(Default)]
struct StepTally {
    latencies_ns: Vec<u64>,
    server_time: Duration,
    batches: u64,
    messages: u64,
}

struct World<'a> {
    course: &'a LoadCourse,
    costs: Costs,
    now: Time,
    rng: Rng,
    agenda: Agenda<WorldEvent>,
    opener: OpenerLink,
    server: ServerLink,
    /// Virtual connection of each client.
    ids: Vec<Id>,
    /// Unanswered requests, by id of the virtual connection.
    unanswered: Vec<VecDeque<SentRequest>>,
    timer: Option<Time>,
    core: Core,
    inbox: Vec<u8>,
    batches_in_inbox: u32,
    busy: bool,
    tally: Vec<StepTally>,
}

/// Simulates a course under a policy, from a seed, until every request is answered.
///
/// # Panics
///
/// If an end of the link fails or sets a timeout in the past.
pub fn simulate(course: &LoadCourse, policy: PolicyKind, setting: &Setting, seed: u64) -> Vec<Figures> {
    let mut world = World::new(course, policy, setting, seed);
    while let Some((at, event)) = world.agenda.take() {
        world.now = at;
        world.handle(event);
    }
    assert!(world.unanswered.iter().all(VecDeque::is_empty), "every request should be answered");
    world.tally.iter_mut().zip(&course.steps).map(|(tally, step)| tally.figures(step.length)).collect()
}

/// Fixed bytes, because nothing is encrypted here: the model's costs include encryption.
fn link_randomness(first: u8) -> LinkRandomness {
    LinkRandomness::from_random([first; LinkRandomness::BYTES])
}

impl<'a> World<'a> {
    fn new(course: &'a LoadCourse, policy: PolicyKind, setting: &Setting, seed: u64) -> World<'a> {
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
            opener: OpenerLink::new(&opener, Time::ZERO, link_randomness(7)),
            server: ServerLink::new(
                server,
                Time::ZERO,
                address(1, 40_000),
                address(0, 11_411),
                link_randomness(8),
            ),
            ids: Vec::new(),
            unanswered: Vec::new(),
            timer: None,
            core: Core::new(setting.quota),
            inbox: Vec::new(),
            batches_in_inbox: 0,
            busy: false,
            tally: course.steps.iter().map(|_| StepTally::default()).collect(),
        };
        world.connect();
        for (at, client) in requests {
            world.agenda.add(at, WorldEvent::Request(client));
        }
        world
    }

    /// Establishes the link and opens a virtual connection for each client, without advancing the time.
    fn connect(&mut self) {
        let mut opened = false;
        loop {
            let (to_server, to_opener) = (self.opener.flush(self.now), self.server.flush(self.now));
            if to_server.is_none() && to_opener.is_none() {
                if opened {
                    break;
                }
                opened = true;
                let open = |n: u32| {
                    self.opener
                        .open(address(3, n as u16 + 1), None)
                        .expect("the link has room for a virtual connection of every client")
                };
                self.ids = (0..self.course.clients).map(open).collect();
            }
            self.inbox.extend_from_slice(to_server.as_ref().map_or(&[], |chunk| chunk.as_slice()));
            self.read_requests();
            if let Some(chunk) = to_opener {
                self.read_replies(chunk.as_slice());
            }
        }
        self.unanswered = vec![VecDeque::new(); self.ids.len() + 1];
    }

    fn handle(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Request(client) => {
                let Some(step) = self.course.step_at(self.now) else { return };
                let id = self.ids[client as usize];
                self.unanswered[id.0 as usize].push_back(SentRequest { at: self.now, step, client });
                assert_eq!(
                    self.opener.compose(id, &REQUEST),
                    REQUEST.len(),
                    "compose should accept the whole message within the credit"
                );
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
                self.batches_in_inbox += 1;
                if !self.busy {
                    self.busy = true;
                    self.serve(self.costs.wake);
                }
            }
            WorldEvent::ServerDone => {
                if let Some(replies) = self.server.flush(self.now) {
                    self.agenda
                        .add(self.now + LINK_DELAY, WorldEvent::RepliesAtHelper(replies.as_slice().to_vec()));
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
            self.agenda.add(self.now + LINK_DELAY, WorldEvent::BatchAtServer(batch.as_slice().to_vec()));
            self.opener.recycle(batch);
        }
        let next = self.opener.poll_timeout();
        if let Some(at) = next {
            assert!(at > self.now, "the link's timeout should be in the future");
        }
        if next != self.timer {
            self.timer = next;
            if let Some(at) = next {
                let late = Duration::from_nanos(self.rng.below(TIMER_LATE_NS));
                self.agenda.add(at + late, WorldEvent::HelperTimer(at));
            }
        }
    }

    fn serve(&mut self, wake: Duration) {
        let messages = self.read_requests();
        let batches = std::mem::take(&mut self.batches_in_inbox);
        let cost = wake + self.costs.send + self.costs.batch * batches + self.costs.message * messages;
        let step = self.step_now();
        self.tally[step].server_time += cost;
        let done = self.core.work(self.now, cost);
        self.agenda.add(done, WorldEvent::ServerDone);
    }

    /// Answers every request in the inbox; returns their number.
    fn read_requests(&mut self) -> u32 {
        let inbox = std::mem::take(&mut self.inbox);
        let (mut input, mut messages) = (&inbox[..], 0);
        while let Some(event) =
            self.server.decompose(self.now, &mut input).expect("the helper's batch is valid")
        {
            match event {
                ServerEvent::Connect { id, .. } => self.server.accept(id),
                ServerEvent::Data { id, bytes } => {
                    let length = bytes.len();
                    for _ in 0..length / REQUEST.len() {
                        messages += 1;
                        assert_eq!(
                            self.server.compose(id, &REPLY),
                            REPLY.len(),
                            "compose should accept the whole message within the credit"
                        );
                    }
                    self.server.consumed(id, length).expect("these bytes were received before");
                }
                _ => {}
            }
        }
        messages
    }

    fn read_replies(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        let mut answered = Vec::new();
        while let Some(event) =
            self.opener.decompose(self.now, &mut input).expect("the server's batch is valid")
        {
            if let OpenerEvent::Data { id, bytes } = event {
                answered.push((id, bytes.len()));
            }
        }
        for (id, length) in answered {
            self.opener.consumed(id, length).expect("these bytes were received before");
            for _ in 0..length / REPLY.len() {
                self.answer(id);
            }
        }
    }

    fn answer(&mut self, id: Id) {
        let request =
            self.unanswered[id.0 as usize].pop_front().expect("every reply answers an earlier request");
        let other_delay = OTHER_DELAY.0 + exponential(&mut self.rng, OTHER_DELAY.1);
        let latency = self.now.since(request.at) + other_delay;
        self.tally[request.step].latencies_ns.push(latency.as_nanos() as u64); // fits: some seconds at most
        if let Arrivals::Closed(think) = self.course.arrivals {
            let again = self.now + other_delay + exponential(&mut self.rng, think);
            self.agenda.add(again, WorldEvent::Request(request.client));
        }
    }

    /// The present step. Work after the end of the course counts for the last step.
    fn step_now(&self) -> usize {
        self.course.step_at(self.now).unwrap_or(self.tally.len() - 1)
    }
}

impl StepTally {
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
            server_us: self.server_time.as_secs_f64() * 1e6 / requests as f64,
            messages_per_batch: self.messages as f64 / self.batches.max(1) as f64,
            interval_us: length.as_secs_f64() * 1e6 / self.batches.max(1) as f64,
        }
    }
}

//! The world of a scene: its hosts, the paths between them, and all events in order of time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{AddressRules, Encryption, Limits, PolicyKind, Role, ServerConfig};
use spillway_relay::Config;
use spillway_tcp::isn::Key;
use spillway_tcp::{KeepAlive, Listener, Settings};
use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};

use super::node::{Actor, Node};
use crate::agenda::Agenda;
use crate::names::{SERVER, address, helper_key};
use crate::network::AddressBook;
use crate::oracle::{Oracle, SharedOracle};
use crate::phases::PhasedWorld;
use crate::relay::clients::Clients;
use crate::relay::helpers;
use crate::relay::server::Server;
use crate::relay::settings;
use crate::rng::{Rng, mix};
use crate::tcp::frames::{address_of, mac_of};
use crate::tcp::path::{Conditions, Path};

const CLIENTS: usize = 1;
const FIRST_HELPER: usize = 2;
/// Ports for plain clients and for links; the server listens only on the second.
const PORTS: [u16; 2] = [11_211, 11_411];

enum WorldEvent {
    Arrive(usize, Vec<u8>),
    Turn(usize),
    Wake(usize, Time),
    Crash,
    Restart(usize),
}

pub(super) struct World {
    now: Time,
    rng: Rng,
    agenda: Agenda<WorldEvent>,
    /// `None`: the host is down.
    nodes: Vec<Option<Node>>,
    /// By host: `armed` is the time of the queued wake-up, `has_turn` whether a turn is queued.
    armed: Vec<Option<Time>>,
    has_turn: Vec<bool>,
    paths: Vec<Path>,
    stacks: Vec<Settings>,
    relay: Config,
    crash_ns_max: u64,
    in_calm_phase: bool,
    pub(super) oracle: SharedOracle,
    pub(super) hash: u64,
    pub(super) packets: u64,
    pub(super) crashes: u64,
    pub(super) timeouts: u64,
    pub(super) connections_max: usize,
    slot: Vec<u8>,
}

fn stack_settings(rng: &mut Rng, node: usize, is_gated: bool) -> Settings {
    let ip = address_of(node);
    let mut key = [0; 16];
    rng.fill(&mut key);
    let mut settings = Settings::new(mac_of(ip), ip, 24, Key(key));
    let listener = |port, is_gated| Listener { address: SocketAddr::from((ip, port)), is_gated };
    settings.listeners = match node {
        SERVER => vec![listener(PORTS[1], false)],
        CLIENTS => Vec::new(),
        _ => vec![listener(PORTS[0], is_gated), listener(PORTS[1], false)],
    };
    settings.recovery.rto_min = Duration::from_millis(rng.log_uniform(5, 200));
    settings.initial_window = rng.log_uniform(500, 65_535) as u16; // fits
    settings.delayed_ack = Duration::from_micros(rng.log_uniform(100, 40_000));
    // By keep-alive the other hosts detect that a helper has crashed.
    settings.keep_alive =
        Some(KeepAlive { idle: Duration::from_secs(5), interval: Duration::from_secs(2), probes: 5 });
    settings
}

fn path_conditions(rng: &mut Rng, loss_ppm: u64) -> Conditions {
    let up_to = |rng: &mut Rng, max: u64| rng.range(0, max);
    Conditions {
        loss_ppm: up_to(rng, loss_ppm),
        reorder_ppm: up_to(rng, 50_000),
        reorder_ns_max: rng.log_uniform(1_000, 5_000_000),
        duplicate_ppm: up_to(rng, 10_000),
        ..Conditions::clear(Duration::from_nanos(rng.log_uniform(5_000, 5_000_000)))
    }
}

impl World {
    pub(super) fn new(seed: u64, is_hasty: bool) -> World {
        let mut rng = Rng::new(seed);
        let hosts = FIRST_HELPER + rng.range(1, 2) as usize; // fits: few
        let loss_ppm = rng.pick(&[0, 1_000, 10_000, 50_000]);
        let oracle: SharedOracle = Rc::new(RefCell::new(Oracle::new(false)));
        let mut relay = settings::of_helpers(&mut rng, true);
        // Without `acknowledges_replies` the gates of plain clients would always be open.
        for service in &mut relay.services {
            service.acknowledges_replies = true;
            if matches!(service.policy, PolicyKind::Algorithm1) {
                // After an idle period, Algorithm 1 delays the next batch by as long: here by seconds.
                let max_delay = Duration::from_nanos(rng.log_uniform(10_000, 1_000_000));
                service.policy = PolicyKind::Adaptive { max_delay, max_bytes: 1 << 16 };
            }
        }
        let mut world = World {
            now: Time(1),
            agenda: Agenda::default(),
            nodes: Vec::new(),
            armed: vec![None; hosts],
            has_turn: vec![false; hosts],
            paths: Vec::new(),
            stacks: (0..hosts).map(|node| stack_settings(&mut rng, node, !is_hasty)).collect(),
            relay,
            crash_ns_max: rng.log_uniform(100_000_000, 5_000_000_000),
            in_calm_phase: false,
            oracle,
            hash: seed,
            packets: 0,
            crashes: 0,
            timeouts: 0,
            connections_max: 0,
            slot: Vec::new(),
            rng: rng.fork(),
        };
        for _ in 0..hosts * hosts {
            world.paths.push(Path::new(path_conditions(&mut rng, loss_ppm), rng.fork()));
        }
        for node in 0..hosts {
            world.nodes.push(None);
            world.start(node);
        }
        world.next_crash();
        world
    }

    fn start(&mut self, node: usize) {
        let mut rng = self.rng.fork();
        let oracle = self.oracle.clone();
        let actor = match node {
            SERVER => {
                let mut ring = KeyRing::new();
                ring.accept(Role::Helper, helper_key());
                let limits = Limits { connections_max: 1000, ..Limits::default() };
                let config = ServerConfig {
                    ring,
                    rules: AddressRules::default(),
                    limits,
                    encryption: Encryption::Preferred,
                };
                Actor::Server(Box::new(Server::new(
                    Arc::new(config),
                    address(SERVER, PORTS[1]),
                    20,
                    rng,
                    oracle,
                )))
            }
            CLIENTS => {
                let book = AddressBook::default();
                let targets = (FIRST_HELPER..self.stacks.len()).map(|node| address(node, PORTS[0])).collect();
                let clients_max = rng.log_uniform(4, 60) as usize; // fits: few
                let mut clients = Clients::new(book.clone(), targets, clients_max, 50, rng, oracle);
                clients.are_gated = true;
                Actor::Clients(Box::new(clients), book)
            }
            _ => match helpers::start(&self.relay, rng) {
                Ok(relay) => Actor::Helper(relay),
                Err(error) => {
                    return self
                        .oracle
                        .borrow_mut()
                        .violation(format!("the simulator cannot start a helper: {error}"));
                }
            },
        };
        self.nodes[node] = Some(Node::new(self.now, self.stacks[node].clone(), actor));
        self.armed[node] = None;
        self.turn_soon(node);
    }

    fn turn_soon(&mut self, node: usize) {
        if !std::mem::replace(&mut self.has_turn[node], true) {
            let delay = Duration::from_nanos(self.rng.range(0, 50_000));
            self.agenda.add(self.now + delay, WorldEvent::Turn(node));
        }
    }

    fn turn(&mut self, index: usize) {
        self.has_turn[index] = false;
        let Some(node) = &mut self.nodes[index] else { return };
        let mut frames = Vec::new();
        node.turn(self.now, &mut self.slot, |frame| frames.push(frame.to_vec()));
        self.connections_max = self.connections_max.max(node.stack.connections());
        let at = node.poll_timeout().map(|at| at.max(self.now));
        if let Some(at) = at.filter(|at| self.armed[index].is_none_or(|armed| *at < armed)) {
            self.armed[index] = Some(at);
            self.agenda.add(at, WorldEvent::Wake(index, at));
        }
        for frame in &frames {
            self.send(index, frame);
        }
    }

    fn send(&mut self, source: usize, frame: &[u8]) {
        self.packets += 1;
        self.hash = frame.iter().fold(mix(self.hash ^ self.now.as_nanos()), |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let Ok((header, _)) = ethernet::Header::parse(frame) else { return };
        let hosts = self.nodes.len();
        for target in (0..hosts).filter(|target| *target != source) {
            if header.target == Mac::BROADCAST || header.target == mac_of(address_of(target)) {
                let agenda = &mut self.agenda;
                self.paths[source * hosts + target].send(self.now, frame, |arrival| {
                    agenda.add(arrival.at, WorldEvent::Arrive(target, arrival.frame));
                });
            }
        }
    }

    fn next_crash(&mut self) {
        let at = self.now + Duration::from_nanos(self.rng.log_uniform(20_000_000, self.crash_ns_max));
        self.agenda.add(at, WorldEvent::Crash);
    }

    /// Crashes a random helper, which loses all its state.
    fn crash(&mut self) {
        if self.in_calm_phase {
            return;
        }
        let node = FIRST_HELPER + self.rng.below((self.nodes.len() - FIRST_HELPER) as u64) as usize; // fits
        if let Some(dead) = self.nodes[node].take() {
            self.crashes += 1;
            self.timeouts += dead.stack.counters().timeouts;
            let down = Duration::from_nanos(self.rng.log_uniform(100_000, 1_000_000_000));
            self.agenda.add(self.now + down, WorldEvent::Restart(node));
        }
        self.next_crash();
    }

    pub(super) fn lost(&self) -> u64 {
        self.paths.iter().map(|path| path.lost).sum()
    }

    pub(super) fn finish(&mut self) {
        if !self.has_violations() {
            for what in self.leftovers() {
                self.oracle.borrow_mut().violation(format!("after the calm phase there are still {what}"));
            }
            self.oracle.borrow_mut().all_ended();
        }
        self.timeouts += self.nodes.iter().flatten().map(|node| node.stack.counters().timeouts).sum::<u64>();
    }
}

impl PhasedWorld for World {
    fn step(&mut self) -> bool {
        let before = self.packets;
        while self.packets == before {
            let Some((at, event)) = self.agenda.take() else { return false };
            self.now = self.now.max(at);
            match event {
                WorldEvent::Arrive(to, frame) => {
                    if let Some(node) = &mut self.nodes[to] {
                        node.arrive(frame);
                        self.turn_soon(to);
                    }
                }
                WorldEvent::Turn(node) => self.turn(node),
                WorldEvent::Wake(node, at) if self.armed[node] == Some(at) => {
                    self.armed[node] = None;
                    self.turn_soon(node);
                }
                WorldEvent::Wake(..) => {}
                WorldEvent::Crash => self.crash(),
                WorldEvent::Restart(node) => self.start(node),
            }
            if self.in_calm_phase {
                break; // each event is a step: the run must check for leftovers even without frames
            }
        }
        true
    }

    fn begin_calm_phase(&mut self) {
        self.in_calm_phase = true;
        self.paths.iter_mut().for_each(|path| path.conditions = path.conditions.without_faults());
        if let Some(Node { actor: Actor::Clients(clients, _), .. }) = &mut self.nodes[CLIENTS] {
            clients.begin_calm_phase(self.now);
        }
        self.turn_soon(CLIENTS);
    }

    fn leftovers(&self) -> Vec<String> {
        let mut leftovers = Vec::new();
        let mut add = |what: &str, count: usize| {
            if count > 0 {
                leftovers.push(format!("{count} {what}"));
            }
        };
        add("streams", self.oracle.borrow().open());
        add("hosts that are down", self.nodes.iter().filter(|node| node.is_none()).count());
        for node in self.nodes.iter().flatten() {
            match &node.actor {
                Actor::Server(server) => add("connections at the server", server.connections()),
                Actor::Clients(clients, _) => add("plain clients' connections", clients.open()),
                Actor::Helper(relay) => {
                    helpers::leftovers(relay).into_iter().for_each(|(what, count)| add(what, count));
                }
            }
        }
        leftovers
    }

    fn progress(&self) -> u64 {
        self.oracle.borrow().progress()
    }

    fn has_violations(&self) -> bool {
        !self.oracle.borrow().violations().is_empty()
    }

    fn now(&self) -> Time {
        self.now
    }
}

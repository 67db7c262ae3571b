//! A world of sessions: one server, some helpers, one host with all clients, and faults.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_policy::Override;
use spillway_relay::Relay;
use spillway_session::Placement;
use spillway_transport::Time;

use super::check::Check;
use super::checker::{Checker, SharedChecker};
use super::clients::{ClientEnvironment, Clients};
use super::copies;
use super::planted_fault::PlantedFault;
use super::replayer::Replayer;
use super::server::Server;
use super::world_config::{Faults, WorldConfig};
use crate::agenda::NetworkEvent;
use crate::attackers::{ATTACKERS_IP, Attackers};
use crate::driver::{self, Down};
use crate::names::{SERVER, address, client_key, helper_key, ip};
use crate::network::Network;
use crate::phases::PhasedWorld;
use crate::relay::helpers;
use crate::rng::Rng;
use crate::socket::HostId;

const LINK_PORT: u16 = 11411;
const ORDINARY_PORT: u16 = 11211;

const CLIENTS: HostId = 1;
const FIRST_HELPER: HostId = 2;

// Numbers of the world's own events. The index of a host is added to `RESTART` and `WAKE_UP`.
const FAULT: u64 = 0;
const OPERATOR: u64 = 1;
const RESTART: u64 = 1_000;
const WAKE_UP: u64 = 2_000;

const STOP_SERVER_FAULT: u64 = 0;
const STALL_FAULT: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shutdown {
    Crash,
    PowerOff,
}

enum Node {
    Down(Down),
    Server(Box<Server>),
    Clients(Box<Clients>),
    Helper(Box<Relay>),
    Replayer(Box<Replayer>),
    Attackers(Box<Attackers>),
}

/// A running world.
pub struct World {
    pub(crate) network: Network,
    /// Checks the bytes and messages of all sessions.
    pub checker: SharedChecker,
    nodes: Vec<Node>,
    /// Hosts whose programs are suspended, as by SIGSTOP.
    suspended: BTreeSet<HostId>,
    config: WorldConfig,
    /// The planted fault.
    planted: Option<PlantedFault>,
    rng: Rng,
    /// Draws the operator's actions; `None` in worlds without an operator.
    operator: Option<Rng>,
    in_fault_phase: bool,
    pub(crate) faults: u64,
}

impl World {
    /// Creates a world at its beginning; the check `check_off` is switched off.
    pub fn new(seed: u64, planted: Option<PlantedFault>, check_off: Option<Check>) -> World {
        let mut rng = Rng::new(seed);
        // With a separate generator, a change of the attacks does not change other draws of the same seed.
        let mut attack_rng = Rng::new(!seed);
        let config = WorldConfig::draw(&mut rng, &mut attack_rng, planted);
        let mut network = Network::new(rng.word(), config.conditions);
        let checker = Checker::new(config.behaviour.limits, config.table, check_off);
        let checker = SharedChecker::new(std::cell::RefCell::new(checker));
        network.add_host(ip(SERVER), &[LINK_PORT]);
        network.add_host(ip(CLIENTS), &[]);
        let helpers = FIRST_HELPER..FIRST_HELPER + config.helpers;
        for host in helpers.clone() {
            network.add_host(ip(host), &[ORDINARY_PORT, LINK_PORT]);
        }
        let environment = ClientEnvironment {
            addresses: network.addresses(CLIENTS),
            ports: helpers.clone().chain([SERVER]).map(|host| address(host, LINK_PORT)).collect(),
            key: client_key(),
            checker: checker.clone(),
            copies: config.has_replayer.then(copies::SharedCopies::default),
            planted,
        };
        let mut nodes = vec![Node::Down(Down)];
        let copies = environment.copies.clone();
        nodes.push(Node::Clients(Box::new(Clients::new(environment, config.behaviour, rng.fork()))));
        nodes.resize_with(helpers.end, || Node::Down(Down));
        if let Some(copies) = copies {
            let host = network.add_host(ip(helpers.end), &[]);
            let target = address(SERVER, LINK_PORT);
            let replayer = Replayer::new(target, helper_key(), rng.fork(), copies, checker.clone());
            nodes.push(Node::Replayer(Box::new(replayer)));
            network.turn_soon(host);
        }
        let attackers = config.attack.map(|attack| {
            let host = network.add_host(ATTACKERS_IP, &[]);
            let addresses = network.addresses(host);
            let ports =
                [SERVER].into_iter().chain(helpers.clone()).map(|host| address(host, LINK_PORT)).collect();
            Node::Attackers(Box::new(Attackers::new(
                attack,
                false, // attackers open no virtual connections without a session
                addresses,
                ports,
                client_key(),
                attack_rng,
            )))
        });
        if config.clocks_differ {
            (0..nodes.len()).filter(|host| *host != CLIENTS).for_each(|host| network.draw_clock(host));
        }
        nodes.extend(attackers);
        let mut operator_rng = Rng::new(seed.rotate_left(32) ^ 1);
        let operator = (planted.is_none() && operator_rng.chance(1, 3)).then_some(operator_rng);
        let suspended = BTreeSet::new();
        let (in_fault_phase, faults) = (true, 0);
        let mut world = World {
            nodes,
            suspended,
            network,
            checker,
            rng,
            config,
            planted,
            operator,
            in_fault_phase,
            faults,
        };
        world.start(SERVER);
        helpers.for_each(|host| world.start(host));
        world.network.turn_soon(CLIENTS);
        if world.config.attack.is_some() {
            world.network.turn_soon(world.nodes.len() - 1);
        }
        if world.config.faults != Faults::None {
            world.network.queue_after(Duration::from_millis(1), NetworkEvent::World(FAULT));
        }
        if world.operator.is_some() {
            world.network.queue_after(Duration::from_millis(2), NetworkEvent::World(OPERATOR));
        }
        world
    }

    fn start(&mut self, host: HostId) {
        let rng = self.rng.fork();
        self.nodes[host] = if host == SERVER {
            let (config, checker) = (self.config.server.clone(), self.checker.clone());
            let early_ends = self.config.early_ends_per_1000;
            let bounds = self.config.unauthenticated;
            let local = address(SERVER, LINK_PORT);
            let mut server =
                Server::new(config, (self.config.table, bounds), local, early_ends, rng, checker);
            server.plant_fault(self.planted);
            Node::Server(Box::new(server))
        } else {
            match helpers::start(&self.config.relay, rng) {
                Ok(relay) => Node::Helper(relay),
                Err(error) => {
                    self.violation(Check::Rules, format!("the simulator cannot start a helper: {error}"));
                    Node::Down(Down)
                }
            }
        };
        self.network.turn_soon(host);
    }

    fn violation(&self, check: Check, what: String) {
        self.checker.borrow_mut().violation(check, what);
    }

    /// Ends a host's program or turns its power off; a restart follows.
    fn stop(&mut self, host: HostId, shutdown: Shutdown) {
        if let Node::Server(mut server) = std::mem::replace(&mut self.nodes[host], Node::Down(Down)) {
            server.die();
        }
        self.suspended.remove(&host);
        let downtime = Duration::from_nanos(self.rng.log_uniform(1_000_000, 300_000_000));
        if shutdown == Shutdown::PowerOff {
            self.network.power_off(host, downtime);
        } else {
            self.network.crash(host);
        }
        self.network.queue_after(downtime, NetworkEvent::World(RESTART + host as u64));
    }

    fn check_bounds(&mut self, host: HostId) {
        if let Some(Node::Helper(relay)) = self.nodes.get_mut(host) {
            while relay.poll_notice().is_some() {}
            if let Some(what) = helpers::exceeded_bound(relay, &self.config.relay) {
                self.violation(Check::Memory, what);
            }
        }
        self.check_attackers();
        for what in std::mem::take(&mut self.network.misuse) {
            self.violation(Check::Rules, what);
        }
    }

    fn check_attackers(&mut self) {
        let Some(Node::Attackers(attackers)) = self.nodes.last() else { return };
        let mut violations = Vec::new();
        for (host, node) in self.nodes.iter().enumerate() {
            let held: Vec<_> = match node {
                Node::Helper(relay) => {
                    let clients = relay.client_statuses(None, usize::MAX).0;
                    clients.iter().map(|client| (client.client, client.buffered)).collect()
                }
                Node::Server(server) => server.pending().collect(),
                _ => continue,
            };
            violations.extend(held.iter().find_map(|(peer, held)| attackers.exceeded_bound(*peer, *held, 0)));
            violations.extend(attackers.exceeded_stranger_bound(
                &self.network,
                host,
                self.config.unauthenticated,
            ));
        }
        violations.into_iter().for_each(|what| self.violation(Check::Memory, what));
    }

    fn inject_fault(&mut self) {
        if !self.in_fault_phase {
            return;
        }
        self.faults += 1;
        let helper = FIRST_HELPER + self.rng.below(self.config.helpers as u64) as usize;
        let mut host = self.rng.pick(&[SERVER, helper, helper, CLIENTS]);
        let peer = self.rng.pick(&[SERVER, CLIENTS, helper]);
        let mut fault = self.rng.below(24);
        if self.config.mostly_stalls && self.rng.chance(9, 10) {
            (host, fault) = (CLIENTS, STALL_FAULT);
        }
        if self.config.restarts_per_1000 > 0 && self.rng.chance(self.config.restarts_per_1000, 1000) {
            fault = STOP_SERVER_FAULT;
        }
        match fault {
            STOP_SERVER_FAULT => {
                let shutdown = if self.rng.chance(1, 2) { Shutdown::PowerOff } else { Shutdown::Crash };
                if self.config.faults == Faults::All {
                    self.stop_if_up(SERVER, shutdown);
                }
            }
            1..=2 => self.stop_if_up(helper, Shutdown::Crash),
            3 => self.stop_if_up(helper, Shutdown::PowerOff),
            4 => self.drain(helper),
            5..=6 => self.suspend(helper),
            7 => self.suspend(host),
            STALL_FAULT..=12 => {
                let stall_ns_max = self.config.silence_ns_max.min(50_000_000);
                let delay = Duration::from_nanos(self.rng.log_uniform(100_000, stall_ns_max));
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.stall(host, conn, delay);
                }
            }
            13..=15 => {
                let delay = Duration::from_nanos(self.rng.log_uniform(100_000, self.config.silence_ns_max));
                self.network.silence(host, peer, delay);
            }
            16 => self.partition_hosts(),
            17 if self.config.clocks_differ => self.drift(host),
            _ => {
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.cut(host, conn);
                }
            }
        }
        let next =
            self.rng.log_uniform(1_000_000.min(self.config.fault_ns_max / 5), self.config.fault_ns_max);
        self.network.queue_after(Duration::from_nanos(next), NetworkEvent::World(FAULT));
    }

    /// Acts as the operator: overrides where sessions belong, or releases some helped sessions.
    fn operate(&mut self) {
        let Some(rng) = self.operator.as_mut().filter(|_| self.in_fault_phase) else { return };
        let within = Duration::from_nanos(rng.log_uniform(100_000, 500_000_000));
        let placement_override = rng.pick(&[Override::On, Override::Off, Override::Auto]);
        let released = rng.chance(1, 2).then(|| rng.log_uniform(1, 20) as usize);
        let next = Duration::from_nanos(rng.log_uniform(2_000_000, 1_000_000_000));
        if let Node::Server(server) = &mut self.nodes[SERVER] {
            match released {
                Some(count) => server.release(count),
                None => server.set_placement(Placement::new(placement_override, within)),
            }
            self.network.turn_soon(SERVER);
        }
        self.network.queue_after(next, NetworkEvent::World(OPERATOR));
    }

    /// Partitions the hosts into two groups, between which segments are lost in one direction or in both.
    fn partition_hosts(&mut self) {
        let both_ways = self.rng.chance(1, 3);
        let delay = Duration::from_nanos(self.rng.log_uniform(5_000_000, 10 * self.config.silence_ns_max));
        let (group, others): (Vec<HostId>, Vec<HostId>) =
            (0..self.nodes.len()).partition(|_| self.rng.chance(1, 2));
        for source in &group {
            for target in &others {
                self.network.silence(*source, *target, delay);
                if both_ways {
                    self.network.silence(*target, *source, delay);
                }
            }
        }
    }

    fn drift(&mut self, host: HostId) {
        let now = self.network.now();
        match &mut self.nodes[host] {
            Node::Clients(clients) => {
                clients.drift(now);
                self.network.turn_soon(host);
            }
            _ => self.network.drift(host),
        }
    }

    fn stop_if_up(&mut self, host: HostId, shutdown: Shutdown) {
        if !matches!(self.nodes[host], Node::Down(_)) {
            self.stop(host, shutdown);
        }
    }

    /// Suspends a host's program, as SIGSTOP does; a wake-up follows.
    fn suspend(&mut self, host: HostId) {
        if self.suspended.insert(host) {
            let duration = Duration::from_nanos(self.rng.log_uniform(100_000, 400_000_000));
            self.network.queue_after(duration, NetworkEvent::World(WAKE_UP + host as u64));
        }
    }

    fn wake_up(&mut self, host: HostId) {
        if self.suspended.remove(&host) {
            self.network.wake_up(host);
        }
    }

    /// Drains a helper. Stops a helper that has drained.
    fn drain(&mut self, host: HostId) {
        let within = Duration::from_nanos(self.rng.log_uniform(1_000_000, 50_000_000));
        if let Node::Helper(relay) = &mut self.nodes[host] {
            if relay.is_drained() {
                return self.stop(host, Shutdown::Crash);
            }
            helpers::drain(&mut self.network, host, relay, within);
        }
    }

    /// Checks that every session has ended, and that hosts hold nothing any more.
    pub fn finish(&mut self) {
        if self.has_violations() {
            return;
        }
        if self.checker.borrow().open() > 0 {
            // Hosts hold carriers and buffers for open sessions: only the sessions are reported.
            return self.checker.borrow_mut().all_ended();
        }
        for what in self.leftovers() {
            self.violation(Check::Leftovers, format!("after the calm phase there are still {what}"));
        }
    }
}

impl PhasedWorld for World {
    fn step(&mut self) -> bool {
        match self.network.pop() {
            None => return false,
            Some(NetworkEvent::World(FAULT)) => self.inject_fault(),
            Some(NetworkEvent::World(OPERATOR)) => self.operate(),
            Some(NetworkEvent::World(number)) if number >= WAKE_UP => {
                self.wake_up((number - WAKE_UP) as HostId)
            }
            Some(NetworkEvent::World(number)) => self.start((number - RESTART) as HostId),
            Some(event) => {
                let (nodes, suspended) = (&mut self.nodes, &self.suspended);
                let mut host_with_turn = None;
                driver::handle(&mut self.network, event, |network, host| {
                    if suspended.contains(&host) {
                        return;
                    }
                    host_with_turn = Some(host);
                    match &mut nodes[host] {
                        Node::Server(node) => driver::turn(network, host, &mut **node),
                        Node::Clients(node) => driver::turn(network, host, &mut **node),
                        Node::Helper(node) => driver::turn(network, host, &mut **node),
                        Node::Replayer(node) => driver::turn(network, host, &mut **node),
                        Node::Attackers(node) => driver::turn(network, host, &mut **node),
                        Node::Down(node) => driver::turn(network, host, node),
                    }
                });
                if let Some(host) = host_with_turn {
                    self.check_bounds(host);
                }
            }
        }
        true
    }

    fn begin_calm_phase(&mut self) {
        self.in_fault_phase = false;
        for host in FIRST_HELPER..self.nodes.len() {
            if matches!(&self.nodes[host], Node::Helper(relay) if relay.is_draining()) {
                self.stop(host, Shutdown::Crash);
            }
        }
        let now = self.network.now();
        for host in 0..self.nodes.len() {
            match &mut self.nodes[host] {
                Node::Clients(clients) => clients.begin_calm_phase(now),
                Node::Server(server) if self.operator.is_some() => server.set_placement(Placement::default()),
                Node::Replayer(replayer) => replayer.begin_calm_phase(),
                Node::Attackers(attackers) => attackers.begin_calm_phase(),
                _ => continue,
            }
            self.network.turn_soon(host);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let open = self.checker.borrow().open();
        if open > 0 {
            return vec![format!("{open} sessions")];
        }
        let mut leftovers = Vec::new();
        let mut add = |what: &str, count: usize| {
            if count > 0 {
                leftovers.push(format!("{count} {what}"));
            }
        };
        for node in &self.nodes {
            match node {
                Node::Clients(clients) => add("clients' carriers", clients.open()),
                Node::Server(server) => add("sessions at the server", server.sessions()),
                Node::Helper(relay) => {
                    helpers::leftovers(relay).into_iter().for_each(|(what, count)| add(what, count))
                }
                Node::Attackers(attackers) => add("attackers' connections", attackers.open()),
                Node::Replayer(replayer) => add("connections of the replayer", replayer.open()),
                Node::Down(_) => add("hosts that are down", 1),
            }
        }
        leftovers
    }

    fn progress(&self) -> u64 {
        self.checker.borrow().progress()
    }

    fn has_violations(&self) -> bool {
        !self.checker.borrow().violations().is_empty()
    }

    fn now(&self) -> Time {
        self.network.now()
    }
}

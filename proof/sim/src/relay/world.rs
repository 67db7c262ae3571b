//! The world of relays: clients, helpers, a server and faults, all drawn from one seed.

use std::sync::Arc;
use std::time::Duration;

use spillway_relay::{Notice, Relay, ResetReason};
use spillway_transport::Time;

use crate::agenda::NetworkEvent;
use crate::alterer::Alterer;
use crate::attackers::{ATTACKERS_IP, Attackers};
use crate::driver::{self, Down};
use crate::names::{SERVER, address, client_key, ip};
use crate::network::Network;
use crate::oracle::{Oracle, SharedOracle};
use crate::phases::PhasedWorld;
use crate::relay::clients::Clients;
use crate::relay::helpers;
use crate::relay::library::Library;
use crate::relay::planted_fault::PlantedFault;
use crate::relay::server::Server;
use crate::relay::settings;
use crate::relay::world_config::{self, WorldConfig, is_suspicious};
use crate::rng::Rng;
use crate::socket::HostId;

const PLAIN_CLIENTS: HostId = 1;
const LIBRARY_CLIENTS: HostId = 2;
const FIRST_HELPER: HostId = 3;

/// Numbers of the world's own events. A restart has the number `RESTART` plus the host's index.
const FAULT: u64 = 0;
const RESTART: u64 = 1;

/// Interval, in steps, of the checks of kept replies and of attackers.
const KEPT_CHECK_EVERY: u64 = 16;

enum Node {
    Server(Box<Server>),
    Plain(Box<Clients>),
    Library(Box<Library>),
    Attackers(Box<Attackers>),
    Helper(Box<Relay>),
    Down(Down),
}

/// A running world.
pub struct World {
    pub(crate) network: Network,
    nodes: Vec<Node>,
    pub(crate) oracle: SharedOracle,
    rng: Rng,
    config: WorldConfig,
    /// By host: the number of a helper's clients at the previous check.
    clients_before: Vec<u32>,
    in_fault_phase: bool,
    steps: u64,
    /// Faults injected.
    pub faults: u64,
    /// Number of batches and of messages that helpers sent.
    pub traffic: (u64, u64),
}

impl World {
    /// Creates a world at its beginning.
    pub fn new(seed: u64, planted: Option<PlantedFault>) -> World {
        let mut rng = Rng::new(seed);
        // With separate generators, a change of the attacks does not change other draws of the same seed.
        let mut attack_rng = Rng::new(!seed);
        let mut alterer_rng = Rng::new(seed.rotate_left(32) ^ 1);
        let config = world_config::draw(&mut rng, &mut attack_rng, &mut alterer_rng, planted);
        let mut network = Network::new(rng.word(), config.conditions);
        let oracle: SharedOracle =
            SharedOracle::new(std::cell::RefCell::new(Oracle::new(config.is_faultless)));
        let helpers = FIRST_HELPER..FIRST_HELPER + config.helpers;
        network.add_host(ip(SERVER), &[11411]);
        network.add_host(ip(PLAIN_CLIENTS), &[]);
        network.add_host(ip(LIBRARY_CLIENTS), &[]);
        for host in helpers.clone() {
            network.add_host(ip(host), &[11211, 11411]);
        }
        let targets = |port| helpers.clone().map(|host| address(host, port)).collect::<Vec<_>>();
        let (clients_max, early_ends) = (config.clients_max, config.early_ends_per_1000);
        let plain = Clients::new(
            network.addresses(PLAIN_CLIENTS),
            targets(11211),
            clients_max,
            early_ends,
            rng.fork(),
            oracle.clone(),
        );
        let library = Library::new(
            network.addresses(LIBRARY_CLIENTS),
            targets(11411),
            client_key(),
            clients_max / 2,
            early_ends,
            rng.fork(),
            oracle.clone(),
        );
        for host in [SERVER].into_iter().chain(helpers.clone()) {
            network.draw_clock(host);
        }
        let mut world = World {
            nodes: vec![Node::Down(Down), Node::Plain(Box::new(plain)), Node::Library(Box::new(library))],
            network,
            oracle,
            rng,
            clients_before: vec![0; FIRST_HELPER + config.helpers],
            config,
            in_fault_phase: true,
            steps: 0,
            faults: 0,
            traffic: (0, 0),
        };
        world.nodes.resize_with(FIRST_HELPER + world.config.helpers, || Node::Down(Down));
        world.start(SERVER);
        helpers.clone().for_each(|host| world.start(host));
        if let Some(attack) = world.config.attack {
            let host = world.network.add_host(ATTACKERS_IP, &[]);
            let addresses = world.network.addresses(host);
            let attackers = Attackers::new(attack, true, addresses, targets(11411), client_key(), attack_rng);
            world.nodes.push(Node::Attackers(Box::new(attackers)));
        }
        if world.config.is_altered {
            world.network.alterer = Some(Alterer::new(SERVER, alterer_rng));
        }
        world.network.acknowledges_early = planted == Some(PlantedFault::HastyAcknowledgement);
        world.network.grants_everything = planted == Some(PlantedFault::ReadFlooders);
        world.network.reports_full_memory = planted == Some(PlantedFault::CloseIdle);
        if planted == Some(PlantedFault::FlipByte) {
            world.network.flip = Some((PLAIN_CLIENTS, FIRST_HELPER, 10));
        }
        if let Node::Server(server) = &mut world.nodes[SERVER] {
            server.planted = planted;
        }
        for host in 0..world.nodes.len() {
            world.network.turn_soon(host);
        }
        if !world.config.is_faultless {
            world.network.queue_after(Duration::from_millis(5), NetworkEvent::World(FAULT));
        }
        world
    }

    fn start(&mut self, host: HostId) {
        let mut rng = self.rng.fork();
        self.nodes[host] = if host == SERVER {
            let early_ends = self.config.early_ends_per_1000 / 4;
            let (mut config, oracle) = (self.config.server.clone(), self.oracle.clone());
            if self.faults > 0 && rng.chance(1, 2) {
                let window_min = settings::server_window_min(&self.config.relay);
                Arc::make_mut(&mut config).limits.window_bytes =
                    (rng.log_uniform(16, 256 * 1024) as u32).max(window_min);
            }
            let mut server = Server::new(config, address(SERVER, 11411), early_ends, rng, oracle);
            server.is_altered = self.config.is_altered;
            Node::Server(Box::new(server))
        } else {
            match helpers::start(&self.config.relay, rng) {
                Ok(relay) => Node::Helper(relay),
                Err(error) => {
                    self.oracle
                        .borrow_mut()
                        .violation(format!("the simulator cannot start a helper: {error}"));
                    Node::Down(Down)
                }
            }
        };
        self.network.turn_soon(host);
    }

    fn stop(&mut self, host: HostId) {
        match std::mem::replace(&mut self.nodes[host], Node::Down(Down)) {
            Node::Server(mut server) => server.die(),
            Node::Helper(relay) => self.count_traffic(&relay),
            _ => {}
        }
        self.network.crash(host);
        let downtime = Duration::from_nanos(self.rng.log_uniform(1_000_000, 300_000_000));
        self.network.queue_after(downtime, NetworkEvent::World(RESTART + host as u64));
    }

    fn count_traffic(&mut self, relay: &Relay) {
        for service in relay.status().services {
            self.traffic.0 += service.traffic.batches_sent;
            self.traffic.1 += service.traffic.messages_sent;
        }
    }

    fn check_bounds(&mut self) {
        for (node, before) in self.nodes.iter_mut().zip(&mut self.clients_before) {
            let Node::Helper(relay) = node else { continue };
            // Many clients may come and leave in one turn, so half of the bound counts as possibly full.
            let clients = relay.clients();
            let may_have_been_full = clients.max(*before) * 2 >= self.config.relay.clients_max;
            *before = clients;
            while let Some(notice) = relay.poll_notice() {
                if let Notice::ClientReset { client, why: ResetReason::Memory(_), .. } = notice
                    && client.ip() == ip(PLAIN_CLIENTS)
                {
                    self.oracle.borrow_mut().closed_for_memory(client);
                }
                if is_suspicious(notice, &self.config, may_have_been_full) {
                    self.oracle.borrow_mut().violation(format!("a helper reports {notice:?}"));
                }
            }
            if let Some(what) = helpers::exceeded_bound(relay, &self.config.relay) {
                self.oracle.borrow_mut().violation(what);
            }
        }
        for what in self.network.misuse.drain(..) {
            self.oracle.borrow_mut().violation(what);
        }
    }

    /// Checks that the server keeps all replies that a plain client's TCP has not received.
    fn check_kept(&mut self) {
        let Node::Server(server) = &self.nodes[SERVER] else { return };
        let received = self.network.received_by(PLAIN_CLIENTS);
        for (client, from) in server.kept_from() {
            if received.get(&client).is_some_and(|received| from > *received) {
                let what = format!(
                    "the server keeps replies from offset {from}, but {client} has not received all before"
                );
                self.oracle.borrow_mut().violation(what);
            }
        }
    }

    fn check_attackers(&mut self) {
        let Some(Node::Attackers(attackers)) = self.nodes.last() else { return };
        let helpers = FIRST_HELPER..FIRST_HELPER + self.config.helpers;
        for host in helpers {
            let Node::Helper(relay) = &self.nodes[host] else { continue };
            let connection_bytes_max = self.config.relay.connection_buffer_bytes;
            let (clients, _) = relay.client_statuses(None, usize::MAX);
            let too_many_bytes = clients.iter().find_map(|client| {
                attackers.exceeded_bound(client.client, client.buffered, connection_bytes_max)
            });
            let exceeded_stranger_bound =
                attackers.exceeded_stranger_bound(&self.network, host, self.config.unauthenticated);
            for what in too_many_bytes.into_iter().chain(exceeded_stranger_bound) {
                self.oracle.borrow_mut().violation(what);
            }
        }
    }

    fn inject_fault(&mut self) {
        if !self.in_fault_phase {
            return;
        }
        self.faults += 1;
        let helper = FIRST_HELPER + self.rng.below(self.config.helpers as u64) as usize;
        match self.rng.below(20) {
            0 => self.stop_if_up(SERVER),
            1 => self.stop_if_up(helper),
            2 => self.drain(helper),
            3 => self.change_settings(helper),
            4..=5 => {
                // All connections of the server's host are links.
                if let Some(conn) = self.network.any_connection(SERVER, &mut self.rng) {
                    self.network.cut(SERVER, conn);
                }
            }
            6..=9 => {
                let (host, delay) =
                    (self.rng.pick(&[SERVER, helper]), self.rng.log_uniform(100_000, 50_000_000));
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.stall(host, conn, Duration::from_nanos(delay));
                }
            }
            _ => {
                let host = self.rng.pick(&[PLAIN_CLIENTS, LIBRARY_CLIENTS, helper]);
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.cut(host, conn);
                }
            }
        }
        let next = self.rng.log_uniform(1_000_000, self.config.fault_ns_max);
        self.network.queue_after(Duration::from_nanos(next), NetworkEvent::World(FAULT));
    }

    fn stop_if_up(&mut self, host: HostId) {
        if !matches!(self.nodes[host], Node::Down(_)) {
            self.stop(host);
        }
    }

    /// Drains a helper. Stops a helper that has drained.
    fn drain(&mut self, host: HostId) {
        let within = Duration::from_nanos(self.rng.log_uniform(1_000_000, 50_000_000));
        if let Node::Helper(relay) = &mut self.nodes[host] {
            if relay.is_drained() {
                return self.stop(host);
            }
            helpers::drain(&mut self.network, host, relay, within);
        }
    }

    /// Changes the settings of a running helper, or drains its service until the next change.
    fn change_settings(&mut self, host: HostId) {
        let within = Duration::from_nanos(self.rng.log_uniform(1_000_000, 50_000_000));
        let drains_service = self.rng.chance(1, 4);
        let config = settings::changed(&mut self.rng, &self.config.relay);
        let Node::Helper(relay) = &mut self.nodes[host] else { return };
        if relay.is_draining() {
            return;
        }
        let is_refused = driver::command(&mut self.network, host, &mut **relay, |now, relay, port| {
            if drains_service {
                relay.drain_service(now, settings::SERVICE, within, port);
                return false;
            }
            relay.reconfigure(now, config, within, port).is_err()
        });
        if is_refused {
            self.oracle.borrow_mut().violation("a helper refuses valid settings".to_owned());
        }
    }

    /// Checks that everything has ended. Returns the number of batches and of messages that helpers sent.
    pub fn finish(&mut self) -> (u64, u64) {
        if !self.has_violations() {
            for what in self.leftovers() {
                self.oracle.borrow_mut().violation(format!("after the calm phase there are still {what}"));
            }
            self.oracle.borrow_mut().all_ended();
        }
        for node in std::mem::take(&mut self.nodes) {
            if let Node::Helper(relay) = node {
                self.count_traffic(&relay);
            }
        }
        self.traffic
    }
}

impl PhasedWorld for World {
    fn step(&mut self) -> bool {
        match self.network.pop() {
            None => return false,
            Some(NetworkEvent::World(FAULT)) => self.inject_fault(),
            Some(NetworkEvent::World(number)) => self.start((number - RESTART) as HostId),
            Some(event) => {
                let nodes = &mut self.nodes;
                driver::handle(&mut self.network, event, |network, host| match &mut nodes[host] {
                    Node::Server(node) => driver::turn(network, host, &mut **node),
                    Node::Plain(node) => driver::turn(network, host, &mut **node),
                    Node::Library(node) => driver::turn(network, host, &mut **node),
                    Node::Attackers(node) => driver::turn(network, host, &mut **node),
                    Node::Helper(node) => driver::turn(network, host, &mut **node),
                    Node::Down(node) => driver::turn(network, host, node),
                });
                self.check_bounds();
                self.steps += 1;
                if self.steps.is_multiple_of(KEPT_CHECK_EVERY) {
                    self.check_kept();
                    self.check_attackers();
                }
            }
        }
        true
    }

    fn begin_calm_phase(&mut self) {
        self.in_fault_phase = false;
        if let Some(alterer) = &mut self.network.alterer {
            alterer.begin_calm_phase();
        }
        for host in FIRST_HELPER..self.nodes.len() {
            let Node::Helper(relay) = &mut self.nodes[host] else { continue };
            if relay.is_draining() {
                self.stop(host);
                continue;
            }
            let config = self.config.relay.clone();
            let is_refused = driver::command(&mut self.network, host, &mut **relay, |now, relay, port| {
                relay.reconfigure(now, config, Duration::from_millis(50), port).is_err()
            });
            if is_refused {
                self.oracle.borrow_mut().violation("a helper refuses valid settings".to_owned());
            }
        }
        let now = self.network.now();
        for host in 0..self.nodes.len() {
            match &mut self.nodes[host] {
                Node::Plain(clients) => clients.begin_calm_phase(now),
                Node::Library(clients) => clients.begin_calm_phase(now),
                Node::Attackers(attackers) => attackers.begin_calm_phase(),
                _ => continue,
            }
            self.network.turn_soon(host);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let mut leftovers = Vec::new();
        let mut add = |what: &str, count: usize| {
            if count > 0 {
                leftovers.push(format!("{count} {what}"));
            }
        };
        add("streams", self.oracle.borrow().open());
        for node in &self.nodes {
            match node {
                Node::Plain(clients) => add("plain clients' connections", clients.open()),
                Node::Library(clients) => add("library clients' links", clients.open()),
                Node::Attackers(attackers) => add("attackers' connections", attackers.open()),
                Node::Server(server) => add("connections at the server", server.connections()),
                Node::Helper(relay) => {
                    helpers::leftovers(relay).into_iter().for_each(|(what, count)| add(what, count))
                }
                Node::Down(_) => add("hosts that are down", 1),
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
        self.network.now()
    }
}

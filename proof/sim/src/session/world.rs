//! A world of sessions: one server, some helpers, one host with all clients, and faults.

use std::collections::BTreeSet;
use std::time::Duration;

use spillway_policy::Override;
use spillway_relay::Relay;
use spillway_session::Placement;
use spillway_transport::Time;

use super::books::{Books, Shared};
use super::canary::Canary;
use super::check::Check;
use super::clients::{ClientEnvironment, Clients};
use super::copies;
use super::replayer::Replayer;
use super::server::Server;
use super::world_config::{Faults, WorldConfig};
use crate::agenda::NetworkEvent;
use crate::attackers::{ATTACKERS_IP, Attackers};
use crate::driver::{self, Down};
use crate::names::{SERVER, address, client_key, helper_key, ip};
use crate::network::Network;
use crate::relay::helpers;
use crate::rng::Rng;
use crate::socket::HostId;
use crate::storm::Stormy;

const LINK_PORT: u16 = 11411;
const ORDINARY_PORT: u16 = 11211;

const CLIENTS: HostId = 1;
const FIRST_HELPER: HostId = 2;

// Numbers of the world's own events; a host's index is added to `RESTART` and `WAKE_UP`.
const FAULT: u64 = 0;
const OPERATOR: u64 = 1;
const RESTART: u64 = 1_000;
const WAKE_UP: u64 = 2_000;

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
    /// Records what all sessions send and receive, and checks it.
    pub books: Shared,
    nodes: Vec<Node>,
    /// Hosts whose programs are stopped, as by SIGSTOP.
    suspended: BTreeSet<HostId>,
    config: WorldConfig,
    /// The planted fault; not the canaries of the glossary.
    canary: Option<Canary>,
    rng: Rng,
    /// Draws the operator's actions, in worlds with an operator.
    operator: Option<Rng>,
    /// Whether faults and the operator's actions still happen.
    storm: bool,
    pub(crate) faults: u64,
}

impl World {
    /// Creates a world at its beginning. If `blind` names a check, that check is not made.
    pub fn new(seed: u64, canary: Option<Canary>, blind: Option<Check>) -> World {
        let mut rng = Rng::new(seed);
        // Attacks draw from a separate generator, so that a change of the attacks does not change the rest of a seed's world.
        let mut attack_rng = Rng::new(!seed);
        let config = WorldConfig::drawn(&mut rng, &mut attack_rng, canary);
        let mut network = Network::new(rng.word(), config.weather);
        let books = Books::new(config.behaviour.limits, config.table, blind);
        let books = Shared::new(std::cell::RefCell::new(books));
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
            books: books.clone(),
            copies: config.is_copied.then(copies::Shared::default),
            canary,
        };
        let mut nodes = vec![Node::Down(Down)];
        let copies = environment.copies.clone();
        nodes.push(Node::Clients(Box::new(Clients::new(environment, config.behaviour, rng.fork()))));
        nodes.resize_with(helpers.end, || Node::Down(Down));
        if let Some(copies) = copies {
            let host = network.add_host(ip(helpers.end), &[]);
            let target = address(SERVER, LINK_PORT);
            let replayer = Replayer::new(target, helper_key(), rng.fork(), copies, books.clone());
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
                false, // not as plain clients
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
        let operator = (canary.is_none() && operator_rng.chance(1, 3)).then_some(operator_rng);
        let suspended = BTreeSet::new();
        let (storm, faults) = (true, 0);
        let mut world =
            World { nodes, suspended, network, books, rng, config, canary, operator, storm, faults };
        world.start(SERVER);
        helpers.for_each(|host| world.start(host));
        world.network.turn_soon(CLIENTS);
        if world.config.attack.is_some() {
            world.network.turn_soon(world.nodes.len() - 1);
        }
        if world.config.faults != Faults::None {
            world.network.after(Duration::from_millis(1), NetworkEvent::World(FAULT));
        }
        if world.operator.is_some() {
            world.network.after(Duration::from_millis(2), NetworkEvent::World(OPERATOR));
        }
        world
    }

    fn start(&mut self, host: HostId) {
        let rng = self.rng.fork();
        self.nodes[host] = if host == SERVER {
            let (config, books) = (self.config.server.clone(), self.books.clone());
            let early_ends = self.config.early_ends_in_1000;
            let bounds = self.config.unauthenticated;
            let local = address(SERVER, LINK_PORT);
            let mut server = Server::new(config, (self.config.table, bounds), local, early_ends, rng, books);
            server.plant(self.canary);
            Node::Server(Box::new(server))
        } else {
            match helpers::start(&self.config.relay, rng) {
                Ok(relay) => Node::Helper(relay),
                Err(error) => {
                    self.wrong(Check::Rules, format!("the simulator cannot start a helper: {error}"));
                    Node::Down(Down)
                }
            }
        };
        self.network.turn_soon(host);
    }

    fn wrong(&self, check: Check, what: String) {
        self.books.borrow_mut().violation(check, what);
    }

    /// Ends a host's program, or turns the host's power off; a restart follows.
    fn stop(&mut self, host: HostId, power: bool) {
        if let Node::Server(mut server) = std::mem::replace(&mut self.nodes[host], Node::Down(Down)) {
            server.die();
        }
        self.suspended.remove(&host);
        let down = Duration::from_nanos(self.rng.scale(1_000_000, 300_000_000));
        if power {
            self.network.power_off(host, down);
        } else {
            self.network.crash(host);
        }
        self.network.after(down, NetworkEvent::World(RESTART + host as u64));
    }

    fn check_bounds(&mut self, host: HostId) {
        if let Some(Node::Helper(relay)) = self.nodes.get_mut(host) {
            while relay.poll_notice().is_some() {}
            if let Some(what) = helpers::beyond_bounds(relay, &self.config.relay) {
                self.wrong(Check::Memory, what);
            }
        }
        self.check_attackers();
        for what in std::mem::take(&mut self.network.misuse) {
            self.wrong(Check::Rules, what);
        }
    }

    fn check_attackers(&mut self) {
        let Some(Node::Attackers(attackers)) = self.nodes.last() else { return };
        let mut wrong = Vec::new();
        for (host, node) in self.nodes.iter().enumerate() {
            let held: Vec<_> = match node {
                Node::Helper(relay) => {
                    let clients = relay.client_statuses(None, usize::MAX).0;
                    clients.iter().map(|client| (client.client, client.buffered)).collect()
                }
                Node::Server(server) => server.pending().collect(),
                _ => continue,
            };
            wrong.extend(held.iter().find_map(|(peer, held)| attackers.beyond_bounds(*peer, *held, 0)));
            wrong.extend(attackers.beyond_strangers(&self.network, host, self.config.unauthenticated));
        }
        wrong.into_iter().for_each(|what| self.wrong(Check::Memory, what));
    }

    fn fault(&mut self) {
        if !self.storm {
            return;
        }
        self.faults += 1;
        let helper = FIRST_HELPER + self.rng.below(self.config.helpers as u64) as usize;
        let mut host = self.rng.pick(&[SERVER, helper, helper, CLIENTS]);
        let peer = self.rng.pick(&[SERVER, CLIENTS, helper]);
        let mut what = self.rng.below(24);
        if self.config.mostly_stalls && self.rng.chance(9, 10) {
            (host, what) = (CLIENTS, 8); // stalls
        }
        if self.config.restarts_in_1000 > 0 && self.rng.chance(self.config.restarts_in_1000, 1000) {
            what = 0; // the server restarts
        }
        match what {
            0 => {
                let power = self.rng.chance(1, 2);
                if self.config.faults == Faults::All {
                    self.stop_if_up(SERVER, power);
                }
            }
            1..=2 => self.stop_if_up(helper, false),
            3 => self.stop_if_up(helper, true),
            4 => self.drain(helper),
            5..=6 => self.suspend(helper),
            7 => self.suspend(host),
            8..=12 => {
                let longest = self.config.silence_ns_max.min(50_000_000);
                let delay = Duration::from_nanos(self.rng.scale(100_000, longest));
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.stall(host, conn, delay);
                }
            }
            13..=15 => {
                let delay = Duration::from_nanos(self.rng.scale(100_000, self.config.silence_ns_max));
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
        let next = self.rng.scale(1_000_000.min(self.config.fault_ns_max / 5), self.config.fault_ns_max);
        self.network.after(Duration::from_nanos(next), NetworkEvent::World(FAULT));
    }

    /// The operator places sessions, or releases some.
    fn operate(&mut self) {
        let Some(rng) = self.operator.as_mut().filter(|_| self.storm) else { return };
        let within = Duration::from_nanos(rng.scale(100_000, 500_000_000));
        let placement_override = rng.pick(&[Override::On, Override::Off, Override::Auto]);
        let released = rng.chance(1, 2).then(|| rng.scale(1, 20) as usize);
        let next = Duration::from_nanos(rng.scale(2_000_000, 1_000_000_000));
        if let Node::Server(server) = &mut self.nodes[SERVER] {
            match released {
                Some(count) => server.release(count),
                None => server.place(Placement::new(placement_override, within)),
            }
            self.network.turn_soon(SERVER);
        }
        self.network.after(next, NetworkEvent::World(OPERATOR));
    }

    /// Partitions the hosts into two groups, in one direction or in both.
    fn partition_hosts(&mut self) {
        let both_ways = self.rng.chance(1, 3);
        let delay = Duration::from_nanos(self.rng.scale(5_000_000, 10 * self.config.silence_ns_max));
        let (one, two): (Vec<HostId>, Vec<HostId>) =
            (0..self.nodes.len()).partition(|_| self.rng.chance(1, 2));
        for source in &one {
            for target in &two {
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

    fn stop_if_up(&mut self, host: HostId, power: bool) {
        if !matches!(self.nodes[host], Node::Down(_)) {
            self.stop(host, power);
        }
    }

    /// Stops a host's program, as by SIGSTOP; a wake-up follows.
    fn suspend(&mut self, host: HostId) {
        if self.suspended.insert(host) {
            let until = Duration::from_nanos(self.rng.scale(100_000, 400_000_000));
            self.network.after(until, NetworkEvent::World(WAKE_UP + host as u64));
        }
    }

    fn wake_up(&mut self, host: HostId) {
        if self.suspended.remove(&host) {
            self.network.wake_up(host);
        }
    }

    /// Drains a helper, or stops it if it is drained.
    fn drain(&mut self, host: HostId) {
        let within = Duration::from_nanos(self.rng.scale(1_000_000, 50_000_000));
        if let Node::Helper(relay) = &mut self.nodes[host] {
            if relay.is_drained() {
                return self.stop(host, false);
            }
            helpers::drain(&mut self.network, host, relay, within);
        }
    }

    /// Checks that everything has ended.
    pub fn finish(&mut self) {
        if self.has_violations() {
            return;
        }
        if self.books.borrow().open() > 0 {
            // Hosts hold carriers and buffers for sessions that are open: report only the sessions.
            return self.books.borrow_mut().all_ended();
        }
        for what in self.leftovers() {
            self.wrong(Check::Leftovers, format!("after the storm there are still {what}"));
        }
    }
}

impl Stormy for World {
    fn step(&mut self) -> bool {
        match self.network.pop() {
            None => return false,
            Some(NetworkEvent::World(FAULT)) => self.fault(),
            Some(NetworkEvent::World(OPERATOR)) => self.operate(),
            Some(NetworkEvent::World(what)) if what >= WAKE_UP => self.wake_up((what - WAKE_UP) as HostId),
            Some(NetworkEvent::World(restart)) => self.start((restart - RESTART) as HostId),
            Some(what) => {
                let (nodes, suspended) = (&mut self.nodes, &self.suspended);
                let mut acted = None;
                driver::handle(&mut self.network, what, |network, host| {
                    if suspended.contains(&host) {
                        return;
                    }
                    acted = Some(host);
                    match &mut nodes[host] {
                        Node::Server(node) => driver::turn(network, host, &mut **node),
                        Node::Clients(node) => driver::turn(network, host, &mut **node),
                        Node::Helper(node) => driver::turn(network, host, &mut **node),
                        Node::Replayer(node) => driver::turn(network, host, &mut **node),
                        Node::Attackers(node) => driver::turn(network, host, &mut **node),
                        Node::Down(node) => driver::turn(network, host, node),
                    }
                });
                if let Some(host) = acted {
                    self.check_bounds(host);
                }
            }
        }
        true
    }

    fn calm_down(&mut self) {
        self.storm = false;
        for host in FIRST_HELPER..self.nodes.len() {
            if matches!(&self.nodes[host], Node::Helper(relay) if relay.is_draining()) {
                self.stop(host, false);
            }
        }
        let now = self.network.now();
        for host in 0..self.nodes.len() {
            match &mut self.nodes[host] {
                Node::Clients(clients) => clients.calm_down(now),
                Node::Server(server) if self.operator.is_some() => server.place(Placement::default()),
                Node::Replayer(replayer) => replayer.calm_down(),
                Node::Attackers(attackers) => attackers.calm_down(),
                _ => continue,
            }
            self.network.turn_soon(host);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let open = self.books.borrow().open();
        if open > 0 {
            return vec![format!("{open} sessions")];
        }
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        for node in &self.nodes {
            match node {
                Node::Clients(clients) => note("clients' carriers", clients.open()),
                Node::Server(server) => note("sessions at the server", server.sessions()),
                Node::Helper(relay) => {
                    helpers::leftovers(relay).into_iter().for_each(|(what, count)| note(what, count))
                }
                Node::Attackers(attackers) => note("attackers' connections", attackers.open()),
                Node::Replayer(replayer) => note("connections of the replayer", replayer.open()),
                Node::Down(_) => note("host down", 1),
            }
        }
        left
    }

    fn progress(&self) -> u64 {
        self.books.borrow().progress()
    }

    fn has_violations(&self) -> bool {
        !self.books.borrow().violations().is_empty()
    }

    fn now(&self) -> Time {
        self.network.now()
    }
}

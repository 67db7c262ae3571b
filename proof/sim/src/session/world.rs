//! A world: one server, some helpers, a host full of clients with sessions, the weather between them, and faults.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use spillway_auth::KeyRing;
use spillway_batch::{AddressRules, Limits, Role, ServerConfig};
use spillway_relay::{Config, Relay};
use spillway_session::{StreamLimits, TableLimits};
use spillway_transport::Time;

use super::books::{Books, Shared};
use super::canary::Canary;
use super::clients::{Clients, Manners};
use super::server::Server;
use crate::agenda::Happening;
use crate::driver::{self, Down};
use crate::helpers;
use crate::network::Network;
use crate::rng::Rng;
use crate::settings;
use crate::socket::HostId;
use crate::storm::Stormy;
use crate::weather::Weather;
use crate::world::{SERVER, address, client_key, helper_key, ip};

const CLIENTS: HostId = 1;
const FIRST_HELPER: HostId = 2;

// What happens to the world itself: a fault, or from these numbers on, by host.
const FAULT: u64 = 0;
const RESTART: u64 = 1_000;
const WAKE_UP: u64 = 2_000;

enum Node {
    Down(Down),
    Server(Box<Server>),
    Clients(Box<Clients>),
    Helper(Box<Relay>),
}

/// What is chosen once for a world.
struct Climate {
    relay: Config,
    server: Arc<ServerConfig>,
    table: TableLimits,
    rude_in_1000: u64,
    helpers: usize,
    calm: bool,
    fault_ns_max: u64,
}

/// One world.
pub struct World {
    pub(crate) network: Network,
    /// What must be true of all sessions.
    pub books: Shared,
    nodes: Vec<Node>,
    /// Hosts that stand still: the program lives, its peers hear nothing.
    asleep: BTreeSet<HostId>,
    climate: Climate,
    rng: Rng,
    storm: bool,
    pub(crate) faults: u64,
}

fn climate(rng: &mut Rng, canary: Option<Canary>) -> (Climate, Manners, Weather) {
    // Some worlds have no faults but clients that move.
    let calm = canary.is_some() || rng.chance(1, 5);
    let weather = Weather::drawn(rng, calm);
    let stream = |rng: &mut Rng| StreamLimits {
        window_bytes: rng.scale(16, 256 * 1024) as u32, // fits
        kept_bytes_max: rng.scale(16, 256 * 1024) as usize,
    };
    // Bounds that are met, so that a mistake about them shows.
    let tight = StreamLimits { window_bytes: 1_000, kept_bytes_max: 1_000 };
    let is_tight = matches!(canary, Some(Canary::KeepMore | Canary::ForgetCredit));
    let mut ring = KeyRing::new();
    ring.accept(Role::Helper, helper_key());
    ring.accept(Role::Client, client_key());
    let limits = Limits {
        pending_bytes_max: rng.scale(1_000, 1 << 20) as usize,
        connections_max: 1_000,
        ..Limits::default()
    };
    let clients_max = rng.scale(2, 60) as usize;
    let table = TableLimits {
        sessions_max: if calm { 10_000 } else { rng.pick(&[clients_max, 10_000]) },
        stream: if is_tight { tight } else { stream(rng) },
        detached_max: if calm {
            Duration::from_secs(60)
        } else {
            Duration::from_nanos(rng.scale(20_000_000, 60_000_000_000))
        },
        linger: if calm {
            Duration::from_secs(30)
        } else {
            Duration::from_nanos(rng.scale(20_000_000, 30_000_000_000))
        },
    };
    let at_clients = stream(rng);
    // Where little fits at a time, much takes for ever.
    let least = |limits: StreamLimits| limits.kept_bytes_max.min(limits.window_bytes as usize) as u64;
    let bytes_max = (least(table.stream).min(least(at_clients)) * 300).min(300_000);
    let manners = Manners {
        clients_max,
        rude_in_1000: rng.pick(&[0, 50]),
        limits: at_clients,
        patience_max: Duration::from_nanos(rng.scale(2_000_000, 500_000_000)),
        whims_in_1000: if canary.is_some() { 20 } else { rng.pick(&[0, 1, 20]) },
        bytes_max: if canary.is_some() { 50_000 } else { rng.scale(100, bytes_max) },
    };
    let climate = Climate {
        relay: settings::of_helpers(rng, calm),
        server: Arc::new(ServerConfig { ring, rules: AddressRules::default(), limits }),
        table,
        rude_in_1000: rng.pick(&[0, 50]),
        helpers: rng.range(1, 3) as usize,
        calm,
        fault_ns_max: rng.scale(5_000_000, 200_000_000),
    };
    (climate, manners, weather)
}

impl World {
    /// A world at its beginning.
    pub fn new(seed: u64, canary: Option<Canary>) -> World {
        let mut rng = Rng::new(seed);
        let (climate, manners, weather) = climate(&mut rng, canary);
        let mut network = Network::new(rng.word(), weather);
        let books = Shared::new(std::cell::RefCell::new(Books::default()));
        network.add_host(ip(SERVER), &[11411]);
        network.add_host(ip(CLIENTS), &[]);
        let helpers = FIRST_HELPER..FIRST_HELPER + climate.helpers;
        for host in helpers.clone() {
            network.add_host(ip(host), &[11211, 11411]);
        }
        let targets = helpers.clone().chain([SERVER]).map(|host| address(host, 11411)).collect();
        let clients = Clients::new(
            network.addresses(CLIENTS),
            targets,
            client_key(),
            manners,
            rng.fork(),
            books.clone(),
        );
        let mut world = World {
            nodes: vec![Node::Down(Down), Node::Clients(Box::new(clients))],
            asleep: BTreeSet::new(),
            network,
            books,
            rng,
            climate,
            storm: true,
            faults: 0,
        };
        world.nodes.resize_with(helpers.end, || Node::Down(Down));
        world.start(SERVER);
        if let Node::Server(server) = &mut world.nodes[SERVER] {
            server.plant(canary);
        }
        helpers.for_each(|host| world.start(host));
        world.network.turn_soon(CLIENTS);
        if !world.climate.calm {
            world.network.after(Duration::from_millis(5), Happening::World(FAULT));
        }
        world
    }

    fn start(&mut self, host: HostId) {
        let rng = self.rng.fork();
        self.nodes[host] = if host == SERVER {
            let (config, books) = (self.climate.server.clone(), self.books.clone());
            let rude = self.climate.rude_in_1000;
            let server = Server::new(config, self.climate.table, address(SERVER, 11411), rude, rng, books);
            Node::Server(Box::new(server))
        } else {
            match helpers::start(&self.climate.relay, rng) {
                Ok(relay) => Node::Helper(relay),
                Err(error) => {
                    self.books.borrow_mut().violation(format!("a fault of the simulator: {error}"));
                    Node::Down(Down)
                }
            }
        };
        self.network.turn_soon(host);
    }

    fn stop(&mut self, host: HostId) {
        if let Node::Server(mut server) = std::mem::replace(&mut self.nodes[host], Node::Down(Down)) {
            server.die();
        }
        self.asleep.remove(&host);
        self.network.crash(host);
        let down = Duration::from_nanos(self.rng.scale(1_000_000, 300_000_000));
        self.network.after(down, Happening::World(RESTART + host as u64));
    }

    fn check_bounds(&mut self) {
        for node in &mut self.nodes {
            let Node::Helper(relay) = node else { continue };
            while relay.poll_notice().is_some() {}
            if let Some(what) = helpers::beyond_bounds(relay, &self.climate.relay) {
                self.books.borrow_mut().violation(what);
            }
        }
        for what in self.network.misuse.drain(..) {
            self.books.borrow_mut().violation(what);
        }
    }

    fn fault(&mut self) {
        if !self.storm {
            return;
        }
        self.faults += 1;
        let helper = FIRST_HELPER + self.rng.below(self.climate.helpers as u64) as usize;
        let host = self.rng.pick(&[SERVER, helper, helper, CLIENTS]);
        match self.rng.below(20) {
            0 => self.stop_if_up(SERVER),
            1..=3 => self.stop_if_up(helper),
            4 => self.drain(helper),
            5..=7 => self.fall_asleep(helper),
            8..=12 => {
                let delay = Duration::from_nanos(self.rng.scale(100_000, 50_000_000));
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.stall(host, conn, delay);
                }
            }
            _ => {
                if let Some(conn) = self.network.any_connection(host, &mut self.rng) {
                    self.network.cut(host, conn);
                }
            }
        }
        let next = self.rng.scale(1_000_000, self.climate.fault_ns_max);
        self.network.after(Duration::from_nanos(next), Happening::World(FAULT));
    }

    fn stop_if_up(&mut self, host: HostId) {
        if !matches!(self.nodes[host], Node::Down(_)) {
            self.stop(host);
        }
    }

    /// As by SIGSTOP, and SIGCONT later.
    fn fall_asleep(&mut self, host: HostId) {
        if self.asleep.insert(host) {
            let until = Duration::from_nanos(self.rng.scale(100_000, 400_000_000));
            self.network.after(until, Happening::World(WAKE_UP + host as u64));
        }
    }

    fn wake_up(&mut self, host: HostId) {
        if self.asleep.remove(&host) {
            self.network.wake_up(host);
        }
    }

    /// A helper goes away in good order, or is stopped when its time is up.
    fn drain(&mut self, host: HostId) {
        let within = Duration::from_nanos(self.rng.scale(1_000_000, 50_000_000));
        if let Node::Helper(relay) = &mut self.nodes[host] {
            if relay.is_drained() {
                return self.stop(host);
            }
            helpers::drain(&mut self.network, host, relay, within);
        }
    }

    /// The end: everything must have ended.
    pub fn finish(&mut self) {
        if !self.went_wrong() {
            for what in self.left() {
                self.books.borrow_mut().violation(format!("after the storm there are still {what}"));
            }
            self.books.borrow_mut().all_ended();
        }
    }
}

impl Stormy for World {
    fn step(&mut self) -> bool {
        match self.network.pop() {
            None => return false,
            Some(Happening::World(FAULT)) => self.fault(),
            Some(Happening::World(what)) if what >= WAKE_UP => self.wake_up((what - WAKE_UP) as HostId),
            Some(Happening::World(restart)) => self.start((restart - RESTART) as HostId),
            Some(what) => {
                let (nodes, asleep) = (&mut self.nodes, &self.asleep);
                driver::happen(&mut self.network, what, |network, host| match &mut nodes[host] {
                    _ if asleep.contains(&host) => {}
                    Node::Server(node) => driver::turn(network, host, &mut **node),
                    Node::Clients(node) => driver::turn(network, host, &mut **node),
                    Node::Helper(node) => driver::turn(network, host, &mut **node),
                    Node::Down(node) => driver::turn(network, host, node),
                });
                self.check_bounds();
            }
        }
        true
    }

    fn calm_down(&mut self) {
        self.storm = false;
        for host in FIRST_HELPER..self.nodes.len() {
            if matches!(&self.nodes[host], Node::Helper(relay) if relay.is_draining()) {
                self.stop(host);
            }
        }
        let now = self.network.now();
        if let Node::Clients(clients) = &mut self.nodes[CLIENTS] {
            clients.calm_down(now);
        }
        self.network.turn_soon(CLIENTS);
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mut note = |what: &str, count: usize| {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        };
        note("sessions", self.books.borrow().open());
        for node in &self.nodes {
            match node {
                Node::Clients(clients) => note("clients' carriers", clients.open()),
                Node::Server(server) => note("sessions at the server", server.sessions()),
                Node::Helper(relay) => {
                    helpers::left(relay).into_iter().for_each(|(what, count)| note(what, count))
                }
                Node::Down(_) => note("host down", 1),
            }
        }
        left
    }

    fn progress(&self) -> u64 {
        self.books.borrow().progress()
    }

    fn went_wrong(&self) -> bool {
        !self.books.borrow().violations().is_empty()
    }

    /// The world's time.
    fn now(&self) -> Time {
        self.network.now()
    }
}

//! The hosts of a random sequence, and the part of the switch's state that they have learned from its messages.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use spillway_parts::Random;

use crate::mac::Mac;
use crate::message::numbers::{kind, state, status};
use crate::message::view::MessageView;
use crate::setup::{Host, LOCAL_PORT, Place, Port, Server, Setup};

/// Maximum numbers of flows with an entry. Sequences fill the small tables.
const FLOWS_MAX: [u32; 6] = [1, 2, 8, 32, 64, 128];
/// Bounds of the flows of one service.
const SERVICE_FLOWS_MAX: [u32; 3] = [1, 3, 10];
/// Owner timeouts in ms.
const TIMEOUTS_MS: [u64; 4] = [50, 150, 300, 1_000];
/// Times are multiples of this: with a coarse one, limits are often met exactly.
const GRAINS_NS: [u64; 3] = [1, 1_000_000, 10_000_000];
/// Number of clients' ports.
const CLIENT_PORTS: u64 = 6;
/// Largest difference of two CPUs' times.
const CLOCK_SKEW_NS: u64 = 3_000_000;
/// Mean number of steps between two reloads.
const STEPS_PER_RELOAD: u64 = 1_000;
/// Former generations that a flow remembers.
const GENERATIONS: usize = 4;

/// A flow, with what the hosts have learned of its entry.
#[derive(Clone, Debug)]
pub(super) struct KnownFlow {
    pub(super) client: SocketAddr,
    pub(super) service: SocketAddr,
    pub(super) state: u8,
    /// The last generations, the newest first.
    pub(super) generations: [u64; GENERATIONS],
    /// The last generation of a former entry that a prepare named.
    pub(super) repeat_generation: u64,
    pub(super) owner: u8,
    pub(super) owner_at: SocketAddr,
    pub(super) target: u8,
    pub(super) target_at: SocketAddr,
}

/// A server as it behaves now.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    pub(super) server: Server,
    pub(super) sequence: u64,
    /// Sends heartbeats.
    pub(super) is_alive: bool,
    /// Whether an answer has stated that the server has no term.
    pub(super) needs_hello: bool,
    pub(super) heartbeat_due_ns: u64,
}

/// Hosts, flows and time.
#[derive(Debug)]
pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    grain_ns: u64,
    pub(super) flows: Vec<KnownFlow>,
    /// The daemon and the servers.
    pub(super) senders: Vec<Sender>,
    pub(super) services: Vec<Place>,
}

/// A configuration that a seed determines: that of the cases with more servers, and other limits.
pub fn random_setup(base: &Setup, random: &mut Random) -> Setup {
    let mut setup = base.clone();
    setup.flows_max = pick(random, &FLOWS_MAX);
    for place in setup.places.values().filter(|place| place.is_endpoint()) {
        if random.below(3) == 0 {
            setup.service_flows_max.insert(place.number, pick(random, &SERVICE_FLOWS_MAX));
        }
    }
    setup.owner_timeout_ns = pick(random, &TIMEOUTS_MS) * 1_000_000;
    setup.epoch = 1 + random.below(u64::MAX / 2);
    let is_rack = |port: &Port| port.is_server && port.number != LOCAL_PORT;
    let racks: Vec<String> =
        setup.ports.iter().filter(|(_, port)| is_rack(port)).map(|(name, _)| name.clone()).collect();
    let used: BTreeSet<u8> = setup.servers.values().map(|server| server.id).collect();
    for index in 0..random.below(6) {
        let index = u8::try_from(index).expect("below 6");
        let id = u8::try_from(6 + random.below(250)).expect("at most 255");
        if used.contains(&id) || setup.server(id).is_some() {
            continue;
        }
        let rack = &racks[self::index(random, racks.len())];
        add_server(&mut setup, random, rack, id, index);
    }
    setup
}

fn add_server(setup: &mut Setup, random: &mut Random, rack: &str, id: u8, index: u8) {
    let name = format!("S{id}");
    let Some(port) = setup.port_number(rack) else { return };
    let (v4, v6) =
        (Ipv4Addr::new(10, 0, 1, index), Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, index.into()));
    let mac = Mac([2, 0, 0, 0, 2, index]);
    let address: IpAddr = if random.below(4) == 0 { v6.into() } else { v4.into() };
    setup.hosts.insert(name.clone(), Host { mac, port: Some(port), addresses: vec![v4.into(), v6.into()] });
    let mut key = [0x11; 16];
    key[..8].copy_from_slice(&random.word().to_le_bytes());
    setup.servers.insert(name, Server { id, key, address, mac, port });
    let may_own = &setup.ports[rack].may_own;
    let services: Vec<Place> = setup
        .places
        .values()
        .filter(|place| place.is_endpoint() && may_own.contains(&place.number))
        .cloned()
        .collect();
    for (number, service) in services.into_iter().enumerate() {
        if random.below(3) > 0 {
            let ip: IpAddr = if service.at.is_ipv4() { v4.into() } else { v6.into() };
            let port = 9000 + u16::try_from(number).expect("few services");
            let place = Place { at: SocketAddr::new(ip, port), server: id, ..service };
            setup.places.insert(format!("S{id}-{number}"), place);
        }
    }
}

/// One of several values.
pub(super) fn pick<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[index(random, values.len())]
}

/// A number below `count`.
pub(super) fn index(random: &mut Random, count: usize) -> usize {
    usize::try_from(random.below(count as u64)).expect("below a usize")
}

impl World {
    pub(super) fn new(setup: Setup, mut random: Random, start_ns: u64) -> World {
        let grain_ns = pick(&mut random, &GRAINS_NS);
        let services: Vec<Place> =
            setup.places.values().filter(|place| place.is_endpoint()).cloned().collect();
        let mut flows = Vec::new();
        for service in &services {
            let mut clients: Vec<IpAddr> = ["alice", "bob", "B", "T"]
                .iter()
                .filter_map(|name| setup.host_address(name, service.at.is_ipv6()))
                .collect();
            if service.at.is_ipv4() {
                clients.push(Ipv4Addr::new(192, 0, 2, 7).into());
            }
            for client in clients {
                for port in 0..CLIENT_PORTS {
                    let client = SocketAddr::new(client, 40_000 + u16::try_from(port).expect("few ports"));
                    flows.push(KnownFlow {
                        client,
                        service: service.at,
                        state: state::NONE,
                        generations: [0; GENERATIONS],
                        repeat_generation: 0,
                        owner: service.server,
                        owner_at: service.at,
                        target: service.server,
                        target_at: service.at,
                    });
                }
            }
        }
        let senders = setup
            .servers
            .values()
            .map(|server| Sender {
                server: server.clone(),
                sequence: 0,
                is_alive: true,
                needs_hello: server.id != 0,
                heartbeat_due_ns: start_ns,
            })
            .collect();
        World { setup, random, now_ns: start_ns, grain_ns, flows, senders, services }
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.random.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        pick(&mut self.random, values)
    }

    pub(super) fn index(&mut self, count: usize) -> usize {
        index(&mut self.random, count)
    }

    /// Advances the time: mostly by little, sometimes by more than the owner timeout or by the lifetime of entries.
    pub(super) fn advance(&mut self) {
        let timeout_ns = self.setup.owner_timeout_ns;
        let most_ns = match self.random.below(10_000) {
            0..6_000 => 0,
            6_000..9_900 => 2_000_000,
            9_900..9_930 => 120_000_000,
            9_930..9_940 => 3 * timeout_ns,
            9_940..9_947 => 3_000_000_000,
            9_947..9_950 => 100_000_000_000,
            9_950 => 900_000_000_000,
            _ => 0,
        };
        let passed_ns = match self.random.below(500) {
            // The time that passes is exactly one of the limits.
            0 => self.pick(&[timeout_ns, 1_000_000, 30_000_000, 100_000_000, 500_000_000, 1_000_000_000]),
            1 if self.chance(10) => self.pick(&[60_000_000_000, 600_000_000_000]),
            _ => self.random.below(most_ns + 1),
        };
        // Rounded at random, so that time passes as fast with every grain.
        let grains = (passed_ns + self.random.below(self.grain_ns)) / self.grain_ns;
        self.now_ns += grains * self.grain_ns;
        if self.chance(1) {
            let count = self.senders.len();
            let index = self.index(count);
            let is_alive = self.chance(80);
            self.senders[index].is_alive = is_alive;
        }
    }

    /// The time of a frame: sometimes earlier than that of the last frame, because CPUs read the clock before they wait
    /// for each other.
    pub(super) fn skewed_now_ns(&mut self) -> u64 {
        let skew_ns = if self.chance(2) { self.random.below(CLOCK_SKEW_NS) } else { 0 };
        self.now_ns - skew_ns
    }

    /// Sometimes returns a new configuration: without one server or place, with another timeout, or the first one again. The
    /// hosts are not informed of the change.
    pub(super) fn reload(&mut self) -> Option<Setup> {
        if self.random.below(STEPS_PER_RELOAD) > 0 {
            return None;
        }
        let mut setup = self.setup.clone();
        if self.chance(50) {
            let ids: Vec<u8> =
                self.senders.iter().map(|sender| sender.server.id).filter(|id| *id != 0).collect();
            setup.remove_server(self.pick(&ids));
        }
        if self.chance(30) {
            let names: Vec<String> = setup
                .places
                .iter()
                .filter(|(_, place)| !place.is_endpoint())
                .map(|(name, _)| name.clone())
                .collect();
            if !names.is_empty() {
                let index = self.index(names.len());
                setup.places.remove(&names[index]);
            }
        }
        if self.chance(30) {
            setup.owner_timeout_ns = self.pick(&TIMEOUTS_MS) * 1_000_000;
        }
        if self.chance(30) {
            setup.service_flows_max.insert(self.services[0].number, self.pick(&SERVICE_FLOWS_MAX));
        }
        Some(setup)
    }

    pub(super) fn sender(&self, id: u8) -> Option<&Sender> {
        self.senders.iter().find(|sender| sender.server.id == id)
    }

    /// Reads what the switch has sent to a server: flows' states, and lost terms.
    pub(super) fn learn(&mut self, frame: &[u8]) {
        let Some(message) = MessageView::find_in(frame) else { return };
        let (kind, status, state) = (message.kind(), message.status(), message.state());
        if matches!(kind, kind::HEARTBEAT | kind::HELLO) {
            let sender = self.senders.iter_mut().find(|sender| sender.server.id == message.sender());
            if let Some(sender) = sender {
                sender.needs_hello =
                    if kind == kind::HELLO { status != status::OK } else { status == status::NO_OWNER };
            }
            return;
        }
        let (client, service, site) = (message.client(), message.service(), message.owner());
        let server =
            self.setup.servers.values().find(|server| server.mac == message.mac()).map(|server| server.id);
        let generation = message.generation();
        let known = self.flows.iter_mut().find(|flow| (flow.client, flow.service) == (client, service));
        let Some(flow) = known.filter(|_| kind != kind::LIST) else { return };
        flow.state = state;
        if generation != flow.generations[0] {
            flow.generations.rotate_right(1);
            flow.generations[0] = generation;
        }
        let is_relay = matches!(kind, kind::PREPARE | kind::PREPARED)
            && status == status::OK
            && matches!(state, state::ASKED | state::HELD);
        match server {
            Some(server) if is_relay => (flow.target, flow.target_at) = (server, site),
            Some(server) => (flow.owner, flow.owner_at) = (server, site),
            None => {}
        }
        if state == state::NONE {
            flow.owner =
                self.services.iter().find(|place| place.at == service).map_or(0, |place| place.server);
            flow.owner_at = service;
        }
    }
}

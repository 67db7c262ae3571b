//! The world of user-level stacks: hosts on one network, and the events between them in order of time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use spillway_handoff::Service;
use spillway_transport::Time;
use spillway_wire::switch::{MESSAGE_BYTES, ServerId};

use super::cabling::Cable;
use super::fabric::{Fabric, Leg};
use super::gates::SharedGates;
use super::host::Host;
use super::moves::{Moves, When};
use super::path::Path;
use super::plan::{GATED_PORT, Plan};
use super::planted_fault::{FaultyProgram, PlantedFault};
use super::program::{Addresses, Program};
use super::rack::{Rack, Sent};
use super::rogue::Rogue;
use super::scenario::Script;
use super::scenario::case::Fault;
use super::sniffer::Sniffer;
use super::standstill::Standstill;
use super::trace::{Drop, LastDrops, line};
use super::witness::Witness;
use super::worlds::Worlds;
use crate::agenda::Agenda;
use crate::clock::Clock;
use crate::oracle::{Oracle, SharedOracle};
use crate::phases::PhasedWorld;
use crate::rng::Rng;

/// Maximum number of opportunities that a planted fault skips before it strikes.
const FAULT_AFTER_MAX: u64 = 200;
/// Datagrams of other servers that wait for a server's turn; further ones are lost.
const MESSAGES_MAX: usize = 4096;
/// A step is one sent frame, or this many events without one.
const EVENTS_PER_STEP: u32 = 64;

/// Time to recover after a fault that blocks connections, in multiples of the fault's duration.
const QUIET_FACTOR: u32 = 4;

pub(super) enum WorldEvent {
    /// A frame arrives at a port of the switch.
    AtSwitch {
        port: usize,
        frame: Vec<u8>,
    },
    /// A frame arrives at the server, or the rogue host, behind a port.
    Arrive {
        port: usize,
        frame: Vec<u8>,
        is_damaged: bool,
    },
    /// A datagram of another server arrives.
    FromServer {
        to: Cable,
        payload: Vec<u8>,
    },
    Turn(usize),
    Wake(usize, Time),
    Fault,
    PathRestored(Leg),
    ServerContinues(Cable),
    SwitchContinues,
    /// A fault of the script strikes.
    Staged(Fault),
    /// A server that has died begins a new run.
    ServerReturns(Cable),
    Rogue,
}

impl WorldEvent {
    /// The host that acts.
    fn host(&self) -> Option<usize> {
        match self {
            WorldEvent::Wake(host, _) | WorldEvent::Turn(host) => Some(*host),
            _ => None,
        }
    }
}

/// What a server sends.
enum Output {
    Frame(Vec<u8>),
    Control(Box<[u8; MESSAGE_BYTES]>),
    ToServer(ServerId, Vec<u8>),
}

pub(crate) struct World {
    pub(super) now: Time,
    standstill: Standstill,
    pub(super) rng: Rng,
    pub(super) agenda: Agenda<WorldEvent>,
    pub(super) plan: Plan,
    pub(super) hosts: Vec<Host>,
    /// The rogue host, at the switch's last port.
    pub(super) rogue: Option<Rogue>,
    pub(super) fabric: Fabric,
    pub(super) sniffer: Sniffer,
    pub(super) witness: Witness,
    /// Moves and their faults, one after the other; `None`: both are random.
    pub(super) script: Option<Script>,
    pub(crate) oracle: SharedOracle,
    slot: Vec<u8>,
    in_calm_phase: bool,
    pub(crate) hash: u64,
    pub(crate) packets: u64,
    /// Control messages that servers sent.
    pub(crate) control_messages: u64,
    pub(crate) faults: u64,
    /// Restarts of servers.
    pub(crate) server_restarts: u64,
    /// Messages of `world_control`: *hold* that were sent, answers to *list* that were compared, and all requests.
    pub(crate) holds: u64,
    pub(crate) lists: u64,
    pub(super) raw_requests: u64,
    pub(crate) rogue_frames: u64,
    pub(crate) last_drops: LastDrops,
    /// Receives a line of text for every frame and every drop.
    pub(crate) trace: Option<Box<dyn FnMut(String)>>,
    /// Maximum number of connections of one host so far, half-open ones included.
    pub(crate) connections_max: usize,
}

impl World {
    pub(crate) fn new(seed: u64, worlds: Worlds) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, worlds);
        let mut world = World::with_plan((seed, rng), plan, worlds.planted());
        if worlds == Worlds::Requests {
            for (host, number) in world.hosts.iter_mut().zip(0..) {
                host.rack.hand_requests_off(Rng::new(seed.wrapping_add(number)));
            }
        }
        world
    }

    /// A world in which nothing goes wrong but what the script says.
    pub(crate) fn scripted(seed: u64, script: Script, planted: Option<PlantedFault>) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, Worlds::All).for_script(&mut rng);
        let mut world = World::with_plan((seed, rng), plan, planted);
        world.script = Some(script);
        world
    }

    fn with_plan((seed, mut rng): (u64, Rng), plan: Plan, planted: Option<PlantedFault>) -> World {
        let mut oracle = Oracle::new(!plan.may_break);
        // Whether a connection was lost by design is known later than that it broke.
        oracle.judges_late = plan.switch.servers_per_host > 1;
        let oracle: SharedOracle = Rc::new(RefCell::new(oracle));
        let gates = SharedGates::default();
        let now = Time(1);
        let mut fabric_rng = rng.fork();
        let mut world = World {
            now,
            standstill: Standstill::default(),
            fabric: Fabric::draw(now, &plan, &mut fabric_rng),
            witness: Witness::default(),
            script: None,
            control_messages: 0,
            agenda: Agenda::default(),
            hosts: Vec::new(),
            rogue: None,
            sniffer: Sniffer::new(gates.clone(), GATED_PORT).with_cookies(plan.is_crowded),
            oracle: oracle.clone(),
            slot: Vec::new(),
            in_calm_phase: false,
            hash: seed,
            packets: 0,
            faults: 0,
            server_restarts: 0,
            holds: 0,
            lists: 0,
            raw_requests: 0,
            rogue_frames: 0,
            last_drops: LastDrops::default(),
            trace: None,
            connections_max: 0,
            rng: rng.fork(),
            plan,
        };
        world.fabric.switch.passes_strangers = planted == Some(PlantedFault::PassStranger);
        let planted_host = rng.below(world.plan.hosts as u64) as usize; // fits: index of a host
        for host in 0..world.plan.hosts {
            let records = (oracle.clone(), gates.clone());
            let services = |host| world.fabric.cabling.services(host);
            let addresses = Addresses::of(host, (world.plan.hosts, world.plan.family), services);
            let program = Program::new(addresses, world.plan.behaviour, rng.fork(), records);
            // Scripts have few moves: the fault strikes on every host, at the first move.
            let is_scripted = world.plan.moves == When::Never
                && planted.is_some_and(|planted| PlantedFault::OF_MOVES.contains(&planted));
            let planted = planted.filter(|_| host == planted_host || is_scripted);
            let program = FaultyProgram::new(program, planted, rng.range(1, FAULT_AFTER_MAX) as u32); // fits: few
            let clock = if world.plan.clocks_differ { Clock::draw(&mut rng) } else { Clock::TRUE };
            let settings = world.plan.stacks(&mut rng, host);
            let moves_until_fault = if is_scripted { 1 } else { rng.range(1, FAULT_AFTER_MAX) as u32 }; // fits: few
            let planted = (planted, moves_until_fault);
            let moves = Moves::new((world.plan.moves, world.plan.in_place_one_in), rng.fork(), planted);
            let services = world.fabric.cabling.services(host);
            let agents = world.agents(host, &settings);
            let rack = Rack::new(clock.read(world.now), settings, agents, (moves, services), rng.fork());
            world.hosts.push(Host::new(rack, program, clock, world.plan.receive_queue_max));
            world.turn_after(host, 0);
        }
        if world.plan.fault_ns_max > 0 {
            world.next_fault(Duration::ZERO);
        }
        if let Some(settings) = world.plan.rogue {
            let cabling = &world.fabric.cabling;
            let targets = (0..world.plan.hosts).flat_map(|host| cabling.services(host)).collect();
            world.rogue = Some(Rogue::new(
                world.plan.family.address_of(world.plan.hosts),
                targets,
                settings,
                rng.fork(),
            ));
            world.agenda.add(world.now, WorldEvent::Rogue);
        }
        world
    }

    /// Settings for the agents of a host's servers.
    fn agents(&self, host: usize, stacks: &[spillway_tcp::Settings]) -> Vec<spillway_handoff::Settings> {
        let (plan, cabling) = (&self.plan.switch, &self.fabric.cabling);
        if plan.servers_per_host == 1 {
            return Vec::new();
        }
        let of_server = |(server, stack): (usize, &spillway_tcp::Settings)| {
            let cable = Cable { host, server };
            let original = cabling.server_id(Cable { host, server: 0 });
            let places = cabling.services(host).into_iter().zip(cabling.places(cable));
            let services = places.map(|(endpoint, place)| Service {
                endpoint: endpoint.into(),
                place: place.into(),
                original,
            });
            spillway_handoff::Settings {
                id: cabling.server_id(cable),
                key: cabling.key(cable),
                peers_key: cabling.peers_key(),
                run: cabling.run(cable),
                mac: cabling.address(cable).1,
                heartbeat: plan.heartbeat,
                owner_timeout: plan.owner_timeout,
                times: plan.times,
                services: services.collect(),
                peers: cabling.peers(host),
                time_wait: stack.time_wait,
                limits: plan.limits,
            }
        };
        stacks.iter().enumerate().map(of_server).collect()
    }

    pub(super) fn turn_after(&mut self, host: usize, delay_ns: u64) {
        if !std::mem::replace(&mut self.hosts[host].turn_due, true) {
            let at = self.now + Duration::from_nanos(delay_ns);
            self.agenda.add(at.max(self.hosts[host].paused_until), WorldEvent::Turn(host));
        }
    }

    /// Queues a wake-up for the host's next timer, unless an earlier one is queued.
    pub(super) fn queue_wake_up(&mut self, host: usize) {
        let Some(at) = self.hosts[host].next_turn_at() else { return };
        let at = at.max(self.now);
        if self.hosts[host].armed.is_none_or(|armed| at < armed) {
            self.hosts[host].armed = Some(at);
            self.agenda.add(at, WorldEvent::Wake(host, at));
        }
    }

    fn turn(&mut self, host: usize) {
        let mut outputs = Vec::new();
        self.hosts[host].turn_due = false;
        self.hosts[host].turn(self.now, &mut self.slot, |server, sent| {
            let cable = Cable { host, server };
            outputs.push(match sent {
                Sent::Frame(frame) => (cable, Output::Frame(frame.to_vec())),
                Sent::Control(payload) => (cable, Output::Control(payload)),
                Sent::Server { to, payload } => (cable, Output::ToServer(to, payload)),
            });
        });
        self.record_owners(host);
        self.excuse_lost();
        self.trace_drops(host);
        self.trace_timeouts(host);
        for (cable, output) in outputs {
            match output {
                Output::Frame(frame) => self.send(cable, &frame),
                Output::Control(payload) => self.send_to_switch(cable, &payload[..]),
                Output::ToServer(to, payload) => self.send_to_server(cable, to, &payload),
            }
        }
        if let Some(what) = self.hosts[host].exceeded_bound() {
            self.oracle.borrow_mut().violation(what);
        }
        for violation in self.hosts[host].rack.directory.violations.drain(..) {
            self.oracle.borrow_mut().violation(violation);
        }
        self.connections_max = self.connections_max.max(self.hosts[host].rack.connections());
        self.observe_outcome();
        self.queue_wake_up(host);
    }

    fn trace_drops(&mut self, host: usize) {
        for (stack, dropping) in self.hosts[host].rack.dropped() {
            let drop = Drop { now: self.now, host, stack, dropping };
            if let Some(trace) = &mut self.trace {
                trace(drop.line());
            }
            self.last_drops.add(drop);
        }
    }

    /// Adds a line to the trace for each server with new retransmission timeouts.
    fn trace_timeouts(&mut self, host: usize) {
        let Some(trace) = &mut self.trace else { return };
        for (server, timeouts) in self.hosts[host].rack.new_timeouts() {
            let us = self.now.as_nanos() as f64 / 1e3;
            trace(format!("{us:14.1} host {host} server {server}: {timeouts} retransmission timeouts"));
        }
    }

    fn handle(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::AtSwitch { port, frame } => {
                let text = self.trace.is_some().then(|| line(self.now, &frame, &[]));
                let departures = self.fabric.switch.arrive(self.now, port, frame);
                if let (Some(verdict), Some(text), Some(trace)) =
                    (self.fabric.switch.take_drop(), text, &mut self.trace)
                {
                    trace(format!("{text} at switch ({})", verdict.name()));
                }
                self.send_down(departures);
            }
            WorldEvent::SwitchContinues => {
                while let Some(departures) = self.fabric.switch.take_waiting(self.now) {
                    self.send_down(departures);
                }
            }
            WorldEvent::ServerContinues(cable) => {
                self.hosts[cable.host].rack.set_paused(cable.server, false);
                self.turn_after(cable.host, 0);
            }
            WorldEvent::Staged(fault) => self.handle_staged(fault),
            WorldEvent::ServerReturns(cable) => {
                self.restart_server(cable);
                self.hosts[cable.host].rack.set_paused(cable.server, false);
            }
            WorldEvent::FromServer { to, payload } => {
                self.hosts[to.host].rack.arrive_message(to.server, payload, MESSAGES_MAX);
                let delay = self.rng.range(0, self.plan.turn_delay_ns);
                self.turn_after(to.host, delay);
            }
            WorldEvent::Arrive { port, frame, is_damaged } => {
                let Some(cable) = self.fabric.cabling.at(port) else {
                    let frames = self.rogue.as_mut().map_or(Vec::new(), |rogue| rogue.handle_frame(&frame));
                    return self.send_rogue_frames(&frames);
                };
                self.hosts[cable.host].arrive(cable.server, frame, is_damaged);
                let delay = self.rng.range(0, self.plan.turn_delay_ns);
                self.turn_after(cable.host, delay);
            }
            WorldEvent::Rogue => {
                let now = self.now;
                let Some(rogue) = self.rogue.as_mut().filter(|rogue| rogue.next_at.is_some()) else { return };
                let frames = rogue.act(now);
                if let Some(at) = rogue.next_at {
                    self.agenda.add(at, WorldEvent::Rogue);
                }
                self.send_rogue_frames(&frames);
            }
            WorldEvent::Turn(host) => self.turn(host),
            WorldEvent::Wake(host, at) => {
                if self.hosts[host].armed == Some(at) {
                    self.hosts[host].armed = None;
                    // If a change of the clock has delayed the timer, the turn queues another wake-up.
                    self.turn_after(host, 0);
                }
            }
            WorldEvent::Fault => {
                if !self.in_calm_phase {
                    let duration = self.inject_fault();
                    self.next_fault(duration * QUIET_FACTOR);
                }
            }
            WorldEvent::PathRestored(leg) => {
                if let Some(path) = self.fabric.path(leg) {
                    path.is_cut = false;
                }
            }
        }
    }

    fn next_fault(&mut self, rest: Duration) {
        let at =
            self.now + rest + Duration::from_nanos(self.rng.log_uniform(1_000_000, self.plan.fault_ns_max));
        self.agenda.add(at, WorldEvent::Fault);
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.fabric.paths()
    }
}

impl PhasedWorld for World {
    fn step(&mut self) -> bool {
        let now = self.now;
        if !self.in_calm_phase && self.script.as_ref().is_some_and(|script| script.has_ended(now)) {
            return false;
        }
        let before = self.packets;
        for _ in 0..EVENTS_PER_STEP {
            let Some((at, event)) = self.agenda.take() else { return false };
            self.now = self.now.max(at);
            if let Err(why) = self.standstill.count(self.now, event.host()) {
                self.oracle.borrow_mut().violation(why);
                return false;
            }
            self.handle(event);
            if self.packets > before {
                break;
            }
        }
        true
    }

    fn begin_calm_phase(&mut self) {
        self.in_calm_phase = true;
        self.script.iter_mut().for_each(Script::end);
        let frames = self.rogue.as_mut().map_or(Vec::new(), Rogue::begin_calm_phase);
        self.send_rogue_frames(&frames);
        self.fabric.switch.end_faults(self.now);
        self.agenda.add(self.now, WorldEvent::SwitchContinues);
        for path in self.fabric.paths_mut() {
            path.conditions = path.conditions.without_faults();
            path.is_cut = false;
        }
        for host in 0..self.hosts.len() {
            let now = self.hosts[host].clock.read(self.now);
            self.hosts[host].program.inner.begin_calm_phase(now);
            self.hosts[host].rack.directory.moves.end();
            self.hosts[host].paused_until = self.now;
            for server in 0..self.plan.switch.servers_per_host {
                self.hosts[host].rack.set_paused(server, false);
            }
            self.turn_after(host, 0);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let mut leftovers = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let (connections, known) = (host.rack.connections(), host.program.inner.open().count());
            if connections > 0 || known > 0 {
                let open = host.program.inner.open();
                let places: Vec<String> = open.map(|name| host.rack.directory.place_of(name)).collect();
                leftovers.push(format!(
                    "host {index} has {connections} connections and its program {known}: a connection has not ended \
                     ({})",
                    places.join(", ")
                ));
            }
        }
        leftovers
    }

    fn progress(&self) -> u64 {
        let opened: u64 = self.hosts.iter().map(|host| host.program.inner.opened).sum();
        let open: usize = self.hosts.iter().map(|host| host.rack.connections()).sum();
        (self.oracle.borrow().progress() + opened).wrapping_sub(open as u64)
    }

    fn has_violations(&self) -> bool {
        !self.oracle.borrow().violations().is_empty()
    }

    fn now(&self) -> Time {
        self.now
    }
}

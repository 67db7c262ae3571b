//! The world of user-level stacks: hosts on one network, and the events between them in order of time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use spillway_transport::Time;
use spillway_wire::packet::ethernet::{self, Mac};
use spillway_wire::packet::tcp::Flags;

use super::frames::address_of;
use super::gates::SharedGates;
use super::host::Host;
use super::moves::Moves;
use super::path::{Arrival, Path};
use super::plan::{GATED_PORT, PORT, Plan};
use super::planted_fault::{FaultyProgram, PlantedFault};
use super::program::{Addresses, Program};
use super::rack::Rack;
use super::rogue::Rogue;
use super::sniffer::{Sniffer, sniff};
use super::switch::ends_of;
use super::trace::{Drop, LastDrops, line};
use crate::agenda::Agenda;
use crate::clock::Clock;
use crate::oracle::{Oracle, SharedOracle};
use crate::phases::PhasedWorld;
use crate::rng::{Rng, mix};

/// Maximum number of opportunities that a planted fault skips before it strikes.
const FAULT_AFTER_MAX: u64 = 200;
/// A step is one sent frame, or this many events without one.
const EVENTS_PER_STEP: u32 = 64;

const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Time to recover after a fault that blocks connections, in multiples of the fault's duration.
const QUIET_FACTOR: u32 = 4;

enum WorldEvent {
    Arrive { to: usize, frame: Vec<u8>, is_damaged: bool },
    Turn(usize),
    Wake(usize, Time),
    Fault,
    PathRestored(usize, usize),
    Rogue,
}

pub(crate) struct World {
    now: Time,
    rng: Rng,
    agenda: Agenda<WorldEvent>,
    plan: Plan,
    hosts: Vec<Host>,
    /// The rogue host; its index follows those of the other hosts.
    rogue: Option<Rogue>,
    /// The path between each two hosts, by `source * nodes() + target`.
    paths: Vec<Path>,
    sniffer: Sniffer,
    pub(crate) oracle: SharedOracle,
    slot: Vec<u8>,
    in_calm_phase: bool,
    pub(crate) hash: u64,
    pub(crate) packets: u64,
    pub(crate) faults: u64,
    pub(crate) rogue_frames: u64,
    pub(crate) last_drops: LastDrops,
    /// Receives a line of text for every frame and every drop.
    pub(crate) trace: Option<Box<dyn FnMut(String)>>,
    /// Maximum number of connections of one host so far, half-open ones included.
    pub(crate) connections_max: usize,
}

impl World {
    pub(crate) fn new(seed: u64, planted: Option<PlantedFault>) -> World {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, planted);
        let oracle: SharedOracle = Rc::new(RefCell::new(Oracle::new(!plan.may_break)));
        let gates = SharedGates::default();
        let mut world = World {
            now: Time(1),
            agenda: Agenda::default(),
            hosts: Vec::new(),
            rogue: None,
            paths: Vec::new(),
            sniffer: Sniffer::new(gates.clone(), GATED_PORT).with_cookies(plan.is_crowded),
            oracle: oracle.clone(),
            slot: Vec::new(),
            in_calm_phase: false,
            hash: seed,
            packets: 0,
            faults: 0,
            rogue_frames: 0,
            last_drops: LastDrops::default(),
            trace: None,
            connections_max: 0,
            rng: rng.fork(),
            plan,
        };
        for _ in 0..world.nodes() * world.nodes() {
            let conditions = world.plan.conditions_max.draw_path(&mut rng);
            world.paths.push(Path::new(conditions, rng.fork()));
        }
        let planted_host = rng.below(world.plan.hosts as u64) as usize; // fits: index of a host
        for host in 0..world.plan.hosts {
            let records = (oracle.clone(), gates.clone());
            let program =
                Program::new(addresses_of(host, world.plan.hosts), world.plan.behaviour, rng.fork(), records);
            let planted = planted.filter(|_| host == planted_host);
            let program = FaultyProgram::new(program, planted, rng.range(1, FAULT_AFTER_MAX) as u32); // fits: few
            let clock = if world.plan.clocks_differ { Clock::draw(&mut rng) } else { Clock::TRUE };
            let settings = world.plan.stacks(&mut rng, host);
            let moves_until_fault = rng.range(1, FAULT_AFTER_MAX) as u32; // fits: few
            let moves = Moves::new(world.plan.moves, rng.fork(), planted, moves_until_fault);
            let rack = Rack::new(clock.read(world.now), settings, moves, rng.fork());
            world.hosts.push(Host::new(rack, program, clock, world.plan.receive_queue_max));
            world.turn_after(host, 0);
        }
        if world.plan.fault_ns_max > 0 {
            world.next_fault(Duration::ZERO);
        }
        if let Some(settings) = world.plan.rogue {
            let targets = (0..world.plan.hosts).flat_map(listeners).collect();
            world.rogue = Some(Rogue::new(address_of(world.plan.hosts), targets, settings, rng.fork()));
            world.agenda.add(world.now, WorldEvent::Rogue);
        }
        world
    }

    /// Number of hosts, the rogue included.
    fn nodes(&self) -> usize {
        self.plan.hosts + usize::from(self.plan.rogue.is_some())
    }

    fn path(&mut self, source: usize, target: usize) -> &mut Path {
        let nodes = self.nodes();
        &mut self.paths[source * nodes + target]
    }

    fn turn_after(&mut self, host: usize, delay_ns: u64) {
        if !std::mem::replace(&mut self.hosts[host].turn_due, true) {
            let at = self.now + Duration::from_nanos(delay_ns);
            self.agenda.add(at.max(self.hosts[host].paused_until), WorldEvent::Turn(host));
        }
    }

    /// Queues a wake-up for the host's next timer, unless an earlier one is queued.
    fn queue_wake_up(&mut self, host: usize) {
        let Some(at) = self.hosts[host].next_turn_at() else { return };
        let at = at.max(self.now);
        if self.hosts[host].armed.is_none_or(|armed| at < armed) {
            self.hosts[host].armed = Some(at);
            self.agenda.add(at, WorldEvent::Wake(host, at));
        }
    }

    fn turn(&mut self, host: usize) {
        let mut frames = Vec::new();
        self.hosts[host].turn_due = false;
        self.hosts[host].turn(self.now, &mut self.slot, |frame| frames.push(frame.to_vec()));
        self.trace_drops(host);
        for frame in &frames {
            self.send(host, frame);
        }
        if let Some(what) = self.hosts[host].exceeded_bound() {
            self.oracle.borrow_mut().violation(what);
        }
        for violation in self.hosts[host].rack.violations.drain(..) {
            self.oracle.borrow_mut().violation(violation);
        }
        self.connections_max = self.connections_max.max(self.hosts[host].rack.connections());
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

    fn send(&mut self, source: usize, frame: &[u8]) {
        self.packets += 1;
        let verdict = if self.is_to_unknown_host(frame) {
            sniff(frame).map(|_| ())
        } else {
            self.sniffer.observe(frame, true)
        };
        if let Err(why) = verdict {
            self.oracle.borrow_mut().violation(why);
        }
        self.send_over_paths(source, frame);
        self.forge(source, frame);
    }

    fn is_to_unknown_host(&self, frame: &[u8]) -> bool {
        let known = |end: SocketAddr| (0..self.plan.hosts).any(|host| address_of(host) == end.ip());
        self.rogue.is_some() && ends_of(frame).is_some_and(|(_, target)| !known(target))
    }

    /// Sends a frame over the paths to all hosts that have the frame's target address.
    fn send_over_paths(&mut self, source: usize, frame: &[u8]) {
        let digest = frame.chunks(8).fold(frame.len() as u64, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        self.hash = mix(self.hash ^ digest ^ self.now.as_nanos());
        let Ok((header, _)) = ethernet::Header::parse(frame) else { return };
        let mut arrivals = Vec::new();
        for target in 0..self.nodes() {
            let has_target = match self.hosts.get(target) {
                Some(host) => host.rack.has(header.target),
                None => self.rogue.as_ref().is_some_and(|rogue| rogue.has(header.target)),
            };
            if (has_target || header.target == Mac::BROADCAST) && target != source {
                let now = self.now;
                self.path(source, target).send(now, frame, |arrival| arrivals.push((target, arrival)));
            }
        }
        if let Some(trace) = &mut self.trace {
            trace(line(self.now, frame, &arrivals));
        }
        for (to, Arrival { at, frame, is_corrupt }) in arrivals {
            self.agenda.add(at, WorldEvent::Arrive { to, frame, is_damaged: is_corrupt });
        }
    }

    fn send_rogue_frames(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            self.rogue_frames += 1;
            self.send_over_paths(self.plan.hosts, frame);
        }
    }

    /// May forge an answer to a frame, which arrives before the peer's answer.
    fn forge(&mut self, victim: usize, frame: &[u8]) {
        let Some(rogue) = &mut self.rogue else { return };
        if !rogue.is_forgery_due() {
            return;
        }
        let Ok(Some(seen)) = sniff(frame) else { return };
        let Some((us, them)) = self.sniffer.ends(seen.source, seen.target) else { return };
        if seen.header.flags.intersects(Flags::RST | Flags::SYN) {
            return;
        }
        let Some(forged) = rogue.forge(seen.target, seen.source, them, us) else { return };
        self.sniffer.record_forged(&forged);
        self.rogue_frames += 1;
        if let Some(trace) = &mut self.trace {
            trace(format!("{} forged", line(self.now, &forged, &[])));
        }
        self.hosts[victim].arrive(forged, false);
        self.turn_after(victim, 0);
    }

    fn handle(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Arrive { to, frame, .. } if to == self.plan.hosts => {
                let frames = self.rogue.as_mut().map_or(Vec::new(), |rogue| rogue.handle_frame(&frame));
                self.send_rogue_frames(&frames);
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
            WorldEvent::Arrive { to, frame, is_damaged } => {
                self.hosts[to].arrive(frame, is_damaged);
                let delay = self.rng.range(0, self.plan.turn_delay_ns);
                self.turn_after(to, delay);
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
            WorldEvent::PathRestored(source, target) => self.path(source, target).is_cut = false,
        }
    }

    fn next_fault(&mut self, rest: Duration) {
        let at =
            self.now + rest + Duration::from_nanos(self.rng.log_uniform(1_000_000, self.plan.fault_ns_max));
        self.agenda.add(at, WorldEvent::Fault);
    }

    /// Cuts a path, pauses a host, or changes a path or a clock. Returns for how long the fault blocks connections.
    fn inject_fault(&mut self) -> Duration {
        self.faults += 1;
        let hosts = self.plan.hosts as u64;
        let (host, other) = (self.rng.below(hosts) as usize, self.rng.below(hosts) as usize); // fits: indices of hosts
        let duration = Duration::from_nanos(self.rng.log_uniform(100_000, self.plan.silence_ns_max));
        match self.rng.below(4) {
            0 => {
                self.cut(host, other, duration);
                if self.rng.chance(1, 2) {
                    self.cut(other, host, duration);
                }
                return duration;
            }
            1 => {
                let duration = duration.min(PAUSE_MAX);
                self.hosts[host].paused_until = self.now + duration;
                return duration;
            }
            2 => {
                let conditions = self.plan.conditions_max.draw_path(&mut self.rng);
                self.path(host, other).conditions = conditions;
            }
            _ => {
                if self.plan.clocks_differ {
                    self.hosts[host].clock.drift(&mut self.rng, self.now);
                    self.hosts[host].armed = None;
                    self.queue_wake_up(host);
                }
            }
        }
        Duration::ZERO
    }

    fn cut(&mut self, source: usize, target: usize, duration: Duration) {
        let path = self.path(source, target);
        if !std::mem::replace(&mut path.is_cut, true) {
            self.agenda.add(self.now + duration, WorldEvent::PathRestored(source, target));
        }
    }

    pub(crate) fn finish(&mut self) {
        self.oracle.borrow_mut().all_ended();
        let leftovers = self.leftovers();
        let checks = self.hosts.iter().filter_map(|host| host.check(self.rogue.is_some()).err());
        for what in leftovers.into_iter().chain(checks) {
            self.oracle.borrow_mut().violation(what);
        }
    }

    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }
}

/// A host's addresses, and the listeners of the other hosts.
fn addresses_of(host: usize, hosts: usize) -> Addresses {
    let end = |host, port| SocketAddr::from((address_of(host), port));
    let others = (0..hosts).filter(|other| *other != host);
    Addresses {
        own: end(host, 0),
        listeners: [end(host, PORT), end(host, GATED_PORT)],
        targets: others.flat_map(|other| [end(other, PORT), end(other, GATED_PORT)]).collect(),
        rogues: vec![end(hosts, 0)],
    }
}

fn listeners(host: usize) -> [SocketAddr; 2] {
    [PORT, GATED_PORT].map(|port| SocketAddr::from((address_of(host), port)))
}

impl PhasedWorld for World {
    fn step(&mut self) -> bool {
        let before = self.packets;
        for _ in 0..EVENTS_PER_STEP {
            let Some((at, event)) = self.agenda.take() else { return false };
            self.now = self.now.max(at);
            self.handle(event);
            if self.packets > before {
                break;
            }
        }
        true
    }

    fn begin_calm_phase(&mut self) {
        self.in_calm_phase = true;
        let frames = self.rogue.as_mut().map_or(Vec::new(), Rogue::begin_calm_phase);
        self.send_rogue_frames(&frames);
        for path in &mut self.paths {
            path.conditions = path.conditions.without_faults();
            path.is_cut = false;
        }
        for host in 0..self.hosts.len() {
            let now = self.hosts[host].clock.read(self.now);
            self.hosts[host].program.inner.begin_calm_phase(now);
            self.hosts[host].rack.moves.end();
            self.hosts[host].paused_until = self.now;
            self.turn_after(host, 0);
        }
    }

    fn leftovers(&self) -> Vec<String> {
        let mut leftovers = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let (connections, known) = (host.rack.connections(), host.program.inner.open());
            if connections > 0 || known > 0 {
                leftovers.push(format!(
                    "host {index} has {connections} connections and its program {known}: a connection has not ended"
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

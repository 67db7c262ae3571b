//! The world of moves: servers, connections, the switch, and all events in order of time.

use std::time::Duration;

use spillway_policy::Override;
use spillway_policy::migration::{ConnectionId, Decision, Migration, MigrationSettings, PeerReport, Target};
use spillway_transport::Time;
use spillway_wire::switch::ServerId;

use super::checker::Checker;
use super::connection::Connection;
use super::plan::{COUNTS_UNTIL, END, Plan};
use super::planted_fault::PlantedFault;
use super::server::{Job, Server};
use super::switch::Switch;
use crate::agenda::Agenda;
use crate::rng::{Rng, mix};

/// Interval of looks and heartbeats.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// One-way delay between two hosts.
const ONE_WAY: Duration = Duration::from_micros(10);
/// CPU time of a move at each of both servers, with the driver.
const MOVE_COST: Duration = Duration::from_micros(10);
/// Time from the export to the import of a connection: the median of hand-offs on the laboratory's switch; one in a
/// hundred takes the 99th percentile.
const BLACKOUT: Duration = Duration::from_micros(50);
const BLACKOUT_P99: Duration = Duration::from_micros(400);

#[derive(Debug)]
enum WorldEvent {
    /// A request of a connection is due.
    RequestDue(u32),
    /// A server's core ends its job.
    JobEnds(usize),
    Look(usize),
    /// A heartbeat of the first server arrives at the switch and at all others.
    Heartbeat(usize, PeerReport),
    /// A server's policy may make its next move.
    PolicyDue(usize),
    /// A connection's state arrives at the target.
    StateArrives(u32, usize),
    /// The operator forbids moves.
    MovesForbidden,
}

pub(super) struct World {
    pub checker: Checker,
    /// The policies' decisions as text, if they are logged.
    pub log: Option<Vec<String>>,
    /// Hash of all moves and their times.
    pub hash: u64,
    plan: Plan,
    planted: Option<PlantedFault>,
    now: Time,
    agenda: Agenda<WorldEvent>,
    /// Draws blackouts and the offsets of looks.
    rng: Rng,
    servers: Vec<Server>,
    connections: Vec<Connection>,
    switch: Switch,
}

impl World {
    /// `settings`: those of the policies before the planted fault changes them; `None`: no policies.
    pub fn new(
        mut rng: Rng,
        plan: Plan,
        settings: Option<MigrationSettings>,
        planted: Option<PlantedFault>,
    ) -> World {
        let mut changed = settings;
        if let (Some(changed), Some(planted)) = (&mut changed, planted) {
            planted.change(changed);
        }
        let policy = |seed| {
            changed.map(|changed| Migration::new(changed, seed).expect("defaults and limits are valid"))
        };
        let servers = (0..plan.servers).map(|_| Server::new(policy(rng.word()))).collect();
        let connections = plan.homes.iter().map(|home| Connection::new(*home, rng.fork())).collect();
        let mut world = World {
            checker: Checker::new(&plan, settings.unwrap_or_default()),
            log: None,
            hash: 0,
            planted,
            now: Time::ZERO,
            agenda: Agenda::default(),
            rng: rng.fork(),
            servers,
            connections,
            switch: Switch::new(plan.servers),
            plan,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for index in 0..self.connections.len() as u32 {
            let server = &mut self.servers[self.connections[index as usize].server];
            server.connections += 1;
            if let Some(migration) = &mut server.migration {
                migration.join(Time::ZERO, ConnectionId(index.into()), None);
            }
            self.schedule_request(index);
        }
        for server in 0..self.servers.len() {
            let offset = Duration::from_nanos(self.rng.below(LOOK_EVERY.as_nanos() as u64));
            self.agenda.add(Time::ZERO + offset, WorldEvent::Look(server));
        }
        self.agenda.add(COUNTS_UNTIL, WorldEvent::MovesForbidden);
    }

    pub fn run(&mut self) {
        while let Some((at, event)) = self.agenda.take() {
            if at > END {
                break;
            }
            self.now = at;
            self.handle(event);
        }
        let queued = self.servers.iter().flat_map(Server::unanswered);
        let moving = self.connections.iter().flat_map(|connection| connection.in_transit.iter().flatten());
        for job in queued.chain(moving.copied()) {
            if let Job::Request(_, due_at, _) = job {
                self.checker.answered(due_at, END.since(due_at));
            }
        }
    }

    fn handle(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::RequestDue(connection) => self.request_due(connection),
            WorldEvent::JobEnds(server) => self.job_ends(server),
            WorldEvent::Look(server) => self.look(server),
            WorldEvent::Heartbeat(server, report) => self.heartbeat(server, report),
            WorldEvent::PolicyDue(server) => self.decide(server),
            WorldEvent::StateArrives(connection, target) => self.state_arrives(connection, target),
            WorldEvent::MovesForbidden => self.forbid_moves(),
        }
    }

    fn schedule_request(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if let Some(at) = connection.next_arrival(self.now, &self.plan.phases, index as usize) {
            self.agenda.add(at, WorldEvent::RequestDue(index));
        }
    }

    fn request_due(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let job = Job::Request(index, self.now, connection.draw_service());
        match &mut connection.in_transit {
            Some(held) => held.push_back(job),
            None => {
                let server = connection.server;
                self.push_request(server, index, job);
            }
        }
        self.schedule_request(index);
    }

    fn push_request(&mut self, server: usize, connection: u32, job: Job) {
        if let Some(migration) = &mut self.servers[server].migration {
            migration.record_requests(ConnectionId(connection.into()), 1);
        }
        let ends_at = self.servers[server].push(self.now, job);
        self.schedule_job_end(server, ends_at);
    }

    fn schedule_job_end(&mut self, server: usize, ends_at: Option<Time>) {
        if let Some(at) = ends_at {
            self.agenda.add(at, WorldEvent::JobEnds(server));
        }
    }

    fn job_ends(&mut self, server: usize) {
        let (ended, next_ends_at) = self.servers[server].end_job(self.now);
        self.schedule_job_end(server, next_ends_at);
        if let Some(Job::Request(connection, due_at, _)) = ended {
            self.checker.answered(due_at, self.now.since(due_at));
            self.export_if_possible(connection);
        }
    }

    fn look(&mut self, index: usize) {
        let server = &mut self.servers[index];
        let sample = server.sample(self.now);
        if let Some(migration) = &mut server.migration {
            migration.sample(self.now, sample);
            let free_places = self.plan.places.saturating_sub(server.connections);
            let report = PeerReport { load: migration.reported_load(), free_places };
            self.agenda.add(self.now + ONE_WAY, WorldEvent::Heartbeat(index, report));
            self.decide(index);
        }
        self.agenda.add(self.now + LOOK_EVERY, WorldEvent::Look(index));
    }

    fn heartbeat(&mut self, from: usize, report: PeerReport) {
        self.switch.heartbeat(from, report);
        for (index, server) in self.servers.iter_mut().enumerate().filter(|(index, _)| *index != from) {
            self.checker.heartbeat(index, from, report);
            if let Some(migration) = &mut server.migration {
                migration.heartbeat(self.now, server_id(from), report);
            }
        }
    }

    fn forbid_moves(&mut self) {
        self.checker.forbid();
        if self.planted != Some(PlantedFault::Deaf) {
            for migration in self.servers.iter_mut().filter_map(|server| server.migration.as_mut()) {
                migration.set_override(self.now, Override::Off, None);
            }
        }
    }

    /// Carries out the decisions of a server's policy.
    fn decide(&mut self, source: usize) {
        while let Some(decision) = self.servers[source].migration.as_mut().and_then(|m| m.poll(self.now)) {
            self.carry_out(source, &decision);
        }
        if let Some(at) = self.servers[source].migration.as_ref().and_then(Migration::poll_timeout) {
            self.agenda.add(at, WorldEvent::PolicyDue(source));
        }
    }

    fn carry_out(&mut self, source: usize, decision: &Decision) {
        let index = decision.connection.0 as u32; // fits: an index
        let target = match decision.target {
            Target::LeastLoaded(_) => self.switch.least_loaded(source),
            Target::Server(server) => Some(usize::from(server.0) - 1),
        };
        let connection = &mut self.connections[index as usize];
        let is_here = connection.server == source && connection.leaves_for.is_none();
        self.checker.decided(self.now, source, target.unwrap_or(usize::MAX), decision, is_here);
        if let Some(log) = &mut self.log {
            log.push(format!(
                "{:8.1} ms  server {}: {decision}",
                self.now.as_nanos() as f64 / 1e6,
                source + 1
            ));
        }
        self.hash = mix(self.hash ^ u64::from(index) ^ self.now.as_nanos());
        match target.filter(|target| self.servers[*target].connections < self.plan.places) {
            Some(target) => {
                connection.leaves_for = Some(target);
                self.servers[target].connections += 1;
                self.export_if_possible(index);
            }
            None => {
                self.checker.refused();
                if let Some(migration) = &mut self.servers[source].migration {
                    migration.not_moved(self.now, decision.connection);
                }
            }
        }
    }

    /// Exports a connection that is to move, unless one of its requests is in service: then it moves afterwards.
    fn export_if_possible(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let source = connection.server;
        let Some(target) = connection.leaves_for.filter(|_| !self.servers[source].serves(index)) else {
            return;
        };
        if connection.in_transit.is_some() {
            return;
        }
        let server = &mut self.servers[source];
        connection.in_transit = Some(server.take_requests(index));
        server.connections -= 1;
        if let Some(migration) = &mut server.migration {
            migration.leave(ConnectionId(index.into()));
        }
        let ends_at = server.push_first(self.now, Job::Move(MOVE_COST));
        self.schedule_job_end(source, ends_at);
        let blackout = if self.rng.chance(1, 100) { BLACKOUT_P99 } else { BLACKOUT };
        self.agenda.add(self.now + blackout, WorldEvent::StateArrives(index, target));
    }

    fn state_arrives(&mut self, index: u32, target: usize) {
        let connection = &mut self.connections[index as usize];
        let source = std::mem::replace(&mut connection.server, target);
        connection.leaves_for = None;
        let held = connection.in_transit.take().unwrap_or_default();
        self.checker.arrived(self.now, index as usize, source);
        if let Some(migration) = &mut self.servers[target].migration {
            migration.join(self.now, ConnectionId(index.into()), Some(server_id(source)));
        }
        let ends_at = self.servers[target].push_first(self.now, Job::Move(MOVE_COST));
        self.schedule_job_end(target, ends_at);
        for job in held {
            self.push_request(target, index, job);
        }
    }
}

fn server_id(index: usize) -> ServerId {
    ServerId(index as u8 + 1) // fits: at most four servers
}

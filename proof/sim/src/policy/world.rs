//! The world of relief policies: processes, connections, helpers, a server, and all events in order of time.

use std::time::Duration;

use spillway_policy::activation::Notice;
use spillway_policy::{Activation, ActivationSettings, Carrier, Order, Override};
use spillway_transport::Time;

use super::checker::Checker;
use super::event::WorldEvent;
use super::helper::{Content, Helper, Message};
use super::plan::{Course, Plan};
use super::planted_fault::PlantedFault;
use super::process::{CarrierHost, Connection, Process};
use super::server::{FinishedWork, Server};
use crate::agenda::Agenda;
use crate::rng::{Rng, mix};

const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// Maximum random delay before a session returns to the server because it lost its helper and found no other.
const RETURN_WITHIN: Duration = Duration::from_secs(1);
/// Additional delay of each message at a helper that reports a load of 0. The report attracts clients.
const MISREPORTING_DELAY: Duration = Duration::from_millis(15);
/// [`PlantedFault::Blind`] reports at most the SLA divided by this number as the latency of a helped connection.
const BLIND_SLA_DIVISOR: u32 = 4;

pub(super) struct World {
    pub plan: Plan,
    /// Counts requests and moves, and checks them.
    pub checker: Checker,
    pub now: Time,
    pub events_handled: u64,
    /// Hash of all orders and their times.
    pub hash: u64,
    /// The policy's decisions as text, if they are logged.
    pub log: Option<Vec<String>>,
    /// The planted fault.
    pub planted: Option<PlantedFault>,
    pub agenda: Agenda<WorldEvent>,
    pub rng: Rng,
    pub server: Server,
    pub helpers: Vec<Helper>,
    pub processes: Vec<Process>,
    pub connections: Vec<Connection>,
    /// Time of the next [`WorldEvent::ReleaseDue`].
    release_due: Option<Time>,
}

impl World {
    /// `manual_override` applies to all processes from the beginning.
    pub fn new(seed: u64, plan: Plan, manual_override: Override, planted: Option<PlantedFault>) -> World {
        // "policy" in ASCII. It makes other simulations draw other numbers from the same seed.
        let mut rng = Rng::new(seed ^ 0x706f_6c69_6379);
        let mut settings = plan.settings;
        match planted {
            Some(PlantedFault::Rush) => settings.moves_per_s_max = 1_000_000,
            Some(PlantedFault::Herd) => {
                (settings.jitter, settings.spread) = (Duration::ZERO, Duration::ZERO);
                settings.canary_percent = 100;
            }
            _ => {}
        }
        let server = Server::new(plan.costs, plan.course, plan.helpers, plan.measures_cpu, rng.word());
        let helper = |index: u16| {
            let is_misreporting = plan.misreporting_helper == Some(index);
            let extra_delay =
                plan.helpers_delay + if is_misreporting { MISREPORTING_DELAY } else { Duration::ZERO };
            Helper::new(plan.costs.helper, is_misreporting, plan.helper_clients_max, extra_delay)
        };
        let helpers = (0..plan.helpers).map(helper).collect();
        let mut world = World {
            release_due: None,
            checker: Checker::new(&plan),
            now: Time::ZERO,
            events_handled: 0,
            hash: 0,
            log: None,
            planted,
            agenda: Agenda::default(),
            server,
            helpers,
            processes: Vec::new(),
            connections: Vec::new(),
            rng: rng.fork(),
            plan,
        };
        world.populate(&mut rng, settings, manual_override);
        world
    }

    fn populate(&mut self, rng: &mut Rng, settings: ActivationSettings, manual_override: Override) {
        for (process, connection_count) in self.plan.processes.clone().into_iter().enumerate() {
            let mut activation =
                Activation::new(Time::ZERO, settings, rng.word()).expect("settings of the plan are valid");
            if manual_override != Override::Auto {
                activation.set_override(Time::ZERO, manual_override, None);
            }
            let mut connections = std::collections::BTreeMap::new();
            for _ in 0..connection_count {
                let index = self.connections.len() as u32; // fits: some hundred
                let (member, _) = activation
                    .join(Time::ZERO)
                    .expect("activation has room for every connection of a process");
                connections.insert(member, index);
                self.connections.push(Connection {
                    process: process as u32,
                    member,
                    epoch: 0,
                    carrier_host: CarrierHost::Server,
                    is_moving: false,
                    backlog: Default::default(),
                    in_flight: None,
                    next_request: 0,
                    arrivals: rng.fork(),
                });
                self.schedule_request(index);
            }
            self.processes.push(Process { activation, connections, wake_at: None, back_offs: 0 });
        }
        for (index, (at, _)) in self.plan.faults.iter().enumerate() {
            self.agenda.add(*at, WorldEvent::Fault(index));
        }
        self.agenda.add(Time::ZERO + SAMPLE_EVERY, WorldEvent::ReleaseSample);
    }

    pub fn run(&mut self) {
        while let Some((at, event)) = self.agenda.take() {
            if at > Course::END {
                break;
            }
            self.now = at;
            self.events_handled += 1;
            self.handle(event);
        }
        for connection in &self.connections {
            let waiting = connection.in_flight.iter().map(|(_, due_at)| due_at).chain(&connection.backlog);
            waiting.for_each(|due_at| self.checker.unanswered(*due_at, Course::END));
        }
    }

    /// Adds a value and the present time to the hash.
    pub(super) fn add_to_hash(&mut self, value: u64) {
        self.hash = mix(self.hash ^ value ^ self.now.as_nanos());
    }

    fn handle(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::RequestDue(connection) => self.request_due(connection),
            WorldEvent::DirectMessageAtServer(message) => {
                let next = self.server.arrive(self.now, message);
                self.schedule_service_end(next);
            }
            WorldEvent::BatchAtServer(helper, batch) if self.helpers[usize::from(helper)].is_alive => {
                let next = self.server.arrive_batch(self.now, helper, batch);
                self.schedule_service_end(next);
            }
            WorldEvent::BatchAtServer(..) => {}
            WorldEvent::ServiceEnded => self.service_ended(),
            WorldEvent::HelperReceived(helper, message) => self.helper_received(helper, message),
            WorldEvent::HelperFlush(helper) => {
                let batch = self.helpers[usize::from(helper)].flush();
                if !batch.is_empty() {
                    self.agenda
                        .add(self.now + self.plan.costs.one_way, WorldEvent::BatchAtServer(helper, batch));
                }
            }
            WorldEvent::RepliesAtHelper(helper, replies) => self.forward_replies(helper, &replies),
            WorldEvent::ReplyAtClient(message) => self.reply(message),
            WorldEvent::Refused(connection, epoch) => self.refused(connection, epoch),
            WorldEvent::CarrierLost(connection, epoch)
                if self.connections[connection as usize].epoch == epoch =>
            {
                if !self.move_to_helper(connection) {
                    let wait = Duration::from_nanos(self.rng.below(RETURN_WITHIN.as_nanos() as u64));
                    self.agenda.add(self.now + wait, WorldEvent::ReturnToServer(connection, epoch));
                }
            }
            WorldEvent::ReturnToServer(connection, epoch)
                if self.connections[connection as usize].epoch == epoch =>
            {
                self.move_to_server(connection);
            }
            WorldEvent::CarrierLost(..) | WorldEvent::ReturnToServer(..) => {}
            WorldEvent::GiveUp(connection, request) => self.give_up(connection, request),
            WorldEvent::Wake(process, at) => {
                let woken = &mut self.processes[process as usize];
                if woken.wake_at == Some(at) {
                    woken.wake_at = None;
                    self.drive(process);
                }
            }
            WorldEvent::ReleaseSample => self.sample_release(),
            WorldEvent::ReleaseDue => {
                self.release_due = None;
                self.release_sessions();
            }
            WorldEvent::Fault(index) => self.inject_fault(self.plan.faults[index].1),
        }
    }

    /// Schedules an arrival at the maximum rate of the load. [`Self::request_due`] drops some arrivals, so
    /// that the others come at the present rate.
    fn schedule_request(&mut self, index: u32) {
        let total = self.plan.course.load_max() * self.plan.costs.capacity();
        let rate = total / f64::from(self.plan.connections());
        let connection = &mut self.connections[index as usize];
        let gap = Duration::from_secs_f64(-(1.0 - connection.arrivals.unit()).ln() / rate);
        self.agenda.add(self.now + gap, WorldEvent::RequestDue(index));
    }

    fn request_due(&mut self, index: u32) {
        let probability = self.plan.course.load(self.now) / self.plan.course.load_max();
        let connection = &mut self.connections[index as usize];
        if connection.arrivals.below(1 << 32) as f64 <= probability * (1_u64 << 32) as f64 {
            connection.backlog.push_back(self.now);
            self.send(index);
        }
        self.schedule_request(index);
    }

    /// Sends the next request, unless one is in flight or the connection is moving.
    fn send(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        if !connection.is_moving
            && connection.in_flight.is_none()
            && let Some(due_at) = connection.backlog.pop_front()
        {
            connection.next_request += 1;
            connection.in_flight = Some((connection.next_request, due_at));
            let request = connection.next_request;
            if let Some(patience) = self.plan.patience {
                self.agenda.add(self.now.max(due_at + patience), WorldEvent::GiveUp(index, request));
            }
            self.transmit(index, Content::Request(request));
        }
        self.report_waiting_time(index);
    }

    pub(super) fn transmit(&mut self, index: u32, content: Content) {
        let connection = &self.connections[index as usize];
        let message = Message { connection: index, epoch: connection.epoch, content };
        let arrives = self.now + self.plan.costs.one_way;
        match connection.carrier_host {
            CarrierHost::Server => self.agenda.add(arrives, WorldEvent::DirectMessageAtServer(message)),
            CarrierHost::Helper(helper) => {
                let received = self.helpers[usize::from(helper)].process_message(arrives);
                self.agenda.add(received, WorldEvent::HelperReceived(helper, message));
            }
        }
    }

    fn report_waiting_time(&mut self, index: u32) {
        let is_reported = self.planted != Some(PlantedFault::Deaf) && !self.is_blind_to(index);
        let connection = &self.connections[index as usize];
        let process = &mut self.processes[connection.process as usize];
        if is_reported {
            process.activation.set_oldest_request(connection.member, connection.waits_since());
        }
        self.drive(self.connections[index as usize].process);
    }

    /// Whether [`PlantedFault::Blind`] hides the latency of this connection from the policy, because it is helped.
    fn is_blind_to(&self, index: u32) -> bool {
        self.planted == Some(PlantedFault::Blind)
            && self.connections[index as usize].carrier_host != CarrierHost::Server
    }

    fn schedule_service_end(&mut self, next: Option<Time>) {
        if let Some(at) = next {
            self.agenda.add(at, WorldEvent::ServiceEnded);
        }
    }

    fn service_ended(&mut self) {
        let (finished, next) = self.server.end_service(self.now);
        self.schedule_service_end(next);
        let arrives = self.now + self.plan.costs.one_way + self.server.backend_delay(self.now);
        match finished {
            Some(FinishedWork::Direct(message)) => {
                self.agenda.add(arrives, WorldEvent::ReplyAtClient(message))
            }
            Some(FinishedWork::Batch(helper, replies)) => {
                self.agenda.add(arrives, WorldEvent::RepliesAtHelper(helper, replies))
            }
            None => {}
        }
    }

    fn helper_received(&mut self, helper: u16, message: Message) {
        let node = &mut self.helpers[usize::from(helper)];
        if node.is_alive
            && let Some(flush_at) = node.gather(self.now, message, &self.plan.costs)
        {
            self.agenda.add(flush_at, WorldEvent::HelperFlush(helper));
        }
    }

    fn forward_replies(&mut self, helper: u16, replies: &[Message]) {
        let node = &mut self.helpers[usize::from(helper)];
        if !node.is_alive {
            return;
        }
        for message in replies {
            let arrives = node.process_message(self.now) + self.plan.costs.one_way;
            self.agenda.add(arrives, WorldEvent::ReplyAtClient(*message));
        }
    }

    fn reply(&mut self, message: Message) {
        let index = message.connection;
        let connection = &mut self.connections[index as usize];
        if connection.epoch != message.epoch {
            return; // the connection has left this carrier
        }
        match message.content {
            Content::Connect => self.carrier_attached(index),
            Content::Request(request) => {
                let Some((_, due_at)) =
                    connection.in_flight.take_if(|(request_in_flight, _)| *request_in_flight == request)
                else {
                    return;
                };
                let latency = self.now.since(due_at);
                self.checker.answered(due_at, latency);
                let (member, process) = (connection.member, connection.process);
                let is_blind = self.is_blind_to(index);
                if self.planted != Some(PlantedFault::Deaf) {
                    let reported = if is_blind {
                        latency.min(self.plan.settings.sla / BLIND_SLA_DIVISOR)
                    } else {
                        latency
                    };
                    self.processes[process as usize].activation.record_latency(self.now, member, reported);
                }
                self.send(index);
            }
        }
    }

    /// A connection's new carrier is attached: sends the request in flight again.
    fn carrier_attached(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        connection.is_moving = false;
        let (member, process) = (connection.member, connection.process);
        let carrier = match connection.carrier_host {
            CarrierHost::Server => Carrier::Direct,
            CarrierHost::Helper(_) => Carrier::Helped,
        };
        self.checker.carrier_attached(index, carrier);
        self.processes[process as usize].activation.carried(self.now, member, carrier);
        match self.connections[index as usize].in_flight {
            Some((request, _)) => self.transmit(index, Content::Request(request)),
            None => self.send(index),
        }
        self.drive(process);
    }

    fn refused(&mut self, index: u32, epoch: u32) {
        let connection = &self.connections[index as usize];
        if connection.epoch == epoch {
            let (member, process) = (connection.member, connection.process);
            self.checker.refused(index);
            self.processes[process as usize].activation.not_moved(self.now, member);
            self.drive(process);
        }
    }

    fn give_up(&mut self, index: u32, request: u64) {
        let connection = &mut self.connections[index as usize];
        let Some((_, due_at)) =
            connection.in_flight.take_if(|(request_in_flight, _)| *request_in_flight == request)
        else {
            return;
        };
        let (member, process) = (connection.member, connection.process);
        let waited = self.now.since(due_at);
        // A request that is given up counts as answered now: as late, if it waited for longer than the SLA.
        self.checker.answered(due_at, waited);
        if self.planted != Some(PlantedFault::Deaf) && !self.is_blind_to(index) {
            self.processes[process as usize].activation.record_given_up(self.now, member, waited);
        }
        self.send(index);
    }

    /// Executes the orders of the process `index`, and sets its timer.
    fn drive(&mut self, index: u32) {
        while let Some(order) = self.processes[index as usize].activation.poll(self.now) {
            let (member, carrier) = match order {
                Order::ToHelper(member) => (member, Carrier::Helped),
                Order::Direct(member) => (member, Carrier::Direct),
            };
            let connection = self.processes[index as usize].connections[&member];
            self.execute(index, connection, carrier);
        }
        let process = &mut self.processes[index as usize];
        while let Some(notice) = process.activation.poll_notice() {
            if let Some(log) = self.log.as_mut().filter(|_| !matches!(notice, Notice::Override { .. })) {
                log.push(format!("{:6} ms  process {index}: {notice}", self.now.as_nanos() / 1_000_000));
            }
        }
        // When an override is set, even the present one, the policy discards its record of failed trials.
        if self.planted == Some(PlantedFault::Forgetful) {
            let back_offs = process.activation.counters().back_offs;
            if std::mem::replace(&mut process.back_offs, back_offs) < back_offs {
                process.activation.set_override(self.now, Override::Auto, None);
            }
        }
        if let Some(at) = process.activation.poll_timeout()
            && process.wake_at.is_none_or(|wake_at| at < wake_at)
        {
            let at = at.max(self.now);
            process.wake_at = Some(at);
            self.agenda.add(at, WorldEvent::Wake(index, at));
        }
    }

    fn helped_connections(&self) -> Vec<u32> {
        let helped = |(_, connection): &(usize, &Connection)| {
            matches!(connection.carrier_host, CarrierHost::Helper(_)) && !connection.is_moving
        };
        self.connections.iter().enumerate().filter(helped).map(|(index, _)| index as u32).collect()
    }

    fn sample_release(&mut self) {
        let helped = self.helped_connections();
        let is_latency_low = self.server.sample_release(self.now, helped.len() as u32);
        if let (Some(log), Some(notice)) = (&mut self.log, self.server.release.poll_notice()) {
            log.push(format!("{:6} ms  server: {notice}", self.now.as_nanos() / 1_000_000));
        }
        for index in helped {
            let process = self.connections[index as usize].process;
            match self.planted {
                Some(PlantedFault::HastyRelease) if is_latency_low => self.request_release(index),
                Some(PlantedFault::Flap)
                    if self.processes[process as usize].activation.status(self.now).figures.late == 0 =>
                {
                    self.execute(process, index, Carrier::Direct);
                }
                _ => {}
            }
        }
        self.release_sessions();
        self.agenda.add(self.now + SAMPLE_EVERY, WorldEvent::ReleaseSample);
    }

    /// Releases random helped sessions, as many as the release policy orders now.
    fn release_sessions(&mut self) {
        while self.server.release.poll_drain(self.now) {
            let helped = self.helped_connections();
            if !helped.is_empty() {
                let index = self.rng.pick(&helped);
                self.request_release(index);
            }
        }
        if let Some(at) = self.server.release.poll_timeout() {
            let at = at.max(self.now + Duration::from_micros(1));
            if self.release_due.is_none_or(|due| at < due) {
                self.release_due = Some(at);
                self.agenda.add(at, WorldEvent::ReleaseDue);
            }
        }
    }

    fn request_release(&mut self, index: u32) {
        let connection = &self.connections[index as usize];
        let (member, process) = (connection.member, connection.process);
        self.processes[process as usize].activation.release_requested(self.now, member);
        self.drive(process);
    }
}

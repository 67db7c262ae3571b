//! A host's servers: one stack, or several behind the addresses of one service, between which connections move through
//! the switch. For the program they are one transport, in which a connection keeps its name when it moves.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use spillway_handoff::{Agent, Cause, MoveResult, Sorted, Transmit};
use spillway_tcp::{Counters, Dropping, Settings, Stack, StackEvent};
use spillway_transport::{Application, Conn, Event, LostReason, Time};
use spillway_wire::packet::tcp::Flags;
use spillway_wire::switch::{Flow, MESSAGE_BYTES, ServerId};

use super::frames::{datagram_in, ends_of, flags_of, is_datagram, mac_of};
use super::loss::Loss;
use super::moves::Moves;
use super::names::{Handle, Names};
use super::transit::Transit;
use crate::rng::Rng;

/// Drops that a stack remembers.
pub(super) const DROPS_MAX: usize = 64;

/// A stack with its clock and its agent.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) stack: Stack,
    /// Lead of the server's clock over the host's.
    ahead: Duration,
    /// `None` if the host has one server only: nothing can move.
    pub(super) agent: Option<Agent>,
    /// Settings of the agent's present run.
    pub(super) agent_settings: Option<spillway_handoff::Settings>,
    pub(super) inbox: VecDeque<(Vec<u8>, bool)>,
    /// Datagrams of other servers.
    pub(super) messages: VecDeque<Vec<u8>>,
    pub(super) is_paused: bool,
    /// Retransmission timeouts that [`Rack::new_timeouts`] has returned.
    timeouts_seen: u64,
}

impl Server {
    pub(super) fn time(&self, now: Time) -> Time {
        now + self.ahead
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.is_paused {
            return None;
        }
        let agent = self.agent.as_ref().map(Agent::poll_timeout);
        let at = [self.stack.poll_timeout(), agent].into_iter().flatten().min();
        at.map(|at| Time(at.0.saturating_sub(self.ahead.as_nanos() as u64))) // fits: hours
    }
}

/// What a server sends.
#[derive(Debug)]
pub(crate) enum Sent<'a> {
    /// A frame of the stack.
    Frame(&'a mut [u8]),
    /// The payload of a datagram to the switch.
    Control(Box<[u8; MESSAGE_BYTES]>),
    /// The payload of a datagram to another server of the host.
    Server { to: ServerId, payload: Vec<u8> },
}

#[derive(Debug)]
pub(crate) struct Rack {
    pub(super) servers: Vec<Server>,
    pub(super) names: Names,
    /// Connections between two stacks.
    pub(super) transits: BTreeMap<Conn, Transit>,
    /// The latest connection of each flow of a service.
    pub(super) flows: BTreeMap<Flow, Conn>,
    pub(super) flow_of: BTreeMap<Conn, Flow>,
    /// The latest connection with these ends that the program opened: local address, and the service.
    pub(crate) opened: BTreeMap<(SocketAddr, SocketAddr), Conn>,
    pub(super) moves: Moves,
    services: [SocketAddr; 2],
    /// Time of the present turn.
    pub(super) latest: Time,
    /// Damaged frames that stacks received in the present turn.
    pub(crate) damaged: u64,
    /// Connections that were lost without a violation.
    pub(crate) lost: Vec<(Flow, Loss)>,
    /// Counters of stacks of earlier runs.
    pub(super) retired: Vec<Counters>,
    /// Moves that have ended at their sources.
    pub(crate) ended: Vec<(Flow, MoveResult)>,
    /// Imports at targets.
    pub(crate) moved: Vec<Flow>,
    /// Imports of connections: the server continues the connection from now on.
    pub(crate) imports: Vec<(Flow, usize)>,
    pub(crate) violations: Vec<String>,
}

impl Rack {
    /// `agents`: settings for the agent of each stack, or none.
    pub(crate) fn new(
        now: Time,
        settings: Vec<Settings>,
        agents: Vec<spillway_handoff::Settings>,
        (moves, services): (Moves, [SocketAddr; 2]),
        mut rng: Rng,
    ) -> Rack {
        let settings_error = "the settings of the plan are valid";
        let mut agents = VecDeque::from(agents);
        let server = |(index, settings): (usize, Settings)| {
            let ahead =
                Duration::from_nanos(if index == 0 { 0 } else { rng.log_uniform(1, 1_000_000_000_000) });
            let mut stack = Stack::new(now + ahead, settings).expect(settings_error);
            stack.watch_drops(DROPS_MAX);
            let agent_settings = agents.pop_front();
            let agent = agent_settings.clone().map(|settings| Agent::new(now + ahead, settings));
            Server {
                stack,
                ahead,
                agent,
                agent_settings,
                inbox: VecDeque::new(),
                messages: VecDeque::new(),
                is_paused: false,
                timeouts_seen: 0,
            }
        };
        Rack {
            servers: settings.into_iter().enumerate().map(server).collect(),
            names: Names::default(),
            transits: BTreeMap::new(),
            flows: BTreeMap::new(),
            flow_of: BTreeMap::new(),
            opened: BTreeMap::new(),
            moves,
            services,
            latest: now,
            damaged: 0,
            lost: Vec::new(),
            retired: Vec::new(),
            ended: Vec::new(),
            moved: Vec::new(),
            imports: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.servers.iter().map(|server| server.stack.connections()).sum()
    }

    /// Maximum number of half-open connections of all stacks together.
    pub(crate) fn half_open_max(&self) -> usize {
        self.servers.iter().map(|server| server.stack.settings().half_open_max as usize).sum()
    }

    pub(crate) fn sum(&self, of: fn(&Counters) -> u64) -> u64 {
        let present = self.servers.iter().map(|server| server.stack.counters());
        present.chain(&self.retired).map(of).sum()
    }

    /// Retransmission timeouts since the last call, by server; only servers with at least one.
    pub(crate) fn new_timeouts(&mut self) -> impl Iterator<Item = (usize, u64)> {
        self.servers.iter_mut().enumerate().filter_map(|(index, server)| {
            let all = server.stack.counters().timeouts;
            let new = all.saturating_sub(std::mem::replace(&mut server.timeouts_seen, all));
            (new > 0).then_some((index, new))
        })
    }

    /// Flows that were taken back after the switch had lost its entries.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.servers
            .iter()
            .filter_map(|server| server.agent.as_ref())
            .map(|agent| agent.counters().reclaimed)
            .sum()
    }

    /// The flow of a connection that a server has accepted.
    pub(crate) fn flow_of(&self, name: Conn) -> Option<Flow> {
        self.flow_of.get(&name).copied()
    }

    /// A server's clock at a time of the host's.
    pub(crate) fn server_time(&self, server: usize, now: Time) -> Time {
        self.servers[server].time(now)
    }

    /// Drops since the last call, by server.
    pub(crate) fn dropped(&mut self) -> impl Iterator<Item = (usize, Dropping)> {
        let poll = |stack: &mut Stack| stack.poll_dropped();
        let servers = self.servers.iter_mut().enumerate();
        servers.flat_map(move |(index, server)| {
            std::iter::from_fn(move || poll(&mut server.stack)).map(move |dropping| (index, dropping))
        })
    }

    /// Queues a received frame; `queue_max`: length of the server's receive queue. Returns false if the queue is full.
    pub(crate) fn arrive(
        &mut self,
        server: usize,
        frame: Vec<u8>,
        is_damaged: bool,
        queue_max: usize,
    ) -> bool {
        let inbox = &mut self.servers[server].inbox;
        let has_room = inbox.len() < queue_max;
        if has_room {
            inbox.push_back((frame, is_damaged));
        }
        has_room
    }

    /// Queues a datagram of another server; `queue_max`: length of the queue.
    pub(crate) fn arrive_message(&mut self, server: usize, payload: Vec<u8>, queue_max: usize) {
        let messages = &mut self.servers[server].messages;
        if messages.len() < queue_max {
            messages.push_back(payload);
        }
    }

    /// Stops or continues a server: a paused one receives, but handles and sends nothing.
    pub(crate) fn set_paused(&mut self, server: usize, is_paused: bool) {
        self.servers[server].is_paused = is_paused;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.servers.iter().filter_map(Server::poll_timeout).min()
    }

    /// As [`spillway_tcp::drive::begin_turn`].
    pub(crate) fn begin_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        self.latest = now;
        if application.poll_timeout().is_some_and(|at| at <= now) {
            application.handle_timeout(now, self);
        }
        self.drain(application, now);
    }

    /// Handles everything that has arrived. After each frame its connection may move.
    pub(crate) fn deliver_all<A: Application>(&mut self, application: &mut A, now: Time) {
        for index in 0..self.servers.len() {
            while !self.servers[index].is_paused {
                let Some(payload) = self.servers[index].messages.pop_front() else { break };
                let server = &mut self.servers[index];
                let server_now = server.time(now);
                if let Some(agent) = &mut server.agent {
                    agent.handle_datagram(server_now, &payload);
                }
                self.run_agents(application, now);
            }
            while !self.servers[index].is_paused {
                let Some((mut frame, is_damaged)) = self.servers[index].inbox.pop_front() else { break };
                self.deliver(application, now, index, (&mut frame, is_damaged));
            }
        }
    }

    fn deliver<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        (frame, is_damaged): (&mut [u8], bool),
    ) {
        let server = &mut self.servers[index];
        let server_now = server.time(now);
        let ends = ends_of(frame);
        if let Some(agent) = &mut server.agent {
            if is_datagram(frame) {
                if let Some((_, payload)) = datagram_in(frame) {
                    agent.handle_datagram(server_now, payload);
                }
                return self.run_agents(application, now);
            }
            let flags = flags_of(frame);
            let is_opening = flags.contains(Flags::SYN) && !flags.contains(Flags::ACK);
            let sorted = ends.map(|ends| agent.sort(server_now, ends, is_opening, frame));
            if sorted.is_some_and(|sorted| sorted != Sorted::Stack) {
                return;
            }
        }
        self.hand_over(application, now, index, (frame, is_damaged));
        self.move_some(application, now, ends.map(|(source, target)| (target, source)));
    }

    /// Passes a frame to a stack.
    pub(super) fn hand_over<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        (frame, is_damaged): (&mut [u8], bool),
    ) {
        let server = &mut self.servers[index];
        let ignored = server.stack.counters().frames_ignored;
        let delivery = server.stack.handle_frame(server.time(now), frame);
        // A stack that ignores a frame, because the frame is for another address, does not look at its checksum.
        self.damaged += u64::from(is_damaged && server.stack.counters().frames_ignored == ignored);
        if let Some(delivery) = delivery {
            let event = Event::Data { end: delivery.end, bytes: &frame[delivery.range] };
            match self.names.name(Handle { server: index, conn: delivery.conn }) {
                Some(name) => application.handle(now, name, event, self),
                None => {
                    self.violations.push(format!("{:?} received bytes, but was never opened", delivery.conn))
                }
            }
        }
        self.drain(application, now);
    }

    /// As [`spillway_tcp::drive::end_turn`].
    pub(crate) fn end_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        for server in self.servers.iter_mut().filter(|server| !server.is_paused) {
            let server_now = server.time(now);
            if server.stack.poll_timeout().is_some_and(|at| at <= server_now) {
                server.stack.handle_timeout(server_now);
            }
            if let Some(agent) = &mut server.agent {
                let free = self.moves.imports_max().saturating_sub(server.stack.connections());
                let load = u32::try_from(server.stack.connections()).unwrap_or(u32::MAX);
                agent.set_load(load, free);
                if agent.poll_timeout() <= server_now {
                    agent.handle_timeout(server_now);
                }
            }
        }
        self.drain(application, now);
        self.run_agents(application, now);
        application.end_of_turn(now, self);
        while self.drain(application, now) {
            application.end_of_turn(now, self);
        }
    }

    /// Sends everything, one frame of each stack in turn. After each frame its connection may move.
    pub(crate) fn transmit<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        slot: &mut Vec<u8>,
        mut send: impl FnMut(&mut A, usize, Sent<'_>),
    ) {
        let mut is_quiet = false;
        while !std::mem::replace(&mut is_quiet, true) {
            for index in 0..self.servers.len() {
                let server = &mut self.servers[index];
                if server.is_paused {
                    continue;
                }
                let server_now = server.time(now);
                while let Some(transmit) =
                    server.agent.as_mut().and_then(|agent| agent.poll_transmit(server_now))
                {
                    let sent = match transmit {
                        Transmit::Switch(payload) => Sent::Control(payload),
                        Transmit::Server { to, payload } => Sent::Server { to, payload },
                    };
                    send(application, index, sent);
                }
                // With IPv6 the driver resolves next hops.
                while let Some(peer) = server.stack.poll_next_hop_request() {
                    server.stack.set_next_hop(server_now, peer, Some(mac_of(peer)));
                }
                slot.resize(server.stack.frame_bytes_max(), 0);
                let Some(length) = server.stack.poll_transmit(server_now, slot) else { continue };
                is_quiet = false;
                let ends = ends_of(&slot[..length]);
                let agent = server.agent.as_ref().zip(ends);
                if agent.is_none_or(|(agent, ends)| agent.may_transmit(server_now, ends)) {
                    send(application, index, Sent::Frame(&mut slot[..length]));
                }
                self.move_some(application, now, ends);
            }
        }
    }

    fn move_some<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        if self.moves.have_ended() {
            return;
        }
        self.move_after(now, ends);
        self.drain(application, now);
    }

    /// Passes all events of the stacks to the application. Returns whether there was at least one.
    pub(super) fn drain<A: Application>(&mut self, application: &mut A, now: Time) -> bool {
        let (mut index, mut stacks_without_event, mut has_events) = (0, 0, false);
        while stacks_without_event < self.servers.len() {
            if let Some((conn, event)) = self.servers[index].stack.poll_event() {
                (stacks_without_event, has_events) = (0, true);
                self.pass_event(application, now, Handle { server: index, conn }, &event);
            } else {
                (stacks_without_event, index) = (stacks_without_event + 1, (index + 1) % self.servers.len());
            }
        }
        has_events
    }

    fn pass_event<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        handle: Handle,
        event: &StackEvent,
    ) {
        if let StackEvent::Opened { peer, listener: Some(listener) } = event {
            self.add_accepted(handle, *peer, *listener);
        }
        let Some(name) = self.names.name(handle) else {
            return self.violations.push(format!("{event:?} of {:?}, which was never opened", handle.conn));
        };
        let event = match event {
            StackEvent::Opened { peer, listener } => Event::Opened { peer: *peer, listener: *listener },
            StackEvent::Data { end, bytes } => Event::Data { end: *end, bytes },
            StackEvent::Acknowledged { through } => Event::Acknowledged { through: *through },
            StackEvent::Room => Event::Room,
            StackEvent::Finished => Event::Finished,
            StackEvent::Lost(reason) => {
                self.end_connection(now, name);
                Event::Lost(*reason)
            }
        };
        application.handle(now, name, event, self);
    }

    fn add_accepted(&mut self, handle: Handle, peer: SocketAddr, listener: u16) {
        let name = self.names.add(handle);
        let service = self.services[usize::from(listener).min(1)];
        match Flow::new(peer.into(), service.into()) {
            Ok(flow) => {
                self.flows.insert(flow, name);
                self.flow_of.insert(name, flow);
            }
            Err(error) => self.violations.push(format!("{peer} has no flow: {error}")),
        }
    }

    /// A connection has ended on its stack.
    pub(super) fn end_connection(&mut self, now: Time, name: Conn) {
        if let Some(handle) = self.names.remove(name) {
            let flow = self.forget_flow(name);
            let server = &mut self.servers[handle.server];
            let server_now = server.time(now);
            if let Some((agent, flow)) = server.agent.as_mut().zip(flow) {
                agent.connection_ended(server_now, flow);
            }
        }
    }

    pub(super) fn forget_flow(&mut self, name: Conn) -> Option<Flow> {
        let flow = self.flow_of(name)?;
        if self.flows.get(&flow) == Some(&name) {
            self.flows.remove(&flow);
        }
        Some(flow)
    }

    /// A connection is lost without a violation. For the program it has failed.
    pub(super) fn lose<A: Application>(&mut self, application: &mut A, now: Time, flow: Flow, loss: Loss) {
        self.lost.push((flow, loss));
        if loss == Loss::Protocol(Cause::Foreign) {
            self.violations
                .push(format!("{flow:?}: its server has the connection, but the switch names another owner"));
        }
        let Some(name) = self.flows.remove(&flow) else { return };
        let is_aborted = self.transits.remove(&name).is_some_and(|transit| transit.is_aborted());
        self.names.remove(name);
        if !is_aborted {
            application.handle(now, name, Event::Lost(LostReason::Failed), self);
        }
    }

    pub(super) fn stack_of(&mut self, name: Conn) -> Option<(&mut Stack, Conn)> {
        let Handle { server, conn } = self.names.handle(name)?;
        Some((&mut self.servers[server].stack, conn))
    }
}

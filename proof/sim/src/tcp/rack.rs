//! A host's servers: one stack, or several behind the addresses of one service, between which connections move through
//! the switch. Each is a server of `core/moves`, as on a real host. For the program they are one transport, in which a
//! connection keeps its name when it moves.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use spillway_handoff::{Agent, MoveResult, Transmit};
use spillway_moves::Server;
use spillway_tcp::{Counters, Dropping, Settings, Stack};
use spillway_transport::{Application, Time};
use spillway_wire::switch::{Flow, MESSAGE_BYTES, ServerId};

use super::directory::Directory;
use super::frames::{datagram_in, ends_of, is_datagram, mac_of};
use super::local::Local;
use super::moves::Moves;
use super::planted_fault::PlantedFault;
use super::requests::Requests;
use crate::rng::Rng;

/// Drops that a stack remembers.
const DROPS_MAX: usize = 64;
/// A connection is this part of a server's load, in millionths: the switch moves connections to the least loaded server.
const LOAD_OF_CONNECTION: u32 = 1_000;

/// A server with its clock and what has arrived for it.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) server: Server,
    /// Lead of the server's clock over the host's.
    ahead: Duration,
    /// Settings of the agent's present run; `None` if the host has one server only: nothing can move.
    pub(super) agent_settings: Option<spillway_handoff::Settings>,
    pub(super) inbox: VecDeque<(Vec<u8>, bool)>,
    /// Datagrams of other servers that have not passed the switch.
    pub(super) messages: VecDeque<Vec<u8>>,
    pub(super) is_paused: bool,
    /// Retransmission timeouts that [`Rack::new_timeouts`] has returned.
    timeouts_seen: u64,
}

impl Member {
    fn new(ahead: Duration, server: Server, agent: Option<spillway_handoff::Settings>) -> Member {
        Member {
            server,
            ahead,
            agent_settings: agent,
            inbox: VecDeque::new(),
            messages: VecDeque::new(),
            is_paused: false,
            timeouts_seen: 0,
        }
    }

    pub(super) fn time(&self, now: Time) -> Time {
        now + self.ahead
    }

    pub(super) fn stack(&self) -> &Stack {
        self.server.connections().stack()
    }

    pub(super) fn stack_mut(&mut self) -> &mut Stack {
        self.server.connections_mut().stack_mut()
    }

    fn poll_timeout(&self) -> Option<Time> {
        if self.is_paused {
            return None;
        }
        let at = self.server.poll_own_timeout()?;
        Some(Time(at.0.saturating_sub(self.ahead.as_nanos() as u64))) // fits: hours
    }

    /// States the number of connections as the load, when the server looks at it.
    fn look(&mut self, now: Time) {
        let now = self.time(now);
        if self.server.next_look() <= now {
            let connections = u32::try_from(self.stack().connections()).unwrap_or(u32::MAX);
            self.server.look(now, connections.saturating_mul(LOAD_OF_CONNECTION), Duration::ZERO);
        }
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
    pub(super) members: Vec<Member>,
    pub(crate) directory: Directory,
    /// Damaged frames that stacks received in the present turn.
    pub(crate) damaged: u64,
    /// Counters of stacks of earlier runs.
    pub(super) retired: Vec<Counters>,
    /// Moves that have ended at their sources; `None`: the move has not begun.
    pub(crate) ended: Vec<(Flow, Option<MoveResult>)>,
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
        let mut agents = VecDeque::from(agents);
        let member = |(index, settings): (usize, Settings)| {
            let ahead =
                Duration::from_nanos(if index == 0 { 0 } else { rng.log_uniform(1, 1_000_000_000_000) });
            let agent = agents.pop_front();
            let server = start(now + ahead, settings, agent.clone(), services);
            Member::new(ahead, server, agent)
        };
        Rack {
            members: settings.into_iter().enumerate().map(member).collect(),
            directory: Directory::new(moves, services),
            damaged: 0,
            retired: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// From now on half of the moves hand a request off.
    pub(crate) fn hand_requests_off(&mut self, rng: Rng) {
        let servers = self.agents().map(Agent::id).collect();
        self.directory.requests = Requests::new(Some(rng), servers);
    }

    pub(crate) fn connections(&self) -> usize {
        self.members.iter().map(|member| member.stack().connections()).sum()
    }

    /// Maximum number of half-open connections of all stacks together.
    pub(crate) fn half_open_max(&self) -> usize {
        self.members.iter().map(|member| member.stack().settings().half_open_max as usize).sum()
    }

    pub(crate) fn sum(&self, of: fn(&Counters) -> u64) -> u64 {
        let present = self.members.iter().map(|member| member.stack().counters());
        present.chain(&self.retired).map(of).sum()
    }

    /// Retransmission timeouts since the last call, by server; only servers with at least one.
    pub(crate) fn new_timeouts(&mut self) -> impl Iterator<Item = (usize, u64)> {
        self.members.iter_mut().enumerate().filter_map(|(index, member)| {
            let all = member.stack().counters().timeouts;
            let new = all.saturating_sub(std::mem::replace(&mut member.timeouts_seen, all));
            (new > 0).then_some((index, new))
        })
    }

    pub(super) fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.members.iter().filter_map(|member| member.server.agent())
    }

    /// Flows that were taken back after the switch had lost its entries.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.agents().map(|agent| agent.counters().reclaimed).sum()
    }

    /// A server's clock at a time of the host's.
    pub(crate) fn server_time(&self, server: usize, now: Time) -> Time {
        self.members[server].time(now)
    }

    /// Drops since the last call, by server.
    pub(crate) fn dropped(&mut self) -> impl Iterator<Item = (usize, Dropping)> {
        self.members.iter_mut().enumerate().flat_map(|(index, member)| {
            std::iter::from_fn(move || member.stack_mut().poll_dropped())
                .map(move |dropping| (index, dropping))
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
        let inbox = &mut self.members[server].inbox;
        let has_room = inbox.len() < queue_max;
        if has_room {
            inbox.push_back((frame, is_damaged));
        }
        has_room
    }

    /// Queues a datagram of another server; `queue_max`: length of the queue.
    pub(crate) fn arrive_message(&mut self, server: usize, payload: Vec<u8>, queue_max: usize) {
        let messages = &mut self.members[server].messages;
        if messages.len() < queue_max {
            messages.push_back(payload);
        }
    }

    /// Stops or continues a server: a paused one receives, but handles and sends nothing.
    pub(crate) fn set_paused(&mut self, server: usize, is_paused: bool) {
        self.members[server].is_paused = is_paused;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.members.iter().filter_map(Member::poll_timeout).min()
    }

    /// Calls a server, with its time and the program as the server sees it. Then handles what the call led to.
    pub(super) fn with<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        call: impl FnOnce(&mut Server, &mut Local<'_, A>, Time),
    ) {
        let member = &mut self.members[index];
        let server_now = member.time(now);
        let mut local =
            Local { program: &mut *application, directory: &mut self.directory, server: index, now };
        call(&mut member.server, &mut local, server_now);
        self.settle(application, now, index);
    }

    /// Begins a turn: runs the program's timers that are due.
    pub(crate) fn begin_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        if application.poll_timeout().is_some_and(|at| at <= now) {
            application.handle_timeout(now, self);
        }
        self.pass_events(application, now);
    }

    /// Passes all events of the stacks to the program. Commands of the program may have caused some.
    pub(super) fn pass_events<A: Application>(&mut self, application: &mut A, now: Time) {
        for index in 0..self.members.len() {
            self.with(application, now, index, |server, local, now| server.begin_turn(local, now));
        }
    }

    /// Handles everything that has arrived. After each frame its connection may move.
    pub(crate) fn deliver_all<A: Application>(&mut self, application: &mut A, now: Time) {
        for index in 0..self.members.len() {
            while !self.members[index].is_paused {
                let Some(mut payload) = self.members[index].messages.pop_front() else { break };
                self.with(application, now, index, |server, local, now| {
                    server.handle_datagram(local, now, &mut payload);
                });
            }
            while !self.members[index].is_paused {
                let Some((frame, is_damaged)) = self.members[index].inbox.pop_front() else { break };
                self.deliver(application, now, index, (&frame, is_damaged));
            }
        }
    }

    fn deliver<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        index: usize,
        (frame, is_damaged): (&[u8], bool),
    ) {
        if self.members[index].agent_settings.is_some() && is_datagram(frame) {
            let Some((_, payload)) = datagram_in(frame) else { return };
            return self.with(application, now, index, |server, local, now| {
                server.handle_datagram(local, now, &mut payload.to_vec());
            });
        }
        if self.is_forgotten(index, frame) {
            return;
        }
        let ignored = self.members[index].stack().counters().frames_ignored;
        self.with(application, now, index, |server, local, now| server.deliver(local, now, frame));
        // A stack that ignores a frame, because the frame is for another address, does not look at its checksum.
        let is_ignored = self.members[index].stack().counters().frames_ignored != ignored;
        self.damaged += u64::from(is_damaged && !is_ignored);
        self.move_after(application, now, ends_of(frame).map(|(source, target)| (target, source)));
    }

    /// Planted fault [`PlantedFault::ForgetBuffer`]: whether the frame would wait for a connection that moves to this server.
    fn is_forgotten(&self, index: usize, frame: &[u8]) -> bool {
        if !self.directory.moves.has_planted(PlantedFault::ForgetBuffer) {
            return false;
        }
        let Some((agent, (client, _))) = self.members[index].server.agent().zip(ends_of(frame)) else {
            return false;
        };
        let flows = self.directory.services().map(|service| Flow::new(client.into(), service.into()));
        flows.into_iter().flatten().any(|flow| agent.source_of(&flow).is_some())
    }

    /// Ends a turn, after everything that has arrived and before frames are sent.
    pub(crate) fn end_turn<A: Application>(&mut self, application: &mut A, now: Time) {
        for index in 0..self.members.len() {
            if !self.members[index].is_paused {
                self.members[index].look(now);
                self.with(application, now, index, |server, local, now| server.end_turn(local, now));
            }
        }
        application.end_of_turn(now, self);
        self.pass_events(application, now);
        self.lose_abandoned(application, now);
    }

    /// Sends everything, one frame of each stack in turn. After each frame its connection may move. Connections leave when
    /// all frames have been sent.
    pub(crate) fn transmit<A: Application>(
        &mut self,
        application: &mut A,
        now: Time,
        slot: &mut Vec<u8>,
        mut send: impl FnMut(&mut A, usize, Sent<'_>),
    ) {
        loop {
            let mut is_quiet = true;
            for index in 0..self.members.len() {
                let member = &mut self.members[index];
                if member.is_paused {
                    continue;
                }
                let server_now = member.time(now);
                while let Some(transmit) = member.server.poll_datagram(server_now) {
                    let sent = match transmit {
                        Transmit::Switch(payload) => Sent::Control(payload),
                        Transmit::Server { to, payload } => Sent::Server { to, payload },
                    };
                    send(application, index, sent);
                }
                // With IPv6 the driver resolves next hops.
                while let Some(peer) = member.stack_mut().poll_next_hop_request() {
                    member.stack_mut().set_next_hop(server_now, peer, Some(mac_of(peer)));
                }
                slot.resize(member.stack().frame_bytes_max(), 0);
                let Some(length) = member.server.poll_transmit(server_now, slot) else { continue };
                is_quiet = false;
                let ends = ends_of(&slot[..length]);
                send(application, index, Sent::Frame(&mut slot[..length]));
                self.move_after(application, now, ends);
            }
            if is_quiet && !self.export_all(application, now) {
                return;
            }
        }
    }
}

/// Starts a server, in its first run or in a further one.
///
/// # Panics
/// If the settings are invalid; a plan draws valid ones.
pub(super) fn start(
    now: Time,
    settings: Settings,
    agent: Option<spillway_handoff::Settings>,
    services: [SocketAddr; 2],
) -> Server {
    let mut stack = Stack::new(now, settings).expect("the settings of the plan are valid");
    stack.watch_drops(DROPS_MAX);
    let agent = agent.map(|settings| Agent::new(now, settings));
    Server::new(stack, agent, services.map(Into::into))
}

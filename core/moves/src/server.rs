//! A server: its TCP, its agent, and the moves of its connections.

mod drive;
mod events;
mod moving;
mod requests;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use spillway_handoff::{Agent, HandedRequest, TracedMove, Transmit};
use spillway_policy::migration::Decision;
use spillway_policy::{OutOfBounds, Override};
use spillway_tcp::Stack;
use spillway_transport::{Conn, Time};
use spillway_wire::switch::{Endpoint, Flow, ServerId};

use crate::application::Movable;
use crate::blackout::{BlackoutCounts, Blackouts};
use crate::commands::WaitingCommands;
use crate::connections::Connections;
use crate::ends::Ends;
use crate::incidents::{Incident, Incidents};
use crate::orders::{ORDERS_MAX, Order, OrderError, OrderResult, Orders};
use crate::policy::{DecisionCounts, Policy, PolicySettings};
use crate::reply_source::ReplySource;
use crate::reservations::Reservations;
use crate::tcp::Tcp;

/// Maximum number of results that wait for [`Server::poll_result`]: one for each order. Beyond it the oldest is dropped.
const RESULTS_MAX: usize = ORDERS_MAX;

/// A server of one or several services whose connections move, on the user-level stack or another [`Tcp`]. A driver calls its
/// methods in turns:
///
/// 1. [`begin_turn`](Self::begin_turn);
/// 2. [`deliver`](Self::deliver) for each frame, and [`handle_datagram`](Self::handle_datagram) for each datagram of the
///    switch and of other servers;
/// 3. [`end_turn`](Self::end_turn);
/// 4. with the user-level stack [`poll_transmit`](Self::poll_transmit) until it returns `None`; then
///    [`frames_sent`](Self::frames_sent), when the device has taken all of these frames: the server exports connections
///    there, and their states must not overtake their last frames;
/// 5. [`poll_datagram`](Self::poll_datagram) until it returns `None`.
#[derive(Debug)]
pub struct Server<S: Tcp = Stack> {
    connections: Connections<S>,
    /// `None`: no connection of this server moves.
    agent: Option<Agent>,
    /// Maximum number of connections; the agent states the free places to the switch.
    connections_max: usize,
    orders: Orders,
    /// Flows that the agent exports when all frames have been sent.
    exports: VecDeque<Flow>,
    /// Requests that have come with their connections, and are neither served nor on their way to another server.
    requests: BTreeMap<Flow, HandedRequest>,
    commands: WaitingCommands,
    reservations: Reservations<S::Checked>,
    policy: Policy,
    /// Requests since the last look at the load.
    served: u32,
    results: VecDeque<(Order, OrderResult)>,
    incidents: Incidents,
    reply_source: Option<ReplySource>,
    counters: Counters,
    blackouts: Blackouts,
}

/// Counters of a server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that have moved away.
    pub moved: u64,
    /// Connections that have stayed: the move ended before the export.
    pub kept: u64,
    /// Connections that were exported and have come back.
    pub returned: u64,
    /// Exported connections that this server has given up: the target has them, or they are lost.
    pub let_go: u64,
    /// Moves that were stopped before the export, because a request had begun.
    pub stopped: u64,
    /// Connections that have come from other servers.
    pub imported: u64,
    /// Connections that this server lost by a failure: it may not continue them.
    pub lost: u64,
    /// Frames that were not sent, because another server may own their flow.
    pub muted: u64,
}

impl<S: Tcp> Server<S> {
    /// `services`: the endpoint of each service, by the index of its listener. The TCP has these listeners, at the place
    /// where this server has connections of the service; those of services whose original owner is another server stay
    /// closed.
    /// Without an agent no connection moves.
    pub fn new(tcp: S, agent: Option<Agent>, services: impl IntoIterator<Item = Endpoint>) -> Server<S> {
        let connections_max = tcp.connections_max();
        let mut agent = agent;
        if let Some(agent) = agent.as_mut().filter(|_| S::HOLDS_PACKETS) {
            agent.announce_arrivals();
        }
        Server {
            connections: Connections::new(tcp, services.into_iter().collect()),
            agent,
            connections_max,
            orders: Orders::default(),
            exports: VecDeque::new(),
            requests: BTreeMap::new(),
            commands: WaitingCommands::default(),
            reservations: Reservations::default(),
            policy: Policy::none(),
            served: 0,
            results: VecDeque::new(),
            incidents: Incidents::default(),
            reply_source: None,
            counters: Counters::default(),
            blackouts: Blackouts::default(),
        }
    }

    /// The TCP with its connections.
    pub fn connections(&self) -> &Connections<S> {
        &self.connections
    }

    /// The TCP with its connections, for the driver.
    pub fn connections_mut(&mut self) -> &mut Connections<S> {
        &mut self.connections
    }

    /// The agent, if connections of this server move.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// The server's counters since its start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How long connections that have left this server were without a server: from the export until *accepted* has
    /// arrived, or until the connection has come back.
    pub fn blackouts(&self) -> &BlackoutCounts {
        self.blackouts.counts()
    }

    /// From now on the times of the steps of moves are recorded, and those of the last `moves_max` moves that have ended
    /// are kept. `clock` is read at each step. Without an agent nothing happens.
    pub fn trace_moves(&mut self, clock: fn() -> u64, moves_max: usize) {
        self.with_agent(|agent| agent.trace_moves(clock, moves_max));
    }

    /// Removes and returns the traced moves that have ended, oldest first.
    pub fn take_traced(&mut self) -> Vec<TracedMove> {
        self.agent.as_mut().map(Agent::take_traced).unwrap_or_default()
    }

    /// Moves a connection when its request has ended, in the next turn at the earliest. `to`: `None` lets the switch
    /// choose the least loaded server. [`poll_result`](Self::poll_result) returns the result.
    ///
    /// # Errors
    /// Those of [`order`](Self::order).
    pub fn migrate(&mut self, conn: Conn, to: Option<ServerId>) -> Result<(), OrderError> {
        let flow = self.connections.flow(conn).ok_or(OrderError::NotHere)?;
        self.order(Order { flow, to })
    }

    /// As [`migrate`](Self::migrate), by flow.
    ///
    /// # Errors
    /// The server has no agent or does not have the connection, the connection has an order already, or there are 1,024
    /// orders.
    pub fn order(&mut self, order: Order) -> Result<(), OrderError> {
        if self.agent.is_none() {
            return Err(OrderError::NoAgent);
        }
        if self.connections.conn(&order.flow).is_none() {
            return Err(OrderError::NotHere);
        }
        self.orders.add(order)
    }

    /// Sets a policy, which orders moves in addition to the operator and the application. A policy needs an agent, which
    /// asks the switch for the loads of the other servers. Connections that are here already are unknown to the policy and
    /// do not move by it. `seed` must differ between servers.
    ///
    /// # Errors
    /// A setting is out of its bounds.
    pub fn set_policy(&mut self, settings: PolicySettings, seed: u64) -> Result<(), OutOfBounds> {
        self.policy = Policy::new(settings, seed)?;
        self.with_agent(Agent::watch_loads);
        Ok(())
    }

    /// Whether a policy orders moves.
    pub fn has_policy(&self) -> bool {
        self.policy.is_active()
    }

    /// Overrides the policy, for the time `lasts` or without limit: *off* forbids its moves, *on* ignores its thresholds, but
    /// not its limits. Without a policy nothing changes.
    pub fn set_override(&mut self, now: Time, manual_override: Override, lasts: Option<Duration>) {
        self.policy.set_override(now, manual_override, lasts);
    }

    /// The override in force.
    pub fn manual_override(&self, now: Time) -> Override {
        self.policy.manual_override(now)
    }

    /// The load that heartbeats state, in millionths of the capacity.
    pub fn load(&self) -> u32 {
        self.policy.load()
    }

    /// The policy's decisions, by reason and outcome.
    pub fn decision_counts(&self) -> DecisionCounts {
        self.policy.counts()
    }

    /// Returns the next move that the policy has ordered, with its reason, for the log.
    pub fn poll_decision(&mut self) -> Option<(Flow, Decision)> {
        self.policy.poll_report()
    }

    /// Returns the next order that has ended, with its result.
    pub fn poll_result(&mut self) -> Option<(Order, OrderResult)> {
        self.results.pop_front()
    }

    /// The next incident. Call it after each turn until it returns `None`.
    pub fn poll_incident(&mut self) -> Option<Incident> {
        self.incidents.poll()
    }

    /// The number of connections that the stack has, or for which it must have room later, without half-open ones.
    fn used_places(&self) -> usize {
        self.connections.established() + self.reservations.len()
    }

    fn end_order(&mut self, now: Time, flow: &Flow, result: OrderResult) {
        if let Some(order) = self.orders.end(flow) {
            self.policy.not_moved(now, flow);
            if self.results.len() == RESULTS_MAX {
                self.results.pop_front();
            }
            self.results.push_back((order, result));
        }
    }

    /// The address and port at which this server has the connections of a flow's service.
    fn place(&self, flow: &Flow) -> Option<Endpoint> {
        self.agent.as_ref()?.place_of(flow.service())
    }

    /// The next datagram to send.
    pub fn poll_datagram(&mut self, now: Time) -> Option<Transmit> {
        self.agent.as_mut()?.poll_transmit(now)
    }

    /// Keeps the memory of a datagram for a later one, after the driver has sent it. A driver may drop datagrams instead.
    pub fn recycle_datagram(&mut self, datagram: Transmit) {
        if let (Some(agent), Transmit::Server { payload, .. }) = (&mut self.agent, datagram) {
            agent.recycle(payload);
        }
    }

    /// Whether connections wait for [`frames_sent`](Self::frames_sent).
    pub fn has_exports(&self) -> bool {
        !self.exports.is_empty()
    }

    /// The number of connections that wait for [`frames_sent`](Self::frames_sent).
    pub fn exports(&self) -> usize {
        self.exports.len()
    }

    /// When the next turn is due if nothing arrives.
    #[must_use]
    pub fn poll_timeout<A: Movable>(&self, application: &A) -> Option<Time> {
        self.poll_own_timeout().into_iter().chain(application.poll_timeout()).min()
    }

    /// As [`poll_timeout`](Self::poll_timeout), without the application's timers: for a driver that runs those itself.
    #[must_use]
    pub fn poll_own_timeout(&self) -> Option<Time> {
        let stack = [self.connections.stack().poll_timeout(), self.orders.poll_timeout()];
        let agent = self.agent.as_ref().map(Agent::poll_timeout);
        let others = [agent, self.policy.poll_timeout(), self.commands.poll_timeout()];
        stack.into_iter().chain(others).flatten().min()
    }
}

/// What only a server on the user-level stack has: it makes frames.
impl Server {
    /// Gives segments from `place`, where this server has connections of a service, the service's address and port: in host
    /// mode replies pass no switch that does it. (A switch in gateway mode drops such segments.) Both addresses have one
    /// family.
    pub fn reply_as(&mut self, service: SocketAddr, place: SocketAddr) {
        debug_assert_eq!(service.is_ipv4(), place.is_ipv4(), "the driver has compared the families");
        self.reply_source = Some(ReplySource { place, service });
    }

    /// Writes the next frame to send, and returns its length in bytes. Frames of connections that this server may not
    /// own any more are not sent; TCP retransmits them.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Time, slot: &mut [u8]) -> Option<usize> {
        loop {
            let length = self.connections.stack_mut().poll_transmit(now, slot)?;
            let Some(agent) = &self.agent else { return Some(length) };
            let ends = slot.get(..length).and_then(Ends::of);
            if ends.is_none_or(|ends| agent.may_transmit(now, (ends.source, ends.target))) {
                let rewritten =
                    self.reply_source.filter(|reply| ends.is_some_and(|ends| ends.source == reply.place));
                if let (Some(reply), Some(frame)) = (rewritten, slot.get_mut(..length)) {
                    reply.apply(frame);
                }
                return Some(length);
            }
            self.counters.muted += 1;
        }
    }
}

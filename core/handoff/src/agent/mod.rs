//! A server's agent: its membership, the flows that it owns, and its moves.
//!
//! - `answers`: answers of the switch; `prepare`: messages that the switch relays; `messages`: messages of other servers
//! - `outcomes`: consequences of the end of a move; `frames`: packets of flows that move
//! - `output`: datagrams to send; `timers`: what is due by time; `loads`: the loads of the other servers
//! - `requests`: requests that move with their connections
//! - `steps`: times of the steps of moves

mod answers;
mod frames;
mod loads;
mod messages;
mod outcomes;
mod output;
mod prepare;
mod requests;
mod steps;
mod timers;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::net::SocketAddr;
use core::time::Duration;

use spillway_transport::Time;
use spillway_wire::Chunks;
use spillway_wire::handoff::Reason;
use spillway_wire::switch::{Endpoint, Flow, Kind, ServerId, Site};

use crate::budget::Budget;
use crate::buffer::HeldFrames;
use crate::event::{Cause, Event, MoveError, PeerFault, Transmit};
use crate::finished::FinishedMoves;
use crate::forward::Forwards;
use crate::lent::Lent;
use crate::loads::Loads;
use crate::membership::Membership;
use crate::migration::source::Source;
use crate::migration::target::Target;
use crate::peers::Peers;
use crate::recent::Recent;
use crate::relays::Relays;
use crate::requests::Requests;
use crate::sequences::Sequences;
use crate::settings::{Service, Settings};
use crate::timed::{Deadline, Timed};
use crate::trace::{End, Step, Trace};
use crate::transfer::Window;

/// Maximum number of requests without an answer; the agent stops waiting for answers to older ones.
const WAITING_MAX: usize = 4096;
/// Maximum number of finished moves that the agent remembers, one for each flow.
const FINISHED_MAX: usize = 4096;
/// Maximum number of ended connections whose flows are to be released. Flows of further connections are not released:
/// their entries end by age.
const ENDED_MAX: usize = 65_536;

/// How long the entry of a connection is kept whose segments may still leave: longer than a kernel repeats the last ones.
const LINGER_MAX: Duration = Duration::from_secs(600);

/// A flow with an entry whose connection is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owned {
    pub(crate) generation: u64,
    /// If the switch has lost the entry: until when this server requests the flow from the original owner, and the time of
    /// the next request.
    pub(crate) reclaim: Option<(Time, Time)>,
}

/// The release of a flow whose connection has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) next_at: Time,
    pub(crate) releases: u32,
}

impl Deadline for Owned {
    /// The next request to the original owner.
    fn deadline(&self) -> Option<Time> {
        self.reclaim.map(|(_, next_at)| next_at)
    }
}

impl Deadline for Ended {
    fn deadline(&self) -> Option<Time> {
        Some(self.next_at)
    }
}

/// A server's agent. The driver passes received datagrams, packets and the time, then polls for datagrams and events.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    sequences: Sequences,
    relays: Relays,
    membership: Membership,
    peers: Peers,
    /// Bytes of frames that wait for connections, and of incomplete states.
    held_bytes: Budget,
    state_bytes: Budget,
    owned: Timed<Flow, Owned>,
    sources: BTreeMap<Flow, Source>,
    /// Moves to this server, with their sources.
    targets: BTreeMap<Flow, (ServerId, Target)>,
    finished: FinishedMoves,
    /// The last export of each flow: the generation of the move, and its target.
    exports: Recent<(u64, ServerId)>,
    lent: Lent,
    /// Flows whose entries the switch has lost, and which this server, the original owner, moves without a state: the
    /// targets have the connections already.
    lending: BTreeSet<Flow>,
    ended: Timed<Flow, Ended>,
    forwards: Forwards,
    /// Requests in flight, by sequence.
    waiting: BTreeMap<u64, (Kind, Flow)>,
    requests: Requests,
    loads: Loads,
    /// This server's load, for heartbeats.
    load: u32,
    /// Number of further connections that the stack can have.
    free_places: u32,
    outputs: VecDeque<Transmit>,
    /// Flows with a move that may have something to send to the other end.
    ready: BTreeSet<Flow>,
    events: VecDeque<Event>,
    counters: Counters,
    /// The driver must hold a flow's packets before *prepared* leaves.
    announces_arrivals: bool,
    /// Times of the steps of moves; `None` unless they are measured.
    trace: Option<Trace>,
}

/// What an agent counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows that were taken back after the switch had lost their entries.
    pub reclaimed: u64,
    /// Packets that were forwarded to other servers.
    pub forwarded: u64,
    /// Packets that were not forwarded, because a limit was reached.
    pub forwards_dropped: u64,
    /// Packets that other servers have forwarded to this one, and that a connection here has received or will receive.
    pub forwards_received: u64,
    /// Packets of clients that have waited here for their connection, or for the answer of the switch.
    pub held: u64,
    /// Bytes of such packets at present, of all moves together.
    pub held_bytes: usize,
    /// Moves to this server that this server has refused or given back, by reason: in the order of [`Reason::ALL`].
    pub refusals: [u64; Reason::ALL.len()],
}

impl Counters {
    /// Moves to this server that this server has refused or given back.
    pub fn refused(&self) -> u64 {
        self.refusals.iter().sum()
    }

    fn count_refusal(&mut self, reason: Reason) {
        let place = Reason::ALL.iter().position(|each| *each == reason);
        if let Some(count) = place.and_then(|place| self.refusals.get_mut(place)) {
            *count += 1;
        }
    }
}

impl Agent {
    /// # Panics
    /// `settings` has no service.
    pub fn new(now: Time, settings: Settings) -> Agent {
        assert!(!settings.services.is_empty(), "a server without a service has nothing to move");
        let limits = settings.limits;
        Agent {
            membership: Membership::new(now, settings.heartbeat, settings.owner_timeout),
            peers: Peers::new(
                now,
                &settings.peers_key,
                (settings.id, settings.run),
                settings.peers.iter().map(|peer| peer.id),
            ),
            requests: Requests::new(settings.id, settings.run.get(), limits.requests_max),
            settings,
            sequences: Sequences::default(),
            relays: Relays::default(),
            held_bytes: Budget::new(limits.held_bytes_max),
            state_bytes: Budget::new(limits.state_bytes_max),
            owned: Timed::new(),
            sources: BTreeMap::new(),
            targets: BTreeMap::new(),
            finished: FinishedMoves::new(FINISHED_MAX),
            exports: Recent::new(FINISHED_MAX),
            lent: Lent::new(),
            lending: BTreeSet::new(),
            ended: Timed::new(),
            forwards: Forwards::new(now, limits.forwards_per_s),
            waiting: BTreeMap::new(),
            loads: Loads::default(),
            load: 0,
            free_places: 0,
            outputs: VecDeque::new(),
            ready: BTreeSet::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
            announces_arrivals: false,
            trace: None,
        }
    }

    /// The server's id at the switch.
    pub fn id(&self) -> ServerId {
        self.settings.id
    }

    /// Whether the switch confirms this server's heartbeats. Otherwise no connection moves from or to this server, and
    /// nothing is transmitted for imported flows.
    pub fn is_confirmed(&self, now: Time) -> bool {
        !self.membership.is_mute(now)
    }

    /// The agent's counters since its start.
    pub fn counters(&self) -> Counters {
        Counters {
            forwarded: self.forwards.sent,
            forwards_dropped: self.forwards.dropped,
            held_bytes: self.held_bytes.used(),
            ..self.counters
        }
    }

    /// Sets the load, in a unit that the servers of a service agree on, and how many more connections the stack can import.
    /// Heartbeats state both.
    pub fn set_load(&mut self, load: u32, free_places: usize) {
        (self.load, self.free_places) = (load, u32::try_from(free_places).unwrap_or(u32::MAX));
    }

    /// The server from which a connection comes; `None` if the flow does not move to this server.
    pub fn source_of(&self, flow: &Flow) -> Option<ServerId> {
        self.targets.get(flow).map(|(source, _)| *source)
    }

    /// Begins to move a connection of this server to the server `to`. With `None` the switch chooses the least loaded
    /// server. The move ends with [`Event::Ended`].
    ///
    /// # Errors
    /// The server cannot move the connection now.
    pub fn request_move(&mut self, now: Time, flow: Flow, to: Option<ServerId>) -> Result<(), MoveError> {
        let owned = self.owned.get(&flow);
        let is_owned = !self.lent.contains(&flow)
            && owned.map_or(self.is_original(&flow), |owned| owned.reclaim.is_none());
        let site = to.map(|to| self.site_of(to, &flow).ok_or(MoveError::UnknownServer)).transpose()?;
        if self.sources.contains_key(&flow) || self.targets.contains_key(&flow) {
            return Err(MoveError::Moving);
        }
        if !is_owned || to == Some(self.settings.id) {
            return Err(MoveError::NotOwned);
        }
        if self.ended.contains_key(&flow) {
            return Err(MoveError::Ended);
        }
        if self.membership.is_mute(now) {
            return Err(MoveError::Mute);
        }
        if self.sources.len() >= self.settings.limits.moves_max {
            return Err(MoveError::TooMany);
        }
        let replaces = owned.map_or(0, |owned| owned.generation);
        let source = Source::new(now, flow, replaces, site, self.parts_of_move());
        if let Some(trace) = &mut self.trace {
            trace.begin(flow, 0, End::Source, Step::Begin);
        }
        self.begin(flow, source);
        Ok(())
    }

    /// The connection of a flow has ended here; its last segments may have to be repeated.
    pub fn connection_ended(&mut self, now: Time, flow: Flow) {
        if self.sources.get(&flow).is_some_and(|source| source.state().is_none()) {
            self.requests.stay_behind(&flow);
        }
        let next_at = now + self.settings.time_wait;
        let has_entry = self.owned.contains_key(&flow) || self.sources.contains_key(&flow);
        if has_entry && self.ended.len() < ENDED_MAX {
            self.ended.insert(flow, Ended { next_at, releases: 0 });
        }
    }

    /// Segments of a connection that has [ended](Self::connection_ended) may still leave: its entry is kept until `connection_ended`
    /// is called again, or for [`LINGER_MAX`].
    pub fn connection_lingers(&mut self, now: Time, flow: &Flow) {
        self.ended.update(flow, |ended| ended.next_at = now + LINGER_MAX);
    }

    /// A client has opened a connection here. An earlier one with the same ends may have ended just before: its entry is that of
    /// the new one, and is not released yet.
    pub fn connection_opened(&mut self, flow: &Flow) {
        if self.is_original(flow) {
            self.ended.remove(flow);
        }
    }

    /// Where this server has connections of a service.
    pub fn place_of(&self, service: Endpoint) -> Option<Endpoint> {
        self.service(service).map(|service| service.place)
    }

    /// Whether a move of this flow may still end with the connection here.
    pub fn may_continue(&self, flow: &Flow) -> bool {
        self.sources.get(flow).is_some_and(|source| source.state().is_some())
            || self.targets.contains_key(flow)
    }

    /// Whether this server moves a connection to another one.
    pub fn is_source(&self, flow: &Flow) -> bool {
        self.sources.contains_key(flow)
    }

    /// Whether the connection is still to be exported. A driver that does not export at once, but when the connection's
    /// frames have left, must ask before: the move may have ended since [`Event::Export`].
    pub fn is_exporting(&self, flow: &Flow) -> bool {
        self.sources.get(flow).is_some_and(Source::is_exporting)
    }

    /// The connection was exported: the answer to [`Event::Export`].
    pub fn exported(&mut self, now: Time, flow: Flow, state: Chunks) {
        let Some(source) = self.sources.get_mut(&flow) else { return };
        let target = source.destination().and_then(|to| self.settings.server_with(to.target.mac()));
        let window = target.and_then(|target| self.peers.window(target)).unwrap_or_else(Window::new);
        source.exported(now, state, window);
        if let Some(trace) = &mut self.trace {
            trace.record(&flow, End::Source, Step::SendState);
        }
        self.owned.remove(&flow);
        self.ready.insert(flow);
        let to = source.destination().filter(|_| !self.lending.contains(&flow));
        let Some((to, target)) = to.zip(target) else { return };
        self.exports.insert(flow, (to.generation, target));
        self.forwards.begin(flow, target, to.generation, now + self.settings.times.forward_for);
    }

    /// The connection cannot be exported: the answer to [`Event::Export`].
    pub fn not_exported(&mut self, now: Time, flow: Flow) {
        if let Some(source) = self.sources.get_mut(&flow) {
            source.not_exported(now);
        }
    }

    /// Whether the stack can import the state: the answer to [`Event::Check`].
    pub fn checked(&mut self, now: Time, flow: Flow, generation: u64, result: Result<(), Reason>) {
        let Some((_, target)) = self.targets.get_mut(&flow) else { return };
        if target.generation() != generation {
            return;
        }
        match result {
            Ok(()) => {
                target.handle_checked(now);
                self.trace_step(&flow, End::Target, Step::Checked);
            }
            Err(reason) => self.refuse(now, flow, reason),
        }
    }

    /// The next fault of other servers' datagrams, for the log.
    pub fn poll_peer_fault(&mut self) -> Option<PeerFault> {
        self.peers.poll_fault()
    }

    /// The next event. Call it after each other verb until it returns `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn begin(&mut self, flow: Flow, source: Source) {
        self.forget_requests(&flow);
        self.sources.insert(flow, source);
    }

    /// Times and an empty buffer for a new move.
    fn parts_of_move(&self) -> (crate::migration::MoveTimes, HeldFrames) {
        (self.settings.times, HeldFrames::new(&self.held_bytes))
    }

    /// The server does not own a flow any more whose connection it has.
    fn give_up(&mut self, flow: Flow, cause: Cause) {
        self.owned.remove(&flow);
        self.ended.remove(&flow);
        self.events.push_back(Event::Drop { flow, cause });
    }

    /// The release of a flow was answered, or the flow has moved on.
    fn end_release(&mut self, flow: &Flow) {
        self.ended.remove(flow);
        self.owned.remove(flow);
    }

    fn forget_requests(&mut self, flow: &Flow) {
        self.waiting.retain(|_, (_, waiting)| waiting != flow);
    }

    fn service(&self, endpoint: Endpoint) -> Option<&Service> {
        self.settings.services.iter().find(|service| service.endpoint == endpoint)
    }

    fn original(&self, flow: &Flow) -> Option<ServerId> {
        self.service(flow.service()).map(|service| service.original)
    }

    fn is_original(&self, flow: &Flow) -> bool {
        self.original(flow) == Some(self.settings.id)
    }

    /// The flow of this server's connection that has this local end and this peer.
    fn flow_here(&self, local: SocketAddr, peer: SocketAddr) -> Option<Flow> {
        let (local, peer) = (Endpoint::from(local), Endpoint::from(peer));
        let mut services = self.settings.services.iter();
        let service = services.find(|service| service.endpoint == local || service.place == local)?;
        Flow::new(peer, service.endpoint).ok()
    }

    /// A server's site, with the service's own address: the server states its place in *prepared*.
    fn site_of(&self, server: ServerId, flow: &Flow) -> Option<Site> {
        Site::new(flow.service(), self.settings.mac_of(server)?)
    }
}
